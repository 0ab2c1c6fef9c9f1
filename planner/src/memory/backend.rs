//! What a GPU's backend adds to the bytes of a tensor, and what it can be handed.

use crate::gguf::TensorType;
use crate::machine::Gpu;

use super::pad;

/// How a backend lays out tensors in its memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct BackendRules {
    /// Each tensor begins at a multiple of so many bytes.
    pub alignment: u64,
    /// A quantised tensor whose rows are no multiple of so many elements gets the rest of one row on top.
    pub row_padding: Option<u64>,
    /// Whether fused attention over a cache of another type than `F16` converts it first, in memory that the graph reserves
    /// (ggml-cuda/fattn.cu:722-756).
    pub converts_kv: bool,
}

impl BackendRules {
    /// The host: `TENSOR_ALIGNMENT` (ggml-impl.h:44, ggml-backend.cpp:2615). Pinned buffers of a GPU's backend follow it too.
    pub const HOST: Self = Self {
        alignment: 32,
        row_padding: None,
        converts_kv: false,
    };

    /// CUDA, and the same code under ROCm and MUSA: ggml-cuda.cu:897-920, `MATRIX_ROW_PADDING` 512.
    pub const CUDA: Self = Self {
        alignment: 128,
        row_padding: Some(512),
        converts_kv: true,
    };

    /// Vulkan: the device's `minStorageBufferOffsetAlignment` (ggml-vulkan.cpp:13056), of which the standard allows up to 256.
    /// Where [`Gpu::alignment`] does not say, this is at most 255 bytes per tensor too much.
    pub const VULKAN: Self = Self {
        alignment: 256,
        row_padding: None,
        converts_kv: false,
    };

    /// Metal: ggml-metal.cpp:269, :347.
    pub const METAL: Self = Self {
        alignment: 32,
        row_padding: None,
        converts_kv: false,
    };

    /// A backend that we have not read: the most that any of the others takes.
    pub const WIDEST: Self = Self {
        alignment: 256,
        row_padding: Some(512),
        converts_kv: true,
    };

    /// The rules of the backend that ggml's registry calls so (`CUDA`, `ROCm`, `Vulkan`, `MTL`).
    #[must_use]
    pub fn of(backend: &str) -> Self {
        match Family::of(backend) {
            Family::Cuda => Self::CUDA,
            Family::Vulkan => Self::VULKAN,
            Family::Metal => Self::METAL,
            Family::Other => Self::WIDEST,
        }
    }

    /// The rules of a GPU: those of its backend, with the device's own alignment where that decides and is known.
    #[must_use]
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
    #[must_use]
    pub fn are_exact_for(gpu: &Gpu) -> bool {
        match Family::of(&gpu.backend) {
            Family::Cuda | Family::Metal => true,
            Family::Vulkan => gpu.alignment.is_some(),
            Family::Other => false,
        }
    }

    /// Bytes that a tensor takes: its own, the padding of its rows, and the way to the next tensor
    /// (ggml-backend.cpp:57-90, ggml_backend_buft_get_alloc_size).
    #[must_use]
    pub fn alloc(&self, ty: TensorType, ne0: u64, bytes: u64) -> u64 {
        pad(bytes.saturating_add(self.row_rest(ty, ne0)), self.alignment)
    }

    /// Bytes that fill up the last row of a quantised tensor with rows of `ne0` elements.
    pub(super) fn row_rest(&self, ty: TensorType, ne0: u64) -> u64 {
        match self.row_padding {
            Some(padding) if ty.is_quantized() && !ne0.is_multiple_of(padding) => {
                ty.row_bytes(padding - ne0 % padding)
            }
            _ => 0,
        }
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
    /// Whether the backend multiplies by matrices of this type: ggml-cuda.cu:5345-5377, ggml-vulkan.cpp:15407-15438.
    pub(super) const fn multiplies(self, ty: TensorType) -> bool {
        match self {
            Self::Cuda => !matches!(ty, TensorType::TQ1_0 | TensorType::TQ2_0),
            _ => !matches!(ty, TensorType::Q8_K),
        }
    }

    /// Whether the backend takes rows of so many elements out of a matrix of this type: ggml-cuda.cu:5380-5416,
    /// ggml-vulkan.cpp:15523-15558.
    pub(super) const fn looks_up(self, ty: TensorType, ne0: u64) -> bool {
        match self {
            Self::Cuda => match ty {
                TensorType::IQ4_NL | TensorType::MXFP4 => ne0.is_multiple_of(256),
                _ => !matches!(
                    ty,
                    TensorType::NVFP4 | TensorType::TQ1_0 | TensorType::TQ2_0 | TensorType::Q8_K
                ),
            },
            _ => !matches!(ty, TensorType::Q8_K),
        }
    }

    /// That of the backend that ggml calls so.
    #[must_use]
    pub fn of(backend: &str) -> Self {
        match backend {
            "CUDA" | "ROCm" | "HIP" | "MUSA" => Self::Cuda,
            "Vulkan" => Self::Vulkan,
            "MTL" | "Metal" => Self::Metal,
            _ => Self::Other,
        }
    }

    /// Whether the backend has fused attention for heads of this size, as far as can be told without the device:
    /// CUDA by ggml-cuda/fattn.cu:576-620, the others for the sizes that all of them list.
    pub(super) const fn fuses_attention(self, head_k: u32, head_v: u32) -> bool {
        head_k == head_v
            && match self {
                Self::Cuda => matches!(head_k, 40 | 64 | 72 | 80 | 96 | 112 | 128 | 256),
                Self::Vulkan | Self::Metal | Self::Other => {
                    matches!(head_k, 64 | 80 | 96 | 112 | 128 | 256)
                }
            }
    }
}

#[cfg(test)]
mod tests {
    use super::BackendRules;
    use crate::gguf::TensorType;

    #[test]
    fn cuda_pads_rows_to_512_elements_and_tensors_to_128_bytes() {
        let rules = BackendRules::CUDA;
        // 4096 is a multiple of 512: nothing is added.
        assert_eq!(rules.alloc(TensorType::Q4_K, 4096, 9_437_184), 9_437_184);
        // 2304 = 4 * 512 + 256: one more block of 256 elements, 144 bytes; 144 is no multiple of 128.
        assert_eq!(
            rules.alloc(TensorType::Q4_K, 2304, 1_296_000),
            (1_296_000 + 144_u64).div_ceil(128) * 128
        );
        // Plain numbers have no rows to pad: 64 floats are 256 bytes.
        assert_eq!(rules.alloc(TensorType::F32, 64, 256), 256);
        assert_eq!(rules.alloc(TensorType::F32, 5, 20), 128);
    }

    #[test]
    fn the_other_backends_only_align() {
        assert_eq!(BackendRules::HOST.alloc(TensorType::Q8_0, 32, 34), 64);
        assert_eq!(BackendRules::METAL.alloc(TensorType::Q8_0, 32, 34), 64);
        assert_eq!(BackendRules::VULKAN.alloc(TensorType::Q8_0, 32, 34), 256);
    }

    #[test]
    fn an_unknown_backend_takes_the_most_of_all() {
        let unknown = BackendRules::of("SomethingNew");
        for rules in [
            BackendRules::CUDA,
            BackendRules::VULKAN,
            BackendRules::METAL,
        ] {
            for (ty, ne0, bytes) in [
                (TensorType::Q4_0, 96, 54_000),
                (TensorType::F32, 7, 28),
                (TensorType::Q6_K, 4096, 3360),
            ] {
                assert!(unknown.alloc(ty, ne0, bytes) >= rules.alloc(ty, ne0, bytes));
            }
        }
    }
}
