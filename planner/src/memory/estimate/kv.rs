//! Bytes of keys, values and recurrent states per device: exact where the law is known (llama-kv-cache.cpp and
//! llama-kv-cache-iswa.cpp and llama-memory-recurrent.cpp, the constructor).

use crate::gguf::TensorType;
use crate::memory::backend::BackendRules;
use crate::memory::context::{ContextParams, ContextSizes, FlashAttention};
use crate::profile::{
    BlockState, DistilledState, IndexedState, LayerState, ModelProfile, RecurrentState, StateLaw,
};

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
        let windowed = matches!(
            block,
            BlockState::Windowed { .. } | BlockState::CompressedWindowed { .. }
        );
        Self {
            full: !windowed && *block != BlockState::None,
            windowed,
        }
    }

    /// Those of both.
    pub(super) const fn and(self, other: Self) -> Self {
        Self {
            full: self.full || other.full,
            windowed: self.windowed || other.windowed,
        }
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

/// A tensor: its type, the elements of a row, its rows.
type Tensor = (TensorType, u64, u64);

/// The tensors of what a block keeps.
#[derive(Debug, Clone, Default)]
struct Tensors {
    keys: Option<Tensor>,
    values: Option<Tensor>,
    others: Vec<Tensor>,
}

impl Tensors {
    fn all(&self) -> impl Iterator<Item = &Tensor> {
        self.keys.iter().chain(&self.values).chain(&self.others)
    }
}

/// What the parameters of the context make of a block's state.
struct Shape {
    type_k: TensorType,
    type_v: TensorType,
    /// The width of all values, where they are stored transposed.
    transposed: Option<u32>,
    /// Rows of a cache that keeps every token.
    rows: u64,
    /// Tokens computed at once, sequences, and those that share a window's cells.
    n_ubatch: u32,
    n_seq: u32,
    n_rs_seq: u32,
    n_seq_shared: u32,
    swa_full: bool,
    streams: u64,
    cells: u64,
}

impl Shape {
    fn new(params: &ContextParams, sizes: &ContextSizes, widest_v: u32) -> Self {
        // Of what fits a batch (llama-context.cpp, the constructor); 0 stands for all.
        let n_batch = u32::try_from(sizes.n_batch).unwrap_or(u32::MAX);
        let n_ubatch = match params.n_ubatch {
            0 => n_batch,
            n => n.min(n_batch),
        };
        Self {
            type_k: params.type_k.tensor_type(),
            type_v: params.type_v.tensor_type(),
            // AUTO counts as with: the cache is made before llama.cpp finds out (llama-context.cpp, the constructor,
            // `resolve_fused_ops`).
            transposed: (params.flash_attn == FlashAttention::Off).then_some(widest_v),
            rows: sizes.cells.saturating_mul(sizes.streams),
            n_ubatch,
            n_seq: params.n_seq_max,
            n_rs_seq: params.n_rs_seq,
            n_seq_shared: if params.kv_unified {
                params.n_seq_max
            } else {
                1
            },
            swa_full: params.swa_full,
            streams: sizes.streams,
            cells: sizes.cells,
        }
    }

    /// Cells of a cache that keeps a window: the size is computed in 32 bits (llama-kv-cache-iswa.cpp,
    /// the constructor).
    fn window_cells(&self, window: u32, sharing: u32) -> u64 {
        if self.swa_full {
            return self.cells;
        }
        let tokens = window.wrapping_mul(sharing).wrapping_add(self.n_ubatch);
        self.cells.min(u64::from(tokens)).next_multiple_of(256)
    }

    fn key(&self, k: u32, rows: u64) -> Option<Tensor> {
        Some((self.type_k, u64::from(k), rows))
    }

    fn value(&self, v: u32, rows: u64) -> Option<Tensor> {
        let width = self.transposed.unwrap_or(v);
        Some((self.type_v, u64::from(width), rows))
    }

    fn cache(&self, state: LayerState, rows: u64) -> Tensors {
        Tensors {
            keys: self.key(state.k, rows),
            values: self.value(state.v, rows),
            others: Vec::new(),
        }
    }

    /// Every sequence has a row, and one more for each token that it can be taken back (llama-memory-recurrent.cpp,
    /// the constructor).
    fn recurrent(&self, state: RecurrentState) -> Vec<Tensor> {
        let rows = u64::from(self.n_seq).saturating_mul(1 + u64::from(self.n_rs_seq));
        let floats = |n: u32| (TensorType::F32, u64::from(n), rows);
        vec![floats(state.r), floats(state.s)]
    }

    fn tensors(&self, block: &BlockState) -> Tensors {
        let window = |window| {
            let cells = self.window_cells(window, self.n_seq_shared);
            cells.saturating_mul(self.streams)
        };
        match *block {
            BlockState::None => Tensors::default(),
            BlockState::Full(state) => self.cache(state, self.rows),
            BlockState::Windowed { state, window: n } => self.cache(state, window(n)),
            BlockState::Compressed { k } => Tensors {
                keys: self.key(k, self.rows),
                ..Tensors::default()
            },
            BlockState::CompressedWindowed { k, window: n } => Tensors {
                keys: self.key(k, window(n)),
                ..Tensors::default()
            },
            BlockState::Indexed(state) => self.indexed(&state),
            BlockState::Distilled(state) => self.distilled(&state),
            BlockState::Recurrent(state) => Tensors {
                others: self.recurrent(state),
                ..Tensors::default()
            },
            BlockState::FullAndRecurrent(cache, state) => Tensors {
                others: self.recurrent(state),
                ..self.cache(cache, self.rows)
            },
        }
    }

    /// The indexer's cache has as many rows as the other (llama-kv-cache-dsa.cpp and llama-kv-cache-msa.cpp,
    /// the constructor).
    fn indexed(&self, state: &IndexedState) -> Tensors {
        let index = [
            self.key(state.index_k, self.rows),
            // Of one width in all blocks: what is stored transposed is no wider.
            state
                .index_v
                .map(|v| (self.type_v, u64::from(v), self.rows)),
        ];
        Tensors {
            keys: self.key(state.k, self.rows),
            values: state.v.and_then(|v| self.value(v, self.rows)),
            others: index.into_iter().flatten().collect(),
        }
    }

    /// Each sequence has caches of its own, also where they share one context (llama-kv-cache-dsv4.cpp,
    /// the constructor).
    fn distilled(&self, state: &DistilledState) -> Tensors {
        let n_seq = u64::from(self.n_seq);
        let window = self.window_cells(state.window, 1);
        let mut others = Vec::new();
        if let Some(distilled) = state.distilled {
            let cells = self.cells.div_ceil(u64::from(distilled.ratio.max(1)));
            let rows = cells.max(1).next_multiple_of(256).saturating_mul(n_seq);
            others.extend(self.key(state.k, rows));
            others.extend(distilled.index_k.and_then(|k| self.key(k, rows)));
            for floats in [distilled.pending, distilled.index_pending] {
                // What was seen, and how much of it counts.
                others.extend([(TensorType::F32, u64::from(floats), n_seq); 2]);
            }
        }
        Tensors {
            keys: self.key(state.k, window.saturating_mul(n_seq)),
            values: None,
            others,
        }
    }
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
                tensors.all().fold(0, |sum: u64, &(ty, ne0, rows)| {
                    let bytes = ty.row_bytes(ne0).saturating_mul(rows);
                    sum.saturating_add(rules.alloc(ty, ne0, bytes))
                })
            };
            let elements = |tensor: Option<Tensor>| {
                tensor.map_or(0, |(_, ne0, rows)| ne0.saturating_mul(rows))
            };
            Cache {
                gpus: rules.iter().map(bytes).collect(),
                host: bytes(&BackendRules::HOST),
                elements: (elements(tensors.keys), elements(tensors.values)),
                held: Held::by(block),
            }
        };
        let windows = blocks.iter().map(|block| match *block {
            BlockState::Windowed { window, .. } | BlockState::CompressedWindowed { window, .. } => {
                shape.window_cells(window, shape.n_seq_shared)
            }
            BlockState::Distilled(state) => shape.window_cells(state.window, 1),
            _ => 0,
        });
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
        cache
            .and_then(|cache| cache.gpus.get(gpu).copied())
            .unwrap_or(0)
    }

    /// Bytes that a block's cache adds to the host, if the block is there.
    pub(super) fn host_block_bytes(&self, block: usize) -> u64 {
        self.blocks.get(block).map_or(0, |cache| cache.host)
    }

    /// Bytes of the caches under this assignment: each where its block is, or all on the host.
    pub(super) fn cost(&self, assignment: &Assignment) -> KvCost {
        let mut cost = KvCost {
            gpus: vec![0; self.n_gpus],
            on_gpus: vec![Held::default(); self.n_gpus],
            ..KvCost::default()
        };
        for (cache, &place) in self.blocks.iter().zip(&assignment.blocks) {
            let held = match place {
                Place::Gpu(gpu) if gpu < self.n_gpus => &mut cost.on_gpus[gpu],
                _ => &mut cost.on_host,
            };
            *held = held.and(cache.held);
            match place {
                Place::Gpu(gpu) if self.offload && gpu < self.n_gpus => {
                    cost.gpus[gpu] = cost.gpus[gpu].saturating_add(cache.gpus[gpu]);
                }
                _ => {
                    cost.host = cost.host.saturating_add(cache.host);
                    cost.largest_host = cost.largest_host.max(cache.host);
                }
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
        let params = ContextParams {
            swa_full,
            ..params.clone()
        };
        let table = |sizes| KvTable::new(profile, &[], &params, &sizes);
        let caches = params.sizes().map(|sizes| table(sizes).blocks);
        let caches = caches.unwrap_or_default();
        caches.iter().map(|cache| cache.host).sum::<u64>()
    };
    bytes(true).saturating_sub(bytes(false))
}

/// What each block keeps, and the width of the widest values. Where the law is unknown: as if every block kept
/// everything, which is more than sliding windows, compressed keys and reused layers take, but says nothing about
/// recurrent states.
fn blocks(profile: &ModelProfile) -> (Vec<BlockState>, u32) {
    match &profile.state {
        StateLaw::Known {
            blocks, widest_v, ..
        } => (blocks.clone(), *widest_v),
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
        let shape = Shape::new(params, &params.sizes().unwrap(), 0);
        let tensors = shape.tensors(block);
        let bytes = tensors
            .all()
            .map(|&(ty, ne0, rows)| ty.row_bytes(ne0) * rows);
        bytes.collect()
    }

    fn params(n_ctx: u32, n_seq_max: u32) -> ContextParams {
        ContextParams {
            n_ctx,
            n_seq_max,
            ..ContextParams::default()
        }
    }

    #[test]
    fn an_indexer_has_as_many_rows_as_the_cache() {
        let mut state = IndexedState {
            k: 576,
            v: None,
            index_k: 128,
            index_v: None,
        };
        let rows = 4096;
        let kept = bytes(&params(4096, 1), &BlockState::Indexed(state));
        assert_eq!(kept, [2 * 576 * rows, 2 * 128 * rows]);
        (state.v, state.index_v) = (Some(512), Some(64));
        let kept = bytes(&params(4096, 1), &BlockState::Indexed(state));
        let of = |width: u64| 2 * width * rows;
        assert_eq!(kept, [of(576), of(512), of(128), of(64)]);
    }

    #[test]
    fn a_window_of_compressed_keys_is_as_long_as_any_window() {
        let block = BlockState::CompressedWindowed { k: 64, window: 100 };
        let short = ContextParams {
            swa_full: false,
            type_k: KvType::F32,
            ..params(8192, 1)
        };
        // 100 tokens and a batch of 512, padded to 768 cells
        assert_eq!(bytes(&short, &block), [4 * 64 * 768]);
    }

    #[test]
    fn what_lies_before_a_window_is_distilled_for_each_sequence() {
        let block = |distilled| {
            BlockState::Distilled(DistilledState {
                k: 64,
                window: 100,
                distilled,
            })
        };
        let shared = ContextParams {
            kv_unified: true,
            swa_full: true,
            ..params(4096, 2)
        };
        // Both sequences have the whole context, though they share it.
        let raw = 2 * 64 * 4096 * 2;
        assert_eq!(bytes(&shared, &block(None)), [raw]);
        let close = Distilled {
            ratio: 4,
            index_k: Some(32),
            pending: 1024,
            index_pending: 512,
        };
        let rows = 2 * 4096 / 4;
        let states = [4 * 1024 * 2, 4 * 1024 * 2, 4 * 512 * 2, 4 * 512 * 2];
        let kept = [raw, 2 * 64 * rows, 2 * 32 * rows];
        let kept: Vec<u64> = kept.into_iter().chain(states).collect();
        assert_eq!(bytes(&shared, &block(Some(close))), kept);
    }
}
