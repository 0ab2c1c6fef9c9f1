//! Measurements of a device: the rates of ggml's operations, by which plans are compared, and the memory that a GPU
//! uses outside the buffers that llama.cpp counts. All figures are integers, so that reading a machine file gives
//! exactly the same figures. Figures have their conditions, and corrections from real use.

use serde::{Deserialize, Serialize};

use super::bytes::Bytes;
use super::conditions::{RateConditions, is_worse};
use crate::gguf::TensorType;
use crate::json::is_default;

/// The measured rates of one device; empty by default.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct MeasuredRates {
    /// On the host, the number of threads that computed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub threads: Option<u32>,
    /// On the host, whether weights were rearranged for the instruction set. A load rearranges them if no GPU pins the
    /// host's memory.
    pub repacked: bool,
    /// Rates of one token through a matrix, by the type of the weights.
    pub weights: Vec<WeightRate>,
    /// Rates of one token's attention over keys and values that exceed the processor's caches.
    pub attention: Vec<AttentionRate>,
    /// Rates of many tokens through a matrix.
    pub prompts: Vec<PromptRate>,
    /// Rates of the attention of many tokens.
    pub prompt_attention: Vec<PromptAttentionRate>,
    /// Nanoseconds of one token in a block, without matrices and attention: norms, activations, launches, barriers.
    pub layer_ns: u64,
    /// The additional nanoseconds that a block with experts takes to choose the experts and to add up their results.
    pub routing_ns: u64,
    /// The speed of a prompt's work other than matrices and attention, in output elements of the matrices per second.
    pub activations_per_second: u64,
    /// The rates of transfers between the host's memory and the device; `None` for the host itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub link: Option<LinkRate>,
    /// The conditions of those figures that are single numbers.
    #[serde(skip_serializing_if = "is_default")]
    pub conditions: SingleConditions,
}

/// The conditions of the figures of [`MeasuredRates`] that are single numbers; `None` if they were not stored.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[allow(missing_docs, reason = "the fields are those of MeasuredRates")]
pub struct SingleConditions {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub layer: Option<RateConditions>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub routing: Option<RateConditions>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub activations: Option<RateConditions>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub link: Option<RateConditions>,
}

/// A rate corrected by real use, that is, by generated texts or computed prompts on an undisturbed machine. It replaces
/// the measured figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct UsedRate {
    /// The rate, in the unit of the figure that it corrects.
    pub per_second: u64,
    /// The number of tokens from which the rate was computed; only recent corrections count.
    pub tokens: u64,
    /// The time of the last correction, in seconds since 1970 (UTC).
    pub at: u64,
}

impl MeasuredRates {
    /// Whether the rate of this weight type was measured for one token. The flag marks matrices of experts.
    pub fn has_weights(&self, (tensor_type, experts): (TensorType, bool)) -> bool {
        self.weights.iter().any(|rate| (rate.tensor_type, rate.experts) == (tensor_type, experts))
    }

    /// The rates of a device that computes only for this share of the time.
    pub(crate) fn for_share_of_time(&self, share: f64) -> Self {
        // A figure of 0 means that nothing was measured, so a measured figure stays above 0.
        let less = |rate: u64| if rate == 0 { 0 } else { ((rate as f64 * share) as u64).max(1) };
        let longer = |ns: u64| (ns as f64 / share) as u64;
        let mut all = self.clone();
        let used = all.weights.iter_mut().map(|rate| &mut rate.used);
        let used = used.chain(all.attention.iter_mut().map(|rate| &mut rate.used));
        let used = used.chain(all.prompts.iter_mut().map(|rate| &mut rate.used));
        used.flatten().for_each(|used| used.per_second = less(used.per_second));
        all.weights.iter_mut().for_each(|rate| rate.bytes_per_second = less(rate.bytes_per_second));
        all.attention.iter_mut().for_each(|rate| rate.bytes_per_second = less(rate.bytes_per_second));
        all.prompts.iter_mut().for_each(|rate| rate.flops = less(rate.flops));
        all.prompt_attention.iter_mut().for_each(|rate| rate.flops = less(rate.flops));
        all.activations_per_second = less(all.activations_per_second);
        (all.layer_ns, all.routing_ns) = (longer(all.layer_ns), longer(all.routing_ns));
        all
    }

    /// Adds later measurements. Of two figures for the same operation, the less disturbed figure is kept or, at equal
    /// disturbance, the later one. Corrections from real use are kept.
    pub fn merge(&mut self, later: Self) {
        self.threads = later.threads.or(self.threads);
        update(&mut self.weights, later.weights);
        update(&mut self.attention, later.attention);
        update(&mut self.prompts, later.prompts);
        update(&mut self.prompt_attention, later.prompt_attention);
        let (mine, theirs) = (&mut self.conditions, later.conditions);
        // 0 means that nothing was measured.
        let single =
            |mine: &mut u64, conditions: &mut Option<RateConditions>, later: u64, under: Option<RateConditions>| {
                if later > 0 && (*mine == 0 || !is_worse(under.as_ref(), conditions.as_ref())) {
                    (*mine, *conditions) = (later, under);
                }
            };
        single(&mut self.layer_ns, &mut mine.layer, later.layer_ns, theirs.layer);
        single(&mut self.routing_ns, &mut mine.routing, later.routing_ns, theirs.routing);
        let activations = later.activations_per_second;
        single(&mut self.activations_per_second, &mut mine.activations, activations, theirs.activations);
        if later.link.is_some() && (self.link.is_none() || !is_worse(theirs.link.as_ref(), mine.link.as_ref())) {
            (self.link, mine.link) = (later.link, theirs.link);
        }
    }

    /// Sets these conditions for every figure that has none yet.
    #[must_use]
    pub fn taken_under(mut self, conditions: &RateConditions) -> Self {
        let weights = self.weights.iter_mut().map(|rate| &mut rate.conditions);
        let attention = self.attention.iter_mut().map(|rate| &mut rate.conditions);
        let prompts = self.prompts.iter_mut().map(|rate| &mut rate.conditions);
        let prompt_attention = self.prompt_attention.iter_mut().map(|rate| &mut rate.conditions);
        let SingleConditions { layer, routing, activations, link } = &mut self.conditions;
        let singles = [
            (layer, self.layer_ns > 0),
            (routing, self.routing_ns > 0),
            (activations, self.activations_per_second > 0),
            (link, self.link.is_some()),
        ];
        let singles = singles.into_iter().filter_map(|(conditions, is_there)| is_there.then_some(conditions));
        for kept in weights.chain(attention).chain(prompts).chain(prompt_attention).chain(singles) {
            kept.get_or_insert_with(|| conditions.clone());
        }
        self
    }

    /// The conditions of every figure; `None` for a figure without stored conditions.
    pub fn all_conditions(&self) -> impl Iterator<Item = Option<&RateConditions>> {
        let weights = self.weights.iter().map(|rate| rate.conditions.as_ref());
        let attention = self.attention.iter().map(|rate| rate.conditions.as_ref());
        let prompts = self.prompts.iter().map(|rate| rate.conditions.as_ref());
        let prompt_attention = self.prompt_attention.iter().map(|rate| rate.conditions.as_ref());
        let SingleConditions { layer, routing, activations, link } = &self.conditions;
        let singles = [
            (self.layer_ns > 0).then_some(layer.as_ref()),
            (self.routing_ns > 0).then_some(routing.as_ref()),
            (self.activations_per_second > 0).then_some(activations.as_ref()),
            self.link.map(|_| link.as_ref()),
        ];
        weights.chain(attention).chain(prompts).chain(prompt_attention).chain(singles.into_iter().flatten())
    }
}

/// A figure in a list of [`MeasuredRates`].
trait Figure {
    type Key: PartialEq;

    /// The operation to which the figure belongs.
    fn key(&self) -> Self::Key;

    fn conditions(&self) -> &Option<RateConditions>;

    fn used(&mut self) -> Option<&mut Option<UsedRate>>;
}

/// Adds later figures. A later figure replaces an earlier figure with the same key, unless the later one is more
/// disturbed.
fn update<T: Figure>(figures: &mut Vec<T>, later: Vec<T>) {
    for mut figure in later {
        let Some(old) = figures.iter_mut().find(|old| old.key() == figure.key()) else {
            figures.push(figure);
            continue;
        };
        let seen = [old.used().and_then(|used| *used), figure.used().and_then(|used| *used)];
        let latest = seen.into_iter().flatten().max_by_key(|used| used.at);
        if !is_worse(figure.conditions().as_ref(), old.conditions().as_ref()) {
            *old = figure;
        }
        if let Some(used) = old.used() {
            *used = latest;
        }
    }
}

/// The rate of one token through a matrix (`MUL_MAT`), or through the experts that the token uses (`MUL_MAT_ID`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WeightRate {
    /// The type of the weights.
    #[serde(rename = "type")]
    pub tensor_type: TensorType,
    /// Whether the weights are experts.
    #[serde(default)]
    pub experts: bool,
    /// The shape of the matrix if it is small. In small matrices, short rows are slower, and the start takes a larger
    /// share of the time.
    #[serde(default, skip_serializing_if = "is_default")]
    pub shape: MatrixShape,
    /// Bytes of weights per second.
    pub bytes_per_second: u64,
    /// The conditions of the measurement.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conditions: Option<RateConditions>,
    /// The correction from real use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used: Option<UsedRate>,
}

/// The size of a measured matrix. All large matrices have one rate.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct MatrixShape {
    /// The number of elements of a row; 0 for a large matrix.
    pub n_in: u32,
    /// The number of rows; 0 for a large matrix.
    pub n_out: u32,
}

impl MatrixShape {
    /// A matrix counts as large if it has at least this many rows, and at least this many elements in a row.
    pub const LARGE: u32 = 2048;

    /// The shape of a matrix with `n_in` elements in a row and `n_out` rows.
    pub const fn new(n_in: u32, n_out: u32) -> Self {
        if n_in >= Self::LARGE && n_out >= Self::LARGE { Self { n_in: 0, n_out: 0 } } else { Self { n_in, n_out } }
    }

    /// The distance between two shapes: the sum of the logarithms of the ratios of their sides. Sides beyond
    /// [`LARGE`](Self::LARGE) count as equal.
    pub(crate) fn unlike(self, other: Self) -> f64 {
        let side = |n: u32| f64::from(if n == 0 { Self::LARGE } else { n.min(Self::LARGE) });
        let apart = |a: u32, b: u32| (side(a) / side(b)).ln().abs();
        apart(self.n_in, other.n_in) + apart(self.n_out, other.n_out)
    }
}

impl WeightRate {
    /// A rate of large matrices of this type.
    pub const fn new(tensor_type: TensorType, experts: bool, bytes_per_second: u64) -> Self {
        let shape = MatrixShape { n_in: 0, n_out: 0 };
        Self { tensor_type, experts, shape, bytes_per_second, conditions: None, used: None }
    }

    /// The rate that plans use, in bytes per second.
    pub fn rate(&self) -> u64 {
        self.used.map_or(self.bytes_per_second, |used| used.per_second)
    }
}

impl Figure for WeightRate {
    type Key = (TensorType, bool, MatrixShape);

    fn key(&self) -> Self::Key {
        (self.tensor_type, self.experts, self.shape)
    }

    fn conditions(&self) -> &Option<RateConditions> {
        &self.conditions
    }

    fn used(&mut self) -> Option<&mut Option<UsedRate>> {
        Some(&mut self.used)
    }
}

/// The rate of one token's fused attention (`FLASH_ATTN_EXT`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttentionRate {
    /// The type of keys and values.
    #[serde(rename = "type")]
    pub kv_type: TensorType,
    /// The number of elements of a head.
    pub head_size: u32,
    /// The number of query heads that share a head of keys and values.
    pub n_gqa: u32,
    /// The number of heads of keys and values if all heads together are narrow, because the cells of a narrow cache lie
    /// closer together. 0 for a wide cache.
    #[serde(default, skip_serializing_if = "is_default")]
    pub n_head_kv: u32,
    /// Bytes of keys and values per second.
    pub bytes_per_second: u64,
    /// The conditions of the measurement.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conditions: Option<RateConditions>,
    /// The correction from real use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used: Option<UsedRate>,
}

impl AttentionRate {
    /// The rate that plans use, in bytes per second.
    pub fn rate(&self) -> u64 {
        self.used.map_or(self.bytes_per_second, |used| used.per_second)
    }
}

impl Figure for AttentionRate {
    type Key = (TensorType, u32, u32, u32);

    fn key(&self) -> Self::Key {
        (self.kv_type, self.head_size, self.n_gqa, self.n_head_kv)
    }

    fn conditions(&self) -> &Option<RateConditions> {
        &self.conditions
    }

    fn used(&mut self) -> Option<&mut Option<UsedRate>> {
        Some(&mut self.used)
    }
}

/// The rate of many tokens through a matrix.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PromptRate {
    /// The type of the weights.
    #[serde(rename = "type")]
    pub tensor_type: TensorType,
    /// Whether the weights are experts.
    #[serde(default)]
    pub experts: bool,
    /// The shape of the matrix if it is small.
    #[serde(default, skip_serializing_if = "is_default")]
    pub shape: MatrixShape,
    /// The number of tokens of one computation.
    pub n_tokens: u32,
    /// Floating-point operations per second: each weight counts two operations per token.
    pub flops: u64,
    /// The conditions of the measurement.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conditions: Option<RateConditions>,
    /// The correction from real use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used: Option<UsedRate>,
}

impl PromptRate {
    /// The rate that plans use, in operations per second.
    pub fn rate(&self) -> u64 {
        self.used.map_or(self.flops, |used| used.per_second)
    }
}

impl Figure for PromptRate {
    type Key = (TensorType, bool, MatrixShape, u32);

    fn key(&self) -> Self::Key {
        (self.tensor_type, self.experts, self.shape, self.n_tokens)
    }

    fn conditions(&self) -> &Option<RateConditions> {
        &self.conditions
    }

    fn used(&mut self) -> Option<&mut Option<UsedRate>> {
        Some(&mut self.used)
    }
}

/// The rate of the fused attention of many tokens.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PromptAttentionRate {
    /// The type of keys and values.
    #[serde(rename = "type")]
    pub kv_type: TensorType,
    /// The number of elements of a head.
    pub head_size: u32,
    /// The number of query heads that share a head of keys and values.
    pub n_gqa: u32,
    /// The number of heads of keys and values if all heads together are narrow, because the cells of a narrow cache lie
    /// closer together. 0 for a wide cache.
    #[serde(default, skip_serializing_if = "is_default")]
    pub n_head_kv: u32,
    /// The number of tokens of one computation.
    pub n_tokens: u32,
    /// Floating-point operations per second: each element of a query head counts four operations per token and cell.
    pub flops: u64,
    /// The conditions of the measurement.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conditions: Option<RateConditions>,
}

impl Figure for PromptAttentionRate {
    type Key = (TensorType, u32, u32, u32, u32);

    fn key(&self) -> Self::Key {
        (self.kv_type, self.head_size, self.n_gqa, self.n_head_kv, self.n_tokens)
    }

    fn conditions(&self) -> &Option<RateConditions> {
        &self.conditions
    }

    fn used(&mut self) -> Option<&mut Option<UsedRate>> {
        None
    }
}

/// Transfers between the host's memory and the memory of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkRate {
    /// Bytes per second to the device, from the kind of memory that llama.cpp's host weights use.
    pub upload: u64,
    /// Bytes per second from the device.
    pub download: u64,
    /// Nanoseconds to transfer a token's activations, including the wait for the transfer.
    pub crossing_ns: u64,
}

/// The memory that a GPU uses outside the buffers that llama.cpp counts, in bytes: the maximum after real loads. The
/// workload of the measurement is stored too, because a larger workload may need more memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[error("driver {}, growth {}, measured", Bytes(*driver), Bytes(*growth))]
#[non_exhaustive]
#[must_use]
pub struct LearnedHeadroom {
    /// Memory that the driver took during the load. The device was already open, so this does not include a CUDA
    /// context.
    pub driver: u64,
    /// Further memory that was taken during the largest batch and the token after it.
    pub growth: u64,
    /// Bytes of the widest activations of that batch, in 32-bit floats.
    pub activations: u64,
    /// Bytes of the model's largest matrix in a block, decoded to 16-bit floats.
    pub decoded_matrix: u64,
}

impl LearnedHeadroom {
    /// A measurement; [`work`](Self::work) sets its workload.
    pub const fn new(driver: u64, growth: u64) -> Self {
        Self { driver, growth, activations: 0, decoded_matrix: 0 }
    }

    /// Sets the workload of the measurement: the bytes of activations, and the bytes of the largest matrix when
    /// decoded.
    pub const fn work(mut self, activations: u64, decoded_matrix: u64) -> Self {
        self.activations = activations;
        self.decoded_matrix = decoded_matrix;
        self
    }

    /// Whether the measured workload was at least this large, so that the measured growth applies.
    pub const fn covers(&self, activations: u64, decoded_matrix: u64) -> bool {
        self.activations >= activations && self.decoded_matrix >= decoded_matrix
    }

    /// Driver and growth together, in bytes; saturates.
    pub const fn total(&self) -> u64 {
        self.driver.saturating_add(self.growth)
    }

    /// Merges two measurements: takes the larger value of each part, and the larger workload. If neither workload
    /// covers the other, the later workload (`self`) is kept; the merged values are an upper bound for it.
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
    fn merging_keeps_the_larger_parts_and_the_larger_workload() {
        let small = learned(50, 40, (10, 10));
        let large = learned(40, 60, (20, 20));
        let both = learned(50, 60, (20, 20));
        assert_eq!(small.and_earlier(large), both);
        assert_eq!(large.and_earlier(small), both);
        // Neither workload covers the other, so the later workload is kept.
        let other = learned(0, 0, (30, 5));
        assert_eq!(other.and_earlier(small), learned(50, 40, (30, 5)));
        let text = learned(120, 88, (1, 1)).to_string();
        assert_eq!(text, "driver 120 MiB, growth 88 MiB, measured");
    }
}
