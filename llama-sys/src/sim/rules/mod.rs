//! The allocation rules of CUDA, Vulkan and Metal: how much memory a tensor takes on a backend.

mod cuda;
mod metal;
mod tensor;

use crate::raw;
use crate::safe::call::Error;

/// A backend; a simulated GPU follows its allocation rules.
///
/// | | alignment | a tensor takes | a list of tensors is cut at | pinned host memory |
/// |---|---|---|---|---|
/// | `Plain` | 32 | its bytes | - | no |
/// | `Cuda` | 128 | its bytes, the rest of a row of 512, scratch of fused attention | - | yes |
/// | `Vulkan` | the device's | its bytes | min(1 GiB, the device's) | yes |
/// | `Metal` | 32 | its bytes, scratch of fused attention, experts and sorting | - | no, but it maps files |
///
/// The rules are copied from llama.cpp's backends and are exact, with these exceptions. For CUDA: a single token is
/// assumed to run on the kernel that does not convert the cache, and every other shape on one that does. The real
/// backend also considers the card (ggml-cuda/fattn.cu, `ggml_cuda_get_best_fattn_kernel`). For Metal: the device's
/// largest buffer, and the index lists for sparse attention, are left out (ggml-metal-ops.cpp,
/// `ggml_metal_op_flash_attn_ext_extra_idx`). For Vulkan: pinned memory is aligned like the CPU's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Rules {
    /// The CPU's rules.
    #[default]
    Plain,
    /// CUDA's rules. They apply to NVIDIA's cards, and through ROCm to AMD's.
    Cuda,
    /// Vulkan's rules. The device sets their two limits.
    Vulkan {
        /// `minStorageBufferOffsetAlignment` in bytes, a power of two: 16 to 256 in practice.
        alignment: u64,
        /// `maxMemoryAllocationSize` in bytes: often 4 GiB, or all of the memory. Larger buffers are refused.
        max_alloc: u64,
    },
    /// Metal's rules: files are mapped into the GPU's memory.
    Metal,
}

/// ggml-vulkan.cpp, `ggml_vk_get_device`.
const VULKAN_BLOCK: u64 = 1 << 30;

impl Rules {
    /// Refuses rules on which ggml would fail an assertion.
    pub(super) fn check(self) -> Result<(), Error> {
        match self {
            // ggml-alloc.c, aligned_offset: assert(alignment && !(alignment & (alignment - 1))).
            Self::Vulkan { alignment, .. } if !alignment.is_power_of_two() => {
                Err(Error::parameter("alignment", alignment, "an alignment must be a power of two"))
            }
            // A buffer's memory is aligned to pages, but no further.
            Self::Vulkan { alignment, .. } if alignment > 4096 => {
                Err(Error::parameter("alignment", alignment, "it must be at most 4096"))
            }
            _ => Ok(()),
        }
    }

    /// The alignment of tensors, in bytes.
    pub(super) fn alignment(self) -> usize {
        match self {
            // ggml-impl.h, `TENSOR_ALIGNMENT`; ggml-metal.cpp, `ggml_backend_metal_buffer_type_shared_get_alignment`.
            Self::Plain | Self::Metal => 32,
            // ggml-cuda.cu, `ggml_backend_cuda_buffer_type_get_alignment`.
            Self::Cuda => 128,
            // ggml-vulkan.cpp, `ggml_backend_vk_buffer_type_get_alignment`.
            Self::Vulkan { alignment, .. } => alignment as usize,
        }
    }

    /// The size above which ggml begins a new buffer for a list of tensors: ggml-vulkan.cpp, `ggml_vk_get_device`,
    /// `ggml_backend_vk_buffer_type_get_max_size`.
    pub(super) fn buffer_limit(self) -> usize {
        match self {
            Self::Vulkan { max_alloc, .. } => usize::try_from(max_alloc.min(VULKAN_BLOCK)).unwrap_or(usize::MAX),
            _ => usize::MAX,
        }
    }

    /// The largest buffer, and the largest tensor, that the device accepts: ggml-vulkan-buffers.cpp,
    /// `ggml_vk_create_buffer`; ggml-vulkan.cpp, `ggml_backend_vk_device_supports_op`.
    pub(super) fn largest_buffer(self) -> u64 {
        match self {
            Self::Vulkan { max_alloc, .. } => max_alloc,
            _ => u64::MAX,
        }
    }

    /// Whether the backend offers pinned host memory: `get_host_buffer_type` of its device (ggml-cuda.cu,
    /// ggml-vulkan.cpp, ggml-metal.cpp).
    pub(super) fn pins_host_memory(self) -> bool {
        matches!(self, Self::Cuda | Self::Vulkan { .. })
    }

    /// Whether the backend maps host memory: ggml-metal.cpp, `ggml_backend_metal_device_get_props`.
    pub(super) fn maps_host_memory(self) -> bool {
        self == Self::Metal
    }

    /// Bytes that the backend adds to a pinned buffer: ggml-vulkan.cpp,
    /// `ggml_backend_vk_host_buffer_type_alloc_buffer`.
    pub(super) fn host_extra(self) -> usize {
        match self {
            Self::Vulkan { .. } => 32,
            _ => 0,
        }
    }

    /// Bytes that a tensor takes, before alignment.
    ///
    /// # Safety
    ///
    /// `tensor` must be a tensor that ggml made, with the sources that its operation needs.
    pub(super) unsafe fn alloc_size(self, tensor: &raw::ggml_tensor) -> usize {
        // SAFETY: ggml_nbytes reads the type and shape of a tensor that lives (ggml.c).
        let bytes = unsafe { raw::ggml_nbytes(tensor) };
        match self {
            Self::Plain | Self::Vulkan { .. } => bytes,
            // SAFETY: the caller's promise.
            Self::Cuda => unsafe { cuda::alloc_size(tensor, bytes) },
            // SAFETY: as above.
            Self::Metal => unsafe { metal::alloc_size(tensor, bytes) },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(type_: raw::ggml_type, ne: [i64; 4]) -> raw::ggml_tensor {
        // SAFETY: an all-zero tensor is valid: numbers 0, pointers NULL. The sizes of types are constants.
        unsafe {
            let mut tensor: raw::ggml_tensor = std::mem::zeroed();
            tensor.type_ = type_;
            tensor.ne = ne;
            tensor.nb[0] = raw::ggml_type_size(type_);
            tensor.nb[1] = raw::ggml_row_size(type_, ne[0]);
            tensor.nb[2] = tensor.nb[1] * ne[1] as usize;
            tensor.nb[3] = tensor.nb[2] * ne[2] as usize;
            tensor
        }
    }

    fn size(rules: Rules, tensor: &raw::ggml_tensor) -> usize {
        // SAFETY: made above, with the sources it needs.
        unsafe { rules.alloc_size(tensor) }
    }

    #[test]
    fn cuda_adds_the_rest_of_a_row_of_512_to_quantised_tensors() {
        // The row of 256 elements gets 512 - 256 = 256 more: 8 blocks of 34 bytes.
        let weight = tensor(raw::GGML_TYPE_Q8_0, [256, 3, 1, 1]);
        assert_eq!(size(Rules::Plain, &weight), 3 * 272);
        assert_eq!(size(Rules::Cuda, &weight), 3 * 272 + 272);
        // The last 256 of the row's 768 = 512 + 256 elements get 256 more: one super-block of 144 bytes.
        let weight = tensor(raw::GGML_TYPE_Q4_K, [768, 2, 1, 1]);
        assert_eq!(size(Rules::Cuda, &weight), 2 * 3 * 144 + 144);
        let whole = tensor(raw::GGML_TYPE_Q4_K, [1024, 2, 1, 1]);
        assert_eq!(size(Rules::Cuda, &whole), size(Rules::Plain, &whole));
        let floats = tensor(raw::GGML_TYPE_F32, [250, 1, 1, 1]);
        assert_eq!(size(Rules::Cuda, &floats), 1000);
    }

    #[test]
    fn cuda_converts_a_cache_that_is_not_f16_behind_the_result_of_fused_attention() {
        let attend = |type_, tokens| {
            let mut q = tensor(raw::GGML_TYPE_F32, [64, tokens, 8, 1]);
            let mut k = tensor(type_, [64, 1024, 2, 1]);
            let mut v = tensor(type_, [64, 1024, 2, 1]);
            let mut result = tensor(raw::GGML_TYPE_F32, [64, 8, tokens, 1]);
            result.op = raw::GGML_OP_FLASH_ATTN_EXT;
            result.src[0] = &raw mut q;
            result.src[1] = &raw mut k;
            result.src[2] = &raw mut v;
            size(Rules::Cuda, &result)
        };
        let bytes = |tokens| 4 * 64 * 8 * tokens as usize;
        assert_eq!(attend(raw::GGML_TYPE_F16, 512), bytes(512));
        assert_eq!(attend(raw::GGML_TYPE_Q8_0, 512), bytes(512) + 2 * 2 * (64 * 1024 * 2));
        assert_eq!(attend(raw::GGML_TYPE_Q8_0, 1), bytes(1));
    }

    #[test]
    fn metal_doubles_the_bytes_of_a_sort() {
        let mut order = tensor(raw::GGML_TYPE_I32, [100, 3, 1, 1]);
        order.op = raw::GGML_OP_ARGSORT;
        assert_eq!(size(Rules::Metal, &order), 2 * 1200);
        assert_eq!(size(Rules::Cuda, &order), 1200);
    }

    #[test]
    fn an_alignment_that_is_not_a_power_of_two_is_refused() {
        let rules = |alignment| Rules::Vulkan { alignment, max_alloc: 1 << 30 };
        assert!(rules(0).check().is_err());
        assert!(rules(48).check().is_err());
        assert!(rules(8192).check().is_err());
        assert!(rules(64).check().is_ok());
    }
}
