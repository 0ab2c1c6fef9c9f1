//! The headers of the models. They contain every key that an architecture may need, each with a value that is accepted.

use std::fmt::Debug;
use std::str::FromStr;

use autoplace::gguf::Builder;

use super::variants::{Dims, HYBRID_BY_HEADS, LATENT, LISTED_WINDOWS, among};

/// Collects keys of the form `<architecture>.*`.
pub(super) struct Keys<'a> {
    arch: &'a str,
    builder: Builder,
    /// Keys that are left out of every header.
    omitted: Vec<&'a str>,
}

impl Keys<'_> {
    /// Sets keys from a text of the form `key = value; ...`. If a number has a point or an exponent, it is an `f32`.
    /// Any other number is a `u32`. The numbers in a list follow the same rule. But if the list ends with `i`, they are
    /// `i32`s. If a key begins with a slash, it has no prefix with the architecture.
    pub(super) fn say(&mut self, said: &str) -> &mut Self {
        for pair in said.split(';').map(str::trim).filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once(" = ").expect(pair);
            if self.omitted.contains(&name) {
                continue;
            }
            let key = match name.strip_prefix('/') {
                Some(key) => key.to_owned(),
                None => format!("{}.{name}", self.arch),
            };
            let keys = std::mem::replace(&mut self.builder, Builder::empty());
            let is_float = value.contains('.') || value.contains("e-");
            self.builder = match value {
                "true" | "false" => keys.bool(&key, value == "true"),
                list if list.ends_with(']') && is_float => keys.array_f32(&key, &numbers(list)),
                list if list.ends_with(']') => keys.array_u32(&key, &numbers(list)),
                list if list.ends_with("]i") => keys.array_i32(&key, &numbers(list)),
                number if is_float => keys.f32(&key, number.parse().expect(pair)),
                number => keys.u32(&key, number.parse().expect(pair)),
            };
        }
        self
    }

    pub(super) fn build(self) -> Builder {
        self.builder
    }
}

fn numbers<T: FromStr<Err: Debug>>(list: &str) -> Vec<T> {
    list.trim_start_matches('[')
        .trim_end_matches(['i', ']'])
        .split(", ")
        .map(|number| number.parse().unwrap())
        .collect()
}

/// The keys in the header of a model with these sizes. Some are omitted.
pub(super) fn keys<'a>(arch: &'a str, dims: Dims, experts: bool, omitted: &[&'a str]) -> Keys<'a> {
    let mut keys =
        Keys { arch, builder: Builder::new(arch).str("tokenizer.ggml.model", "no_vocab"), omitted: omitted.to_vec() };
    let Dims { n_layer, n_nextn, n_embd, n_head, n_head_kv, n_ff, n_vocab } = dims;
    let (head, trunk) = (n_embd / n_head, n_layer - n_nextn);
    keys.say(&format!(
        "vocab_size = {n_vocab}; context_length = 128; embedding_length = {n_embd}; features_length = {n_embd};
        block_count = {n_layer}; leading_dense_block_count = 1; use_parallel_residual = false; logit_scale = 1.0;
        time_mix_extra_dim = 64; time_decay_extra_dim = 128; full_attention_interval = 2;
        attention.max_alibi_bias = 8.0; attention.clamp_kqv = 1.0; attention.layer_norm_epsilon = 1e-5;
        attention.layer_norm_rms_epsilon = 1e-5; attention.group_norm_epsilon = 1e-5; attention.group_norm_groups = 8;
        attention.q_lora_rank = 512; attention.decay_lora_rank = 32;
        attention.iclr_lora_rank = 32; attention.value_residual_mix_lora_rank = 32; attention.gate_lora_rank = 32;
        attention.relative_buckets_count = 8; attention.sliding_window = 100;
        attention.indexer.head_count = 1; attention.indexer.key_length = 128; attention.indexer.top_k = 8;
        attention.indexer.block_size = 4; attention.indexer.local_blocks = 1; attention.indexer.kpool = 4;
        rope.dimension_sections = {sections:?};
        ssm.conv_kernel = 4; ssm.inner_size = {inner}; ssm.state_size = 128; ssm.time_step_rank = {n_head};
        ssm.group_count = 2; kda.head_dim = 128; kda.safe_gate = true; kda.gate_lower_bound = -5.0;
        wkv.head_size = {head}; shortconv.l_cache = 3; residual_scale = 3.5; embedding_scale = 12.0;
        attn_res.block_size = 12; activation.situ_beta = 4.0; activation.situ_linear_beta = 25.0;
        /xielu.alpha_n = 1.0; /xielu.alpha_p = 1.0; /xielu.beta = 1.0; /xielu.eps = 1.0",
        sections = [head / 4; 4],
        inner = 2 * n_embd,
    ));
    if arch != "dflash" {
        // If a draft states this, its keys are compressed.
        keys.say("attention.kv_lora_rank = 512");
    }
    if n_nextn > 0 {
        keys.say(&format!("nextn_predict_layers = {n_nextn}"));
    }
    let each = |of: &dyn Fn(u32) -> u32| (0..n_layer).map(of).collect::<Vec<u32>>();
    // In a hybrid, each of attention, state space and feed-forward step may be a block of its own.
    let feeds = |il: u32| il % 3 == 2 && il < trunk;
    let attends = |il: u32| il.is_multiple_of(2) || il >= trunk;
    if arch.starts_with("nemotron_h") {
        let widths = each(&|il| if feeds(il) { n_ff } else { 0 });
        keys.say(&format!("feed_forward_length = {widths:?}"));
    } else {
        keys.say(&format!("feed_forward_length = {n_ff}"));
    }
    if among(HYBRID_BY_HEADS, arch) {
        for (key, n) in [("head_count", n_head), ("head_count_kv", n_head_kv)] {
            let heads = each(&|il| if attends(il) { n } else { 0 });
            keys.say(&format!("attention.{key} = {heads:?}"));
        }
    } else {
        keys.say(&format!("attention.head_count = {n_head}; attention.head_count_kv = {n_head_kv}"));
    }
    if among(LISTED_WINDOWS, arch) {
        // Which blocks have full attention: if there are five blocks, the last one (gemma4); if there are two, the
        // first one.
        let windowed = |il: u32| match arch {
            _ if il >= trunk => 0,
            "gemma4" | "gemma4-assistant" => u32::from(il % 5 != 4),
            // The blocks between these have no attention.
            "lfm3" => u32::from(il.is_multiple_of(4)),
            _ => il % 2,
        };
        keys.say(&format!(
            "attention.sliding_window_pattern = {:?}; attention.indexer.types = {:?}",
            each(&windowed),
            each(&|il| u32::from(il < trunk && windowed(il) == 0)),
        ));
    } else {
        keys.say("attention.sliding_window_pattern = 2");
    }
    if among(LATENT, arch) {
        keys.say(
            "attention.key_length = 576; attention.value_length = 512; attention.key_length_mla = 192;
            attention.value_length_mla = 128; rope.dimension_count = 64",
        );
    }
    if experts {
        let half = n_ff / 2;
        keys.say(&format!(
            "expert_feed_forward_length = {n_ff}; expert_shared_feed_forward_length = {half};
            expert_chunk_feed_forward_length = {half}; expert_latent_length = {n_ff}; interleave_moe_layer_step = 2;
            moe_every_n_layers = 2; expert_count = 2; expert_used_count = 1; expert_shared_count = 1;
            expert_gating_func = {gating}; expert_group_scale = 1.0; experts_per_group = 1;
            expert_weights_scale = 1.0; expert_weights_norm = true",
            gating = if matches!(arch, "deepseek4" | "deepseek41") { 4 } else { 2 },
        ));
    }
    keys.say(&of_its_own(arch, dims));
    keys
}

/// Keys that only one or two architectures need, and keys for which these architectures need other values.
fn of_its_own(arch: &str, dims: Dims) -> String {
    let lines = include_str!("architectures.txt").lines().filter(|line| !line.starts_with('#'));
    let lines = lines.map(|line| line.split_once(": ").expect(line));
    let said: Vec<&str> = lines.filter(|(of, _)| among(of, arch)).map(|(_, said)| said).collect();
    let Dims { n_layer, n_nextn, n_embd, n_head, n_head_kv, .. } = dims;
    let (head, trunk) = (n_embd / n_head, n_layer - n_nextn);
    let odd: Vec<u32> = (1..trunk).step_by(2).collect();
    let each = |of: &dyn Fn(u32) -> u32| format!("{:?}", (0..n_layer).map(of).collect::<Vec<u32>>());
    // There is a low stack and a high stack. Both have the same number of blocks.
    let (stack, cycles) = if n_layer > 2 { (n_layer / 6, 2) } else { (n_layer / 2, 1) };
    [
        ("{blocks}", n_layer.to_string()),
        ("{embd}", n_embd.to_string()),
        ("{half_embd}", (n_embd / 2).to_string()),
        ("{two_embd}", (2 * n_embd).to_string()),
        ("{heads}", n_head.to_string()),
        ("{kv_heads}", n_head_kv.to_string()),
        ("{head}", head.to_string()),
        ("{half_head}", (head / 2).to_string()),
        ("{two_heads}", (2 * head).to_string()),
        ("{inner}", (128 * n_head).to_string()),
        ("{shared}", if n_layer > 5 { 2 } else { 0 }.to_string()),
        ("{stack}", stack.to_string()),
        ("{cycles}", cycles.to_string()),
        ("{ratios}", each(&|il| if il < trunk { [0, 0, 4, 128][il as usize % 4] } else { 0 })),
        // The first block compresses nothing. Each block with an odd number keeps keys for itself and for the next
        // block.
        ("{halves}", each(&|il| if il == 0 { 0 } else { 2 - (il - 1) / 2 % 2 })),
        ("{odd}", format!("{odd:?}")),
        ("{fours}", each(&|_| 4)),
        ("{evens}", each(&|il| u32::from(il.is_multiple_of(2)))),
        ("{clamps}", format!("{:?}", vec![4.0; n_layer as usize])),
    ]
    .iter()
    .fold(said.join("; "), |said, (name, value)| said.replace(name, value))
}
