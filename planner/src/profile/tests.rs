//! What a header means, and what is refused.

use crate::gguf::{Builder, TensorType};

use super::{BlockState, Error, LayerState, ModelProfile, MtpError, Role, Unmodelled, Weight};

mod state;

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

/// A model with a prediction block that has these weights, named without their block.
fn predicting(architecture: &str, heads: u32, weights: &[&str]) -> ModelProfile {
    let mut builder = model(architecture)
        .u32(&format!("{architecture}.nextn_predict_layers"), heads)
        .tensor("blk.0.attn_q.weight", TensorType::F32, &[64, 64]);
    for name in weights {
        let name = format!("blk.1.{name}.weight");
        builder = builder.tensor(&name, TensorType::F32, &[64, 64]);
    }
    profile(&builder)
}

#[test]
fn prediction_blocks_are_weights_as_others_once_they_are_asked_for() {
    let whole = [
        "nextn.eh_proj",
        "nextn.enorm",
        "nextn.hnorm",
        "attn_q",
        "ffn_gate_inp",
    ];
    let plain = predicting("glm4moe", 1, &whole);
    assert!(!plain.predicts());
    let with = plain.clone().with_mtp().unwrap();
    assert!(with.predicts() && with.weights.skipped.is_empty());
    let block = &with.weights.blocks[1];
    assert_eq!(block.bytes(), Weight::sum(&plain.weights.skipped));
    assert!(block.weights.is_sorted_by_key(|weight| weight.offset));
    // The trunk keeps nothing for it.
    assert_eq!(with.state, plain.state);
    // Asked for twice, it is the same.
    assert_eq!(with.clone().with_mtp().unwrap(), with);
}

#[test]
fn prediction_blocks_that_cannot_be_used_are_refused_with_the_reason() {
    let refused = |profile: ModelProfile| profile.with_mtp().unwrap_err();
    let whole = ["nextn.eh_proj", "nextn.enorm", "nextn.hnorm"];
    assert!(matches!(
        refused(profile(&model("llama"))),
        MtpError::NoHeads { .. }
    ));
    for arch in ["exaone4", "deepseek2"] {
        let error = refused(predicting(arch, 1, &whole));
        assert!(
            matches!(&error, MtpError::Architecture { architecture, .. } if architecture == arch),
            "{error}"
        );
    }
    let error = refused(predicting("glm4moe", 1, &whole));
    assert!(error.to_string().contains("blk.1.ffn_gate_inp"), "{error}");
    let error = refused(predicting("hy_v3", 1, &whole[1..]));
    assert!(error.to_string().contains("blk.1.nextn.eh_proj"), "{error}");
    let all = refused(predicting("glm4moe", 2, &whole));
    assert!(matches!(all, MtpError::NoHeads { .. }), "{all}");
}

#[test]
fn tensors_of_no_known_place_are_kept_apart() {
    let builder = model("llama")
        .tensor("v.patch_embd.weight", TensorType::F32, &[64, 2])
        .tensor("blk.7.attn_q.weight", TensorType::F32, &[64, 64]);
    assert_eq!(profile(&builder).weights.unplaced.len(), 2);
}

#[test]
fn what_there_is_no_model_of_is_named() {
    assert_eq!(profile(&model("llama")).unmodelled(), None);
    let drafting = profile(&model("eagle3"));
    let law = drafting.unmodelled();
    assert!(matches!(law, Some(Unmodelled::State(_))), "{law:?}");
    let streams = model("gemma3n").u32("gemma3n.attention.sliding_window", 512);
    let streams = profile(&streams);
    let graph = streams.unmodelled();
    assert!(matches!(graph, Some(Unmodelled::Graph { .. })), "{graph:?}");
    let first = "v.patch_embd.weight";
    let vision = model("llama")
        .tensor(first, TensorType::F32, &[64, 2])
        .tensor("v.post_ln.weight", TensorType::F32, &[64]);
    let weights = Unmodelled::Weights {
        first,
        count: 2,
        bytes: 4 * 64 * 3,
    };
    assert_eq!(profile(&vision).unmodelled(), Some(weights));
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
fn a_block_is_the_sum_of_its_roles() {
    let mut builder = model("qwen3moe");
    for (name, rows) in [
        ("attn_q", 10),
        ("ffn_norm", 20),
        ("ffn_up_exps", 30),
        ("ffn_up_shexp", 40),
        ("ffn_gate_inp", 50),
    ] {
        let name = format!("blk.1.{name}.weight");
        builder = builder.tensor(&name, TensorType::F32, &[rows]);
    }
    let weights = profile(&builder).weights;
    let bytes: Vec<u64> = Role::ALL
        .iter()
        .map(|&role| weights.blocks[1].bytes_of(role))
        .collect();
    assert_eq!(bytes, [40, 80, 120, 160, 200]);
    assert_eq!(weights.blocks[1].bytes(), 600);
    assert_eq!(weights.blocks[0].bytes(), 0);
}

#[test]
fn what_nothing_uses_and_what_a_loader_forgets_to_skip() {
    let unused = model("t5").tensor(
        "dec.blk.0.cross_attn_rel_b.weight",
        TensorType::F32,
        &[4, 8],
    );
    assert_eq!(profile(&unused).weights.skipped.len(), 1);
    let step35 = model("step35")
        .u32("step35.nextn_predict_layers", 1)
        .u32("step35.attention.sliding_window", 8)
        .tensor("blk.1.ffn_up.weight", TensorType::F32, &[64, 128])
        .tensor("blk.1.attn_q.weight", TensorType::F32, &[64, 64]);
    let weights = profile(&step35).weights;
    assert_eq!(weights.blocks[1].weights[0].name, "blk.1.ffn_up.weight");
    assert_eq!(weights.skipped[0].name, "blk.1.attn_q.weight");
}

#[test]
fn an_embedding_without_logits_has_no_second_copy() {
    let tied = |arch: &str| {
        let window = format!("{arch}.attention.sliding_window");
        let header =
            model(arch)
                .u32(&window, 8)
                .tensor("token_embd.weight", TensorType::F32, &[64, 30]);
        let weights = profile(&header).weights;
        (weights.tied_output, weights.tied_apart)
    };
    assert_eq!(tied("llama"), (true, false));
    assert_eq!(tied("bert"), (false, false));
    assert_eq!(tied("gemma4"), (true, true));
}

#[test]
fn a_pattern_without_windowed_blocks_ends_the_process_and_is_refused() {
    let pattern = model("gemma2").u32("gemma2.attention.sliding_window_pattern", 1);
    let (key, _) = refused(&pattern);
    assert_eq!(key, "gemma2.attention.sliding_window_pattern");
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
