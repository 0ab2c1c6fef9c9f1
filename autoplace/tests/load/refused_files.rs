//! Files that would end the process inside llama.cpp (GGML_ASSERT, GGML_ABORT) are typed errors: the product names the
//! key, and the native layer underneath survives the same file on its own.

use std::path::PathBuf;

use crate::native_support::{
    TINY_VOCABULARY, tiny, tiny_llama, tiny_llama_without_vocabulary, tiny_with_heads,
};
use autoplace::gguf::Builder;
use autoplace::llama_sys::{self, Cause};
use autoplace::memory::KvType;
use autoplace::{Model, generate, load};

struct File {
    _dir: tempfile::TempDir,
    path: PathBuf,
}

fn write(model: &Builder) -> File {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.gguf");
    model.write_sparse(&path).unwrap();
    File { _dir: dir, path }
}

fn native(file: &File) -> Result<llama_sys::Model, llama_sys::Error> {
    let params = llama_sys::ModelParams {
        devices: Some(Vec::new()),
        ..llama_sys::ModelParams::default()
    };
    llama_sys::Model::load(&file.path, params)
}

/// The product's message names `key`; llama.cpp alone gives an error too, for the reason in `cause`.
#[track_caller]
fn refused(model: &Builder, key: &str, cause: Option<Cause>) {
    let file = write(model);
    let error = Model::load(&file.path).unwrap_err();
    assert_matches!(error, load::Error::Profile(_) | load::Error::Gguf(_));
    let message = error.to_string();
    assert!(message.contains(key), "{message}");
    assert!(message.contains("model.gguf"), "{message}");
    if let Some(cause) = cause.filter(|_| !cfg!(target_env = "msvc")) {
        let Err(llama_sys::Error::ModelLoad { failure, .. }) = native(&file) else {
            panic!("llama.cpp took it");
        };
        assert_eq!(failure.cause, cause, "{failure:?}");
    }
}

#[test]
fn the_tiny_model_itself_loads_and_computes() {
    let file = write(&tiny_llama());
    let model = Model::load(&file.path).unwrap();
    let text = model
        .generate("word1")
        .max_tokens(3)
        .temperature(0.0)
        .text();
    assert!(text.is_ok(), "{text:?}");
}

#[test]
fn block_counts_of_0_and_above_512() {
    for blocks in [0, 513, u32::MAX] {
        refused(
            &tiny_llama().u32("llama.block_count", blocks),
            "llama.block_count",
            Some(Cause::Assertion),
        );
    }
}

#[test]
fn more_nextn_blocks_than_blocks() {
    // llama.cpp reads this key for some architectures only; the others ignore it.
    refused(
        &tiny_llama().u32("llama.nextn_predict_layers", 3),
        "nextn_predict_layers",
        None,
    );
}

#[test]
fn expert_counts_that_contradict_each_other() {
    let used_without_experts = tiny_llama().u32("llama.expert_used_count", 2);
    refused(
        &used_without_experts,
        "llama.expert_used_count",
        Some(Cause::Assertion),
    );
    let more_used_than_there_are = tiny_llama()
        .u32("llama.expert_count", 4)
        .u32("llama.expert_used_count", 8);
    refused(
        &more_used_than_there_are,
        "llama.expert_used_count",
        Some(Cause::Assertion),
    );
    let none_used = tiny_llama().u32("llama.expert_count", 4);
    refused(
        &none_used,
        "llama.expert_used_count",
        Some(Cause::Assertion),
    );
}

#[test]
fn a_rope_scaling_that_nobody_knows() {
    refused(
        &tiny_llama().str("llama.rope.scaling.type", "bogus"),
        "llama.rope.scaling.type",
        Some(Cause::Assertion),
    );
}

#[test]
fn a_split_number_of_another_type() {
    refused(
        &tiny_llama().u32("split.no", 0).u16("split.count", 2),
        "split.no",
        Some(Cause::Refused),
    );
}

#[test]
fn a_vocabulary_with_a_token_twice() {
    let tokens = (0..TINY_VOCABULARY).map(|n| format!("token{}", n.max(7)));
    let model = tiny_llama_without_vocabulary()
        .str("tokenizer.ggml.model", "llama")
        .array_str("tokenizer.ggml.tokens", tokens);
    let file = write(&model);
    // Nothing before llama.cpp reads whole vocabularies: the guard around it is what answers.
    let error = Model::load(&file.path).unwrap_err();
    assert!(error.to_string().contains("id_to_token"), "{error}");
    let Err(llama_sys::Error::ModelLoad { failure, .. }) = native(&file) else {
        panic!("llama.cpp took it")
    };
    assert_eq!(failure.cause, Cause::Assertion);
}

#[test]
fn a_model_without_a_vocabulary_loads_and_says_that_it_cannot_read_text() {
    let model = tiny_llama_without_vocabulary()
        .str("tokenizer.ggml.model", "no_vocab")
        .u32("llama.vocab_size", TINY_VOCABULARY);
    let file = write(&model);
    let model = Model::load(&file.path).unwrap();
    let error = model.generate("text").stream().unwrap_err();
    assert!(error.to_string().contains("no vocabulary"), "{error}");
}

#[test]
fn a_model_that_continues_nothing_loads_and_refuses_to_generate() {
    // LLaDA fills in a whole text: it has no cache, and llama_decode would assert on what a generation asks for.
    let llada = tiny("llada", 2)
        .str("tokenizer.ggml.model", "no_vocab")
        .u32("llada.vocab_size", TINY_VOCABULARY);
    let file = write(&llada);
    let model = Model::load(&file.path).unwrap();
    let error = model.generate("text").stream().unwrap_err();
    assert_matches!(error, generate::Error::NotGenerative { architecture } if architecture == "llada");

    let params = llama_sys::ContextParams {
        n_outputs_max: 1,
        n_threads: Some(1),
        ..llama_sys::ContextParams::default()
    };
    let mut context = llama_sys::Context::new(&model.native().unwrap(), params).unwrap();
    assert!(!context.has_memory());
    let mut batch = llama_sys::Batch::default();
    batch.add(1, 0, 0, false);
    batch.add(2, 1, 0, true);
    let error = context.decode(&batch).unwrap_err();
    assert_matches!(
        error,
        llama_sys::Error::InvalidParameter {
            name: "n_outputs",
            ..
        }
    );
}

#[test]
fn a_cache_whose_blocks_do_not_divide_the_heads() {
    // Without flash attention llama.cpp finds out in the middle of the graph, with an assertion
    // (llama-kv-cache.cpp, `cpy_k`).
    let model = tiny_with_heads("llama", 1, 48)
        .str("tokenizer.ggml.model", "no_vocab")
        .u32("llama.vocab_size", TINY_VOCABULARY);
    let file = write(&model);
    let native = native(&file).unwrap();
    for flash_attention in [
        llama_sys::FlashAttention::Disabled,
        llama_sys::FlashAttention::Enabled,
    ] {
        let params = llama_sys::ContextParams {
            type_k: llama_sys::KvType::Q8_0,
            flash_attention,
            ..llama_sys::ContextParams::default()
        };
        let error = llama_sys::Context::new(&native, params).unwrap_err();
        assert_matches!(
            error,
            llama_sys::Error::InvalidParameter { name: "type_k", .. }
        );
    }
    let error = Model::builder(&file.path)
        .kv_types(KvType::Q8_0, KvType::F16)
        .load()
        .unwrap_err();
    assert!(error.to_string().contains("type_k"), "{error}");
}

#[test]
fn a_missing_tensor_is_llama_cpps_error_with_its_name() {
    let whole = tiny_llama();
    let file = write(&whole);
    let bytes = std::fs::read(&file.path).unwrap();
    let at = bytes
        .windows(19)
        .position(|window| window == b"blk.1.ffn_up.weight")
        .unwrap();
    let mut renamed = bytes;
    renamed[at..at + 19].copy_from_slice(b"blk.1.ffn_xx.weight");
    std::fs::write(&file.path, renamed).unwrap();
    let error = Model::load(&file.path).unwrap_err();
    assert!(error.to_string().contains("blk.1.ffn_up"), "{error}");
}
