//! `autoplace plan --lora` and `--mtp`: what is computed with beside a model's own blocks is part of the plan.

use crate::cli_support::{demo, succeeds};
use crate::lora_support::Adapter;
use crate::speculative_support::heads;
use autoplace::gguf::{Header, TensorType};
use serde_json::Value;

/// On a card that holds all of it.
fn plan(model: &str, args: &[&str]) -> String {
    succeeds(&[&["plan", model, "--gpu", "RTX 4090=24GiB,free=22GiB"], args].concat())
}

/// A part of what the plan takes of the card.
fn bytes(json: &str, part: &str) -> u64 {
    let plan: Value = serde_json::from_str(json).unwrap();
    plan["devices"][0][part].as_u64().unwrap()
}

#[test]
fn an_adapters_bytes_are_the_weights_and_a_note_says_whose() {
    let folder = tempfile::tempdir().unwrap();
    let header = Header::open(demo()).unwrap();
    let adapter = Adapter::of("llama").of_weights(&header, 8, TensorType::F32, |name| name.contains("attn_q"));
    let file = adapter.write(folder.path(), "style").display().to_string();
    for probing in [&["--json"][..], &["--json", "--no-probe"]] {
        let plain = plan(&demo(), probing);
        assert!(!plain.contains("of adapters in all"));
        let with = plan(&demo(), &[&["--lora", &file], probing].concat());
        // Two factors of 8 x 256 floats in each of six blocks.
        assert_eq!(bytes(&with, "weights") - bytes(&plain, "weights"), 6 * 2 * 8 * 256 * 4);
        assert!(with.contains("with style beside the weights"), "{with}");
    }
}

#[test]
fn what_a_block_that_predicts_takes_is_planned_and_a_note_says_how_many_tokens_it_drafts() {
    let folder = tempfile::tempdir().unwrap();
    let model = heads::random(folder.path()).display().to_string();
    let (without, with) = (plan(&model, &["--json"]), plan(&model, &["--json", "--mtp"]));
    for part in ["weights", "kv", "compute"] {
        assert!(bytes(&with, part) > bytes(&without, part), "{part}");
    }
    assert!(with.contains("up to 3 at once"), "{with}");
    for (args, words) in [
        (&["--mtp"][..], "predicts further tokens"),
        (&["--mtp=6", "--json"], "up to 6 at once"),
        (&["--mtp=6", "--emit", "llama.cpp"], "--spec-type draft-mtp --spec-draft-n-max 6"),
    ] {
        let said = plan(&model, args);
        assert!(said.contains(words), "{said}");
    }
}
