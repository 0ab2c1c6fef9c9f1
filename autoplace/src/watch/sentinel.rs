//! The sentinel: a thread that takes samples and reports events.

use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, SyncSender, TrySendError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::event::Event;
use super::rules::Rules;
use super::sample::{Source, Watched};
use super::settings::Settings;
use crate::load::{DepthMove, Model, WeakModel};

/// Maximum number of events that wait for a reader. Further events are dropped.
const WAITING: usize = 256;
/// The pause lasts at least this many times as long as the last sample took, so that the sentinel takes at most 1 % of
/// a core.
const REST: u32 = 99;
/// Maximum pause, in intervals. If a sample was slow because the machine is busy, it should not delay the next sample
/// much.
const MAX_REST: u32 = 30;
const MIN_INTERVAL: Duration = Duration::from_millis(1);

/// A callback for each event, on the sentinel's thread.
type Callback = Box<dyn FnMut(&Event) + Send>;

/// The reason why watching could not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The source has nothing to watch: the model is gone.
    #[error("there is no model to watch")]
    NothingToWatch,
    /// The thread could not start.
    #[error("the watching thread cannot start: {0}")]
    Thread(#[from] std::io::Error),
}

/// Watches a model on a separate thread, until the sentinel or the model is dropped.
///
/// The events wait to be [received](Self::events). They also go to `tracing` (problems as warnings, everything else as
/// information), and to a [callback](SentinelBuilder::on_event) if one is set. A sentinel keeps neither the model
/// loaded nor the process running.
#[derive(Debug)]
pub struct Sentinel {
    events: Receiver<Event>,
    /// Dropping this sender ends the thread.
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Sentinel {
    /// Watches this model with the default settings.
    ///
    /// # Errors
    ///
    /// The errors of [`SentinelBuilder::watch_source`].
    pub fn watch(model: &Model) -> Result<Self, Error> {
        Self::builder().watch(model)
    }

    /// Configures a sentinel: how often it takes samples, and what it reports.
    pub fn builder() -> SentinelBuilder {
        SentinelBuilder::default()
    }

    /// The receiver of the events. `try_iter` takes the events that wait; `recv_timeout` waits for the next event. At
    /// most 256 events wait. The receiver disconnects after the watching has ended and all events were taken.
    pub const fn events(&self) -> &Receiver<Event> {
        &self.events
    }

    /// Whether the model is still being watched.
    pub fn is_watching(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }
}

impl Drop for Sentinel {
    fn drop(&mut self) {
        drop(self.stop.take());
        // A callback may drop the sentinel on the sentinel's own thread, which cannot wait for itself.
        if let Some(thread) = self.thread.take_if(|thread| thread.thread().id() != thread::current().id()) {
            // The thread panics only if a callback panics, and that panic was already printed.
            let _ = thread.join();
        }
    }
}

/// Settings of a sentinel. [`watch`](Self::watch) starts it.
#[derive(Default)]
#[must_use = "nothing is watched until `watch` is called"]
pub struct SentinelBuilder {
    settings: Settings,
    callback: Option<Callback>,
    min_gain: Option<f64>,
}

impl SentinelBuilder {
    /// Sets the interval between samples, at least a millisecond. Default: a second. The pause between samples is
    /// longer if a sample takes more than 1 % of the interval.
    ///
    /// [`patience`](Self::patience) and [`calm`](Self::calm) set how long a condition must be true before its beginning
    /// is reported, and false before its end is reported.
    pub fn interval(mut self, interval: Duration) -> Self {
        self.settings.interval = interval.max(MIN_INTERVAL);
        self
    }

    /// Sets how long lowered clocks, a gain of room or a slowdown must last before it is reported. Default: two
    /// intervals. Memory pressure, other programs and fewer threads are reported at once.
    pub fn patience(mut self, patience: Duration) -> Self {
        self.settings.patience = Some(patience);
        self
    }

    /// Sets how long a condition must be false before its end is reported. This is also the shortest time between
    /// two reports of its beginning. Default: five intervals.
    pub fn calm(mut self, calm: Duration) -> Self {
        self.settings.calm = Some(calm);
        self
    }

    /// Sets the interval between two checks of the programs on the GPUs. Such a check takes longer than the rest of a
    /// sample. Default: five intervals. If a program may be the cause of an event that is about to be reported, the
    /// check comes at once.
    pub fn process_interval(mut self, interval: Duration) -> Self {
        self.settings.process_interval = Some(interval);
        self
    }

    /// Sets how slow a model must be to be reported: below this fraction of its own speed, which is its speed after the
    /// warm-up. The fraction is clamped to the range from 0 to 1. Default: 0.7. With 0 or NaN no slowdown is reported.
    pub fn slower_than(mut self, part: f64) -> Self {
        self.settings.slow = if part.is_nan() { 0.0 } else { part.clamp(0.0, 1.0) };
        self
    }

    /// Sets the number of tokens per measurement of speed; at least 1. Default: 32.
    pub fn window(mut self, tokens: u64) -> Self {
        self.settings.window = tokens.max(1);
        self
    }

    /// Sets the number of tokens before the first window, from which the model's own speed is learned. Default: 16.
    pub fn warm_up(mut self, tokens: u64) -> Self {
        self.settings.warm_up = tokens;
        self
    }

    /// Sets the bytes that must stay free on each GPU. Default: the plan's growth, but no more than half of the memory
    /// that the plan left free; [`ModelSource`](super::ModelSource) gives the reasons.
    pub fn memory_below(mut self, bytes: u64) -> Self {
        self.settings.needed = Some(bytes);
        self
    }

    /// Sets a callback for each event. The callback runs on the sentinel's thread, which does not watch meanwhile.
    pub fn on_event(mut self, callback: impl FnMut(&Event) + Send + 'static) -> Self {
        self.callback = Some(Box::new(callback));
        self
    }

    /// Re-places the model when an event [advises](Event::advises) a re-placement. Under memory pressure, the model
    /// gets a plan for the memory that is free once the model is released. After a gain of room, it gets a better plan
    /// with at least this [gain](crate::load::BetterPlan::gain) (0.1 means 10 % more predicted tokens per second). If
    /// nothing is being generated, the sentinel's thread re-places the model at once. Otherwise the generating thread
    /// does so before its next token, and the text continues unchanged. This has an effect only with
    /// [`watch`](Self::watch).
    pub fn auto_replace(mut self, min_gain: f64) -> Self {
        self.min_gain = Some(min_gain);
        self
    }

    /// Watches this model.
    ///
    /// # Errors
    ///
    /// The errors of [`watch_source`](Self::watch_source).
    pub fn watch(mut self, model: &Model) -> Result<Sentinel, Error> {
        if let Some(min_gain) = self.min_gain {
            let model = model.downgrade();
            let mut callback = self.callback.take();
            self.callback = Some(Box::new(move |event| {
                if let Some(callback) = &mut callback {
                    callback(event);
                }
                follow(event, &model, min_gain);
            }));
        }
        self.watch_source(super::ModelSource::new(model))
    }

    /// Watches a source of samples.
    ///
    /// # Errors
    ///
    /// [`Error::NothingToWatch`] if the source is empty; [`Error::Thread`] if the thread cannot start.
    pub fn watch_source(self, mut source: impl Source + 'static) -> Result<Sentinel, Error> {
        let watched = source.watched().ok_or(Error::NothingToWatch)?;
        let (sender, events) = mpsc::sync_channel(WAITING);
        let (stop, stopped) = mpsc::channel();
        let mut watch = Watch {
            placement: watched.placement,
            moved: watched.moved.clone(),
            moving: None,
            rules: Rules::new(self.settings.clone(), watched),
            settings: self.settings,
            source,
            sender,
            callback: self.callback,
        };
        let thread = thread::Builder::new().name("autoplace-watch".to_owned()).spawn(move || watch.run(&stopped))?;
        Ok(Sentinel { events, stop: Some(stop), thread: Some(thread) })
    }
}

/// Re-places the model if the event advises this: at once if nothing is being generated, otherwise before the next
/// token.
fn follow(event: &Event, model: &WeakModel, min_gain: f64) {
    let (Some(replacement), Some(model)) = (event.advises(min_gain), model.upgrade()) else { return };
    if let Err(error) = model.replace_soon(replacement) {
        tracing::warn!("the model could not be re-placed: {error}");
    }
}

debug_with!(SentinelBuilder: settings);

struct Watch<S> {
    settings: Settings,
    source: S,
    /// Number of re-placements before the rules were created.
    placement: u64,
    /// The last move by depth. The next field is the move that is under way, with the share of the weights that is
    /// loaded.
    moved: Option<DepthMove>,
    moving: Option<(DepthMove, f32)>,
    rules: Rules,
    sender: SyncSender<Event>,
    callback: Option<Callback>,
}

impl<S: Source> Watch<S> {
    fn run(&mut self, stopped: &Receiver<()>) {
        let began = Instant::now();
        let mut asked_at: Option<Duration> = None;
        let mut events = Vec::new();
        loop {
            let at = began.elapsed();
            let due = |asked: Duration| at.saturating_sub(asked) >= self.settings.process_interval();
            let processes = asked_at.is_none_or(due) || self.rules.wants_processes();
            asked_at = if processes { Some(at) } else { asked_at };
            let Some(sample) = self.source.sample(processes) else { return };
            if sample.moving.is_some() {
                // During a move, the model's memory is free for a moment, which must not be reported as a gain of room.
                if self.moving != sample.moving {
                    events.extend(sample.moving.clone().map(|(moving, done)| Event::Moving { moving, done }));
                }
                self.moving = sample.moving;
            } else if sample.placement == self.placement {
                self.moving = None;
                self.rules.step(at, &sample, &mut events);
            } else {
                // After a re-placement, the GPUs and the speed differ, so the old rules cannot judge the sample.
                asked_at = None;
                let Some(watched) = self.source.watched() else { return };
                self.placement = watched.placement;
                (self.moving, self.moved) = (None, self.has_moved(&watched, &mut events));
                self.rules.end(&mut events);
                self.rules = Rules::new(self.settings.clone(), watched);
            }
            let took = began.elapsed().saturating_sub(at);
            for event in events.drain(..) {
                self.report(event);
            }
            let interval = self.settings.interval;
            let rest = took.saturating_mul(REST).min(interval.saturating_mul(MAX_REST));
            match stopped.recv_timeout(interval.max(rest)) {
                Err(RecvTimeoutError::Timeout) => {}
                Ok(()) | Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    /// Reports a move by depth that has ended. Returns the last move.
    fn has_moved(&self, watched: &Watched, events: &mut Vec<Event>) -> Option<DepthMove> {
        let moved = watched.moved.clone().filter(|moved| Some(moved) != self.moved.as_ref());
        events.extend(moved.map(|moved| Event::Moved { moved }));
        watched.moved.clone().or_else(|| self.moved.clone())
    }

    fn report(&mut self, event: Event) {
        event.trace();
        if let Some(callback) = &mut self.callback {
            callback(&event);
        }
        // The receiver is gone only while the sentinel is being dropped.
        if let Err(TrySendError::Full(event)) = self.sender.try_send(event) {
            tracing::debug!(%event, "nobody reads the sentinel's events: event dropped");
        }
    }
}
