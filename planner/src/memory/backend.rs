//! What a GPU's backend adds to the bytes of a tensor, and what it can be handed.

use crate::gguf::TensorType;
use crate::machine::Gpu;

use super::context::ContextParams;
use super::pad;
use crate::profile::ModelProfile;

/// How a backend lays out tensors in its memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct BackendRules {
    /// Each tensor begins at a multiple of so many bytes.
    pub alignment: u64,
    /// A quantised tensor whose rows are no multiple of so many elements gets the rest of one row on top.
    pub row_padding: Option<u64>,
}

impl BackendRules {
    /// The host: `TENSOR_ALIGNMENT` (ggml-impl.h). Pinned buffers of a GPU's backend follow it too.
    pub const HOST: Self = Self { alignment: 32, row_padding: None };

    /// CUDA, and the same code under ROCm and MUSA: ggml-cuda.cu, `ggml_backend_cuda_buffer_type_get_alignment`,
    /// `ggml_backend_cuda_buffer_type_get_alloc_size`, `MATRIX_ROW_PADDING` 512.
    pub const CUDA: Self = Self { alignment: 128, row_padding: Some(512) };

    /// Vulkan: the device's `minStorageBufferOffsetAlignment` (ggml-vulkan.cpp,
    /// `ggml_backend_vk_buffer_type_get_alignment`), of which the standard allows up to 256. Where [`Gpu::alignment`]
    /// does not say, this is at most 255 bytes per tensor too much.
    pub const VULKAN: Self = Self { alignment: 256, row_padding: None };

    /// Metal: ggml-metal.cpp, `ggml_backend_metal_buffer_type_shared_get_alignment`,
    /// `ggml_backend_metal_buffer_type_private_get_alignment`.
    pub const METAL: Self = Self { alignment: 32, row_padding: None };

    /// A backend that we have not read: the most that any of the others takes.
    pub const WIDEST: Self = Self { alignment: 256, row_padding: Some(512) };

    /// The rules of the backend that ggml's registry calls so (`CUDA`, `ROCm`, `Vulkan`, `MTL`).
    pub fn of(backend: &str) -> Self {
        match Family::of(backend) {
            Family::Cuda => Self::CUDA,
            Family::Vulkan => Self::VULKAN,
            Family::Metal => Self::METAL,
            Family::Other => Self::WIDEST,
        }
    }

    /// The rules of a GPU: those of its backend, with the device's own alignment where that decides and is known.
    pub fn of_gpu(gpu: &Gpu) -> Self {
        let rules = Self::of(&gpu.backend);
        match gpu.alignment {
            Some(alignment) if Family::of(&gpu.backend) == Family::Vulkan && alignment > 0 => {
                Self { alignment, ..rules }
            }
            _ => rules,
        }
    }

    /// Whether these are the GPU's rules and not the most that they may be.
    pub fn are_exact_for(gpu: &Gpu) -> bool {
        match Family::of(&gpu.backend) {
            Family::Cuda | Family::Metal => true,
            Family::Vulkan => gpu.alignment.is_some(),
            Family::Other => false,
        }
    }

    /// Bytes that a tensor takes: its own, the padding of its rows, and the way to the next tensor
    /// (ggml-backend.cpp, `ggml_backend_buft_alloc_buffer_n_plan`, `ggml_backend_buft_get_alloc_size`).
    pub fn alloc(&self, ty: TensorType, ne0: u64, bytes: u64) -> u64 {
        let rest = match self.row_padding {
            Some(padding) if ty.is_quantized() && !ne0.is_multiple_of(padding) => ty.row_bytes(padding - ne0 % padding),
            _ => 0,
        };
        pad(bytes.saturating_add(rest), self.alignment)
    }
}

/// Backends that share their code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// CUDA, and the same code under ROCm and MUSA.
    Cuda,
    /// Vulkan.
    Vulkan,
    /// Metal.
    Metal,
    /// One that we have not read.
    Other,
}

impl Family {
    /// That of the backend that ggml calls so.
    pub fn of(backend: &str) -> Self {
        match backend {
            "CUDA" | "ROCm" | "HIP" | "MUSA" => Self::Cuda,
            "Vulkan" => Self::Vulkan,
            "MTL" | "Metal" => Self::Metal,
            _ => Self::Other,
        }
    }
}

/// Attention as far as it decides whether a GPU can fuse it.
#[derive(Debug, Clone, Copy)]
pub(super) struct AttentionShape {
    /// Elements of a key and of a value.
    pub(super) head_k: u64,
    pub(super) head_v: u64,
    /// The fewest queries that share a key, over all blocks.
    pub(super) shared: u64,
    pub(super) type_k: TensorType,
    pub(super) type_v: TensorType,
}

impl AttentionShape {
    /// That of a model. Compressed keys are shared by all queries of a block.
    pub(super) fn of(profile: &ModelProfile, params: &ContextParams) -> Self {
        let hparams = &profile.hparams;
        let heads = hparams.n_head.iter().zip(&hparams.n_head_kv);
        let shared = heads.filter_map(|(&q, &kv)| q.checked_div(kv)).min();
        Self {
            head_k: hparams.head_dim_k.into(),
            head_v: hparams.head_dim_v.into(),
            shared: shared.unwrap_or(0).into(),
            type_k: params.type_k.tensor_type(),
            type_v: params.type_v.tensor_type(),
        }
    }

    /// Whether all GPUs of this family are known to fuse it; some may although this says no.
    pub(super) fn is_fused_by(&self, family: Family) -> bool {
        let Self { head_k, head_v, .. } = *self;
        let common = head_k == head_v && matches!(head_k, 64 | 80 | 96 | 112 | 128 | 256);
        match family {
            // ggml-cuda/fattn.cu, `ggml_cuda_get_best_fattn_kernel`; cells come in multiples of 256.
            Family::Cuda => {
                let heads = match (head_k, head_v) {
                    (40 | 72, _) => head_k == head_v,
                    (192, 128) => self.shared.is_multiple_of(8),
                    (320, 256) => self.shared.is_multiple_of(32),
                    (512, 512) | (576, 512) => self.shared >= 2,
                    _ => common,
                };
                heads && self.types_are(&CUDA_KV)
            }
            // ggml-vulkan.cpp, `ggml_backend_vk_device_supports_op`: heads of any multiple of 8.
            Family::Vulkan => {
                let half = TensorType::BF16;
                let heads = head_k.is_multiple_of(8) && head_v.is_multiple_of(8);
                heads && (self.type_k == half) == (self.type_v == half)
            }
            // ggml-metal-device.m, `ggml_metal_device_supports_op`; not every chip has bfloat.
            Family::Metal => {
                let heads = common || matches!((head_k, head_v), (192, 128 | 192) | (576, 512));
                heads && self.type_k == self.type_v && self.types_are(&METAL_KV)
            }
            Family::Other => common && self.types_are(&[TensorType::F16]),
        }
    }

    fn types_are(&self, of: &[TensorType]) -> bool {
        of.contains(&self.type_k) && of.contains(&self.type_v)
    }
}

const CUDA_KV: [TensorType; 8] = [
    TensorType::F32,
    TensorType::F16,
    TensorType::BF16,
    TensorType::Q8_0,
    TensorType::Q5_1,
    TensorType::Q5_0,
    TensorType::Q4_1,
    TensorType::Q4_0,
];

const METAL_KV: [TensorType; 7] = [
    TensorType::F32,
    TensorType::F16,
    TensorType::Q8_0,
    TensorType::Q5_1,
    TensorType::Q5_0,
    TensorType::Q4_1,
    TensorType::Q4_0,
];

#[cfg(test)]
mod tests {
    use super::BackendRules as Rules;
    use crate::gguf::TensorType as T;

    #[test]
    fn an_unknown_backend_takes_the_most_of_all() {
        let unknown = Rules::of("SomethingNew");
        for rules in [Rules::CUDA, Rules::VULKAN, Rules::METAL] {
            for (ty, ne0, bytes) in [(T::Q4_0, 96, 54_000), (T::F32, 7, 28), (T::Q6_K, 4096, 3360)] {
                assert!(unknown.alloc(ty, ne0, bytes) >= rules.alloc(ty, ne0, bytes));
            }
        }
    }
}
