//! Which of the host's buffer types a weight is put into. To the sum of bytes that makes no difference but for a tied
//! embedding, which is there twice where its two uses choose differently; to what is mapped it does.

use crate::gguf::TensorType;
use crate::machine::Gpu;
use crate::memory::backend::Family;
use crate::memory::context::ContextParams;
use crate::profile::{Group, Weight};

use super::weights::StoredWeight;

/// Whether the host's weights lie in memory that a GPU has pinned. If so, the GPU computes with them for large batches;
/// if not, the CPU may repack them, and then computes with them itself (ggml-backend.cpp,
/// `ggml_backend_sched_backend_id_from_cur`; llama-model.cpp, `make_cpu_buft_list`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pinned {
    /// By a GPU of this kind.
    Yes(Family),
    /// We have not read the backend.
    Perhaps,
    No,
}

impl Pinned {
    /// The first GPU that offers pinned memory gives it (llama-model.cpp, `make_cpu_buft_list`). Where one before it
    /// may too, it is pinned in any case, and what the two take differs in types that hardly any model has.
    pub(super) fn by(gpus: &[&Gpu]) -> Self {
        let surest = |one: &Self| match one {
            Self::Yes(_) => 0,
            Self::Perhaps => 1,
            Self::No => 2,
        };
        gpus.iter().map(|gpu| Self::of(&gpu.backend)).min_by_key(surest).unwrap_or(Self::No)
    }

    /// `get_host_buffer_type` of each backend's device: ggml-cuda.cu and ggml-vulkan.cpp have it; ggml-metal.cpp,
    /// ggml-rpc.cpp, ggml-opencl.cpp and ggml-webgpu.cpp have NULL there.
    fn of(backend: &str) -> Self {
        match (Family::of(backend), backend) {
            (family @ (Family::Cuda | Family::Vulkan), _) => Self::Yes(family),
            (Family::Metal, _) | (_, "RPC" | "OpenCL" | "WebGPU") => Self::No,
            (Family::Other, _) => Self::Perhaps,
        }
    }
}

/// What decides which of the host's buffer types a weight is put into: the pinned memory of a GPU, that of the
/// CPU's own arrangement, or plain memory (llama-model.cpp, `make_cpu_buft_list`; the first that can do what
/// the weight is for).
#[derive(Debug, Clone, Copy)]
pub(super) struct HostMemory {
    pinned: Pinned,
    repack: bool,
    mmap: bool,
}

impl HostMemory {
    pub(super) const fn new(pinned: Pinned, params: &ContextParams) -> Self {
        Self { pinned, repack: params.repack, mmap: params.mmap }
    }

    /// Whether the CPU may repack this weight: not if pinned memory, which comes first, takes it.
    fn repacks(&self, weight: &StoredWeight) -> bool {
        self.repack
            && !matches!(self.pinned, Pinned::Yes(_))
            && weight.group != Group::Input
            && weight.is_matrix()
            && repackable(&weight.weight)
    }

    /// What pinned memory takes beside the host's weights: of Vulkan, 32 bytes per buffer of at most a GiB
    /// (ggml-vulkan.cpp, `ggml_backend_vk_host_buffer_type_alloc_buffer`). What is pinned becomes plain memory with a
    /// mapped file (llama-model-loader.cpp, `create_tensor`).
    pub(super) fn beside(&self, bytes: u64) -> u64 {
        match self.pinned {
            Pinned::Yes(Family::Vulkan) if !self.mmap => bytes.div_ceil(1 << 30).saturating_mul(32),
            _ => 0,
        }
    }

    /// Whether the host keeps a tied embedding twice: where the lookup and the product choose different buffer types
    /// (llama-model-loader.cpp, `create_tensor`).
    pub(super) fn keeps_twice(&self, weight: &StoredWeight) -> bool {
        match self.pinned {
            Pinned::No => self.repacks(weight),
            Pinned::Perhaps => self.repacks(weight) || !self.mmap,
            // It takes either use of every type that embeddings are published in.
            Pinned::Yes(_) => false,
        }
    }
}

/// Whether this CPU may rearrange this matrix (ggml-cpu/repack.cpp, `ggml_repack_get_optimal_repack_type`). What it
/// does depends on its instruction set, of which only the architecture is known here; the rearranged matrix is as large
/// as before.
fn repackable(weight: &Weight) -> bool {
    use TensorType::{IQ4_NL, MXFP4, Q1_0, Q2_K, Q4_0, Q4_K, Q5_K, Q6_K, Q8_0};
    let everywhere = matches!(weight.ty, Q4_0 | Q2_K | Q4_K | IQ4_NL | MXFP4);
    if cfg!(any(target_arch = "x86_64", target_arch = "x86")) {
        return everywhere && weight.shape[1].is_multiple_of(8);
    }
    // Only the kernels for Arm and RISC-V take these.
    everywhere || matches!(weight.ty, Q1_0 | Q8_0 | Q5_K | Q6_K)
}

#[cfg(test)]
mod tests {
    use super::Pinned;
    use crate::machine::Gpu;
    use crate::memory::backend::Family;

    #[test]
    fn the_first_gpu_that_pins_memory_gives_it() {
        let vulkan = Pinned::Yes(Family::Vulkan);
        for (backends, by) in [
            (&["MTL", "Vulkan", "CUDA"][..], vulkan),
            (&["SomethingNew", "Vulkan"], vulkan),
            (&["RPC", "SomethingNew"], Pinned::Perhaps),
            (&["RPC", "MTL"], Pinned::No),
            (&[], Pinned::No),
        ] {
            let gpus: Vec<Gpu> = backends.iter().map(|backend| Gpu::new("card").backend(*backend)).collect();
            assert_eq!(Pinned::by(&gpus.iter().collect::<Vec<_>>()), by, "{backends:?}");
        }
    }
}
