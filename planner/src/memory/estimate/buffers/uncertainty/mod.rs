//! The uncertainty of the estimate: bytes by which a compute buffer may exceed its formula.
//!
//! Each term has one cause in llama.cpp. The sum of the terms is a coarse bound. If a probe answers for a placement,
//! the terms are not used, because the probe asks llama.cpp itself.

use super::{Buffers, PlacementView, VULKAN_CHUNK, u128_of};
use crate::memory::backend::Family;

const MIB: u128 = 1 << 20;

/// The terms for one device, in bytes. A term is 0 if its cause is absent.
pub(super) struct Uncertainty<'a> {
    buffers: &'a Buffers,
    view: &'a PlacementView<'a>,
    family: Family,
    /// The bytes of the device's buffer, by the formula.
    bytes: u128,
    /// The bytes of the scores over the longest cache.
    scores: u128,
    mask: u128,
    /// The number of elements in the largest keys and values of a block.
    cache: u128,
}

/// The bytes of a term if its cause is present.
const fn when(present: bool, bytes: u128) -> u128 {
    if present { bytes } else { 0 }
}

impl<'a> Uncertainty<'a> {
    /// `bytes` are the bytes of the buffer, by the formula, on a device of this family.
    pub(super) fn new(buffers: &'a Buffers, view: &'a PlacementView<'a>, family: Family, bytes: u128) -> Self {
        let all = buffers.all_caches();
        let (keys, values) = view.cost.largest_elements;
        let (scores, _) = buffers.scores(all);
        let cache = u128_of(keys) + u128_of(values);
        Self { buffers, view, family, bytes, scores, mask: buffers.mask(all), cache }
    }

    /// The sum of all terms.
    pub(super) fn total(&self) -> u128 {
        self.formula()
            + self.chunks()
            + self.copied_inputs()
            + self.copied_index()
            + self.masks_without_cache()
            + self.reused_caches()
            + self.per_layer_inputs()
            + self.divided_attention()
            + self.backend_without_fusion()
            + self.fusion_given_up()
            + self.adapters()
            + self.copied_adapters()
            + self.added_inputs()
            + self.moved_weights()
            + self.unfitted_blocks()
            + self.metal_without_fusion()
            + self.relative_bias()
            + self.unfitted_scores()
    }

    /// The formula's own error: an eighth of the buffer and of the logits, or 8 MiB, and two streams. The gaps that
    /// ggml's allocator leaves between tensors depend on the order of the graph (`ggml_dyn_tallocr_alloc`,
    /// ggml-alloc.c).
    fn formula(&self) -> u128 {
        let of = self.buffers;
        let share = ((self.bytes + of.logits) / 8).max(8 * MIB);
        share + 2 * of.stream + of.inputs + of.adapter_products + MIB
    }

    /// Vulkan's chunks: a tensor that does not fit in the rest of a chunk begins another chunk
    /// (`ggml_dyn_tallocr_new_chunk`, ggml-alloc.c).
    fn chunks(&self) -> u128 {
        when(self.family == Family::Vulkan && self.bytes > VULKAN_CHUNK * 3 / 4, self.bytes * 5 / 8)
    }

    /// Copies of the inputs for several GPUs that work at once (`ggml_backend_sched_split_graph`, ggml-backend.cpp).
    /// The allocator decides where the copies lie.
    fn copied_inputs(&self) -> u128 {
        when(self.view.copies, 5 * self.buffers.stream + self.buffers.inputs)
    }

    /// llama.cpp copies an index over the keys in the same way as the inputs.
    fn copied_index(&self) -> u128 {
        when(self.view.copies && self.buffers.indexed, 3 * self.bytes)
    }

    /// A model without a cache has one mask over all of its tokens (`build_attn_inp_no_cache`, llama-graph.cpp).
    fn masks_without_cache(&self) -> u128 {
        when(self.buffers.cacheless, self.view.in_flight() * self.mask)
    }

    /// A block that uses another block's cache may be on another device. That device gets a copy of the cache
    /// (`layer_reuse_cb`, llama-model.cpp).
    fn reused_caches(&self) -> u128 {
        when(self.buffers.reuses_caches, self.view.in_flight() * 4 * self.cache)
    }

    /// Some models have a separate input for each block, and compute all of them before the first block
    /// (`project_per_layer_inputs`, models/gemma3n.cpp).
    fn per_layer_inputs(&self) -> u128 {
        2 * self.view.in_flight() * self.buffers.per_layer
    }

    /// Attention that is not fused may be divided between a GPU and the host in three cases: a GPU borrows the weights
    /// of blocks that the host computes, the cache is on the host, or attention has weights of its own (`build_attn`,
    /// llama-graph.cpp).
    fn divided_attention(&self) -> u128 {
        let of = self.buffers;
        let borrows = of.offloads_blocks && self.view.cost.host.largest.largest_of_blocks() > 0;
        let torn = !of.offload_kqv || (of.shares_input && of.overridden);
        let divided = of.unfused && !of.gpus.is_empty() && (borrows || torn || of.has_attention_weights);
        when(divided, self.scores + self.mask + u128_of(self.view.cost.largest_on_host))
    }

    /// A backend may be unable to fuse this attention although fusion is requested (`supports_op` of
    /// `GGML_OP_FLASH_ATTN_EXT`).
    fn backend_without_fusion(&self) -> u128 {
        let attention = self.buffers.attention(self.buffers.all_caches(), 2, self.cache);
        when(self.buffers.may_be_unfused, 2 * self.scores + 4 * attention)
    }

    /// AUTO gives up fused attention if it would run on a device other than the layer's device (`resolve_fused_ops`,
    /// llama-context.cpp).
    fn fusion_given_up(&self) -> u128 {
        let of = self.buffers;
        let may_move = (of.shares_input || of.has_experts) && of.overridden && !of.offload_kqv;
        when(!of.unfused && may_move, 2 * self.scores)
    }

    /// The products with an adapter's factors, and copies of the factors (`build_lora_mm`, llama-graph.cpp).
    fn adapters(&self) -> u128 {
        let of = self.buffers;
        when(of.adapter_products > 0, self.bytes.max(128 * MIB) + of.adapter_bytes)
    }

    /// A GPU may get copies of the adapter factors that change the embedding: one copy for each batch that is computed
    /// at the same time.
    fn copied_adapters(&self) -> u128 {
        when(self.view.copies, 3 * self.buffers.adapter_embedding_bytes)
    }

    /// Inputs that are added after later blocks (models/qwen3vl.cpp), and logits that do not belong to the output layer
    /// (models/chameleon.cpp, models/bitnet.cpp).
    fn added_inputs(&self) -> u128 {
        2 * self.buffers.deepstack * self.buffers.stream + self.buffers.further_logits
    }

    /// An override may put a weight on a device other than the layer's device. The computation of the weight's block
    /// may then move to that device (`ggml_backend_sched_backend_id_from_cur`, ggml-backend.cpp).
    fn moved_weights(&self) -> u128 {
        let of = self.buffers;
        let block = of.ffn_step + of.logits + of.attention(of.all_caches(), 6, self.cache) + 2 * self.scores;
        when(self.view.cost.weights_moved, block)
    }

    /// The formula was not fitted on blocks of this kind: the buffer may be twice as large.
    fn unfitted_blocks(&self) -> u128 {
        when(!self.buffers.fitted, self.bytes.max(64 * MIB))
    }

    /// Metal does not fuse attention over a cache on the host (`ggml_metal_device_supports_op`, ggml-metal-device.m).
    fn metal_without_fusion(&self) -> u128 {
        let of = self.buffers;
        let cache_on_host = self.view.on_host || !of.offload_kqv;
        when(!of.unfused && of.gpus.contains(&Family::Metal) && cache_on_host, 2 * self.scores)
    }

    /// A block with a relative position bias adds the bias to its scores, and its attention is not fused
    /// (`build_pos_bias`, `build_attn_mha`, llama-graph.cpp).
    fn relative_bias(&self) -> u128 {
        let of = self.buffers;
        let biases = self.view.in_flight() * 4 * of.relative_bias_blocks * of.tokens * of.cells;
        when(of.relative_bias_blocks > 0, 3 * self.scores + biases)
    }

    /// Scores of models that the formula was not fitted on, such as hybrid models: AUTO may give up fusion on any
    /// device, and an index has its own scores (`resolve_fused_ops`, llama-context.cpp).
    fn unfitted_scores(&self) -> u128 {
        let of = self.buffers;
        let given_up = !of.unfused && (of.indexed || !of.gpus.is_empty());
        when(!of.fitted && given_up, 2 * self.scores) + when(!of.fitted && of.unfused && of.indexed, self.scores)
    }
}

#[cfg(test)]
mod tests;
