//! What the headers say: everything that any architecture may ask for, as some value that it accepts.

use super::keys::{Dims, Keys};
use super::lists::{HYBRID_BY_HEADS, LATENT, LISTED_WINDOWS};

/// Its tokens.
pub(super) const WINDOW: &str = "attention.sliding_window";

/// What the header of such a model says: everything that any architecture may ask for, as some value that it accepts.
pub(super) fn keys(arch: &str, dims: Dims, experts: bool) -> Keys {
    keys_without(arch, dims, experts, &[])
}

/// The same without some of it.
#[allow(clippy::too_many_lines, reason = "a list")]
pub(super) fn keys_without(
    arch: &str,
    dims: Dims,
    experts: bool,
    omitted: &'static [&'static str],
) -> Keys {
    let mut keys = Keys::new(arch, omitted);
    let Dims {
        n_layer,
        n_nextn,
        n_embd,
        n_head,
        n_head_kv,
        n_ff,
        n_vocab,
    } = dims;
    let head = n_embd / n_head;
    let each = |of: &dyn Fn(u32) -> u32| (0..n_layer).map(of).collect::<Vec<u32>>();

    keys.u32("vocab_size", n_vocab)
        .u32("context_length", 128)
        .u32("embedding_length", n_embd)
        .u32("features_length", n_embd)
        .u32("block_count", n_layer)
        .u32("leading_dense_block_count", 1)
        .bool("use_parallel_residual", false)
        .f32("logit_scale", 1.0)
        .u32("time_mix_extra_dim", 64)
        .u32("time_decay_extra_dim", 128)
        .u32("full_attention_interval", 2);
    if n_nextn > 0 {
        keys.u32("nextn_predict_layers", n_nextn);
    }
    let attends = |il: u32| il.is_multiple_of(2) || il >= n_layer - n_nextn;
    if matches!(arch, "nemotron_h" | "nemotron_h_moe") {
        // Attention, state space, feed forward: each has a block of its own.
        let forward = |il: u32| il % 3 == 2 && il < n_layer - n_nextn;
        keys.u32s(
            "feed_forward_length",
            &each(&|il| if forward(il) { n_ff } else { 0 }),
        );
    } else {
        keys.u32("feed_forward_length", n_ff);
    }
    if HYBRID_BY_HEADS.contains(&arch) {
        keys.u32s(
            "attention.head_count",
            &each(&|il| if attends(il) { n_head } else { 0 }),
        );
        keys.u32s(
            "attention.head_count_kv",
            &each(&|il| if attends(il) { n_head_kv } else { 0 }),
        );
    } else {
        keys.u32("attention.head_count", n_head);
        keys.u32("attention.head_count_kv", n_head_kv);
    }
    keys.f32("attention.max_alibi_bias", 8.0)
        .f32("attention.clamp_kqv", 1.0)
        .f32("attention.layer_norm_epsilon", 1e-5)
        .f32("attention.layer_norm_rms_epsilon", 1e-5)
        .f32("attention.group_norm_epsilon", 1e-5)
        .u32("attention.group_norm_groups", 8)
        .u32(
            "attention.q_lora_rank",
            if arch == "deepseek4" { 64 } else { 512 },
        )
        .u32("attention.kv_lora_rank", 512)
        .u32("attention.decay_lora_rank", 32)
        .u32("attention.iclr_lora_rank", 32)
        .u32("attention.value_residual_mix_lora_rank", 32)
        .u32("attention.gate_lora_rank", 32)
        .u32("attention.relative_buckets_count", 8)
        .u32(WINDOW, 100);
    attention(&mut keys, arch, dims, head);
    if experts {
        keys.u32("expert_feed_forward_length", n_ff)
            .u32("expert_shared_feed_forward_length", n_ff / 2)
            .u32("expert_chunk_feed_forward_length", n_ff / 2)
            .u32("expert_latent_length", n_ff)
            .u32("interleave_moe_layer_step", 2)
            .u32("moe_every_n_layers", 2)
            .u32("expert_count", 2)
            .u32("expert_used_count", 1)
            .u32("expert_shared_count", 1)
            .u32(
                "expert_gating_func",
                if arch == "deepseek4" { 4 } else { 2 },
            )
            .f32("expert_group_scale", 1.0)
            .u32("experts_per_group", 1)
            .f32("expert_weights_scale", 1.0)
            .bool("expert_weights_norm", true);
    }
    let states = matches!(
        arch,
        "qwen3next" | "qwen35" | "qwen35moe" | "qwen4exp" | "clef"
    );
    keys.u32(
        "ssm.inner_size",
        if states { 128 * n_head } else { 2 * n_embd },
    )
    .u32("ssm.conv_kernel", 4)
    .u32("ssm.state_size", 128)
    .u32("ssm.time_step_rank", n_head)
    .u32("ssm.group_count", if arch == "plamo2" { 0 } else { 2 })
    .u32("kda.head_dim", 128)
    .bool("kda.safe_gate", true)
    .f32("kda.gate_lower_bound", -5.0)
    .u32("wkv.head_size", head)
    .u32("shortconv.l_cache", 3)
    .f32("residual_scale", 3.5)
    .f32("embedding_scale", 12.0)
    .u32("attn_res.block_size", 12)
    .f32("activation.situ_beta", 4.0)
    .f32("activation.situ_linear_beta", 25.0);
    if arch == "bailingmoe3" {
        let clamp = vec![4.0; n_layer as usize];
        keys.f32s("swiglu_clamp_exp", &clamp)
            .f32s("swiglu_clamp_shexp", &clamp);
    }
    if matches!(arch, "deepseek4" | "maple" | "dflash") {
        keys.f32("swiglu_clamp_exp", 10.0);
    }
    for name in ["alpha_n", "alpha_p", "beta", "eps"] {
        keys.plain_f32(&format!("xielu.{name}"), 1.0);
    }
    oddities(&mut keys, arch, dims, head);
    keys
}

/// The shape of attention.
fn attention(keys: &mut Keys, arch: &str, dims: Dims, head: u32) {
    let Dims {
        n_layer, n_nextn, ..
    } = dims;
    let trunk = n_layer - n_nextn;
    let each = |of: &dyn Fn(u32) -> u32| (0..n_layer).map(of).collect::<Vec<u32>>();
    if LATENT.contains(&arch) {
        keys.u32("attention.key_length", 576)
            .u32("attention.value_length", 512)
            .u32("attention.key_length_mla", 192)
            .u32("attention.value_length_mla", 128)
            .u32(
                "rope.dimension_count",
                if arch == "glm5-next" { 0 } else { 64 },
            );
    }
    match arch {
        "glm5-next" => {
            keys.u32("attention.key_length", 512);
        }
        "mimo2" => {
            keys.u32("attention.key_length", 2 * head)
                .u32("attention.value_length", head);
        }
        "deepseek4" => {
            keys.u32("attention.key_length", head)
                .u32("attention.value_length", head)
                .u32("rope.dimension_count", head / 2);
        }
        "dots3note" => {
            keys.u32("attention.kv_lora_rank_swa", 512)
                .u32("attention.key_length_swa", 576)
                .u32("attention.value_length_swa", 512)
                .u32("attention.key_length_mla_swa", 192)
                .u32("attention.value_length_mla_swa", 128)
                .f32("rope.freq_base_swa", 10_000.0);
        }
        "minimax-m3" => {
            keys.u32("rope.dimension_count", 64);
        }
        "gemma4" | "gemma4-assistant" => {
            keys.u32("embedding_length_per_layer_input", dims.n_embd / 2)
                .u32(
                    "attention.shared_kv_layers",
                    if n_layer > 5 { 2 } else { 0 },
                )
                .u32("attention.key_length", 2 * head)
                .u32("attention.value_length", 2 * head)
                .u32("attention.key_length_swa", head)
                .u32("attention.value_length_swa", head);
        }
        _ => {}
    }
    if LISTED_WINDOWS.contains(&arch) {
        // Of five blocks the last is full (gemma4), or of two the first.
        let windowed = |il: u32| match arch {
            _ if il >= trunk => 0,
            "gemma4" | "gemma4-assistant" => u32::from(il % 5 != 4),
            _ => il % 2,
        };
        keys.u32s("attention.sliding_window_pattern", &each(&windowed));
        let full = |il| u32::from(il < trunk && windowed(il) == 0);
        keys.u32s("attention.indexer.types", &each(&full));
    } else {
        keys.u32("attention.sliding_window_pattern", 2);
    }
    let indexers = match arch {
        "minimax-m3" => dims.n_head_kv,
        "deepseek4" => dims.n_head,
        _ => 1,
    };
    keys.u32("attention.indexer.head_count", indexers)
        .u32(
            "attention.indexer.key_length",
            if arch == "qwen4exp" { head } else { 128 },
        )
        .u32("attention.indexer.top_k", 8)
        .u32("attention.indexer.block_size", 4)
        .u32("attention.indexer.local_blocks", 1)
        .u32("attention.indexer.kpool", 4);
    let sections = [head / 4; 4];
    keys.u32s("rope.dimension_sections", &sections);
}

/// What only one architecture or two ask for.
fn oddities(keys: &mut Keys, arch: &str, dims: Dims, head: u32) {
    let Dims {
        n_layer, n_embd, ..
    } = dims;
    match arch {
        "deepseek4" => {
            let ratios: Vec<u32> = (0..n_layer)
                .map(|il| [0, 0, 4, 128][il as usize % 4])
                .collect();
            keys.u32("attention.output_group_count", 8)
                .u32("attention.output_lora_rank", 32)
                .u32s("attention.compress_ratios", &ratios)
                .f32("attention.compress_rope_freq_base", 160_000.0)
                .u32("hyper_connection.count", 4)
                .u32("hyper_connection.sinkhorn_iterations", 2)
                .f32("hyper_connection.epsilon", 1e-6)
                .u32("hash_layer_count", 0);
        }
        "qwen4exp" => {
            keys.u32("hyper_connection.count", 4)
                .u32("hyper_connection.low_rank", 8)
                .u32s("attention.compress_ratios", &vec![4; n_layer as usize]);
        }
        "hy_v4" | "glm5-next" => {
            keys.u32("hyper_connection.count", 4)
                .f32("hyper_connection.magnitude", 1.0)
                .u32("hyper_connection.sinkhorn_iterations", 2)
                .f32("hyper_connection.epsilon", 1e-6);
            if arch == "hy_v4" {
                let full: Vec<u32> = (0..n_layer)
                    .map(|il| u32::from(il.is_multiple_of(2)))
                    .collect();
                keys.u32s("attention.indexer.types", &full);
            }
        }
        "hrm_text" => {
            // low and high stack, each of so many blocks
            let per_stack = n_layer / 2;
            keys.u32(
                "hrm.layers_per_stack",
                if n_layer > 2 { n_layer / 6 } else { per_stack },
            )
            .u32("hrm.h_cycles", if n_layer > 2 { 2 } else { 1 })
            .u32("hrm.l_cycles", if n_layer > 2 { 2 } else { 1 });
        }
        "wavtokenizer-dec" => {
            keys.u32("posnet.embedding_length", n_embd)
                .u32("posnet.block_count", n_layer)
                .u32("convnext.embedding_length", n_embd)
                .u32("convnext.block_count", n_layer);
        }
        "eagle3" => {
            keys.i32s("target_layers", &[0, 1, 2])
                .u32("target_hidden_size", n_embd);
        }
        "dflash" => {
            keys.i32s("target_layers", &[0, 1, 2])
                .u32(WINDOW, 0)
                .f32("hyper_connection.epsilon", 1e-6)
                .f32("expert_weights_scale", 1.0)
                .bool("expert_weights_norm", true);
        }
        "gemma4-assistant" => {
            keys.u32("embedding_length_out", 2 * n_embd)
                .u32("nextn_predict_layers", n_layer);
        }
        "rwkv6qwen2" | "arwkv7" => {
            keys.u32("token_shift_count", 1);
        }
        "graniteswitch" => {
            keys.u32("adapters.count", 2)
                .u32("adapters.lora_rank", 8)
                .i32s("adapters.token_ids_activate", &[1, 2])
                .i32s("adapters.token_ids_substitute", &[3, 4]);
        }
        "bert" | "nomic-bert" | "nomic-bert-moe" | "jina-bert-v2" | "jina-bert-v3" => {
            keys.token_types(2);
        }
        "clef" => {
            keys.u32("decision.block_count", 1)
                .u32("decision.routing_block_count", 1)
                .u32("decision.head_count", 2);
        }
        "plm" => {
            keys.u32("rope.dimension_count", head / 2);
        }
        "t5" => {
            keys.u32("decoder_block_count", n_layer);
        }
        "llama-embed" => {
            keys.bool("attention.causal", false);
        }
        _ => {}
    }
}
