//! The waiting texts of an engine whose thread computes in this process.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use super::order::QueueEntry;
use crate::decode::context::Room;
use crate::decode::error::Error;
use crate::decode::piece::SequenceId;
use crate::decode::prompt_order::{PromptOrder, Rank};
use crate::decode::sequence::Sequence;
use crate::decode::stats::Replaced;
use crate::load::{AbortHandle, Model};
use crate::run::channel::{Receiver, Sender, channel};
use crate::run::metrics::Metrics;
use crate::run::places::{Place, Places, Shutdown};
use crate::run::progress::Message;
use crate::run::thread::Notify;
use crate::sync::lock;

/// State that the engine's thread shares with its callers.
#[derive(Debug)]
pub(super) struct Queue {
    pub(super) model: Model,
    pub(super) places: Arc<Places>,
    /// Wakes the engine's thread when there is work.
    pub(super) notify: Arc<Notify>,
    ahead: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The waiting texts in the order of their arrival.
    waiting: VecDeque<Waiting>,
    arrivals: u64,
    room: Room,
    totals: Metrics,
    last_replaced: Option<Result<Replaced, Error>>,
}

/// The data of a text, except its sequence.
#[derive(Debug)]
pub(super) struct Text {
    pub(super) id: SequenceId,
    pub(super) answer: Sender<Message>,
    /// Whether the prompt reuses tokens that the context already holds.
    pub(super) reuse: bool,
    /// The number of generated tokens that the metrics already include.
    pub(super) generated: usize,
    place: Place,
}

impl Text {
    /// Sends the last piece. Frees the place in the engine first, so that the place is free when the reader sees the
    /// end.
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

impl Queue {
    /// An empty queue for a context of this capacity. A text is computed at most `ahead` pieces ahead of its reader.
    pub(super) fn new(model: &Model, places: Arc<Places>, room: Room, ahead: usize) -> Self {
        let state = Mutex::new(State { room, ..State::default() });
        Self { model: model.clone(), places, notify: Arc::default(), ahead, state }
    }

    pub(super) fn metrics(&self) -> Metrics {
        let state = lock(&self.state);
        let (queued, totals) = (state.waiting.len(), state.totals);
        drop(state);
        Metrics { queued, running: self.places.accepted().saturating_sub(queued), ..totals }
    }

    pub(super) fn count(&self, add: impl FnOnce(&mut Metrics)) {
        add(&mut lock(&self.state).totals);
    }

    /// Capacity of the context, in tokens.
    pub(super) fn room(&self) -> Room {
        lock(&self.state).room
    }

    pub(super) fn last_replaced(&self) -> Option<Result<Replaced, Error>> {
        lock(&self.state).last_replaced.clone()
    }

    /// Records the capacity of the new context and the outcome of a re-placement. There is no outcome if the same
    /// context was only taken again.
    pub(super) fn replaced(&self, room: Option<Room>, outcome: Option<Result<Replaced, Error>>) {
        let mut state = lock(&self.state);
        state.room = room.unwrap_or(state.room);
        let before = outcome.and_then(|outcome| state.last_replaced.replace(outcome));
        drop(state);
        drop(before);
        if let Some(room) = room {
            self.places.resize(room.sequences);
        }
    }

    /// Refuses further requests.
    pub(super) fn close(&self, how: Shutdown) {
        // Texts that arrive later find the places closed. Texts that arrived earlier are in the list.
        self.places.close(how);
        let mut state = lock(&self.state);
        let refused = match how {
            Shutdown::Finish => VecDeque::new(),
            Shutdown::FinishBegun => {
                let (begun, waiting) = state.waiting.drain(..).partition(|waiting| waiting.has_begun);
                state.waiting = begun;
                waiting
            }
            Shutdown::Cancel => std::mem::take(&mut state.waiting),
        };
        drop(state);
        drop(refused);
        self.notify.notify();
    }

    /// This is called when a reader has gone or has caught up. Removes abandoned texts from the queue, and wakes the
    /// engine's thread, which handles the running texts.
    fn look(&self) {
        let mut state = lock(&self.state);
        let (gone, waiting) = state.waiting.drain(..).partition(|other| other.text.answer.is_abandoned());
        state.waiting = waiting;
        drop(state);
        drop::<VecDeque<Waiting>>(gone);
        self.notify.notify();
    }

    /// Whether one of these texts waits.
    pub(super) fn has_waiting(&self, is_one: impl Fn(SequenceId) -> bool) -> bool {
        lock(&self.state).waiting.iter().any(|waiting| is_one(waiting.text.id))
    }

    /// The facts about this text, if it waits.
    pub(super) fn entry(&self, text: SequenceId) -> Option<QueueEntry> {
        let state = lock(&self.state);
        let waiting = state.waiting.iter().find(|waiting| waiting.text.id == text)?;
        Some(QueueEntry::new(&waiting.sequence))
    }

    /// Adds the waiting texts that have not begun to `prompts`.
    pub(super) fn tell_waiting(&self, prompts: &mut PromptOrder) {
        for waiting in lock(&self.state).waiting.iter().filter(|waiting| !waiting.has_begun) {
            prompts.waits(waiting.text.id, waiting.sequence.to_compute());
        }
    }

    /// Takes the text with the first `rank` out of these texts, if `may_join` admits it. Texts that have begun come
    /// before the others, in the order of their arrival. Texts whose readers are behind stay in the queue.
    pub(super) fn take_first(
        &self,
        is_one: impl Fn(SequenceId) -> bool,
        rank: impl Fn(SequenceId) -> Option<Rank>,
        may_join: impl FnOnce(&Waiting) -> bool,
    ) -> Option<Waiting> {
        let mut state = lock(&self.state);
        let ready =
            state.waiting.iter().enumerate().filter(|(_, waiting)| waiting.is_ready() && is_one(waiting.text.id));
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
        let is_refused = match self.places.closing() {
            Some(Shutdown::Cancel) => true,
            Some(Shutdown::FinishBegun) => !waiting.has_begun,
            Some(Shutdown::Finish) | None => false,
        };
        if is_refused || waiting.text.answer.is_abandoned() {
            // The engine was closed, or the reader left, while the text was not in the queue. So the text was not
            // removed then, and is removed now.
            drop(state);
            return;
        }
        let at = state.waiting.partition_point(|other| other.text.id < waiting.text.id);
        state.waiting.insert(at, waiting);
    }

    /// Queues a checked text. With `reuse`, its prompt reuses tokens that the context already holds.
    pub(super) fn push(
        self: &Arc<Self>,
        mut sequence: Sequence,
        reuse: bool,
        place: Place,
    ) -> Result<Receiver<Message>, Error> {
        let mut state = lock(&self.state);
        if self.places.closing().is_some() {
            drop(state);
            return Err(Error::EngineEnded);
        }
        let id = SequenceId(state.arrivals);
        state.arrivals += 1;
        sequence.id = id;
        let queue = Arc::clone(self);
        let (answer, pieces) = channel(self.ahead, AbortHandle::new(move || queue.look()));
        let text = Text { id, answer, reuse, generated: sequence.statistics.generated_tokens, place };
        state.waiting.push_back(Waiting { text, sequence, since: Instant::now(), has_begun: false });
        drop(state);
        self.notify.notify();
        Ok(pieces)
    }
}
