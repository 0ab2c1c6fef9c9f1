//! Access to the server. Clients need one of the server's keys, and must use one of the server's names. Pages of other
//! sites are refused.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use axum::http::header::{AUTHORIZATION, HOST, ORIGIN, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, Method, StatusCode, Uri};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use subtle::{Choice, ConstantTimeEq};
use tower::ServiceExt;
use tower_http::cors::{AllowHeaders, CorsLayer};

use super::http::{failed, header, shape_errors};
use super::not_found;

/// The requirements that clients must meet.
#[derive(Debug, Default)]
pub(super) struct Access {
    /// The keys, of which a request must contain one. If there are none, every request is admitted.
    pub(super) keys: Vec<Key>,
    pub(super) hosts: Vec<String>,
    pub(super) origins: Vec<HeaderValue>,
    /// What precedes each path; usually nothing.
    pub(super) prefix: String,
    /// Whether `/slots` is not answered.
    pub(super) hides_slots: bool,
}

/// A key. It is never printed.
pub(super) struct Key(pub(super) String);

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key")
    }
}

/// Checks whether a text can be a [key](super::Server::key). With it, a program can refuse a key before it loads a
/// model.
///
/// # Errors
///
/// An error if the text is empty, or if a header cannot contain it.
pub fn check_key(key: &str) -> io::Result<()> {
    if key.is_empty() || !key.bytes().all(|byte| byte.is_ascii_graphic()) {
        let message = "the key is empty, or has characters that a header cannot contain";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
    }
    Ok(())
}

/// Checks whether a text can be a [prefix](super::Server::prefix). With it, a program can refuse a prefix before it
/// loads a model.
///
/// # Errors
///
/// The prefix does not begin with `/`, or ends with one, or has characters other than letters, digits and `-._~/`.
pub fn check_prefix(prefix: &str) -> io::Result<()> {
    let has_only_plain = prefix.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte));
    if !prefix.starts_with('/') || prefix.ends_with('/') || prefix.contains("//") || !has_only_plain {
        let message = format!("`{prefix}` is not a path such as `/llama`");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
    }
    Ok(())
}

impl Access {
    /// Guards the routes. If there are keys, only `/health` needs none of them.
    pub(super) fn guard(self, mut routes: Router) -> Router {
        let Self { keys, hosts, origins, prefix, hides_slots } = self;
        if hides_slots {
            routes = routes.layer(from_fn(|request: Request, next: Next| {
                let is_allowed = request.uri().path() != "/slots";
                let refuse = || failed(StatusCode::NOT_IMPLEMENTED, "this server does not answer /slots: --no-slots");
                answered(is_allowed.then_some((request, next)), move || refuse().into_response())
            }));
        }
        if !keys.is_empty() {
            let keys: Arc<[Key]> = keys.into();
            routes = routes.layer(from_fn(move |request: Request, next: Next| {
                let path = request.uri().path();
                let is_page = path == "/";
                let is_allowed =
                    path == "/health" || shows(&request, &keys) || is_page && shows_as_password(&request, &keys);
                answered(is_allowed.then_some((request, next)), move || unauthorized(is_page))
            }));
        }
        if !origins.is_empty() {
            // Lets pages of the permitted sites send a key, and read the answer. OpenAI's client for browsers sends
            // additional headers, so any header is allowed.
            let cors = CorsLayer::new().allow_headers(AllowHeaders::mirror_request());
            let cors = cors.allow_methods([Method::GET, Method::POST, Method::DELETE]);
            routes = routes.layer(cors.allow_origin(origins.clone()));
        }
        let routes = routes
            .layer(from_fn(move |request: Request, next: Next| {
                let refusal = refusal(&request, &hosts, &origins);
                let allowed = refusal.is_none().then_some((request, next));
                answered(allowed, || failed(StatusCode::FORBIDDEN, refusal.unwrap_or_default()).into_response())
            }))
            .layer(from_fn(shape_errors));
        match &*prefix {
            "" => routes,
            prefix => {
                // axum's nested `/` is the prefix without a slash at its end.
                let root = ServiceExt::<Request>::map_request(routes.clone(), |mut request: Request| {
                    *request.uri_mut() = Uri::from_static("/");
                    request
                });
                let routes = Router::new().nest(prefix, routes).route_service(&format!("{prefix}/"), root);
                routes.fallback(not_found)
            }
        }
    }
}

async fn answered(allowed: Option<(Request, Next)>, refuse: impl FnOnce() -> Response) -> Response {
    match allowed {
        Some((request, next)) => next.run(request).await,
        None => refuse(),
    }
}

/// With this header, a browser asks its user for the page's password.
fn unauthorized(is_page: bool) -> Response {
    let refused = failed(StatusCode::UNAUTHORIZED, "send the key as `Authorization: Bearer KEY` or `x-api-key: KEY`");
    let challenge =
        if is_page { "Basic realm=\"autoplace: the key is the password\", charset=\"UTF-8\"" } else { "Bearer" };
    ([(WWW_AUTHENTICATE, challenge)], refused).into_response()
}

fn shows(request: &Request, keys: &[Key]) -> bool {
    let bearer = header(request.headers(), AUTHORIZATION.as_str()).strip_prefix("Bearer ");
    let shown = [bearer, Some(header(request.headers(), "x-api-key"))];
    shown.into_iter().flatten().any(|shown| is_key(shown.as_bytes(), keys))
}

/// Whether the request contains a key in the form in which a browser sends a password: `NAME:KEY` in Base64, with any
/// name.
fn shows_as_password(request: &Request, keys: &[Key]) -> bool {
    let basic = header(request.headers(), AUTHORIZATION.as_str()).strip_prefix("Basic ");
    let shown = basic.and_then(|basic| BASE64_STANDARD.decode(basic.trim()).ok()).unwrap_or_default();
    let password = shown.iter().position(|byte| *byte == b':').and_then(|at| shown.get(at + 1..));
    password.is_some_and(|password| is_key(password, keys))
}

/// Compares a key with each of the right ones. The comparison does not end at a key that is equal, and all wrong keys
/// of the same length take the same time.
fn is_key(shown: &[u8], keys: &[Key]) -> bool {
    let any = keys.iter().fold(Choice::from(0), |found, Key(key)| found | shown.ct_eq(key.as_bytes()));
    any.into()
}

/// Why a browser's request is refused; `None` if it is permitted. No page may use this server without permission:
/// neither another site's page, nor a page whose own name resolves to this server (DNS rebinding). A page cannot make a
/// browser send a false `Host` or `Origin`. Other clients may leave them out or send anything.
fn refusal(request: &Request, hosts: &[String], origins: &[HeaderValue]) -> Option<String> {
    let origin = request.headers().get(ORIGIN);
    if let Some(origin) = origin.filter(|origin| !origins.contains(origin)) {
        let origin = String::from_utf8_lossy(origin.as_bytes());
        return Some(format!("pages of `{origin}` are not permitted: see --allow-origin"));
    }
    let host = header(request.headers(), HOST.as_str());
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    let address = name.trim_start_matches('[').trim_end_matches(']');
    let mut names = hosts.iter().map(String::as_str).chain(["localhost", ""]);
    let is_here = address.parse::<IpAddr>().is_ok() || names.any(|known| known.eq_ignore_ascii_case(name));
    (!is_here).then(|| format!("this server is not called `{name}`: see --allow-host"))
}
