//! Who may use the server: those who have its key, call it by a name that it has, and are no page of another site.

use std::net::IpAddr;
use std::path::PathBuf;

use anyhow::{Context as _, bail, ensure};
use axum::Router;
use axum::extract::Request;
use axum::http::header::{AUTHORIZATION, HOST, ORIGIN, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, Method, StatusCode};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use subtle::ConstantTimeEq;
use tower_http::cors::{AllowHeaders, CorsLayer};

use super::http::{failed, header};

/// The key, where no file has it.
const VARIABLE: &str = "AUTOPLACE_API_KEY";

#[derive(clap::Args)]
pub(crate) struct Access {
    /// File of the key that requests have to show (`Authorization: Bearer KEY`) [default: the variable
    /// AUTOPLACE_API_KEY, if it is set]
    #[arg(long, value_name = "FILE")]
    api_key_file: Option<PathBuf>,
    /// Lets everybody in who can reach it: what `--host` needs beyond this machine, where there is no key
    #[arg(long)]
    without_key: bool,
    /// Name that clients call this server by, beside `localhost` and addresses; can be repeated
    #[arg(long, value_name = "NAME")]
    allow_host: Vec<String>,
    /// Site whose pages may use this server, such as `https://chat.example`; can be repeated
    #[arg(long, value_name = "ORIGIN")]
    allow_origin: Vec<HeaderValue>,
}

impl Access {
    /// The key, if there is one.
    ///
    /// # Errors
    ///
    /// Where there is none and others than this machine's users could reach `host`, and for one that is no key.
    pub(crate) fn key(&self, host: IpAddr) -> anyhow::Result<Option<String>> {
        let key = match (&self.api_key_file, std::env::var(VARIABLE)) {
            (Some(_), Ok(_)) => bail!("both --api-key-file and {VARIABLE} have a key: one can be"),
            (Some(file), _) => {
                let key = std::fs::read_to_string(file);
                key.with_context(|| format!("cannot read the key in {}", file.display()))?
            }
            (None, Ok(key)) => key,
            (None, Err(std::env::VarError::NotUnicode(_))) => bail!("{VARIABLE} is no text"),
            (None, Err(_)) => {
                let is_open = !host.is_loopback() && !self.without_key;
                ensure!(
                    !is_open,
                    "others can reach {host}: give them a key by --api-key-file or {VARIABLE}, or let everybody in by \
                     --without-key"
                );
                return Ok(None);
            }
        };
        let key = key.trim();
        let is_key = !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_graphic());
        ensure!(is_key, "the key is empty, or has other characters than a header can");
        Ok(Some(key.to_owned()))
    }

    /// The routes for those who may use them. `/health` needs no key.
    pub(crate) fn guard(self, mut routes: Router, key: Option<String>) -> Router {
        let Self { allow_host, allow_origin, .. } = self;
        if let Some(key) = key {
            routes = routes.layer(from_fn(move |request: Request, next: Next| {
                let is_allowed = request.uri().path() == "/health" || shows(&request, &key);
                answered(is_allowed.then_some((request, next)), unauthorized)
            }));
        }
        if !allow_origin.is_empty() {
            // For the allowed ones: what lets a browser send a key and read an answer.
            // OpenAI's own client for browsers sends headers of its own.
            let cors = CorsLayer::new().allow_headers(AllowHeaders::mirror_request());
            let cors = cors.allow_methods([Method::GET, Method::POST]);
            routes = routes.layer(cors.allow_origin(allow_origin.clone()));
        }
        routes.layer(from_fn(move |request: Request, next: Next| {
            let refusal = refusal(&request, &allow_host, &allow_origin);
            let allowed = refusal.is_none().then_some((request, next));
            answered(allowed, || failed(StatusCode::FORBIDDEN, refusal.unwrap_or_default()).into_response())
        }))
    }
}

async fn answered(allowed: Option<(Request, Next)>, refuse: impl FnOnce() -> Response) -> Response {
    match allowed {
        Some((request, next)) => next.run(request).await,
        None => refuse(),
    }
}

fn unauthorized() -> Response {
    let refused = failed(StatusCode::UNAUTHORIZED, "send the key as `Authorization: Bearer KEY`");
    ([(WWW_AUTHENTICATE, "Bearer")], refused).into_response()
}

/// Takes as long for any wrong key of the right length.
fn shows(request: &Request, key: &str) -> bool {
    let shown = header(request.headers(), AUTHORIZATION.as_str()).strip_prefix("Bearer ");
    shown.is_some_and(|shown| shown.as_bytes().ct_eq(key.as_bytes()).into())
}

/// A page in a browser must not talk to this server unasked: neither one of another site, nor one that has its own name
/// lead here (DNS rebinding). A browser names both; other clients, which may leave them out, can say what they like.
fn refusal(request: &Request, hosts: &[String], origins: &[HeaderValue]) -> Option<String> {
    let origin = request.headers().get(ORIGIN);
    if let Some(origin) = origin.filter(|it| !origins.contains(it)) {
        let origin = String::from_utf8_lossy(origin.as_bytes());
        return Some(format!("pages of `{origin}` are not let in: see --allow-origin"));
    }
    let host = header(request.headers(), HOST.as_str());
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    let address = name.trim_start_matches('[').trim_end_matches(']');
    let mut names = hosts.iter().map(String::as_str).chain(["localhost", ""]);
    let is_here = address.parse::<IpAddr>().is_ok() || names.any(|it| it.eq_ignore_ascii_case(name));
    (!is_here).then(|| format!("this server is not called `{name}`: see --allow-host"))
}
