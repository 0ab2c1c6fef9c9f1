//! The depths of tokens: of one token, or of tokens that are spread evenly over the growth of a text.

/// Depths from `from` to `to`, evenly distributed. A depth is a number of tokens before a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::plan) struct Depths {
    from: u32,
    to: u32,
}

impl From<u32> for Depths {
    fn from(depth: u32) -> Self {
        Self { from: depth, to: depth }
    }
}

impl Depths {
    pub(in crate::plan) fn new(from: u32, to: u32) -> Self {
        Self { from, to: to.max(from) }
    }

    /// The mean number of cells that a token attends to: one cell for each `ratio` tokens before it, and at most
    /// `window` cells.
    ///
    /// Over depths `d` from `a` to `b`, this is the mean of `min(d, w) / ratio` with `w = window * ratio`. The function
    /// is linear below `w` and constant above.
    pub(super) fn mean_cells(self, ratio: u32, window: u32) -> f64 {
        if self.from == self.to {
            return f64::from((self.from / ratio).min(window));
        }
        let (a, b) = (f64::from(self.from), f64::from(self.to));
        let w = f64::from(window) * f64::from(ratio);
        let bend = w.clamp(a, b);
        // Tokens up to the bend attend to `d` tokens, and later tokens attend to `w`.
        let sum = (a + bend) / 2.0 * (bend - a) + w.min(b) * (b - bend);
        sum / (b - a) / f64::from(ratio)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{prop_assert, proptest};

    use super::Depths;

    proptest! {
        #[test]
        fn the_mean_over_depths_is_the_mean_of_all_depths(
            from in 0_u32..3000,
            length in 1_u32..3000,
            ratio in 1_u32..5,
            window in 1_u32..4000,
        ) {
            let mean = Depths::new(from, from + length).mean_cells(ratio, window);
            let cells = (from..=from + length).map(|depth| (f64::from(depth) / f64::from(ratio)).min(f64::from(window)));
            let sum: f64 = cells.sum::<f64>() / f64::from(length + 1);
            // The integral and the sum differ only at the bend of a window.
            prop_assert!((mean - sum).abs() <= 1.0, "{mean} {sum}");
        }
    }

    #[test]
    fn a_single_depth_counts_whole_cells() {
        assert_eq!(Depths::from(1000).mean_cells(1, u32::MAX), 1000.0);
        assert_eq!(Depths::from(1003).mean_cells(4, u32::MAX), 250.0);
        assert_eq!(Depths::from(1000).mean_cells(1, 512), 512.0);
        assert_eq!(Depths::new(9, 9), Depths::from(9));
    }
}
