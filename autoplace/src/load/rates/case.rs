//! A single measurement: an operation of a realistic size, and the rate that results from its time.

use std::time::Duration;

use llama_sys::{Bench, Operation};

use crate::gguf::TensorType;
use crate::load::Error;
use crate::machine::{
    AttentionRate, LinkRate, MatrixShape, MeasuredRates, PromptAttentionRate, PromptRate, RateConditions, WeightRate,
};

/// One rate of [`MeasuredRates`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the fields are those of the figures")]
#[non_exhaustive]
pub enum RateCase {
    /// A product with a matrix of weights. The result is a [`WeightRate`] for one token, and a [`PromptRate`] for more
    /// tokens. The default shape is a large matrix; experts have only this shape.
    Matrix { tensor_type: TensorType, experts: bool, shape: MatrixShape, n_tokens: u32 },
    /// Attention. The result is an [`AttentionRate`] for one token, and a [`PromptAttentionRate`] for more tokens. An
    /// `n_head_kv` of 0 means the number of key heads that a wide block has.
    Attention { kv_type: TensorType, head_size: u32, n_gqa: u32, n_head_kv: u32, n_tokens: u32 },
    /// [`MeasuredRates::layer_ns`].
    Layer,
    /// [`MeasuredRates::routing_ns`].
    Routing,
    /// [`MeasuredRates::activations_per_second`].
    Activations,
    /// [`MeasuredRates::link`]. The host has no link.
    Link,
}

/// The heads of a measured attention.
#[derive(Debug, Clone, Copy)]
pub(super) struct Heads {
    /// The number of elements per head.
    pub(super) head_size: u32,
    /// The number of query heads per head of keys and values.
    pub(super) n_gqa: u32,
    /// The number of heads of keys and values; 0 means the number that a wide block has.
    pub(super) n_head_kv: u32,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Scale {
    /// Bytes of weights or cache that a graph reads.
    pub(super) working_set: u64,
    /// Floating-point operations of a graph for many tokens.
    flops: u64,
    /// A larger number of operations, for a device that finishes `flops` operations in less than [`SHORT`].
    most_flops: u64,
    /// The number of prompt tokens whose activations are computed at once.
    n_activations: u32,
}

/// Minimum duration of a computation. If it were shorter, the time to reach the device would distort the rate.
const SHORT: Duration = Duration::from_millis(10);

/// Floating-point operations that a thread of a CPU finishes in some milliseconds.
const SHORT_RUN_FLOPS: u64 = 1 << 26;

/// The sizes of a block in models of 7 to 8 billion weights.
const N_EMBD: u32 = 4096;
const N_FF: u32 = 8192;
/// The sizes of the experts in small mixtures of experts.
const EXPERT_EMBD: u32 = 2048;
const EXPERT_FF: u32 = 1024;
const N_EXPERT: u32 = 64;
const N_USED: u32 = 8;
/// Number of cells that attention reads.
const N_KV: u32 = 4096;
/// The number of prompt tokens per computation.
const N_PROMPT: u32 = 512;
/// Number of small matrices in one graph, which may have 8,192 nodes (`MAX_NODES` of llama_sys).
const MAX_SMALL: u32 = 360;
/// Maximum number of KV caches in one graph. The caches of a narrow model are small, and together they must exceed the
/// processor's caches.
const MAX_CACHES: u32 = 64;
/// Number of blocks in one graph.
const N_BLOCKS: u32 = 32;

impl Scale {
    pub(super) fn host(working_set: u64) -> Self {
        Self { working_set, flops: 1 << 32, most_flops: 1 << 32, n_activations: N_PROMPT }
    }

    /// The scale for a GPU: a working set that is larger than the cache of any GPU, and work that takes longer than its
    /// launch.
    pub(super) fn gpu(free: u64) -> Self {
        Self { working_set: free.min(256 << 20), flops: 1 << 37, most_flops: 1 << 37, n_activations: N_PROMPT }
    }

    /// The scale for a remote device, which may be a GPU or a CPU. The first result shows which of the two it is. All
    /// data is sent over the network first.
    pub(super) fn remote(free: u64) -> Self {
        Self { flops: 1 << 32, ..Self::gpu(free.min(32 << 20)) }
    }

    /// The scale for a host with a CPU quota. The parts of each run take a few milliseconds, so most parts end before
    /// the quota stops them. So the lower quartile of the runs is the speed without a quota, which plans expect
    /// (`MeasuredRates::for_share_of_time`).
    pub(super) fn for_share_of_time(self, share: f64, threads: u32) -> Self {
        if share >= 1.0 {
            return self;
        }
        let flops = self.flops.min(u64::from(threads.max(1)) * SHORT_RUN_FLOPS);
        Self { working_set: self.working_set.min(128 << 20), flops, most_flops: flops, n_activations: N_PROMPT / 16 }
    }

    /// Number of rows with which two matrices fit in the working set.
    fn rows(&self, most: u32, row_bytes: u64, flops_per_row: u64) -> u32 {
        let room = self.working_set / 2 / row_bytes.max(1);
        let rows = room.min(self.flops / flops_per_row.max(1));
        // Kernels process rows in tiles.
        let rows = (rows / 64 * 64).clamp(64, most.into());
        u32::try_from(rows).unwrap_or(most)
    }

    /// Number of repetitions of the operation in a graph.
    fn repeats(&self, bytes: u64, most: u32) -> u32 {
        let fit = self.working_set.div_ceil(bytes.max(1)).max(1);
        u32::try_from(fit).unwrap_or(most).min(most)
    }
}

/// An operation, the number of its repetitions in a graph, and how many units each repetition counts: floating-point
/// operations, or elements of activations.
struct Work(Operation, u32, u64);

impl RateCase {
    /// A measurement of large matrices.
    pub(super) fn matrix((tensor_type, experts): (TensorType, bool), n_tokens: u32) -> Self {
        Self::Matrix { tensor_type, experts, shape: MatrixShape::default(), n_tokens }
    }

    /// A measurement of attention with these heads.
    pub(super) fn attention(kv_type: TensorType, heads: Heads, n_tokens: u32) -> Self {
        let Heads { head_size, n_gqa, n_head_kv } = heads;
        Self::Attention { kv_type, head_size, n_gqa, n_head_kv, n_tokens }
    }

    /// Whether the rates contain this measurement.
    pub fn is_in(&self, rates: &MeasuredRates) -> bool {
        self.conditions_in(rates).is_some()
    }

    /// Whether the rates contain this measurement, taken on a quiet machine.
    pub fn is_quiet_in(&self, rates: &MeasuredRates) -> bool {
        let conditions = self.conditions_in(rates);
        conditions.flatten().is_some_and(RateConditions::is_quiet)
    }

    /// The conditions of the measurement, if they were stored. The outer `None` means that there was no such
    /// measurement.
    fn conditions_in<'r>(&self, rates: &'r MeasuredRates) -> Option<Option<&'r RateConditions>> {
        let single = |is_there: bool, conditions: &'r Option<RateConditions>| is_there.then_some(conditions.as_ref());
        let of = &rates.conditions;
        match *self {
            Self::Matrix { tensor_type, experts, shape, n_tokens: 1 } => {
                let is_it =
                    |rate: &&WeightRate| (rate.tensor_type, rate.experts, rate.shape) == (tensor_type, experts, shape);
                rates.weights.iter().find(is_it).map(|rate| rate.conditions.as_ref())
            }
            Self::Matrix { tensor_type, experts, shape, n_tokens } => {
                let is_it = |rate: &&PromptRate| {
                    (rate.tensor_type, rate.experts, rate.shape, rate.n_tokens)
                        == (tensor_type, experts, shape, n_tokens)
                };
                rates.prompts.iter().find(is_it).map(|rate| rate.conditions.as_ref())
            }
            Self::Attention { kv_type, head_size, n_gqa, n_head_kv, n_tokens: 1 } => {
                let is_it = |rate: &&AttentionRate| {
                    (rate.kv_type, rate.head_size, rate.n_gqa, rate.n_head_kv) == (kv_type, head_size, n_gqa, n_head_kv)
                };
                rates.attention.iter().find(is_it).map(|rate| rate.conditions.as_ref())
            }
            Self::Attention { kv_type, head_size, n_gqa, n_head_kv, n_tokens } => {
                let is_it = |rate: &&PromptAttentionRate| {
                    (rate.kv_type, rate.head_size, rate.n_gqa, rate.n_head_kv, rate.n_tokens)
                        == (kv_type, head_size, n_gqa, n_head_kv, n_tokens)
                };
                rates.prompt_attention.iter().find(is_it).map(|rate| rate.conditions.as_ref())
            }
            Self::Layer => single(rates.layer_ns > 0, &of.layer),
            Self::Routing => single(rates.routing_ns > 0, &of.routing),
            Self::Activations => single(rates.activations_per_second > 0, &of.activations),
            Self::Link => single(rates.link.is_some(), &of.link),
        }
    }

    /// Measures the case and adds its rate, unless the device does not support the operation.
    pub(super) fn measure(
        &self,
        bench: &mut Bench,
        scale: &mut Scale,
        each: Duration,
        rates: &mut MeasuredRates,
    ) -> Result<(), Error> {
        let Some(Work(operation, n_repeat, count)) = self.work(scale) else {
            rates.link = link(bench, scale, each)?;
            return Ok(());
        };
        let Some(timing) = bench.time(&operation, n_repeat, each)? else {
            tracing::debug!(?operation, "the device lacks the operation, or room for it");
            return Ok(());
        };
        let of_many = matches!(*self, Self::Matrix { n_tokens, .. } | Self::Attention { n_tokens, .. } if n_tokens > 1);
        if of_many && timing.graph < SHORT && scale.flops < scale.most_flops {
            scale.flops = scale.most_flops;
            return self.measure(bench, scale, each, rates);
        }
        let bytes_per_second = per_second(timing.bytes, timing.graph);
        let counted = per_second(count.saturating_mul(n_repeat.into()), timing.graph);
        let each = (nanoseconds(timing.graph) / u64::from(n_repeat.max(1))).max(1);
        match *self {
            Self::Matrix { tensor_type, experts, shape, n_tokens } if n_tokens > 1 => {
                let (flops, conditions, used) = (counted, None, None);
                rates.prompts.push(PromptRate { tensor_type, experts, shape, n_tokens, flops, conditions, used });
            }
            Self::Matrix { tensor_type, experts, shape, .. } => {
                rates.weights.push(WeightRate { shape, ..WeightRate::new(tensor_type, experts, bytes_per_second) });
            }
            Self::Attention { kv_type, head_size, n_gqa, n_head_kv, n_tokens } if n_tokens > 1 => {
                let (flops, conditions) = (counted, None);
                let rate = PromptAttentionRate { kv_type, head_size, n_gqa, n_head_kv, n_tokens, flops, conditions };
                rates.prompt_attention.push(rate);
            }
            Self::Attention { kv_type, head_size, n_gqa, n_head_kv, .. } => {
                let (conditions, used) = (None, None);
                let rate = AttentionRate { kv_type, head_size, n_gqa, n_head_kv, bytes_per_second, conditions, used };
                rates.attention.push(rate);
            }
            Self::Layer => rates.layer_ns = each,
            Self::Routing => rates.routing_ns = each,
            Self::Activations => rates.activations_per_second = counted,
            Self::Link => {}
        }
        Ok(())
    }

    /// The work of a graph for this case; `None` for the link.
    fn work(&self, scale: &Scale) -> Option<Work> {
        let work = match *self {
            Self::Matrix { tensor_type, experts: false, shape, n_tokens } => {
                matrix(tensor_type, shape, n_tokens, scale)
            }
            Self::Matrix { tensor_type, n_tokens, .. } => experts(tensor_type, n_tokens, scale),
            Self::Attention { kv_type, head_size, n_gqa, n_head_kv, n_tokens } => {
                attention(kv_type, Heads { head_size, n_gqa, n_head_kv }, n_tokens, scale)
            }
            Self::Layer => Work(block(1), N_BLOCKS, 0),
            Self::Activations => {
                // The widths of queries, of keys and values, of the output of attention, and of the feed-forward step.
                let outputs = 3 * N_EMBD + N_EMBD / 2 + 2 * N_FF;
                let n_tokens = scale.n_activations;
                Work(block(n_tokens), 2, u64::from(outputs) * u64::from(n_tokens))
            }
            Self::Routing => {
                let routing =
                    Operation::Routing { n_embd: EXPERT_EMBD, n_expert: N_EXPERT, n_used: N_USED, n_tokens: 1 };
                Work(routing, N_BLOCKS, 0)
            }
            Self::Link => return None,
        };
        Some(work)
    }
}

/// The part of a block without matrices, with keys for a quarter of the heads.
fn block(n_tokens: u32) -> Operation {
    Operation::Block {
        type_id: TensorType::F16.id(),
        n_embd: N_EMBD,
        n_ff: N_FF,
        head_size: 128,
        n_head: N_EMBD / 128,
        n_head_kv: N_EMBD / 128 / 4,
        n_tokens,
    }
}

fn matrix(tensor_type: TensorType, shape: MatrixShape, n_tokens: u32, scale: &Scale) -> Work {
    let is_large = shape == MatrixShape::default();
    let (n_in, most_rows) = if is_large { (N_EMBD, N_FF) } else { (shape.n_in, shape.n_out) };
    let row_bytes = tensor_type.row_bytes(n_in.into());
    let flops = 2 * u64::from(n_in) * u64::from(n_tokens);
    let n_out = scale.rows(most_rows.max(64), row_bytes, flops);
    let bytes = row_bytes * u64::from(n_out);
    let operation = Operation::Matrix { type_id: tensor_type.id(), n_in, n_out, n_tokens };
    // Weights are read once for all tokens, so the working set does not matter for many tokens.
    let most = match n_tokens {
        1 if is_large => 16,
        1 => MAX_SMALL,
        2..=32 => 4,
        _ => 1,
    };
    Work(operation, scale.repeats(bytes, most), flops * u64::from(n_out))
}

fn experts(tensor_type: TensorType, n_tokens: u32, scale: &Scale) -> Work {
    let row_bytes = tensor_type.row_bytes(EXPERT_EMBD.into());
    let flops = 2 * u64::from(EXPERT_EMBD) * u64::from(N_USED) * u64::from(n_tokens);
    let n_out = scale.rows(EXPERT_FF, row_bytes * u64::from(N_EXPERT) / 2, flops);
    let used = row_bytes * u64::from(n_out) * u64::from(N_USED);
    let operation = Operation::Experts {
        type_id: tensor_type.id(),
        n_in: EXPERT_EMBD,
        n_out,
        n_expert: N_EXPERT,
        n_used: N_USED,
        n_tokens,
    };
    let n_repeat = if n_tokens == 1 { scale.repeats(used, 32) } else { 1 };
    Work(operation, n_repeat, flops * u64::from(n_out))
}

fn attention(kv_type: TensorType, heads: Heads, n_tokens: u32, scale: &Scale) -> Work {
    let Heads { head_size, n_gqa, n_head_kv } = heads;
    let many = n_tokens > 1;
    // The attention has as many heads as a block of usual width. For many tokens on a host, a few of these heads are
    // enough work.
    let wide = (N_EMBD / head_size.max(1)).checked_div(n_gqa).map_or(0, |n_head_kv| n_head_kv.max(1));
    let n_head_kv = if n_head_kv == 0 { wide } else { n_head_kv };
    let n_head = n_head_kv.saturating_mul(n_gqa);
    let flops = 4 * u64::from(n_tokens) * u64::from(n_head.saturating_mul(head_size));
    let cell_bytes = 2 * kv_type.row_bytes(u64::from(head_size) * u64::from(n_head_kv));
    let cells = scale.working_set / cell_bytes.max(1);
    let cells = if many { cells.min(scale.flops / flops.max(1)) } else { cells };
    // llama.cpp pads the number of cells that attention reads (llama-kv-cache.cpp, get_n_kv).
    let n_kv = (cells / 256 * 256).clamp(256, N_KV.into());
    let n_kv = u32::try_from(n_kv).unwrap_or(N_KV);
    let operation = Operation::Attention { type_id: kv_type.id(), head_size, n_head, n_head_kv, n_kv, n_tokens };
    let n_repeat = if many { 1 } else { scale.repeats(u64::from(n_kv) * cell_bytes, MAX_CACHES) };
    let flops = [4, head_size, n_head, n_kv, n_tokens].map(u64::from).into_iter().fold(1, u64::saturating_mul);
    Work(operation, n_repeat, flops)
}

fn link(bench: &mut Bench, scale: &Scale, each: Duration) -> Result<Option<LinkRate>, Error> {
    let bytes = scale.working_set.min(64 << 20);
    // `bytes` are at most 64 MiB.
    let size = u32::try_from(bytes).unwrap_or(u32::MAX);
    let timing = bench.link(size, N_EMBD, each)?;
    Ok(timing.map(|timing| LinkRate {
        upload: per_second(bytes, timing.upload),
        download: per_second(bytes, timing.download),
        crossing_ns: nanoseconds(timing.crossing),
    }))
}

/// The rate, but at least 1, because 0 means unknown.
fn per_second(count: u64, time: Duration) -> u64 {
    let rate = u128::from(count) * 1_000_000_000 / time.as_nanos().max(1);
    u64::try_from(rate).unwrap_or(u64::MAX).max(1)
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
