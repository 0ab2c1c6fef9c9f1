//! Which layer a tensor belongs to, by its name: llama.cpp's `LLM_TENSOR_INFOS` (llama-arch.cpp) read through
//! `LLM_TENSOR_NAMES`, and for repeating tensors without a number of their own the block that the loaders in
//! models/*.cpp name.

/// The layer that decides where llama.cpp puts a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Slot {
    /// `LLM_TENSOR_LAYER_INPUT`: always on the CPU (llama-model.cpp, `load_tensors`).
    Input,
    /// `LLM_TENSOR_LAYER_REPEATING`: on the device of block `0`, `1`, ...
    Block(u32),
    /// `LLM_TENSOR_LAYER_OUTPUT`: on the device of the output layer.
    Output,
    /// `rope_freqs` and its kin: one copy on every device that holds a block which uses it (created once per block with
    /// `TENSOR_DUPLICATED`: models/llama.cpp, `load_arch_tensors`; llama-model-loader.cpp, `create_tensor`).
    Rope,
    /// No operation of llama.cpp uses it (`GGML_OP_NONE`): it is not loaded (llama-model-loader.cpp, `create_tensor`).
    Unused,
    /// No table of llama.cpp holds this name. llama.cpp refuses a file with a tensor it does not use
    /// (`wrong number of tensors`, llama-model-loader.cpp, `done_getting_tensors`).
    Unplaced,
}

/// What names of tensors end in.
const SUFFIXES: [&str; 6] = [
    ".weight",
    ".bias",
    ".input_scale",
    ".scale",
    ".lora_a",
    ".lora_b",
];

/// What names of a block's tensors begin with.
const NUMBERED: [&str; 5] = ["blk.", "enc.blk.", "dec.blk.", "posnet.", "convnext."];

impl Slot {
    /// The layer of the tensor with this name in a model of this architecture.
    #[must_use]
    pub fn of(architecture: &str, name: &str) -> Self {
        let stem = SUFFIXES
            .iter()
            .find_map(|suffix| name.strip_suffix(suffix))
            .unwrap_or(name);
        if let Some(rest) = NUMBERED.iter().find_map(|prefix| name.strip_prefix(prefix)) {
            if stem.ends_with(".cross_attn_rel_b") {
                return Self::Unused;
            }
            let index = rest.split('.').next().and_then(|n| n.parse().ok());
            return index.map_or(Self::Unplaced, Self::Block);
        }
        match stem {
            "token_embd" | "position_embd" | "token_types" | "per_layer_token_embd" => Self::Input,
            // A wrong name for the norm of the output (`LLM_TENSOR_OUTPUT_NORM_LFM2`).
            "token_embd_norm" if matches!(architecture, "lfm2" | "lfm2moe") => Self::Output,
            // The norms of the embeddings are done on the first layer, not on the input layer (llama-arch.cpp,
            // `LLM_TENSOR_INFOS`).
            "token_embd_norm"
            | "per_layer_model_proj"
            | "per_layer_proj_norm"
            | "hrm.z_l_init"
            | "conv1d"
            | "nextn.pre_projection" => Self::Block(0),
            "output"
            | "output_norm"
            | "enc.output_norm"
            | "dec.output_norm"
            | "cls"
            | "cls.output"
            | "cls.norm"
            | "dense_2"
            | "dense_3"
            | "altup_proj"
            | "altup_unembd_proj"
            | "output_hc_fn"
            | "output_hc_base"
            | "output_hc_scale"
            | "output_hc_norm"
            | "output_hc_down"
            | "output_hc_up"
            | "output_res_score"
            | "nextn.post_projection"
            | "fc"
            | "d2t"
            | "markov_w1"
            | "markov_w2"
            | "conf_proj"
            | "selector_predecessor"
            | "selector_successor"
            | "selector_hidden" => Self::Output,
            "rope_freqs" | "rope_factors_long" | "rope_factors_short" => Self::Rope,
            "masked_embd_centroids" | "masked_embd_ordering" => Self::Unused,
            _ if stem.starts_with("decision.") => Self::Output,
            _ => Self::Unplaced,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Slot;

    #[test]
    fn names_fall_into_the_layers_of_llama_cpp() {
        for (name, slot) in [
            ("token_embd.weight", Slot::Input),
            ("position_embd.weight", Slot::Input),
            ("per_layer_token_embd.weight", Slot::Input),
            ("token_embd_norm.weight", Slot::Block(0)),
            ("per_layer_model_proj.weight", Slot::Block(0)),
            ("blk.0.attn_q.weight", Slot::Block(0)),
            ("blk.79.ffn_down_exps.weight", Slot::Block(79)),
            ("blk.3.ssm_a", Slot::Block(3)),
            ("enc.blk.2.attn_q.weight", Slot::Block(2)),
            ("dec.blk.2.cross_attn_q.weight", Slot::Block(2)),
            ("posnet.5.attn_norm.weight", Slot::Block(5)),
            ("output.weight", Slot::Output),
            ("output.scale", Slot::Output),
            ("output_norm.weight", Slot::Output),
            ("enc.output_norm.weight", Slot::Output),
            ("cls.output.bias", Slot::Output),
            ("decision.scales", Slot::Output),
            ("rope_freqs.weight", Slot::Rope),
            ("rope_factors_short.weight", Slot::Rope),
        ] {
            assert_eq!(Slot::of("llama", name), slot, "{name}");
        }
    }

    #[test]
    fn the_norm_of_the_embedding_is_that_of_the_output_where_llama_cpp_misnames_it() {
        assert_eq!(Slot::of("lfm2", "token_embd_norm.weight"), Slot::Output);
        assert_eq!(Slot::of("lfm2moe", "token_embd_norm.weight"), Slot::Output);
    }

    #[test]
    fn what_no_operation_uses_is_not_loaded() {
        for name in ["dec.blk.0.cross_attn_rel_b.weight", "masked_embd_ordering"] {
            assert_eq!(Slot::of("t5", name), Slot::Unused, "{name}");
        }
    }

    #[test]
    fn a_name_that_no_table_holds_is_unplaced() {
        for name in ["v.patch_embd.weight", "blk.x.attn_q.weight", "blk.", ""] {
            assert_eq!(Slot::of("llama", name), Slot::Unplaced, "{name}");
        }
    }
}
