//! Fetches images from addresses, but only from allowed hosts.
//!
//! A client sends an address, and the server fetches the image. The server may reach more of its own network than the
//! client can. So the operator of the server lists the allowed hosts, a host's IP address must be public, and redirects
//! are refused.

use std::io::Read;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use ureq::config::Config;
use ureq::http::Uri;
use ureq::unversioned::resolver::{DefaultResolver, ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::{DefaultConnector, NextTimeout};
use ureq::{Agent, Error};

/// Maximum bytes of an image at an address. A request's body has the same maximum.
const MAX_BYTES: u64 = 16 << 20;
/// Maximum time for fetching an image, from the look-up of its host to its last byte.
const MAX_TIME: Duration = Duration::from_secs(10);

/// The hosts from which the images of requests may be fetched, with `https` or `http`.
///
/// An image may have at most 16 MiB, and fetching it may take ten seconds. Redirects are refused. A host is refused if
/// its IP address is not public: an address of this machine, of a private network, or of a local link. The request is
/// sent to the IP address that was checked, even if the name has another address the next time.
#[derive(Debug, Clone)]
pub struct MediaHosts {
    hosts: Vec<String>,
    agent: Agent,
}

impl MediaHosts {
    /// Allows these hosts. A host is given by its name (`images.example.com`), or by name and port
    /// (`images.example.com:8443`). Without a port, only the standard ports are allowed.
    pub fn new<H: Into<String>>(hosts: impl IntoIterator<Item = H>) -> Self {
        Self::with(hosts, false)
    }

    /// Allows these hosts, even if their IP addresses are not public. Every client can then read images on the server's
    /// own network.
    pub fn in_any_network<H: Into<String>>(hosts: impl IntoIterator<Item = H>) -> Self {
        Self::with(hosts, true)
    }

    fn with<H: Into<String>>(hosts: impl IntoIterator<Item = H>, allows_private: bool) -> Self {
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            // A proxy would resolve the name itself, and its address could not be checked.
            .proxy(None)
            .timeout_global(Some(MAX_TIME))
            .user_agent(concat!("autoplace-openai/", env!("CARGO_PKG_VERSION")))
            .build();
        let resolver = Public { resolver: DefaultResolver::default(), allows_private };
        Self {
            hosts: hosts.into_iter().map(|host| host.into().to_ascii_lowercase()).collect(),
            agent: Agent::with_parts(config, DefaultConnector::default(), resolver),
        }
    }

    /// The bytes at an address, or the reason why fetching them failed.
    pub(super) fn fetch(&self, url: &str) -> Result<Vec<u8>, String> {
        let uri: Uri = url.parse().map_err(|_| "an image is a data URL or the address of one".to_owned())?;
        let (Some("https" | "http"), Some(authority)) = (uri.scheme_str(), uri.authority()) else {
            return Err("an image is a data URL, or at an address of `https` or `http`".to_owned());
        };
        let asked = authority.as_str().to_ascii_lowercase();
        // If a user's name stands before the host, the text is not in the list, and is refused.
        if !self.hosts.contains(&asked) {
            return Err(format!("this server may not fetch images from the host `{asked}` (--allow-media-host)"));
        }
        let failed = |error: Error| match error {
            Error::Other(reason) => format!("no image is fetched from `{asked}`: {reason}"),
            error => format!("`{asked}` sent no image: {error}"),
        };
        let answer = self.agent.get(uri).call().map_err(failed)?;
        let status = answer.status().as_u16();
        if status != 200 {
            return Err(format!("`{asked}` answers {status}, which is not an image (redirects are not followed)"));
        }
        let mut bytes = Vec::new();
        let mut body = answer.into_body().into_reader().take(MAX_BYTES + 1);
        body.read_to_end(&mut bytes).map_err(|error| format!("`{asked}` sent an incomplete image: {error}"))?;
        if bytes.len() as u64 > MAX_BYTES {
            return Err(format!("the image has more than {MAX_BYTES} bytes"));
        }
        Ok(bytes)
    }
}

/// A resolver that removes addresses that are not public.
#[derive(Debug)]
struct Public {
    resolver: DefaultResolver,
    allows_private: bool,
}

impl Resolver for Public {
    fn resolve(&self, uri: &Uri, config: &Config, timeout: NextTimeout) -> Result<ResolvedSocketAddrs, Error> {
        let all = self.resolver.resolve(uri, config, timeout)?;
        let mut public = self.empty();
        for address in all.iter().filter(|address| self.allows_private || is_public(address.ip())) {
            public.push(*address);
        }
        if public.is_empty() && !all.is_empty() {
            let reason = "its address is one of a private network or of this machine";
            return Err(Error::Other(reason.into()));
        }
        if public.is_empty() { Err(Error::HostNotFound) } else { Ok(public) }
    }
}

/// Whether an address belongs to the public network (IANA's special-purpose registries for IPv4 and IPv6).
fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => is_public_v6(address),
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    let [a, b, c, _] = address.octets();
    let is_special = matches!(
        (a, b, c),
        (0 | 10 | 127 | 224..=255, _, _)
            | (100, 64..=127, _)
            | (169, 254, _)
            | (172, 16..=31, _)
            | (192, 0, 0 | 2)
            | (192, 88, 99)
            | (192, 168, _)
            | (198, 18 | 19, _)
            | (198, 51, 100)
            | (203, 0, 113)
    );
    !is_special
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    let segments = address.segments();
    let embedded = |high: u16, low: u16| {
        let [a, b] = high.to_be_bytes();
        let [c, d] = low.to_be_bytes();
        is_public_v4(Ipv4Addr::new(a, b, c, d))
    };
    match segments {
        // IPv6 addresses that contain an IPv4 address: mapped, translated (64:ff9b::/96), and 6to4.
        [0, 0, 0, 0, 0, 0xffff, high, low] | [0x64, 0xff9b, 0, 0, 0, 0, high, low] => embedded(high, low),
        [0x2002, high, low, ..] => embedded(high, low),
        // Addresses for documentation, Teredo and other protocols.
        [0x2001, 0x0db8, ..] | [0x2001, 0..=0x01ff, ..] | [0x3fff, ..] => false,
        // All assigned global addresses lie in 2000::/3.
        [first, ..] => first & 0xe000 == 0x2000,
    }
}

#[cfg(test)]
mod tests {
    use super::{MediaHosts, is_public};

    #[test]
    fn only_public_addresses_are_asked() {
        for public in ["8.8.8.8", "172.32.0.1", "192.1.1.1", "100.128.0.1", "2606:4700::1111", "::ffff:8.8.8.8"] {
            assert!(is_public(public.parse().unwrap()), "{public}");
        }
        for private in [
            "0.0.0.0",
            "10.1.2.3",
            "127.0.0.1",
            "169.254.169.254",
            "172.16.0.1",
            "172.31.255.255",
            "192.168.1.1",
            "100.64.0.1",
            "198.18.0.1",
            "192.0.2.1",
            "224.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "fe80::1",
            "fc00::1",
            "fd12::1",
            "ff02::1",
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "64:ff9b::a00:1",
            "2002:a00:1::",
            "2001:db8::1",
        ] {
            assert!(!is_public(private.parse().unwrap()), "{private}");
        }
    }

    #[test]
    fn a_host_that_was_not_named_is_not_asked() {
        let hosts = MediaHosts::new(["images.example.com", "Other.example.com:8443"]);
        for url in [
            "https://example.com/a.png",
            "https://images.example.com:444/a.png",
            "https://images.example.com@evil.example/a.png",
            "https://user@images.example.com/a.png",
            "https://images.example.com.evil.example/a.png",
            "http://other.example.com/a.png",
        ] {
            let refused = hosts.fetch(url).unwrap_err();
            assert!(refused.contains("may not fetch images from the host"), "{url}: {refused}");
        }
        for url in ["file:///etc/passwd", "ftp://images.example.com/a", "a.png", "gopher://x"] {
            assert!(hosts.fetch(url).unwrap_err().starts_with("an image is a data URL"), "{url}");
        }
    }
}
