//! The estimate of compute buffers: one closed formula for each GPU and another for the host, each with its uncertainty
//! in bytes.
//!
//! llama.cpp reserves a buffer for the graph of the largest batch (`llama_context::sched_reserve`). In every
//! architecture, the widths of the model determine the peak of the buffer. The formulas are made of these sizes in
//! bytes:
//!
//! - `stream`: 4 x tokens x width, one stream of activations. `queries`: 4 x tokens x width of all query heads.
//! - `hidden`: 4 x tokens x width x experts used, the activations of a feed-forward step at its inner width. `ffn_out`:
//!   the results of the experts; without experts `ffn_out` is `stream`.
//! - mask: 2 x tokens x cells, or twice that without fused attention. Scores: 4 x tokens x cells x heads.
//! - logits: 4 x outputs x vocabulary.
//! - `f16`: the F16 copy of a cache. `kv`: the copy of a block's cache from the host. `weight`: the copy of a block's
//!   weight from the host.
//!
//! The peak of each device is the largest of these sums:
//!
//! - GPU, for its own blocks: max(3 `hidden`, 2 `ffn_out` + `stream`) + mask + 4 `stream`; in attention 5 `stream` + 2
//!   (`queries` - `stream`) + mask + `f16`, or without fusion the scores instead of `f16`.
//! - GPU, for the output layer: logits + mask + 4 `stream`.
//! - First GPU, for the host's blocks: `weight` + 2 `hidden` or `weight` + `hidden` + `ffn_out`, each with mask + 4
//!   `stream`; attention with 3/2 `kv`.
//! - A GPU that is not the first GPU with blocks: one `stream` less.
//! - Several GPUs that have all layers keep four copies of the inputs: 12 `stream` more on the first GPU with blocks, 4
//!   `stream` more on each other GPU, and 3 masks more on each GPU.
//! - Host, if GPUs have layers: 4 `stream` + mask or, with four copies, 10 `stream` + 4 masks. In addition, the sums
//!   for the blocks that the host computes itself.
//! - Host alone: the sums of a GPU plus one `stream`.
//! - Deepstack inputs for `d` blocks: d (d + 3) `stream` on each GPU with one of the first `d` blocks, and 3 d `stream`
//!   on the host; with four copies, 4 d (d + 3) `stream` and 9 d `stream`.
//! - Metal: in addition, the partial results of fused attention, and an F16 copy of a cache of any type.
//!
//! [`uncertainty`] lists the terms of the uncertainty with their causes.
//!
//! The formulas were fitted to a simulation of llama.cpp's graphs whose bytes were exactly llama.cpp's. On 95 % of
//! devices, the formulas are off by at most 3 % of the device's total, or by at most 32 MiB;
//! autoplace/tests/load/compute_buffers.rs compares them with llama.cpp.

mod sums;
mod uncertainty;

use super::cost::{CacheKinds, Cost, Largest};
use super::{Assignment, Place};
use crate::memory::backend::Family;
use uncertainty::Uncertainty;

/// A device's compute buffer, in bytes.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Buffer {
    pub(super) bytes: u64,
    /// Bytes by which the real buffer may be larger.
    pub(super) unsure: u64,
}

/// Vulkan allocates chunks of at most this size; a tensor that does not fit goes into another chunk
/// (`ggml_vk_get_device`).
const VULKAN_CHUNK: u128 = 1 << 30;

/// The sizes of one model and one set of parameters, in bytes. The numbers have 128 bits, so that no header can make
/// them overflow.
#[derive(Debug, Clone)]
#[cfg_attr(test, derive(Default))]
pub(super) struct Buffers {
    tokens: u128,
    cells: u128,
    window: u128,
    heads: u128,
    stream: u128,
    queries: u128,
    /// Bytes of queries in addition to the streams that attention always needs.
    extra_queries: u128,
    /// Bytes of the partial results of Metal's fused attention.
    metal_partials: u128,
    hidden: u128,
    ffn_out: u128,
    ffn_step: u128,
    logits: u128,
    /// Bytes of logits that do not belong to the output layer, and of the matrix that computes them.
    further_logits: u128,
    /// The embeddings of the tokens with outputs.
    output_embeddings: u128,
    /// Bytes of the inputs: tokens, positions and indices of cache cells.
    inputs: u128,
    /// Target indices of the values' elements, if the cache stores values transposed.
    value_indices: u128,
    has_experts: bool,
    /// Whether attention is not fused, so that scores are computed in a separate step.
    unfused: bool,
    /// Whether some GPU may not fuse attention although fusion is requested.
    may_be_unfused: bool,
    /// Whether an index selects the keys to which attention attends.
    indexed: bool,
    /// The number of blocks that add a relative position bias to the scores. The attention of such blocks is never
    /// fused (`build_attn_mha`).
    relative_bias_blocks: u128,
    /// Whether keys are compressed.
    compressed: bool,
    /// Whether attention has weights of its own. Such weights keep attention on the GPU.
    has_attention_weights: bool,
    /// Whether attention and the feed-forward step have the same input, which leaves the allocator fewer gaps.
    shares_input: bool,
    offload_kqv: bool,
    /// Whether GPUs may compute with the host's weights.
    op_offload: bool,
    /// Whether a GPU computes with the host's weights of blocks, for a batch of this size.
    offloads_blocks: bool,
    /// Whether a GPU computes with the host's output matrix.
    offloads_output: bool,
    /// Whether the matrices that rotate quantised keys and values are on the host, where the cache is. The first GPU
    /// then borrows them (llama-kv-cache.cpp, `init_rotation`).
    rotates_on_host: bool,
    /// Whether the CPU may have rearranged its weights, so that no GPU computes with them.
    may_repack: bool,
    converts_kv: (bool, bool),
    adapter_products: u128,
    /// Bytes of all adapters, of which a GPU may get copies.
    adapter_bytes: u128,
    /// Bytes of the adapter factors that change the embedding, of which a GPU may get copies.
    adapter_embedding_bytes: u128,
    gpus: Vec<Family>,
    /// Whether the load has tensor overrides.
    pub(super) overridden: bool,
    /// The number of parts of the input that are added after later blocks (deepstack).
    deepstack: u128,
    /// A separate input for each block.
    per_layer: u128,
    /// Whether no block keeps a cache and all tokens attend to each other.
    cacheless: bool,
    /// Whether some block uses the cache of another block.
    reuses_caches: bool,
    /// Whether the formula was fitted on all kinds of the model's blocks.
    pub(super) fitted: bool,
}

fn u128_of(value: impl Into<u64>) -> u128 {
    value.into().into()
}

impl Buffers {
    /// The compute buffers of each GPU and of the host under this assignment.
    pub(super) fn bytes(&self, assignment: &Assignment, cost: &Cost) -> (Vec<Buffer>, Buffer) {
        let on_host = cost.host.held != CacheKinds::default() || assignment.blocks.contains(&Place::Host);
        let view = PlacementView {
            assignment,
            cost,
            on_host,
            copies: self.gpus.len() > 1 && !on_host && self.offload_kqv && !self.overridden,
        };
        ((0..self.gpus.len()).map(|gpu| self.gpu(gpu, &view)).collect(), self.host(&view))
    }

    /// The kinds of caches that the model has.
    const fn all_caches(&self) -> CacheKinds {
        CacheKinds { full: true, windowed: self.window > 0 }
    }

    /// Whether unfused attention is computed on the host because the cache is there. Attention that has weights of its
    /// own stays on the GPU (`llm_graph_context::build_attn`).
    const fn attends_on_host(&self) -> bool {
        self.unfused && !self.offload_kqv && !self.has_attention_weights
    }

    /// Whether the host adds the biases of experts after a GPU has computed the product: Metal takes over only products
    /// (`ggml_backend_metal_device_offload_op`).
    fn adds_elsewhere(&self, host: &Largest) -> bool {
        self.offloads_blocks && host.has_feed_forward() && self.gpus.first() == Some(&Family::Metal)
    }

    fn indices(&self, held: CacheKinds) -> u128 {
        self.value_indices * if held.full && held.windowed { 2 } else { 1 }
    }

    /// Cells of the full and of the windowed caches on a device.
    const fn cells_of(&self, held: CacheKinds) -> (u128, u128) {
        (if held.full { self.cells } else { 0 }, if held.windowed { self.window } else { 0 })
    }

    fn mask(&self, held: CacheKinds) -> u128 {
        let (full, windowed) = self.cells_of(held);
        (full + windowed) * self.tokens * if self.unfused { 4 } else { 2 }
    }

    /// Bytes of scores over the longest cache, and bytes of the other scores that exist at the same time on Vulkan.
    fn scores(&self, held: CacheKinds) -> (u128, u128) {
        let (full, windowed) = self.cells_of(held);
        let of = |cells| 4 * self.tokens * self.heads * cells;
        let longest = of(full.max(windowed));
        (longest, if held.full && held.windowed { of(windowed) } else { longest })
    }

    /// Bytes of the attention step with `streams` streams and `cache` bytes of cache.
    fn attention(&self, held: CacheKinds, streams: u128, cache: u128) -> u128 {
        self.mask(held) + streams * self.stream + self.extra_queries + self.inputs + cache + self.indices(held)
    }

    /// Working memory of fused attention. CUDA makes an F16 copy of the longest cache of another type
    /// (ggml-cuda/fattn.cu, `ggml_cuda_flash_attn_ext_get_alloc_size`). Metal copies a cache of any type and keeps
    /// partial results (`ggml_metal_op_flash_attn_ext_extra_*`).
    fn converted(&self, gpu: usize, (k, v): (u64, u64)) -> u128 {
        let of = |converts, elements: u64| if converts { 2 * u128_of(elements) } else { 0 };
        match self.gpus[gpu] {
            _ if self.unfused => 0,
            Family::Metal => of(true, k) + of(true, v) + self.metal_partials,
            Family::Vulkan => 0,
            _ => of(self.converts_kv.0, k) + of(self.converts_kv.1, v),
        }
    }

    fn gpu(&self, gpu: usize, view: &PlacementView<'_>) -> Buffer {
        let (first, cost) = (gpu == 0, view.cost);
        let (host, here) = (&cost.host.largest, &cost.gpus[gpu].largest);
        let holds_block = |gpu: usize| view.assignment.blocks.contains(&Place::Gpu(gpu));
        let own = holds_block(gpu);
        let borrows = first && self.offloads_blocks && host.largest_of_blocks() > 0;
        let for_host = borrows && host.other > 0;
        let mut held = cost.gpus[gpu].held;
        if borrows {
            held = held.and(cost.host.held);
        }
        // The token embeddings enter on this GPU if no earlier device has a block.
        let begins = first || !(view.on_host || (0..gpu).any(holds_block));
        let streams = if begins { 4 } else { 3 };
        let away = self.attends_on_host();
        let largest = u128_of(cost.largest_on_host);
        let copied = match (away, for_host) {
            (true, _) => 0,
            (_, true) if self.window == 0 => largest * 3 / 2,
            (_, true) => largest,
            _ if own && !self.offload_kqv => largest,
            _ => 0,
        };
        if away {
            held = CacheKinds::default();
        } else if own && (self.cacheless || self.reuses_caches) {
            held = self.all_caches();
        }
        let converted = self.converted(gpu, cost.largest_elements);
        let mut step = Step::default();
        if own || borrows {
            let base = self.mask(held) + streams * self.stream + self.inputs;
            step.attention = self.attention(held, streams + 1, converted + copied);
            step.feed_forward = base;
            if own && here.has_feed_forward() {
                step.feed_forward += self.ffn_step + copied.min(4 * self.stream).min(largest);
            } else if own && self.has_experts {
                // If another device computes the experts, this GPU only multiplies their results by the experts'
                // weights and adds them up. If this GPU borrows the experts, `borrowed` returns the bytes of the step.
                step.feed_forward += self.ffn_out + if self.offloads_blocks { 0 } else { self.ffn_out + self.stream };
            }
            if borrows {
                let with_cache = if for_host { largest } else { u128::MAX };
                step.feed_forward = step
                    .feed_forward
                    .max(base + self.borrowed(host, for_host))
                    .max(self.stacked(host, with_cache, base))
                    .max(self.above(host, for_host));
            }
            if self.unfused {
                (step.scores, step.other_scores) = self.scores(held);
            }
            let mut beside = if own { self.per_layer } else { 0 };
            if view.copies {
                beside += 3 * (self.mask(held) + self.value_indices) + if begins { 12 } else { 4 } * self.stream;
            }
            if view.assignment.blocks.iter().take(self.deepstack as usize).any(|&place| place == Place::Gpu(gpu)) {
                // To copy one part is to copy all parts, because each part is a view of the same tensor
                // (models/qwen3vl.cpp).
                beside += view.in_flight() * self.deepstack * (self.deepstack + 3) * self.stream;
            }
            step.attention += beside;
            step.feed_forward += beside;
        }
        let only_rotates = first && self.rotates_on_host && !own && !borrows;
        if only_rotates {
            step.attention = 2 * self.queries + self.inputs;
        }
        let output = view.assignment.output == Place::Gpu(gpu);
        let borrows_output = first && self.offloads_output && host.output > 0;
        if borrows_output || (output && host.output == 0) {
            let matrix = if borrows_output { u128_of(host.output) } else { 0 };
            let beside = match (own, view.copies) {
                (true, false) => (if first { 4 } else { 1 }) * self.stream + self.mask(held),
                (true, true) => 5 * self.stream + 4 * (self.mask(held) + self.value_indices),
                (false, false) => 3 * self.output_embeddings,
                (false, true) => 5 * self.output_embeddings,
            };
            (step.logits, step.beside) = (self.logits, matrix + beside + self.inputs);
        }
        let bytes = step.bytes(self.gpus[gpu] == Family::Vulkan) + self.adapter_products;
        // If a weight was placed apart from its layer, the attention of the host's blocks may move to this GPU,
        // whatever the batch.
        let adds = self.adds_elsewhere(host) && self.gpus[gpu] != Family::Metal;
        let idle = !own && !borrows && host.largest_of_blocks() > 0;
        let strays = self.op_offload && (view.on_host || idle);
        let strays = strays || cost.weights_moved || adds || self.further_logits > 0;
        if bytes == self.adapter_products && !strays {
            return Buffer::default();
        }
        let compressed = self.queries + 2 * u128_of(cost.largest_elements.0) + largest;
        // Because of the rotation, the attention of the rotated heads may move to this GPU.
        let attention = self.attention(self.all_caches(), 5, converted + largest);
        let unsure = sum(&[
            (true, largest / 2),
            (only_rotates, attention),
            // Copies of a cache on the host overlap. The first term of this list counts half a cache; in one of 1,722
            // random placements, the buffer exceeded that by 2 % of a cache.
            (!self.offload_kqv, largest / 8),
            (strays, 4 * self.stream + (4 << 20)),
            (adds, self.ffn_step),
            (self.has_experts && host.has_feed_forward(), self.ffn_out),
            (borrows, u128_of(host.largest_of_blocks()) * 3 / 4 + converted),
            (output && !own, 4 * self.stream),
            (self.shares_input, converted),
            (self.compressed, compressed),
        ]);
        self.buffer(bytes, unsure, self.gpus[gpu], view)
    }

    /// Bytes that the first GPU needs for a weight that it borrows from the host, and for the step that computes with
    /// this weight. The weight lies in the gap that the previous weight left, and so does the step's result if it fits.
    fn borrowed(&self, host: &Largest, for_host: bool) -> u128 {
        let (up, down) = (u128_of(host.up), u128_of(host.down));
        let rises = 2 * self.hidden + up + if up < self.hidden { self.hidden } else { 0 };
        let (streams, routed) = match (for_host, self.has_experts) {
            (false, _) => (0, 0),
            (true, false) => (2 * self.stream, 0),
            (true, true) => (0, self.stream),
        };
        let falls = down + self.hidden + self.ffn_out + streams;
        let queries = match (for_host, self.compressed) {
            (false, _) => 0,
            (_, true) => 3 * self.queries,
            (_, false) => 2 * self.queries.saturating_sub(self.stream),
        };
        rises.max(falls).max(u128_of(host.other) + self.queries) + queries + routed
    }

    /// Bytes of the buffer if a matrix lies above the gap that the previous matrix left; otherwise 0, because
    /// everything fits into the gap. A matrix lies above the gap if only feed-forward matrices are borrowed, and it is
    /// larger than the previous one.
    fn above(&self, host: &Largest, for_host: bool) -> u128 {
        if host.down > host.up && !for_host {
            u128_of(host.up) + u128_of(host.down) + self.hidden + self.inputs
        } else {
            0
        }
    }

    /// Bytes of the buffer if a cache lies next to a weight, in the gap that another weight left. 0 for a cache that
    /// does not fit there, because it has the bytes of two weights or more.
    fn stacked(&self, host: &Largest, cache: u128, base: u128) -> u128 {
        let weight = u128_of(host.up.max(host.down));
        if cache < 2 * weight { weight + cache + base + self.stream } else { 0 }
    }

    fn host(&self, view: &PlacementView<'_>) -> Buffer {
        let alone = self.gpus.is_empty();
        let all = self.all_caches();
        let host = &view.cost.host.largest;
        let idle = !alone && self.offloads_blocks && !self.may_repack;
        let mut step = Step::default();
        let (streams, masks) = if view.copies { (10, 4) } else { (4, 1) };
        if !alone {
            let copied = masks * (self.mask(all) + self.indices(all));
            step.feed_forward = streams * self.stream + copied + self.inputs;
        }
        if alone || (host.has_feed_forward() && !idle) {
            step.feed_forward = step.feed_forward.max(self.ffn_step + self.mask(all) + 5 * self.stream + self.inputs);
        }
        if alone || (view.on_host && !idle) || self.attends_on_host() {
            step.attention = self.attention(all, 6, 0);
            if self.unfused {
                (step.scores, step.other_scores) = self.scores(all);
            }
            if !self.offload_kqv {
                step.other_scores = 0;
            }
        }
        let output = view.assignment.output == Place::Host || host.output > 0;
        if output && (alone || !self.offloads_output) {
            (step.logits, step.beside) = (self.logits, self.mask(all) + 5 * self.stream + self.inputs);
        }
        let parts = if view.copies { 9 } else { 3 } * self.deepstack * self.stream;
        step.attention += parts;
        step.feed_forward += parts;
        let family = self.gpus.first().copied().unwrap_or(Family::Other);
        let bytes = step.bytes(family == Family::Vulkan) + self.adapter_products;
        let compressed = 2 * (self.queries + u128_of(view.cost.largest_on_host));
        let unsure = sum(&[
            (self.compressed, compressed),
            (self.adds_elsewhere(host), self.ffn_step),
            // A GPU does not borrow an output matrix that the CPU has rearranged.
            (output && self.offloads_output && self.may_repack, self.logits),
        ]);
        self.buffer(bytes, unsure, family, view)
    }

    /// The buffer with its uncertainty. `unsure` is the uncertainty that follows from the device's own roles.
    fn buffer(&self, bytes: u128, unsure: u128, family: Family, view: &PlacementView<'_>) -> Buffer {
        let unsure = Uncertainty::new(self, view, family, bytes).total() + unsure;
        Buffer { bytes: saturate(bytes), unsure: saturate(unsure) }
    }
}

/// The properties of a placement on which the buffers of all devices depend.
struct PlacementView<'a> {
    assignment: &'a Assignment,
    cost: &'a Cost,
    /// Whether the host computes blocks.
    on_host: bool,
    /// Whether four copies of the inputs are in use at the same time.
    copies: bool,
}

impl PlacementView<'_> {
    /// Number of copies of the inputs (`GGML_SCHED_MAX_COPIES`).
    const fn in_flight(&self) -> u128 {
        if self.copies { 4 } else { 1 }
    }
}

/// Bytes that a device needs at the same time in each step.
#[derive(Default)]
struct Step {
    attention: u128,
    /// Scores in the step of `attention`.
    scores: u128,
    /// Other scores, which exist at the same time only in Vulkan's chunks.
    other_scores: u128,
    feed_forward: u128,
    logits: u128,
    /// Bytes that the device needs in addition to the logits.
    beside: u128,
}

impl Step {
    /// The peak over all steps. With Vulkan's chunks, each of the largest tensors has its own chunk, in which there is
    /// no room for anything else.
    fn bytes(&self, in_chunks: bool) -> u128 {
        let last = self.logits + self.beside;
        let whole = (self.attention + self.scores).max(self.feed_forward).max(last);
        if !in_chunks || whole <= VULKAN_CHUNK {
            return whole;
        }
        let scores = self.scores + self.other_scores;
        let beside_logits = self.attention.max(self.feed_forward).max(self.beside);
        let apart =
            [(scores, self.attention), (self.logits, beside_logits)].into_iter().filter(|(large, _)| *large > 0);
        apart.map(|(large, beside)| large + beside).fold(whole, u128::max)
    }
}

/// The sum of the terms whose condition holds.
fn sum(terms: &[(bool, u128)]) -> u128 {
    terms.iter().filter(|(holds, _)| *holds).map(|(_, bytes)| bytes).sum()
}

fn saturate(bytes: u128) -> u64 {
    bytes.try_into().unwrap_or(u64::MAX)
}
