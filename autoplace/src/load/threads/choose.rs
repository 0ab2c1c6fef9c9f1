//! The choice of a number of threads: what each takes flows in, how many generate flows out.

use super::TriedThreads;

/// How much longer than with the fastest number a token may take with more threads: noise is no reason to leave cores
/// unused, which deeper contexts will want.
const TOLERANCE: f64 = 1.1;

/// The seconds per token that were seen with a number of threads.
#[derive(Debug, Clone)]
pub(in crate::load) struct Runs {
    pub(in crate::load) threads: u32,
    pub(in crate::load) seconds: Vec<f64>,
}

impl Runs {
    /// The median; `None` before the first run.
    pub(in crate::load) fn median(&self) -> Option<f64> {
        let mut seconds = self.seconds.clone();
        seconds.sort_by(f64::total_cmp);
        seconds.get(seconds.len() / 2).copied()
    }

    /// The least; without end before the first run.
    pub(in crate::load) fn fastest(&self) -> f64 {
        self.seconds.iter().copied().fold(f64::INFINITY, f64::min)
    }

    pub(in crate::load) fn tried(&self) -> Option<TriedThreads> {
        let seconds = self.median()?;
        Some(TriedThreads {
            threads: self.threads,
            tokens_per_second: 1.0 / seconds,
        })
    }
}

/// The most threads that take at most a tenth longer than the fastest number; `None` where nothing was measured.
pub(in crate::load) fn choose(tried: &[TriedThreads]) -> Option<u32> {
    let speeds = || tried.iter().map(|it| it.tokens_per_second);
    let fastest = speeds().fold(0.0, f64::max);
    let good = tried
        .iter()
        .filter(|it| it.tokens_per_second * TOLERANCE >= fastest);
    good.map(|it| it.threads).max()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn chosen(speeds: &[(u32, f64)]) -> Option<u32> {
        let tried = |&(threads, tokens_per_second)| TriedThreads {
            threads,
            tokens_per_second,
        };
        choose(&speeds.iter().map(tried).collect::<Vec<_>>())
    }

    #[test]
    fn more_threads_are_kept_unless_fewer_are_clearly_faster() {
        assert_eq!(chosen(&[(2, 2600.0), (1, 1700.0)]), Some(2));
        assert_eq!(chosen(&[(2, 1000.0), (1, 1090.0)]), Some(2));
        assert_eq!(chosen(&[(2, 1000.0), (1, 1110.0)]), Some(1));
        assert_eq!(chosen(&[(2, 33.0), (1, 1065.0)]), Some(1));
        assert_eq!(
            chosen(&[(8, 90.0), (7, 100.0), (4, 99.0), (1, 30.0)]),
            Some(7)
        );
        assert_eq!(chosen(&[]), None);
    }

    #[test]
    fn one_slow_run_among_several_does_not_count() {
        let runs = Runs {
            threads: 2,
            seconds: vec![0.5, 30.0, 0.4],
        };
        assert_eq!(runs.median(), Some(0.5));
    }

    proptest! {
        /// Whatever was measured: none of the others is more than a tenth faster, and no larger number is as good.
        #[test]
        fn no_choice_is_a_tenth_behind(speeds in prop::collection::vec(0.01f64..1e5, 1..8)) {
            let tried: Vec<(u32, f64)> = (1..).zip(speeds).collect();
            let threads = chosen(&tried).unwrap();
            let speed = |threads: u32| tried[threads as usize - 1].1;
            let fastest = tried.iter().map(|it| it.1).fold(0.0, f64::max);
            prop_assert!(speed(threads) * TOLERANCE >= fastest);
            for more in threads + 1..=tried.len() as u32 {
                prop_assert!(speed(more) * TOLERANCE < fastest);
            }
        }
    }
}
