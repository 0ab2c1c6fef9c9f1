//! CUDA's rules: rows are padded, and fused attention converts a cache that is not F16.

use super::tensor::{attention, elements, shares_memory};
use crate::raw;

/// ggml-cuda/common.cuh, `MATRIX_ROW_PADDING`.
const ROW: i64 = 512;
/// ggml-cuda/fattn-common.cuh, `ggml_cuda_flash_attn_ext_get_f16_extra_data`, `GGML_PAD(data.end, 128)`.
const SCRATCH_ALIGNMENT: usize = 128;

/// Bytes that a tensor takes, before alignment: as in ggml-cuda.cu, `ggml_backend_cuda_buffer_type_get_alloc_size`.
///
/// # Safety
///
/// `tensor` must be a tensor that ggml made, with the sources that its operation needs.
pub(super) unsafe fn alloc_size(tensor: &raw::ggml_tensor, bytes: usize) -> usize {
    let mut size = bytes;
    if tensor.op == raw::GGML_OP_FLASH_ATTN_EXT {
        // SAFETY: the caller promises that queries, keys and values exist.
        size = unsafe { attention_size(tensor, bytes) };
    }
    let rest = tensor.ne[0] % ROW;
    // SAFETY: reads ggml's table of types.
    if rest != 0 && unsafe { raw::ggml_is_quantized(tensor.type_) } {
        // SAFETY: as above; every block size divides ROW and, in a tensor that exists, ne0 (ggml.c, ggml_row_size).
        size += unsafe { raw::ggml_row_size(tensor.type_, ROW - rest) };
    }
    size
}

/// Bytes of the result of a fused attention. Keys and values that are not F16 are converted, in memory after the end of
/// the result: ggml-cuda/fattn.cu, `ggml_cuda_flash_attn_ext_get_alloc_size`; fattn-common.cuh,
/// `ggml_cuda_flash_attn_ext_get_f16_extra_data`.
unsafe fn attention_size(tensor: &raw::ggml_tensor, bytes: usize) -> usize {
    // SAFETY: the caller's promise.
    let Some([queries, keys, values]) = (unsafe { attention(tensor) }) else {
        return bytes;
    };
    // For a single token the vector kernel is used. It reads the cache without conversion, except for F32.
    let vector = queries.ne[1] == 1 && queries.ne[0] <= 256 && queries.ne[0] % 64 == 0 && queries.ne[0] != 192;
    let converts = |source: &raw::ggml_tensor| {
        source.type_ != raw::GGML_TYPE_F16 && (!vector || source.type_ == raw::GGML_TYPE_F32)
    };
    let append = |end: usize, source: &raw::ggml_tensor| end.next_multiple_of(SCRATCH_ALIGNMENT) + 2 * elements(source);
    let mut end = bytes;
    if converts(keys) {
        end = append(end, keys);
    }
    if converts(values) && !shares_memory(keys, values) {
        end = append(end, values);
    }
    end
}
