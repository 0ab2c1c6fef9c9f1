//! The split of a model over GPUs, as `llama_model_params` states it.

use serde::{Deserialize, Serialize};

use super::pattern;
use super::{Error, Place};

/// How a model is split over a list of GPUs and the host: `n_gpu_layers`, `tensor_split` and `tensor_buft_overrides`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
#[must_use]
pub struct Split {
    /// The number of layers on GPUs, counted from the end: the output layer is counted first.
    pub n_gpu_layers: u32,
    /// Proportions in which the GPUs share these layers, in the GPUs' order. Empty: the GPUs' free bytes are the
    /// proportions.
    pub tensor_split: Vec<f32>,
    /// Weights that are placed apart from their layer. The first pattern that matches a name decides.
    pub overrides: Vec<TensorOverride>,
}

/// Weights that are placed apart from their layer. The layer's cache stays with the layer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct TensorOverride {
    /// A regular expression to find in the tensor's name, such as `blk\.1[0-9]\.ffn_.*_exps`. Look-around and
    /// back-references are not supported.
    pub pattern: String,
    /// The place of these weights.
    pub place: Place,
}

impl Split {
    /// A split with `n_gpu_layers` layers on GPUs, which share them in proportion to their free bytes.
    pub const fn layers(n_gpu_layers: u32) -> Self {
        Self { n_gpu_layers, tensor_split: Vec::new(), overrides: Vec::new() }
    }

    /// A split with `counts[i]` layers on GPU `i`; the last layer of the last GPU is the output layer.
    ///
    /// The counts become the proportions. llama.cpp compares cumulative sums divided by their total with layer indices
    /// divided by the number of layers (llama-model.cpp, `load_tensors`). Here both are small whole numbers divided by
    /// the same number, so each GPU gets exactly its count. A single GPU needs no proportions.
    pub fn by_counts(counts: &[u32]) -> Self {
        let all = counts.iter().fold(0, |sum: u32, &count| sum.saturating_add(count));
        let proportions: Vec<f32> = counts.iter().map(|&count| count as f32).collect();
        let split = Self::layers(all);
        if proportions.len() > 1 { split.tensor_split(proportions) } else { split }
    }

    /// Sets the proportions of the layers for each GPU.
    pub fn tensor_split(mut self, proportions: impl Into<Vec<f32>>) -> Self {
        self.tensor_split = proportions.into();
        self
    }

    /// Sets the weights placed apart from their layer.
    pub fn overrides(mut self, overrides: impl Into<Vec<TensorOverride>>) -> Self {
        self.overrides = overrides.into();
        self
    }

    /// The overrides in a form for llama.cpp, in which the patterns list the names among the model's `tensors` that
    /// match. llama.cpp's `std::regex` backtracks, so it must not get another person's pattern.
    ///
    /// # Errors
    ///
    /// [`Error::Override`] for a pattern that is invalid or too long, and for tensors that would need too many
    /// patterns.
    pub fn overrides_by_name<'a>(
        &self,
        mut tensors: impl Iterator<Item = &'a str>,
    ) -> Result<Vec<TensorOverride>, Error> {
        pattern::by_name(&self.overrides, &mut tensors)
    }
}

impl TensorOverride {
    /// Moves the weights whose name contains a match of `pattern` to `place`.
    pub fn new(pattern: impl Into<String>, place: Place) -> Self {
        Self { pattern: pattern.into(), place }
    }
}
