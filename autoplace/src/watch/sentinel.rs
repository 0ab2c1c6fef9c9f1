//! The thread that watches.

use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, SyncSender, TrySendError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::event::Event;
use super::latch::Settings;
use super::rules::Rules;
use super::sample::Source;
use crate::load::{Model, WeakModel};

/// Events that wait for a reader; those that come while so many wait are not kept.
const WAITING: usize = 256;
/// The sentinel rests this many times as long as its last sample took, so that it takes at most 1 % of a core.
const REST: u32 = 99;
/// The longest rest, in intervals: a sample that took long because the machine is busy says nothing of the next.
const LONGEST_REST: u32 = 30;
const SHORTEST: Duration = Duration::from_millis(1);

/// What is called with each event, on the sentinel's thread.
type Callback = Box<dyn FnMut(&Event) + Send>;

/// Why nothing is watched.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The source has nothing to watch: the model is gone.
    #[error("there is no model to watch")]
    NothingToWatch,
    /// The system gave no thread.
    #[error("the thread that watches cannot be started: {0}")]
    Thread(#[from] std::io::Error),
}

/// Watches a model in a thread of its own, until it or the model is dropped.
///
/// Its events wait here to be [received](Self::events), go to `tracing` (what is wrong as warnings, the rest as
/// information), and are passed to a [callback](SentinelBuilder::on_event) if there is one. It keeps neither the model
/// loaded nor the process running.
#[derive(Debug)]
pub struct Sentinel {
    events: Receiver<Event>,
    /// The thread ends when this is dropped.
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Sentinel {
    /// Watches this model with the usual settings.
    ///
    /// # Errors
    ///
    /// As [`SentinelBuilder::watch_source`].
    pub fn watch(model: &Model) -> Result<Self, Error> {
        Self::builder().watch(model)
    }

    /// Describes a sentinel: how often it looks, and what it reports.
    pub fn builder() -> SentinelBuilder {
        SentinelBuilder::default()
    }

    /// The events: take those that wait with `try_iter`, or wait for the next one with `recv_timeout`. At most 256
    /// wait. Once the watching has ended and they are taken, it is disconnected.
    pub const fn events(&self) -> &Receiver<Event> {
        &self.events
    }

    /// Whether the model is still watched.
    pub fn is_watching(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }
}

impl Drop for Sentinel {
    fn drop(&mut self) {
        drop(self.stop.take());
        // A callback may drop it: a thread cannot wait for itself.
        if let Some(thread) = self.thread.take_if(|thread| thread.thread().id() != thread::current().id()) {
            // It failed only where a callback panicked, which has been printed.
            let _ = thread.join();
        }
    }
}

/// A sentinel being described: finish it with [`watch`](Self::watch).
#[derive(Default)]
#[must_use = "nothing is watched until `watch` is called"]
pub struct SentinelBuilder {
    settings: Settings,
    callback: Option<Callback>,
    min_gain: Option<f64>,
}

impl SentinelBuilder {
    setters! {
        /// From one sample to the next; at least a millisecond. Default: a second. It rests longer where samples take
        /// more than 1 % of it.
        ///
        /// What lasts two intervals is reported (memory pressure at once), and its end once it has been over for five.
        interval(interval: Duration) settings.interval = interval.max(SHORTEST);
        /// Bytes that must stay free on each GPU. Default: what the plan keeps for growth, at most half of what it left
        /// beside that ([`ModelSource`](super::ModelSource) says why).
        memory_below(bytes: u64) settings.needed = Some(bytes);
        /// Called with each event, on the sentinel's thread: while it runs nothing is watched.
        on_event(callback: impl FnMut(&Event) + Send + 'static) callback = Some(Box::new(callback));
        /// Re-places the model where an event [advises](Event::advises) to: under memory pressure by a plan for what is
        /// free then, and where room is gained by a better plan, if it is better by this
        /// [gain](crate::load::BetterPlan::gain) at least (0.1: a tenth more predicted tokens per second). While nobody
        /// generates, the sentinel's thread does it at once; otherwise the generating thread does it before the next
        /// token, and the text goes on as if nothing had happened. Only for a model that is [watched](Self::watch) as
        /// such.
        auto_replace(min_gain: f64) min_gain = Some(min_gain);
    }

    /// Watches this model.
    ///
    /// # Errors
    ///
    /// As [`watch_source`](Self::watch_source).
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

    /// Watches what a source reports.
    ///
    /// # Errors
    ///
    /// [`Error::NothingToWatch`] where the source has nothing, [`Error::Thread`] when the system gives no thread.
    pub fn watch_source(self, mut source: impl Source + 'static) -> Result<Sentinel, Error> {
        let watched = source.watched().ok_or(Error::NothingToWatch)?;
        let (sender, events) = mpsc::sync_channel(WAITING);
        let (stop, stopped) = mpsc::channel();
        let mut watch = Watch {
            placement: watched.placement,
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

/// Re-places the model if the event advises to: at once while nobody generates, before the next token otherwise.
fn follow(event: &Event, model: &WeakModel, min_gain: f64) {
    let (Some(replacement), Some(model)) = (event.advises(min_gain), model.upgrade()) else { return };
    if let Err(error) = model.replace_soon(replacement) {
        tracing::warn!("the model is not re-placed: {error}");
    }
}

debug_with!(SentinelBuilder: settings);

struct Watch<S> {
    settings: Settings,
    source: S,
    /// How often the model had been re-placed when the rules were made.
    placement: u64,
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
            let due = |asked: Duration| at.saturating_sub(asked) >= self.settings.calm();
            let processes = asked_at.is_none_or(due) || self.rules.wants_processes();
            asked_at = if processes { Some(at) } else { asked_at };
            let Some(sample) = self.source.sample(processes) else { return };
            if sample.placement == self.placement {
                self.rules.step(at, &sample, &mut events);
            } else {
                // Another placement has other GPUs and another speed: the sample is not of those that were watched.
                asked_at = None;
                let Some(watched) = self.source.watched() else { return };
                self.placement = watched.placement;
                self.rules.end(&mut events);
                self.rules = Rules::new(self.settings.clone(), watched);
            }
            let took = began.elapsed().saturating_sub(at);
            for event in events.drain(..) {
                self.report(event);
            }
            let interval = self.settings.interval;
            let rest = took.saturating_mul(REST).min(interval.saturating_mul(LONGEST_REST));
            match stopped.recv_timeout(interval.max(rest)) {
                Err(RecvTimeoutError::Timeout) => {}
                Ok(()) | Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn report(&mut self, event: Event) {
        event.trace();
        if let Some(callback) = &mut self.callback {
            callback(&event);
        }
        // Without its receiver the sentinel is being dropped.
        if let Err(TrySendError::Full(event)) = self.sender.try_send(event) {
            tracing::debug!(%event, "nobody reads the sentinel's events: not kept");
        }
    }
}
