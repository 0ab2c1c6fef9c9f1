//! What blocks keep, and what is unknown.

use proptest::prelude::{Just, any, prop, prop_assert, prop_assert_eq, prop_oneof, proptest};

use crate::gguf::Builder;

use super::{full, model, profile, refused};
use crate::profile::{
    BlockState, IndexedState, LayerState, ModelProfile, RecurrentState, StateLaw,
};

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
    // A window's cache is as long as a batch, which is limited by the context for causal attention only.
    let embeds = |arch: &str| model(arch).bool(&format!("{arch}.attention.causal"), false);
    assert!(known(&embeds("llama")) && !known(&embeds("gemma2")));
    for (architecture, why) in [
        ("eagle3", "drafts for another model"),
        ("gptj", "does not load it"),
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
    // Heads of another size in the window: 4 of 32 elements.
    let narrow = model("gemma2")
        .u32("gemma2.attention.key_length_swa", 8)
        .u32("gemma2.attention.value_length_swa", 8);
    let narrower = BlockState::Windowed {
        state: LayerState { k: 32, v: 32 },
        window: 4096,
    };
    assert_eq!(kept(&narrow), Some(vec![narrower, full(64)]));
}

#[test]
fn a_window_that_a_graph_cannot_do_without_is_asked_for() {
    let (key, value) = refused(&model("afmoe"));
    assert_eq!(
        (key.as_str(), value.as_str()),
        ("afmoe.attention.sliding_window", "0")
    );
}

#[test]
fn of_every_so_many_blocks_the_first_is_full_where_the_architecture_says_so() {
    let cohere = model("cohere2moe").u32("cohere2moe.attention.sliding_window", 8);
    let windows = profile(&cohere).state;
    assert_eq!(windows.windows(), Some(&[false, true][..]));
}

#[test]
fn a_window_may_be_the_architectures_own_whatever_the_header_says() {
    let tokens = |builder: &Builder| match profile(builder).state.blocks() {
        Some([BlockState::Windowed { window, .. }, ..]) => Some(*window),
        Some(_) => None,
        None => panic!("unknown"),
    };
    let llama4 = |n| model("llama4").u32("llama4.attention.sliding_window", n);
    assert_eq!(tokens(&model("llama4")), Some(8192));
    assert_eq!(tokens(&llama4(77)), Some(8192));
    assert_eq!(tokens(&llama4(0)), None);
}

#[test]
fn blocks_that_use_an_earlier_cache_keep_nothing() {
    let gemma4 = |shared| {
        model("gemma4")
            .u32("gemma4.block_count", 5)
            .u32("gemma4.attention.sliding_window", 512)
            .u32("gemma4.attention.shared_kv_layers", shared)
            .array_bool(
                "gemma4.attention.sliding_window_pattern",
                &[true, true, false, true, false],
            )
    };
    let kept = profile(&gemma4(2)).state;
    let state = LayerState { k: 64, v: 64 };
    let windowed = BlockState::Windowed { state, window: 512 };
    let none = BlockState::None;
    let blocks = [windowed, windowed, full(64), none, none];
    assert_eq!(kept.blocks(), Some(&blocks[..]));
    // The last two blocks of their own must be one windowed and one full.
    assert_eq!(profile(&gemma4(1)).state.blocks(), None);
}

#[test]
fn a_hybrid_keeps_a_state_where_it_has_no_key_heads() {
    let lfm2 = model("lfm2")
        .array_u32("lfm2.attention.head_count_kv", &[0, 2])
        .u32("lfm2.shortconv.l_cache", 3);
    let past = RecurrentState { r: 2 * 64, s: 0 };
    let kept = [BlockState::Recurrent(past), full(32)];
    assert_eq!(profile(&lfm2).state.blocks(), Some(&kept[..]));
    let windowed = lfm2.u32("lfm2.attention.sliding_window", 16);
    assert_eq!(profile(&windowed).state.windows(), Some(&[false, true][..]));
}

#[test]
fn an_interval_or_a_list_says_which_blocks_of_a_hybrid_attend() {
    let qwen = model("qwen35")
        .u32("qwen35.ssm.conv_kernel", 4)
        .u32("qwen35.ssm.inner_size", 128)
        .u32("qwen35.ssm.state_size", 16)
        .u32("qwen35.ssm.group_count", 2);
    let attends = |builder: &Builder| {
        let state = profile(builder).state;
        let blocks = state.blocks()?;
        let attends = |block: &BlockState| matches!(block, BlockState::Full(_));
        Some(blocks.iter().map(attends).collect::<Vec<_>>())
    };
    assert_eq!(attends(&qwen), Some(vec![false, false]));
    let second = qwen.clone().u32("qwen35.full_attention_interval", 2);
    assert_eq!(attends(&second), Some(vec![false, true]));
    let listed = qwen
        .clone()
        .array_bool("qwen35.attention.recurrent_layers", &[false, true]);
    assert_eq!(attends(&listed), Some(vec![true, false]));
    // llama.cpp divides by it.
    let none = qwen.u32("qwen35.full_attention_interval", 0);
    assert_eq!(attends(&none), None);
}

#[test]
fn an_indexer_keeps_keys_of_its_own_beside_compressed_ones() {
    let kept = |builder: &Builder| profile(builder).state.blocks().map(<[_]>::to_vec);
    let glm = model("glm-dsa")
        .u32("glm-dsa.attention.head_count_kv", 1)
        .u32("glm-dsa.attention.key_length", 576)
        .u32("glm-dsa.attention.value_length", 512)
        .u32("glm-dsa.attention.key_length_mla", 192)
        .u32("glm-dsa.attention.value_length_mla", 128)
        .u32("glm-dsa.attention.indexer.key_length", 128);
    let indexed = BlockState::Indexed(IndexedState {
        k: 576,
        v: None,
        index_k: 128,
        index_v: None,
    });
    assert_eq!(kept(&glm), Some(vec![indexed; 2]));
    assert!(profile(&glm).state.is_compressed());
    let listed = glm
        .clone()
        .array_u32("glm-dsa.attention.indexer.types", &[1, 0]);
    let plain = BlockState::Compressed { k: 576 };
    assert_eq!(kept(&listed), Some(vec![indexed, plain]));
    // From so long a context on llama.cpp has a list of its own, which begins with these.
    let long = glm
        .u32("glm-dsa.context_length", 1_048_576)
        .u32("glm-dsa.block_count", 7);
    let full = |il: usize| [0, 1, 2, 6].contains(&il);
    let blocks = (0..7).map(|il| if full(il) { indexed } else { plain });
    assert_eq!(kept(&long), Some(blocks.collect()));
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
fn layers_that_no_file_holds_are_counted_as_llama_cpp_counts_them() {
    let looped = profile(&model("nanbeige").u32("nanbeige.num_loops", 3));
    assert_eq!((looped.n_layer(), looped.hparams.n_layer_stored), (6, 2));
    assert_eq!(looped.state.blocks(), Some(&[full(64); 6][..]));
    let routed = profile(&model("graniteswitch"));
    assert_eq!(routed.full_offload(), 4);
    assert_eq!(
        routed.state.blocks(),
        Some(&[full(64), full(64), full(16)][..])
    );
    let many = model("nanbeige").u32("nanbeige.num_loops", 257);
    assert_eq!(refused(&many).0, "nanbeige.num_loops");
}

/// One architecture of each law.
const ARCHITECTURES: &[&str] = &[
    "afmoe",
    "bert",
    "bailingmoe3",
    "deepseek2",
    "deepseek32",
    "deepseek4",
    "dflash",
    "dots3note",
    "exaone4",
    "falcon-h1",
    "gemma3n",
    "gemma4",
    "glm-dsa",
    "glm5-next",
    "graniteswitch",
    "hy_v4",
    "kimi-k3",
    "lfm2",
    "llama",
    "llama4",
    "mamba2",
    "minimax-01",
    "minimax-m3",
    "nanbeige",
    "nemotron_h_moe",
    "plamo2",
    "qwen4exp",
    "rwkv7",
    "t5",
];

/// What those ask for.
const KEYS: &[&str] = &[
    "nextn_predict_layers",
    "leading_dense_block_count",
    "full_attention_interval",
    "num_loops",
    "decoder_block_count",
    "token_shift_count",
    "feed_forward_length",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "attention.key_length_mla",
    "attention.value_length_mla",
    "attention.key_length_swa",
    "attention.sliding_window",
    "attention.sliding_window_pattern",
    "attention.shared_kv_layers",
    "attention.kv_lora_rank",
    "attention.indexer.key_length",
    "attention.indexer.top_k",
    "attention.indexer.types",
    "attention.indexer.kpool",
    "attention.compress_ratios",
    "attention.recurrent_layers",
    "hyper_connection.count",
    "ssm.conv_kernel",
    "ssm.inner_size",
    "ssm.state_size",
    "ssm.group_count",
    "kda.head_dim",
    "wkv.head_size",
    "shortconv.l_cache",
];

proptest! {
    #[test]
    fn whatever_a_header_says_each_block_has_a_law_or_none(
        arch in prop::sample::select(ARCHITECTURES),
        n_layer in prop_oneof![1u32..8, Just(64), Just(512)],
        n_ctx in prop_oneof![Just(4096u32), Just(1_048_576)],
        says in prop::collection::vec(
            (
                prop::sample::select(KEYS),
                prop::collection::vec(prop_oneof![0u32..9, Just(128), any::<u32>()], 0..9),
                any::<bool>(),
            ),
            0..24,
        ),
    ) {
        let mut builder = Builder::new(arch)
            .u32(&format!("{arch}.block_count"), n_layer)
            .u32(&format!("{arch}.context_length"), n_ctx)
            .u32(&format!("{arch}.embedding_length"), 64)
            .u32(&format!("{arch}.attention.head_count"), 4);
        for (suffix, values, as_list) in says {
            let key = format!("{arch}.{suffix}");
            builder = match values.first() {
                Some(&value) if !as_list => builder.u32(&key, value),
                _ => builder.array_u32(&key, &values),
            };
        }
        if let Ok(profile) = ModelProfile::from_header(&builder.header().unwrap())
            && let Some(blocks) = profile.state.blocks()
        {
            prop_assert_eq!(blocks.len(), profile.n_layer() as usize);
            let windows = profile.state.windows().unwrap_or_default().len();
            prop_assert!(windows == 0 || windows == blocks.len());
            prop_assert_eq!(profile.weights.rope_blocks.len(), blocks.len());
        }
    }
}
