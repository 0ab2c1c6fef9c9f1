//! A stream of a model in a worker: a run with one text, whose reader does what an engine has a thread for.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use super::link::{Link, Reader};
use crate::generate::answer::Answer;
use crate::generate::engine::Submission;
use crate::generate::error::Error;
use crate::generate::piece::{FinishReason, Message};
use crate::generate::request::{Generate, Spec};
use crate::generate::stats::Statistics;
use crate::generate::step::PromptChunk;
use crate::load::Model;

/// Tokens that a worker may be ahead of its reader. It hears of more when half are read: seldom enough not to be felt,
/// and an answer that nobody reads on is not computed to its end.
const AHEAD: usize = 64;

#[derive(Debug)]
pub(in crate::generate) struct RemoteText {
    /// Until the first piece is asked for: nothing is computed before.
    submission: Option<Submission>,
    answer: Option<Answer>,
    /// Dropped last: it waits until the context is free.
    reader: Reader,
}

impl RemoteText {
    pub(in crate::generate) fn new(model: Model, mut spec: Spec) -> Result<(Self, Statistics), Error> {
        // An engine would do it by default.
        spec.cache_prompt.get_or_insert(false);
        let mut reader = Reader::open(&model, AHEAD, PromptChunk::default())?;
        let mut submission = Submission::there(reader.link(), Generate::of(model, spec));
        let statistics = until(&mut reader, |context| submission.poll_checked(context))?;
        Ok((Self { submission: Some(submission), answer: None, reader }, statistics))
    }

    pub(in crate::generate) fn link(&self) -> Arc<Link> {
        Arc::clone(self.reader.link())
    }

    /// The next piece, from this worker or from others in its place.
    pub(in crate::generate) fn next(&mut self) -> Message {
        let Self { submission, answer, reader } = self;
        if let Some(mut submission) = submission.take() {
            *answer = Some(until(reader, |context| Pin::new(&mut submission).poll(context))?);
        }
        let answer = answer.as_mut().ok_or(Error::EngineEnded)?;
        let piece = until(reader, |context| answer.poll_piece(context).map(Option::transpose))?;
        let mut piece = piece.ok_or_else(|| match answer.finish_reason() {
            Some(FinishReason::Aborted) => llama_sys::Error::Aborted.into(),
            _ => Error::EngineEnded,
        })?;
        let mut statistics = answer.statistics();
        // Nobody else has asked for a turn.
        statistics.queue_time = Duration::ZERO;
        if let Some(end) = &mut piece.end {
            end.statistics = statistics;
        }
        Ok((piece, statistics))
    }
}

/// Reads what the worker says until there is an answer.
fn until<T>(reader: &mut Reader, mut poll: impl FnMut(&mut Context<'_>) -> Poll<Result<T, Error>>) -> Result<T, Error> {
    let mut context = Context::from_waker(Waker::noop());
    let mut goes_on = true;
    loop {
        match poll(&mut context) {
            Poll::Ready(answer) => return answer,
            Poll::Pending if goes_on => goes_on = reader.turn(),
            Poll::Pending => return Err(Error::EngineEnded),
        }
    }
}

impl Drop for RemoteText {
    fn drop(&mut self) {
        if self.answer.as_ref().is_some_and(|answer| answer.finish_reason().is_none()) {
            self.reader.link().abort();
        }
    }
}
