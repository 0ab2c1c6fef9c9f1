//! Requests to a hub. In: an address. Its redirects are followed. Out: an answer with status 200 or 206, or an error
//! that says whether another attempt may help.
//!
//! The token is sent only to the endpoint's own origin (scheme, host and port). For the file itself, a hub redirects to
//! a storage host, with a signed address (`_is_same_or_hub_host` in huggingface_hub's `utils/_http.py`).

use std::hash::{BuildHasher, RandomState};
use std::io::{self, Read};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ureq::Agent;
use ureq::http::{HeaderMap, HeaderValue, StatusCode, Uri, header};

use crate::error::Error;

/// Maximum number of redirects. Many clients have this maximum (`_MAX_REDIRECTS` in huggingface_hub). A hub needs
/// fewer.
const MAX_REDIRECTS: usize = 10;

/// The longest wait at the request of a server. If a server asks for more, the wait is cut to this time. A hub counts
/// the requests of the last five minutes.
const MAX_WAIT: Duration = Duration::from_secs(300);

/// Maximum bytes of a repository's listing. The listing of 10,000 files has 4 MB.
const MAX_LISTING: u64 = 64 << 20;

/// How often, and how long, a request is tried again.
#[derive(Clone, Debug)]
pub(crate) struct Patience {
    /// How long opening a connection may take, and each read.
    pub(crate) timeout: Duration,
    pub(crate) attempts: u32,
    /// The pause before the second attempt. The pause is doubled before each further attempt.
    pub(crate) pause: Duration,
}

/// The value of the header that contains a token. `Debug` does not print it. `None` if a header cannot contain the
/// token.
pub(crate) fn bearer(token: &str) -> Option<HeaderValue> {
    let mut value = HeaderValue::from_str(&format!("Bearer {token}")).ok()?;
    value.set_sensitive(true);
    Some(value)
}

/// An endpoint, and the settings for requests to it.
#[derive(Clone, Debug)]
pub(crate) struct Http {
    agent: Agent,
    /// The address. It does not end with `/`.
    pub(crate) endpoint: String,
    token: Option<HeaderValue>,
    patience: Patience,
}

/// An answer whose body was not read yet.
pub(crate) struct Answer {
    /// The address after the last redirect.
    pub(crate) url: String,
    headers: HeaderMap,
    status: StatusCode,
    pub(crate) body: ureq::Body,
}

/// Why an attempt has failed.
pub(crate) enum Failure {
    /// Another attempt would fail in the same way.
    Final(Error),
    /// Another attempt may succeed. If the server has asked for a wait, after that wait.
    Again { url: String, status: Option<u16>, problem: String, wait: Option<Duration> },
    /// An address that was stored is no longer valid. The caller should try again at once, with the address in the
    /// repository.
    Expired,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Final(error)
    }
}

impl Http {
    pub(crate) fn new(endpoint: &str, token: Option<HeaderValue>, patience: Patience) -> Self {
        let endpoint = endpoint.trim_end_matches('/').to_owned();
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            // If the address is https, no redirect may lead to http.
            .https_only(endpoint.starts_with("https:"))
            .timeout_resolve(Some(patience.timeout))
            .timeout_connect(Some(patience.timeout))
            .timeout_recv_response(Some(patience.timeout))
            .timeout_per_read(Some(patience.timeout))
            .timeout_per_write(Some(patience.timeout))
            .user_agent(concat!("autoplace-hub/", env!("CARGO_PKG_VERSION")));
        #[cfg(feature = "https")]
        let config = config
            .tls_config(ureq::tls::TlsConfig::builder().root_certs(ureq::tls::RootCerts::PlatformVerifier).build());
        Self { agent: config.build().new_agent(), endpoint, token, patience }
    }

    /// Requests a whole answer and returns its text. If the host's name is not found, there are only two attempts,
    /// because without a network all attempts fail.
    pub(crate) fn text(&self, url: &str) -> Result<String, Error> {
        let mut lookups = 0;
        self.patiently(&AtomicBool::new(false), |_| {
            let answer = self.get(url, None).map_err(|failure| match failure {
                Failure::Again { url, problem, .. } if is_lookup(&problem) && lookups > 0 => {
                    Error::Network { url, problem, attempts: lookups + 1 }.into()
                }
                failure => {
                    lookups += 1;
                    failure
                }
            })?;
            let url = shown(&answer.url);
            let mut text = String::new();
            let mut body = answer.body.into_reader().take(MAX_LISTING + 1);
            body.read_to_string(&mut text).map_err(|error| broken(&url, &error))?;
            if text.len() as u64 > MAX_LISTING {
                let problem = format!("the listing has more than {MAX_LISTING} bytes");
                return Err(Error::Answer { url, problem }.into());
            }
            Ok(text)
        })
    }

    /// Calls `act` again and again, until it succeeds, fails for good, or there are no attempts left. If `act` got
    /// further than before, it sets its argument, and then attempts are counted from the beginning again. `cancelled`
    /// ends a pause between two attempts.
    pub(crate) fn patiently<T>(
        &self,
        cancelled: &AtomicBool,
        mut act: impl FnMut(&mut bool) -> Result<T, Failure>,
    ) -> Result<T, Error> {
        let mut attempts = 0;
        loop {
            let mut progress = false;
            let (url, status, problem, wait) = match act(&mut progress) {
                Ok(done) => return Ok(done),
                Err(Failure::Final(error)) => return Err(error),
                Err(Failure::Expired) => continue,
                Err(Failure::Again { url, status, problem, wait }) => (url, status, problem, wait),
            };
            attempts = if progress { 1 } else { attempts + 1 };
            if attempts >= self.patience.attempts {
                return Err(match status {
                    Some(status) => Error::Status { url, status, attempts },
                    None => Error::Network { url, problem, attempts },
                });
            }
            let pause = self.patience.pause.saturating_mul(1 << (attempts - 1).min(6));
            // When a server has failed, a random part of the pause makes its clients come back at different moments.
            let jitter = RandomState::new().hash_one(attempts) % 256;
            let pause = pause / 2 + pause.mul_f64(jitter as f64 / 256.0);
            rest(wait.map_or(pause, |wait| wait.min(MAX_WAIT)), cancelled);
        }
    }

    /// Requests a file, or a range of it, and follows redirects.
    pub(crate) fn get(&self, url: &str, range: Option<&Range<u64>>) -> Result<Answer, Failure> {
        let mut url = url.to_owned();
        for _ in 0..=MAX_REDIRECTS {
            let mut request = self.agent.get(&url).header(header::ACCEPT_ENCODING, "identity");
            if let Some(range) = range {
                request = request.header(header::RANGE, format!("bytes={}-{}", range.start, range.end - 1));
            }
            if let Some(token) = &self.token
                && origin(&url).is_some_and(|target| Some(target) == origin(&self.endpoint))
            {
                request = request.header(header::AUTHORIZATION, token.clone());
            }
            let response = request.call().map_err(|error| network(&url, &error))?;
            let (parts, body) = response.into_parts();
            if !parts.status.is_redirection() {
                let answer = Answer { url, headers: parts.headers, status: parts.status, body };
                return answer.checked(self.token.is_some());
            }
            let location = parts.headers.get(header::LOCATION).and_then(|value| value.to_str().ok());
            url = location.and_then(|location| join(&url, location)).ok_or_else(|| {
                let problem = format!("status {} redirects to no address", parts.status.as_u16());
                Error::Answer { url: shown(&url), problem }
            })?;
        }
        let problem = format!("more than {MAX_REDIRECTS} redirects");
        Err(Error::Answer { url: shown(&url), problem }.into())
    }
}

impl Answer {
    /// Returns the answer if its status means success.
    fn checked(self, has_token: bool) -> Result<Self, Failure> {
        let (status, url) = (self.status.as_u16(), shown(&self.url));
        Err(match status {
            200 | 206 => return Ok(self),
            408 | 429 | 500..=599 => {
                Failure::Again { url, status: Some(status), problem: String::new(), wait: self.wait() }
            }
            401 | 403 => Error::Refused { url, status, advice: self.advice(has_token) }.into(),
            404 | 410 => {
                let what = match self.text("x-error-code") {
                    Some("RevisionNotFound") => "the repository has no such revision",
                    Some("EntryNotFound") => "the repository has no such file",
                    _ => "there is no such repository, or it is private",
                };
                Error::Missing { url, what: what.to_owned() }.into()
            }
            _ => Error::Answer { url, problem: format!("unexpected status {status}") }.into(),
        })
    }

    /// Advice about what to do after a refusal. A hub also answers 401 if there is no such repository
    /// (`hf_raise_for_status`).
    fn advice(&self, has_token: bool) -> String {
        let page = "the repository is gated: accept its licence on its page";
        let token = "HF_TOKEN or `hf auth login`";
        match (self.text("x-error-code") == Some("GatedRepo"), has_token) {
            (true, true) => format!("{page}, with the account of the token"),
            (true, false) => format!("{page}, and name a token of that account by {token}"),
            (false, true) => format!("the token of {token} is not valid, or its account may not read the repository"),
            (false, false) => format!("no such repository, or it is private: name a token by {token}"),
        }
    }

    /// How long the server asks to wait: a Retry-After in seconds, or the `t` in a hub's RateLimit.
    fn wait(&self) -> Option<Duration> {
        let limit = || self.text("ratelimit")?.split(';').find_map(|part| part.trim().strip_prefix("t="));
        let seconds = self.text("retry-after").or_else(limit)?;
        seconds.trim().parse().ok().map(Duration::from_secs)
    }

    pub(crate) fn text(&self, header: &str) -> Option<&str> {
        self.headers.get(header)?.to_str().ok()
    }

    /// A reader for the file's bytes from `start` on. The answer may begin earlier. If the length of the file is not
    /// `file_bytes`, this is a failure.
    pub(crate) fn bytes_from(self, start: u64, file_bytes: u64) -> Result<impl Read, Failure> {
        let url = shown(&self.url);
        let wrong = |problem: String| Failure::Final(Error::Answer { url: url.clone(), problem });
        let (at, length) = match self.status {
            StatusCode::PARTIAL_CONTENT => {
                let range = self.text("content-range").unwrap_or_default();
                let found = content_range(range).ok_or_else(|| wrong(format!("Content-Range is `{range}`")))?;
                (found.0, Some(found.1))
            }
            // If a server does not support ranges, it sends the whole file.
            _ => (0, self.text("content-length").and_then(|length| length.parse().ok())),
        };
        if length.is_some_and(|length| length != file_bytes) || at > start {
            let length = length.unwrap_or_default();
            let problem = format!("{length} bytes from byte {at}, but the file has {file_bytes}, from byte {start}");
            return Err(wrong(problem));
        }
        let mut body = self.body.into_reader();
        let skipped = io::copy(&mut Read::take(&mut body, start - at), &mut io::sink());
        let skipped = skipped.map_err(|error| broken(&url, &error))?;
        if skipped < start - at {
            return Err(cut(&url));
        }
        Ok(body)
    }
}

/// Parses `bytes 3-8/10` into the index of the first byte and the length of the file.
fn content_range(text: &str) -> Option<(u64, u64)> {
    let (range, length) = text.trim().strip_prefix("bytes ")?.split_once('/')?;
    Some((range.split_once('-')?.0.trim().parse().ok()?, length.trim().parse().ok()?))
}

/// The failure if an I/O error occurs while a body is read.
pub(crate) fn broken(url: &str, error: &io::Error) -> Failure {
    passing(url, format!("the connection broke: {error}"))
}

/// The failure if a body has ended too early.
pub(crate) fn cut(url: &str) -> Failure {
    passing(url, "the connection ended before the file did".to_owned())
}

fn passing(url: &str, problem: String) -> Failure {
    Failure::Again { url: url.to_owned(), status: None, problem, wait: None }
}

fn network(url: &str, error: &ureq::Error) -> Failure {
    let url = shown(url);
    let problem = match error {
        // The messages of these errors would contain the address, and an address may contain a signature.
        ureq::Error::RequireHttpsOnly(_) => "a redirect from https to http".to_owned(),
        ureq::Error::BadUri(_) | ureq::Error::Http(_) => "not a valid address".to_owned(),
        ureq::Error::TlsRequired => "https needs the feature `https` of autoplace-hub".to_owned(),
        error => return passing(&url, format!("cannot be reached: {error}")),
    };
    Error::Answer { url, problem }.into()
}

/// Whether an attempt has failed because the host's name was not found. The standard library has no kind of error for
/// this, only these words (`cvt_gai`).
fn is_lookup(problem: &str) -> bool {
    ["failed to lookup address information", "host not found"].iter().any(|words| problem.contains(words))
}

/// Sleeps, until the time has passed or the fetch is cancelled.
fn rest(time: Duration, cancelled: &AtomicBool) {
    let step = Duration::from_millis(50);
    let mut left = time;
    while !left.is_zero() && !cancelled.load(Ordering::Relaxed) {
        std::thread::sleep(left.min(step));
        left = left.saturating_sub(step);
    }
}

/// An address as messages show it: without its query, user name and password.
pub(crate) fn shown(url: &str) -> String {
    let url = url.split(['?', '#']).next().unwrap_or_default();
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let host = host.rsplit('@').next().unwrap_or_default();
    format!("{scheme}://{host}{path}")
}

/// The scheme, the host and the port of an address.
fn origin(url: &str) -> Option<(String, String, u16)> {
    let uri: Uri = url.parse().ok()?;
    let scheme = uri.scheme_str()?.to_ascii_lowercase();
    let port = uri.port_u16().unwrap_or(if scheme == "https" { 443 } else { 80 });
    Some((scheme, uri.host()?.to_ascii_lowercase(), port))
}

/// The address to which a redirect leads. A hub sends whole addresses, or addresses that begin with `/`.
fn join(base: &str, location: &str) -> Option<String> {
    let (scheme, rest) = base.split_once("://")?;
    let host = rest.split(['/', '?', '#']).next()?;
    match location {
        address if address.starts_with("http://") || address.starts_with("https://") => Some(address.to_owned()),
        elsewhere if elsewhere.starts_with("//") => Some(format!("{scheme}:{elsewhere}")),
        path => path.starts_with('/').then(|| format!("{scheme}://{host}{path}")),
    }
}

/// Percent-encodes a text so that it is one segment of a path; `/` is encoded too (`urllib.parse.quote(text,
/// safe="")`).
pub(crate) fn quoted(text: &str) -> String {
    let mut quoted = String::new();
    for byte in text.bytes() {
        match byte {
            b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z' | b'-' | b'_' | b'.' | b'~' => quoted.push(byte.into()),
            _ => quoted.push_str(&format!("%{byte:02X}")),
        }
    }
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_in_a_message_has_neither_a_signature_nor_a_password() {
        for (url, expected) in [
            ("https://cdn.example/a/b?Signature=x&Key=y", "https://cdn.example/a/b"),
            ("https://me:secret@mirror.example:8080/a", "https://mirror.example:8080/a"),
            ("http://host/a@b#part", "http://host/a@b"),
        ] {
            assert_eq!(shown(url), expected);
        }
    }

    #[test]
    fn another_scheme_host_or_port_is_another_origin() {
        assert_eq!(origin("https://Hub.example/a"), origin("https://hub.example:443/b?c"));
        for other in ["http://hub.example", "https://hub.example:8443", "https://hub.example.evil"] {
            assert_ne!(origin("https://hub.example"), origin(other));
        }
    }

    #[test]
    fn a_redirect_is_joined_as_a_browser_does() {
        let base = "https://hub.example:8080/a/b?c=/d";
        for (location, expected) in [
            ("/x?y", Some("https://hub.example:8080/x?y")),
            ("//cdn.example/x", Some("https://cdn.example/x")),
            ("http://cdn.example/x", Some("http://cdn.example/x")),
            ("file:///etc/passwd", None),
        ] {
            assert_eq!(join(base, location).as_deref(), expected);
        }
    }
}
