//! State that the engine's thread shares with its callers: the waiting texts and the free places.

use std::collections::{BTreeMap, VecDeque};
use std::future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use llama_sys::Token;

use super::{Metrics, Shutdown};
use crate::decode::context::Room;
use crate::decode::error::Error;
use crate::decode::piece::{Message, Progress, SequenceId};
use crate::decode::prompt_order::{PromptOrder, Rank};
use crate::decode::request::{GenerateRequest, Spec};
use crate::decode::sequence::Sequence;
use crate::decode::stats::Replaced;
use crate::load::{AbortHandle, Model};
use crate::lock;
use crate::run::channel::{Notify, Receiver, Sender, channel};
use crate::run::remote::Link;
use crate::run::token_stream::{Source, TokenStream};

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) model: Model,
    /// The connection to the worker that computes the texts; the local queue is then unused.
    link: Option<Arc<Link>>,
    /// Wakes the engine's thread when there is work.
    pub(super) notify: Arc<Notify>,
    queue: usize,
    ahead: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// In the order of arrival.
    waiting: VecDeque<Waiting>,
    /// Texts that were accepted and have not ended.
    accepted: usize,
    arrivals: u64,
    /// Callers that wait for a place, by ticket.
    line: BTreeMap<u64, Waker>,
    tickets: u64,
    room: Room,
    totals: Metrics,
    closing: Option<Shutdown>,
    last_replaced: Option<Result<Replaced, Error>>,
}

/// A text apart from its sequence.
#[derive(Debug)]
pub(super) struct Text {
    pub(super) id: SequenceId,
    pub(super) answer: Sender<Message>,
    /// Whether the prompt reuses tokens that the context holds.
    pub(super) reuse: bool,
    /// Generated tokens that the metrics already include.
    pub(super) generated: usize,
    place: Place,
}

impl Text {
    /// Sends the last piece. The place is freed first, so that it is free when the reader sees the end.
    pub(super) fn end(self, last: Message) {
        drop(self.place);
        self.answer.send(last);
    }
}

#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) text: Text,
    pub(super) sequence: Sequence,
    pub(super) since: Instant,
    /// Whether the text ran before and was suspended.
    pub(super) has_begun: bool,
}

impl Waiting {
    fn is_ready(&self) -> bool {
        !self.has_begun || self.text.answer.is_drained()
    }
}

/// The place of one accepted text. Dropping it admits another request. Must not be dropped while the state is locked.
#[derive(Debug)]
pub(crate) struct Place(Arc<Shared>);

impl Drop for Place {
    fn drop(&mut self) {
        let mut state = lock(&self.0.state);
        state.accepted -= 1;
        call(state);
    }
}

/// Unlocks the state and wakes the first caller that waits for a place. A caller that finds no free place keeps
/// waiting.
fn call(state: MutexGuard<'_, State>) {
    let first = state.line.first_key_value().map(|(_, waker)| waker.clone());
    // A waker runs foreign code, so the lock is released first.
    drop(state);
    first.into_iter().for_each(Waker::wake);
}

/// Waits for a place in the queue, in the order of the tickets.
struct Turn {
    shared: Arc<Shared>,
    waits: bool,
    ticket: Option<u64>,
}

impl Future for Turn {
    type Output = Result<Place, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let shared = Arc::clone(&self.shared);
        let mut state = lock(&shared.state);
        if state.closing.is_some() {
            return Poll::Ready(Err(Error::EngineEnded));
        }
        let first = state.line.first_key_value().map(|(ticket, _)| *ticket);
        if first == self.ticket && state.accepted < shared.places(&state) {
            state.accepted += 1;
            return Poll::Ready(Ok(Place(Arc::clone(&shared))));
        }
        if !self.waits {
            return Poll::Ready(Err(Error::QueueFull { queue: shared.queue }));
        }
        let ticket = *self.ticket.get_or_insert(state.tickets);
        state.tickets = state.tickets.max(ticket + 1);
        let before = state.line.insert(ticket, context.waker().clone());
        drop(state);
        drop(before);
        Poll::Pending
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let Some(ticket) = self.ticket else {
            return;
        };
        let mut state = lock(&self.shared.state);
        let left = state.line.remove(&ticket);
        call(state);
        drop(left);
    }
}

impl Shared {
    /// State of an engine whose texts a worker computes.
    pub(super) fn for_worker(link: &Arc<Link>, queue: usize) -> Self {
        let shared = Self::new(&link.model, Room::new(&link.model.placement().context), queue, 0);
        Self { link: Some(Arc::clone(link)), ..shared }
    }

    pub(super) fn new(model: &Model, room: Room, queue: usize, ahead: usize) -> Self {
        let state = Mutex::new(State { room, ..State::default() });
        Self { model: model.clone(), link: None, notify: Arc::default(), queue, ahead, state }
    }

    pub(super) fn metrics(&self) -> Metrics {
        let state = lock(&self.state);
        let here = Metrics { queued: state.waiting.len(), ..state.totals };
        let all = self.link.as_ref().map_or(here, |link| link.metrics());
        Metrics { running: state.accepted.saturating_sub(all.queued), ..all }
    }

    pub(super) fn count(&self, add: impl FnOnce(&mut Metrics)) {
        add(&mut lock(&self.state).totals);
    }

    pub(super) fn last_replaced(&self) -> Option<Result<Replaced, Error>> {
        lock(&self.state).last_replaced.clone()
    }

    /// Records the capacity of the new context and the outcome of a re-placement. The context may also have been taken
    /// again without one.
    pub(super) fn replaced(&self, room: Option<Room>, outcome: Option<Result<Replaced, Error>>) {
        let mut state = lock(&self.state);
        state.room = room.unwrap_or(state.room);
        let before = outcome.and_then(|outcome| state.last_replaced.replace(outcome));
        call(state);
        drop(before);
    }

    /// Refuses further requests.
    pub(super) fn close(&self, how: Shutdown) {
        let mut state = lock(&self.state);
        state.closing = state.closing.max(Some(how));
        let refused = match how {
            Shutdown::Finish => VecDeque::new(),
            Shutdown::FinishBegun => {
                let (begun, waiting) = state.waiting.drain(..).partition(|waiting| waiting.has_begun);
                state.waiting = begun;
                waiting
            }
            Shutdown::Cancel => std::mem::take(&mut state.waiting),
        };
        let line = std::mem::take(&mut state.line);
        drop(state);
        drop(refused);
        if let Some(link) = &self.link {
            link.close(how);
        }
        line.into_values().for_each(Waker::wake);
        self.notify.notify();
    }

    pub(super) fn closing(&self) -> Option<Shutdown> {
        lock(&self.state).closing
    }

    pub(super) fn abort_handle(&self) -> AbortHandle {
        let link = self.link.clone();
        AbortHandle::new(move || link.iter().for_each(|link| link.abort()))
    }

    /// Called when a reader has gone or has caught up. Removes abandoned texts from the queue, and wakes the engine's
    /// thread for the others.
    fn look(&self) {
        let mut state = lock(&self.state);
        let (gone, waiting) = state.waiting.drain(..).partition(|it| it.text.answer.is_abandoned());
        state.waiting = waiting;
        drop(state);
        drop::<VecDeque<Waiting>>(gone);
        self.notify.notify();
    }

    pub(super) fn has_waiting(&self) -> bool {
        !lock(&self.state).waiting.is_empty()
    }

    /// Tells the order of the prompts which texts wait that have not begun.
    pub(super) fn tell_waiting(&self, prompts: &mut PromptOrder) {
        for waiting in lock(&self.state).waiting.iter().filter(|waiting| !waiting.has_begun) {
            prompts.waits(waiting.text.id, waiting.sequence.to_compute());
        }
    }

    /// Takes the first text by the `rank` of its prompt, if `may_join` admits it. Texts that have begun come before the
    /// others, in the order of their arrival. Texts whose readers are behind stay.
    pub(super) fn take_first(
        &self,
        rank: impl Fn(SequenceId) -> Option<Rank>,
        may_join: impl FnOnce(&Waiting) -> bool,
    ) -> Option<Waiting> {
        let mut state = lock(&self.state);
        let ready = state.waiting.iter().enumerate().filter(|(_, waiting)| waiting.is_ready());
        let ranked = ready.map(|(at, waiting)| (at, (!waiting.has_begun).then(|| rank(waiting.text.id)).flatten()));
        let (first, _) = ranked.min_by(|(_, a), (_, b)| match (a, b) {
            (Some(a), Some(b)) => a.compare(b),
            (a, b) => a.is_some().cmp(&b.is_some()),
        })?;
        let may_join = may_join(&state.waiting[first]);
        if may_join { state.waiting.remove(first) } else { None }
    }

    pub(super) fn put_back(&self, waiting: Waiting) {
        let mut state = lock(&self.state);
        if state.closing == Some(Shutdown::Cancel) || waiting.text.answer.is_abandoned() {
            // A reader that left meanwhile did not find the text in the queue.
            drop(state);
            return;
        }
        let at = state.waiting.partition_point(|it| it.text.id < waiting.text.id);
        state.waiting.insert(at, waiting);
    }

    pub(super) fn capacity(&self) -> usize {
        self.places(&lock(&self.state))
    }

    fn places(&self, state: &State) -> usize {
        let there = self.link.as_ref().map(|link| Room::new(&link.model.placement().context));
        self.queue.saturating_add(there.unwrap_or(state.room).sequences)
    }

    /// Checks a request and queues it once it has a place. `so_far` holds tokens that an earlier process generated. A
    /// worker checks its own requests.
    pub(super) fn submit(
        self: &Arc<Self>,
        generate: GenerateRequest,
        so_far: &[Token],
        waits: bool,
    ) -> impl Future<Output = Result<TokenStream, Error>> + Send + use<> {
        let checked = self.check(generate, so_far);
        let turn = Turn { shared: Arc::clone(self), waits, ticket: None };
        async move {
            let (work, mut progress) = checked?;
            let place = turn.await?;
            let shared = Arc::clone(&place.0);
            let pieces = match work {
                Work::Local(sequence, reuse) => shared.queue(*sequence, reuse, place)?,
                Work::Worker(link, spec) => {
                    let mut pieces = link.submit(*spec, place)?;
                    let accepted = future::poll_fn(|context| pieces.poll_next(context)).await;
                    (_, progress.statistics) = accepted.unwrap_or(Err(Error::EngineEnded))?;
                    pieces
                }
            };
            Ok(TokenStream::new(Source::Channel(pieces), progress))
        }
    }

    fn check(&self, generate: GenerateRequest, so_far: &[Token]) -> Result<(Work, Progress), Error> {
        let GenerateRequest { model, spec } = generate;
        if !model.is(&self.model) {
            return Err(Error::OtherModel);
        }
        // A worker could return this error only as text.
        self.model.scales(spec.lora.as_deref())?;
        let mut progress = spec.progress();
        if let Some(link) = &self.link {
            spec.check_for_worker()?;
            return Ok((Work::Worker(Arc::clone(link), Box::new(spec)), progress));
        }
        let reuse = spec.cache_prompt.unwrap_or(true) && so_far.is_empty();
        let sequence = self.model.with_vocab(|vocab| {
            Sequence::new(SequenceId(0), spec, so_far, &self.model, vocab, lock(&self.state).room.each)
        })??;
        progress.statistics = sequence.statistics;
        Ok((Work::Local(Box::new(sequence), reuse), progress))
    }

    fn queue(self: &Arc<Self>, mut sequence: Sequence, reuse: bool, place: Place) -> Result<Receiver<Message>, Error> {
        let mut state = lock(&self.state);
        if state.closing.is_some() {
            drop(state);
            return Err(Error::EngineEnded);
        }
        let id = SequenceId(state.arrivals);
        state.arrivals += 1;
        sequence.id = id;
        let shared = Arc::clone(self);
        let (answer, pieces) = channel(self.ahead, AbortHandle::new(move || shared.look()));
        let text = Text { id, answer, reuse, generated: sequence.statistics.generated_tokens, place };
        state.waiting.push_back(Waiting { text, sequence, since: Instant::now(), has_begun: false });
        drop(state);
        self.notify.notify();
        Ok(pieces)
    }
}

/// A checked request: a sequence that this process computes, or a request that a worker is to check.
enum Work {
    /// The flag tells whether the prompt reuses tokens that the context holds.
    Local(Box<Sequence>, bool),
    Worker(Arc<Link>, Box<Spec>),
}
