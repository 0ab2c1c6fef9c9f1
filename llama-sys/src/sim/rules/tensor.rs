//! Facts about a tensor that the rules of several backends need.

use crate::raw;

/// Queries, keys and values of a fused attention.
pub(super) unsafe fn attention(tensor: &raw::ggml_tensor) -> Option<[&raw::ggml_tensor; 3]> {
    // SAFETY: NULL, or tensors that live as long as the result (ggml.h, ggml_tensor::src).
    unsafe { Some([tensor.src[0].as_ref()?, tensor.src[1].as_ref()?, tensor.src[2].as_ref()?]) }
}

/// Whether the values are a part of the keys (MLA), as in fattn-common.cuh,
/// `ggml_cuda_flash_attn_ext_get_f16_extra_data`, and ggml-metal-ops.cpp,
/// `ggml_metal_op_flash_attn_ext_v_is_view_of_k`.
pub(super) fn shares_memory(keys: &raw::ggml_tensor, values: &raw::ggml_tensor) -> bool {
    !values.view_src.is_null()
        && (std::ptr::eq(values.view_src, keys)
            || (values.view_src == keys.view_src && values.view_offs == keys.view_offs))
}

/// The number of a tensor's elements.
pub(super) fn elements(tensor: &raw::ggml_tensor) -> usize {
    tensor.ne.iter().product::<i64>() as usize
}
