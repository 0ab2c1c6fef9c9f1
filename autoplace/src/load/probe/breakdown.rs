//! The result of the probe: the memory that llama.cpp counts for each buffer type.

use serde::{Deserialize, Serialize};

use crate::memory::{Footprint, Footprints, Place};

/// The memory that a load and its context take of each of ggml's buffer types, in bytes.
///
/// For each buffer type, [`model`](BufferBytes::model), [`context`](BufferBytes::context) with
/// [`experts`](BufferBytes::experts), and [`compute`](BufferBytes::compute) equal the result of
/// `llama_get_memory_breakdown` after a real load, to the byte. [`Footprints`] contain the sums for each device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Breakdown {
    /// One row per non-empty buffer type, by name.
    pub rows: Vec<BufferBytes>,
    /// Number of graph copies that may be in flight, each with its own compute memory: 4 with pipeline parallelism over
    /// several GPUs (llama-context.cpp, the constructor), otherwise 1. If the GPUs have no room for four copies in a
    /// real load, the load falls back to one. A split with any override has one copy from the start, even if the
    /// override matches no tensor.
    pub copies: u32,
    /// The sums for each device. Of a mapped file, the weights that must stay in memory count on the host.
    pub footprints: Footprints,
}

/// The memory of one buffer type, in bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct BufferBytes {
    /// ggml's name, such as `CUDA0`, `CUDA_Host` (pinned), `CPU`, `CPU_Mapped` or `CPU_REPACK`.
    pub buffer_type: String,
    /// The device that has the memory. Pinned, mapped and repacked buffers belong to the host.
    pub place: Place,
    /// Weights. For `CPU_Mapped`, only the data of the weights counts (llama-model-loader.cpp, `get_mapping_ranges`).
    pub model: u64,
    /// Keys and values, or recurrent state.
    pub context: u64,
    /// The cache of experts. On the host, these are the bytes for the slot numbers of each layer's experts. llama.cpp
    /// counts these bytes with the context.
    pub experts: u64,
    /// Compute buffers.
    pub compute: u64,
    /// The buffer of returned logits at its largest allowed size (llama-context.cpp, `output_reserve`). llama.cpp's own
    /// numbers do not include this buffer.
    pub output: u64,
}

impl BufferBytes {
    /// The sum of all parts; at most `u64::MAX`.
    pub const fn total(&self) -> u64 {
        let context = self.context.saturating_add(self.experts);
        self.model.saturating_add(context).saturating_add(self.compute).saturating_add(self.output)
    }
}

impl Breakdown {
    /// Sums the rows for `gpus` GPUs. `resident` are the bytes of the host's weights in a mapped file.
    pub(super) fn new(mut rows: Vec<BufferBytes>, copies: u32, gpus: usize, resident: Option<u64>) -> Self {
        rows.retain(|row| row.total() > 0);
        rows.sort_by(|a, b| a.buffer_type.cmp(&b.buffer_type));
        let mut footprints = sums(&rows, gpus);
        footprints.output = rows.iter().fold(0, |sum, row| sum.saturating_add(row.output));
        footprints.host += Footprint::new(0, 0, footprints.output);
        if let Some(resident) = resident {
            let data = rows.iter().find(|row| row.buffer_type == MAPPED).map_or(0, |row| row.model);
            footprints.host.weights = footprints.host.weights.saturating_sub(data).saturating_add(resident);
        }
        Self { rows, copies, footprints }
    }
}

/// The bytes of these rows for each device, without the buffer of logits.
pub(super) fn sums(rows: &[BufferBytes], gpus: usize) -> Footprints {
    let mut sums = Footprints::new(vec![Footprint::default(); gpus], Footprint::default());
    for row in rows {
        let sum = match row.place {
            Place::Gpu(gpu) => &mut sums.gpus[gpu],
            Place::Host => &mut sums.host,
        };
        *sum += Footprint::new(row.model, row.context, row.compute).with_experts(row.experts);
    }
    sums
}

/// The buffer type of mapped files (ggml-backend.cpp, ggml_backend_cpu_buffer_from_ptr_type).
pub(super) const MAPPED: &str = "CPU_Mapped";
