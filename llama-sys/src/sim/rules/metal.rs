//! Metal's rules. Some operations need memory for intermediate results, after the end of their result.

use super::tensor::{attention, elements, shares_memory};
use crate::raw;

/// Bytes that a tensor takes, before alignment: as in ggml-metal.cpp, `ggml_backend_metal_buffer_type_get_alloc_size`.
///
/// # Safety
///
/// `tensor` must be a tensor that ggml made, with the sources that its operation needs.
pub(super) unsafe fn alloc_size(tensor: &raw::ggml_tensor, bytes: usize) -> usize {
    /// ggml-metal-impl.h, `N_ARGMAX_CHUNK` and `N_ARGMAX_NPART_MAX`.
    const CHUNK: usize = 4096;
    const MAX_PARTS: usize = 256;
    match tensor.op {
        raw::GGML_OP_MUL_MAT_ID => {
            // SAFETY: NULL or a tensor: sources of an operation live as long as its result (ggml.h, ggml_tensor::src).
            let (experts, ids) = unsafe { (tensor.src[0].as_ref(), tensor.src[2].as_ref()) };
            let (Some(experts), Some(ids)) = (experts, ids) else {
                return bytes;
            };
            // ggml-metal-ops.cpp, `ggml_metal_op_mul_mat_id_extra_*`.
            let experts = experts.ne[2] as usize;
            bytes + 4 * experts + 4 * experts * ids.ne[1] as usize
        }
        // SAFETY: the caller's promise.
        raw::GGML_OP_FLASH_ATTN_EXT => bytes + unsafe { attention_size(tensor) },
        raw::GGML_OP_CUMSUM | raw::GGML_OP_ARGSORT => 2 * bytes,
        // ggml-metal-ops.cpp, `ggml_metal_op_argmax_extra`: for each part of a row, its largest element and that
        // element's index. SAFETY: as above.
        raw::GGML_OP_ARGMAX => unsafe { tensor.src[0].as_ref() }.map_or(bytes, |rows| {
            match (rows.ne[0] as usize).div_ceil(CHUNK).min(MAX_PARTS) {
                0 | 1 => bytes,
                parts => bytes + 8 * parts * rows.ne[1] as usize,
            }
        }),
        raw::GGML_OP_TOP_K => {
            // SAFETY: as above.
            unsafe { tensor.src[0].as_ref() }.map_or(bytes, |source| (8 * elements(source)).max(bytes))
        }
        _ => bytes,
    }
}

/// ggml-metal-ops.cpp, `ggml_metal_op_flash_attn_ext_extra_*`: padding of the last chunk, flags for empty parts of the
/// mask, partial results, and keys and values in F16. The backend reserves all of it, even if a kernel does not use it.
unsafe fn attention_size(tensor: &raw::ggml_tensor) -> usize {
    /// ggml-metal-impl.h, `OP_FLASH_ATTN_EXT_*`: queries and cells per group, for the matrix kernel and for the vector
    /// kernel.
    const MATRIX: (usize, usize) = (8, 64);
    const VECTOR: (usize, usize) = (1, 32);
    /// ggml-metal-ops.cpp, `ggml_metal_op_flash_attn_ext_extra_tmp`: number of work groups.
    const GROUPS: usize = 32;

    // SAFETY: the caller's promise.
    let Some([queries, keys, values]) = (unsafe { attention(tensor) }) else {
        return 0;
    };
    // SAFETY: NULL without a mask, else a tensor that lives as long as the result.
    let mask = unsafe { tensor.src[3].as_ref() };
    let dim = |of: &raw::ggml_tensor, index: usize| of.ne[index] as usize;
    let converted = dim(queries, 1) >= 32
        && matches!(
            keys.type_,
            raw::GGML_TYPE_Q4_0 | raw::GGML_TYPE_Q4_1 | raw::GGML_TYPE_Q5_0 | raw::GGML_TYPE_Q5_1 | raw::GGML_TYPE_Q8_0
        );
    let shared = shares_memory(keys, values);
    let (key_row, value_row) = match (converted, shared) {
        (false, _) => (keys.nb[1], values.nb[1]),
        (true, false) => (2 * dim(keys, 0), 2 * dim(values, 0)),
        (true, true) => (2 * dim(keys, 0), 2 * dim(keys, 0)),
    };
    let mask_cells = mask.map_or(0, |mask| 2 * dim(mask, 1) * dim(mask, 2) * dim(mask, 3));
    let pad =
        MATRIX.1 * (key_row * dim(keys, 2) * dim(keys, 3) + value_row * dim(values, 2) * dim(values, 3) + mask_cells);
    // ggml-metal-ops.cpp, `ggml_metal_op_flash_attn_ext_use_vec`.
    let vector = dim(queries, 1) < 20 && dim(queries, 0) % 32 == 0;
    let (per_queries, per_cells) = if vector { VECTOR } else { MATRIX };
    let blocks = mask.map_or(0, |mask| {
        (dim(mask, 0).div_ceil(per_cells) * dim(queries, 1).div_ceil(per_queries) * dim(mask, 2) * dim(mask, 3))
            .next_multiple_of(32)
    });
    let partial = 4 * (dim(queries, 1).min(32) * dim(queries, 2) * dim(queries, 3) * GROUPS * (dim(values, 0) + 2));
    let half = |source| (2 * elements(source)).next_multiple_of(16);
    let halves = half(keys) + if shared { 0 } else { half(values) };
    pad + blocks + partial + halves
}
