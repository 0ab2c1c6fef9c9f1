//! Bytes of keys, values and recurrent states per device: exact where the law is known (llama-kv-cache.cpp and
//! llama-kv-cache-iswa.cpp and llama-memory-recurrent.cpp, the constructor).

use crate::gguf::TensorType;
use crate::memory::backend::BackendRules;
use crate::memory::context::{ContextParams, ContextSizes, FlashAttention};
use crate::profile::{BlockState, DistilledState, IndexedState, LayerState, ModelProfile, RecurrentState, StateLaw};

use super::{Assignment, Place};

/// Which kinds of caches there are among those of some blocks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Held {
    /// Of every token, or of a state.
    pub(super) full: bool,
    /// Of a window.
    pub(super) windowed: bool,
}

impl Held {
    fn by(block: &BlockState) -> Self {
        let windowed = matches!(block, BlockState::Windowed { .. } | BlockState::CompressedWindowed { .. });
        Self { full: !windowed && *block != BlockState::None, windowed }
    }

    /// Those of both.
    pub(super) const fn and(self, other: Self) -> Self {
        Self { full: self.full || other.full, windowed: self.windowed || other.windowed }
    }
}

/// The bytes of what one block keeps on each device.
#[derive(Debug, Clone, Default)]
struct Cache {
    gpus: Vec<u64>,
    host: u64,
    /// Elements of keys and of values.
    elements: (u64, u64),
    held: Held,
}

/// The bytes of caches of one assignment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct KvCost {
    /// On each GPU.
    pub(super) gpus: Vec<u64>,
    /// On the host.
    pub(super) host: u64,
    /// Elements of keys and of values of the largest block.
    pub(super) largest_elements: (u64, u64),
    /// Bytes of the largest cache on the host.
    pub(super) largest_host: u64,
    /// What the blocks of each GPU keep, and those of the host, wherever their caches are.
    pub(super) on_gpus: Vec<Held>,
    pub(super) on_host: Held,
}

/// A model's caches, one per block, for the GPUs at hand.
#[derive(Debug, Clone)]
pub(super) struct KvTable {
    blocks: Vec<Cache>,
    offload: bool,
    n_gpus: usize,
    window_cells: u64,
}

/// A tensor of what a block keeps: its part, its type, the elements of a row, its rows.
type Tensor = (Part, TensorType, u64, u64);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Keys,
    Values,
    Other,
}

/// What the parameters of the context make of a block's state.
struct Shape<'a> {
    params: &'a ContextParams,
    sizes: &'a ContextSizes,
    /// The width of all values, where they are stored transposed.
    transposed: Option<u32>,
    /// Rows of a cache that keeps every token.
    rows: u64,
    /// Tokens computed at once.
    n_ubatch: u32,
}

impl<'a> Shape<'a> {
    fn new(params: &'a ContextParams, sizes: &'a ContextSizes, widest_v: u32) -> Self {
        // Of what fits a batch (llama-context.cpp, the constructor); 0 stands for all.
        let n_batch = u32::try_from(sizes.n_batch).unwrap_or(u32::MAX);
        Self {
            params,
            sizes,
            // AUTO counts as with: the cache is made before llama.cpp finds out (llama-context.cpp, the constructor,
            // `resolve_fused_ops`).
            transposed: (params.flash_attn == FlashAttention::Off).then_some(widest_v),
            rows: sizes.cells.saturating_mul(sizes.streams),
            n_ubatch: match params.n_ubatch {
                0 => n_batch,
                n => n.min(n_batch),
            },
        }
    }

    /// Cells of a cache that keeps a window, which so many sequences share: the size is computed in 32 bits
    /// (llama-kv-cache-iswa.cpp, the constructor).
    fn window_cells(&self, window: u32, sharing: u32) -> u64 {
        if self.params.swa_full {
            return self.sizes.cells;
        }
        let tokens = window.wrapping_mul(sharing).wrapping_add(self.n_ubatch);
        self.sizes.cells.min(u64::from(tokens)).next_multiple_of(256)
    }

    /// Cells of the windowed cache of a block; 0 without.
    fn window_of(&self, block: &BlockState) -> u64 {
        let sharing = if self.params.kv_unified { self.params.n_seq_max } else { 1 };
        match *block {
            BlockState::Windowed { window, .. } | BlockState::CompressedWindowed { window, .. } => {
                self.window_cells(window, sharing)
            }
            BlockState::Distilled(state) => self.window_cells(state.window, 1),
            _ => 0,
        }
    }

    fn key(&self, k: u32, rows: u64) -> Tensor {
        let ty = self.params.type_k.tensor_type();
        (Part::Keys, ty, u64::from(k), rows)
    }

    fn value(&self, v: u32, rows: u64) -> Tensor {
        let width = self.transposed.unwrap_or(v);
        let ty = self.params.type_v.tensor_type();
        (Part::Values, ty, u64::from(width), rows)
    }

    fn cache(&self, state: LayerState, rows: u64) -> Vec<Tensor> {
        vec![self.key(state.k, rows), self.value(state.v, rows)]
    }

    /// Every sequence has a row, and one more for each token that it can be taken back (llama-memory-recurrent.cpp,
    /// the constructor).
    fn recurrent(&self, state: RecurrentState) -> [Tensor; 2] {
        let rows = u64::from(self.params.n_seq_max).saturating_mul(1 + u64::from(self.params.n_rs_seq));
        [state.r, state.s].map(|n| floats(n, rows))
    }

    fn tensors(&self, block: &BlockState) -> Vec<Tensor> {
        let window = self.window_of(block).saturating_mul(self.sizes.streams);
        match *block {
            BlockState::None => Vec::new(),
            BlockState::Full(state) => self.cache(state, self.rows),
            BlockState::Windowed { state, .. } => self.cache(state, window),
            BlockState::Compressed { k } => vec![self.key(k, self.rows)],
            BlockState::CompressedWindowed { k, .. } => vec![self.key(k, window)],
            BlockState::Indexed(state) => self.indexed(&state),
            BlockState::Distilled(state) => self.distilled(&state),
            BlockState::Recurrent(state) => self.recurrent(state).into(),
            BlockState::FullAndRecurrent(cache, state) => {
                let mut all = self.cache(cache, self.rows);
                all.extend(self.recurrent(state));
                all
            }
        }
    }

    /// The indexer's cache has as many rows as the other (llama-kv-cache-dsa.cpp and llama-kv-cache-msa.cpp,
    /// the constructor).
    fn indexed(&self, state: &IndexedState) -> Vec<Tensor> {
        let mut all = vec![self.key(state.k, self.rows)];
        all.extend(state.v.map(|v| self.value(v, self.rows)));
        all.push(other(self.key(state.index_k, self.rows)));
        // Of one width in all blocks: what is stored transposed is no wider.
        let ty = self.params.type_v.tensor_type();
        let index_v = state.index_v.map(u64::from);
        all.extend(index_v.map(|v| (Part::Other, ty, v, self.rows)));
        all
    }

    /// Each sequence has caches of its own, also where they share one context (llama-kv-cache-dsv4.cpp,
    /// the constructor).
    fn distilled(&self, state: &DistilledState) -> Vec<Tensor> {
        let n_seq = u64::from(self.params.n_seq_max);
        let window = self.window_cells(state.window, 1);
        let mut all = vec![self.key(state.k, window.saturating_mul(n_seq))];
        if let Some(distilled) = state.distilled {
            let ratio = u64::from(distilled.ratio.max(1));
            let cells = self.sizes.cells.div_ceil(ratio).max(1);
            let rows = cells.next_multiple_of(256).saturating_mul(n_seq);
            let keys = [state.k].into_iter().chain(distilled.index_k);
            all.extend(keys.map(|k| other(self.key(k, rows))));
            // What was seen, and how much of it counts.
            let (seen, index_seen) = (distilled.pending, distilled.index_pending);
            all.extend([seen, seen, index_seen, index_seen].map(|n| floats(n, n_seq)));
        }
        all
    }
}

fn floats(n: u32, rows: u64) -> Tensor {
    (Part::Other, TensorType::F32, u64::from(n), rows)
}

fn other((_, ty, ne0, rows): Tensor) -> Tensor {
    (Part::Other, ty, ne0, rows)
}

impl KvTable {
    pub(super) fn new(
        profile: &ModelProfile,
        rules: &[BackendRules],
        params: &ContextParams,
        sizes: &ContextSizes,
    ) -> Self {
        let (blocks, widest_v) = blocks(profile);
        let shape = Shape::new(params, sizes, widest_v);
        let cache = |block: &BlockState| {
            let tensors = shape.tensors(block);
            let bytes = |rules: &BackendRules| {
                let alloc = |&(_, ty, ne0, rows): &Tensor| rules.alloc(ty, ne0, ty.row_bytes(ne0).saturating_mul(rows));
                tensors.iter().map(alloc).fold(0, u64::saturating_add)
            };
            let elements = |part: Part| {
                let of = tensors.iter().find(|tensor| tensor.0 == part);
                of.map_or(0, |&(_, _, ne0, rows)| ne0.saturating_mul(rows))
            };
            Cache {
                gpus: rules.iter().map(bytes).collect(),
                host: bytes(&BackendRules::HOST),
                elements: (elements(Part::Keys), elements(Part::Values)),
                held: Held::by(block),
            }
        };
        let windows = blocks.iter().map(|block| shape.window_of(block));
        Self {
            window_cells: windows.max().unwrap_or(0),
            blocks: blocks.iter().map(cache).collect(),
            offload: params.offload_kqv,
            n_gpus: rules.len(),
        }
    }

    /// Cells of the caches that keep a window; 0 without.
    pub(super) const fn window_cells(&self) -> u64 {
        self.window_cells
    }

    /// Bytes that a block's cache adds to a GPU.
    pub(super) fn block_bytes(&self, gpu: usize, block: usize) -> u64 {
        let cache = self.blocks.get(block).filter(|_| self.offload);
        cache.and_then(|cache| cache.gpus.get(gpu)).map_or(0, |&bytes| bytes)
    }

    /// Bytes that a block's cache adds to the host, if the block is there.
    pub(super) fn host_block_bytes(&self, block: usize) -> u64 {
        self.blocks.get(block).map_or(0, |cache| cache.host)
    }

    /// Bytes of the caches under this assignment: each where its block is, or all on the host.
    pub(super) fn cost(&self, assignment: &Assignment) -> KvCost {
        let mut cost =
            KvCost { gpus: vec![0; self.n_gpus], on_gpus: vec![Held::default(); self.n_gpus], ..KvCost::default() };
        for (cache, &place) in self.blocks.iter().zip(&assignment.blocks) {
            let gpu = match place {
                Place::Gpu(gpu) => Some(gpu).filter(|&gpu| gpu < self.n_gpus),
                Place::Host => None,
            };
            let held = gpu.map_or(&mut cost.on_host, |gpu| &mut cost.on_gpus[gpu]);
            *held = held.and(cache.held);
            if let Some(gpu) = gpu.filter(|_| self.offload) {
                cost.gpus[gpu] = cost.gpus[gpu].saturating_add(cache.gpus[gpu]);
            } else {
                cost.host = cost.host.saturating_add(cache.host);
                cost.largest_host = cost.largest_host.max(cache.host);
            }
            let (k, v) = cost.largest_elements;
            cost.largest_elements = (k.max(cache.elements.0), v.max(cache.elements.1));
        }
        cost
    }
}

/// Bytes that `swa_full` adds to a model's caches, before any device's alignment.
pub(crate) fn full_windows(profile: &ModelProfile, params: &ContextParams) -> u64 {
    let bytes = |swa_full| {
        let mut params = params.clone();
        params.swa_full = swa_full;
        let caches = params.sizes().map(|sizes| KvTable::new(profile, &[], &params, &sizes).blocks);
        caches.unwrap_or_default().iter().map(|cache| cache.host).sum::<u64>()
    };
    bytes(true).saturating_sub(bytes(false))
}

/// What each block keeps, and the width of the widest values. Where the law is unknown: as if every block kept
/// everything, which is more than sliding windows, compressed keys and reused layers take, but says nothing about
/// recurrent states.
fn blocks(profile: &ModelProfile) -> (Vec<BlockState>, u32) {
    match &profile.state {
        StateLaw::Known { blocks, widest_v, .. } => (blocks.clone(), *widest_v),
        StateLaw::Unknown { .. } => {
            let hparams = &profile.hparams;
            (hparams.every_block_in_full(), hparams.widest_v())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{ContextParams, Shape};
    use crate::memory::KvType;
    use crate::profile::{BlockState, Distilled, DistilledState, IndexedState};

    /// Bytes of this block's caches, tensor by tensor, before any alignment.
    fn bytes(params: &ContextParams, block: &BlockState) -> Vec<u64> {
        let sizes = params.sizes().unwrap();
        let tensors = Shape::new(params, &sizes, 0).tensors(block);
        let bytes = |&(_, ty, ne0, rows): &super::Tensor| ty.row_bytes(ne0) * rows;
        tensors.iter().map(bytes).collect()
    }

    fn params(n_ctx: u32, n_seq_max: u32) -> ContextParams {
        ContextParams { n_ctx, n_seq_max, ..ContextParams::default() }
    }

    #[test]
    fn an_indexer_has_as_many_rows_as_the_cache() {
        let mut state = IndexedState { k: 576, v: None, index_k: 128, index_v: None };
        let of = |width: u64| 2 * width * 4096;
        let kept = bytes(&params(4096, 1), &BlockState::Indexed(state));
        assert_eq!(kept, [of(576), of(128)]);
        (state.v, state.index_v) = (Some(512), Some(64));
        let kept = bytes(&params(4096, 1), &BlockState::Indexed(state));
        assert_eq!(kept, [of(576), of(512), of(128), of(64)]);
    }

    #[test]
    fn a_window_of_compressed_keys_is_as_long_as_any_window() {
        let block = BlockState::CompressedWindowed { k: 64, window: 100 };
        let mut short = params(8192, 1);
        short.type_k = KvType::F32;
        // 100 tokens and a batch of 512, padded to 768 cells
        assert_eq!(bytes(&short, &block), [4 * 64 * 768]);
    }

    #[test]
    fn what_lies_before_a_window_is_distilled_for_each_sequence() {
        let block = |distilled| {
            let (k, window) = (64, 100);
            BlockState::Distilled(DistilledState { k, window, distilled })
        };
        let mut shared = params(4096, 2);
        (shared.kv_unified, shared.swa_full) = (true, true);
        // Both sequences have the whole context, though they share it.
        let raw = 2 * 64 * 4096 * 2;
        assert_eq!(bytes(&shared, &block(None)), [raw]);
        let close = Distilled { ratio: 4, index_k: Some(32), pending: 1024, index_pending: 512 };
        let rows = 2 * 4096 / 4;
        let states = [1024, 1024, 512, 512].map(|floats| 4 * floats * 2);
        let kept = [[raw, 2 * 64 * rows, 2 * 32 * rows].as_slice(), &states].concat();
        assert_eq!(bytes(&shared, &block(Some(close))), kept);
    }
}
