//! Which part of a model goes to which GPU: what `llama_model_params` says of it.

use serde::{Deserialize, Serialize};

use super::pattern;
use super::{Error, Place};

/// How a model is spread over a list of GPUs and the host: `n_gpu_layers`, `tensor_split` and `tensor_buft_overrides`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
#[must_use]
pub struct Split {
    /// Layers on GPUs, counted from the end; the output layer is the first of them.
    pub n_gpu_layers: u32,
    /// Proportion of these layers per GPU, in the GPUs' order; empty: in proportion to their free bytes.
    pub tensor_split: Vec<f32>,
    /// Weights that go elsewhere than their layer: the first pattern that matches decides.
    pub overrides: Vec<TensorOverride>,
}

/// Weights that go elsewhere than their layer. Their cache stays with the layer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct TensorOverride {
    /// A regular expression that is found somewhere in the tensor's name, such as `blk\.1[0-9]\.ffn_.*_exps`, without
    /// look-around and back-references.
    pub pattern: String,
    /// Where these weights go.
    pub place: Place,
}

impl Split {
    /// So many layers on the GPUs, shared out by their free bytes.
    pub const fn layers(n_gpu_layers: u32) -> Self {
        Self { n_gpu_layers, tensor_split: Vec::new(), overrides: Vec::new() }
    }

    /// So many layers on each GPU, in the GPUs' order, the last of them ending with the output layer.
    ///
    /// The counts are the proportions: llama.cpp compares cumulative sums divided by their sum with layers divided by
    /// their number (llama-model.cpp, `load_tensors`), here the same small whole numbers divided by the same number, so
    /// that exactly so many layers go to each GPU. One GPU needs no proportions.
    pub fn by_counts(counts: &[u32]) -> Self {
        let all = counts.iter().fold(0, |sum: u32, &count| sum.saturating_add(count));
        let proportions: Vec<f32> = counts.iter().map(|&count| count as f32).collect();
        let split = Self::layers(all);
        if proportions.len() > 1 { split.tensor_split(proportions) } else { split }
    }

    setters! {
        /// Sets the proportions of the layers per GPU.
        tensor_split(proportions: impl Into<Vec<f32>>) tensor_split = proportions.into();
        /// Sets which weights go elsewhere than their layer.
        overrides(overrides: impl Into<Vec<TensorOverride>>) overrides = overrides.into();
    }

    /// The overrides as llama.cpp should be given them: with patterns that list those of the model's `tensors` which
    /// ours match, so that `std::regex`, which backtracks, sees no pattern of somebody else.
    ///
    /// # Errors
    ///
    /// [`Error::Override`] for a pattern that is no regular expression or too long, and for tensors that no few
    /// patterns list.
    pub fn overrides_by_name<'a>(
        &self,
        mut tensors: impl Iterator<Item = &'a str>,
    ) -> Result<Vec<TensorOverride>, Error> {
        pattern::by_name(&self.overrides, &mut tensors)
    }
}

impl TensorOverride {
    /// Weights whose name has a match of this pattern go there.
    pub fn new(pattern: impl Into<String>, place: Place) -> Self {
        Self { pattern: pattern.into(), place }
    }
}
