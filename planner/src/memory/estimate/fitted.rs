//! Compute buffers of models whose graph we do not know, which no claim is made for: these sums were fitted on `no_alloc` loads of
//! llama.cpp itself with a simulated GPU: llama-3.1-8b, llama-3.3-70b, llama-3.2-1b, qwen2.5-14b, qwen3-8b and qwen3-30b-a3b at 512
//! to 131072 tokens. For those they were exact to 0.1 MiB with everything on the GPU, or everything on the CPU, and
//! mostly an upper bound in between. [`Estimate::uncertainty`](super::Estimate::uncertainty) covers what they miss of others.
//!
//! Names, in bytes: `E` a stream of activations, `F` a feed-forward step, `D`
//! the outputs of all experts used, `L` logits, `M` the attention mask, `W` the largest weight of the host that the GPU borrows,
//! `KV` one block's cache, `C` what CUDA's fused attention converts of a cache that is not F16.
//!
//! | device | bytes |
//! |---|---|
//! | GPU, all layers | max(`L` + 4`E`, 3`F` + 4`E`, 2`D` + 5`E`, `C` + 5`E`) + `M` |
//! | GPU, some layers | the same for its own; for the host's `H`; `L` + 6`E` + `M` |
//! | CPU without GPU | max(`L` + 6`E`, 3`F` + 5`E`, 2`D` + 6`E`) + `M` |
//! | CPU with a GPU | 4`E` + `M` |
//!
//! `H` = max(`W` + 3`F` + 4`E`, `W` + `KV` + 5`E` if 2`W` > `KV`, 3/2 `KV` + `C` + 5`E`) + `M`. Without fused attention the scores
//! of all heads take the place of `C`, the mask is twice as large, and the places of the values are listed one by one.
//!
//! The second line is the scheduler's doing: from 32 tokens on the GPU computes for the host's layers too
//! (ggml-backend.cpp:1110), which takes it one of their weights at a time and, since the attention between two borrowed weights
//! goes along (`ggml_backend_sched_split_graph`, pass 2), the keys and values of one of their blocks: half a gigabyte at 128k
//! tokens for an 8B model.
//!
//! Beside what it was fitted on: windowed caches have masks and places of their own (`M` is the sum of both); blocks that keep a
//! recurrent state take three of their widest projections and states; and the host's buffer is that of computing its own
//! blocks, since whether attention goes to the GPU along with borrowed weights depends on the graph. `docs/conformance.md` shows
//! what all this is worth.

use crate::machine::Gpu;
use crate::memory::backend::{BackendRules, Family};
use crate::memory::context::{ContextParams, ContextSizes, FlashAttention};
use crate::memory::{KvType, pad};
use crate::profile::{BlockState, ModelProfile};

use super::compute::ComputeBytes;
use super::kv::KvCost;
use super::weights::WeightCost;
use super::{Assignment, Place};

/// From so many tokens on a GPU computes with weights that the host keeps (ggml-cuda.cu:5757, :5928; `GGML_OP_OFFLOAD_MIN_BATCH` changes it).
const OFFLOAD_FROM: u64 = 32;

/// Tokens, positions, outputs, and the cells that keys and values go to: 28 to 36 bytes per token were seen.
const INPUTS_PER_TOKEN: u64 = 40;

/// What one GPU does with attention.
#[derive(Debug, Clone, Copy)]
struct Attention {
    /// Whether it may end up without fused attention.
    may_be_plain: bool,
    /// Whether it converts a cache that is not F16.
    converts_kv: bool,
}

/// The sums for one model on given GPUs.
#[derive(Debug, Clone)]
pub(super) struct FittedCompute {
    sums: Sums,
    /// For each GPU.
    attention: Vec<Attention>,
    flash: FlashAttention,
    overridden: bool,
}

impl FittedCompute {
    /// `window`: cells of the windowed caches, which come with a mask and places of their own; 0 without.
    pub(super) fn new(
        profile: &ModelProfile,
        gpus: &[&Gpu],
        params: &ContextParams,
        sizes: &ContextSizes,
        window: u64,
    ) -> Self {
        let (head_k, head_v) = (profile.hparams.head_dim_k, profile.hparams.head_dim_v);
        // AUTO turns fused attention off where its node is not on its layer's device (llama-context.cpp, `sched_reserve`): with a
        // cache that stays on the host that is so in some graphs.
        let flash = match params.flash_attn {
            FlashAttention::Auto if !params.offload_kqv && !gpus.is_empty() => FlashAttention::Off,
            // What adapters add to queries may be computed on another device, and attention with it.
            FlashAttention::Auto if !profile.adapters.is_empty() && !gpus.is_empty() => {
                FlashAttention::Off
            }
            other => other,
        };
        let attention = |gpu: &&Gpu| Attention {
            may_be_plain: match flash {
                FlashAttention::On => false,
                FlashAttention::Off => true,
                FlashAttention::Auto => !Family::of(&gpu.backend).fuses_attention(head_k, head_v),
            },
            converts_kv: BackendRules::of(&gpu.backend).converts_kv,
        };
        Self {
            sums: Sums::new(profile, params, sizes, window),
            attention: gpus.iter().map(attention).collect(),
            flash,
            overridden: false,
        }
    }

    /// The same with weights elsewhere than their layer.
    pub(super) fn overridden(mut self) -> Self {
        self.overridden = true;
        self
    }

    /// Bytes of the compute buffers under this assignment.
    pub(super) fn bytes(
        &self,
        assignment: &Assignment,
        weights: &WeightCost,
        kv: &KvCost,
    ) -> ComputeBytes {
        let n_gpus = self.attention.len();
        let (copies, host_copies) = if n_gpus > 1 && !self.overridden {
            self.sums.pipeline(assignment)
        } else {
            (0, 0)
        };
        let gpu = |(gpu, &attention): (usize, &Attention)| {
            let compute = self.sums.gpu(gpu, assignment, weights, kv, attention);
            compute.saturating_add(copies)
        };
        let host = self.sums.host(assignment, weights, n_gpus, self.flash);
        ComputeBytes {
            gpus: self.attention.iter().enumerate().map(gpu).collect(),
            host: host.saturating_add(host_copies),
        }
    }
}

/// The building blocks of all sums, in bytes.
#[derive(Debug, Clone, Copy)]
struct Sums {
    /// `4 * n_embd * tokens`.
    e: u64,
    /// The widest feed-forward step: `3 F`, or with experts `2 D + E`.
    steps: u64,
    /// Queries, where they are wider than the stream: what `E` lacks of them.
    wide_queries: u64,
    l: u64,
    m: u64,
    /// Scores of all heads, without fused attention.
    scores: u64,
    inputs: u64,
    /// The places of the values, element by element, where they are stored transposed.
    value_places: u64,
    /// More streams that a mixture of experts keeps while it borrows.
    expert_streams: u64,
    /// Whether large batches go to the GPU even for the host's weights.
    op_offload: bool,
    /// The same for the output matrix, which sees outputs instead of tokens.
    op_offload_output: bool,
    offload_kqv: bool,
    type_k: KvType,
    type_v: KvType,
}

fn product(factors: &[u64]) -> u64 {
    factors.iter().fold(1, |a, &b| a.saturating_mul(b))
}

fn sum(terms: &[u64]) -> u64 {
    terms.iter().fold(0, |a, &b| a.saturating_add(b))
}

impl Sums {
    fn new(
        profile: &ModelProfile,
        params: &ContextParams,
        sizes: &ContextSizes,
        window: u64,
    ) -> Self {
        let hparams = &profile.hparams;
        let (tokens, n_embd) = (sizes.n_tokens, u64::from(hparams.n_embd));
        let e = product(&[4, n_embd, tokens]);
        let heads = hparams.n_head.iter().copied().max().unwrap_or(0);
        let queries = product(&[4, hparams.widest_stream(), tokens]);
        let forward = product(&[3, 4, hparams.widest_ff(), tokens]);
        let experts = hparams.experts.map_or(0, |experts| {
            let outputs = product(&[4, n_embd, u64::from(experts.used), tokens]);
            sum(&[outputs, outputs, e])
        });
        // A quantised cache is rotated by a matrix as wide as a head, one for keys and one for values
        // (llama-kv-cache.cpp:321).
        let quantized = params.type_k.is_quantized() || params.type_v.is_quantized();
        let head = u64::from(hparams.head_dim_k.max(hparams.head_dim_v));
        let rotation = if quantized {
            product(&[2, 4, head, head])
        } else {
            0
        };
        let kv_heads = hparams.n_head_kv.iter().copied().max().unwrap_or(0);
        let values = u64::from(kv_heads).saturating_mul(u64::from(hparams.head_dim_v));
        Self {
            e,
            steps: forward
                .max(experts)
                .max(mixer(profile, sizes, params.n_seq_max)),
            wide_queries: queries.saturating_sub(e),
            l: product(&[4, u64::from(hparams.n_vocab), sizes.n_outputs]),
            m: product(&[2, sizes.cells.saturating_add(window), tokens]),
            scores: product(&[4, sizes.cells, tokens, u64::from(heads)]),
            inputs: product(&[INPUTS_PER_TOKEN, tokens]).saturating_add(rotation),
            value_places: product(&[8, tokens, values, if window > 0 { 2 } else { 1 }]),
            expert_streams: if hparams.experts.is_some() { 3 } else { 0 },
            op_offload: params.op_offload && tokens >= OFFLOAD_FROM,
            op_offload_output: params.op_offload && sizes.n_outputs >= OFFLOAD_FROM,
            offload_kqv: params.offload_kqv,
            type_k: params.type_k,
            type_v: params.type_v,
        }
    }

    /// `n` streams of activations and the inputs.
    fn streams(&self, n: u64) -> u64 {
        self.e.saturating_mul(n).saturating_add(self.inputs)
    }

    /// Attention with `n` streams and `cache` bytes of cache beside them; the queries may be wider than the stream.
    fn attend(&self, n: u64, cache: u64, plain: bool) -> u64 {
        let streams = self.streams(n);
        let fused = sum(&[self.m, cache, streams, self.wide_queries.saturating_mul(2)]);
        if !plain {
            return fused;
        }
        let wide = self.wide_queries.saturating_mul(3);
        let masks = self.m.saturating_mul(2);
        fused.max(sum(&[
            self.scores,
            masks,
            cache,
            streams,
            wide,
            self.value_places,
        ]))
    }

    /// The widest step that feeds forward, with `n` streams and a borrowed weight beside it.
    fn forward(&self, n: u64, borrowed: u64, plain: bool) -> u64 {
        let masks = self.m.saturating_mul(if plain { 2 } else { 1 });
        sum(&[self.steps, masks, borrowed, self.streams(n)])
    }

    /// What four copies of the inputs take beside one, on a GPU and on the host: several GPUs that hold everything work on
    /// consecutive batches at once if they can (llama-context.cpp:405-440). Whether they can is not known here.
    fn pipeline(&self, assignment: &Assignment) -> (u64, u64) {
        let all = assignment.count(Place::Host) == 0;
        if !all || !self.offload_kqv {
            return (0, 0);
        }
        let masks = self.m.saturating_mul(3);
        (
            masks.saturating_add(self.streams(12)),
            masks.saturating_add(self.streams(6)),
        )
    }

    /// The buffer of GPU `gpu`.
    fn gpu(
        &self,
        gpu: usize,
        assignment: &Assignment,
        weights: &WeightCost,
        kv: &KvCost,
        attention: Attention,
    ) -> u64 {
        let place = Place::Gpu(gpu);
        let own_blocks = assignment.holds_block(place);
        let own_logits = assignment.output == place;
        // An override may have put some of a block's weights there.
        let host_blocks = assignment.holds_block(Place::Host) || weights.largest_host_block > 0;
        // The first GPU computes for the host.
        let lends = gpu == 0 && self.op_offload && host_blocks;
        let lends_output = gpu == 0 && self.op_offload_output && assignment.output == Place::Host;
        let converted = if attention.converts_kv {
            kv.converted(self.type_k, self.type_v)
        } else {
            0
        };
        let plain = attention.may_be_plain;
        let mut most = 0;
        if own_blocks {
            most = if self.offload_kqv {
                let attend = self.attend(5, converted, plain);
                self.forward(4, 0, plain).max(attend)
            } else {
                // The cache comes over from the host, block by block.
                let gap = kv.largest_host.min(self.e.saturating_mul(4));
                let copied = (kv.largest_host.saturating_mul(3) / 2).saturating_add(converted);
                self.forward(4, gap, plain)
                    .max(self.attend(5, copied, plain))
            };
        }
        if own_logits {
            let streams = if lends { 6 } else { 4 };
            most = most.max(sum(&[self.l, self.m, self.streams(streams)]));
        }
        if lends_output {
            most = most.max(sum(&[self.l, weights.host_output, self.streams(5)]));
        }
        if lends {
            most = most.max(self.lent(
                weights.largest_host_block,
                kv.largest_host,
                converted,
                plain,
            ));
        }
        // The gap that the converted cache leaves is not always one that the next step fits: a stream more was seen.
        if converted > 0 && most > 0 {
            most = most.saturating_add(self.e);
        }
        most
    }

    /// What the first GPU needs to compute for the host's blocks: `weight` is the largest it borrows, `cache` that of a block.
    ///
    /// The allocator puts what it borrows next into the gap of what it borrowed before, if it is large enough for it.
    fn lent(&self, weight: u64, cache: u64, converted: u64, plain: bool) -> u64 {
        let wide = self.wide_queries.saturating_mul(2);
        let streams = 4 + self.expert_streams;
        // A cache a little larger than the weight needs the difference more.
        let borrowed = weight.max(cache.min(weight.saturating_add(self.e)));
        let forward = self.forward(streams, borrowed, plain).saturating_add(wide);
        // A weight does not always fit into the gap of a cache; up to 1.2 times its size it was seen not to.
        let stacked = if cache < weight.saturating_mul(2) {
            sum(&[weight, cache, self.m, self.streams(streams + 1), wide])
        } else {
            0
        };
        let copied = (cache.saturating_mul(3) / 2).saturating_add(converted);
        // Scores are too large for the gaps that a weight leaves, and lie beside it.
        let copied = if plain { copied.max(weight) } else { copied };
        forward.max(stacked).max(self.attend(5, copied, plain))
    }

    /// The host's buffer, beside `n_gpus` GPUs: that of computing its own blocks, which some GPU may do instead.
    fn host(
        &self,
        assignment: &Assignment,
        weights: &WeightCost,
        n_gpus: usize,
        flash: FlashAttention,
    ) -> u64 {
        let blocks = assignment.holds_block(Place::Host) || weights.largest_host_block > 0;
        let plain = flash == FlashAttention::Off;
        let logits = if assignment.output == Place::Host {
            sum(&[self.l, self.m, self.streams(6)])
        } else {
            0
        };
        let mut least = 0;
        if n_gpus > 0 && (self.op_offload || !blocks) {
            // The embeddings of the tokens and the mask are made here. So is the attention of the host's blocks while tokens
            // are few, but then it is small.
            let masks = self.m.saturating_mul(if plain { 2 } else { 1 });
            let places = if plain { self.value_places } else { 0 };
            least = sum(&[masks, places, self.streams(4)]);
            // A few rows of logits only: more would go to the GPU.
            if logits > 0 {
                least = least.saturating_add(self.l);
            }
            // Attention in steps stays beside a cache on the host, whoever holds the block (llama-graph.cpp:2823).
            if !blocks && self.offload_kqv {
                return least;
            }
        }
        let attend = self.attend(6, 0, plain);
        let forward = self.forward(5, 0, plain);
        forward.max(attend).max(logits).max(least)
    }
}

/// What a block that keeps a state computes at once, generously: three of its widest projections, and three of its states.
fn mixer(profile: &ModelProfile, sizes: &ContextSizes, n_seq: u32) -> u64 {
    let blocks = profile.state.blocks().unwrap_or_default();
    let states = blocks.iter().map(|block| match *block {
        BlockState::Recurrent(state) | BlockState::FullAndRecurrent(_, state) => {
            u64::from(state.r).saturating_add(u64::from(state.s))
        }
        _ => 0,
    });
    let Some(state) = states.max().filter(|&state| state > 0) else {
        return 0;
    };
    let weights = profile
        .weights
        .blocks
        .iter()
        .flat_map(|block| &block.weights);
    let projections = weights.filter(|weight| weight.name.ends_with(".ssm_in.weight"));
    let width = projections.map(|weight| weight.shape[1]).max().unwrap_or(0);
    let tokens = product(&[3, 4, width, sizes.n_tokens]);
    tokens.saturating_add(product(&[3, 4, state, u64::from(n_seq)]))
}

impl KvCost {
    /// What fused attention converts at once: a cache that is not F16, to F16 (ggml-cuda/fattn-common.cuh:68-82).
    fn converted(&self, type_k: KvType, type_v: KvType) -> u64 {
        let (k, v) = self.largest_elements;
        let bytes = |ty: KvType, elements: u64| {
            if ty == KvType::F16 {
                return 0;
            }
            pad(elements.saturating_mul(2), BackendRules::CUDA.alignment)
        };
        bytes(type_k, k).saturating_add(bytes(type_v, v))
    }
}
