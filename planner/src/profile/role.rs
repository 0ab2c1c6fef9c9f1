//! What a weight of a block does, by its name.

/// What a weight of a block does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Role {
    /// Queries, keys, values, their way back, indexers, and the norms of these.
    Attention,
    /// A step that every token takes: dense matrices and their norms.
    FeedForward,
    /// Experts, of which each token takes some: what `--cpu-moe` keeps on the host (common/common.h,
    /// `LLM_FFN_EXPS_REGEX`).
    Experts,
    /// An expert that every token takes.
    SharedExperts,
    /// Anything else: recurrent mixers, routers, prediction heads.
    Other,
}

impl Role {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Attention,
        Self::FeedForward,
        Self::Experts,
        Self::SharedExperts,
        Self::Other,
    ];

    /// What the tensor of this name does: `blk.3.ffn_down_exps.weight`. `Other` for what is no block's.
    #[must_use]
    pub fn of(name: &str) -> Self {
        let own = ["enc.", "dec."]
            .iter()
            .find_map(|stack| name.strip_prefix(stack))
            .unwrap_or(name);
        let Some((_, stem)) = own
            .strip_prefix("blk.")
            .and_then(|rest| rest.split_once('.'))
        else {
            return Self::Other;
        };
        let (first, rest) = stem.split_once('.').unwrap_or((stem, ""));
        // `ffn_up.17.weight`: one expert of old files.
        let single = rest.starts_with(|c: char| c.is_ascii_digit());
        let step = first.strip_prefix("ffn_").unwrap_or_default();
        let step = ["_chexps", "_exps"]
            .iter()
            .find_map(|end| step.strip_suffix(end))
            .or(single.then_some(step));
        if matches!(step, Some("up" | "down" | "gate" | "gate_up")) {
            return Self::Experts;
        }
        if first.ends_with("_shexp") {
            return Self::SharedExperts;
        }
        let begins = |prefixes: &[&str]| prefixes.iter().any(|prefix| first.starts_with(prefix));
        if begins(&["ffn_gate_inp", "ffn_gate_tid2eid"]) {
            return Self::Other;
        }
        if begins(&[
            "attn_",
            "cross_attn",
            "vis_attn",
            "indexer",
            "post_attention",
        ]) {
            Self::Attention
        } else if begins(&["ffn", "post_ffw", "pre_ffw", "channel_mix", "vis_"]) {
            Self::FeedForward
        } else {
            Self::Other
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Role;

    #[test]
    fn names_tell_what_a_weight_does() {
        for (name, role) in [
            ("blk.0.attn_q.weight", Role::Attention),
            ("blk.0.attn_norm.weight", Role::Attention),
            ("blk.0.indexer.attn_k.weight", Role::Attention),
            ("blk.11.post_attention_norm.weight", Role::Attention),
            ("dec.blk.1.cross_attn_k.weight", Role::Attention),
            ("blk.0.ffn_up.weight", Role::FeedForward),
            ("blk.0.ffn_norm.weight", Role::FeedForward),
            ("blk.0.ffn_norm_exps.weight", Role::FeedForward),
            ("enc.blk.0.ffn_up.weight", Role::FeedForward),
            ("blk.0.channel_mix_key.weight", Role::FeedForward),
            ("blk.0.ffn_up_exps.weight", Role::Experts),
            ("blk.0.ffn_gate_up_exps.weight", Role::Experts),
            ("blk.0.ffn_down_chexps.weight", Role::Experts),
            ("blk.0.ffn_down_exps.bias", Role::Experts),
            ("blk.0.ffn_up.17.weight", Role::Experts),
            ("blk.0.ffn_up_shexp.weight", Role::SharedExperts),
            ("blk.0.ffn_gate_inp_shexp.weight", Role::SharedExperts),
            ("blk.0.ffn_gate_inp.weight", Role::Other),
            ("blk.0.exp_probs_b.bias", Role::Other),
            ("blk.0.ssm_in.weight", Role::Other),
            ("blk.0.nextn.eh_proj.weight", Role::Other),
            ("output.weight", Role::Other),
        ] {
            assert_eq!(Role::of(name), role, "{name}");
        }
    }
}
