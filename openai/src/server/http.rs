//! The HTTP parts of a server: JSON bodies with a maximum size, errors in the API's form, and server-sent events.

use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Poll, ready};
use std::time::Duration;

use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::header::{CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::middleware::Next;
use axum::response::sse::{Event, KeepAlive, KeepAliveStream};
use axum::response::{IntoResponse, Response, Sse};
use axum::{Extension, Json};
use futures_util::{Stream, StreamExt, stream};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::timeout;

use super::connection::Connection;
use crate::{ApiError, Completion};

/// Maximum bytes of a request; some millions of tokens fit.
const MAX_BODY_BYTES: usize = 16 << 20;
/// Maximum bytes of all unanswered requests together.
static BODIES: Semaphore = Semaphore::const_new(64 << 20);
/// Maximum number of requests that are parsed at once. Parsing needs several times as much memory as the request.
static READERS: Semaphore = Semaphore::const_new(4);

/// Maximum number of requests with pictures or sounds that are parsed at once. They are counted separately. So requests
/// with only text need not wait for pictures and sounds to be decoded, which takes long.
#[cfg(feature = "media")]
static SEEING_READERS: std::sync::LazyLock<Semaphore> =
    std::sync::LazyLock::new(|| Semaphore::new(2 * crate::decoding::at_once()));
/// How many requests with pictures or sounds wait to be parsed. The second constant is the maximum of this number.
#[cfg(feature = "media")]
static WAITING_TO_SEE: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
#[cfg(feature = "media")]
const MAX_WAITING_TO_SEE: usize = 64;

/// An error as a response.
pub(super) struct Failed(pub(super) ApiError);

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
        response.extensions_mut().insert(error);
        response
    }
}

pub(super) fn failed(status: StatusCode, message: impl Into<String>) -> Failed {
    ApiError::new(status.as_u16(), message).into()
}

/// The response to a request that runs longer than a stopping server waits.
pub(super) fn stopping(path: &str) -> Response {
    shaped(path, Failed(ApiError::stopping()).into_response())
}

/// Writes the errors of Anthropic's paths in Anthropic's form, whatever part of the server they come from.
pub(super) async fn shape_errors(request: Request, next: Next) -> Response {
    let path = request.uri().path().to_owned();
    shaped(&path, next.run(request).await)
}

/// The response in the form that the path has for errors.
fn shaped(path: &str, mut response: Response) -> Response {
    // A prefix may precede the path.
    let is_anthropic = path.contains("/v1/messages");
    let error = response.extensions_mut().remove::<ApiError>().filter(|_| is_anthropic);
    let Some(error) = error else { return response };
    let status = StatusCode::from_u16(error.anthropic_status()).unwrap_or(response.status());
    let mut shaped = (status, Json(error.to_anthropic_json())).into_response();
    for name in [RETRY_AFTER, WWW_AUTHENTICATE] {
        if let Some(value) = response.headers_mut().remove(&name) {
            shaped.headers_mut().insert(name, value);
        }
    }
    shaped
}

/// The body of a request, which the request declares as JSON. A page in a browser cannot send such a request to another
/// site without that site's permission.
pub(super) struct Body {
    bytes: Arc<Vec<u8>>,
    pub(super) under_way: UnderWay,
    /// The model's name in the body, if a router has used this name to choose the model.
    pub(super) asked: Option<String>,
}

#[cfg(feature = "pool")]
impl Body {
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// A second handle of the same body and its resources.
    pub(super) fn again(&self) -> Self {
        let UnderWay { connection, room, .. } = &self.under_way;
        let under_way = UnderWay { connection: Arc::clone(connection), room: Arc::clone(room), kept: None };
        Self { bytes: Arc::clone(&self.bytes), under_way, asked: None }
    }
}

/// A body that the pool's routes have read, on its way to the routes of the model.
#[cfg(feature = "pool")]
#[derive(Clone)]
pub(super) struct Carried(Arc<std::sync::Mutex<Option<Body>>>);

#[cfg(feature = "pool")]
impl Carried {
    pub(super) fn new(body: Body) -> Self {
        Self(Arc::new(std::sync::Mutex::new(Some(body))))
    }

    fn take(&self) -> Option<Body> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take()
    }
}

/// What a request keeps until it is answered.
pub(super) struct UnderWay {
    connection: Arc<Connection>,
    #[cfg_attr(not(feature = "pool"), allow(dead_code, reason = "it is held"))]
    room: Arc<SemaphorePermit<'static>>,
    /// Keeps the request's model loaded while a thread works on the request. This is needed even if the client no
    /// longer waits.
    #[cfg(feature = "pool")]
    pub(super) kept: Option<autoplace_pool::ModelHandle>,
}

impl UnderWay {
    /// Waits until the server ends the answers that still run, because it stops.
    pub(super) fn cut_off(&self) -> impl Future<Output = ()> + Send + 'static {
        Arc::clone(&self.connection).cut_off()
    }

    /// Waits until the client sends nothing more.
    pub(super) fn end(&self) -> impl Future<Output = ()> + Send + 'static {
        Arc::clone(&self.connection).end()
    }

    /// How long a stream has no event before it gets a comment.
    pub(super) fn ping(&self) -> Duration {
        self.connection.ping
    }
}

impl<S: Send + Sync> FromRequest<S> for Body {
    type Rejection = Failed;

    async fn from_request(request: Request, state: &S) -> Result<Self, Failed> {
        #[cfg(feature = "pool")]
        if let Some(body) = request.extensions().get::<Carried>().and_then(Carried::take) {
            return Ok(body);
        }
        let kind = header(request.headers(), CONTENT_TYPE.as_str());
        let essence = kind.split(';').next().unwrap_or_default().trim();
        if !essence.eq_ignore_ascii_case("application/json") {
            let message = format!("the content type is `{kind}`: send `application/json`");
            return Err(failed(StatusCode::UNSUPPORTED_MEDIA_TYPE, message));
        }
        let (mut parts, body) = request.into_parts();
        let connection = Extension::from_request_parts(&mut parts, state).await;
        let Extension::<Arc<Connection>>(connection) =
            connection.map_err(|error| failed(StatusCode::INTERNAL_SERVER_ERROR, error.body_text()))?;
        let (bytes, room) = timeout(connection.timeout, collect(body))
            .await
            .map_err(|_| failed(StatusCode::REQUEST_TIMEOUT, "the request's body is incomplete"))??;
        // From now on, the connection isn't closed to make room for others.
        connection.request_arrived();
        let under_way = UnderWay {
            connection,
            room: Arc::new(room),
            #[cfg(feature = "pool")]
            kept: None,
        };
        Ok(Self { bytes: Arc::new(bytes), under_way, asked: None })
    }
}

/// Collects a body. Memory is reserved for the bytes that arrive, and not for the length that the client announces.
async fn collect(body: axum::body::Body) -> Result<(Vec<u8>, SemaphorePermit<'static>), Failed> {
    let full = || {
        let message = "the bodies of other requests take all the memory for bodies: ask again later";
        Failed(ApiError::new(503, message).with_code("overloaded"))
    };
    let mut room = BODIES.try_acquire_many(0).map_err(|_| full())?;
    let mut bytes = Vec::new();
    let mut parts = body.into_data_stream();
    while let Some(part) = parts.next().await {
        let part = part.map_err(|error| failed(StatusCode::BAD_REQUEST, error.to_string()))?;
        if bytes.len() + part.len() > MAX_BODY_BYTES {
            let message = format!("the request is larger than {MAX_BODY_BYTES} bytes");
            return Err(failed(StatusCode::PAYLOAD_TOO_LARGE, message));
        }
        room.merge(BODIES.try_acquire_many(part.len() as u32).map_err(|_| full())?);
        bytes.extend_from_slice(&part);
    }
    Ok((bytes, room))
}

pub(super) fn header<'a>(headers: &'a HeaderMap, name: &str) -> &'a str {
    let value = headers.get(name).and_then(|value| value.to_str().ok());
    value.unwrap_or_default()
}

/// Maximum number of characters of a header that lists keywords which are not enforced.
const MAX_LIST_CHARS: usize = 2000;

/// A list as a header, with semicolons between the entries. Characters that a header cannot contain become `?`. `None`
/// for an empty list.
pub(super) fn list_header(list: &[String]) -> Option<HeaderValue> {
    if list.is_empty() {
        return None;
    }
    let text = list.join("; ");
    let shown = text.chars().take(MAX_LIST_CHARS).map(|c| if c == ' ' || c.is_ascii_graphic() { c } else { '?' });
    HeaderValue::from_str(&shown.collect::<String>()).ok()
}

/// Runs blocking work on a separate thread.
///
/// # Errors
///
/// The errors of the work; status 500 if the work panics.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, Failed> {
    match tokio::task::spawn_blocking(work).await {
        Ok(outcome) => Ok(outcome?),
        Err(_) => Err(failed(StatusCode::INTERNAL_SERVER_ERROR, "the request could not be processed")),
    }
}

/// Parses a body.
///
/// # Errors
///
/// The errors of [`blocking`].
pub(super) async fn read<T: Send + 'static>(
    body: Body,
    read: impl FnOnce(&[u8]) -> Result<T, ApiError> + Send + 'static,
) -> Result<(T, UnderWay), Failed> {
    let Body { bytes, under_way, .. } = body;
    let reader = reader(&bytes).await?;
    let read = blocking(move || {
        // The thread keeps the permit, even if the client no longer waits.
        let _reader = reader;
        Ok((read(&bytes)?, under_way))
    });
    read.await
}

/// A permit to parse this request.
async fn reader(bytes: &[u8]) -> Result<SemaphorePermit<'static>, Failed> {
    let closed = |_| failed(StatusCode::INTERNAL_SERVER_ERROR, "the server is stopping and reads no more requests");
    #[cfg(feature = "media")]
    if may_have_media(bytes) {
        /// Counts a waiting request as long as this value lives.
        struct Waiting;
        impl Drop for Waiting {
            fn drop(&mut self) {
                WAITING_TO_SEE.fetch_sub(1, std::sync::atomic::Ordering::Relaxed);
            }
        }
        let before = WAITING_TO_SEE.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let _waiting = Waiting;
        if before >= MAX_WAITING_TO_SEE {
            let message = format!("{before} requests with images or sounds wait to be read: ask again later");
            return Err(ApiError::new(503, message).with_code("overloaded").into());
        }
        return SEEING_READERS.acquire().await.map_err(closed);
    }
    let _ = bytes;
    READERS.acquire().await.map_err(closed)
}

/// Whether a body may have pictures or sounds. This is also true if a text only mentions such keys.
#[cfg(feature = "media")]
fn may_have_media(bytes: &[u8]) -> bool {
    const KEYS: [&str; 3] = ["\"image", "\"input_image", "\"input_audio"];
    std::str::from_utf8(bytes).is_ok_and(|text| KEYS.iter().any(|key| text.contains(key)))
}

/// The chunks of an answer as server-sent events. A comment is sent whenever there is no event for the time `ping`,
/// such as while a long prompt is computed. When `end` is ready, the client sends nothing more, and a comment is sent
/// too: if the client has gone, its system refuses the comment. When `cut_off` is ready, the events end with an error.
pub(super) fn events(
    completion: Completion,
    cut_off: impl Future<Output = ()> + Send + 'static,
    end: impl Future<Output = ()> + Send + 'static,
    ping: Duration,
) -> Sse<KeepAliveStream<impl Stream<Item = Result<Event, Infallible>>>> {
    let has_names = completion.has_named_events();
    let done = completion.ends_with_done().then(|| Event::default().data("[DONE]"));
    let mut completion = completion;
    let (mut cut_off, mut is_cut_off) = (Box::pin(cut_off), false);
    let (mut end, mut has_ended) = (Box::pin(end), false);
    let chunks = stream::poll_fn(move |context| {
        if is_cut_off {
            return Poll::Ready(None);
        }
        if !has_ended && end.as_mut().poll(context).is_ready() {
            has_ended = true;
            return Poll::Ready(Some(None));
        }
        is_cut_off = cut_off.as_mut().poll(context).is_ready();
        let chunk = match is_cut_off {
            true => Some(Err(ApiError::stopping())),
            false => ready!(completion.poll_chunk(context)),
        };
        Poll::Ready(chunk.map(|chunk| Some(chunk.unwrap_or_else(|error| completion.error_event(&error)))))
    });
    let events = chunks.map(move |data| {
        let Some(data) = data else { return Event::default().comment("") };
        let event = match data["type"].as_str().filter(|_| has_names) {
            Some(name) => Event::default().event(name),
            None => Event::default(),
        };
        event.data(data.to_string())
    });
    Sse::new(events.chain(stream::iter(done)).map(Ok)).keep_alive(KeepAlive::new().interval(ping))
}

#[cfg(all(test, feature = "media"))]
mod tests {
    use super::may_have_media;

    #[test]
    fn requests_with_pictures_and_sounds_are_read_beside_those_of_texts() {
        for media in [
            r#"{"type": "image_url", "image_url": {"url": "data:"}}"#,
            r#"{"type": "input_audio", "input_audio": {"data": ""}}"#,
            r#"{"type": "image", "source": {}}"#,
            r#"{"type": "input_image", "image_url": "data:"}"#,
        ] {
            assert!(may_have_media(media.as_bytes()), "{media}");
        }
        for text in [r#"{"type": "input_text", "text": "an image"}"#, r#"{"prompt": "of input_audio"}"#, "\u{e4}"] {
            assert!(!may_have_media(text.as_bytes()), "{text}");
        }
        assert!(!may_have_media(b"\xff\"image_url"));
    }
}
