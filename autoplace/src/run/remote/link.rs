//! The application's side of a run: sends texts to the worker, receives their pieces, and replaces a worker that dies.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::{Arc, Mutex};
use std::task::Waker;

use llama_sys::Token;

use super::{Reply, Request, Start, TextCall};
use crate::chat::Media;
use crate::decode::error::Error;
use crate::decode::piece::{Piece, SequenceId};
use crate::decode::request::Spec;
use crate::decode::stats::Statistics;
use crate::decode::step::PromptChunk;
use crate::load::remote::Loading;
use crate::load::{AbortHandle, LentWorker, Model};
use crate::run::channel::{Receiver, Sender, channel};
use crate::run::metrics::Metrics;
use crate::run::places::{Place, Shutdown};
use crate::run::progress::Message;
use crate::run::thread::Notify;
use crate::sync::lock;
use crate::worker;

const DOING: &str = "generating";

/// A worker's run, shared by the readers of its texts.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) model: Model,
    start: Start,
    abort: AbortHandle,
    /// Notified when a text arrives, or when no further text will arrive.
    notify: Notify,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// `None` between two workers and after the end.
    sender: Option<worker::Sender>,
    /// The texts, by their number.
    texts: BTreeMap<u64, Text>,
    submitted: u64,
    /// The pictures and sounds that the worker keeps, each with its number there.
    kept: Vec<(u64, Media)>,
    /// The number for the next picture or sound.
    next_kept: u64,
    is_aborted: bool,
    closing: Option<Shutdown>,
    is_over: bool,
    totals: Metrics,
}

#[derive(Debug)]
struct Text {
    spec: Spec,
    /// The channel to the reader. Its first message is an empty piece, which reports that the text was accepted.
    answer: Sender<Message>,
    is_accepted: bool,
    /// Whether the worker holds back the pieces of this text.
    is_held: bool,
    place: Place,
    tokens: Vec<Token>,
    /// Totals over all workers.
    statistics: Statistics,
    /// The statistics when the last worker died, if it had computed the prompt.
    earlier: Option<Statistics>,
    /// Number of further workers that the text may use.
    attempts: u32,
    /// Number of workers that died during this text.
    deaths: u32,
}

impl Text {
    /// Adds the statistics of earlier workers to a piece. A later worker computes the prompt again, which is not
    /// counted twice. The numbers of draft tokens come from the last worker alone.
    fn add(&mut self, mut piece: Piece, mut statistics: Statistics) -> Message {
        if let Some(earlier) = &self.earlier {
            statistics.prompt_tokens = earlier.prompt_tokens;
            statistics.cached_tokens = earlier.cached_tokens;
            statistics.prompt_time = earlier.prompt_time;
            statistics.first_token_latency = earlier.first_token_latency;
            statistics.generation_time += earlier.generation_time;
            statistics.queue_time += earlier.queue_time;
        }
        statistics.worker_deaths = self.deaths;
        if let Some(end) = &mut piece.end {
            end.statistics = statistics;
        }
        if statistics.generated_tokens > self.tokens.len() {
            self.tokens.extend(piece.token);
        }
        self.statistics = statistics;
        Ok((piece, statistics))
    }

    /// Handles the death of the text's worker. Returns the error that ends the text, or `None` if another worker may
    /// continue it.
    fn retry_or_fail(&mut self, death: &worker::Error, closing: Option<Shutdown>) -> Option<Error> {
        match closing {
            Some(Shutdown::Cancel) => return Some(Error::EngineEnded),
            Some(Shutdown::FinishBegun) if !self.has_begun() => return Some(Error::EngineEnded),
            _ if !death.is_death() || self.attempts == 0 => return Some(death.clone().into()),
            _ => self.attempts -= 1,
        }
        self.deaths += 1;
        self.earlier = self.has_begun().then_some(self.statistics);
        // A new worker sends pieces until it is told to hold them back.
        self.is_held = false;
        None
    }

    fn has_begun(&self) -> bool {
        self.statistics.first_token_latency.is_some()
    }

    /// Sends the last piece. Frees the place in the engine first, so that the place is free when the reader sees the
    /// end.
    fn end(self, last: Message) {
        drop(self.place);
        self.answer.send(last);
    }
}

impl State {
    /// Sends a call to the worker. If the worker is dead, the call is not needed, and the thread that reads from the
    /// worker detects the death.
    fn send(&self, call: TextCall) {
        if let Some(sender) = &self.sender {
            let _ = sender.send(&Request::Text(call));
        }
    }

    /// Submits a text to a worker, with the tokens that have arrived. Pictures that the worker does not have yet are
    /// sent before the text.
    fn put(&mut self, id: u64, spec: &Spec, so_far: &[Token], sender: &worker::Sender) -> Result<(), worker::Error> {
        for media in spec.prompt.media() {
            if number_of(&self.kept, media).is_none() {
                let number = self.next_kept;
                sender.put(&Request::Text(TextCall::Keep { number, media: media.clone() }))?;
                self.kept.push((number, media.clone()));
                self.next_kept += 1;
            }
        }
        let prompt = spec.prompt.by_number(|media| number_of(&self.kept, media));
        let (spec, so_far) = (Box::new(Spec { prompt, ..spec.clone() }), so_far.to_vec());
        sender.put(&Request::Text(TextCall::Submit { id, spec, so_far }))
    }

    /// Tells the worker to drop the pictures that no text refers to any more.
    fn forget(&mut self) {
        if self.kept.is_empty() {
            return;
        }
        let texts = &self.texts;
        let is_used = |media: &Media| {
            texts.values().any(|text| text.spec.prompt.media().any(|of_text| of_text.is_clone_of(media)))
        };
        let (kept, gone): (Vec<_>, Vec<_>) = self.kept.drain(..).partition(|(_, media)| is_used(media));
        self.kept = kept;
        if !gone.is_empty() {
            self.send(TextCall::Forget { numbers: gone.into_iter().map(|(number, _)| number).collect() });
        }
    }
}

/// The number of a picture or a sound that the worker keeps.
fn number_of(kept: &[(u64, Media)], media: &Media) -> Option<u64> {
    kept.iter().find(|(_, known)| known.is_clone_of(media)).map(|(number, _)| *number)
}

/// A text is removed from the state before it ends, because waking its reader runs foreign code.
impl Link {
    fn new(worker: &LentWorker, start: Start) -> Self {
        let (model, abort) = (worker.model().clone(), worker.abort_handle());
        let state = State { sender: worker.sender(), ..State::default() };
        Self { model, start, abort, notify: Notify::default(), state: Mutex::new(state) }
    }

    /// Submits a text to the worker, which checks and generates it. An empty first piece reports that the text was
    /// accepted.
    pub(crate) fn submit(self: &Arc<Self>, spec: Spec, place: Place) -> Result<Receiver<Message>, Error> {
        let mut state = lock(&self.state);
        if state.is_over || state.closing.is_some() {
            drop(state);
            return Err(Error::EngineEnded);
        }
        let id = state.submitted;
        state.submitted += 1;
        let link = Arc::clone(self);
        let (answer, pieces) = channel(self.start.ahead, AbortHandle::new(move || link.look(id)));
        let text = Text {
            spec,
            answer,
            is_accepted: false,
            is_held: false,
            place,
            tokens: Vec::new(),
            statistics: Statistics::default(),
            earlier: None,
            attempts: self.model.worker_attempts(),
            deaths: 0,
        };
        let sent = state.sender.clone().map_or(Ok(()), |sender| {
            state.put(id, &text.spec, &text.tokens, &sender)?;
            sender.flush();
            Ok(())
        });
        if let Err(error) = sent {
            // Some pictures of the text may have been sent.
            state.forget();
            drop(state);
            return Err(worker::Error::into(error));
        }
        state.texts.insert(id, text);
        drop(state);
        self.notify.notify();
        Ok(pieces)
    }

    /// This is called when the reader of a text has gone or has caught up.
    fn look(&self, id: u64) {
        let mut state = lock(&self.state);
        let cancelled = match state.texts.get_mut(&id) {
            Some(text) if text.answer.is_abandoned() => {
                state.send(TextCall::Cancel { id });
                let cancelled = state.texts.remove(&id);
                state.forget();
                cancelled
            }
            Some(text) if text.is_held && text.answer.is_drained() => {
                text.is_held = false;
                state.send(TextCall::Hold { id, is_held: false });
                None
            }
            _ => None,
        };
        drop(state);
        drop(cancelled);
    }

    /// A text counts as running from its first token.
    pub(crate) fn metrics(&self) -> Metrics {
        let state = lock(&self.state);
        Metrics { queued: state.texts.values().filter(|text| !text.has_begun()).count(), ..state.totals }
    }

    /// Aborts the present computation, or the next one.
    pub(crate) fn abort(&self) {
        lock(&self.state).is_aborted = true;
        self.abort.abort();
    }

    /// Refuses further texts.
    pub(crate) fn close(&self, how: Shutdown) {
        let mut state = lock(&self.state);
        state.closing = state.closing.max(Some(how));
        state.send(TextCall::Close { how });
        drop(state);
        if how == Shutdown::Cancel {
            self.model.hurry_worker(self.start.run);
        }
        self.notify.notify();
    }

    /// Records that the worker has accepted a text.
    fn accepted(&self, id: u64, statistics: Statistics) {
        let mut state = lock(&self.state);
        let Some(text) = state.texts.get_mut(&id) else {
            return;
        };
        // A replacement worker must draw the same random numbers.
        text.spec.sampling.seed = statistics.seed.or(text.spec.sampling.seed);
        let is_first = !std::mem::replace(&mut text.is_accepted, true);
        let begun = is_first.then(|| text.answer.put(Ok((Piece::new(SequenceId(id), None), statistics))));
        drop(state);
        begun.flatten().into_iter().for_each(Waker::wake);
    }

    fn piece(&self, piece: Piece, statistics: Statistics) {
        let is_last = piece.end.is_some();
        let mut state = lock(&self.state);
        // The text may have been cancelled meanwhile.
        let id = piece.sequence.0;
        let State { texts, totals, .. } = &mut *state;
        let Entry::Occupied(mut entry) = texts.entry(id) else {
            return;
        };
        let text = entry.get_mut();
        let (had_begun, before) = (text.has_begun(), text.statistics.generated_tokens);
        let message = text.add(piece, statistics);
        totals.generated_tokens += statistics.generated_tokens.saturating_sub(before) as u64;
        if !had_begun {
            totals.prompt_tokens += statistics.prompt_tokens as u64;
            totals.cached_tokens += statistics.cached_tokens as u64;
        }
        if is_last {
            let text = entry.remove();
            state.forget();
            drop(state);
            text.end(message);
        } else {
            let reader = text.answer.put(message);
            if text.answer.is_full() && !text.is_held {
                text.is_held = true;
                state.send(TextCall::Hold { id, is_held: true });
            }
            drop(state);
            reader.into_iter().for_each(Waker::wake);
        }
    }

    fn failed(&self, id: u64, error: Error) {
        let mut state = lock(&self.state);
        let failed = state.texts.remove(&id);
        state.forget();
        drop(state);
        if let Some(text) = failed {
            text.end(Err(error));
        }
    }

    /// Handles the death of the worker. Returns false if no text needs another worker.
    fn retry_or_fail(&self, death: &worker::Error) -> bool {
        // A move that was under way has ended with the worker.
        self.model.counters().set_moving(None);
        let mut state = lock(&self.state);
        state.sender = None;
        let closing = state.closing;
        let mut ended = Vec::new();
        for (id, mut text) in std::mem::take(&mut state.texts) {
            match text.retry_or_fail(death, closing) {
                None => drop(state.texts.insert(id, text)),
                Some(why) => ended.push((text, why)),
            }
        }
        let goes_on = !state.texts.is_empty();
        drop(state);
        for (text, why) in ended {
            text.end(Err(why));
        }
        goes_on
    }

    /// Ends all texts with an error.
    fn fail(&self, error: &Error) {
        let texts = std::mem::take(&mut lock(&self.state).texts);
        for text in texts.into_values() {
            text.end(Err(error.clone()));
        }
    }

    /// Submits all texts to a new worker. Later calls wait for the lock, so that the start comes first.
    fn start_over(&self, sender: worker::Sender) -> Result<(), worker::Error> {
        let mut state = lock(&self.state);
        sender.put(&Request::Text(TextCall::Start(self.start)))?;
        // The new worker has no picture yet.
        state.kept.clear();
        let texts = std::mem::take(&mut state.texts);
        let put = texts.iter().try_for_each(|(id, text)| state.put(*id, &text.spec, &text.tokens, &sender));
        state.texts = texts;
        put?;
        if state.is_aborted {
            sender.put(&Request::Loading(Loading::Abort { run: self.start.run }))?;
        }
        if let Some(how) = state.closing {
            sender.put(&Request::Text(TextCall::Close { how }))?;
        }
        sender.flush();
        state.sender = Some(sender);
        Ok(())
    }

    /// Closes the run. The remaining texts get no last piece.
    fn end(&self) {
        let mut state = lock(&self.state);
        state.is_over = true;
        state.sender = None;
        state.kept.clear();
        let texts = std::mem::take(&mut state.texts);
        drop(state);
        drop(texts);
    }
}

/// Reads the messages of the worker. When this is dropped, it cancels all texts, waits until the context is free, and
/// returns the worker.
#[derive(Debug)]
pub(crate) struct Reader {
    link: Arc<Link>,
    worker: LentWorker,
    is_over: bool,
}

impl Reader {
    /// Takes the worker and starts a run.
    pub(crate) fn open(model: &Model, ahead: usize, prompt_chunk: PromptChunk) -> Result<Self, Error> {
        let mut worker = LentWorker::take(model)?;
        let start = Start { run: worker.run(), ahead, prompt_chunk };
        match worker.survive(|worker| worker.ask(&Request::Text(TextCall::Start(start)), DOING))? {
            Reply::Started => {}
            Reply::Refused(error) => return Err(error),
            _ => {
                let reason = "it reported texts before any was requested".into();
                return Err(worker::Error::Protocol { doing: DOING, reason }.into());
            }
        }
        let link = Arc::new(Link::new(&worker, start));
        Ok(Self { link, worker, is_over: false })
    }

    pub(crate) fn link(&self) -> &Arc<Link> {
        &self.link
    }

    /// Runs until the run is closed and all texts have ended.
    pub(crate) fn run(mut self) {
        while self.turn() {}
    }

    /// Receives the worker's next message, or starts another worker. Returns false at the end.
    fn turn(&mut self) -> bool {
        if self.is_over {
            return false;
        }
        if let Some(death) = self.worker.death().cloned() {
            self.go_on_after(&death);
        } else if let Ok(reply) = self.worker.receive(DOING) {
            self.is_over = !self.hear(reply);
        }
        if self.is_over {
            self.link.end();
        }
        !self.is_over
    }

    /// Handles a message. Returns false after the last message.
    fn hear(&self, reply: Reply) -> bool {
        match reply {
            Reply::Started => {}
            Reply::Accepted { id, statistics } => self.link.accepted(id, statistics),
            Reply::Piece(piece) => self.link.piece(piece.0, piece.1),
            Reply::Failed { id, error } => self.link.failed(id, error),
            Reply::Placed(placed) => self.link.model.set_placed(placed),
            Reply::Moving(moving) => self.link.model.counters().set_moving(moving),
            Reply::Refused(error) => {
                self.link.fail(&error);
                return false;
            }
            Reply::Closed => return false,
        }
        true
    }

    fn go_on_after(&mut self, death: &worker::Error) {
        if !self.link.retry_or_fail(death) {
            // No text is left, so another worker is needed only when the next text comes.
            self.is_over = lock(&self.link.state).closing.is_some();
            if !self.is_over {
                self.link.notify.wait();
            }
            return;
        }
        if let Err(refused) = self.worker.restart() {
            self.link.fail(&refused.into());
        } else if let Some(sender) = self.worker.sender() {
            // The next turn detects a failure.
            let _ = self.worker.heard(self.link.start_over(sender));
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.link.close(Shutdown::Cancel);
        while self.turn() {}
    }
}

#[cfg(all(test, feature = "media"))]
mod tests {
    use std::io::{self, Write};

    use super::*;
    use crate::decode::prompt::Prompt;
    use crate::decode::sampling::Sampling;

    /// Counts the bytes that are written.
    #[derive(Clone, Default)]
    struct Count(Arc<Mutex<usize>>);

    impl Write for Count {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            *lock(&self.0) += bytes.len();
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn texts_about_one_picture_send_it_once_until_none_of_them_is_left() {
        const PIXELS: usize = 200 * 100 * 3;
        let image = crate::Image::from_rgb(200, 100, vec![7; PIXELS]).unwrap();
        let about = |image: &crate::Image| {
            Spec::new(Prompt::text("Look:").then_media(image.clone()).then_text("?"), Sampling::default())
        };
        let (count, mut state) = (Count::default(), State::default());
        let sender = worker::Sender::new(count.clone());
        let sent = |state: &mut State, spec: &Spec| {
            let before = *lock(&count.0);
            state.put(state.submitted, spec, &[], &sender).unwrap();
            sender.flush();
            *lock(&count.0) - before
        };
        assert!(sent(&mut state, &about(&image)) > PIXELS);
        for _ in 0..3 {
            assert!(sent(&mut state, &about(&image)) < 4096);
        }
        // If an equal picture was decoded separately, it counts as another picture.
        let equal = crate::Image::from_rgb(200, 100, vec![7; PIXELS]).unwrap();
        assert!(sent(&mut state, &about(&equal)) > PIXELS);
        assert_eq!(state.kept.len(), 2);
        state.forget();
        assert!(state.kept.is_empty());
        assert!(sent(&mut state, &about(&image)) > PIXELS);
    }
}
