//! The engine's thread: between two steps it ends texts whose readers have gone, admits requests, and makes room.

use std::sync::Arc;
use std::thread;
use std::time::Instant;

use super::Shutdown;
use super::order::{Stand, may_join, too_many};
use super::queue::{Shared, Text, Waiting};
use crate::generate::cache::{WORTH_A_COPY, common_prefix};
use crate::generate::error::Error;
use crate::generate::local::SessionHere;
use crate::generate::piece::SequenceId;
use crate::generate::sequence::Sequence;
use crate::generate::stats::{Replaced, Resumed};
use crate::generate::step::PromptChunk;
use crate::load::Replacement;

#[derive(Debug)]
pub(super) struct Driver {
    shared: Arc<Shared>,
    prompt_chunk: PromptChunk,
    /// `None` while there is no context that works.
    session: Option<SessionHere>,
    running: Vec<Text>,
}

impl Driver {
    pub(super) fn new(shared: Arc<Shared>, session: SessionHere, prompt_chunk: PromptChunk) -> Self {
        Self { shared, prompt_chunk, session: Some(session), running: Vec::new() }
    }

    /// Runs until the engine is shut down and the texts to be finished are.
    pub(super) fn run(mut self) {
        self.shared.model.requests().listen(Some(Arc::clone(&self.shared.bell).into()));
        while self.turn() {}
    }

    /// One step, or a sleep until there is something to do. `false`: it is over.
    fn turn(&mut self) -> bool {
        let closing = self.shared.closing();
        if closing == Some(Shutdown::Cancel) {
            return false;
        }
        if let Some(replacement) = self.shared.model.requests().take() {
            self.replace(replacement);
        }
        self.let_abandoned_go();
        self.put_aside();
        self.let_waiting_in();
        self.make_room();
        if !self.running.is_empty() {
            self.step();
            return true;
        }
        if closing.is_some() && !self.shared.has_waiting() {
            return false;
        }
        self.shared.bell.wait();
        true
    }

    /// Re-places the model. Where that fails there is nothing to compute with until somebody else loads it.
    fn replace(&mut self, replacement: Replacement) {
        let Some(session) = &mut self.session else {
            self.shared.replaced(None, self.replace_without_session(&replacement));
            return;
        };
        let outcome = session.carry_out(replacement);
        let last = session.last_replaced().cloned();
        match outcome {
            Ok(()) => self.shared.replaced(Some(session.room()), last),
            Err(error) => {
                self.shared.replaced(None, last);
                self.fail(&error);
                self.session = None;
            }
        }
    }

    /// The same while there is no session. `None` where nothing was done.
    fn replace_without_session(&self, replacement: &Replacement) -> Option<Result<Replaced, Error>> {
        let (before, begun) = (self.shared.model.placement(), Instant::now());
        if let Err(error) = self.shared.model.carry_out(replacement) {
            tracing::warn!("the model is not re-placed: {error}");
            return Some(Err(error.into()));
        }
        let after = self.shared.model.placement();
        let is_another = !Arc::ptr_eq(&before, &after);
        is_another.then(|| Ok(Replaced { before, after, saved: 0, resumed: Resumed::Restored, time: begun.elapsed() }))
    }

    fn let_abandoned_go(&mut self) {
        for text in self.running.extract_if(.., |text| text.answer.is_abandoned()) {
            if let Some(session) = &mut self.session {
                session.end(text.id);
            }
        }
    }

    /// Sends texts whose readers are behind back to the queue.
    fn put_aside(&mut self) {
        while let Some(full) = self.running.iter().find(|text| text.answer.is_full()) {
            self.suspend(full.id);
        }
    }

    /// Admits texts, in the order in which they came.
    fn let_waiting_in(&mut self) {
        loop {
            let session = self.session.as_ref();
            let joins = |next: &Waiting| {
                session.is_none_or(|session| {
                    may_join(session.room(), stands(session), Stand::of(&next.sequence))
                        && !is_being_computed(session, next)
                })
            };
            let Some(next) = self.shared.take_if(joins) else { return };
            self.begin(next);
        }
    }

    fn begin(&mut self, waiting: Waiting) {
        let Waiting { text, mut sequence, since, has_begun } = waiting;
        let session = match &mut self.session {
            Some(session) => session,
            // The context was lost, and is taken again.
            lost => match SessionHere::open(&self.shared.model) {
                Ok(session) => {
                    let session = lost.insert(session);
                    session.work.prompt_chunk = self.prompt_chunk;
                    self.shared.replaced(Some(session.room()), None);
                    session
                }
                // Every text ends with the reason why there is no session, and the next may find one.
                Err(error) => return text.end(Err(error)),
            },
        };
        sequence.statistics.queue_time += since.elapsed();
        let prompt = sequence.prompt;
        // In an earlier process, if not here.
        let goes_on = has_begun || sequence.statistics.generated_tokens > 0;
        let (needs, each) = (sequence.needs(), session.room().each);
        let joined = if needs > each {
            // The model was re-placed while it waited.
            Err(Error::ContextTooSmall { tokens: needs, context: each })
        } else {
            session.join(sequence, text.reuse, has_begun)
        };
        if let Err(error) = joined {
            text.end(Err(error));
            self.renew();
            return;
        }
        if !goes_on {
            let statistics = session.statistics(text.id).unwrap_or_default();
            self.shared.count(|totals| {
                totals.prompt_tokens += prompt as u64;
                totals.cached_tokens += statistics.cached_tokens as u64;
            });
        }
        self.running.push(text);
    }

    /// Sends texts back to the queue until there is room for the next step.
    fn make_room(&mut self) {
        while let Some(last) = self.session.as_ref().and_then(|it| too_many(it.room(), stands(it))) {
            self.suspend(SequenceId(last));
        }
    }

    fn suspend(&mut self, last: SequenceId) {
        let text = self.running.extract_if(.., |text| text.id == last).next();
        let sequence = self.session.as_mut().and_then(|session| session.suspend(last));
        if let (Some(text), Some(sequence)) = (text, sequence) {
            self.shared.put_back(Waiting { text, sequence, since: Instant::now(), has_begun: true });
        }
    }

    /// Computes the next tokens of all, and sends them to the readers.
    fn step(&mut self) {
        while let Some(session) = &mut self.session
            && let Err(error) = session.advance_in_place()
        {
            match session.failed() {
                // The next call returns the pieces of the others.
                Some(failed) => {
                    if let Some(text) = self.running.extract_if(.., |text| text.id == failed).next() {
                        text.end(Err(error));
                    }
                }
                None => {
                    self.fail(&error);
                    self.renew();
                    return;
                }
            }
        }
        while let Some((piece, statistics)) = self.session.as_mut().and_then(|session| session.work.pieces.pop_front())
        {
            let Some(at) = self.running.iter().position(|text| text.id == piece.sequence) else {
                continue;
            };
            let text = &mut self.running[at];
            let generated = statistics.generated_tokens - text.generated;
            text.generated += generated;
            self.shared.count(|totals| totals.generated_tokens += generated as u64);
            let is_last = piece.end.is_some();
            let message = Ok((piece, statistics));
            if is_last {
                self.running.remove(at).end(message);
            } else {
                text.answer.send(message);
            }
        }
    }

    fn fail(&mut self, error: &Error) {
        for text in self.running.drain(..) {
            if let Some(session) = &mut self.session {
                session.end(text.id);
            }
            text.end(Err(error.clone()));
        }
    }

    /// Releases a context that no longer works: another is made for the next text.
    fn renew(&mut self) {
        if self.session.as_ref().is_some_and(|session| !session.is_usable()) {
            self.session = None;
        }
    }
}

/// What the texts that run take.
fn stands(session: &SessionHere) -> impl ExactSizeIterator<Item = Stand> + Clone {
    session.sequences.iter().map(Stand::of)
}

/// Whether a text that runs is computing what this one can have a copy of in a moment.
fn is_being_computed(session: &SessionHere, next: &Waiting) -> bool {
    let begins = |it: &Sequence| {
        let worth = it.held.computed + WORTH_A_COPY;
        // Before each step: what generates is not compared.
        it.tokens.len() >= worth
            && it.scales == next.sequence.scales
            && common_prefix(&it.tokens, &next.sequence.tokens) >= worth
    };
    // A window or a state cannot be cut down to the beginning.
    let goes_back = session.lent.as_ref().is_some_and(|lent| !lent.context.has_partial_state());
    next.text.reuse && goes_back && session.sequences.iter().any(begins)
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.shared.model.requests().listen(None);
        if thread::panicking()
            && let Some(session) = &mut self.session
        {
            session.spoil();
        }
        // Waiting texts get the error here, running ones when they are dropped.
        self.shared.close(Shutdown::Cancel);
    }
}
