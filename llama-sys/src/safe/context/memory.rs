//! The bytes that a context and its model take, for each buffer type, as llama.cpp counts them.

use super::Context;
use crate::raw;
use crate::safe::call::text::owned;
use crate::safe::call::{self, Error};
use crate::safe::device::{Device, DeviceKind};

/// Bytes of one buffer type.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct BufferUse {
    /// ggml's name, such as `CUDA0`, `CPU`, `CPU_Mapped`, `CPU_REPACK` or `CUDA_Host`.
    pub buffer_type: String,
    /// The device that the buffer type belongs to.
    pub device: Option<Device>,
    /// Whether the memory is the host's: plain, pinned by a GPU's driver, or repacked for the CPU.
    pub on_host: bool,
    /// Whether ggml calls the buffer type a host buffer: plain or pinned memory that any device may read. A buffer for
    /// repacked weights does not count as a host buffer.
    pub is_host_buffer: bool,
    /// Weights.
    pub model: u64,
    /// Matrices and signs that llama.cpp makes for weights that are stored in folded form (`prism.hadamard`).
    pub transforms: u64,
    /// KV cache and recurrent state.
    pub context: u64,
    /// The cache of experts ([`ContextParams::moe_cache_size`](crate::ContextParams::moe_cache_size)): the experts on a
    /// GPU, and on the host the slots of each layer's experts.
    pub experts: u64,
    /// Compute buffers.
    pub compute: u64,
    /// The model's LoRA adapters, and the context's control vector. llama.cpp's account does not contain them, and
    /// neither does [`total`](Self::total).
    pub adapters: u64,
    /// The buffer for logits and embeddings that are returned, at the size for the maximum number of outputs.
    /// llama.cpp's account does not contain it, and neither does [`total`](Self::total).
    pub output: u64,
}

impl BufferUse {
    /// The sum of weights, transforms, context, cached experts and compute buffers, as in llama.cpp's own account.
    pub fn total(&self) -> u64 {
        self.model + self.transforms + self.context + self.experts + self.compute
    }

    /// A row in which all bytes are 0.
    fn new(buft: raw::ggml_backend_buffer_type_t, device: raw::ggml_backend_dev_t, is_host_buffer: bool) -> Self {
        // SAFETY: a registered buffer type with a NUL-terminated name.
        let buffer_type = unsafe { owned(raw::ggml_backend_buft_name(buft)) };
        let device = Device::from_raw(device);
        // ggml does not call CPU_REPACK a host buffer, but it lies in host memory. llama.cpp's own fit overlooks this.
        let on_host = is_host_buffer || device.as_ref().is_none_or(|device| device.kind() == DeviceKind::Cpu);
        Self { buffer_type, device, on_host, is_host_buffer, ..Self::default() }
    }
}

/// The compute buffers of a context, and how often graphs had to be reserved again.
///
/// A buffer grows only if a graph is reserved again, but a graph that is reserved again may also fit into the existing
/// buffers. So to learn whether a computation took memory, compare `bytes` before and after it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ComputeBuffers {
    /// Bytes of all devices together.
    pub bytes: u64,
    /// The number of graphs that were reserved again although they had the same size as the graph before. This means
    /// that the earlier reservation was too small.
    pub reallocations_same_size: u32,
    /// The number of graphs that were reserved again because their size differed from that of the graph before.
    pub reallocations_other_size: u32,
}

/// How often a context's computations used experts from the cache.
///
/// For each layer, an expert is counted once for each token that it computes. Layers that compute more than 32 tokens
/// at once do not use the cache, and are not counted. In the last layer only the outputs of a batch are counted,
/// because only they are computed there.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MoeCacheUses {
    /// The number of uses for which the expert was in the cache.
    pub hits: u64,
    /// The number of uses for which the expert had to be loaded into the cache first.
    pub misses: u64,
}

impl MoeCacheUses {
    /// The share of uses for which the expert was in the cache, from 0.0 to 1.0; `None` before the first use.
    pub fn hit_rate(&self) -> Option<f64> {
        let uses = self.hits + self.misses;
        (uses > 0).then(|| self.hits as f64 / uses as f64)
    }
}

impl ComputeBuffers {
    /// The number of graphs that were reserved again, with the same or another size.
    pub fn reallocations(&self) -> u32 {
        self.reallocations_same_size.saturating_add(self.reallocations_other_size)
    }

    /// By how many bytes the buffers grew since `before`, and how many graphs were reserved again since then.
    pub fn since(&self, before: &Self) -> Self {
        let Self { bytes, reallocations_same_size, reallocations_other_size } = *before;
        Self {
            bytes: self.bytes.saturating_sub(bytes),
            reallocations_same_size: self.reallocations_same_size.saturating_sub(reallocations_same_size),
            reallocations_other_size: self.reallocations_other_size.saturating_sub(reallocations_other_size),
        }
    }
}

/// The memory of a context and its model, by buffer type. The driver's own memory is not included.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryBreakdown {
    /// One row for each buffer type, sorted by name.
    pub rows: Vec<BufferUse>,
}

impl MemoryBreakdown {
    /// The rows that lie in the memory of `device`.
    pub fn on(&self, device: &Device) -> impl Iterator<Item = &BufferUse> {
        self.rows.iter().filter(move |row| !row.on_host && row.device.as_ref() == Some(device))
    }

    /// The rows that lie in host memory.
    pub fn on_host(&self) -> impl Iterator<Item = &BufferUse> {
        self.rows.iter().filter(|row| row.on_host)
    }

    /// Adds the bytes of another context of the same model. The model's weights and adapters are counted already.
    pub fn add_context(&mut self, other: &Self) {
        for row in &other.rows {
            let same = |known: &&mut BufferUse| known.buffer_type == row.buffer_type;
            if let Some(known) = self.rows.iter_mut().find(same) {
                known.context += row.context;
                known.experts += row.experts;
                known.compute += row.compute;
                known.output += row.output;
            } else {
                self.rows.push(BufferUse { model: 0, transforms: 0, adapters: 0, ..row.clone() });
            }
        }
        self.rows.sort_by(|a, b| a.buffer_type.cmp(&b.buffer_type));
    }
}

impl Context {
    /// The bytes of the compute buffers now, and how many graphs were reserved again since the context was created. A
    /// graph whose operations have moved to other devices is reserved again too, but llama.cpp does not count it
    /// (llama-context.cpp, `sched_graph_realloc`). The query does not wait for the devices.
    pub fn compute_buffers(&self) -> ComputeBuffers {
        // SAFETY: the context lives, and has a scheduler since its creation. The shim fills every field of the struct,
        // whose all-zero state is valid.
        let buffers = unsafe {
            let mut buffers: raw::shim_compute_buffers = std::mem::zeroed();
            raw::shim_context_compute_buffers(self.as_ptr(), &raw mut buffers);
            buffers
        };
        ComputeBuffers {
            bytes: buffers.bytes,
            reallocations_same_size: buffers.n_reallocs_same,
            reallocations_other_size: buffers.n_reallocs_diff,
        }
    }

    /// The uses of the cache of experts since the context was created; `None` without a
    /// [`moe_cache_size`](crate::ContextParams::moe_cache_size).
    pub fn moe_cache_uses(&self) -> Option<MoeCacheUses> {
        // SAFETY: llama.cpp writes here only during a computation on this thread, and a computation borrows the context
        // mutably.
        let counts = unsafe { *self.moe_counts.as_ref()?.get() };
        Some(MoeCacheUses { hits: counts.hits, misses: counts.misses })
    }

    /// The bytes that this context and its model take, or with `no_alloc` would take.
    ///
    /// llama.cpp's own account of a `no_alloc` context leaves out the buffers that are reserved after the first prompt,
    /// and counts a compute buffer twice if two backends share it. Both faults are corrected here (native/no_alloc.cpp,
    /// `as_if_allocated`).
    ///
    /// # Errors
    ///
    /// [`Error::Call`].
    pub fn memory_breakdown(&self) -> Result<MemoryBreakdown, Error> {
        let rows = call::checked(|error| {
            // SAFETY: the context lives, on this thread alone (it is not `Sync`), so a context without data may be
            // reserved again. The shim writes at most as many rows as there is room for, and returns 0 if it fails.
            unsafe { call::list(|rows, room| raw::shim_memory_breakdown(self.as_ptr(), self.rows, rows, room, error)) }
        })
        .map_err(|failure| Error::Call { what: "reading the memory breakdown", failure })?;
        let read = |row: &raw::shim_memory_row| BufferUse {
            model: row.model,
            transforms: row.transforms,
            context: row.context,
            experts: row.experts,
            compute: row.compute,
            output: row.output,
            ..BufferUse::new(row.buft, row.device, row.is_host)
        };
        let mut rows: Vec<BufferUse> = rows.iter().map(read).collect();
        for adapters in self.adapter_rows()? {
            let row = BufferUse::new(adapters.buft, adapters.device, adapters.is_host);
            let row = BufferUse { adapters: adapters.bytes, ..row };
            let same = |known: &&mut BufferUse| known.buffer_type == row.buffer_type;
            match rows.iter_mut().find(same) {
                Some(known) => known.adapters = row.adapters,
                None => rows.push(row),
            }
        }
        rows.sort_by(|a, b| a.buffer_type.cmp(&b.buffer_type));
        Ok(MemoryBreakdown { rows })
    }
}
