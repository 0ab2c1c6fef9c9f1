//! What a server of OpenAI's API takes around its answers: bodies that are JSON and not too large, errors in the API's
//! own shape, events, and an end that lets answers finish.

use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use autoplace_openai::{ApiError, Completion};
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, FromRequest, Request};
use axum::http::header::{CONTENT_TYPE, HOST, RETRY_AFTER};
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::{self, Next};
use axum::response::sse::{Event, KeepAlive, KeepAliveStream};
use axum::response::{IntoResponse, Response, Sse};
use axum::serve::ListenerExt;
use axum::{Json, Router};
use futures_util::{Stream, StreamExt, stream};
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};
use tower::limit::GlobalConcurrencyLimitLayer;

/// Bytes of a request at most: some millions of tokens.
pub(crate) const LARGEST_BODY: usize = 16 << 20;
/// Requests that are read or answered at once; others wait to be read. A stream counts until it begins.
const MOST_REQUESTS: usize = 256;
/// A client that takes longer to send its request has gone.
const LONGEST_UPLOAD: Duration = Duration::from_secs(30);

/// What is answered instead.
pub(crate) struct Failed(ApiError);

impl From<ApiError> for Failed {
    fn from(error: ApiError) -> Self {
        Self(error)
    }
}

impl IntoResponse for Failed {
    fn into_response(self) -> Response {
        let Self(error) = self;
        let status = StatusCode::from_u16(error.status);
        let status = status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = (status, Json(error.to_json())).into_response();
        if status == StatusCode::SERVICE_UNAVAILABLE {
            response.headers_mut().insert(RETRY_AFTER, 1.into());
        }
        response
    }
}

fn failed(status: StatusCode, message: impl Into<String>) -> Failed {
    ApiError::new(status.as_u16(), message).into()
}

/// The body of a request that says that it is JSON: what a page in a browser cannot send to another site unasked.
pub(crate) struct Body(pub(crate) Bytes);

impl<S: Send + Sync> FromRequest<S> for Body {
    type Rejection = Failed;

    async fn from_request(request: Request, state: &S) -> Result<Self, Failed> {
        let kind = header(request.headers(), CONTENT_TYPE.as_str());
        let essence = kind.split(';').next().unwrap_or_default().trim();
        if !essence.eq_ignore_ascii_case("application/json") {
            let message = format!("the content type is `{kind}`: send `application/json`");
            return Err(failed(StatusCode::UNSUPPORTED_MEDIA_TYPE, message));
        }
        match timeout(LONGEST_UPLOAD, Bytes::from_request(request, state)).await {
            Ok(Ok(bytes)) => Ok(Self(bytes)),
            Ok(Err(error)) if error.status() == StatusCode::PAYLOAD_TOO_LARGE => {
                let message = format!("the request is larger than {LARGEST_BODY} bytes");
                Err(failed(StatusCode::PAYLOAD_TOO_LARGE, message))
            }
            Ok(Err(error)) => Err(failed(error.status(), error.body_text())),
            Err(_) => {
                Err(failed(StatusCode::REQUEST_TIMEOUT, "the request does not come to its end"))
            }
        }
    }
}

fn header<'a>(headers: &'a HeaderMap, name: &str) -> &'a str {
    let value = headers.get(name).and_then(|value| value.to_str().ok());
    value.unwrap_or_default()
}

/// Does what takes its time on a thread for such things.
///
/// # Errors
///
/// Those of the work; status 500 if it panics.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, Failed> {
    match tokio::task::spawn_blocking(work).await {
        Ok(outcome) => Ok(outcome?),
        Err(_) => {
            Err(failed(StatusCode::INTERNAL_SERVER_ERROR, "the request could not be worked on"))
        }
    }
}

/// The chunks of an answer as server-sent events, with a comment now and then while a prompt is long.
pub(crate) fn events(
    completion: Completion,
) -> Sse<KeepAliveStream<impl Stream<Item = Result<Event, Infallible>>>> {
    let chunks = completion.map(|chunk| match chunk {
        Ok(chunk) => chunk.to_string(),
        Err(error) => error.to_json().to_string(),
    });
    let all = chunks.chain(stream::iter(["[DONE]".to_owned()]));
    let events = all.map(|data| Ok(Event::default().data(data)));
    Sse::new(events).keep_alive(KeepAlive::default())
}

/// Listens until Ctrl-C, then takes no more requests and waits `grace` for those that are being answered.
///
/// # Errors
///
/// Where it cannot listen.
pub(crate) async fn serve(
    routes: Router,
    host: IpAddr,
    port: u16,
    grace: Duration,
) -> anyhow::Result<()> {
    let stopping = Arc::new((Notify::new(), AtomicBool::new(false)));
    let stop = Arc::clone(&stopping);
    let on_signal = move || {
        if stop.1.swap(true, Ordering::Relaxed) {
            std::process::exit(130);
        }
        stop.0.notify_waiters();
        stop.0.notify_one();
    };
    ctrlc::set_handler(on_signal).context("cannot listen for Ctrl-C")?;

    let mut routes = routes
        .fallback(async || failed(StatusCode::NOT_FOUND, "there is nothing at this path"))
        .method_not_allowed_fallback(async || {
            failed(StatusCode::METHOD_NOT_ALLOWED, "this path takes another method")
        })
        .layer(DefaultBodyLimit::max(LARGEST_BODY))
        .layer(GlobalConcurrencyLimitLayer::new(MOST_REQUESTS));
    if host.is_loopback() {
        routes = routes.layer(middleware::from_fn(refuse_other_names));
    }
    let address = SocketAddr::new(host, port);
    let listener = TcpListener::bind(address).await;
    let listener = listener.with_context(|| format!("cannot listen on {address}"))?;
    println!("listening on http://{}", listener.local_addr()?);
    // Each token is sent when it comes.
    let listener = listener.tap_io(|connection| drop(connection.set_nodelay(true)));

    let (begins, ends) = (Arc::clone(&stopping), stopping);
    let server = axum::serve(listener, routes)
        .with_graceful_shutdown(async move { begins.0.notified().await });
    tokio::select! {
        outcome = server => Ok(outcome?),
        () = async { ends.0.notified().await; sleep(grace).await } => Ok(()),
    }
}

/// A page in a browser that calls this machine by a name of its own must not talk to it (DNS rebinding).
async fn refuse_other_names(request: Request, next: Next) -> Response {
    let host = header(request.headers(), HOST.as_str());
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    let address = name.trim_start_matches('[').trim_end_matches(']');
    let is_here = name.eq_ignore_ascii_case("localhost") || address.parse::<IpAddr>().is_ok();
    match is_here || host.is_empty() {
        true => next.run(request).await,
        false => {
            let message = format!("this server is not called `{name}`");
            failed(StatusCode::FORBIDDEN, message).into_response()
        }
    }
}
