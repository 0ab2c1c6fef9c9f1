//! The memory layout of each GPU backend, and the kinds of attention that the backend can fuse.

use crate::gguf::TensorType;
use crate::machine::Gpu;

use super::{ContextParams, KvType};
use crate::profile::ModelProfile;

/// How a backend lays out tensors in its memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct BackendRules {
    /// Each tensor begins at a multiple of this many bytes.
    pub alignment: u64,
    /// Rows of quantised tensors are padded to a multiple of this many elements: a tensor gets the padding of only one
    /// row, after its last row.
    pub row_padding: Option<u64>,
}

impl BackendRules {
    /// The host's rules: `TENSOR_ALIGNMENT` (ggml-impl.h). Pinned buffers of a GPU's backend follow the same rules.
    pub const HOST: Self = Self { alignment: 32, row_padding: None };

    /// The rules of a GPU. The flag is `true` if the rules are exact, and `false` if they are upper bounds.
    pub(super) fn of_gpu(gpu: &Gpu) -> (Self, bool) {
        let (alignment, row_padding, exactly) = match Family::from_backend(&gpu.backend) {
            // ggml-cuda.cu, `ggml_backend_cuda_buffer_type_get_alignment`,
            // `ggml_backend_cuda_buffer_type_get_alloc_size`, `MATRIX_ROW_PADDING` 512.
            Family::Cuda => (128, Some(512), true),
            // The device's `minStorageBufferOffsetAlignment` (ggml-vulkan.cpp,
            // `ggml_backend_vk_buffer_type_get_alignment`). The standard allows up to 256, so this bound exceeds the
            // real alignment by at most 255 bytes per tensor.
            Family::Vulkan => match gpu.alignment {
                Some(alignment @ 1..) => (alignment, None, true),
                _ => (256, None, false),
            },
            // ggml-metal.cpp, `ggml_backend_metal_buffer_type_shared_get_alignment`,
            // `ggml_backend_metal_buffer_type_private_get_alignment`.
            Family::Metal => (32, None, true),
            // The maximum over the other families.
            Family::Other => (256, Some(512), false),
        };
        (Self { alignment, row_padding }, exactly)
    }

    /// Bytes that a tensor takes: its data, the padding of its rows, and the gap to the next tensor (ggml-backend.cpp,
    /// `ggml_backend_buft_alloc_buffer_n_plan`, `ggml_backend_buft_get_alloc_size`).
    pub fn alloc(&self, ty: TensorType, ne0: u64, bytes: u64) -> u64 {
        let rest = match self.row_padding {
            Some(padding) if ty.is_quantized() && !ne0.is_multiple_of(padding) => ty.row_bytes(padding - ne0 % padding),
            _ => 0,
        };
        bytes.saturating_add(rest).checked_next_multiple_of(self.alignment).unwrap_or(u64::MAX)
    }
}

/// A family of backends that share their code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// CUDA. ROCm and MUSA compile the same code.
    Cuda,
    /// Vulkan.
    Vulkan,
    /// Metal.
    Metal,
    /// A backend whose code we have not read.
    Other,
}

impl Family {
    /// The family of a backend, by its name in ggml.
    pub fn from_backend(backend: &str) -> Self {
        match backend {
            "CUDA" | "ROCm" | "HIP" | "MUSA" => Self::Cuda,
            "Vulkan" => Self::Vulkan,
            "MTL" | "Metal" => Self::Metal,
            _ => Self::Other,
        }
    }
}

/// Whether all GPUs of this family are known to fuse attention. If false, some of them may still fuse it.
pub(crate) fn fuses_attention(family: Family, profile: &ModelProfile, params: &ContextParams) -> bool {
    let (hparams, types) = (&profile.hparams, [params.type_k, params.type_v]);
    let (head_k, head_v) = (hparams.head_dim_k, hparams.head_dim_v);
    // The smallest number of queries that share a key, over all blocks. With compressed keys, all queries of a block
    // share one key.
    let heads = hparams.n_head.iter().zip(&hparams.n_head_kv);
    let shared = heads.filter_map(|(&q, &kv)| q.checked_div(kv)).min().unwrap_or(0);
    let common = head_k == head_v && matches!(head_k, 64 | 80 | 96 | 112 | 128 | 256);
    let is_common = |ty| {
        use KvType::{F16, F32, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0};
        matches!(ty, F32 | F16 | Q8_0 | Q5_1 | Q5_0 | Q4_1 | Q4_0)
    };
    match family {
        // ggml-cuda/fattn.cu, `ggml_cuda_get_best_fattn_kernel`. The number of cells is always a multiple of 256.
        Family::Cuda => {
            let heads = match (head_k, head_v) {
                (40 | 72, _) => head_k == head_v,
                (192, 128) => shared.is_multiple_of(8),
                (320, 256) => shared.is_multiple_of(32),
                (512, 512) | (576, 512) => shared >= 2,
                _ => common,
            };
            heads && types.iter().all(|&ty| is_common(ty) || ty == KvType::BF16)
        }
        // ggml-vulkan.cpp, `ggml_backend_vk_device_supports_op`: head sizes that are multiples of 8.
        Family::Vulkan => {
            let [k, v] = types.map(|ty| ty == KvType::BF16);
            head_k.is_multiple_of(8) && head_v.is_multiple_of(8) && k == v
        }
        // ggml-metal-device.m, `ggml_metal_device_supports_op`. Not every chip has bfloat16.
        Family::Metal => {
            let heads = common || matches!((head_k, head_v), (192, 128 | 192) | (576, 512));
            heads && types[0] == types[1] && is_common(types[0])
        }
        Family::Other => common && types == [KvType::F16; 2],
    }
}

#[cfg(test)]
mod tests {
    use super::BackendRules as Rules;
    use crate::gguf::TensorType as T;
    use crate::machine::Gpu;

    #[test]
    fn an_unknown_backend_has_the_largest_bounds() {
        let of = |backend: &str| Rules::of_gpu(&Gpu::new("card").backend(backend)).0;
        let unknown = of("SomethingNew");
        for rules in ["CUDA", "Vulkan", "MTL"].map(of) {
            for (ty, ne0, bytes) in [(T::Q4_0, 96, 54_000), (T::F32, 7, 28), (T::Q6_K, 4096, 3360)] {
                assert!(unknown.alloc(ty, ne0, bytes) >= rules.alloc(ty, ne0, bytes));
            }
        }
    }
}
