//! Metal: some operations keep intermediate results behind their own.

use super::shares_memory;
use crate::gguf::TensorType;
use crate::memory::estimate::graph::ops::Graph;
use crate::memory::estimate::graph::tensor::{Op, Tensor};
use crate::memory::pad;

/// ggml-metal-impl.h:17, `N_MM_NPART_AMAX`.
const PARTS: u64 = 256;
/// ggml-metal-impl.h:129-138: queries and cells per group, of the matrix and of the vector kernel.
const MATRIX: (u64, u64) = (8, 64);
const VECTOR: (u64, u64) = (1, 32);
/// ggml-metal-ops.cpp:3339: work groups.
const GROUPS: u64 = 32;

fn product(factors: &[u64]) -> u64 {
    factors.iter().fold(1, |a, &b| a.saturating_mul(b))
}

fn sum(terms: &[u64]) -> u64 {
    terms.iter().fold(0, |a, &b| a.saturating_add(b))
}

/// Bytes that a tensor takes, before alignment: ggml-metal.cpp:220-254.
pub(super) fn alloc_size(graph: &Graph, tensor: &Tensor, bytes: u64) -> u64 {
    match tensor.op {
        Op::MulMatId => {
            // ggml-metal-ops.cpp:2774-2798.
            let experts = graph[tensor.src[0]].ne[2];
            let tokens = graph[tensor.src[2]].ne[1];
            let lists = product(&[4, experts, tokens]);
            sum(&[bytes, 4 * experts, lists, 8 + 4 * PARTS])
        }
        Op::FlashAttn => bytes.saturating_add(attention(graph, tensor)),
        Op::Argsort => bytes.saturating_mul(2),
        _ => bytes,
    }
}

/// ggml-metal-ops.cpp:3229-3377: padding of the last chunk, which parts of the mask are empty, partial results, and keys and
/// values in F16. All of it is reserved whether used or not.
fn attention(graph: &Graph, tensor: &Tensor) -> u64 {
    let [queries, keys, values] = [0, 1, 2].map(|i| &graph[tensor.src[i]]);
    let mask = tensor.src[3].get().map(|mask| graph[mask].ne);
    let converted = queries.ne[1] >= 32
        && matches!(
            keys.ty,
            TensorType::Q4_0
                | TensorType::Q4_1
                | TensorType::Q5_0
                | TensorType::Q5_1
                | TensorType::Q8_0
        );
    let shared = shares_memory(graph, tensor);
    let (key_row, value_row) = match (converted, shared) {
        (false, _) => (keys.nb[1], values.nb[1]),
        (true, false) => (2 * keys.ne[0], 2 * values.ne[0]),
        (true, true) => (2 * keys.ne[0], 2 * keys.ne[0]),
    };
    let mask_cells = mask.map_or(0, |ne| product(&[2, ne[1], ne[2], ne[3]]));
    let last = MATRIX.1.saturating_mul(sum(&[
        product(&[key_row, keys.ne[2], keys.ne[3]]),
        product(&[value_row, values.ne[2], values.ne[3]]),
        mask_cells,
    ]));
    // ggml-metal-ops.cpp:3074, ggml_metal_op_flash_attn_ext_use_vec.
    let vector = queries.ne[1] < 20 && queries.ne[0].is_multiple_of(32);
    let (per_queries, per_cells) = if vector { VECTOR } else { MATRIX };
    let blocks = mask.map_or(0, |ne| {
        let groups = (
            ne[0].div_ceil(per_cells),
            queries.ne[1].div_ceil(per_queries),
        );
        pad(product(&[groups.0, groups.1, ne[2], ne[3]]), 32)
    });
    let partial = product(&[
        4,
        queries.ne[1].min(32),
        queries.ne[2],
        queries.ne[3],
        GROUPS,
        values.ne[0].saturating_add(2),
    ]);
    let half = |source: &Tensor| pad(source.elements().saturating_mul(2), 16);
    let halves = if shared {
        half(keys)
    } else {
        half(keys).saturating_add(half(values))
    };
    sum(&[last, blocks, partial, halves])
}
