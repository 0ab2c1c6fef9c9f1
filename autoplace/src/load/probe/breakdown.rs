//! What llama.cpp would hold, buffer type by buffer type: the probe's whole answer.

use serde::{Deserialize, Serialize};

use crate::memory::{Footprint, Footprints, Place};

/// What a load and its context would hold, by ggml's buffer types, in bytes.
///
/// Of a buffer type, [`model`](BufferBytes::model), [`context`](BufferBytes::context) and
/// [`compute`](BufferBytes::compute) are what `llama_get_memory_breakdown` says of it after a real load, to the byte.
/// [`Footprints`] are the sums by device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Breakdown {
    /// One row per buffer type that holds anything, by name.
    pub rows: Vec<BufferBytes>,
    /// Copies of a graph that may be in flight at once, each with its own compute memory: 4 with pipeline parallelism
    /// over several GPUs (llama-context.cpp, the constructor), else 1. A real load whose GPUs refuse the four falls
    /// back to one; a split with any override, even of no tensor, has one from the start.
    pub copies: u32,
    /// The sums by device. A mapped file counts on the host with the weights that must stay in memory.
    pub footprints: Footprints,
}

/// What one buffer type holds, in bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct BufferBytes {
    /// ggml's name, such as `CUDA0`, `CUDA_Host` (pinned), `CPU`, `CPU_Mapped` or `CPU_REPACK`.
    pub buffer_type: String,
    /// Whose memory it is. Pinned, mapped and repacked buffers are the host's.
    pub place: Place,
    /// Weights. Of `CPU_Mapped` it is the span of each file from the first to the last weight of the host, those of
    /// GPUs in between included (llama-model-loader.cpp, `get_mapping_range`).
    pub model: u64,
    /// Keys and values, or recurrent state.
    pub context: u64,
    /// Buffers of the computation.
    pub compute: u64,
    /// The buffer that logits are returned in, when as many as allowed are asked for at once (llama-context.cpp,
    /// `output_reserve`). No account of llama.cpp's has it.
    pub output: u64,
}

impl BufferBytes {
    /// All of it; saturates.
    pub const fn total(&self) -> u64 {
        self.model.saturating_add(self.context).saturating_add(self.compute).saturating_add(self.output)
    }
}

impl Breakdown {
    /// Sums the rows up for so many GPUs. `resident` are the bytes of the host's weights where their file is mapped.
    pub(super) fn new(mut rows: Vec<BufferBytes>, copies: u32, gpus: usize, resident: Option<u64>) -> Self {
        rows.retain(|row| row.total() > 0);
        rows.sort_by(|a, b| a.buffer_type.cmp(&b.buffer_type));
        let mut footprints = sums(&rows, gpus);
        footprints.output = rows.iter().fold(0, |sum, row| sum.saturating_add(row.output));
        footprints.host += Footprint::new(0, 0, footprints.output);
        if let Some(resident) = resident {
            let span = rows.iter().find(|row| row.buffer_type == MAPPED).map_or(0, |row| row.model);
            footprints.host.weights = footprints.host.weights.saturating_sub(span).saturating_add(resident);
        }
        Self { rows, copies, footprints }
    }
}

/// The bytes of these rows by device, without the buffer of logits.
pub(super) fn sums(rows: &[BufferBytes], gpus: usize) -> Footprints {
    let mut sums = Footprints::new(vec![Footprint::default(); gpus], Footprint::default());
    for row in rows {
        let sum = match row.place {
            Place::Gpu(gpu) => &mut sums.gpus[gpu],
            Place::Host => &mut sums.host,
        };
        *sum += Footprint::new(row.model, row.context, row.compute);
    }
    sums
}

/// The buffer type of mapped files (ggml-backend.cpp, ggml_backend_cpu_buffer_from_ptr_type).
pub(super) const MAPPED: &str = "CPU_Mapped";
