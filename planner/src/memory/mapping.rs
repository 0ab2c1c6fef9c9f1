//! Whether a model's file is mapped or read. In: the file and the GPUs of a placement. Out: the reason why the file is
//! not mapped.

use crate::gguf::Header;
use crate::machine::{Bytes, Gpu, GpuKind, gib};
use crate::profile::ModelProfile;

use super::ContextParams;
use super::backend::Family;

/// The alignment that ggml demands of external memory, in bytes (`TENSOR_ALIGNMENT`, ggml/src/ggml-impl.h;
/// `ggml_backend_cpu_buffer_from_ptr` asserts it).
const TENSOR_ALIGNMENT: u32 = 32;

/// The largest upload from a mapped file that ROCm completed in published reports. Larger uploads hung (#5952 of ROCm
/// itself; llama.cpp #15018; ROCmFPX #37, on gfx1151 and on three gfx1201).
const ROCM_UPLOAD: u64 = gib(16);

/// Why a file is read although the request allows mapping.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)] // The message explains the fields.
pub enum NotMapped {
    /// ggml aborts on a buffer that does not begin at a multiple of ggml's alignment.
    #[error("the file is read, not mapped: its data is aligned to {alignment} bytes, and ggml needs 32")]
    Alignment { alignment: u32 },
    /// Metal maps the whole range of the file from the first to the last weight of a GPU, including the host's weights
    /// in between (llama-model.cpp, `load_tensors`). A probe does not count the bytes of the host's weights in this
    /// range.
    #[error("the file is read, not mapped: Metal would map weights of the host for the GPU too")]
    Metal,
    /// An integrated GPU copies the mapped weights into the same memory (ggml-org/llama.cpp#26081).
    #[error("the file is read, not mapped: {gpu} shares the host's memory, which would hold the model twice")]
    Twice { gpu: String },
    /// ROCm hangs on large uploads from mapped pages.
    #[error(
        "the file is read, not mapped: ROCm has hung on uploads of more than {} from a mapped file",
        Bytes(ROCM_UPLOAD)
    )]
    Rocm,
}

/// The properties of a file that decide whether it is mapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileFacts {
    /// The alignment of the data, in bytes; of several shards, the smallest alignment.
    pub alignment: u32,
    /// Bytes of all shards together.
    pub bytes: u64,
}

impl FileFacts {
    /// The facts of this model's file.
    pub const fn from_profile(profile: &ModelProfile) -> Self {
        Self { alignment: profile.alignment, bytes: profile.file_bytes }
    }

    /// The facts of this header's file.
    pub fn from_header(header: &Header) -> Self {
        Self { alignment: header.alignment(), bytes: header.file_bytes() }
    }
}

impl NotMapped {
    /// The reason against mapping the file, whatever the GPUs are.
    pub fn check_file(file: FileFacts) -> Option<Self> {
        let FileFacts { alignment, .. } = file;
        (alignment < TENSOR_ALIGNMENT).then_some(Self::Alignment { alignment })
    }

    /// The reason against mapping a file whose weights are on these GPUs. `None` if the file can be mapped; it is then
    /// mapped if [`ContextParams::mmap`] allows it.
    pub fn check(file: FileFacts, gpus: &[&Gpu]) -> Option<Self> {
        let of_gpu = |gpu: &&Gpu| match (Family::from_backend(&gpu.backend), gpu.kind) {
            (Family::Metal, _) => Some(Self::Metal),
            // The backends report this as `mmap_support`: ggml-cuda.cu (ROCm uses it too) and ggml-vulkan.cpp.
            (Family::Cuda | Family::Vulkan, GpuKind::Integrated) => Some(Self::Twice { gpu: gpu.name.clone() }),
            _ => None,
        };
        let on_rocm = gpus.iter().filter(|gpu| ["ROCm", "HIP"].contains(&&*gpu.backend)).map(|gpu| gpu.total);
        let uploaded = on_rocm.fold(0, u64::saturating_add).min(file.bytes);
        Self::check_file(file)
            .or_else(|| gpus.iter().find_map(of_gpu))
            .or_else(|| (uploaded > ROCM_UPLOAD).then_some(Self::Rocm))
    }
}

impl ContextParams {
    /// The same parameters, but with `mmap` off if the file cannot be mapped for these GPUs.
    pub fn mapped_for(mut self, file: FileFacts, gpus: &[&Gpu]) -> Self {
        self.mmap = self.mmap && NotMapped::check(file, gpus).is_none();
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu(backend: &str, kind: GpuKind, total: u64) -> Gpu {
        let mut gpu = Gpu::new("GPU").total(gib(total));
        (gpu.backend, gpu.kind) = (backend.to_owned(), kind);
        gpu
    }

    #[test]
    fn a_file_is_mapped_unless_that_is_known_to_abort_hang_or_double_the_memory() {
        use GpuKind::{Discrete, Integrated, Remote};
        let twice = Some(NotMapped::Twice { gpu: "GPU".to_owned() });
        for (alignment, bytes, gpus, expected) in [
            (32, 8, vec![], None),
            (4096, 80, vec![("CUDA", Discrete, 24)], None),
            (16, 8, vec![], Some(NotMapped::Alignment { alignment: 16 })),
            (1, 8, vec![("CUDA", Discrete, 24)], Some(NotMapped::Alignment { alignment: 1 })),
            (32, 8, vec![("ROCm", Integrated, 96)], twice.clone()),
            (32, 8, vec![("CUDA", Integrated, 96)], twice.clone()),
            (32, 8, vec![("CUDA", Discrete, 24), ("Vulkan", Integrated, 32)], twice),
            (32, 8, vec![("MTL", Integrated, 32)], Some(NotMapped::Metal)),
            (32, 8, vec![("RPC", Remote, 32)], None),
            // There is no reason against mapping a small model, or a model of which only a small part is on the card.
            (32, 8, vec![("ROCm", Discrete, 96)], None),
            (32, 80, vec![("ROCm", Discrete, 8)], None),
            (32, 58, vec![("ROCm", Discrete, 32); 3], Some(NotMapped::Rocm)),
            (32, 58, vec![("Vulkan", Discrete, 32); 3], None),
        ] {
            let gpus: Vec<Gpu> = gpus.into_iter().map(|(backend, kind, total)| gpu(backend, kind, total)).collect();
            let gpus: Vec<&Gpu> = gpus.iter().collect();
            let file = FileFacts { alignment, bytes: gib(bytes) };
            assert_eq!(NotMapped::check(file, &gpus), expected, "{alignment} {bytes} {gpus:?}");
        }
    }
}
