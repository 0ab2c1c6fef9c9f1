//! `autoplace plan --mtp`: the block that predicts further tokens is part of the plan, and a model without
//! one is one line.

use crate::cli_support::{demo, fails, succeeds};
use crate::speculative_support::heads;
use serde_json::Value;

const CARD: &str = "RTX 4090=24GiB,free=22GiB";

#[test]
fn what_the_block_takes_is_planned_and_a_note_says_how_far_it_guesses() {
    let folder = tempfile::tempdir().unwrap();
    let model = heads::random(folder.path()).display().to_string();
    let plan = |args: &[&str]| -> Value {
        let all = [&["plan", &model, "--gpu", CARD, "--json"], args].concat();
        serde_json::from_str(&succeeds(&all)).unwrap()
    };
    let bytes = |plan: &Value, part: &str| plan["devices"][0][part].as_u64().unwrap();
    let (without, with) = (plan(&[]), plan(&["--mtp"]));
    for part in ["weights", "kv", "compute"] {
        assert!(bytes(&with, part) > bytes(&without, part), "{part}");
    }
    assert!(with.to_string().contains("up to 3 at once"), "{with}");
    let words = succeeds(&["plan", &model, "--gpu", CARD, "--mtp"]);
    assert!(words.contains("predicts further tokens"), "{words}");
    let six = plan(&["--mtp=6"]);
    assert!(six.to_string().contains("up to 6 at once"), "{six}");
    let emitted = ["plan", &model, "--gpu", CARD, "--mtp=6", "--emit", "llama.cpp"];
    let command = succeeds(&emitted);
    assert!(command.contains("--spec-type draft-mtp --spec-draft-n-max 6"), "{command}");
}

#[test]
fn a_model_without_such_a_block_is_one_line() {
    let words = ["no blocks that predict further tokens", "nextn_predict_layers"];
    fails(&["plan", &demo(), "--mtp"], 1, &words);
}
