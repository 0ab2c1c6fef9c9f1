//! What blocks keep, and what is unknown.

use proptest::prelude::{Just, any, prop, prop_assert, prop_assert_eq, prop_oneof, proptest};

use crate::gguf::Builder;

use super::{full, model, profile};
use crate::profile::{
    BlockState, IndexedState, LayerState, ModelProfile, RecurrentState, StateLaw,
};

/// What the blocks of [`model`] keep, if that is known.
fn kept(architecture: &str, keys: &str) -> Option<Vec<BlockState>> {
    let state = profile(&model(architecture, keys)).state;
    state.blocks().map(<[_]>::to_vec)
}

fn windowed(kv: u32, window: u32) -> BlockState {
    let state = LayerState { k: kv, v: kv };
    BlockState::Windowed { state, window }
}

#[test]
fn plain_architectures_are_known_and_others_say_why_not() {
    for architecture in ["llama", "qwen2", "qwen3", "mistral3", "phi3", "gemma3"] {
        assert!(kept(architecture, "").is_some(), "{architecture}");
    }
    // A window's cache is as long as a batch, which is limited by the context for causal attention only.
    for (architecture, known) in [("llama", true), ("gemma2", false)] {
        let causal = format!("{architecture}.attention.causal");
        let embeds = profile(&model(architecture, "").bool(&causal, false)).state;
        assert_eq!(matches!(embeds, StateLaw::Known { .. }), known);
    }
    for (architecture, why) in [
        ("eagle3", "drafts for another model"),
        ("gptj", "does not load it"),
        ("brand-new", "no architecture we have read"),
    ] {
        match profile(&model(architecture, "")).state {
            StateLaw::Unknown { reason } => {
                let says = reason.contains(architecture) && reason.contains(why);
                assert!(says, "{reason}");
            }
            known => panic!("{architecture}: {known:?}"),
        }
    }
}

#[test]
fn key_heads_may_differ_from_block_to_block() {
    let blocks = kept("llama", "attention.head_count_kv=4,1").unwrap();
    assert_eq!(blocks, [full(64), full(16)]);
}

#[test]
fn all_but_the_last_of_every_so_many_blocks_are_windowed_unless_listed() {
    for (architecture, keys, blocks) in [
        // Every second block is full, and the window is 4096 if the header does not say.
        ("gemma2", "", [windowed(64, 4096), full(64)]),
        (
            "gemma2",
            "sliding_window=512",
            [windowed(64, 512), full(64)],
        ),
        (
            "gemma2",
            "sliding_window=512 sliding_window_pattern=0,1",
            [full(64), windowed(64, 512)],
        ),
        // Heads of another size in the window: 4 of 32 elements.
        (
            "gemma2",
            "key_length_swa=8 value_length_swa=8",
            [windowed(32, 4096), full(64)],
        ),
        // A window only if the header says so; of two blocks no sixth is full.
        ("gemma3", "sliding_window=1024", [windowed(64, 1024); 2]),
        ("gemma3", "sliding_window=0", [full(64); 2]),
        // Read and disabled.
        ("phi3", "sliding_window=2047", [full(64); 2]),
        // The first of every four is full.
        (
            "cohere2moe",
            "sliding_window=8",
            [full(64), windowed(64, 8)],
        ),
        // The architecture's own, whatever the header says but 0.
        ("llama4", "", [windowed(64, 8192); 2]),
        ("llama4", "sliding_window=77", [windowed(64, 8192); 2]),
        ("llama4", "sliding_window=0", [full(64); 2]),
    ] {
        let keys: Vec<String> = keys
            .split_whitespace()
            .map(|key| format!("attention.{key}"))
            .collect();
        let kept = kept(architecture, &keys.join(" "));
        assert_eq!(kept.unwrap(), blocks, "{architecture} {keys:?}");
    }
    let flags = model("gemma2", "");
    let flags = flags.array_bool("gemma2.attention.sliding_window_pattern", &[false, true]);
    let windows = profile(&flags).state;
    assert_eq!(windows.windows(), Some(&[false, true][..]));
    // What we have not seen llama.cpp do is unknown.
    let longer = "attention.sliding_window=1024 attention.sliding_window_pattern=1,0,1";
    assert_eq!(kept("gemma3", longer), None);
}

#[test]
fn blocks_that_use_an_earlier_cache_keep_nothing() {
    let gemma4 = |shared: u32| {
        let keys =
            "block_count=5 attention.sliding_window=512 attention.sliding_window_pattern=1,1,0,1,0";
        kept(
            "gemma4",
            &format!("{keys} attention.shared_kv_layers={shared}"),
        )
    };
    let window = windowed(64, 512);
    let none = BlockState::None;
    assert_eq!(gemma4(2).unwrap(), [window, window, full(64), none, none]);
    // The last two blocks of their own must be one windowed and one full.
    assert_eq!(gemma4(1), None);
}

#[test]
fn a_hybrid_keeps_a_state_where_it_has_no_key_heads() {
    let keys = "attention.head_count_kv=0,2 shortconv.l_cache=3";
    let past = BlockState::Recurrent(RecurrentState { r: 2 * 64, s: 0 });
    assert_eq!(kept("lfm2", keys).unwrap(), [past, full(32)]);
    let window = format!("{keys} attention.sliding_window=16");
    assert_eq!(kept("lfm2", &window).unwrap(), [past, windowed(32, 16)]);
}

#[test]
fn an_interval_or_a_list_says_which_blocks_of_a_hybrid_attend() {
    let attends = |more: &str| {
        let keys = "ssm.conv_kernel=4 ssm.inner_size=128 ssm.state_size=16 ssm.group_count=2";
        let attends = |block: &BlockState| matches!(block, BlockState::Full(_));
        let blocks = kept("qwen35", &format!("{keys} {more}"))?;
        Some([attends(&blocks[0]), attends(&blocks[1])])
    };
    assert_eq!(attends(""), Some([false, false]));
    assert_eq!(attends("full_attention_interval=2"), Some([false, true]));
    assert_eq!(
        attends("attention.recurrent_layers=0,1"),
        Some([true, false])
    );
    // llama.cpp divides by it.
    assert_eq!(attends("full_attention_interval=0"), None);
}

#[test]
fn an_indexer_keeps_keys_of_its_own_beside_compressed_ones() {
    let keys = "attention.head_count_kv=1 attention.key_length=576 attention.value_length=512 \
        attention.key_length_mla=192 attention.value_length_mla=128 attention.indexer.key_length=128";
    let indexed = BlockState::Indexed(IndexedState {
        k: 576,
        v: None,
        index_k: 128,
        index_v: None,
    });
    let plain = BlockState::Compressed { k: 576 };
    assert_eq!(kept("glm-dsa", keys).unwrap(), [indexed; 2]);
    assert!(profile(&model("glm-dsa", keys)).state.is_compressed());
    let listed = format!("{keys} attention.indexer.types=1,0");
    assert_eq!(kept("glm-dsa", &listed).unwrap(), [indexed, plain]);
    // From so long a context on llama.cpp has a list of its own, which begins with these.
    let long = format!("{keys} context_length=1048576 block_count=7");
    let blocks = [0, 1, 2, 3, 4, 5, 6].map(|il| match il {
        0 | 1 | 2 | 6 => indexed,
        _ => plain,
    });
    assert_eq!(kept("glm-dsa", &long).unwrap(), blocks);
}

#[test]
fn a_recurrent_state_is_a_past_and_a_state_of_each_sequence() {
    let keys = "attention.head_count=0 ssm.conv_kernel=4 ssm.inner_size=128 ssm.group_count=2";
    let state = BlockState::Recurrent(RecurrentState {
        r: 3 * (128 + 2 * 2 * 16),
        s: 16 * 128,
    });
    let mamba2 = |size: u32| kept("mamba2", &format!("{keys} ssm.state_size={size}"));
    assert_eq!(mamba2(16).unwrap(), [state; 2]);
    assert_eq!(mamba2(u32::MAX), None);
}

#[test]
fn compressed_keys_are_one_for_all_heads() {
    let widths = |k: u32, v: u32| {
        let keys = "attention.head_count_kv=1 attention.key_length=576 attention.value_length=512";
        let mla = format!("attention.key_length_mla={k} attention.value_length_mla={v}");
        profile(&model("deepseek2", &format!("{keys} {mla}"))).state
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
    let looped = profile(&model("nanbeige", "num_loops=3"));
    assert_eq!((looped.n_layer(), looped.hparams.n_layer_stored), (6, 2));
    assert_eq!(looped.state.blocks(), Some(&[full(64); 6][..]));
    let routed = profile(&model("graniteswitch", ""));
    assert_eq!(routed.full_offload(), 4);
    let blocks = [full(64), full(64), full(16)];
    assert_eq!(routed.state.blocks(), Some(&blocks[..]));
}

/// One architecture of each law.
const ARCHITECTURES: &str = "afmoe bert bailingmoe3 deepseek2 deepseek32 deepseek4 dflash dots3note exaone4 falcon-h1 \
    gemma3n gemma4 glm-dsa glm5-next graniteswitch hy_v4 kimi-k3 lfm2 llama llama4 mamba2 minimax-01 minimax-m3 \
    nanbeige nemotron_h_moe plamo2 qwen4exp rwkv7 t5";

/// What those ask for.
const KEYS: &str = "nextn_predict_layers leading_dense_block_count full_attention_interval num_loops \
    decoder_block_count token_shift_count feed_forward_length attention.head_count attention.head_count_kv \
    attention.key_length attention.value_length attention.key_length_mla attention.value_length_mla \
    attention.key_length_swa attention.sliding_window attention.sliding_window_pattern attention.shared_kv_layers \
    attention.kv_lora_rank attention.indexer.key_length attention.indexer.top_k attention.indexer.types \
    attention.indexer.kpool attention.compress_ratios attention.recurrent_layers hyper_connection.count \
    ssm.conv_kernel ssm.inner_size ssm.state_size ssm.group_count kda.head_dim wkv.head_size shortconv.l_cache";

fn one_of(words: &'static str) -> impl prop::strategy::Strategy<Value = &'static str> {
    prop::sample::select(words.split_whitespace().collect::<Vec<_>>())
}

proptest! {
    #[test]
    fn whatever_a_header_says_each_block_has_a_law_or_none(
        arch in one_of(ARCHITECTURES),
        n_layer in prop_oneof![1u32..8, Just(64), Just(512)],
        n_ctx in prop_oneof![Just(4096u32), Just(1_048_576)],
        says in prop::collection::vec(
            (
                one_of(KEYS),
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
