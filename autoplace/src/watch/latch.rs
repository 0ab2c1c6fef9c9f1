//! A condition with patience. In: samples that show whether the condition is true. Out: an event when the condition
//! begins, and another when it ends.

use std::time::Duration;

use super::event::Event;

/// Settings of a sentinel: see [`SentinelBuilder`](super::SentinelBuilder).
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Settings {
    pub(super) interval: Duration,
    /// Bytes that must stay free on each GPU; `None` means the bytes that follow from the plan.
    pub(super) needed: Option<u64>,
    /// `None` means a default number of intervals: 2 for `patience`, 5 for `calm` and for `process_interval`.
    pub(super) patience: Option<Duration>,
    pub(super) calm: Option<Duration>,
    pub(super) process_interval: Option<Duration>,
    /// A model is slow if its speed is below this fraction of its own speed.
    pub(super) slow: f64,
    /// Number of tokens in a window, in which the model's speed is measured.
    pub(super) window: u64,
    /// Number of tokens before the first window. The model's own speed is learned from the first window, so these
    /// tokens do not count.
    pub(super) warm_up: u64,
}

impl Settings {
    /// How long a condition must be true before its beginning is reported, unless the beginning is reported at once.
    pub(super) fn patience(&self) -> Duration {
        self.patience.unwrap_or(self.interval.saturating_mul(2))
    }

    /// How long a condition must be false before its end is reported.
    pub(super) fn calm(&self) -> Duration {
        self.calm.unwrap_or(self.interval.saturating_mul(5))
    }

    /// Interval between two checks of the programs on the GPUs.
    pub(super) fn process_interval(&self) -> Duration {
        self.process_interval.unwrap_or(self.interval.saturating_mul(5))
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            interval: Duration::from_secs(1),
            needed: None,
            patience: None,
            calm: None,
            process_interval: None,
            slow: 0.7,
            window: 32,
            warm_up: 16,
        }
    }
}

/// The moment of a sample, the settings, and the list to which events are added.
pub(super) struct Now<'a> {
    /// The moment of the sample, never earlier than the moment of the last sample.
    pub(super) at: Duration,
    pub(super) settings: &'a Settings,
    pub(super) events: &'a mut Vec<Event>,
}

/// Reports one event when a condition begins and one when it ends, even if the condition flickers in between.
///
/// A condition begins after it was true for `patience`, and ends after it was known to be false for the duration of
/// `calm`. A condition therefore cannot begin twice within the time of calm.
#[derive(Debug, Default)]
pub(super) struct Condition {
    state: State,
    /// The event for the end of the condition, with the values of the last sample.
    end: Option<Event>,
}

#[derive(Debug, Clone, Copy, Default)]
enum State {
    #[default]
    Off,
    /// True, but not yet for long enough.
    Pending(Duration),
    On,
    /// False, but not yet for long enough.
    Calming(Duration),
}

impl Condition {
    /// Whether the condition has begun and not ended.
    pub(super) const fn is_on(&self) -> bool {
        matches!(self.state, State::On | State::Calming(_))
    }

    /// Whether the condition is true, but not yet for long enough to begin.
    pub(super) const fn is_pending(&self) -> bool {
        matches!(self.state, State::Pending(_))
    }

    /// Takes a sample of the condition; `None` means unknown. The condition must be true for `patience` before it
    /// begins. `begins` creates the event for the beginning; `end` is the event for the end.
    pub(super) fn step(
        &mut self,
        holds: Option<bool>,
        patience: Duration,
        begins: impl FnOnce() -> Event,
        end: Event,
        now: &mut Now<'_>,
    ) {
        let (since, was_on) = match self.state {
            State::Off | State::On => (now.at, self.is_on()),
            State::Pending(since) | State::Calming(since) => (since, self.is_on()),
        };
        let (lasts, calm) = (now.at.saturating_sub(since), now.settings.calm());
        self.end = Some(end);
        self.state = match (was_on, holds) {
            (false, Some(true)) if lasts >= patience => State::On,
            (false, Some(true)) => State::Pending(since),
            (false, _) => State::Off,
            // The condition must be known to be false throughout the time of calm.
            (true, Some(false)) if matches!(self.state, State::Calming(_)) && lasts >= calm => State::Off,
            (true, Some(false)) => State::Calming(since),
            (true, _) => State::On,
        };
        now.events.extend(match (was_on, self.is_on()) {
            (false, true) => Some(begins()),
            (true, false) => self.end.take(),
            _ => None,
        });
    }

    /// Ends the condition at once. Returns the event for its end if the condition had begun.
    pub(super) fn end(&mut self) -> Option<Event> {
        let was_on = self.is_on();
        self.state = State::Off;
        self.end.take().filter(|_| was_on)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_values_neither_begin_nor_end_a_condition() {
        let (mut condition, settings, mut events) = (Condition::default(), Settings::default(), Vec::new());
        let event = |free| Event::RoomLost { device: String::new(), free };
        let answers = [None, Some(true)].into_iter().chain([Some(false), Some(false), None].repeat(20));
        for (second, holds) in (0..).zip(answers) {
            let mut now = Now { at: Duration::from_secs(second), settings: &settings, events: &mut events };
            condition.step(holds, Duration::ZERO, || event(second), event(99), &mut now);
        }
        assert_eq!(events, [event(1)]);
    }
}
