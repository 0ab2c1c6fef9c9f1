//! Profiles of headers, and headers that are refused.

use proptest::prelude::{Just, any, prop, prop_assert, prop_assert_eq, prop_oneof, proptest};

use crate::gguf::{Builder, TensorType};

use super::{BlockState, Error, ModelProfile, MtpError, Part, Rotation, Rows};

/// A model of two blocks without tensors, with these keys of its architecture. A number is written as `x.y=8`, a list
/// as `x.y=8,4`.
fn model(architecture: &str, keys: &str) -> Builder {
    let base = "block_count=2 context_length=1024 embedding_length=64 feed_forward_length=128 attention.head_count=4";
    let mut builder = Builder::new(architecture);
    for key in base.split(' ').chain(keys.split_whitespace()) {
        let (suffix, value) = key.split_once('=').unwrap();
        let key = format!("{architecture}.{suffix}");
        let numbers: Vec<u32> = value.split(',').map(|n| n.parse().unwrap()).collect();
        builder = match numbers[..] {
            [number] => builder.u32(&key, number),
            _ => builder.array_u32(&key, &numbers),
        };
    }
    builder
}

fn profile(builder: &Builder) -> ModelProfile {
    ModelProfile::from_header(&builder.header().unwrap()).unwrap()
}

/// Checks that a header is rejected because of the value of a key of its architecture.
#[track_caller]
fn refused(builder: &Builder, suffix: &str, value: &str) {
    let header = builder.header().unwrap();
    match ModelProfile::from_header(&header) {
        Err(Error::Value { key, value: found, .. }) => {
            assert_eq!(key, header.arch_key(suffix).unwrap());
            assert_eq!(found, value, "{key}");
        }
        other => panic!("{suffix}: {other:?}"),
    }
}

/// Adds matrices of 64 x 64 floats.
fn with_matrices(builder: Builder, names: &[&str]) -> Builder {
    names.iter().fold(builder, |builder, name| builder.tensor(&format!("{name}.weight"), TensorType::F32, &[64, 64]))
}

#[test]
fn names_from_a_file_contain_no_control_characters() {
    assert_eq!(profile(&model("llama", "")).name, "llama");
    let named = model("llama", "").str("general.name", "Tiny\n\u{1b}[2J\u{9b}2J");
    assert_eq!(profile(&named).name, "Tiny  [2J 2J");
    let header = Builder::new("llama\u{1b}[2J").header().unwrap();
    let error = ModelProfile::from_header(&header).unwrap_err().to_string();
    assert!(error.contains("'general.architecture' contains a control character"), "{error:?}");
    assert!(!error.contains(char::is_control), "{error:?}");
}

#[test]
fn the_vocabulary_is_counted_stated_or_measured() {
    let rows = model("llama", "").tensor("token_embd.weight", TensorType::F32, &[64, 30]);
    assert_eq!(profile(&rows).hparams.n_vocab, 30);
    let stated = rows.u32("llama.vocab_size", 20);
    assert_eq!(profile(&stated).hparams.n_vocab, 20);
    assert_eq!(profile(&stated.array_str("tokenizer.ggml.tokens", ["a", "b", "c"])).hparams.n_vocab, 3);
}

/// A model with a prediction block that has these weights, which are named without the block.
fn predicting(architecture: &str, heads: u32, weights: &str) -> ModelProfile {
    let builder = model(architecture, &format!("nextn_predict_layers={heads}"));
    let weights = weights.split_whitespace().map(|name| format!("blk.1.{name}"));
    let builder = with_matrices(builder, &["blk.0.attn_q"]);
    profile(&weights.fold(builder, |builder, name| with_matrices(builder, &[&name])))
}

/// The weights of the prediction block of `glm4moe`.
const HEAD: &str = "nextn.eh_proj nextn.enorm nextn.hnorm attn_q ffn_gate_inp";

#[test]
fn prediction_blocks_that_cannot_be_used_are_refused_with_the_reason() {
    for (architecture, heads, weights, why) in [
        ("llama", 0, HEAD, "`llama.nextn_predict_layers` is 0"),
        ("exaone4", 1, HEAD, "llama.cpp does not compute with them"),
        ("deepseek2", 1, HEAD, "where keys are not compressed"),
        ("glm4moe", 1, "nextn.eh_proj nextn.enorm nextn.hnorm", "blk.1.ffn_gate_inp"),
        ("hy_v3", 1, "nextn.enorm", "blk.1.nextn.eh_proj"),
        ("glm4moe", 2, HEAD, "the model has no other blocks"),
    ] {
        let profile = predicting(architecture, heads, weights);
        let error = profile.with_mtp().unwrap_err();
        let of_file = matches!(error, MtpError::NoHeads { .. });
        assert_ne!(of_file, ["exaone4", "deepseek2"].contains(&architecture));
        assert!(error.to_string().contains(why), "{error}");
    }
}

#[test]
fn reasons_for_an_unknown_model_are_named() {
    // The length of a window's cache depends on the batch, which the context limits only with causal attention.
    let acausal = |architecture: &str| model(architecture, "").bool(&format!("{architecture}.attention.causal"), false);
    assert_eq!(profile(&acausal("llama")).unmodelled(), None);
    let shared = "attention.shared_kv_layers=1 block_count=5 attention.sliding_window=512 attention.sliding_window_pattern=1,1,0,1,0";
    let mixer = "ssm.conv_kernel=4 ssm.inner_size=128 ssm.group_count=2 ssm.state_size=16";
    let elsewhere = with_matrices(model("llama", ""), &["patch_embd", "blk.7.attn_q"]);
    for (model, why) in [
        (acausal("gemma2"), "without causal attention"),
        (model("eagle3", ""), "`eagle3` drafts for another model"),
        (model("gptj", ""), "cannot load it"),
        (model("brand-new", ""), "an unknown architecture"),
        (model("gemma3n", "attention.sliding_window=512"), "`gemma3n` computes several streams"),
        (model("gemma4", shared), "uses the caches of blocks 2 and 3 again"),
        (model("deepseek2", "attention.key_length_mla=192"), "the width of only one of compressed keys and values"),
        (model("qwen35", &format!("{mixer} full_attention_interval=0")), "with an interval of no blocks"),
        (model("qwen35", &mixer.replace("=16", "=4294967295")), "with a state of no size"),
        (elsewhere, "2 tensors (32768 bytes) whose place is not known, such as `patch_embd.weight`"),
    ] {
        let reason = profile(&model).unmodelled().unwrap();
        assert!(reason.contains(why), "{reason}");
    }
}

#[test]
fn values_that_would_abort_the_process_are_refused() {
    let table = "
        llama block_count=0: block_count is 0
        llama block_count=513: block_count is 513
        llama nextn_predict_layers=3: nextn_predict_layers is 3
        llama expert_count=2000 expert_used_count=8: expert_count is 2000
        llama expert_count=8: expert_used_count is 0
        llama expert_count=8 expert_used_count=9: expert_used_count is 9
        llama expert_used_count=2: expert_used_count is 2
        llama expert_group_count=2: expert_group_count is 2
        llama expert_count=8 expert_used_count=2 expert_group_count=8: expert_group_count is 8
        llama expert_count=8 expert_used_count=2 expert_group_count=3: expert_group_count is 3
        llama expert_count=8 expert_used_count=2 expert_group_count=4: expert_group_used_count is 0
        llama attention.head_count_kv=3: attention.head_count_kv is 3
        llama attention.head_count_kv=8: attention.head_count_kv is 8
        llama attention.head_count=0: attention.head_count is 0
        nanbeige num_loops=257: num_loops is 257
        k2-horizon attention.value_expert_count=1025: attention.value_expert_count is 1025
        k2-horizon attention.value_expert_count=4: attention.value_expert_used_count is 0
        k2-horizon attention.value_expert_count=4 attention.value_expert_used_count=5: attention.value_expert_used_count is 5
        k2-horizon attention.value_expert_used_count=1: attention.value_expert_used_count is 1
        gemma2 attention.sliding_window_pattern=1: attention.sliding_window_pattern is without a windowed block
        afmoe attention.sliding_window=0: attention.sliding_window is 0";
    for row in table.lines().map(str::trim).filter(|row| !row.is_empty()) {
        let (header, refusal) = row.split_once(": ").unwrap();
        let (architecture, keys) = header.split_once(' ').unwrap();
        let (suffix, value) = refusal.split_once(" is ").unwrap();
        refused(&model(architecture, keys), suffix, value);
    }
    refused(&model("afmoe", ""), "attention.sliding_window", "0");
    let shares = "attention.sliding_window=64 attention.sliding_window_pattern=1,0 attention.shared_kv_layers=1";
    refused(&model("gemma4", shares), "attention.shared_kv_layers", "1");
    let distils = "attention.sliding_window=64 attention.indexer.key_length=16 attention.compress_ratios=0,4";
    for architecture in ["deepseek4", "deepseek41"] {
        let keys = format!("nextn_predict_layers=1 {distils} attention.kv_source_layers=0,0");
        let predicts = with_matrices(model(architecture, &keys), &["blk.1.nextn.eh_proj"]);
        refused(&predicts, "attention.compress_ratios", "4");
    }
    let rope = model("llama", "").str("llama.rope.scaling.type", "sideways");
    refused(&rope, "rope.scaling.type", "\"sideways\"");
    let classifier = model("bert", "").str("bert.classifier.activation", "swish");
    refused(&classifier, "classifier.activation", "\"swish\"");
    let latent = "attention.key_length_mla=192 attention.value_length_mla=128 attention.indexer.key_length=128";
    let unindexed = model("glm-dsa", &format!("{latent} attention.indexer.types=0,0"));
    refused(&unindexed, "attention.indexer.types", "without an index");
    let distils = "attention.sliding_window=64 attention.indexer.key_length=128 attention.compress_ratios";
    refused(&model("deepseek4", &format!("{distils}=0,128")), "attention.compress_ratios", "without a ratio of 4");
    let as_wide = model("deepseek4", &format!("{distils}=4,128 attention.key_length=128"));
    refused(&as_wide, "attention.indexer.key_length", "128");
    let header = Builder::new("llama").u32("llama.block_count", 2).header().unwrap();
    let error = ModelProfile::from_header(&header).unwrap_err().to_string();
    assert!(error.ends_with("the key 'llama.context_length' is missing"), "{error}");
}

/// For each block, the tensors that it keeps, and the earlier block from which it reads keys.
type Layout = Vec<(Vec<(Part, u32, Rows)>, Option<usize>)>;

fn layout(builder: &Builder) -> Layout {
    let profile = profile(builder);
    assert_eq!(profile.unmodelled(), None);
    let block = |block: &BlockState| {
        let kept = block.kept.iter().map(|kept| (kept.part, kept.n, kept.rows));
        (kept.collect(), block.reads)
    };
    profile.state.blocks().unwrap().iter().map(block).collect()
}

#[test]
fn blocks_read_the_compressed_keys_of_the_last_block_that_keeps_some() {
    use Part::{IndexKeys, Keys, State};
    let keys = "block_count=6 attention.head_count_kv=1 attention.key_length=32 attention.sliding_window=100 \
        attention.indexer.key_length=16 attention.compress_ratios=0,2,2,1,1,0 attention.kv_source_layers=1,3 \
        attention.indexer.source_layers=1,3";
    let window = (Keys, 32, Rows::OwnWindow(100));
    // Each group has a key of 32 elements and an index key of 16 elements. The pending tensors contain the tokens of a
    // group and their weights.
    let distilled = |ratio: u32| {
        let pending = (State, 32 * ratio, Rows::Pending);
        vec![window, (IndexKeys, 32 + 16, Rows::Groups(ratio)), pending, pending]
    };
    let expected: Layout = vec![
        (vec![window], None),
        (distilled(2), None),
        (vec![window], Some(1)),
        (distilled(1), None),
        (vec![window], Some(3)),
        (vec![window], None),
    ];
    assert_eq!(layout(&model("deepseek41", keys)), expected);
    for wrong in ["0,2,1,1,1,0", "2,2,2,1,1,0", "0,2,2,4,4,0"] {
        let model = model("deepseek41", &keys.replace("0,2,2,1,1,0", wrong));
        let reason = profile(&model).unmodelled().unwrap();
        assert!(reason.contains("reads compressed keys of no earlier block"), "{wrong}: {reason}");
    }
}

#[test]
fn blocks_use_the_compressed_keys_of_the_block_that_the_header_names() {
    let keys = |sources: &str| {
        let keys = "block_count=4 attention.head_count_kv=1 attention.key_length=48 attention.key_length_mla=24 \
            attention.value_length_mla=16 attention.indexer.key_length=16 attention.indexer.types=1,0,1,0 \
            attention.rope_pattern=1,1,0,0 attention.kv_source_map=";
        format!("{keys}{sources}")
    };
    let (all, index) = ((Part::Keys, 48, Rows::Tokens), (Part::IndexKeys, 16, Rows::Tokens));
    let of = |blocks: [&[(Part, u32, Rows)]; 4]| -> Layout { blocks.map(|kept| (kept.to_vec(), None)).to_vec() };
    let own = of([&[all, index], &[all], &[all, index], &[all]]);
    assert_eq!(layout(&model("mistral-large4", &keys("0,1,2,3"))), own);
    assert_eq!(layout(&model("mistral-large4", &keys("0,0,2,2"))), of([&[all, index], &[], &[all, index], &[]]));
    // A block that uses another block's keys still has an index with its own keys.
    let first = keys("0,0,0,0").replace("rope_pattern=1,1,0,0", "rope_pattern=1,1,1,1");
    assert_eq!(layout(&model("mistral-large4", &first)), of([&[all, index], &[], &[index], &[]]));
    // The wrong sources are a later block, a block without keys, and a block with another rotation.
    for wrong in ["0,2,2,2", "0,0,1,3", "0,0,0,3"] {
        let reason = profile(&model("mistral-large4", &keys(wrong))).unmodelled().unwrap();
        assert!(reason.contains("uses keys that no earlier block keeps"), "{wrong}: {reason}");
    }
}

#[test]
fn a_draft_with_compressed_keys_has_a_window_of_one_token_more_in_every_block() {
    let keys = "attention.head_count_kv=1 attention.key_length=48 attention.value_length=32 attention.kv_lora_rank=32 \
        attention.key_length_mla=24 attention.value_length_mla=16 attention.sliding_window=100";
    let expected: Layout = vec![(vec![(Part::Keys, 48, Rows::Window(101))], None); 2];
    assert_eq!(layout(&model("dflash", keys)), expected);
    let windowless = model("dflash", &keys.replace("sliding_window=100", "sliding_window=0"));
    assert!(profile(&windowless).unmodelled().unwrap().contains("a sliding window of no tokens"));
}

#[test]
fn convolutions_alternate_with_windows_and_full_attention() {
    let keys = "block_count=3 attention.head_count_kv=0,2,2 shortconv.l_cache=3 attention.sliding_window=100 \
        attention.sliding_window_pattern=0,1,0";
    let attended = |rows| vec![(Part::Keys, 32, rows), (Part::Values, 32, rows)];
    let past = vec![(Part::State, 2 * 64, Rows::States), (Part::State, 0, Rows::States)];
    let expected: Layout = vec![(past, None), (attended(Rows::Window(100)), None), (attended(Rows::Tokens), None)];
    let lfm3 = model("lfm3", keys);
    assert_eq!(layout(&lfm3), expected);
    // Without causal attention, the whole text is computed at once.
    let decides = lfm3.bool("lfm3.attention.causal", false);
    let nothing: Layout = vec![(Vec::new(), None); 3];
    assert_eq!(layout(&decides), nothing);
    let lfm2 = model("lfm2", &keys.replace("sliding_window=100", "sliding_window=0"));
    let lfm2 = lfm2.bool("lfm2.attention.causal", false);
    assert!(profile(&lfm2).unmodelled().unwrap().contains("without causal attention"));
    assert_eq!(layout(&lfm2.u32("lfm2.decision.block_count", 1)), nothing);
}

#[test]
fn each_cache_has_matrices_for_its_own_heads() {
    use Rotation::{Always, IfQuantised, Never};
    let latent = "attention.head_count_kv=1 attention.key_length=576 attention.value_length=512 \
        attention.key_length_mla=192 attention.value_length_mla=128 attention.indexer.key_length=128 \
        attention.indexer.top_k=8 attention.indexer.types=1,1";
    let windowed = "attention.key_length=512 attention.value_length=256 attention.key_length_swa=128 \
        attention.value_length_swa=96 attention.sliding_window=100 attention.sliding_window_pattern=1,0";
    let distilled = "attention.head_count_kv=1 attention.key_length=512 attention.sliding_window=64 \
        attention.indexer.key_length=128 attention.compress_ratios=4,128";
    for (architecture, keys, blocks) in [
        ("llama", "attention.key_length=128", vec![vec![IfQuantised(128), Never]; 2]),
        // A head has 64 / 4 elements.
        ("llama", "", vec![vec![Never, Never]; 2]),
        ("deepseek2", latent, vec![vec![IfQuantised(64)]; 2]),
        ("deepseek32", latent, vec![vec![IfQuantised(64), Always(128)]; 2]),
        ("hy_v4", latent, vec![vec![IfQuantised(64), IfQuantised(128)]; 2]),
        // The first block is windowed, and its values have 96 elements, which decide for all blocks.
        ("gpt-oss", windowed, vec![vec![IfQuantised(128), Never], vec![IfQuantised(512), Never]]),
        (
            "deepseek4",
            distilled,
            vec![
                vec![IfQuantised(512), IfQuantised(512), Always(128), Never, Never, Never, Never],
                vec![IfQuantised(512), IfQuantised(512), Never, Never],
            ],
        ),
    ] {
        let profile = profile(&model(architecture, keys));
        let rotations = |block: &BlockState| block.kept.iter().map(|kept| kept.rotation).collect();
        let found: Vec<Vec<Rotation>> = profile.state.blocks().unwrap().iter().map(rotations).collect();
        assert_eq!(found, blocks, "{architecture} {keys}");
    }
}

#[test]
fn weights_that_no_gpu_multiplies_by_and_matrices_that_no_file_holds_are_named() {
    let of = |name: &str| model("llama", "").tensor(name, TensorType::F8_E4M3, &[64, 64]);
    for name in ["blk.0.attn_q.weight", "output.weight", "token_embd.weight"] {
        let expected = format!("no GPU multiplies by weights of the type F8_E4M3, such as `{name}`");
        assert_eq!(profile(&of(name)).unmodelled(), Some(expected));
    }
    // The host looks up token embeddings that compute no logits, whatever their type is.
    assert_eq!(profile(&with_matrices(of("token_embd.weight"), &["output"])).unmodelled(), None);
    let transformed = model("llama", "").u32("prism.hadamard.version", 1);
    assert!(profile(&transformed).unmodelled().unwrap().contains("further matrices"));
}

/// One architecture for each layout rule.
const ARCHITECTURES: &str = "afmoe bert bailingmoe3 deepseek2 deepseek32 deepseek4 deepseek41 dflash dots3note exaone4 \
    falcon-h1 gemma3n gemma4 glm-dsa glm5-next graniteswitch hy_v4 kimi-k3 lfm2 lfm3 llama llama4 mamba2 minimax-01 \
    minimax-m3 mistral-large4 nanbeige nemotron_h_moe plamo2 qwen4exp rwkv7 t5";

/// The keys that these architectures read.
const KEYS: &str = "nextn_predict_layers leading_dense_block_count full_attention_interval num_loops \
    decoder_block_count token_shift_count feed_forward_length attention.head_count attention.head_count_kv \
    attention.key_length attention.value_length attention.key_length_mla attention.value_length_mla \
    attention.key_length_swa attention.sliding_window attention.sliding_window_pattern attention.shared_kv_layers \
    attention.kv_lora_rank attention.indexer.key_length attention.indexer.top_k attention.indexer.types \
    attention.indexer.kpool attention.compress_ratios attention.recurrent_layers attention.kv_source_map \
    attention.kv_source_layers attention.indexer.source_layers attention.rope_pattern hyper_connection.count \
    decision.block_count \
    ssm.conv_kernel ssm.inner_size ssm.state_size ssm.group_count kda.head_dim wkv.head_size shortconv.l_cache";

fn one_of(words: &'static str) -> impl prop::strategy::Strategy<Value = &'static str> {
    prop::sample::select(words.split_whitespace().collect::<Vec<_>>())
}

proptest! {
    #[test]
    fn any_header_has_a_layout_for_each_block_or_none(
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
