//! A condition with patience. In: samples that show whether the condition is true. Out: an event when the condition
//! begins, and another when it ends.

use std::time::Duration;

use super::event::Event;
use super::settings::Settings;

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
