//! The meaning of a tensor's name: its role, and the layer that decides its place in llama.cpp.
//!
//! The layers follow llama.cpp's `LLM_TENSOR_INFOS` (llama-arch.cpp), read through `LLM_TENSOR_NAMES`. If a tensor that
//! repeats in each block has no number, it belongs to the block for which the loaders in models/*.cpp request it.

/// The role of a weight in its block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WeightRole {
    /// Queries, keys, values, the output projection, index keys, and their norms.
    Attention,
    /// A feed-forward step for every token: dense matrices and their norms.
    FeedForward,
    /// Experts, of which each token uses only some: the weights that `--cpu-moe` keeps on the host (common/common.h,
    /// `LLM_FFN_EXPS_REGEX`).
    Experts,
    /// An expert that every token uses.
    SharedExperts,
    /// Any other weight: recurrent mixers, routers, prediction heads.
    Other,
}

impl WeightRole {
    /// The role of a tensor, from its name: `blk.3.ffn_down_exps.weight`. `Other` for a tensor outside a block.
    pub fn from_name(name: &str) -> Self {
        let stacks = ["enc.", "dec."].iter();
        let own = stacks.filter_map(|stack| name.strip_prefix(stack)).next();
        let Some(stem) = in_block(own.unwrap_or(name)) else {
            return Self::Other;
        };
        let (first, rest) = stem.split_once('.').unwrap_or((stem, ""));
        // Old files store each expert separately: `ffn_up.17.weight`.
        let single = rest.starts_with(|c: char| c.is_ascii_digit());
        let step = first.strip_prefix("ffn_").unwrap_or_default();
        let step = ["_chexps", "_exps"].iter().find_map(|end| step.strip_suffix(end)).or(single.then_some(step));
        if matches!(step, Some("up" | "down" | "gate" | "gate_up")) {
            return Self::Experts;
        }
        if first.ends_with("_shexp") {
            return Self::SharedExperts;
        }
        let begins = |with: &str| with.split(' ').any(|prefix| first.starts_with(prefix));
        if begins("ffn_gate_inp ffn_gate_tid2eid") {
            Self::Other
        } else if begins("attn_ cross_attn vis_attn indexer post_attention") {
            Self::Attention
        } else if begins("ffn post_ffw pre_ffw channel_mix vis_") {
            Self::FeedForward
        } else {
            Self::Other
        }
    }
}

/// The layer that decides where llama.cpp puts a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Slot {
    /// `LLM_TENSOR_LAYER_INPUT`: always on the CPU (llama-model.cpp, `load_tensors`).
    Input,
    /// `LLM_TENSOR_LAYER_REPEATING`: on the device of this block.
    Block(u32),
    /// `LLM_TENSOR_LAYER_OUTPUT`: on the device of the output layer.
    Output,
    /// `rope_freqs` and similar: one copy on every device with a block that uses it (created once per block with
    /// `TENSOR_DUPLICATED`: models/llama.cpp, `load_arch_tensors`; llama-model-loader.cpp, `create_tensor`).
    Rope,
    /// Unused by llama.cpp (`GGML_OP_NONE`) and not loaded (llama-model-loader.cpp, `create_tensor`).
    Unused,
    /// Unknown to llama.cpp's tables. llama.cpp rejects a file with an unused tensor (`wrong number of tensors`,
    /// llama-model-loader.cpp, `done_getting_tensors`).
    Unplaced,
}

/// Suffixes of tensor names.
const SUFFIXES: &str = ".weight .bias .input_scale .scale .lora_a .lora_b";

/// Prefixes of the names of a block's tensors.
const NUMBERED: &str = "blk. enc.blk. dec.blk. posnet. convnext. lilicorr.layers.";

/// Tensors of the output layer.
const OUTPUT: &str = "output output_norm enc.output_norm dec.output_norm cls cls.output cls.norm dense_2 dense_3 \
    altup_proj altup_unembd_proj output_hc_fn output_hc_base output_hc_scale output_hc_norm \
    output_hc_down output_hc_up output_res_score nextn.post_projection fc d2t markov_w1 markov_w2 \
    conf_proj joint_proj selector_predecessor selector_successor selector_hidden";

impl Slot {
    /// The layer of the tensor with this name in a model of this architecture.
    pub(super) fn from_name(architecture: &str, name: &str) -> Self {
        let mut suffixes = SUFFIXES.split(' ');
        let stem = suffixes.find_map(|suffix| name.strip_suffix(suffix)).unwrap_or(name);
        let mut prefixes = NUMBERED.split(' ');
        if let Some(rest) = prefixes.find_map(|prefix| name.strip_prefix(prefix)) {
            if stem.ends_with(".cross_attn_rel_b") {
                return Self::Unused;
            }
            let index = rest.split('.').next().and_then(|n| n.parse().ok());
            return index.map_or(Self::Unplaced, Self::Block);
        }
        match stem {
            "token_embd" | "position_embd" | "token_types" | "per_layer_token_embd" | "value_embd" | "mask_embd" => {
                Self::Input
            }
            // This is the norm of the output, under a wrong name (`LLM_TENSOR_OUTPUT_NORM_LFM2`).
            "token_embd_norm" if matches!(architecture, "lfm2" | "lfm2moe") => Self::Output,
            // The norms of the embeddings belong to the first layer, not to the input layer (llama-arch.cpp,
            // `LLM_TENSOR_INFOS`).
            "token_embd_norm"
            | "per_layer_model_proj"
            | "per_layer_proj_norm"
            | "hrm.z_l_init"
            | "conv1d"
            | "nextn.pre_projection" => Self::Block(0),
            "rope_freqs" | "rope_factors_long" | "rope_factors_short" => Self::Rope,
            "masked_embd_centroids" | "masked_embd_ordering" => Self::Unused,
            _ if stem.starts_with("decision.") || stem.starts_with("lilicorr.") => Self::Output,
            _ if OUTPUT.split_whitespace().any(|name| name == stem) => Self::Output,
            _ => Self::Unplaced,
        }
    }
}

/// Whether llama.cpp loads this tensor of a prediction block although the block is unused: the loaders in models/*.cpp
/// request some tensors as optional without skipping them (`TENSOR_NOT_REQUIRED` without `TENSOR_SKIP`).
pub(super) fn is_loaded(architecture: &str, name: &str) -> bool {
    let not_skipped = match architecture {
        "cohere2moe" => "nextn.embed_tokens nextn.shared_head_head nextn.shared_head_norm",
        "deepseek32" | "glm-dsa" => "exp_probs_b",
        "hy_v3" => {
            "ffn_gate ffn_down ffn_up ffn_gate_inp exp_probs_b ffn_down_exps ffn_gate_exps ffn_up_exps \
            ffn_gate_up_exps ffn_gate_shexp ffn_up_shexp ffn_down_shexp nextn.embed_tokens \
            nextn.shared_head_head nextn.shared_head_norm"
        }
        "step35" => {
            "attn_q_norm attn_k_norm attn_gate ffn_gate ffn_down ffn_up ffn_gate_inp exp_probs_b \
            ffn_gate_exps ffn_down_exps ffn_up_exps ffn_gate_shexp ffn_up_shexp ffn_down_shexp \
            nextn.embed_tokens nextn.shared_head_head nextn.shared_head_norm"
        }
        _ => return false,
    };
    let own = in_block(name).unwrap_or_default();
    let is = |stem| own.strip_prefix(stem).is_some_and(|end| end.is_empty() || end.starts_with('.'));
    not_skipped.split_whitespace().any(is)
}

/// The part of a name after `blk.` and the block's number.
fn in_block(name: &str) -> Option<&str> {
    Some(name.strip_prefix("blk.")?.split_once('.')?.1)
}

#[cfg(test)]
mod tests {
    use super::WeightRole;

    #[test]
    fn names_show_what_a_weight_does() {
        use WeightRole::{Attention, Experts, FeedForward, Other, SharedExperts};
        for (role, names) in [
            (Attention, "blk.0.attn_q.weight blk.0.attn_norm.weight blk.0.indexer.attn_k.weight"),
            (Attention, "blk.11.post_attention_norm.weight dec.blk.1.cross_attn_k.weight"),
            (FeedForward, "blk.0.ffn_up.weight blk.0.ffn_norm.weight blk.0.ffn_norm_exps.weight"),
            (FeedForward, "enc.blk.0.ffn_up.weight blk.0.channel_mix_key.weight"),
            (Experts, "blk.0.ffn_up_exps.weight blk.0.ffn_gate_up_exps.weight"),
            (Experts, "blk.0.ffn_down_chexps.weight blk.0.ffn_down_exps.bias blk.0.ffn_up.17.weight"),
            (SharedExperts, "blk.0.ffn_up_shexp.weight blk.0.ffn_gate_inp_shexp.weight"),
            (Other, "blk.0.ffn_gate_inp.weight blk.0.exp_probs_b.bias blk.0.ssm_in.weight"),
            (Other, "blk.0.nextn.eh_proj.weight output.weight"),
        ] {
            for name in names.split(' ') {
                assert_eq!(WeightRole::from_name(name), role, "{name}");
            }
        }
    }
}
