//! A stream whose model is still being loaded. The stream begins with comments, and the events of the model follow. The
//! status was sent at the beginning, so an error is sent as an event.

use std::pin::pin;
use std::time::Duration;

use autoplace_pool::{ModelRequest, Residence};
use axum::body::{Body as HttpBody, BodyDataStream, Bytes};
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use futures_util::{StreamExt, stream};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::forward::Turn;
use super::{api_error, status_of};
use crate::ApiError;
use crate::server::http::Failed;

/// The pause between two comments.
const PAUSE: Duration = Duration::from_secs(5);

const PATHS: [&str; 5] = ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/infill"];

/// Whether the answer of this path can be a stream.
pub(super) fn is_stream_path(path: &str) -> bool {
    PATHS.contains(&path)
}

enum State {
    /// The client is told about the wait: the next part is a comment.
    Told(Box<(Turn, ModelRequest)>),
    Waiting(Box<(Turn, ModelRequest)>),
    Passing(BodyDataStream),
    Ended,
}

/// A stream for a request whose model is not loaded yet.
pub(super) fn stream(turn: Turn, wanted: ModelRequest) -> Response {
    let parts = stream::unfold(State::Told(Box::new((turn, wanted))), next);
    ([(CONTENT_TYPE, "text/event-stream"), (CACHE_CONTROL, "no-cache")], HttpBody::from_stream(parts)).into_response()
}

async fn next(state: State) -> Option<(Result<Bytes, axum::Error>, State)> {
    match state {
        State::Ended => None,
        State::Passing(mut body) => body.next().await.map(|part| (part, State::Passing(body))),
        State::Told(waiting) => {
            let told = comment(&waiting.0);
            Some((Ok(told), State::Waiting(waiting)))
        }
        State::Waiting(mut waiting) => {
            let path = waiting.0.path().to_owned();
            let mut cut_off = pin!(waiting.0.cut_off());
            let stopped = || Some((Ok(event(&path, &ApiError::stopping())), State::Ended));
            let end = waiting.0.end();
            let outcome = tokio::select! {
                outcome = timeout(PAUSE, &mut waiting.1) => outcome.ok(),
                () = &mut cut_off => return stopped(),
                // If the client has gone, its system refuses the comment.
                () = end => None,
            };
            let Some(outcome) = outcome else {
                return Some((Ok(comment(&waiting.0)), State::Waiting(waiting)));
            };
            let turn = waiting.0;
            let loaded =
                format!(": {} is loaded after {:.1} s\n\n", one_line(&turn.name), turn.begun.elapsed().as_secs_f64());
            let answer = match outcome {
                // The model's engine may have to start first.
                Ok(handle) => tokio::select! {
                    answer = turn.answered(handle) => answer,
                    () = &mut cut_off => return stopped(),
                },
                Err(error) => Err(api_error(&error).into()),
            };
            Some(match answer {
                Ok(response) if is_stream(&response) => {
                    (Ok(loaded.into()), State::Passing(response.into_body().into_data_stream()))
                }
                Ok(response) => (Ok(event(&path, &error_of(&response))), State::Ended),
                Err(Failed(error)) => (Ok(event(&path, &error)), State::Ended),
            })
        }
    }
}

fn comment(turn: &Turn) -> Bytes {
    let name = one_line(&turn.name);
    let seconds = turn.begun.elapsed().as_secs_f64();
    let status = status_of(&turn.pooled.of.pool, &turn.name).ok();
    let doing = match status.as_ref().map(|model| model.residence) {
        Some(Residence::Loading) => "is being loaded",
        Some(Residence::Moving) => "is being moved",
        Some(Residence::Loaded) => "is in use and makes room first",
        _ => "waits for room",
    };
    let others = status.map_or(0, |model| model.waiting.saturating_sub(1));
    let others = if others == 0 { String::new() } else { format!(", {others} more requests wait for it") };
    format!(": {name} {doing}: {seconds:.1} s so far{others}\n\n").into()
}

/// A name without line breaks. A line break would end the comment that contains the name.
fn one_line(name: &str) -> String {
    name.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

fn is_stream(response: &Response) -> bool {
    let kind = response.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    kind.is_some_and(|kind| kind.starts_with("text/event-stream"))
}

fn error_of(response: &Response) -> ApiError {
    let known = response.extensions().get::<ApiError>().cloned();
    known.unwrap_or_else(|| ApiError::new(500, format!("the model answered with status {}", response.status())))
}

/// An error as an event. `path` decides which API's form is used.
fn event(path: &str, error: &ApiError) -> Bytes {
    let named = |data: &Value| format!("event: error\ndata: {data}\n\n");
    let text = match path {
        "/v1/messages" => named(&error.to_anthropic_json()),
        "/v1/responses" => named(&json!({
            "type": "error", "sequence_number": 0, "code": error.code, "message": error.message, "param": error.param,
        })),
        _ => format!("data: {}\n\n", error.to_json()),
    };
    text.into()
}
