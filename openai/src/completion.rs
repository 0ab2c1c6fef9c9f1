//! A request that is being answered.

use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::task::{Context, Poll, ready};

use serde_json::Value;

use super::choice::{Choice, Step};
use super::error::ApiError;
use super::shape::{Chunks, Frame, usage};
use autoplace::generate::Error;
use pollster::block_on;

/// An answer under way, of the [`Api`](super::Api). Dropping it cancels what is not generated yet.
///
/// Where the request has asked for a [stream](Self::is_stream), it is a `Stream` of the chunks, or on a thread gives
/// them by [`chunks`](Self::chunks): each is the data of an event, and after the last comes the API's `[DONE]`. Else
/// [`response`](Self::response), or [`wait`](Self::wait) on a thread, is the body.
#[must_use = "dropping it cancels the request"]
pub struct Completion {
    frame: Frame,
    choices: Vec<Choice>,
    is_stream: bool,
    /// Of a stream: the chunk behind all others says what was used.
    include_usage: bool,
    chunks: Vec<Chunks>,
    ready: VecDeque<Value>,
    /// The answer that is asked first.
    turn: usize,
    has_ended: bool,
    unenforced: Vec<String>,
}

impl Completion {
    pub(super) fn new(frame: Frame, choices: Vec<Choice>, stream: Option<bool>) -> Self {
        let chunks: Vec<_> = (0..choices.len()).map(|index| Chunks::new(&frame, index)).collect();
        let ready = chunks.iter().filter_map(Chunks::first).collect();
        let (is_stream, include_usage) = (stream.is_some(), stream == Some(true));
        Self {
            frame,
            choices,
            is_stream,
            include_usage,
            chunks,
            ready,
            turn: 0,
            has_ended: false,
            unenforced: Vec::new(),
        }
    }

    pub(super) fn with_unenforced(self, unenforced: Vec<String>) -> Self {
        Self { unenforced, ..self }
    }

    /// What of the schemas of its tools a call is not held to while it is generated, each with its place in the
    /// request: `tools[0].function.parameters.properties.tags: "uniqueItems" is not enforced`. A finished call is
    /// checked against the whole schema; where it is not what that allows, a warning says so.
    pub fn unenforced(&self) -> &[String] {
        &self.unenforced
    }

    /// Whether the request has asked for chunks.
    pub fn is_stream(&self) -> bool {
        self.is_stream
    }

    /// The whole answer, in any runtime.
    ///
    /// # Errors
    ///
    /// What a computation failed with.
    pub async fn response(mut self) -> Result<Value, ApiError> {
        // By turns: one that nobody reads is not computed for long.
        let mut wholes: Vec<_> = self.choices.iter().map(|_| Step::default()).collect();
        while let Some((index, step)) = poll_fn(|context| self.poll_any(context)).await {
            let mut step = step.map_err(|error| failed(&self.frame, &error))?;
            if let Some(violation) = step.violation.take() {
                return Err(not_met(&violation));
            }
            wholes[index].add(step);
        }
        let choices = wholes.into_iter().enumerate();
        let choices = choices.map(|(index, whole)| whole.into_choice(&self.frame, index)).collect();
        let mut body = self.frame.body(false, choices);
        body["usage"] = self.usage();
        Ok(body)
    }

    /// The whole answer, for whom this thread waits.
    ///
    /// # Errors
    ///
    /// As [`response`](Self::response).
    pub fn wait(self) -> Result<Value, ApiError> {
        block_on(self.response())
    }

    /// The chunks, for which this thread waits. An error is the last.
    pub fn chunks(mut self) -> impl Iterator<Item = Result<Value, ApiError>> {
        std::iter::from_fn(move || block_on(poll_fn(|context| self.poll_chunk(context))))
    }

    /// The next chunk; `None` after the last. An error is the last.
    pub fn poll_chunk(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Value, ApiError>>> {
        loop {
            if let Some(choice) = self.ready.pop_front() {
                let mut body = self.frame.body(true, vec![choice]);
                if self.include_usage {
                    body["usage"] = Value::Null;
                }
                return Poll::Ready(Some(Ok(body)));
            }
            if self.has_ended {
                return Poll::Ready(None);
            }
            match ready!(self.poll_any(context)) {
                Some((_, Ok(Step { violation: Some(violation), .. }))) => {
                    self.choices.clear();
                    self.has_ended = true;
                    return Poll::Ready(Some(Err(not_met(&violation))));
                }
                Some((index, Ok(step))) => self.ready.extend(self.chunks[index].of(&step)),
                Some((_, Err(error))) => {
                    // The others end too.
                    self.choices.clear();
                    self.has_ended = true;
                    return Poll::Ready(Some(Err(failed(&self.frame, &error))));
                }
                None => {
                    self.has_ended = true;
                    if self.include_usage {
                        let mut body = self.frame.body(true, Vec::new());
                        body["usage"] = self.usage();
                        return Poll::Ready(Some(Ok(body)));
                    }
                }
            }
        }
    }

    /// A step of any of the answers, by turns; `None` when all have ended.
    fn poll_any(&mut self, context: &mut Context<'_>) -> Poll<Option<(usize, Result<Step, Error>)>> {
        let count = self.choices.len();
        for ahead in 0..count {
            let index = (self.turn + ahead) % count;
            let choice = &mut self.choices[index];
            if let Poll::Ready(Some(step)) = choice.poll(context) {
                self.turn = (index + 1) % count;
                return Poll::Ready(Some((index, step)));
            }
        }
        match self.choices.iter().all(Choice::has_ended) {
            true => Poll::Ready(None),
            false => Poll::Pending,
        }
    }

    fn usage(&self) -> Value {
        usage(self.choices.iter().map(|it| (it.prompt, &it.statistics)))
    }
}

/// A call of a `strict` tool that is not what its schema allows: the model wrote it in a form that no grammar follows.
fn not_met(violation: &str) -> ApiError {
    let message = format!(
        "the model's call is not what the schema of its `strict` tool allows: {violation}; with `tool_choice` \
         \"required\" its arguments are held to the schema"
    );
    ApiError::new(500, message).with_code("strict_not_met")
}

/// A generation that has failed after it was accepted.
fn failed(frame: &Frame, error: &Error) -> ApiError {
    ApiError::of_generation(error, frame.endpoint.prompt())
}

impl futures_core::Stream for Completion {
    type Item = Result<Value, ApiError>;

    fn poll_next(self: std::pin::Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.get_mut().poll_chunk(context)
    }
}

impl fmt::Debug for Completion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Completion")
            .field("id", &self.frame.id)
            .field("choices", &self.choices.len())
            .finish_non_exhaustive()
    }
}
