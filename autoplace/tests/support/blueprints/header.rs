//! What the headers say: everything that any architecture may ask for, as some value that it accepts.

use std::fmt::Debug;
use std::str::FromStr;

use autoplace::gguf::Builder;

use super::variants::{Dims, HYBRID_BY_HEADS, LATENT, LISTED_WINDOWS, among};

/// `<architecture>.*` keys, one after the other.
pub(super) struct Keys<'a> {
    arch: &'a str,
    builder: Builder,
    /// Keys that are left out, whoever sets them.
    omitted: Vec<&'a str>,
}

impl Keys<'_> {
    /// Sets keys as `key = value; ...` says. A number with a point or an exponent is an `f32`, any other a `u32`; so
    /// are the numbers of a list, but those of one that ends in `i`, which are `i32`. A key that begins with a slash
    /// has no architecture before it.
    pub(super) fn say(&mut self, said: &str) -> &mut Self {
        for pair in said.split(';').map(str::trim).filter(|it| !it.is_empty()) {
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
    list.trim_start_matches('[').trim_end_matches(['i', ']']).split(", ").map(|it| it.parse().unwrap()).collect()
}

/// What the header of such a model says, without some of it.
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
        attention.q_lora_rank = 512; attention.kv_lora_rank = 512; attention.decay_lora_rank = 32;
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
    if n_nextn > 0 {
        keys.say(&format!("nextn_predict_layers = {n_nextn}"));
    }
    let each = |of: &dyn Fn(u32) -> u32| (0..n_layer).map(of).collect::<Vec<u32>>();
    // In a hybrid, attention, state space and feed-forward steps may each have a block of their own.
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
        // Of five blocks the last is full (gemma4), or of two the first.
        let windowed = |il: u32| match arch {
            _ if il >= trunk => 0,
            "gemma4" | "gemma4-assistant" => u32::from(il % 5 != 4),
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
            gating = if arch == "deepseek4" { 4 } else { 2 },
        ));
    }
    keys.say(&of_its_own(arch, dims));
    keys
}

/// What only one architecture or two ask for, or ask for otherwise than the others.
fn of_its_own(arch: &str, dims: Dims) -> String {
    let Dims { n_layer, n_embd, n_head, n_head_kv, .. } = dims;
    let head = n_embd / n_head;
    let each = |of: &dyn Fn(u32) -> u32| (0..n_layer).map(of).collect::<Vec<u32>>();
    match arch {
        "deepseek4" => format!(
            "attention.key_length = {head}; attention.value_length = {head}; rope.dimension_count = {half};
            attention.q_lora_rank = 64; attention.indexer.head_count = {n_head}; swiglu_clamp_exp = 10.0;
            attention.output_group_count = 8; attention.output_lora_rank = 32; attention.compress_ratios = {ratios:?};
            attention.compress_rope_freq_base = 160000.0; hash_layer_count = 0; hyper_connection.count = 4;
            hyper_connection.sinkhorn_iterations = 2; hyper_connection.epsilon = 1e-6",
            half = head / 2,
            ratios = each(&|il| [0, 0, 4, 128][il as usize % 4]),
        ),
        "qwen4exp" => format!(
            "hyper_connection.count = 4; hyper_connection.low_rank = 8; attention.compress_ratios = {ratios:?};
            attention.indexer.key_length = {head}; ssm.inner_size = {inner}",
            ratios = each(&|_| 4),
            inner = 128 * n_head,
        ),
        "hy_v4" => format!(
            "{HYPER_CONNECTED}; attention.indexer.types = {full:?}",
            full = each(&|il| u32::from(il.is_multiple_of(2))),
        ),
        "glm5-next" => {
            format!("{HYPER_CONNECTED}; attention.key_length = 512; rope.dimension_count = 0")
        }
        "mimo2" => format!("attention.key_length = {}; attention.value_length = {head}", 2 * head),
        "dots3note" => "attention.kv_lora_rank_swa = 512; attention.key_length_swa = 576;
            attention.value_length_swa = 512; attention.key_length_mla_swa = 192;
            attention.value_length_mla_swa = 128; rope.freq_base_swa = 10000.0"
            .to_owned(),
        "minimax-m3" => {
            format!("rope.dimension_count = 64; attention.indexer.head_count = {n_head_kv}")
        }
        "gemma4" | "gemma4-assistant" => {
            let shared = if n_layer > 5 { 2 } else { 0 };
            let (wide, half, out) = (2 * head, n_embd / 2, 2 * n_embd);
            let both = format!(
                "embedding_length_per_layer_input = {half}; attention.shared_kv_layers = {shared};
                attention.key_length = {wide}; attention.value_length = {wide}; attention.key_length_swa = {head};
                attention.value_length_swa = {head}"
            );
            match arch {
                "gemma4" => both,
                _ => format!("{both}; embedding_length_out = {out}; nextn_predict_layers = {n_layer}"),
            }
        }
        "hrm_text" => {
            // A low and a high stack, each of so many blocks.
            let deep = n_layer > 2;
            let (per_stack, cycles) = if deep { (n_layer / 6, 2) } else { (n_layer / 2, 1) };
            format!("hrm.layers_per_stack = {per_stack}; hrm.h_cycles = {cycles}; hrm.l_cycles = {cycles}")
        }
        "wavtokenizer-dec" => format!(
            "posnet.embedding_length = {n_embd}; posnet.block_count = {n_layer};
            convnext.embedding_length = {n_embd}; convnext.block_count = {n_layer}"
        ),
        "bailingmoe3" => {
            let clamp = vec![4.0; n_layer as usize];
            format!("swiglu_clamp_exp = {clamp:?}; swiglu_clamp_shexp = {clamp:?}")
        }
        "maple" => "swiglu_clamp_exp = 10.0".to_owned(),
        "plamo2" => "ssm.group_count = 0".to_owned(),
        "qwen3next" | "qwen35" | "qwen35moe" => format!("ssm.inner_size = {}", 128 * n_head),
        "clef" => format!(
            "ssm.inner_size = {}; decision.block_count = 1; decision.routing_block_count = 1; decision.head_count = 2",
            128 * n_head
        ),
        "eagle3" => format!("target_layers = [0, 1, 2]i; target_hidden_size = {n_embd}"),
        "dflash" => "swiglu_clamp_exp = 10.0; target_layers = [0, 1, 2]i; attention.sliding_window = 0;
            hyper_connection.epsilon = 1e-6; expert_weights_scale = 1.0; expert_weights_norm = true"
            .to_owned(),
        "rwkv6qwen2" | "arwkv7" => "token_shift_count = 1".to_owned(),
        "graniteswitch" => "adapters.count = 2; adapters.lora_rank = 8; adapters.token_ids_activate = [1, 2]i;
            adapters.token_ids_substitute = [3, 4]i"
            .to_owned(),
        "bert" | "nomic-bert" | "nomic-bert-moe" | "jina-bert-v2" | "jina-bert-v3" => {
            "/tokenizer.ggml.token_type_count = 2".to_owned()
        }
        "plm" => format!("rope.dimension_count = {}", head / 2),
        "t5" => format!("decoder_block_count = {n_layer}"),
        "llama-embed" => "attention.causal = false".to_owned(),
        _ => String::new(),
    }
}

const HYPER_CONNECTED: &str = "hyper_connection.count = 4; hyper_connection.magnitude = 1.0;
    hyper_connection.sinkhorn_iterations = 2; hyper_connection.epsilon = 1e-6";
