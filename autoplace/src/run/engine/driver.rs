//! The engine's thread. Between two steps it ends texts whose readers have gone, admits requests, and suspends texts
//! for which there is no room.

use std::sync::Arc;
use std::thread;
use std::time::Instant;

use super::order::{QueueEntry, may_join, too_many};
use super::queue::{Queue, Text, Waiting};
use crate::decode::cache::{Prepared, WORTH_A_COPY};
use crate::decode::error::Error;
use crate::decode::piece::SequenceId;
use crate::decode::sequence::Sequence;
use crate::decode::stats::{Replaced, Resumed};
use crate::decode::step::PromptChunk;
use crate::load::Replacement;
use crate::run::local::LocalSession;
use crate::run::places::Shutdown;

#[derive(Debug)]
pub(super) struct Driver {
    queue: Arc<Queue>,
    prompt_chunk: PromptChunk,
    /// The session; `None` while the engine has no working context.
    session: Option<LocalSession>,
    running: Vec<Text>,
}

impl Driver {
    pub(super) fn new(queue: Arc<Queue>, session: LocalSession, prompt_chunk: PromptChunk) -> Self {
        Self { queue, prompt_chunk, session: Some(session), running: Vec::new() }
    }

    /// Runs until the engine is closed and its last text has ended.
    pub(super) fn run(mut self) {
        self.queue.model.requests().listen(Some(Arc::clone(&self.queue.notify).into()));
        while self.turn() {}
    }

    /// Takes one step, or sleeps until there is work. Returns `false` when the engine is done.
    fn turn(&mut self) -> bool {
        let closing = self.queue.places.closing();
        if closing == Some(Shutdown::Cancel) {
            return false;
        }
        if let Some((replacement, _under_way)) = self.queue.model.requests().take() {
            self.replace(replacement);
        }
        self.let_abandoned_go();
        self.put_aside();
        let is_preparing = self.let_waiting_in();
        self.make_room();
        // This comes after the admission of texts, so that a long prompt begins in the placement that computes it
        // fastest.
        if let Some(replacement) = self.session.as_ref().and_then(LocalSession::follow_depth) {
            self.replace(replacement);
        }
        if !self.running.is_empty() {
            self.step();
            return true;
        }
        if closing.is_some() && !self.queue.has_waiting(|_| true) {
            return false;
        }
        if is_preparing {
            return true;
        }
        // If there is no text to compute, the thread stores the tokens of idle sequences before it sleeps.
        if !self.session.as_mut().is_some_and(LocalSession::store_part) {
            self.queue.notify.wait();
        }
        true
    }

    /// Re-places the model. A failure leaves the engine without a context until another part of the application loads
    /// the model.
    fn replace(&mut self, replacement: Replacement) {
        let Some(session) = &mut self.session else {
            self.queue.replaced(None, self.replace_without_session(&replacement));
            return;
        };
        let outcome = session.carry_out(replacement);
        let last = session.last_replaced().cloned();
        match outcome {
            Ok(()) => self.queue.replaced(Some(session.room()), last),
            Err(error) => {
                self.queue.replaced(None, last);
                self.fail(&error);
                self.session = None;
            }
        }
    }

    /// Re-places the model without a session. Returns `None` if the plan stays the same.
    fn replace_without_session(&self, replacement: &Replacement) -> Option<Result<Replaced, Error>> {
        let (before, begun) = (self.queue.model.placement(), Instant::now());
        if let Err(error) = self.queue.model.carry_out(replacement) {
            tracing::warn!(target: "autoplace::generate", "the model could not be re-placed: {error}");
            return Some(Err(error.into()));
        }
        let after = self.queue.model.placement();
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

    /// Suspends texts whose readers are behind, and queues them again.
    fn put_aside(&mut self) {
        while let Some(full) = self.running.iter().find(|text| text.answer.is_full()) {
            self.suspend(full.id);
        }
    }

    /// Admits waiting texts in the order of their prompts. Returns whether one of them is still being prepared.
    fn let_waiting_in(&mut self) -> bool {
        if let Some(session) = &mut self.session {
            session.leave_unless(|text| self.queue.has_waiting(|waiting| waiting == text));
            self.queue.tell_waiting(&mut session.work.prompts);
        }
        // The text that is being prepared comes first: others would wait for the same store.
        let prepared = self.session.as_ref().and_then(|session| session.cache.prepares_for());
        if let Some(prepared) = prepared {
            self.admit(|text| text == prepared, None);
        }
        // If it waits on, the others may overtake it, but not take its room.
        let waits = prepared.and_then(|prepared| self.queue.entry(prepared));
        let is_other = |text| Some(text) != prepared;
        while self.admit(is_other, waits) {}
        self.session.as_ref().is_some_and(|session| session.cache.prepares_for().is_some())
    }

    /// Lets the first of these waiting texts join, or prepares it. Returns whether it has joined. The text
    /// `overtaken` keeps its room.
    fn admit(&mut self, is_one: impl Fn(SequenceId) -> bool, overtaken: Option<QueueEntry>) -> bool {
        let session = self.session.as_ref();
        let rank = |id| session.map(|session| session.work.prompts.rank(id));
        let joins = |next: &Waiting| session.is_none_or(|session| may_begin(session, overtaken, next));
        let Some(next) = self.queue.take_first(is_one, rank, joins) else { return false };
        let mut prepared = None;
        if let Some(session) = &mut self.session {
            let mut may_join = session.store_next(next.text.id);
            if may_join && (next.text.reuse || next.has_begun) {
                prepared = session.prepare(&next.sequence);
                may_join = prepared.is_some();
            }
            if !may_join {
                self.queue.put_back(next);
                return false;
            }
        }
        self.begin(next, prepared);
        true
    }

    fn begin(&mut self, waiting: Waiting, prepared: Option<Prepared>) {
        let Waiting { text, mut sequence, since, has_begun } = waiting;
        let session = match &mut self.session {
            Some(session) => session,
            // The session has lost its context, so the context is taken again for the next text.
            lost => match LocalSession::open(&self.queue.model) {
                Ok(session) => {
                    let session = lost.insert(session);
                    session.work.prompt_chunk = self.prompt_chunk;
                    self.queue.replaced(Some(session.room()), None);
                    session
                }
                // Each text ends with the reason why there is no session. A later text may get a session.
                Err(error) => return text.end(Err(error)),
            },
        };
        sequence.statistics.queue_time += since.elapsed();
        let prompt = sequence.prompt;
        // The text may also have begun in an earlier worker process.
        let goes_on = has_begun || sequence.statistics.generated_tokens > 0;
        let (needs, each) = (sequence.needs(), session.room().each);
        let joined = if needs > each {
            // The model was re-placed while the text waited, and the new context is smaller.
            Err(Error::ContextTooSmall { tokens: needs, context: each })
        } else {
            session.join(sequence, text.reuse, has_begun, prepared)
        };
        if let Err(error) = joined {
            text.end(Err(error));
            self.renew();
            return;
        }
        if !goes_on {
            let statistics = session.statistics(text.id).unwrap_or_default();
            self.queue.count(|totals| {
                totals.prompt_tokens += prompt as u64;
                totals.cached_tokens += statistics.cached_tokens as u64;
            });
        }
        self.running.push(text);
    }

    /// Suspends texts until the remaining texts have room for the next step.
    fn make_room(&mut self) {
        while let Some(last) =
            self.session.as_ref().and_then(|session| too_many(session.room(), queue_entries(session)))
        {
            self.suspend(SequenceId(last));
        }
    }

    fn suspend(&mut self, last: SequenceId) {
        let text = self.running.extract_if(.., |text| text.id == last).next();
        let sequence = self.session.as_mut().and_then(|session| session.suspend(last));
        if let (Some(text), Some(sequence)) = (text, sequence) {
            self.queue.put_back(Waiting { text, sequence, since: Instant::now(), has_begun: true });
        }
    }

    /// Computes the next token of every text, and sends the pieces to the readers.
    fn step(&mut self) {
        while let Some(session) = &mut self.session
            && let Err(error) = session.advance_in_place()
        {
            match session.failed() {
                // The next call returns the pieces of the other texts.
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
            self.queue.count(|totals| totals.generated_tokens += generated as u64);
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

    /// Releases a context that no longer works. The next text gets a new one.
    fn renew(&mut self) {
        if self.session.as_ref().is_some_and(|session| !session.is_usable()) {
            self.session = None;
        }
    }
}

/// The queue entries of the running texts.
fn queue_entries(session: &LocalSession) -> impl ExactSizeIterator<Item = QueueEntry> + Clone {
    session.sequences.iter().map(QueueEntry::new)
}

/// Whether there is room for a waiting text beside the running texts and the waiting text `overtaken`, and no reason to
/// wait for another text.
fn may_begin(session: &LocalSession, overtaken: Option<QueueEntry>, next: &Waiting) -> bool {
    may_join(session.room(), queue_entries(session), overtaken, QueueEntry::new(&next.sequence))
        && session.has_sequence_for(next.text.id)
        && !is_being_computed(session, next)
}

/// Whether a running text is computing a prefix that `next` could soon copy.
fn is_being_computed(session: &LocalSession, next: &Waiting) -> bool {
    let begins = |sequence: &Sequence| {
        let worth = sequence.held.computed + WORTH_A_COPY;
        // The length check comes first: it skips texts that already generate, so that such texts are not compared
        // before every step.
        sequence.tokens.len() >= worth
            && sequence.scales == next.sequence.scales
            && sequence.all().common(&next.sequence.tokens, next.sequence.all().marks) >= worth
    };
    // A window or a recurrent state cannot be cut down to a prefix.
    let goes_back = session.lent.as_ref().is_some_and(|lent| !lent.context.has_partial_state());
    next.text.reuse && goes_back && session.sequences.iter().any(begins)
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.queue.model.requests().listen(None);
        if thread::panicking()
            && let Some(session) = &mut self.session
        {
            session.spoil();
        }
        // Waiting texts get the error here; running texts get it when they are dropped.
        self.queue.close(Shutdown::Cancel);
    }
}
