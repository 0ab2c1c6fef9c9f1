//! The assignment of layers to devices, by llama.cpp's rule (llama-model.cpp, `load_tensors`) and in the same 32-bit
//! arithmetic.

use serde::{Deserialize, Serialize};

use crate::memory::Error;

/// The place of a layer or weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Place {
    /// The CPU, with the host's memory.
    Host,
    /// The GPU with this index.
    Gpu(usize),
}

/// The place of every layer of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Assignment {
    /// The blocks in order, including blocks that predict further tokens.
    pub blocks: Vec<Place>,
    /// The output layer.
    pub output: Place,
}

impl Assignment {
    /// Assigns `n_layer` blocks and the output layer as llama.cpp does.
    ///
    /// `n_gpu_layers` counts the layers from the end: 1 means only the output layer, `n_layer + 1` or more means all
    /// layers. `points` are the [`split_points`] of the GPUs; without GPUs everything is on the host.
    pub fn new(n_layer: u32, n_gpu_layers: u32, points: &[f32]) -> Self {
        let all = n_layer + 1;
        let first = all.saturating_sub(n_gpu_layers);
        let on_gpus = if points.is_empty() { 0 } else { n_gpu_layers.min(all) };
        let place = |il: u32| {
            if il < first || il - first >= on_gpus {
                return Place::Host;
            }
            // llama.cpp computes float(il - i_gpu_start) / act_gpu_layers and takes the first point above it
            // (std::upper_bound).
            let share = (il - first) as f32 / on_gpus as f32;
            let gpu = points.partition_point(|&point| point <= share);
            // The last point is 1 up to rounding, and a share is below 1. If rounding puts the share at or above the
            // last point, llama.cpp throws (`devices.at`). With a single GPU this cannot happen, because its point is
            // exactly 1.
            Place::Gpu(gpu.min(points.len() - 1))
        };
        Self { blocks: (0..n_layer).map(place).collect(), output: place(n_layer) }
    }

    /// Assigns the last layers to GPUs, `counts[i]` of them to GPU `i`. llama.cpp makes the same assignment with
    /// [`Split::by_counts`](crate::memory::Split::by_counts).
    ///
    /// If the counts add up to more than the number of layers, the last counts are cut.
    pub fn by_counts(n_layer: u32, counts: &[u32]) -> Self {
        let all = n_layer as usize + 1;
        let counts = counts.iter().map(|&count| count as usize);
        let on_gpus = counts.clone().fold(0, usize::saturating_add);
        let host = std::iter::repeat_n(Place::Host, all.saturating_sub(on_gpus));
        let gpus = counts.enumerate().flat_map(|(gpu, count)| std::iter::repeat_n(Place::Gpu(gpu), count));
        let mut blocks: Vec<Place> = host.chain(gpus).take(all).collect();
        let output = blocks.pop().unwrap_or(Place::Host);
        Self { blocks, output }
    }

    /// The places of all layers in order, the output layer last.
    pub fn layers(&self) -> impl Iterator<Item = Place> {
        self.blocks.iter().copied().chain([self.output])
    }
}

/// `llama_max_devices()`: llama.cpp reads at most this many proportions.
const MAX_DEVICES: usize = 16;

/// The proportions that llama.cpp uses for `n_gpus` GPUs. Missing proportions are 0, and surplus proportions are
/// ignored. `None` if all proportions are 0, because llama.cpp then splits by free bytes (llama-model.cpp,
/// `load_tensors`).
pub(super) fn proportions(tensor_split: &[f32], n_gpus: usize) -> Result<Option<Vec<f32>>, Error> {
    let bad = |index: usize, limit| Error::TensorSplit { index, value: tensor_split[index].to_string(), limit };
    if tensor_split.len() > MAX_DEVICES {
        return Err(bad(MAX_DEVICES, "llama.cpp reads at most 16 proportions"));
    }
    let unusable = |part: &f32| !part.is_finite() || *part < 0.0;
    if let Some(index) = tensor_split.iter().position(unusable) {
        return Err(bad(index, "proportions are finite and not negative"));
    }
    let mut parts = tensor_split.to_vec();
    parts.resize(n_gpus, 0.0);
    if !parts.iter().sum::<f32>().is_finite() {
        let last = n_gpus.min(tensor_split.len()) - 1;
        return Err(bad(last, "their sum exceeds the range of a float"));
    }
    Ok(parts.iter().any(|&part| part > 0.0).then_some(parts))
}

/// The points at which the layers pass from one GPU to the next: the cumulative shares of `weights`. Without a
/// `tensor_split`, the weights are the free bytes. If all weights are 0, the GPUs share the layers evenly
/// (llama-model.cpp, `load_tensors`).
///
/// # Errors
///
/// [`Error::SplitSum`] if the sum of the weights is negative or not finite.
pub fn split_points(weights: &[f32]) -> Result<Vec<f32>, Error> {
    let mut sum = 0.0f32;
    let add = |weight: &f32| {
        sum += weight;
        sum
    };
    let points: Vec<f32> = weights.iter().map(add).collect();
    if sum < 0.0 || !sum.is_finite() {
        return Err(Error::SplitSum { sum: sum.to_string() });
    }
    if sum == 0.0 {
        return Ok((1..=weights.len()).map(|gpu| gpu as f32 / weights.len() as f32).collect());
    }
    Ok(points.into_iter().map(|point| point / sum).collect())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{prop, prop_assert, prop_assert_eq, proptest};

    use super::{Assignment, proportions, split_points};
    use crate::memory::Split;

    #[test]
    fn proportions_are_fitted_to_the_gpus_and_invalid_ones_are_named_in_an_error() {
        let taken = |given: &[f32]| proportions(given, 2).unwrap();
        assert_eq!((taken(&[1.0, 2.0, 3.0]), taken(&[1.0])), (Some(vec![1.0, 2.0]), Some(vec![1.0, 0.0])));
        // Without proportions, the free bytes decide.
        assert_eq!((taken(&[]), taken(&[0.0, 0.0, 5.0])), (None, None));
        assert_eq!(split_points(&[0.0, 0.0]), Ok(vec![0.5, 1.0]));
        let error = split_points(&[f32::MAX, f32::MAX]).unwrap_err().to_string();
        assert_eq!(error, "the layers cannot be split by proportions whose sum is inf");
        let error = proportions(&[1.0, -2.0], 2).unwrap_err();
        let text = "tensor_split[1] is -2, but proportions are finite and not negative";
        assert_eq!(error.to_string(), text);
        for (bad, n_gpus, named) in [
            (&[f32::NAN][..], 2, "tensor_split[0] is NaN"),
            (&[f32::MAX, f32::MAX], 3, "tensor_split[1] is 34028"),
            (&[1.0; 17], 2, "tensor_split[16] is 1"),
        ] {
            let text = proportions(bad, n_gpus).unwrap_err().to_string();
            assert!(text.starts_with(named), "{text}");
        }
    }

    proptest! {
        #[test]
        fn counts_as_proportions_give_back_the_counts(
            n_layer in 1u32..=512,
            cuts in prop::collection::vec(0u32..=513, 0..16),
        ) {
            // Divides the layers at random into a part for the host and parts for up to 15 GPUs. Some parts may be
            // empty.
            let mut cuts: Vec<u32> = cuts.into_iter().map(|cut| cut.min(n_layer + 1)).collect();
            cuts.sort_unstable();
            let mut counts: Vec<u32> = cuts.windows(2).map(|pair| pair[1] - pair[0]).collect();
            counts.push(cuts.last().map_or(0, |last| n_layer + 1 - last));
            let split = Split::by_counts(&counts);
            let wanted = Assignment::by_counts(n_layer, &counts);
            let points = match proportions(&split.tensor_split, counts.len()).unwrap() {
                Some(parts) => split_points(&parts).unwrap(),
                // There are no proportions for a single GPU, and none for several GPUs without layers.
                None => {
                    prop_assert!(counts.len() == 1 || split.n_gpu_layers == 0);
                    vec![1.0]
                }
            };
            if split.n_gpu_layers > 0 {
                prop_assert_eq!(&Assignment::new(n_layer, split.n_gpu_layers, &points), &wanted);
            }
        }
    }
}
