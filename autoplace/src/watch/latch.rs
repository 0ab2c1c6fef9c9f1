//! A condition, from "it is so now" to when it began and when it ended.

use std::time::Duration;

/// Tells when a condition begins and when it ends, each once, however it flickers in between.
///
/// It begins when it has held for as long as patience lasts, and ends when for as long as calm lasts it is known not to
/// hold. So it cannot begin twice within the time of calm.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Latch {
    state: State,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum State {
    #[default]
    Off,
    /// Holds, and has not for long enough.
    Pending {
        since: Duration,
    },
    On,
    /// Does not hold any more, and has not for long enough.
    Calming {
        since: Duration,
    },
}

/// What a sample changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Edge {
    Begins,
    Ends,
}

impl Latch {
    /// Whether it has begun and not ended.
    pub(super) const fn is_on(self) -> bool {
        matches!(self.state, State::On | State::Calming { .. })
    }

    /// Whether it holds, and has not for long enough to have begun.
    pub(super) const fn is_pending(self) -> bool {
        matches!(self.state, State::Pending { .. })
    }

    /// Takes what a sample says of the condition at a moment: `None` where it does not tell. `at` never goes back.
    pub(super) fn update(
        &mut self,
        at: Duration,
        holds: Option<bool>,
        patience: Duration,
        calm: Duration,
    ) -> Option<Edge> {
        let (state, edge) = match (self.state, holds) {
            (State::Off | State::Pending { .. }, None | Some(false)) => (State::Off, None),
            (State::Off, Some(true)) if patience.is_zero() => (State::On, Some(Edge::Begins)),
            (State::Off, Some(true)) => (State::Pending { since: at }, None),
            (State::Pending { since }, Some(true)) => {
                if at.saturating_sub(since) >= patience {
                    (State::On, Some(Edge::Begins))
                } else {
                    (self.state, None)
                }
            }
            // The time of calm is one in which it is known not to hold.
            (State::On | State::Calming { .. }, None | Some(true)) => (State::On, None),
            (State::On, Some(false)) => (State::Calming { since: at }, None),
            (State::Calming { since }, Some(false)) => {
                if at.saturating_sub(since) >= calm {
                    (State::Off, Some(Edge::Ends))
                } else {
                    (self.state, None)
                }
            }
        };
        self.state = state;
        edge
    }

    /// Ends it at once, if it has begun.
    pub(super) fn end(&mut self) -> Option<Edge> {
        let was_on = self.is_on();
        self.state = State::Off;
        was_on.then_some(Edge::Ends)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const CALM: Duration = Duration::from_secs(5);

    fn edges(patience: Duration, answers: &[Option<bool>]) -> Vec<(usize, Edge)> {
        let mut latch = Latch::default();
        let mut edges = Vec::new();
        for (second, &holds) in answers.iter().enumerate() {
            let at = Duration::from_secs(second as u64);
            edges.extend(
                latch
                    .update(at, holds, patience, CALM)
                    .map(|edge| (second, edge)),
            );
        }
        edges
    }

    #[test]
    fn without_patience_it_begins_at_once_and_ends_after_calm() {
        let mut answers = vec![Some(true)];
        answers.extend([Some(false); 8]);
        let expected = [(0, Edge::Begins), (6, Edge::Ends)];
        assert_eq!(edges(Duration::ZERO, &answers), expected);
    }

    #[test]
    fn patience_outlasts_a_flicker() {
        let mut answers = [Some(true), Some(false)].repeat(20);
        assert_eq!(edges(Duration::from_secs(2), &answers), []);
        answers.extend([Some(true); 3]);
        let expected = [(42, Edge::Begins)];
        assert_eq!(edges(Duration::from_secs(2), &answers), expected);
    }

    #[test]
    fn what_is_not_known_neither_begins_nor_ends_it() {
        let mut answers = vec![None, Some(true)];
        answers.extend([Some(false), Some(false), None].repeat(20));
        assert_eq!(edges(Duration::ZERO, &answers), [(1, Edge::Begins)]);
    }

    proptest! {
        #[test]
        fn it_begins_with_cause_alternates_and_never_floods(
            answers in prop::collection::vec(prop::option::weighted(0.9, any::<bool>()), 0..300),
            patience in 0u64..4,
        ) {
            let found = edges(Duration::from_secs(patience), &answers);
            for (n, &(second, edge)) in found.iter().enumerate() {
                prop_assert_eq!(edge, if n % 2 == 0 { Edge::Begins } else { Edge::Ends });
                let expected = Some(edge == Edge::Begins);
                prop_assert_eq!(answers[second], expected);
            }
            prop_assert!(found.len() <= 2 * (answers.len() / 5 + 1));
        }

        #[test]
        fn once_it_is_quiet_for_good_it_has_ended(answers: Vec<bool>) {
            let mut answers: Vec<Option<bool>> = answers.into_iter().map(Some).collect();
            answers.extend([Some(false); 7]);
            prop_assert_eq!(edges(Duration::ZERO, &answers).len() % 2, 0);
        }
    }
}
