//! What was measured of a device: what ggml's own operations do on it, by which placements are compared, and what a GPU
//! took beside the buffers that llama.cpp counts. Integers throughout, so that a machine file reads back as it was
//! written. When it was measured is the time at which the cache's file was written.

use serde::{Deserialize, Serialize};

use super::bytes::Bytes;
use crate::gguf::TensorType;

/// What one device was measured to do; by default nothing yet.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct MeasuredRates {
    /// Threads that computed, on the host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub threads: Option<u32>,
    /// Whether, on the host, weights were rearranged for its instruction set, as a load does where no GPU pins
    /// the host's memory.
    pub repacked: bool,
    /// One token through a matrix, by the type of its weights.
    pub weights: Vec<WeightRate>,
    /// One token's attention over a cache that is larger than the processor's caches.
    pub attention: Vec<AttentionRate>,
    /// Many tokens through a matrix.
    pub prompts: Vec<PromptRate>,
    /// The attention of many tokens.
    pub prompt_attention: Vec<PromptAttentionRate>,
    /// Nanoseconds that a block takes for one token beside its matrices and its attention: norms, activations,
    /// launches, barriers.
    pub layer_ns: u64,
    /// Nanoseconds more of a block with experts: to choose them, and to add up their results.
    pub routing_ns: u64,
    /// Of a prompt, the same beside matrices and attention, in elements of the matrices' outputs per second.
    pub activations_per_second: u64,
    /// The way between the host's memory and the device; `None` for the host itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub link: Option<LinkRate>,
}

impl MeasuredRates {
    /// Whether one token through a matrix of this type was measured; the second says whether it is experts' matrices.
    pub fn has_weights(&self, (tensor_type, experts): (TensorType, bool)) -> bool {
        self.weights.iter().any(|rate| (rate.tensor_type, rate.experts) == (tensor_type, experts))
    }

    /// Adds what was measured later: of one thing the later figure stays, of others each.
    pub fn merge(&mut self, later: Self) {
        self.threads = later.threads.or(self.threads);
        update(&mut self.weights, later.weights, |rate| (rate.tensor_type, rate.experts));
        update(&mut self.attention, later.attention, |rate| (rate.kv_type, rate.head_size, rate.n_gqa));
        update(&mut self.prompts, later.prompts, |rate| (rate.tensor_type, rate.experts, rate.n_tokens));
        update(&mut self.prompt_attention, later.prompt_attention, |rate| {
            (rate.kv_type, rate.head_size, rate.n_gqa, rate.n_tokens)
        });
        // 0: not measured.
        let measured = |later: u64, mine: u64| if later > 0 { later } else { mine };
        self.layer_ns = measured(later.layer_ns, self.layer_ns);
        self.routing_ns = measured(later.routing_ns, self.routing_ns);
        self.activations_per_second = measured(later.activations_per_second, self.activations_per_second);
        self.link = later.link.or(self.link);
    }
}

/// Puts the later figures in the place of those with the same key, or behind all.
fn update<T, K: PartialEq>(figures: &mut Vec<T>, later: Vec<T>, key: impl Fn(&T) -> K) {
    for figure in later {
        match figures.iter_mut().find(|old| key(old) == key(&figure)) {
            Some(old) => *old = figure,
            None => figures.push(figure),
        }
    }
}

/// One token through a matrix (`MUL_MAT`), or through the experts that it uses (`MUL_MAT_ID`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WeightRate {
    /// The type of the weights.
    #[serde(rename = "type")]
    pub tensor_type: TensorType,
    /// Whether they are experts.
    #[serde(default)]
    pub experts: bool,
    /// Bytes of weights per second.
    pub bytes_per_second: u64,
}

/// One token's fused attention (`FLASH_ATTN_EXT`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttentionRate {
    /// The type of keys and values.
    #[serde(rename = "type")]
    pub kv_type: TensorType,
    /// Elements of a head.
    pub head_size: u32,
    /// Query heads that share a head of keys and values.
    pub n_gqa: u32,
    /// Bytes of keys and values per second.
    pub bytes_per_second: u64,
}

/// Many tokens through a matrix.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PromptRate {
    /// The type of the weights.
    #[serde(rename = "type")]
    pub tensor_type: TensorType,
    /// Whether they are experts.
    #[serde(default)]
    pub experts: bool,
    /// Tokens computed at once.
    pub n_tokens: u32,
    /// Floating-point operations per second: two for each weight and token.
    pub flops: u64,
}

/// The fused attention of many tokens.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PromptAttentionRate {
    /// The type of keys and values.
    #[serde(rename = "type")]
    pub kv_type: TensorType,
    /// Elements of a head.
    pub head_size: u32,
    /// Query heads that share a head of keys and values.
    pub n_gqa: u32,
    /// Tokens computed at once.
    pub n_tokens: u32,
    /// Floating-point operations per second: four for each element of a query head, token and cell.
    pub flops: u64,
}

/// The way between the host's memory and a device's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkRate {
    /// Bytes per second to the device, from memory as llama.cpp's host weights lie in.
    pub upload: u64,
    /// Bytes per second from the device.
    pub download: u64,
    /// Nanoseconds to hand a token's activations over, with the wait for it.
    pub crossing_ns: u64,
}

/// What a GPU took beside the buffers that llama.cpp counts, in bytes: the most that was seen after real loads, and the
/// work that made the memory grow, since larger work may make it grow further.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[error("driver {}, growth {}, measured", Bytes(*driver), Bytes(*growth))]
#[non_exhaustive]
#[must_use]
pub struct LearnedHeadroom {
    /// What the driver took when the model was loaded, on a device that was open already: a CUDA context is not in it.
    pub driver: u64,
    /// What more was taken by the largest batch and a token after it.
    pub growth: u64,
    /// Bytes of the widest activations of that batch, in 32-bit floats.
    pub activations: u64,
    /// Bytes of the largest matrix of a block of that model, decoded to 16-bit floats.
    pub decoded_matrix: u64,
}

impl LearnedHeadroom {
    /// What was measured, with no work until [`work`](Self::work) says with how much.
    pub const fn new(driver: u64, growth: u64) -> Self {
        Self { driver, growth, activations: 0, decoded_matrix: 0 }
    }

    /// Sets the work that it was measured with: bytes of activations, and of the largest matrix decoded.
    pub const fn work(mut self, activations: u64, decoded_matrix: u64) -> Self {
        self.activations = activations;
        self.decoded_matrix = decoded_matrix;
        self
    }

    /// Whether the work was at least as large as this, so that the growth can be believed for it.
    pub const fn covers(&self, activations: u64, decoded_matrix: u64) -> bool {
        self.activations >= activations && self.decoded_matrix >= decoded_matrix
    }

    /// Driver and growth together, in bytes; saturates.
    pub const fn total(&self) -> u64 {
        self.driver.saturating_add(self.growth)
    }

    /// Two measurements as one: of both parts the larger, learned with the larger work. Where neither work is the
    /// larger it is the later one, `self`: what it was seen to take with that, it surely takes no more than.
    pub(super) fn and_earlier(self, earlier: Self) -> Self {
        let larger = if earlier.covers(self.activations, self.decoded_matrix) { earlier } else { self };
        Self { driver: self.driver.max(earlier.driver), growth: self.growth.max(earlier.growth), ..larger }
    }
}

#[cfg(test)]
mod tests {
    use super::LearnedHeadroom;
    use crate::machine::mib;

    fn learned(driver: u64, growth: u64, work: (u64, u64)) -> LearnedHeadroom {
        LearnedHeadroom::new(mib(driver), mib(growth)).work(work.0, work.1)
    }

    #[test]
    fn of_two_measurements_the_larger_parts_and_the_larger_work_stay() {
        let small = learned(50, 40, (10, 10));
        let large = learned(40, 60, (20, 20));
        let both = learned(50, 60, (20, 20));
        assert_eq!(small.and_earlier(large), both);
        assert_eq!(large.and_earlier(small), both);
        // Neither work is the larger: what was seen with the later one holds for it.
        let other = learned(0, 0, (30, 5));
        assert_eq!(other.and_earlier(small), learned(50, 40, (30, 5)));
        let text = learned(120, 88, (1, 1)).to_string();
        assert_eq!(text, "driver 120 MiB, growth 88 MiB, measured");
    }
}
