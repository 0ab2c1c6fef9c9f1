//! Threads while generating, for steps of any size: like is held against like.
//!
//! A step of eight texts takes longer than one of a single text, and one with draft tokens longer than one without.
//! Sizes within a factor of two share a [`Pace`].

use std::time::Duration;

use super::pace::{Change, Pace};
use super::{ThreadBasis, Threads, ladder};

/// Sizes of steps that are told apart: 1, 2 to 3, 4 to 7, ..., 128 and more.
const SIZES: usize = 8;

/// What decides how many threads compute the next step.
#[derive(Debug)]
pub(crate) struct Pacer {
    chosen: Threads,
    /// None where the number was asked for, or there is no choice.
    paces: Option<[Option<Pace>; SIZES]>,
    change: Option<GeneratingThreads>,
}

/// The threads of the CPU that generate, as they were changed last. Speeds in tokens per second.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
#[error(
    "{threads} of {usual} threads generate: {after:.1} tokens per second instead of {before:.1}"
)]
pub struct GeneratingThreads {
    /// Threads.
    pub threads: u32,
    /// Threads that the load has chosen.
    pub usual: u32,
    /// The speed before the change.
    pub before: f64,
    /// The speed after it.
    pub after: f64,
}

impl Pacer {
    pub(crate) fn new(chosen: Threads) -> Self {
        let adapts = chosen.basis != ThreadBasis::Asked && chosen.prompt > 1;
        let most = match chosen.basis {
            ThreadBasis::FullOffload => chosen.generation,
            _ => chosen.prompt,
        };
        let first = || {
            Pace::new(ladder(most), chosen.generation, |threads| {
                let tried = chosen.tried.iter().find(|it| it.threads == threads)?;
                Some(1.0 / tried.tokens_per_second)
            })
        };
        let paces = adapts.then(|| {
            let mut paces = [const { None }; SIZES];
            paces[0] = Some(first());
            paces
        });
        Self {
            chosen,
            paces,
            change: None,
        }
    }

    /// Threads for a step that generates so many tokens.
    pub(crate) fn threads(&mut self, tokens: usize) -> u32 {
        let generation = self.chosen.generation;
        self.pace(tokens).map_or(generation, |pace| pace.threads())
    }

    pub(crate) fn prompt(&self) -> u32 {
        self.chosen.prompt
    }

    /// Takes note of a step that generated so many tokens, none of them a draft token.
    pub(crate) fn step(&mut self, tokens: usize, took: Duration) -> Option<GeneratingThreads> {
        let pace = self.pace(tokens)?;
        let usual = pace.usual();
        let Change {
            from: _,
            to: threads,
            before,
            after,
        } = pace.step(took)?;
        let told = GeneratingThreads {
            threads,
            usual,
            before: tokens as f64 / before,
            after: tokens as f64 / after,
        };
        self.change = Some(told);
        self.change
    }

    /// The last change, while it stands.
    pub(crate) fn change(&self) -> Option<GeneratingThreads> {
        self.change
    }

    fn pace(&mut self, tokens: usize) -> Option<&mut Pace> {
        let [first, others @ ..] = self.paces.as_mut()?;
        let first = first.as_mut()?;
        match size(tokens) {
            0 => Some(first),
            n => Some(others[n - 1].get_or_insert_with(|| first.of_another_size())),
        }
    }
}

fn size(tokens: usize) -> usize {
    let log = tokens.checked_ilog2().unwrap_or(0) as usize;
    log.min(SIZES - 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::TriedThreads;

    const STEP: Duration = Duration::from_millis(1);

    fn chosen(basis: ThreadBasis) -> Threads {
        let tried = |threads, tokens_per_second| TriedThreads {
            threads,
            tokens_per_second,
        };
        Threads {
            generation: 2,
            prompt: 2,
            basis,
            tried: vec![tried(2, 1000.0), tried(1, 700.0)],
        }
    }

    /// Steps of so many tokens that take long with two threads, until something changes.
    fn until_change(pacer: &mut Pacer, tokens: usize) -> Option<GeneratingThreads> {
        (0..1000).find_map(|_| {
            let threads = pacer.threads(tokens);
            pacer.step(tokens, if threads == 1 { STEP } else { 30 * STEP })
        })
    }

    #[test]
    fn a_change_is_told_in_tokens_per_second_and_stands() {
        let mut pacer = Pacer::new(chosen(ThreadBasis::Measured));
        assert_eq!(
            (pacer.threads(1), pacer.prompt(), pacer.change()),
            (2, 2, None)
        );
        let told = until_change(&mut pacer, 1).expect("a change");
        assert_eq!((told.threads, told.usual), (1, 2));
        assert!((told.before * 0.03 - 1.0).abs() < 1e-9, "{told:?}");
        assert_eq!(
            told.to_string(),
            "1 of 2 threads generate: 1000.0 tokens per second instead of 33.3"
        );
        assert_eq!((pacer.threads(1), pacer.prompt()), (1, 2));
        assert_eq!(pacer.change(), Some(told));
        // Steps that were not seen before begin where others are.
        assert_eq!((pacer.threads(3), pacer.threads(200)), (1, 1));
    }

    #[test]
    fn what_was_asked_for_is_kept() {
        let mut pacer = Pacer::new(chosen(ThreadBasis::Asked));
        assert_eq!(until_change(&mut pacer, 1), None);
        assert_eq!(pacer.threads(1), 2);
    }

    #[test]
    fn larger_steps_are_held_against_their_like() {
        let mut pacer = Pacer::new(chosen(ThreadBasis::Measured));
        let mut step = |tokens, took| pacer.step(tokens, took);
        for _ in 0..1000 {
            assert_eq!(step(1, STEP), None);
            assert_eq!(step(8, 9 * STEP), None);
            assert_eq!(step(64, 70 * STEP), None);
        }
    }
}
