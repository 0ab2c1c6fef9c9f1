//! Which layer a tensor belongs to, by its name: llama.cpp's `LLM_TENSOR_INFOS` (llama-arch.cpp:749-1047) read through
//! `LLM_TENSOR_NAMES` (llama-arch.cpp:444).

/// The layer that decides where llama.cpp puts a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Slot {
    /// `LLM_TENSOR_LAYER_INPUT`: always on the CPU (llama-model.cpp:1607).
    Input,
    /// `LLM_TENSOR_LAYER_REPEATING`: on the device of block `0`, `1`, ...
    Block(u32),
    /// `LLM_TENSOR_LAYER_OUTPUT`: on the device of the output layer.
    Output,
    /// `rope_freqs` and its kin: one copy on every device that holds a block
    /// (created once per block with `TENSOR_DUPLICATED`: models/llama.cpp:62-66, llama-model-loader.cpp:1371).
    Rope,
    /// No table of llama.cpp holds this name. llama.cpp refuses a file with a tensor it does not use
    /// (`wrong number of tensors`, llama-model-loader.cpp:1398).
    Unplaced,
}

impl Slot {
    /// The layer of the tensor with this name.
    #[must_use]
    pub fn of(name: &str) -> Self {
        if let Some(rest) = name.strip_prefix("blk.") {
            let index = rest.split('.').next().and_then(|n| n.parse().ok());
            return index.map_or(Self::Unplaced, Self::Block);
        }
        // `output.weight` -> `output`, `cls.output.weight` -> `cls.output`
        let stem = name
            .strip_suffix(".weight")
            .or_else(|| name.strip_suffix(".bias"))
            .or_else(|| name.strip_suffix(".scale"))
            .or_else(|| name.strip_suffix(".input_scale"))
            .unwrap_or(name);
        match stem {
            "token_embd" | "position_embd" | "token_types" | "per_layer_token_embd" => Self::Input,
            // The norms of the embeddings are done on the first layer, not on the input layer (llama-arch.cpp:754).
            "token_embd_norm" => Self::Block(0),
            "output" | "output_norm" | "cls" | "cls.output" | "cls.norm" | "dense_2"
            | "dense_3" => Self::Output,
            "rope_freqs" | "rope_factors_long" | "rope_factors_short" => Self::Rope,
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
            ("blk.0.attn_q.weight", Slot::Block(0)),
            ("blk.79.ffn_down_exps.weight", Slot::Block(79)),
            ("output.weight", Slot::Output),
            ("output.scale", Slot::Output),
            ("output_norm.weight", Slot::Output),
            ("cls.output.bias", Slot::Output),
            ("rope_freqs.weight", Slot::Rope),
            ("rope_factors_short.weight", Slot::Rope),
        ] {
            assert_eq!(Slot::of(name), slot, "{name}");
        }
    }

    #[test]
    fn a_name_that_no_table_holds_is_unplaced() {
        for name in ["v.patch_embd.weight", "blk.x.attn_q.weight", "blk.", ""] {
            assert_eq!(Slot::of(name), Slot::Unplaced, "{name}");
        }
    }
}
