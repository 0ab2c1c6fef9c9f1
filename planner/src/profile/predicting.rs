//! Which weights of a block that predicts further tokens llama.cpp loads all the same.

/// Those that the loaders in models/*.cpp ask for as optional and forget to skip (`TENSOR_NOT_REQUIRED` without
/// `TENSOR_SKIP`): the end of a name, without what a tensor's name ends in.
fn not_skipped(architecture: &str) -> &'static [&'static str] {
    match architecture {
        "cohere2moe" => &[
            "nextn.embed_tokens",
            "nextn.shared_head_head",
            "nextn.shared_head_norm",
        ],
        "deepseek32" | "glm-dsa" => &["exp_probs_b"],
        "hy_v3" => &[
            "ffn_gate",
            "ffn_down",
            "ffn_up",
            "ffn_gate_inp",
            "exp_probs_b",
            "ffn_down_exps",
            "ffn_gate_exps",
            "ffn_up_exps",
            "ffn_gate_up_exps",
            "ffn_gate_shexp",
            "ffn_up_shexp",
            "ffn_down_shexp",
            "nextn.embed_tokens",
            "nextn.shared_head_head",
            "nextn.shared_head_norm",
        ],
        "step35" => &[
            "attn_q_norm",
            "attn_k_norm",
            "attn_gate",
            "ffn_gate",
            "ffn_down",
            "ffn_up",
            "ffn_gate_inp",
            "exp_probs_b",
            "ffn_gate_exps",
            "ffn_down_exps",
            "ffn_up_exps",
            "ffn_gate_shexp",
            "ffn_up_shexp",
            "ffn_down_shexp",
            "nextn.embed_tokens",
            "nextn.shared_head_head",
            "nextn.shared_head_norm",
        ],
        _ => &[],
    }
}

/// Whether the tensor of this name, of a block that predicts further tokens, is loaded.
pub(super) fn is_loaded(architecture: &str, name: &str) -> bool {
    let Some((_, own)) = name
        .strip_prefix("blk.")
        .and_then(|rest| rest.split_once('.'))
    else {
        return false;
    };
    not_skipped(architecture).iter().any(|stem| {
        own.strip_prefix(stem)
            .is_some_and(|end| end.is_empty() || end.starts_with('.'))
    })
}

#[cfg(test)]
mod tests {
    use super::is_loaded;

    #[test]
    fn some_loaders_forget_to_skip() {
        let name = "blk.61.exp_probs_b.bias";
        assert!(is_loaded("glm-dsa", name));
        assert!(!is_loaded("glm4moe", name));
        assert!(is_loaded("hy_v3", "blk.80.ffn_gate.scale"));
        assert!(!is_loaded("hy_v3", "blk.80.attn_q.weight"));
        assert!(is_loaded("step35", "blk.45.nextn.embed_tokens.weight"));
        assert!(!is_loaded("step35", "blk.45.nextn.enorm.weight"));
    }
}
