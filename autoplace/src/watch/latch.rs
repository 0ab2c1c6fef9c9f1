//! A condition, from "it is so now" to when it began and when it ended.

use std::time::Duration;

/// Gives an event when a condition begins and when it ends, each once, however it flickers in between.
///
/// It begins when it has held for as long as patience lasts, and ends when for as long as calm lasts it is known not to
/// hold. So it cannot begin twice within the time of calm.
#[derive(Debug)]
pub(super) struct Condition<E> {
    state: State,
    /// The event of its end, if it ended now.
    end: Option<E>,
}

#[derive(Debug, Clone, Copy)]
enum State {
    Off,
    /// Holds, and has not for long enough.
    Pending(Duration),
    On,
    /// Does not hold any more, and has not for long enough.
    Calming(Duration),
}

impl<E> Default for Condition<E> {
    fn default() -> Self {
        Self { state: State::Off, end: None }
    }
}

impl<E> Condition<E> {
    /// Whether it has begun and not ended.
    pub(super) const fn is_on(&self) -> bool {
        matches!(self.state, State::On | State::Calming(_))
    }

    /// Whether it holds, and has not for long enough to have begun.
    pub(super) const fn is_pending(&self) -> bool {
        matches!(self.state, State::Pending(_))
    }

    /// Takes what a sample says of the condition at a moment: `None` where it says nothing. `at` never goes back.
    /// Returns the event of its beginning or its end.
    pub(super) fn update(
        &mut self,
        at: Duration,
        holds: Option<bool>,
        patience: Duration,
        calm: Duration,
        begins: impl FnOnce() -> Option<E>,
        end: E,
    ) -> Option<E> {
        let (since, was_on) = match self.state {
            State::Off | State::On => (at, self.is_on()),
            State::Pending(since) | State::Calming(since) => (since, self.is_on()),
        };
        let lasts = at.saturating_sub(since);
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
        match (was_on, self.is_on()) {
            (false, true) => begins(),
            (true, false) => self.end.take(),
            _ => None,
        }
    }

    /// Ends it at once: with its event, if it has begun.
    pub(super) fn end(&mut self) -> Option<E> {
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
        let (mut condition, calm) = (Condition::default(), Duration::from_secs(5));
        let answers = [None, Some(true)].into_iter().chain([Some(false), Some(false), None].repeat(20));
        let events = (0..).zip(answers).filter_map(|(second, holds)| {
            let at = Duration::from_secs(second);
            Some((second, condition.update(at, holds, Duration::ZERO, calm, || Some("begins"), "ends")?))
        });
        assert_eq!(events.collect::<Vec<_>>(), [(1, "begins")]);
    }
}
