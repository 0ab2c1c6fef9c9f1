//! What blocks keep, and what is unknown.

use proptest::prelude::{Just, any, prop, prop_assert, prop_assert_eq, prop_oneof, proptest};

use super::{model, profile};
use crate::profile::{BlockState, ModelProfile, Part, Rows};

/// What each block of [`model`] keeps: `64` for keys and values of so many elements, `64@512` in a window, `c576` for
/// compressed keys and `c576+i128` with an indexer, `r128/s0` for a past and a state, `-` for nothing; `unknown`.
fn kept(architecture: &str, keys: &str) -> String {
    let state = profile(&model(architecture, keys)).state;
    let Some(blocks) = state.blocks() else {
        return "unknown".to_owned();
    };
    let blocks: Vec<String> = blocks.iter().map(one).collect();
    blocks.join(" ")
}

fn one(block: &BlockState) -> String {
    let kept: Vec<_> = block.kept.iter().map(|kept| (kept.part, kept.n, kept.rows)).collect();
    match kept[..] {
        [] => "-".to_owned(),
        [(Part::Keys, k, Rows::Tokens), (Part::Values, v, Rows::Tokens)] if k == v => k.to_string(),
        [(Part::Keys, k, Rows::Window(window)), (Part::Values, v, _)] if k == v => format!("{k}@{window}"),
        [(Part::Keys, k, Rows::Tokens)] => format!("c{k}"),
        [(Part::Keys, k, Rows::Tokens), (Part::IndexKeys, i, Rows::Tokens)] => format!("c{k}+i{i}"),
        [(Part::State, r, Rows::States), (Part::State, s, Rows::States)] => format!("r{r}/s{s}"),
        ref other => format!("{other:?}"),
    }
}

/// An architecture, keys of its header, and what is kept. `$mla` and `$ssm` stand for keys that belong together.
const KEPT: &str = "
    # Key heads may differ from block to block.
    llama attention.head_count_kv=4,1: 64 16

    # gemma2: every second block is full, and the window is 4096 if the header does not say. Last, heads of another
    # size in the window.
    gemma2: 64@4096 64
    gemma2 attention.sliding_window=512: 64@512 64
    gemma2 attention.sliding_window=512 attention.sliding_window_pattern=0,1: 64 64@512
    gemma2 attention.key_length_swa=8 attention.value_length_swa=8: 32@4096 64
    # gemma3: a window only if the header says so; of two blocks no sixth is full. What we have not seen llama.cpp do
    # is unknown.
    gemma3 attention.sliding_window=1024: 64@1024 64@1024
    gemma3 attention.sliding_window=0: 64 64
    gemma3 attention.sliding_window=1024 attention.sliding_window_pattern=1,0,1: unknown
    # phi3 reads it and disables it; of cohere2moe the first of every four is full.
    phi3 attention.sliding_window=2047: 64 64
    cohere2moe attention.sliding_window=8: 64 64@8
    # The architecture's own, whatever the header says but 0.
    llama4: 64@8192 64@8192
    llama4 attention.sliding_window=77: 64@8192 64@8192
    llama4 attention.sliding_window=0: 64 64

    # Blocks that use an earlier cache keep nothing. The last two of their own must be one windowed and one full.
    gemma4 $shared attention.shared_kv_layers=2: 64@512 64@512 64 - -
    gemma4 $shared attention.shared_kv_layers=1: unknown

    # A hybrid keeps a state where it has no key heads, or as an interval or a list says. The past is that of a
    # convolution over the inner width and two groups of two states. llama.cpp divides by the interval.
    lfm2 attention.head_count_kv=0,2 shortconv.l_cache=3: r128/s0 32
    lfm2 attention.head_count_kv=0,2 shortconv.l_cache=3 attention.sliding_window=16: r128/s0 32@16
    qwen35 $ssm ssm.state_size=16: r576/s2048 r576/s2048
    qwen35 $ssm ssm.state_size=16 full_attention_interval=2: r576/s2048 64
    qwen35 $ssm ssm.state_size=16 attention.recurrent_layers=0,1: 64 r576/s2048
    qwen35 $ssm ssm.state_size=16 full_attention_interval=0: unknown
    mamba2 attention.head_count=0 $ssm ssm.state_size=16: r576/s2048 r576/s2048
    mamba2 attention.head_count=0 $ssm ssm.state_size=4294967295: unknown

    # Compressed keys are one for all heads, and an indexer keeps keys of its own beside them. From so long a context on
    # llama.cpp has a list of its own, which begins with these.
    deepseek2 $head $mla: c576 c576
    deepseek2 $head attention.key_length_mla=192 attention.value_length_mla=0: unknown
    glm-dsa $head $mla attention.indexer.key_length=128: c576+i128 c576+i128
    glm-dsa $head $mla attention.indexer.key_length=128 attention.indexer.types=1,0: c576+i128 c576
    glm-dsa $head $mla attention.indexer.key_length=128 context_length=1048576 block_count=7: \
        c576+i128 c576+i128 c576+i128 c576 c576 c576 c576+i128

    # Layers that no file holds are counted as llama.cpp counts them.
    nanbeige num_loops=3: 64 64 64 64 64 64
    graniteswitch: 64 64 16";

/// Keys of 576 elements and values of 512.
const ONE_HEAD: &str = "attention.head_count_kv=1 attention.key_length=576 attention.value_length=512";

#[test]
fn what_a_block_keeps_follows_from_the_architecture_and_its_keys() {
    let shared = "block_count=5 attention.sliding_window=512 attention.sliding_window_pattern=1,1,0,1,0";
    let table = KEPT
        .replace("$shared", shared)
        .replace("$ssm", "ssm.conv_kernel=4 ssm.inner_size=128 ssm.group_count=2")
        .replace("$head", ONE_HEAD)
        .replace("$mla", "attention.key_length_mla=192 attention.value_length_mla=128");
    let rows = table.lines().map(str::trim);
    for row in rows.filter(|row| !row.is_empty() && !row.starts_with('#')) {
        let (header, blocks) = row.split_once(": ").unwrap();
        let (architecture, keys) = header.split_once(' ').unwrap_or((header, ""));
        assert_eq!(kept(architecture, keys), blocks, "{row}");
        let state = profile(&model(architecture, keys)).state;
        assert_eq!(state.is_compressed(), blocks.starts_with('c'), "{row}");
    }
    let flags = model("gemma2", "").array_bool("gemma2.attention.sliding_window_pattern", &[false, true]);
    let windows = profile(&flags).state;
    assert_eq!(windows.windows(), Some(&[false, true][..]));
    assert!(!profile(&model("deepseek2", ONE_HEAD)).state.is_compressed());
    let looped = profile(&model("nanbeige", "num_loops=3"));
    assert_eq!((looped.n_layer(), looped.hparams.n_layer_stored), (6, 2));
    assert_eq!(profile(&model("graniteswitch", "")).full_offload(), 4);
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
        let mut builder = model(arch, &format!("block_count={n_layer} context_length={n_ctx}"));
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
