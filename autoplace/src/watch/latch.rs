//! A condition, from "it is so now" to when it began and when it ended.

use std::time::Duration;

use super::event::Event;

/// When a sentinel reports: as [`SentinelBuilder`](super::SentinelBuilder) says.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Settings {
    pub(super) interval: Duration,
    /// What must stay free on each GPU, instead of what follows from the plan.
    pub(super) needed: Option<u64>,
}

impl Settings {
    /// How long a condition must hold before its beginning is reported, unless that is at once.
    pub(super) fn patience(&self) -> Duration {
        self.interval.saturating_mul(2)
    }

    /// How long a condition must not hold before its end is reported; from one look at the programs on the GPUs to the
    /// next.
    pub(super) fn calm(&self) -> Duration {
        self.interval.saturating_mul(5)
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self { interval: Duration::from_secs(1), needed: None }
    }
}

/// The moment of a sample, by which settings it is judged, and where events go.
pub(super) struct Now<'a> {
    /// Never before that of the last one.
    pub(super) at: Duration,
    pub(super) settings: &'a Settings,
    pub(super) events: &'a mut Vec<Event>,
}

/// Gives an event when a condition begins and when it ends, each once, however it flickers in between.
///
/// It begins when it has held for as long as patience lasts, and ends when for as long as calm lasts it is known not to
/// hold. So it cannot begin twice within the time of calm.
#[derive(Debug, Default)]
pub(super) struct Condition {
    state: State,
    /// The event of its end, if it ended now.
    end: Option<Event>,
}

#[derive(Debug, Clone, Copy, Default)]
enum State {
    #[default]
    Off,
    /// Holds, and has not for long enough.
    Pending(Duration),
    On,
    /// Does not hold any more, and has not for long enough.
    Calming(Duration),
}

impl Condition {
    /// Whether it has begun and not ended.
    pub(super) const fn is_on(&self) -> bool {
        matches!(self.state, State::On | State::Calming(_))
    }

    /// Whether it holds, and has not for long enough to have begun.
    pub(super) const fn is_pending(&self) -> bool {
        matches!(self.state, State::Pending(_))
    }

    /// Takes what a sample says of the condition, which must hold for as long as `patience`: `None` where it says
    /// nothing. `begins` makes the event of its beginning; `end` is the event of its end.
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
            // The time of calm is one in which it is known not to hold.
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

    /// Ends it at once: with its event, if it has begun.
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
    fn what_is_not_known_neither_begins_nor_ends_it() {
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
