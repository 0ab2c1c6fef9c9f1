//! What waits for the engine's thread, and who waits for a place in it.

use std::collections::VecDeque;
use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};
use std::task::{Context, Poll, Waker, ready};
use std::time::Instant;

use llama_sys::Token;

use super::order::Stand;
use super::{Metrics, Shutdown};
use crate::generate::answer::{Answer, Writer};
use crate::generate::channel::{Bell, Sender, block_on, channel};
use crate::generate::context::Room;
use crate::generate::error::Error;
use crate::generate::piece::{Message, Progress, SequenceId};
use crate::generate::remote::{Asked, Link};
use crate::generate::request::Generate;
use crate::generate::sequence::Sequence;
use crate::generate::stats::{Replaced, Statistics};
use crate::load::Model;

/// What the engine's thread and everybody else share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) model: Model,
    /// The worker that computes the texts, where that is another process: none waits or runs here then.
    link: Option<Arc<Link>>,
    /// Is woken when what the engine tells of itself has changed.
    watcher: Waker,
    /// Rings when there is something to do for the engine's thread.
    pub(super) bell: Arc<Bell>,
    /// Read while somebody holds the model underneath to check a request, written while the model is re-placed, which
    /// it could not be meanwhile.
    pub(super) held: RwLock<()>,
    queue: usize,
    ahead: usize,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// In the order of their arrivals.
    waiting: VecDeque<Waiting>,
    /// Texts that were accepted and have not ended.
    accepted: usize,
    arrivals: u64,
    /// Who waits for a place, the first first.
    submitters: VecDeque<(u64, Waker)>,
    submissions: u64,
    room: Room,
    totals: Metrics,
    closing: Option<Shutdown>,
    last_replaced: Option<Result<Replaced, Error>>,
}

/// A text, but for what it is made of.
#[derive(Debug)]
pub(super) struct Text {
    pub(super) arrival: u64,
    pub(super) answer: Sender<Message>,
    /// Tokens that it can come to, prompt and answer.
    pub(super) limit: usize,
    /// What the context holds of its beginning is not computed again.
    pub(super) reuse: bool,
    pub(super) is_paused: bool,
    /// Tokens that were generated and told.
    pub(super) generated: usize,
    place: Place,
}

impl Text {
    pub(super) fn id(&self) -> SequenceId {
        SequenceId(self.arrival)
    }

    /// Tells the reader the last of it. Its place is free before that is heard.
    pub(super) fn end(self, last: Message) {
        drop(self.place);
        self.answer.send(last);
    }

    /// Whether its reader is as far behind as to stop it, or not far enough on to go on with it.
    pub(super) fn must_pause(&self) -> bool {
        if self.is_paused { !self.answer.is_drained() } else { self.answer.is_full() }
    }
}

#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) text: Text,
    pub(super) sequence: Sequence,
    pub(super) since: Instant,
    /// It has run before, and had to make room.
    pub(super) has_begun: bool,
}

impl Waiting {
    /// Whether its reader would have it go on.
    pub(super) fn is_ready(&self) -> bool {
        !self.text.is_paused || !self.text.must_pause()
    }

    pub(super) fn stand(&self) -> Stand {
        Stand {
            arrival: self.text.arrival,
            len: self.sequence.len(),
            limit: self.text.limit,
            is_paused: self.text.is_paused,
        }
    }
}

/// One of the texts that an engine has accepted; dropping it makes room for another. Not to be dropped while the
/// state is locked.
#[derive(Debug)]
pub(in crate::generate) struct Place(Arc<Shared>);

impl Drop for Place {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.accepted = state.accepted.saturating_sub(1);
        call(state);
    }
}

/// Unlocks the state, and wakes whoever waits for a place the longest: if there is none after all, it goes on waiting.
fn call(state: MutexGuard<'_, State>) {
    let waker = state.submitters.front().map(|(_, waker)| waker.clone());
    // What a waker does is not known.
    drop(state);
    if let Some(waker) = waker {
        waker.wake();
    }
}

impl Shared {
    /// Of texts in a worker.
    pub(super) fn there(link: &Arc<Link>, queue: usize) -> Self {
        let room = Room::of(&link.model.placement().context);
        let shared = Self::new(&link.model, room, (queue, 0), Waker::noop().clone());
        Self { link: Some(Arc::clone(link)), ..shared }
    }

    pub(super) fn new(model: &Model, room: Room, (queue, ahead): (usize, usize), watcher: Waker) -> Self {
        Self {
            model: model.clone(),
            link: None,
            watcher,
            bell: Arc::default(),
            held: RwLock::default(),
            queue,
            ahead,
            state: Mutex::new(State {
                waiting: VecDeque::new(),
                accepted: 0,
                arrivals: 0,
                submitters: VecDeque::new(),
                submissions: 0,
                room,
                totals: Metrics::default(),
                closing: None,
                last_replaced: None,
            }),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn metrics(&self) -> Metrics {
        let state = self.state();
        let here = Metrics { queued: state.waiting.len(), ..state.totals };
        let all = self.link.as_ref().map_or(here, |link| link.metrics());
        // A worker may not have told yet that one has gone.
        let queued = all.queued.min(state.accepted);
        Metrics { queued, running: state.accepted - queued, ..all }
    }

    pub(super) fn count(&self, add: impl FnOnce(&mut Metrics)) {
        add(&mut self.state().totals);
        self.watcher.wake_by_ref();
    }

    pub(super) fn last_replaced(&self) -> Option<Result<Replaced, Error>> {
        self.state().last_replaced.clone()
    }

    /// What the context has room for, after the model was re-placed or the context taken again; and what became of a
    /// re-placement, if there was one.
    pub(super) fn replaced(&self, room: Option<Room>, outcome: Option<Result<Replaced, Error>>) {
        let mut state = self.state();
        state.room = room.unwrap_or(state.room);
        let before = outcome.and_then(|outcome| state.last_replaced.replace(outcome));
        drop(state);
        drop(before);
    }

    /// Takes no more requests.
    pub(super) fn close(&self, how: Shutdown) {
        let mut state = self.state();
        let how = state.closing.map_or(how, |before| before.max(how));
        state.closing = Some(how);
        let refused = match how {
            Shutdown::Finish => VecDeque::new(),
            Shutdown::FinishBegun => {
                let (begun, refused) = state.waiting.drain(..).partition(|it| it.has_begun);
                state.waiting = begun;
                refused
            }
            Shutdown::Cancel => std::mem::take(&mut state.waiting),
        };
        let submitters = std::mem::take(&mut state.submitters);
        drop(state);
        drop(refused);
        if let Some(link) = &self.link {
            link.close(how);
        }
        for (_, waker) in submitters {
            waker.wake();
        }
        self.bell.ring();
    }

    pub(super) fn closing(&self) -> Option<Shutdown> {
        self.state().closing
    }

    /// Takes a text whose reader has gone out of the queue, or has the engine's thread look for it.
    pub(super) fn forget(&self, arrival: u64) {
        let mut state = self.state();
        let at = state.waiting.iter().position(|it| it.text.arrival == arrival);
        let forgotten = at.and_then(|at| state.waiting.remove(at));
        drop(state);
        drop(forgotten);
        self.bell.ring();
    }

    pub(super) fn has_waiting(&self) -> bool {
        !self.state().waiting.is_empty()
    }

    /// Takes the first text that can go on, if it may.
    pub(super) fn take_if(&self, may: impl FnOnce(&Waiting) -> bool) -> Option<Waiting> {
        let mut state = self.state();
        let at = state.waiting.iter().position(Waiting::is_ready)?;
        if !may(&state.waiting[at]) {
            return None;
        }
        state.waiting.remove(at)
    }

    pub(super) fn put_back(&self, waiting: Waiting) {
        let mut state = self.state();
        if state.closing == Some(Shutdown::Cancel) || waiting.text.answer.is_abandoned() {
            // A reader that has gone did not find it here.
            drop(state);
            return;
        }
        let arrival = waiting.text.arrival;
        let at = state.waiting.partition_point(|it| it.text.arrival < arrival);
        state.waiting.insert(at, waiting);
    }

    fn accept(self: &Arc<Self>, mut state: MutexGuard<'_, State>, checked: Checked) -> Answer {
        state.accepted += 1;
        let place = Place(Arc::clone(self));
        match checked.text {
            CheckedText::Here(text) => self.queue(state, *text, checked.progress, place),
            CheckedText::There(asked) => {
                let (pieces, text) = asked.into_parts();
                let unused = text.begin(place);
                call(state);
                drop(unused);
                Answer::new(pieces, checked.progress, text)
            }
        }
    }

    fn queue(
        self: &Arc<Self>,
        mut state: MutexGuard<'_, State>,
        text: CheckedHere,
        progress: Progress,
        place: Place,
    ) -> Answer {
        let CheckedHere { mut sequence, limit, reuse } = text;
        let arrival = state.arrivals;
        state.arrivals += 1;
        // As `Text::id`.
        sequence.id = SequenceId(arrival);
        let writer = Waker::from(Arc::clone(&self.bell));
        let (answer, receiver) = channel(self.ahead, writer);
        state.waiting.push_back(Waiting {
            text: Text {
                arrival,
                answer,
                limit,
                reuse,
                is_paused: false,
                generated: sequence.statistics.generated_tokens,
                place,
            },
            sequence,
            since: Instant::now(),
            has_begun: false,
        });
        // There may be more than one place.
        call(state);
        self.bell.ring();
        let shared = Arc::clone(self);
        Answer::new(receiver, progress, TextOf { shared, arrival })
    }

    pub(super) fn capacity(&self) -> usize {
        self.places(&self.state())
    }

    fn places(&self, state: &State) -> usize {
        let there = self.link.as_ref().map(|link| Room::of(&link.model.placement().context));
        self.queue.saturating_add(there.unwrap_or(state.room).sequences)
    }

    /// The model underneath stays where it is as long as this lives.
    pub(super) fn hold(&self) -> RwLockReadGuard<'_, ()> {
        self.held.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Checks a request, or has the worker do so, and makes a text of it that holds nothing of the model. It goes on
    /// after the tokens that an earlier process has generated.
    pub(super) fn check(&self, generate: Generate, so_far: &[Token]) -> Result<Checked, Error> {
        let (model, spec) = generate.into_parts();
        if !model.is(&self.model) {
            return Err(Error::OtherModel);
        }
        let (full_is_error, is_constrained) = spec.ends();
        if let Some(link) = &self.link {
            let progress = Progress::new(full_is_error, is_constrained, Statistics::default());
            return Ok(Checked { text: CheckedText::There(link.submit(spec)?), progress });
        }
        let _held = self.hold();
        let vocab = model.vocab()?;
        let capacity = self.state().room.each;
        let reuse = spec.cache_prompt.unwrap_or(true) && so_far.is_empty();
        let max_tokens = spec.limits.max_tokens;
        let id = SequenceId(0);
        let sequence = Sequence::new(id, spec, so_far, &model, &vocab, capacity)?;
        let statistics = Statistics { prompt_tokens: sequence.prompt, ..sequence.statistics };
        let progress = Progress::new(full_is_error, is_constrained, statistics);
        let limit = sequence.prompt.saturating_add(max_tokens);
        let text = CheckedText::Here(Box::new(CheckedHere { sequence, limit, reuse }));
        Ok(Checked { text, progress })
    }

    /// Queues a text, however many there are.
    pub(super) fn begin(self: &Arc<Self>, checked: Checked) -> Result<Answer, Error> {
        let state = self.state();
        if state.closing.is_some() {
            return Err(Error::EngineEnded);
        }
        Ok(self.accept(state, checked))
    }
}

#[derive(Debug)]
struct TextOf {
    shared: Arc<Shared>,
    arrival: u64,
}

impl Writer for TextOf {
    fn cancel(&self, _has_begun: bool) {
        self.shared.forget(self.arrival);
    }

    fn lost(&self) -> Error {
        Error::EngineEnded
    }
}

/// A text that may be queued.
#[derive(Debug)]
pub(in crate::generate) struct Checked {
    text: CheckedText,
    progress: Progress,
}

#[derive(Debug)]
enum CheckedText {
    Here(Box<CheckedHere>),
    There(Asked),
}

#[derive(Debug)]
struct CheckedHere {
    sequence: Sequence,
    limit: usize,
    reuse: bool,
}

impl Checked {
    pub(in crate::generate) fn statistics(&self) -> Statistics {
        self.progress.statistics
    }
}

/// A request on its way into the queue of an [`Engine`](super::Engine): a future of its [`Answer`], for any runtime.
/// Dropping it takes the request back.
#[must_use = "nothing is queued unless it is awaited"]
pub struct Submission {
    shared: Arc<Shared>,
    /// `None` once it is answered.
    checked: Option<Result<Checked, Error>>,
    /// Its number among those who wait for a place.
    waits: Option<u64>,
}

impl Submission {
    pub(super) fn new(shared: &Arc<Shared>, generate: Generate) -> Self {
        let checked = Some(shared.check(generate, &[]));
        Self { checked, shared: Arc::clone(shared), waits: None }
    }

    /// For the one text of a worker.
    pub(in crate::generate) fn there(link: &Arc<Link>, generate: Generate) -> Self {
        Self::new(&Arc::new(Shared::there(link, 0)), generate)
    }

    /// Whether it is accepted, where a worker checks it.
    pub(in crate::generate) fn poll_checked(&mut self, context: &mut Context<'_>) -> Poll<Result<Statistics, Error>> {
        match &mut self.checked {
            Some(Ok(Checked { text: CheckedText::There(asked), progress })) => {
                ready!(asked.poll(context, &mut progress.statistics))?;
                Poll::Ready(Ok(progress.statistics))
            }
            Some(Err(refused)) => Poll::Ready(Err(refused.clone())),
            _ => Poll::Ready(Ok(Statistics::default())),
        }
    }

    pub(super) fn wait(mut self) -> Result<Answer, Error> {
        block_on(|context| Pin::new(&mut self).poll(context))
    }

    pub(super) fn now(mut self) -> Result<Answer, Error> {
        block_on(|context| self.poll_checked(context))?;
        let mut context = Context::from_waker(Waker::noop());
        match Pin::new(&mut self).poll(&mut context) {
            Poll::Ready(answer) => answer,
            Poll::Pending => Err(Error::QueueFull { queue: self.shared.queue }),
        }
    }

    /// Whether it may join the queue now. Otherwise it waits for its turn, and `waker` is woken then. Either way the
    /// waker before it is returned: nobody knows what it does when it is dropped.
    fn may_join(&mut self, state: &mut State, waker: &Waker) -> Result<Option<Waker>, Option<Waker>> {
        let places = self.shared.places(state);
        let first = state.submitters.front().map(|(number, _)| *number);
        // Those who have waited go first.
        if state.accepted < places && first == self.waits {
            return Ok(self.leave_line(state));
        }
        let Some(number) = self.waits else {
            state.submissions += 1;
            self.waits = Some(state.submissions);
            let last = (state.submissions, waker.clone());
            state.submitters.push_back(last);
            return Err(None);
        };
        let mut submitters = state.submitters.iter_mut();
        let found = submitters.find(|(waiting, _)| *waiting == number);
        Err(found.map(|(_, before)| std::mem::replace(before, waker.clone())))
    }

    /// Waits no longer. What woke it is returned.
    fn leave_line(&mut self, state: &mut State) -> Option<Waker> {
        let number = self.waits.take()?;
        let mut submitters = state.submitters.iter();
        let at = submitters.position(|(waiting, _)| *waiting == number)?;
        state.submitters.remove(at).map(|(_, waker)| waker)
    }
}

impl Future for Submission {
    type Output = Result<Answer, Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        ready!(this.poll_checked(context))?;
        let checked = this.checked.take().unwrap_or(Err(Error::EngineEnded))?;
        let shared = Arc::clone(&this.shared);
        let mut state = shared.state();
        if state.closing.is_some() {
            return Poll::Ready(Err(Error::EngineEnded));
        }
        match this.may_join(&mut state, context.waker()) {
            Ok(before) => {
                let answer = shared.accept(state, checked);
                drop(before);
                Poll::Ready(Ok(answer))
            }
            Err(before) => {
                drop(state);
                drop(before);
                this.checked = Some(Ok(checked));
                Poll::Pending
            }
        }
    }
}

impl Drop for Submission {
    fn drop(&mut self) {
        if self.waits.is_none() {
            return;
        }
        let shared = Arc::clone(&self.shared);
        let mut state = shared.state();
        let waker = self.leave_line(&mut state);
        call(state);
        drop(waker);
    }
}

impl fmt::Debug for Submission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Submission").finish_non_exhaustive()
    }
}
