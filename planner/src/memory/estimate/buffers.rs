//! Bytes of the compute buffers: one closed formula for a GPU and one for the host, each with the bytes by which
//! it may be too low.
//!
//! llama.cpp reserves a buffer for the graph of the largest batch (`llama_context::sched_reserve`). What it holds at
//! its fullest follows from the widths of the model, whatever its architecture:
//!
//! | name | bytes | |
//! |---|---|---|
//! | `E`, `Q` | 4 x tokens x width | a stream of activations; all queries |
//! | `U`, `D` | 4 x tokens x width x experts used | a feed-forward step; what experts give out (without experts `E`) |
//! | `M`, `S` | 2 x tokens x cells; 4 x tokens x cells x heads | the mask (twice that without fused attention); the
//! scores |
//! | `L` | 4 x outputs x vocabulary | the logits |
//! | `C`, `KV`, `W` | | the cache in F16; a block's cache, and its weight, copied from the host |
//!
//! | role | bytes |
//! |---|---|
//! | GPU, own blocks | max(3`U`, 2`D` + `E`) + `M` + 4`E`, or attention: 5`E` + 2(`Q` - `E`) + `M` + `C`, without
//! fusion `S` in place of `C` |
//! | GPU, logits | `L` + `M` + 4`E` |
//! | first GPU, for the host's blocks | `W` + 2`U` or `W` + `U` + `D`, + `M` + 4`E`; attention with 3/2 `KV` |
//! | GPUs behind others with blocks | one stream less |
//! | several GPUs, all offloaded | 12`E` more on the first that has blocks and 4`E` on the others, 3`M` on each: four
//! copies of the inputs |
//! | host beside GPUs | 4`E` + `M`, in four copies 10`E` + 4`M`; what it computes itself |
//! | host alone | the same steps with one stream more |
//! | parts of the input for `d` blocks | d(d + 3)`E` on the GPU of the first, 3d`E` on the host; in four copies 4 and 3
//! times that |
//! | Metal | partial results of fused attention, and the cache in F16 whatever its type |
//!
//! Fitted on a simulation of llama.cpp's graphs that was equal to it to the byte: within 3 % of the device's total or
//! 32 MiB in 95 % of devices, which autoplace/tests/load/compute_buffers.rs holds against llama.cpp.

mod sums;

use super::cost::Cost;
use super::kv::Held;
use super::weights::Largest;
use super::{Assignment, Place};
use crate::memory::backend::Family;

/// A device's compute buffer.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Buffer {
    pub(super) bytes: u64,
    /// Bytes that it may be larger by.
    pub(super) unsure: u64,
}

/// Vulkan's buffers are this large at most; what does not fit goes to another (`ggml_vk_get_device`).
const VULKAN_CHUNK: u128 = 1 << 30;

/// The sums of one model, for one set of parameters: bytes, in 128 bits, which no header overflows.
#[derive(Debug, Clone)]
pub(super) struct Buffers {
    tokens: u128,
    cells: u128,
    window: u128,
    heads: u128,
    e: u128,
    q: u128,
    /// What queries take beside the streams that attention holds anyway.
    wide: u128,
    /// Metal's partial results of fused attention.
    partial: u128,
    u: u128,
    d: u128,
    steps: u128,
    logits: u128,
    /// Logits, and what they are computed with, that no layer of the output has.
    further_logits: u128,
    /// The embeddings of the outputs.
    outputs: u128,
    /// Tokens, positions, places in the cache.
    inputs: u128,
    /// Where each element of the values goes, if they are stored transposed.
    places: u128,
    experts: bool,
    /// Whether scores are computed step by step.
    plain: bool,
    /// Whether some GPU may do so although asked for fused attention.
    may_be_plain: bool,
    /// Whether keys are chosen by others.
    indexed: bool,
    /// Blocks whose scores have a bias for each distance, and are never fused (`build_attn_mha`).
    biased: u128,
    /// Whether keys are compressed, and whether attention has weights of its own that keep it on the GPU.
    compressed: bool,
    weighted: bool,
    /// Whether attention and the feed-forward step see the same input: then the allocator finds fewer gaps.
    beside: bool,
    offload_kqv: bool,
    /// Whether GPUs compute with the host's block weights, and with its output matrix.
    op_offload: bool,
    lends: bool,
    lends_output: bool,
    /// Whether the CPU may have rearranged its weights, so that no GPU borrows them after all.
    may_repack: bool,
    converts: (bool, bool),
    adapters: u128,
    /// Bytes of all adapters, and of their factors of the embedding, which a GPU may be given copies of.
    adapted: u128,
    embedded: u128,
    gpus: Vec<Family>,
    /// Whether weights may be elsewhere than their layer.
    pub(super) overridden: bool,
    /// Parts of the input that are added after later blocks.
    deepstack: u128,
    /// An input of each block's own.
    per_layer: u128,
    /// Whether all tokens see each other and nothing is kept, and whether some block uses the cache of another.
    cacheless: bool,
    reuses: bool,
    /// Whether all blocks are of a kind that the formula was fitted on.
    pub(super) fitted: bool,
}

fn n(value: impl Into<u64>) -> u128 {
    value.into().into()
}

impl Buffers {
    /// The compute buffers of each GPU and of the host under this assignment.
    pub(super) fn bytes(&self, assignment: &Assignment, cost: &Cost) -> (Vec<Buffer>, Buffer) {
        let on_host = cost.host.held != Held::default() || assignment.blocks.contains(&Place::Host);
        let scene = Scene {
            assignment,
            cost,
            on_host,
            copies: self.gpus.len() > 1 && !on_host && self.offload_kqv && !self.overridden,
        };
        ((0..self.gpus.len()).map(|gpu| self.gpu(gpu, &scene)).collect(), self.host(&scene))
    }

    /// Every cache that the model has.
    const fn all(&self) -> Held {
        Held { full: true, windowed: self.window > 0 }
    }

    /// Whether attention in steps stays beside a cache on the host, which it does unless one of its weights is on the
    /// GPU (`llm_graph_context::build_attn`).
    const fn attends_on_host(&self) -> bool {
        self.plain && !self.offload_kqv && !self.weighted
    }

    /// Whether what is added to a borrowed product is added elsewhere, the biases of experts: Metal borrows for
    /// products alone (`ggml_backend_metal_device_offload_op`).
    fn adds_elsewhere(&self, host: &Largest) -> bool {
        self.lends && host.feeds() && self.gpus.first() == Some(&Family::Metal)
    }

    fn places(&self, held: Held) -> u128 {
        self.places * if held.full && held.windowed { 2 } else { 1 }
    }

    /// Cells of the caches of everything and of windows that a device holds.
    const fn cells_of(&self, held: Held) -> (u128, u128) {
        (if held.full { self.cells } else { 0 }, if held.windowed { self.window } else { 0 })
    }

    fn mask(&self, held: Held) -> u128 {
        let (full, windowed) = self.cells_of(held);
        (full + windowed) * self.tokens * if self.plain { 4 } else { 2 }
    }

    /// The scores of the longest cache; what Vulkan keeps of others beside them.
    fn scores(&self, held: Held) -> (u128, u128) {
        let (full, windowed) = self.cells_of(held);
        let of = |cells| 4 * self.tokens * self.heads * cells;
        let longest = of(full.max(windowed));
        (longest, if held.full && held.windowed { of(windowed) } else { longest })
    }

    /// Attention beside `streams`, with `cache` bytes of cache.
    fn attention(&self, held: Held, streams: u128, cache: u128) -> u128 {
        self.mask(held) + streams * self.e + self.wide + self.inputs + cache + self.places(held)
    }

    /// What fused attention works in beside its result: with CUDA the F16 copy of the longest cache of another type
    /// (ggml-cuda/fattn.cu, `ggml_cuda_flash_attn_ext_get_alloc_size`), with Metal such a copy of any type, and partial
    /// results (`ggml_metal_op_flash_attn_ext_extra_*`).
    fn converted(&self, gpu: usize, (k, v): (u64, u64)) -> u128 {
        let of = |converts, elements: u64| if converts { 2 * n(elements) } else { 0 };
        match self.gpus[gpu] {
            _ if self.plain => 0,
            Family::Metal => of(true, k) + of(true, v) + self.partial,
            Family::Vulkan => 0,
            _ => of(self.converts.0, k) + of(self.converts.1, v),
        }
    }

    fn gpu(&self, gpu: usize, scene: &Scene<'_>) -> Buffer {
        let (first, cost) = (gpu == 0, scene.cost);
        let (host, here) = (&cost.host.largest, &cost.gpus[gpu].largest);
        let holds_block = |gpu: usize| scene.assignment.blocks.contains(&Place::Gpu(gpu));
        let own = holds_block(gpu);
        let borrows = first && self.lends && host.of_blocks() > 0;
        let for_host = borrows && host.other > 0;
        let mut held = cost.gpus[gpu].held;
        if borrows {
            held = held.and(cost.host.held);
        }
        // What comes in is here, if no GPU before has a block.
        let begins = first || !(scene.on_host || (0..gpu).any(holds_block));
        let streams = if begins { 4 } else { 3 };
        let away = self.attends_on_host();
        let largest = n(cost.largest_on_host);
        let copied = match (away, for_host) {
            (true, _) => 0,
            (_, true) if self.window == 0 => largest * 3 / 2,
            (_, true) => largest,
            _ if own && !self.offload_kqv => largest,
            _ => 0,
        };
        if away {
            held = Held::default();
        } else if own && (self.cacheless || self.reuses) {
            held = self.all();
        }
        let converted = self.converted(gpu, cost.largest_elements);
        let mut step = Step::default();
        if own || borrows {
            let base = self.mask(held) + streams * self.e + self.inputs;
            step.attention = self.attention(held, streams + 1, converted + copied);
            step.feed = base;
            if own && here.feeds() {
                step.feed += self.steps + copied.min(4 * self.e).min(largest);
            } else if own && self.experts {
                // Whoever computes with the experts hands their results over; weights and sums are this GPU's.
                step.feed += self.d + if self.lends { 0 } else { self.d + self.e };
            }
            if borrows {
                let with_cache = if for_host { largest } else { u128::MAX };
                step.feed = step
                    .feed
                    .max(base + self.borrowed(host, for_host))
                    .max(self.stacked(host, with_cache, base))
                    .max(self.above(host, for_host));
            }
            if self.plain {
                (step.scores, step.kept) = self.scores(held);
            }
            let mut beside = if own { self.per_layer } else { 0 };
            if scene.copies {
                beside += 3 * (self.mask(held) + self.places) + if begins { 12 } else { 4 } * self.e;
            }
            if scene.assignment.blocks.iter().take(self.deepstack as usize).any(|&place| place == Place::Gpu(gpu)) {
                // Of each part that is copied all parts come along: it is a view of them (models/qwen3vl.cpp).
                beside += scene.in_flight() * self.deepstack * (self.deepstack + 3) * self.e;
            }
            step.attention += beside;
            step.feed += beside;
        }
        let output = scene.assignment.output == Place::Gpu(gpu);
        let lends_output = first && self.lends_output && host.output > 0;
        if lends_output || (output && host.output == 0) {
            let matrix = if lends_output { n(host.output) } else { 0 };
            let beside = match (own, scene.copies) {
                (true, false) => (if first { 4 } else { 1 }) * self.e + self.mask(held),
                (true, true) => 5 * self.e + 4 * (self.mask(held) + self.places),
                (false, false) => 3 * self.outputs,
                (false, true) => 5 * self.outputs,
            };
            (step.logits, step.beside) = (self.logits, matrix + beside + self.inputs);
        }
        let bytes = step.bytes(self.gpus[gpu] == Family::Vulkan) + self.adapters;
        // What has a weight of its own elsewhere may bring attention of the host's blocks here, whatever the batch.
        let adds = self.adds_elsewhere(host) && self.gpus[gpu] != Family::Metal;
        let idle = !own && !borrows && host.of_blocks() > 0;
        let strays = self.op_offload && (scene.on_host || idle);
        let strays = strays || cost.astray || adds || self.further_logits > 0;
        if bytes == self.adapters && !strays {
            return Buffer::default();
        }
        let compressed = self.q + 2 * n(cost.largest_elements.0) + largest;
        let unsure = sum(&[
            (true, largest / 2),
            // Copies of a cache on the host overlap: by 2 % of one more than half in one of 1,722 rolled placements.
            (!self.offload_kqv, largest / 8),
            (strays, 4 * self.e + (4 << 20)),
            (adds, self.steps),
            (self.experts && host.feeds(), self.d),
            (borrows, n(host.of_blocks()) * 3 / 4 + converted),
            (output && !own, 4 * self.e),
            (self.beside, converted),
            (self.compressed, compressed),
        ]);
        self.buffer(bytes, unsure, self.gpus[gpu], scene)
    }

    /// A borrowed weight takes the gap of the one before; a step's result takes it too if it fits.
    fn borrowed(&self, host: &Largest, for_host: bool) -> u128 {
        let (up, down) = (n(host.up), n(host.down));
        let rises = 2 * self.u + up + if up < self.u { self.u } else { 0 };
        let (streams, routed) = match (for_host, self.experts) {
            (false, _) => (0, 0),
            (true, false) => (2 * self.e, 0),
            (true, true) => (0, self.e),
        };
        let falls = down + self.u + self.d + streams;
        let queries = match (for_host, self.compressed) {
            (false, _) => 0,
            (_, true) => 3 * self.q,
            (_, false) => 2 * self.q.saturating_sub(self.e),
        };
        rises.max(falls).max(n(host.other) + self.q) + queries + routed
    }

    /// Of feed-forward matrices alone: one that is larger than the one before lies above its gap, where all
    /// else finds room.
    fn above(&self, host: &Largest, for_host: bool) -> u128 {
        if host.down > host.up && !for_host { n(host.up) + n(host.down) + self.u + self.inputs } else { 0 }
    }

    /// A cache that is no larger than the gap of a weight lies beside it.
    fn stacked(&self, host: &Largest, cache: u128, base: u128) -> u128 {
        let weight = n(host.up.max(host.down));
        if cache < 2 * weight { weight + cache + base + self.e } else { 0 }
    }

    fn host(&self, scene: &Scene<'_>) -> Buffer {
        let alone = self.gpus.is_empty();
        let all = self.all();
        let host = &scene.cost.host.largest;
        let idle = !alone && self.lends && !self.may_repack;
        let mut step = Step::default();
        let (streams, masks) = if scene.copies { (10, 4) } else { (4, 1) };
        if !alone {
            let copied = masks * (self.mask(all) + self.places(all));
            step.feed = streams * self.e + copied + self.inputs;
        }
        if alone || (host.feeds() && !idle) {
            step.feed = step.feed.max(self.steps + self.mask(all) + 5 * self.e + self.inputs);
        }
        if alone || (scene.on_host && !idle) || self.attends_on_host() {
            step.attention = self.attention(all, 6, 0);
            if self.plain {
                (step.scores, step.kept) = self.scores(all);
            }
            if !self.offload_kqv {
                step.kept = 0;
            }
        }
        let output = scene.assignment.output == Place::Host || host.output > 0;
        if output && (alone || !self.lends_output) {
            (step.logits, step.beside) = (self.logits, self.mask(all) + 5 * self.e + self.inputs);
        }
        let parts = if scene.copies { 9 } else { 3 } * self.deepstack * self.e;
        step.attention += parts;
        step.feed += parts;
        let family = self.gpus.first().copied().unwrap_or(Family::Other);
        let bytes = step.bytes(family == Family::Vulkan) + self.adapters;
        let compressed = 2 * (self.q + n(scene.cost.largest_on_host));
        let unsure = sum(&[
            (self.compressed, compressed),
            (self.adds_elsewhere(host), self.steps),
            // A GPU does not borrow an output matrix that the CPU has rearranged.
            (output && self.lends_output && self.may_repack, self.logits),
        ]);
        self.buffer(bytes, unsure, family, scene)
    }

    /// The buffer and what may come on top: an eighth and two streams, and what the placement leaves open. `unsure`:
    /// what this device's own roles leave open.
    fn buffer(&self, bytes: u128, unsure: u128, family: Family, scene: &Scene<'_>) -> Buffer {
        let all = self.all();
        let (scores, _) = self.scores(all);
        let host = scene.cost.host.largest.of_blocks() > 0;
        let in_chunks = family == Family::Vulkan && bytes > VULKAN_CHUNK * 3 / 4;
        let torn = !self.offload_kqv || (self.beside && self.overridden);
        let plain = self.plain && !self.gpus.is_empty() && ((self.lends && host) || torn || self.weighted);
        let (keys, values) = scene.cost.largest_elements;
        let cache = n(keys) + n(values);
        let base = ((bytes + self.logits) / 8).max(8 << 20) + 2 * self.e + self.inputs;
        let astray = self.steps + self.logits + self.attention(all, 6, cache) + 2 * scores;
        let fused = !self.plain;
        // AUTO gives fused attention up where it would run elsewhere than its layer (`resolve_fused_ops`).
        let given_up = fused && (self.beside || self.experts) && self.overridden && !self.offload_kqv;
        // Metal fuses no attention over a cache on the host.
        let metal = fused && self.gpus.contains(&Family::Metal);
        let metal = metal && (scene.on_host || !self.offload_kqv);
        let terms = [
            (true, base + self.adapters + (1 << 20)),
            (in_chunks, bytes * 5 / 8),
            (scene.copies, 5 * self.e + self.inputs),
            (scene.copies && self.indexed, 3 * bytes),
            (self.cacheless, scene.in_flight() * self.mask(all)),
            (self.reuses, scene.in_flight() * 4 * cache),
            (true, 2 * scene.in_flight() * self.per_layer),
            (plain, scores + self.mask(all) + n(scene.cost.largest_on_host)),
            (self.may_be_plain, 2 * scores + 4 * self.attention(all, 2, cache)),
            (given_up, scores * 2),
            // A GPU may be given copies of the factors of the embedding.
            (self.adapters > 0, bytes.max(128 << 20) + self.adapted),
            (scene.copies, 3 * self.embedded),
            (true, 2 * self.deepstack * self.e + self.further_logits),
            (scene.cost.astray, astray),
            (!self.fitted, bytes.max(64 << 20)),
            (metal, 2 * scores),
            (self.biased > 0, 3 * scores + scene.in_flight() * 4 * self.biased * self.tokens * self.cells),
            // Of hybrids AUTO may give it up on any device, and an indexer has scores of its own.
            (!self.fitted && fused && (self.indexed || !self.gpus.is_empty()), 2 * scores),
        ];
        Buffer { bytes: saturate(bytes), unsure: saturate(sum(&terms) + unsure) }
    }
}

/// A placement, as all devices see it.
struct Scene<'a> {
    assignment: &'a Assignment,
    cost: &'a Cost,
    /// Whether the host computes blocks.
    on_host: bool,
    /// Whether four copies of the inputs are in flight.
    copies: bool,
}

impl Scene<'_> {
    /// Copies of the inputs (`GGML_SCHED_MAX_COPIES`).
    const fn in_flight(&self) -> u128 {
        if self.copies { 4 } else { 1 }
    }
}

/// What a device holds at once in each step.
#[derive(Default)]
struct Step {
    attention: u128,
    /// Scores, beside attention; those of others, which only chunks keep apart.
    scores: u128,
    kept: u128,
    feed: u128,
    logits: u128,
    /// What lies beside the logits.
    beside: u128,
}

impl Step {
    /// The fullest step. In chunks the largest tensors lie apart, where nothing else finds room beside them.
    fn bytes(&self, in_chunks: bool) -> u128 {
        let last = self.logits + self.beside;
        let whole = (self.attention + self.scores).max(self.feed).max(last);
        if !in_chunks || whole <= VULKAN_CHUNK {
            return whole;
        }
        let scores = self.scores + self.kept;
        let beside_logits = self.attention.max(self.feed).max(self.beside);
        let apart =
            [(scores, self.attention), (self.logits, beside_logits)].into_iter().filter(|(large, _)| *large > 0);
        apart.map(|(large, beside)| large + beside).fold(whole, u128::max)
    }
}

/// The bytes of all that holds.
fn sum(terms: &[(bool, u128)]) -> u128 {
    terms.iter().filter(|(holds, _)| *holds).map(|(_, bytes)| bytes).sum()
}

fn saturate(bytes: u128) -> u64 {
    bytes.try_into().unwrap_or(u64::MAX)
}
