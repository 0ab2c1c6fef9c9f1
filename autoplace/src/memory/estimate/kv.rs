//! Bytes of keys, values and recurrent states per device: exact where the law is known (llama-kv-cache.cpp:60-280,
//! llama-kv-cache-iswa.cpp:40-100, llama-memory-recurrent.cpp:20-125).

use crate::gguf::TensorType;
use crate::memory::backend::BackendRules;
use crate::memory::context::{ContextParams, ContextSizes, FlashAttention};
use crate::profile::{BlockState, ModelProfile, StateLaw};

use super::{Assignment, Place};

/// The bytes of what one block keeps on each device.
#[derive(Debug, Clone, Default)]
struct Cache {
    gpus: Vec<u64>,
    host: u64,
    /// Elements of keys and of values.
    elements: (u64, u64),
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
}

/// A model's caches, one per block, for the GPUs at hand.
#[derive(Debug, Clone)]
pub(super) struct KvTable {
    blocks: Vec<Cache>,
    offload: bool,
    n_gpus: usize,
    window_cells: u64,
}

/// The tensors of what a block keeps: type, elements of a row, rows.
type Tensors = [Option<(TensorType, u64, u64)>; 4];

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
    n_seq_shared: u32,
    swa_full: bool,
    streams: u64,
    cells: u64,
}

impl Shape {
    fn new(params: &ContextParams, sizes: &ContextSizes, widest_v: u32) -> Self {
        // Of what fits a batch (llama-context.cpp:251); 0 stands for all.
        let n_batch = u32::try_from(sizes.n_batch).unwrap_or(u32::MAX);
        let n_ubatch = match params.n_ubatch {
            0 => n_batch,
            n => n.min(n_batch),
        };
        Self {
            type_k: params.type_k.tensor_type(),
            type_v: params.type_v.tensor_type(),
            // AUTO counts as with: the cache is made before llama.cpp finds out (llama-context.cpp:232, :399, :560).
            transposed: (params.flash_attn == FlashAttention::Off).then_some(widest_v),
            rows: sizes.cells.saturating_mul(sizes.streams),
            n_ubatch,
            n_seq: params.n_seq_max,
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

    /// Cells of a cache that keeps a window: the size is computed in 32 bits (llama-kv-cache-iswa.cpp:66).
    fn window_cells(&self, window: u32) -> u64 {
        if self.swa_full {
            return self.cells;
        }
        let tokens = window
            .wrapping_mul(self.n_seq_shared)
            .wrapping_add(self.n_ubatch);
        self.cells.min(u64::from(tokens)).next_multiple_of(256)
    }

    fn tensors(&self, block: &BlockState) -> Tensors {
        let key = |k: u32, rows| Some((self.type_k, u64::from(k), rows));
        let value = |v: u32, rows| {
            let width = self.transposed.unwrap_or(v);
            Some((self.type_v, u64::from(width), rows))
        };
        // Every sequence has a row (llama-memory-recurrent.cpp:98).
        let floats = |n: u32| Some((TensorType::F32, u64::from(n), u64::from(self.n_seq)));
        match *block {
            BlockState::None => [None; 4],
            BlockState::Full(state) => [
                key(state.k, self.rows),
                value(state.v, self.rows),
                None,
                None,
            ],
            BlockState::Windowed { state, window } => {
                let rows = self.window_cells(window).saturating_mul(self.streams);
                [key(state.k, rows), value(state.v, rows), None, None]
            }
            BlockState::Compressed { k } => [key(k, self.rows), None, None, None],
            BlockState::Recurrent(state) => [None, None, floats(state.r), floats(state.s)],
            BlockState::FullAndRecurrent(cache, state) => [
                key(cache.k, self.rows),
                value(cache.v, self.rows),
                floats(state.r),
                floats(state.s),
            ],
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
                tensors
                    .iter()
                    .flatten()
                    .fold(0, |sum: u64, &(ty, ne0, rows)| {
                        let bytes = ty.row_bytes(ne0).saturating_mul(rows);
                        sum.saturating_add(rules.alloc(ty, ne0, bytes))
                    })
            };
            let elements = |tensor: Option<(TensorType, u64, u64)>| {
                tensor.map_or(0, |(_, ne0, rows)| ne0.saturating_mul(rows))
            };
            Cache {
                gpus: rules.iter().map(bytes).collect(),
                host: bytes(&BackendRules::HOST),
                elements: (elements(tensors[0]), elements(tensors[1])),
            }
        };
        let windows = blocks.iter().map(|block| match *block {
            BlockState::Windowed { window, .. } => shape.window_cells(window),
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

    /// Bytes of the caches under this assignment: each where its block is, or all on the host.
    pub(super) fn cost(&self, assignment: &Assignment) -> KvCost {
        let mut cost = KvCost {
            gpus: vec![0; self.n_gpus],
            ..KvCost::default()
        };
        for (cache, &place) in self.blocks.iter().zip(&assignment.blocks) {
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

/// What each block keeps, and the width of the widest values. Where the law is unknown: as if every block kept everything, which
/// is more than sliding windows, compressed keys and reused layers take, but says nothing about recurrent states.
fn blocks(profile: &ModelProfile) -> (Vec<BlockState>, u32) {
    match &profile.state {
        StateLaw::Known { blocks, widest_v } => (blocks.clone(), *widest_v),
        StateLaw::Unknown { .. } => {
            let hparams = &profile.hparams;
            (hparams.every_block_in_full(), hparams.widest_v())
        }
    }
}
