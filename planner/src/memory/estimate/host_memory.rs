//! The buffer type of each weight on the host. The buffer type changes the bytes only for a tied embedding, which is
//! stored twice if its two uses get different buffer types. The buffer type also decides which weights are mapped.

use crate::gguf::TensorType;
use crate::machine::Gpu;
use crate::memory::backend::Family;
use crate::memory::context::ContextParams;
use crate::profile::{Group, Weight};

use super::weights::StoredWeight;

/// Whether the host's weights lie in memory that a GPU has pinned. If it is pinned, the GPU computes large batches with
/// these weights. If not, the CPU may repack the weights, and then computes with them itself (ggml-backend.cpp,
/// `ggml_backend_sched_backend_id_from_cur`; llama-model.cpp, `make_cpu_buft_list`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pinned {
    /// Pinned by a GPU of this family.
    Yes(Family),
    /// Unknown: we have not read the backend's code.
    Perhaps,
    No,
}

impl Pinned {
    /// The kind of pinned memory with these GPUs: the first GPU that offers pinned memory decides (llama-model.cpp,
    /// `make_cpu_buft_list`). An earlier GPU of unknown kind does not matter: the memory is pinned in any case, and the
    /// two backends differ only for types that hardly any model has.
    pub(super) fn from_gpus(gpus: &[&Gpu]) -> Self {
        let surest = |pinned: &Self| match pinned {
            Self::Yes(_) => 0,
            Self::Perhaps => 1,
            Self::No => 2,
        };
        gpus.iter().map(|gpu| Self::from_backend(&gpu.backend)).min_by_key(surest).unwrap_or(Self::No)
    }

    /// The kind of pinned memory of a backend, by the function `get_host_buffer_type` of its device. ggml-cuda.cu and
    /// ggml-vulkan.cpp implement the function; in ggml-metal.cpp, ggml-rpc.cpp, ggml-opencl.cpp and ggml-webgpu.cpp it
    /// is NULL.
    fn from_backend(backend: &str) -> Self {
        match (Family::from_backend(backend), backend) {
            (family @ (Family::Cuda | Family::Vulkan), _) => Self::Yes(family),
            (Family::Metal, _) | (_, "RPC" | "OpenCL" | "WebGPU") => Self::No,
            (Family::Other, _) => Self::Perhaps,
        }
    }
}

/// The facts that decide the buffer type of a weight on the host. The candidates are a GPU's pinned memory, the CPU's
/// rearranged layout, and plain memory, in this order. llama.cpp takes the first candidate that supports the weight's
/// operation (llama-model.cpp, `make_cpu_buft_list`).
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

    /// Whether the CPU may repack this weight. Pinned memory takes precedence over repacking.
    pub(super) fn repacks(&self, weight: &StoredWeight) -> bool {
        self.repack
            && !matches!(self.pinned, Pinned::Yes(_))
            && weight.group != Group::Input
            && weight.is_matrix()
            && repackable(&weight.weight)
    }

    /// Bytes that pinned memory takes beyond the weights: on Vulkan, 32 bytes for each buffer of at most 1 GiB
    /// (ggml-vulkan.cpp, `ggml_backend_vk_host_buffer_type_alloc_buffer`). Pinned memory is plain memory if the file is
    /// mapped (llama-model-loader.cpp, `create_tensor`).
    pub(super) fn beside(&self, bytes: u64) -> u64 {
        match self.pinned {
            Pinned::Yes(Family::Vulkan) if !self.mmap => bytes.div_ceil(1 << 30).saturating_mul(32),
            _ => 0,
        }
    }

    /// Whether the host stores a tied embedding twice, because lookup and product use different buffer types
    /// (llama-model-loader.cpp, `create_tensor`).
    pub(super) fn keeps_twice(&self, weight: &StoredWeight) -> bool {
        match self.pinned {
            Pinned::No => self.repacks(weight),
            Pinned::Perhaps => self.repacks(weight) || !self.mmap,
            // Pinned memory supports both uses for every type in which embeddings are published.
            Pinned::Yes(_) => false,
        }
    }
}

/// Whether this CPU may repack this matrix (ggml-cpu/repack.cpp, `ggml_repack_get_optimal_repack_type`). The answer
/// depends on the CPU's instruction set, but only the CPU's architecture is known here. Repacking does not change the
/// size.
fn repackable(weight: &Weight) -> bool {
    use TensorType::{IQ4_NL, MXFP4, Q1_0, Q2_K, Q4_0, Q4_K, Q5_K, Q6_K, Q8_0};
    let everywhere = matches!(weight.ty, Q4_0 | Q2_K | Q4_K | IQ4_NL | MXFP4);
    if cfg!(any(target_arch = "x86_64", target_arch = "x86")) {
        return everywhere && weight.shape[1].is_multiple_of(8);
    }
    // Only the kernels for Arm and RISC-V repack these types.
    everywhere || matches!(weight.ty, Q1_0 | Q8_0 | Q5_K | Q6_K)
}

#[cfg(test)]
mod tests {
    use super::Pinned;
    use crate::machine::Gpu;
    use crate::memory::backend::Family;

    #[test]
    fn the_first_gpu_that_pins_memory_decides() {
        let vulkan = Pinned::Yes(Family::Vulkan);
        for (backends, by) in [
            (&["MTL", "Vulkan", "CUDA"][..], vulkan),
            (&["SomethingNew", "Vulkan"], vulkan),
            (&["RPC", "SomethingNew"], Pinned::Perhaps),
            (&["RPC", "MTL"], Pinned::No),
            (&[], Pinned::No),
        ] {
            let gpus: Vec<Gpu> = backends.iter().map(|backend| Gpu::new("card").backend(*backend)).collect();
            assert_eq!(Pinned::from_gpus(&gpus.iter().collect::<Vec<_>>()), by, "{backends:?}");
        }
    }
}
