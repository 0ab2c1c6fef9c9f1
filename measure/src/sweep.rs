//! The numbers of layers that a sweep puts on the GPUs.

/// The values of `n_gpu_layers` that a sweep measures, in addition to the planner's choice.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Steps {
    /// Values around the edge: 0, half of the largest number that fits, the largest number itself, one, two and four
    /// layers fewer, one layer more, and all layers.
    #[default]
    Edge,
    /// This many values from no layers to all layers, evenly spaced; at least two values.
    Even(u32),
    /// Every value.
    Full,
}

impl Steps {
    /// The values in descending order. `fit` is the number of whole layers that fit.
    pub(super) fn layers(self, all: u32, fit: u32) -> Vec<u32> {
        let mut layers: Vec<u32> = match self {
            Self::Full => (0..=all).collect(),
            Self::Even(n) => {
                // With more steps than layers, values would only repeat.
                let last = u64::from(n.clamp(2, all.max(1) + 1) - 1);
                (0..=last).map(|step| (u64::from(all) * step / last) as u32).collect()
            }
            Self::Edge => {
                let fewer = [1, 2, 4].map(|fewer| fit.saturating_sub(fewer));
                [0, fit / 2, fit, (fit + 1).min(all), all].into_iter().chain(fewer).collect()
            }
        };
        layers.sort_unstable_by(|a, b| b.cmp(a));
        layers.dedup();
        layers
    }
}

#[cfg(test)]
mod tests {
    use super::Steps;

    #[test]
    fn steps_cover_both_sides_of_the_edge_both_ends_or_every_number_of_layers() {
        assert_eq!(Steps::Edge.layers(49, 40), [49, 41, 40, 39, 38, 36, 20, 0]);
        assert_eq!(Steps::Edge.layers(33, 33), [33, 32, 31, 29, 16, 0]);
        assert_eq!(Steps::Edge.layers(33, 0), [33, 1, 0]);
        assert_eq!(Steps::Edge.layers(3, 3), [3, 2, 1, 0]);
        assert_eq!(Steps::Even(7).layers(48, 0), [48, 40, 32, 24, 16, 8, 0]);
        assert_eq!(Steps::Even(0).layers(9, 9), [9, 0]);
        assert_eq!(Steps::Even(u32::MAX).layers(3, 3), [3, 2, 1, 0]);
        assert_eq!(Steps::Full.layers(3, 1), [3, 2, 1, 0]);
    }
}
