//! With these files, llama.cpp would end the process (GGML_ASSERT, GGML_ABORT). Here, they lead to typed errors. The
//! library's error contains the key. With the native layer alone, the process survives the same file too.

use std::io::Write;
use std::path::{Path, PathBuf};

use crate::native_support::native;
use autoplace::gguf::{self, Builder};
use autoplace::llama_sys::{self, FailureCause};
use autoplace::{Model, load};
use test_support::tiny::{TINY_VOCABULARY, tiny, tiny_llama, tiny_llama_without_vocabulary};

/// A file of this model. It is in a folder, which exists as long as the returned value lives.
fn write(model: &Builder) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.gguf");
    model.write_sparse(&path).unwrap();
    (dir, path)
}

fn load(model: &Builder) -> Result<Model, load::Error> {
    let (_dir, path) = write(model);
    Model::load(path)
}

/// The reason for which llama.cpp itself refuses the model.
#[track_caller]
fn cause(model: &Builder) -> FailureCause {
    let (_dir, path) = write(model);
    match native(&path) {
        Err(llama_sys::Error::ModelLoad { failure, .. }) => failure.cause,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_file_that_is_written_to_or_replaced_while_it_is_loaded_is_refused() {
    let grow = |path: &Path| {
        let mut file = std::fs::File::options().append(true).open(path).unwrap();
        file.write_all(b"more").unwrap();
    };
    let replace = |path: &Path| {
        let other = path.with_extension("other");
        tiny_llama().write_sparse(&other).unwrap();
        std::fs::rename(other, path).unwrap();
    };
    let changes: [fn(&Path); 2] = [grow, replace];
    for change in changes {
        let (_dir, path) = write(&tiny_llama());
        let (file, mut has_changed) = (path.clone(), false);
        // When this runs, llama.cpp has already opened the file.
        let load = Model::builder(&path).progress(move |progress| {
            if progress.stage == load::Stage::Weights && !std::mem::replace(&mut has_changed, true) {
                change(&file);
            }
            true
        });
        assert_matches!(load.load(), Err(load::Error::Gguf(gguf::Error::Changed { .. })));
    }
}

#[test]
fn a_file_on_which_llama_cpp_would_assert_is_refused_by_its_key() {
    let tiny = tiny_llama;
    load(&tiny()).unwrap().generate("word1").max_tokens(3).temp(0.0).text().expect("it works by itself");
    let blocks = |n| tiny().u32("llama.block_count", n);
    let experts = |n, used| tiny().u32("llama.expert_count", n).u32("llama.expert_used_count", used);
    let assertion = Some(FailureCause::Assertion);
    for (model, key, expected) in [
        (blocks(0), "llama.block_count", assertion),
        (blocks(513), "llama.block_count", assertion),
        (blocks(u32::MAX), "llama.block_count", assertion),
        // Only some architectures read this key in llama.cpp; the others ignore it.
        (tiny().u32("llama.nextn_predict_layers", 3), "nextn_predict_layers", None),
        (tiny().u32("llama.expert_used_count", 2), "llama.expert_used_count", assertion),
        (experts(4, 8), "llama.expert_used_count", assertion),
        (tiny().u32("llama.expert_count", 4), "llama.expert_used_count", assertion),
        (tiny().str("llama.rope.scaling.type", "bogus"), "llama.rope.scaling.type", assertion),
        // The number of this part of the split has the wrong type.
        (tiny().u32("split.no", 0).u16("split.count", 2), "split.no", Some(FailureCause::Refused)),
    ] {
        let error = load(&model).unwrap_err();
        assert_matches!(error, load::Error::Profile(_) | load::Error::Gguf(_));
        let message = error.to_string();
        assert!(message.contains(key), "{key}: {message}");
        assert!(message.contains("model.gguf"), "{message}");
        if let Some(expected) = expected.filter(|_| !cfg!(target_env = "msvc")) {
            assert_eq!(cause(&model), expected, "{key}");
        }
    }
}

#[test]
fn a_vocabulary_with_a_token_twice() {
    let tokens = (0..TINY_VOCABULARY).map(|n| format!("token{}", n.max(7)));
    let model =
        tiny_llama_without_vocabulary().str("tokenizer.ggml.model", "llama").array_str("tokenizer.ggml.tokens", tokens);
    // The whole vocabulary is read only by llama.cpp. So the error comes from the guard around it.
    let error = load(&model).unwrap_err();
    assert!(error.to_string().contains("id_to_token"), "{error}");
    assert_eq!(cause(&model), FailureCause::Assertion);
}

#[test]
fn a_model_without_a_vocabulary_loads_and_says_that_it_cannot_read_text() {
    let model = tiny_llama_without_vocabulary()
        .str("tokenizer.ggml.model", "no_vocab")
        .u32("llama.vocab_size", TINY_VOCABULARY);
    let error = load(&model).unwrap().generate("text").stream().unwrap_err();
    assert!(error.to_string().contains("no vocabulary"), "{error}");
}

#[test]
fn a_cache_whose_blocks_do_not_divide_the_heads() {
    // If attention is not fused, llama.cpp finds this out only while it builds the graph, and an assertion fails
    // (llama-kv-cache.cpp, `cpy_k`).
    let model = tiny("llama", 1, 48).str("tokenizer.ggml.model", "no_vocab").u32("llama.vocab_size", TINY_VOCABULARY);
    let (_dir, path) = write(&model);
    let native = native(&path).unwrap();
    for flash_attention in [llama_sys::FlashAttention::Disabled, llama_sys::FlashAttention::Enabled] {
        let params = llama_sys::ContextParams {
            type_k: llama_sys::KvType::Q8_0,
            flash_attention,
            ..llama_sys::ContextParams::default()
        };
        let error = llama_sys::Context::new(&native, params).unwrap_err();
        assert_matches!(error, llama_sys::Error::InvalidParameter { name: "type_k", .. });
    }
}

#[test]
fn a_missing_tensor_is_llama_cpps_error_with_its_name() {
    let (_dir, path) = write(&tiny_llama());
    let mut bytes = std::fs::read(&path).unwrap();
    let name = b"blk.1.ffn_up.weight";
    let mut windows = bytes.windows(name.len());
    let at = windows.position(|window| window == name).unwrap();
    bytes[at..at + name.len()].copy_from_slice(b"blk.1.ffn_xx.weight");
    std::fs::write(&path, bytes).unwrap();
    let error = Model::load(&path).unwrap_err();
    assert!(error.to_string().contains("blk.1.ffn_up"), "{error}");
}

#[test]
fn a_file_whose_data_is_aligned_to_less_than_ggml_maps_is_read_and_the_plan_says_so() {
    for alignment in [1_u32, 8, 16] {
        let model = load(&tiny_llama().u32("general.alignment", alignment)).unwrap();
        let plan = model.placement();
        assert!(!plan.context.mmap, "{alignment}");
        let said = format!("its data is aligned to {alignment} bytes, and ggml needs 32");
        assert!(plan.notes.iter().any(|note| note.contains(&said)), "{plan}");
        model.generate("word1").max_tokens(3).temp(0.0).text().unwrap();
    }
    for alignment in [32_u32, 64] {
        let plan = load(&tiny_llama().u32("general.alignment", alignment)).unwrap().placement().clone();
        assert!(plan.context.mmap && !plan.to_string().contains("aligned"), "{alignment}: {plan}");
    }
}
