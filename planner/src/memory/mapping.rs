//! Whether a model's file is mapped into memory or read: the file and the GPUs of a placement flow in; why it is not
//! mapped flows out.

use crate::gguf::Header;
use crate::machine::{Bytes, Gpu, GpuKind, gib};
use crate::profile::ModelProfile;

use super::ContextParams;
use super::backend::Family;

/// The alignment that ggml asks of memory that it is handed, in bytes (`TENSOR_ALIGNMENT`, ggml/src/ggml-impl.h;
/// `ggml_backend_cpu_buffer_from_ptr` asserts it).
const TENSOR_ALIGNMENT: u32 = 32;

/// What ROCm was seen to upload from a mapped file without harm: 16 GiB, and more than that hung (ROCm's own #5952;
/// llama.cpp #15018; ROCmFPX #37, on gfx1151 and on three gfx1201).
const ROCM_UPLOAD: u64 = gib(16);

/// Why a file is read rather than mapped, though nobody asked for that.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)] // The fields are named for what the message says of them.
pub enum NotMapped {
    /// ggml takes no buffer that begins between two multiples of its alignment, and ends the process.
    #[error("the file is read, not mapped: its data is aligned to {alignment} bytes, and ggml maps from 32 on")]
    Alignment { alignment: u32 },
    /// Metal maps a GPU's weights by the span of the file from the first to the last of them, those of the host in
    /// between included (llama-model.cpp, `load_tensors`), which no probe sees.
    #[error("the file is read, not mapped: Metal would map weights of the host for the GPU too")]
    Metal,
    /// A GPU in the host's memory gets a copy of what is mapped beside it (ggml-org/llama.cpp#26081).
    #[error("the file is read, not mapped: {gpu} is in the host's memory, where the model would be twice")]
    Twice { gpu: String },
    /// ROCm stalls where much is uploaded from mapped pages.
    #[error(
        "the file is read, not mapped: ROCm was seen to hang while more than {} of a mapped file were uploaded",
        Bytes(ROCM_UPLOAD)
    )]
    Rocm,
}

/// What of a file decides whether it is mapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileFacts {
    /// The alignment of the data, in bytes; of several files the least.
    pub alignment: u32,
    /// Bytes of all files together.
    pub bytes: u64,
}

impl FileFacts {
    /// Of the file of this model.
    pub const fn of(profile: &ModelProfile) -> Self {
        Self { alignment: profile.alignment, bytes: profile.file_bytes }
    }

    /// Of the file of this header.
    pub fn of_header(header: &Header) -> Self {
        Self { alignment: header.alignment(), bytes: header.file_bytes() }
    }
}

impl NotMapped {
    /// Why a file is not mapped whatever GPUs hold its weights.
    pub fn of_file(file: FileFacts) -> Option<Self> {
        let FileFacts { alignment, .. } = file;
        (alignment < TENSOR_ALIGNMENT).then_some(Self::Alignment { alignment })
    }

    /// Why a file is not mapped where these GPUs hold weights of it; `None` where it is, if
    /// [`ContextParams::mmap`] allows it.
    pub fn of(file: FileFacts, gpus: &[&Gpu]) -> Option<Self> {
        let of_gpu = |gpu: &&Gpu| match (Family::of(&gpu.backend), gpu.kind) {
            (Family::Metal, _) => Some(Self::Metal),
            // As the backends say (`mmap_support`): ggml-cuda.cu, which is ROCm's too, ggml-vulkan.cpp.
            (Family::Cuda | Family::Vulkan, GpuKind::Integrated) => Some(Self::Twice { gpu: gpu.name.clone() }),
            _ => None,
        };
        let on_rocm = gpus.iter().filter(|gpu| ["ROCm", "HIP"].contains(&&*gpu.backend)).map(|gpu| gpu.total);
        let uploaded = on_rocm.fold(0, u64::saturating_add).min(file.bytes);
        Self::of_file(file)
            .or_else(|| gpus.iter().find_map(of_gpu))
            .or_else(|| (uploaded > ROCM_UPLOAD).then_some(Self::Rocm))
    }
}

impl ContextParams {
    /// The same with the file read where it is not mapped for these GPUs.
    pub fn mapped_for(mut self, file: FileFacts, gpus: &[&Gpu]) -> Self {
        self.mmap = self.mmap && NotMapped::of(file, gpus).is_none();
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
    fn a_file_is_mapped_but_where_that_is_known_to_end_the_process_to_hang_or_to_double_memory() {
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
            // A model that is small, or a card that takes little of it.
            (32, 8, vec![("ROCm", Discrete, 96)], None),
            (32, 80, vec![("ROCm", Discrete, 8)], None),
            (32, 58, vec![("ROCm", Discrete, 32); 3], Some(NotMapped::Rocm)),
            (32, 58, vec![("Vulkan", Discrete, 32); 3], None),
        ] {
            let gpus: Vec<Gpu> = gpus.into_iter().map(|(backend, kind, total)| gpu(backend, kind, total)).collect();
            let gpus: Vec<&Gpu> = gpus.iter().collect();
            let file = FileFacts { alignment, bytes: gib(bytes) };
            assert_eq!(NotMapped::of(file, &gpus), expected, "{alignment} {bytes} {gpus:?}");
        }
    }
}
