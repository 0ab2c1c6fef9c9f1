//! What a header means, and what is refused.

use crate::gguf::{Builder, TensorType};

use super::{BlockState, Error, LayerState, ModelProfile, RecurrentState, StateLaw};

/// A model of two blocks, without tensors.
fn model(architecture: &str) -> Builder {
    let key = |suffix: &str| format!("{architecture}.{suffix}");
    Builder::new(architecture)
        .u32(&key("block_count"), 2)
        .u32(&key("context_length"), 1024)
        .u32(&key("embedding_length"), 64)
        .u32(&key("feed_forward_length"), 128)
        .u32(&key("attention.head_count"), 4)
}

fn profile(builder: &Builder) -> ModelProfile {
    ModelProfile::from_header(&builder.header().unwrap()).unwrap()
}

/// The key and value that a header is refused for.
fn refused(builder: &Builder) -> (String, String) {
    match ModelProfile::from_header(&builder.header().unwrap()) {
        Err(Error::Value { key, value, .. }) => (key, value),
        other => panic!("{other:?}"),
    }
}

fn full(kv: u32) -> BlockState {
    BlockState::Full(LayerState { k: kv, v: kv })
}

fn pair(key: &str, value: &str) -> (String, String) {
    (key.to_owned(), value.to_owned())
}

#[test]
fn heads_default_to_an_even_share_of_the_width() {
    let hparams = profile(&model("llama")).hparams;
    assert_eq!(hparams.n_head, [4, 4]);
    assert_eq!(hparams.n_head_kv, [4, 4]);
    assert_eq!((hparams.head_dim_k, hparams.head_dim_v), (16, 16));
    assert_eq!(hparams.n_layer_trunk(), 2);
    assert_eq!(hparams.experts, None);
}

#[test]
fn key_heads_may_differ_from_block_to_block() {
    let builder = model("llama").array_u32("llama.attention.head_count_kv", &[4, 1]);
    let profile = profile(&builder);
    assert_eq!(profile.state.blocks(), Some(&[full(64), full(16)][..]));
}

#[test]
fn a_name_is_the_files_own_or_else_the_architectures() {
    assert_eq!(profile(&model("llama")).name(), "llama");
    let named = model("llama").str("general.name", "Tiny");
    assert_eq!(profile(&named).name(), "Tiny");
}

#[test]
fn the_vocabulary_is_counted_stated_or_measured() {
    let rows = model("llama").tensor("token_embd.weight", TensorType::F32, &[64, 30]);
    assert_eq!(profile(&rows).hparams.n_vocab, 30);
    let stated = rows.u32("llama.vocab_size", 20);
    assert_eq!(profile(&stated).hparams.n_vocab, 20);
    let listed = stated.array_str("tokenizer.ggml.tokens", ["a", "b", "c"]);
    assert_eq!(profile(&listed).hparams.n_vocab, 3);
}

#[test]
fn without_an_output_matrix_the_embedding_is_used_twice() {
    let tied = model("llama").tensor("token_embd.weight", TensorType::F32, &[64, 30]);
    let tied = tied.tensor("output_norm.weight", TensorType::F32, &[64]);
    let weights = profile(&tied).weights;
    assert!(weights.tied_output);
    assert_eq!(weights.output_matrix().unwrap().name, "token_embd.weight");
    let own = tied.tensor("output.weight", TensorType::F32, &[64, 30]);
    let weights = profile(&own).weights;
    assert!(!weights.tied_output);
    assert_eq!(weights.output_matrix().unwrap().name, "output.weight");
}

#[test]
fn prediction_blocks_take_a_place_but_no_bytes() {
    let mut builder = model("glm4moe").u32("glm4moe.nextn_predict_layers", 1);
    for il in 0..2 {
        let name = format!("blk.{il}.attn_q.weight");
        builder = builder.tensor(&name, TensorType::F32, &[64, 64]);
    }
    let profile = profile(&builder);
    assert_eq!(profile.full_offload(), 3);
    assert_eq!(profile.weights.skipped.len(), 1);
    assert!(profile.weights.blocks[1].weights.is_empty());
    let kept = [full(64), BlockState::None];
    assert_eq!(profile.state.blocks(), Some(&kept[..]));
}

#[test]
fn tensors_of_no_known_place_are_kept_apart() {
    let builder = model("llama")
        .tensor("v.patch_embd.weight", TensorType::F32, &[64, 2])
        .tensor("blk.7.attn_q.weight", TensorType::F32, &[64, 64]);
    assert_eq!(profile(&builder).weights.unplaced.len(), 2);
}

#[test]
fn a_missing_key_is_named() {
    let header = Builder::new("llama").u32("llama.block_count", 2);
    let error = ModelProfile::from_header(&header.header().unwrap()).unwrap_err();
    assert!(
        error
            .to_string()
            .ends_with("the key `llama.context_length` is missing"),
        "{error}"
    );
}

#[test]
fn what_would_end_the_process_is_refused() {
    let blocks = |n| {
        Builder::new("llama")
            .u32("llama.context_length", 1024)
            .u32("llama.embedding_length", 64)
            .u32("llama.block_count", n)
    };
    assert_eq!(refused(&blocks(0)), pair("llama.block_count", "0"));
    assert_eq!(refused(&blocks(513)), pair("llama.block_count", "513"));

    let with = |suffix: &str, value: u32| model("llama").u32(&format!("llama.{suffix}"), value);
    let nextn = with("nextn_predict_layers", 3);
    assert_eq!(refused(&nextn), pair("llama.nextn_predict_layers", "3"));

    let many = with("expert_count", 2000).u32("llama.expert_used_count", 8);
    assert_eq!(refused(&many), pair("llama.expert_count", "2000"));
    let unused = with("expert_count", 8);
    assert_eq!(refused(&unused), pair("llama.expert_used_count", "0"));
    let too_many = with("expert_count", 8).u32("llama.expert_used_count", 9);
    assert_eq!(refused(&too_many), pair("llama.expert_used_count", "9"));
    let none = with("expert_used_count", 2);
    assert_eq!(refused(&none), pair("llama.expert_used_count", "2"));
    let experts = || with("expert_count", 8).u32("llama.expert_used_count", 2);
    let groups = experts().u32("llama.expert_group_count", 3);
    assert_eq!(refused(&groups), pair("llama.expert_group_count", "3"));
    let used = experts().u32("llama.expert_group_count", 4);
    assert_eq!(refused(&used), pair("llama.expert_group_used_count", "0"));

    let rope = model("llama").str("llama.rope.scaling.type", "sideways");
    assert_eq!(
        refused(&rope),
        pair("llama.rope.scaling.type", "\"sideways\"")
    );
}

#[test]
fn heads_that_cannot_share_are_refused() {
    let kv = |n| model("llama").u32("llama.attention.head_count_kv", n);
    assert_eq!(refused(&kv(3)), pair("llama.attention.head_count_kv", "3"));
    assert_eq!(refused(&kv(8)), pair("llama.attention.head_count_kv", "8"));
    let headless = Builder::new("llama")
        .u32("llama.block_count", 1)
        .u32("llama.context_length", 1024)
        .u32("llama.embedding_length", 64);
    assert_eq!(refused(&headless), pair("llama.attention.head_count", "0"));
}

#[test]
fn plain_architectures_are_known_and_others_say_why_not() {
    let law = |builder: &Builder| profile(builder).state;
    let known = |builder: &Builder| matches!(law(builder), StateLaw::Known { .. });
    for architecture in ["llama", "qwen2", "qwen3", "mistral3", "phi3", "gemma3"] {
        assert!(known(&model(architecture)), "{architecture}");
    }
    // phi3's window is read and disabled, gemma3's is not.
    assert!(known(
        &model("phi3").u32("phi3.attention.sliding_window", 2047)
    ));
    assert!(!known(
        &model("llama").bool("llama.attention.causal", false)
    ));
    for (architecture, why) in [
        ("rwkv7", "recurrent state"),
        ("qwen3next", "mixes attention"),
        ("llama4", "sliding window"),
        ("brand-new", "no architecture we have read"),
    ] {
        match law(&model(architecture)) {
            StateLaw::Unknown { reason } => {
                assert!(
                    reason.contains(architecture) && reason.contains(why),
                    "{reason}"
                );
            }
            known => panic!("{architecture}: {known:?}"),
        }
    }
}

#[test]
fn all_but_the_last_of_every_so_many_blocks_are_windowed_unless_listed() {
    let kept = |builder: &Builder| profile(builder).state.blocks().map(<[_]>::to_vec);
    let state = LayerState { k: 64, v: 64 };
    let windowed = |window| BlockState::Windowed { state, window };
    // gemma2: every second block is full, and the window is 4096 if the header does not say.
    let gemma2 = model("gemma2");
    assert_eq!(kept(&gemma2), Some(vec![windowed(4096), full(64)]));
    let stated = gemma2.u32("gemma2.attention.sliding_window", 512);
    assert_eq!(kept(&stated), Some(vec![windowed(512), full(64)]));
    let listed = stated.array_bool("gemma2.attention.sliding_window_pattern", &[false, true]);
    assert_eq!(kept(&listed), Some(vec![full(64), windowed(512)]));
    // gemma3: a window only if the header says so; of two blocks no sixth is full.
    let gemma3 = model("gemma3").u32("gemma3.attention.sliding_window", 1024);
    assert_eq!(kept(&gemma3), Some(vec![windowed(1024); 2]));
    let none = model("gemma3").u32("gemma3.attention.sliding_window", 0);
    assert_eq!(kept(&none), Some(vec![full(64); 2]));
    // What we have not seen llama.cpp do is unknown.
    let short = gemma3.array_bool("gemma3.attention.sliding_window_pattern", &[true]);
    assert_eq!(kept(&short), None);
    let other_heads = model("gemma2").u32("gemma2.attention.key_length_swa", 32);
    assert_eq!(kept(&other_heads), None);
}

#[test]
fn a_pattern_without_windowed_blocks_ends_the_process_and_is_refused() {
    let pattern = model("gemma2").u32("gemma2.attention.sliding_window_pattern", 1);
    let (key, _) = refused(&pattern);
    assert_eq!(key, "gemma2.attention.sliding_window_pattern");
}

#[test]
fn compressed_keys_are_one_for_all_heads() {
    let widths = |k: u32, v: u32| {
        let builder = model("deepseek2")
            .u32("deepseek2.attention.head_count_kv", 1)
            .u32("deepseek2.attention.key_length", 576)
            .u32("deepseek2.attention.value_length", 512)
            .u32("deepseek2.attention.key_length_mla", k)
            .u32("deepseek2.attention.value_length_mla", v);
        profile(&builder).state
    };
    let compressed = widths(192, 128);
    assert!(compressed.is_compressed());
    let key = BlockState::Compressed { k: 576 };
    assert_eq!(compressed.blocks(), Some(&[key, key][..]));
    assert!(!widths(0, 0).is_compressed());
    assert_eq!(widths(192, 0).blocks(), None);
}

#[test]
fn a_recurrent_state_is_a_past_and_a_state_of_each_sequence() {
    let mamba2 = Builder::new("mamba2")
        .u32("mamba2.block_count", 1)
        .u32("mamba2.context_length", 1024)
        .u32("mamba2.embedding_length", 64)
        .u32("mamba2.ssm.conv_kernel", 4)
        .u32("mamba2.ssm.inner_size", 128)
        .u32("mamba2.ssm.state_size", 16)
        .u32("mamba2.ssm.group_count", 2);
    let state = RecurrentState {
        r: 3 * (128 + 2 * 2 * 16),
        s: 16 * 128,
    };
    let known = profile(&mamba2).state;
    assert_eq!(known.blocks(), Some(&[BlockState::Recurrent(state)][..]));
    let huge = mamba2.u32("mamba2.ssm.state_size", u32::MAX);
    assert_eq!(profile(&huge).state.blocks(), None);
}

#[test]
fn the_widest_step_counts_all_experts_that_a_token_uses() {
    let builder = model("qwen3moe")
        .u32("qwen3moe.expert_count", 16)
        .u32("qwen3moe.expert_used_count", 4)
        .u32("qwen3moe.expert_feed_forward_length", 48);
    let hparams = profile(&builder).hparams;
    let experts = hparams.experts.unwrap();
    assert_eq!((experts.count, experts.used, experts.n_ff), (16, 4, 48));
    assert_eq!(hparams.widest_ff(), 4 * 48);
}
