//! The bytes that a context and its model take for each buffer type, by llama.cpp's own account.

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
    /// Whether ggml calls the buffer type a host buffer: plain or pinned memory that any device may read. A buffer of
    /// repacked weights is not.
    pub is_host_buffer: bool,
    /// Weights.
    pub model: u64,
    /// Matrices and signs that llama.cpp makes for weights that were folded in their file (`prism.hadamard`).
    pub transforms: u64,
    /// KV cache and recurrent state.
    pub context: u64,
    /// The cache of experts ([`ContextParams::moe_cache_size`](crate::ContextParams::moe_cache_size)): the experts on a
    /// GPU, and on the host the slots of each layer's experts.
    pub experts: u64,
    /// Compute buffers.
    pub compute: u64,
    /// LoRA adapters of the model, and the context's control vector. llama.cpp's account leaves them out, and so does
    /// [`total`](Self::total).
    pub adapters: u64,
    /// The buffer that returns logits and embeddings, at the size that it reaches with the most outputs allowed.
    /// llama.cpp's account leaves it out, and so does [`total`](Self::total).
    pub output: u64,
}

impl BufferUse {
    /// Weights, their transforms, context, cached experts and compute together, as in llama.cpp's own account.
    pub fn total(&self) -> u64 {
        self.model + self.transforms + self.context + self.experts + self.compute
    }

    /// A row without bytes.
    fn new(buft: raw::ggml_backend_buffer_type_t, device: raw::ggml_backend_dev_t, is_host_buffer: bool) -> Self {
        // SAFETY: a registered buffer type with a NUL-terminated name.
        let buffer_type = unsafe { owned(raw::ggml_backend_buft_name(buft)) };
        let device = Device::from_raw(device);
        // CPU_REPACK does not call itself a host buffer, but lies in host memory: llama.cpp's own fit forgets that.
        let on_host = is_host_buffer || device.as_ref().is_none_or(|device| device.kind() == DeviceKind::Cpu);
        Self { buffer_type, device, on_host, is_host_buffer, ..Self::default() }
    }
}

/// The compute buffers of a context, and how often its computations had to reserve them again.
///
/// A buffer grows only if a graph is reserved again, but such a graph may also fit into the buffers as they are. The
/// difference of `bytes` before and after a computation says whether it took memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ComputeBuffers {
    /// Bytes of all devices together.
    pub bytes: u64,
    /// Graphs that were reserved again although the graph before had the same size: the reservation was too small.
    pub reallocations_same_size: u32,
    /// Graphs that were reserved again and differ in size from the one before.
    pub reallocations_other_size: u32,
}

/// How often computations of a context used experts from its cache.
///
/// An expert is counted once for each token that it computes in each layer. Layers that compute more than 32 tokens at
/// once do not use the cache, and are not counted. The last layer counts only the outputs of a batch, because it
/// computes no other tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MoeCacheUses {
    /// Uses of an expert that was in the cache.
    pub hits: u64,
    /// Experts that had to be loaded into the cache first.
    pub misses: u64,
}

impl MoeCacheUses {
    /// The share of uses whose expert was in the cache, 0.0 to 1.0; `None` before the first use.
    pub fn hit_rate(&self) -> Option<f64> {
        let uses = self.hits + self.misses;
        (uses > 0).then(|| self.hits as f64 / uses as f64)
    }
}

impl ComputeBuffers {
    /// Graphs that were reserved again, of either kind.
    pub fn reallocations(&self) -> u32 {
        self.reallocations_same_size.saturating_add(self.reallocations_other_size)
    }

    /// The bytes by which the buffers grew since `before`, and the graphs that were reserved again since then.
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
    /// The rows in the memory of `device`.
    pub fn on(&self, device: &Device) -> impl Iterator<Item = &BufferUse> {
        self.rows.iter().filter(move |row| !row.on_host && row.device.as_ref() == Some(device))
    }

    /// The rows in host memory.
    pub fn on_host(&self) -> impl Iterator<Item = &BufferUse> {
        self.rows.iter().filter(|row| row.on_host)
    }

    /// Adds the bytes of another context of the same model, whose weights and adapters are counted already.
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
        // SAFETY: llama.cpp writes only during a computation on this thread, which borrows the context mutably.
        let counts = unsafe { *self.moe_counts.as_ref()?.get() };
        Some(MoeCacheUses { hits: counts.hits, misses: counts.misses })
    }

    /// The bytes that this context and its model take, or with `no_alloc` would take.
    ///
    /// llama.cpp's own account of a `no_alloc` context leaves out the buffers that are reserved after the first prompt,
    /// and counts a compute buffer twice if two backends share it. Both are corrected here (native/shim.cpp,
    /// `reserve_the_rest`).
    ///
    /// # Errors
    ///
    /// [`Error::Call`].
    pub fn memory_breakdown(&self) -> Result<MemoryBreakdown, Error> {
        let rows = call::checked(|error| {
            // SAFETY: the context lives, on this thread alone (it is not `Sync`), so a context without data may be
            // reserved again. The shim writes at most as many rows as there is room for, and returns 0 if it fails.
            unsafe { call::list(|rows, room| raw::shim_memory_breakdown(self.as_ptr(), rows, room, error)) }
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
