//! `autoplace plan --lora`: adapters are part of the plan, and wrong ones are one line.

use crate::cli_support::{demo, fails, succeeds};
use crate::lora_support::Adapter;
use autoplace::gguf::{Header, TensorType};
use serde_json::Value;

const CARD: &str = "RTX 4090=24GiB,free=22GiB";

fn adapter(folder: &std::path::Path) -> String {
    let header = Header::open(demo()).unwrap();
    let adapter = Adapter::of("llama");
    let adapter = adapter.of_weights(&header, 8, TensorType::F32, |name| name.contains("attn_q"));
    adapter.write(folder, "style").display().to_string()
}

/// Bytes of weights on the card, and the plan's notes.
fn plan(args: &[&str]) -> (u64, String) {
    let demo = demo();
    let all = [&["plan", &demo, "--gpu", CARD, "--json"], args].concat();
    let plan: Value = serde_json::from_str(&succeeds(&all)).unwrap();
    let text = plan.to_string();
    let weights = plan["devices"][0]["weights"].as_u64();
    (weights.expect("bytes of weights"), text)
}

#[test]
fn an_adapters_bytes_are_the_weights_and_a_note_says_whose() {
    let folder = tempfile::tempdir().unwrap();
    let file = adapter(folder.path());
    for probing in [&[][..], &["--no-probe"]] {
        let (plain, said) = plan(probing);
        assert!(!said.contains("of adapters in all"));
        let (with, said) = plan(&[&["--lora", &file], probing].concat());
        // Two factors of 8 x 256 floats in each of six blocks.
        assert_eq!(with - plain, 6 * 2 * 8 * 256 * 4);
        assert!(said.contains("with style beside the weights"), "{said}");
    }
}

#[test]
fn a_file_that_is_no_adapter_is_one_line() {
    let demo = demo();
    let words = ["is no LoRA adapter", "general.type"];
    fails(&["plan", &demo, "--lora", &demo], 1, &words);
    fails(&["plan", &demo, "--control-vector", &demo], 1, &["is no direction of a layer"]);
    fails(&["plan", &demo, "--lora", "/nonexistent/a.gguf"], 1, &["/nonexistent/a.gguf"]);
}
