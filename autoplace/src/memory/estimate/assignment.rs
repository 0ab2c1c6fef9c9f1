//! Which layer goes where: llama.cpp's own assignment (llama-model.cpp:1559-1617), its 32-bit arithmetic included.

use serde::{Deserialize, Serialize};

use crate::memory::Error;

/// Where a layer is put.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Place {
    /// The CPU and the host's memory.
    Host,
    /// The GPU with this index.
    Gpu(usize),
}

/// Where every layer of a model is put.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Assignment {
    /// The blocks in order, next-token-prediction blocks included.
    pub blocks: Vec<Place>,
    /// The output layer.
    pub output: Place,
}

impl Assignment {
    /// Puts `n_layer` blocks and the output layer where llama.cpp puts them.
    ///
    /// `n_gpu_layers` counts from the end: 1 is the output layer alone, `n_layer + 1` and more is everything. `points` are the
    /// [`split_points`] of the GPUs; without GPUs everything is on the host.
    #[must_use]
    pub fn new(n_layer: u32, n_gpu_layers: u32, points: &[f32]) -> Self {
        let all = n_layer + 1;
        let first = all.saturating_sub(n_gpu_layers);
        let on_gpus = if points.is_empty() {
            0
        } else {
            n_gpu_layers.min(all)
        };
        let place = |il: u32| {
            if il < first || il - first >= on_gpus {
                return Place::Host;
            }
            // float(il - i_gpu_start) / act_gpu_layers, then std::upper_bound: the first point above it.
            #[allow(clippy::cast_precision_loss)] // at most 513: exact
            let share = (il - first) as f32 / on_gpus as f32;
            let gpu = points.partition_point(|&point| point <= share);
            // The last point is 1 or the rounding of it, and a share is below 1: rounding can leave it out, where llama.cpp
            // throws (`devices.at`). One GPU's point is exactly 1.
            Place::Gpu(gpu.min(points.len() - 1))
        };
        Self {
            blocks: (0..n_layer).map(place).collect(),
            output: place(n_layer),
        }
    }

    /// All layers in order, the output layer last.
    pub fn layers(&self) -> impl Iterator<Item = Place> {
        self.blocks.iter().copied().chain([self.output])
    }

    /// Layers at this place, the output layer counted.
    #[must_use]
    pub fn count(&self, place: Place) -> u32 {
        let layers = self.layers().filter(|&layer| layer == place);
        u32::try_from(layers.count()).unwrap_or(u32::MAX)
    }

    /// Whether this place holds a block.
    #[must_use]
    pub fn holds_block(&self, place: Place) -> bool {
        self.blocks.contains(&place)
    }
}

/// The points at which the layers change from one GPU to the next: the cumulative shares of `weights`, which are free bytes
/// where no `tensor_split` is given (llama-model.cpp:1559-1589).
///
/// # Errors
///
/// [`Error::NothingFree`] where all weights are 0, at which llama.cpp divides by zero and throws.
pub fn split_points(weights: &[f32]) -> Result<Vec<f32>, Error> {
    let mut sum = 0.0f32;
    let mut points: Vec<f32> = weights
        .iter()
        .map(|weight| {
            sum += weight;
            sum
        })
        .collect();
    let usable = sum > 0.0 && sum.is_finite();
    if !weights.is_empty() && !usable {
        return Err(Error::NothingFree);
    }
    for point in &mut points {
        *point /= sum;
    }
    Ok(points)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{prop, prop_assert, prop_assert_eq, proptest};

    use super::{Assignment, Place, split_points};

    #[test]
    fn one_layer_is_the_output_layer_alone() {
        let one = Assignment::new(32, 1, &[1.0]);
        assert_eq!(one.output, Place::Gpu(0));
        assert!(!one.holds_block(Place::Gpu(0)));
    }

    #[test]
    fn layers_are_taken_from_the_end() {
        let some = Assignment::new(4, 3, &[1.0]);
        let (host, gpu) = (Place::Host, Place::Gpu(0));
        assert_eq!(some.blocks, [host, host, gpu, gpu]);
        assert_eq!(some.output, gpu);
    }

    #[test]
    fn full_offload_is_one_more_than_the_blocks_and_more_is_the_same() {
        let full = Assignment::new(32, 33, &[1.0]);
        assert_eq!(full.count(Place::Gpu(0)), 33);
        assert_eq!(full, Assignment::new(32, 99, &[1.0]));
        assert_eq!(Assignment::new(32, 32, &[1.0]).blocks[0], Place::Host);
    }

    #[test]
    fn without_gpus_everything_is_on_the_host() {
        assert_eq!(Assignment::new(32, 33, &[]).count(Place::Host), 33);
        assert_eq!(Assignment::new(32, 0, &[1.0]).count(Place::Host), 33);
    }

    #[test]
    fn two_gpus_share_by_their_free_bytes() {
        // Shares of 10 and 30 of 40: the point is 0.25, so the first quarter of the eight layers goes to the first GPU.
        let points = split_points(&[10.0, 30.0]).unwrap();
        assert_eq!(points, [0.25, 1.0]);
        let both = Assignment::new(7, 8, &points);
        assert_eq!(both.count(Place::Gpu(0)), 2);
        assert_eq!(both.count(Place::Gpu(1)), 6);
        assert_eq!(both.output, Place::Gpu(1));
    }

    #[test]
    fn gpus_without_free_bytes_are_an_error() {
        assert!(split_points(&[0.0, 0.0]).is_err());
        assert!(split_points(&[]).unwrap().is_empty());
    }

    proptest! {
        #[test]
        fn every_layer_is_somewhere_once(
            n_layer in 1u32..=512,
            n_gpu_layers in 0u32..600,
            weights in prop::collection::vec(1.0f32..1e12, 0..5),
        ) {
            let points = split_points(&weights).unwrap();
            let assignment = Assignment::new(n_layer, n_gpu_layers, &points);
            let gpus: u32 = (0..weights.len()).map(|gpu| assignment.count(Place::Gpu(gpu))).sum();
            prop_assert_eq!(gpus + assignment.count(Place::Host), n_layer + 1);
            let expected = if weights.is_empty() { 0 } else { n_gpu_layers.min(n_layer + 1) };
            prop_assert_eq!(gpus, expected);
        }

        #[test]
        fn gpus_hold_layers_in_their_order(
            n_layer in 1u32..=128,
            n_gpu_layers in 0u32..140,
            weights in prop::collection::vec(1.0f32..1e6, 1..5),
        ) {
            let points = split_points(&weights).unwrap();
            let assignment = Assignment::new(n_layer, n_gpu_layers, &points);
            let order = |place| match place { Place::Host => 0, Place::Gpu(gpu) => gpu + 1 };
            let places: Vec<usize> = assignment.layers().map(order).collect();
            prop_assert!(places.is_sorted());
        }
    }
}
