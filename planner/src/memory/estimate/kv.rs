//! Bytes of keys, values and recurrent states on each device, and of the matrices that rotate quantised keys and
//! values. The bytes are exact if the layout is known (the constructors in llama-kv-cache.cpp, llama-kv-cache-iswa.cpp
//! and llama-memory-recurrent.cpp).

use std::borrow::Cow;

use crate::gguf::TensorType;
use crate::memory::backend::BackendRules;
use crate::memory::context::{ContextParams, ContextSizes, FlashAttention};
use crate::profile::{BlockState, KeptTensor, KvLayout, ModelProfile, Part, Rotation, Rows};

use super::cost::{CacheKinds, Cost};
use super::{Assignment, Place};

/// Bytes of one block's cache on each device.
#[derive(Debug, Clone, Default)]
struct Cache {
    gpus: Vec<u64>,
    host: u64,
    /// The numbers of elements of keys and of values.
    elements: (u64, u64),
    held: CacheKinds,
    /// If the block reads compressed keys of an earlier block: the copy of these keys.
    copy: Option<Copied>,
}

/// A copy of an earlier block's compressed keys, on the device of the block that reads them.
#[derive(Debug, Clone)]
struct Copied {
    /// The earlier block.
    from: usize,
    gpus: Vec<u64>,
    host: u64,
}

/// A model's caches, one for each block, on the given GPUs.
#[derive(Debug, Clone)]
pub(super) struct KvTable {
    blocks: Vec<Cache>,
    offload: bool,
    /// Cells of the largest windowed cache; 0 if there is none.
    pub(super) window_cells: u64,
}

/// The context's parameters, which turn a block's state into tensors.
struct Shape<'a> {
    params: &'a ContextParams,
    sizes: &'a ContextSizes,
    /// The width of all values if they are stored transposed, otherwise `None`.
    transposed: Option<u32>,
}

impl Shape<'_> {
    /// The number of cells of a windowed cache for `sharing` sequences together. llama.cpp computes the size in 32 bits
    /// (llama-kv-cache-iswa.cpp, the constructor).
    fn window_cells(&self, window: u32, sharing: u32) -> u64 {
        if self.params.swa_full {
            return self.sizes.cells;
        }
        // llama.cpp first limits the batch by the context (llama-context.cpp, the constructor).
        let n_ubatch = self.params.computed().min(self.params.n_ctx);
        let tokens = window.wrapping_mul(sharing).wrapping_add(n_ubatch);
        self.sizes.cells.min(u64::from(tokens)).next_multiple_of(256)
    }

    /// The number of cells of the windowed cache with these rows; 0 if the cache has no window.
    fn window_of(&self, rows: Rows) -> u64 {
        match rows {
            Rows::Window(window) if self.params.kv_unified => self.window_cells(window, self.params.n_seq_max),
            Rows::Window(window) | Rows::OwnWindow(window) => self.window_cells(window, 1),
            _ => 0,
        }
    }

    fn rows(&self, rows: Rows) -> u64 {
        let n_seq = u64::from(self.params.n_seq_max);
        let (each, count) = match rows {
            Rows::Tokens => (self.sizes.cells, self.sizes.streams),
            Rows::Window(_) => (self.window_of(rows), self.sizes.streams),
            // Each sequence has its own caches, even if the sequences share one context.
            Rows::OwnWindow(_) => (self.window_of(rows), n_seq),
            Rows::Groups(tokens) => {
                let groups = self.sizes.cells.div_ceil(u64::from(tokens.max(1)));
                (groups.max(1).next_multiple_of(256), n_seq)
            }
            // One more row for each token of rollback (llama-memory-recurrent.cpp, the constructor;
            // llama-kv-cache-dsv4.cpp, `llama_dsv4_comp_state`).
            Rows::States | Rows::Pending => (1 + u64::from(self.params.n_rs_seq), n_seq),
        };
        each.saturating_mul(count)
    }

    /// The type of a tensor, the number of elements in a row, and the number of rows.
    fn tensor(&self, kept: &KeptTensor) -> (TensorType, u64, u64) {
        let (type_k, type_v) = (self.params.type_k.tensor_type(), self.params.type_v.tensor_type());
        let (ty, n) = match kept.part {
            Part::Keys | Part::IndexKeys => (type_k, kept.n),
            Part::Values => (type_v, self.transposed.unwrap_or(kept.n)),
            // Here all blocks have the same width of values, so storing them transposed makes no tensor wider.
            Part::IndexValues => (type_v, kept.n),
            Part::State => (TensorType::F32, kept.n),
        };
        (ty, u64::from(n), self.rows(kept.rows))
    }

    /// The width of the square matrix that rotates this tensor; 0 without a matrix (llama-kv-cache.cpp,
    /// `init_rotation`).
    fn rotation(&self, kept: &KeptTensor) -> u64 {
        let (ty, _, _) = self.tensor(kept);
        match kept.rotation {
            Rotation::Always(width) => width.into(),
            Rotation::IfQuantised(width) if ty.is_quantized() => width.into(),
            _ => 0,
        }
    }

    /// Bytes of a tensor and of its rotation matrix under these rules.
    fn alloc(&self, kept: &KeptTensor, rules: &BackendRules) -> u64 {
        let (ty, ne0, rows) = self.tensor(kept);
        let tensor = rules.alloc(ty, ne0, ty.row_bytes(ne0).saturating_mul(rows));
        let width = self.rotation(kept);
        let matrix = TensorType::F32.row_bytes(width).saturating_mul(width);
        tensor.saturating_add(rules.alloc(TensorType::F32, width, matrix))
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
        // AUTO counts as fused: llama.cpp creates the cache before it resolves AUTO (llama-context.cpp, the
        // constructor, `resolve_fused_ops`).
        let transposed = (params.flash_attn == FlashAttention::Off).then_some(widest_v);
        let shape = Shape { params, sizes, transposed };
        let cache = |block: &BlockState| {
            let bytes = |rules: &BackendRules| {
                block.kept.iter().map(|kept| shape.alloc(kept, rules)).fold(0, u64::saturating_add)
            };
            let copy = block.reads.and_then(|from| {
                let keys = blocks.get(from)?.part(Part::IndexKeys)?;
                let gpus = rules.iter().map(|rules| shape.alloc(keys, rules)).collect();
                Some(Copied { from, gpus, host: shape.alloc(keys, &BackendRules::HOST) })
            });
            let elements = |part: Part| {
                let tensor = block.part(part).map(|kept| shape.tensor(kept));
                tensor.map_or(0, |(_, ne0, rows)| ne0.saturating_mul(rows))
            };
            Cache {
                gpus: rules.iter().map(bytes).collect(),
                host: bytes(&BackendRules::HOST),
                elements: (elements(Part::Keys), elements(Part::Values)),
                held: CacheKinds::new(block),
                copy,
            }
        };
        let windows = blocks.iter().flat_map(|block| &block.kept).map(|kept| shape.window_of(kept.rows));
        Self {
            window_cells: windows.max().unwrap_or(0),
            blocks: blocks.iter().map(cache).collect(),
            offload: params.offload_kqv,
        }
    }

    /// Bytes that a block's cache takes on the device of the block; 0 if all caches are on the host.
    pub(super) fn block_bytes(&self, place: Place, block: usize) -> u64 {
        let bytes = self.blocks.get(block).filter(|_| self.offload).and_then(|cache| match place {
            Place::Gpu(gpu) => cache.gpus.get(gpu).copied(),
            Place::Host => Some(cache.host),
        });
        bytes.unwrap_or(0)
    }

    /// Whether block `il` keeps a copy of the compressed keys that it reads. On each device other than the keys' own
    /// device, the first block that reads the keys keeps a copy (llama-kv-cache-dsv4.cpp, the constructor).
    fn is_copied(&self, copy: &Copied, il: usize, assignment: &Assignment) -> bool {
        let place = |il: usize| assignment.blocks.get(il);
        let reads = |il: usize| self.blocks[il].copy.as_ref().is_some_and(|other| other.from == copy.from);
        let is_first = || !(copy.from + 1..il).any(|earlier| reads(earlier) && place(earlier) == place(il));
        self.offload && place(copy.from) != place(il) && is_first()
    }

    /// Adds the caches under this assignment: each cache on the device of its block, or all caches on the host.
    pub(super) fn add_to(&self, cost: &mut Cost, assignment: &Assignment) {
        for (il, (cache, &place)) in self.blocks.iter().zip(&assignment.blocks).enumerate() {
            let held = &mut cost.at(place).held;
            *held = held.and(cache.held);
            let on_gpu = match place {
                Place::Gpu(gpu) if self.offload => cache.gpus.get(gpu),
                _ => None,
            };
            if let Some(bytes) = on_gpu {
                let kv = &mut cost.at(place).kv;
                *kv = kv.saturating_add(*bytes);
            } else {
                cost.host.kv = cost.host.kv.saturating_add(cache.host);
                cost.largest_on_host = cost.largest_on_host.max(cache.host);
            }
            if let Some(copy) = cache.copy.as_ref().filter(|copy| self.is_copied(copy, il, assignment)) {
                let bytes = match place {
                    Place::Gpu(gpu) => copy.gpus.get(gpu).copied().unwrap_or(copy.host),
                    Place::Host => copy.host,
                };
                let kv = &mut cost.at(place).kv;
                *kv = kv.saturating_add(bytes);
            }
            let (k, v) = cost.largest_elements;
            cost.largest_elements = (k.max(cache.elements.0), v.max(cache.elements.1));
        }
    }
}

/// Bytes that `swa_full` adds to a model's caches, before alignment.
pub(crate) fn full_windows(profile: &ModelProfile, params: &ContextParams) -> u64 {
    let bytes = |swa_full| {
        let params = ContextParams { swa_full, ..params.clone() };
        let caches = params.sizes().map(|sizes| KvTable::new(profile, &[], &params, &sizes).blocks);
        caches.unwrap_or_default().iter().map(|cache| cache.host).sum::<u64>()
    };
    bytes(true).saturating_sub(bytes(false))
}

/// The state of each block, and the width of the widest values. If the layout is unknown, every block counts as if it
/// kept every token. This gives too many bytes for sliding windows, compressed keys and shared caches, and leaves out
/// recurrent states.
fn blocks(profile: &ModelProfile) -> (Cow<'_, [BlockState]>, u32) {
    match &profile.state {
        KvLayout::Known { blocks, widest_v, .. } => (blocks.into(), *widest_v),
        KvLayout::Unknown { .. } => {
            let hparams = &profile.hparams;
            (hparams.every_block_in_full().into(), hparams.widest_v_of(&[]))
        }
    }
}
