//! What makes a case random, and the same on every machine.
#![allow(dead_code, reason = "each test uses some of it")]

use crate::random_weights::Random;

/// Choices that follow from a number.
pub(crate) struct Dice(Random);

impl Dice {
    pub(crate) fn new(number: u64) -> Self {
        let mut random = Random::new(number + 1);
        // The first numbers of near seeds are near each other.
        for _ in 0..8 {
            random.bits();
        }
        Self(random)
    }

    /// From 0 to before `n`.
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        (self.0.bits() >> 16) % n
    }

    /// The same of what is counted in memory.
    pub(crate) fn index(&mut self, n: usize) -> usize {
        usize::try_from(self.below(n as u64)).unwrap()
    }

    /// True in so many of a hundred times.
    pub(crate) fn percent(&mut self, n: u64) -> bool {
        self.below(100) < n
    }

    pub(crate) fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.index(all.len())]
    }

    /// From `least` to `most` hundredths of `whole`.
    pub(crate) fn share(&mut self, whole: u64, least: u64, most: u64) -> u64 {
        let parts = 10_000;
        let (least, most) = (least * 100, most * 100);
        let share = least + self.below(most - least + 1);
        u64::try_from(u128::from(whole) * u128::from(share) / parts).unwrap()
    }
}
