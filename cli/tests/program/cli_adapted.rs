//! `autoplace plan --lora`, `--control-vector` and `--mtp`: the plan includes computations that are not those of the
//! model's own blocks.

use crate::cli_support::{User, demo, fails, succeeds, text};
use autoplace::gguf::{Builder, Header, TensorType};
use serde_json::Value;
use test_support::lora::{Adapter, write_random};
use test_support::prediction_heads;
use test_support::synthetic::mmproj;

/// A plan for a card that has room for everything.
fn plan(model: &str, args: &[&str]) -> String {
    succeeds(&[&["plan", model, "--gpu", "RTX 4090=24GiB,free=22GiB"], args].concat())
}

/// The plan as JSON, and its bytes on the card: those of the weights, of the cache, and of the computation.
fn bytes(model: &str, args: &[&str]) -> (String, [u64; 3]) {
    let json = plan(model, &[args, &["--json"]].concat());
    let plan: Value = json.parse().unwrap();
    (json, ["weights", "kv", "compute"].map(|part| plan["devices"][0][part].as_u64().unwrap()))
}

#[test]
fn an_adapters_bytes_are_the_weights_and_a_note_says_whose() {
    let folder = tempfile::tempdir().unwrap();
    let header = Header::open(demo()).unwrap();
    let adapter = Adapter::new("llama").of_weights(&header, 8, TensorType::F32, |name| name.contains("attn_q"));
    let file = adapter.write(folder.path(), "style").display().to_string();
    for probing in [&[][..], &["--no-probe"]] {
        let (plain, without) = bytes(&demo(), probing);
        assert!(!plain.contains("beside the weights that they change"));
        let (json, with) = bytes(&demo(), &[&["--lora", &file], probing].concat());
        // There are two factors of 8 x 256 floats in each of six blocks.
        assert_eq!(with[0] - without[0], 6 * 2 * 8 * 256 * 4);
        assert!(json.contains("adapters: style, with "), "{json}");
    }
    // Files that are loaded together with the model are passed on to another tool, or refused.
    let projector = folder.path().join("projector.gguf");
    mmproj::gemma3(256).write_sparse(&projector).unwrap();
    let projector = projector.to_str().unwrap();
    let (images, draft) = (format!("mmproj={projector}"), format!("draft={}", demo()));
    let beside = ["--lora", &file, "--with", &images, "--with", &draft, "--emit"];
    let command = plan(&demo(), &[&beside[..], &["llama.cpp"]].concat());
    assert!(command.ends_with(&format!(" --lora {file} --mmproj {projector} -md {}\n", demo())), "{command}");
    fails(&[&["plan", &demo()], &beside[..], &["lm-studio"]].concat(), 1, &["beside the model"]);
    let stated = ["--with", &draft, "-ngld", "2", "-ctkd", "q8_0", "--emit"];
    let command = plan(&demo(), &[&stated[..], &["llama.cpp"]].concat());
    assert!(command.ends_with(&format!(" -md {} -ctkd q8_0 -ngld 2\n", demo())), "{command}");
    fails(&[&["plan", &demo()], &stated[..], &["koboldcpp"]].concat(), 1, &["no settings for a draft model"]);
    fails(&["plan", &demo(), "--with", &images, "--draft-device", "none"], 1, &["--with draft=FILE"]);
    fails(&["plan", &demo(), "--with", &draft, "-devd", "CUDA7"], 1, &["`CUDA7`, which this machine lacks"]);
    fails(&["run", &demo(), "hi", "--draft-ngl", "2"], 1, &["--draft-model FILE"]);
}

#[test]
fn a_control_vector_takes_bytes_changes_the_text_and_is_emitted_for_llama_cpp() {
    let folder = tempfile::tempdir().unwrap();
    let vector = Builder::new("controlvector").tensor("direction.2", TensorType::F32, &[256]);
    let file = write_random(&vector, folder.path(), "calm", 1, 4.0).display().to_string();
    for probing in [&[][..], &["--no-probe"]] {
        let (_, without) = bytes(&demo(), probing);
        let (json, with) = bytes(&demo(), &[&["--control-vector", &file], probing].concat());
        // llama.cpp allocates a direction for each of the six blocks but the first, even if the file contains fewer.
        assert_eq!(with[0] - without[0], 5 * 256 * 4);
        assert!(json.contains("with a control vector"), "{json}");
    }
    let scaled = format!("{file}:-0.5");
    let emit = ["--control-vector-scaled", &scaled, "--control-vector-layer-range", "1", "3", "--emit", "llama.cpp"];
    let command = plan(&demo(), &emit);
    let said = format!(" --control-vector-scaled {scaled} --control-vector-layer-range 1 3\n");
    assert!(command.ends_with(&said), "{command}");
    fails(&["plan", &demo(), "--control-vector", &demo()], 1, &["direction.N"]);
    fails(&["plan", &demo(), "--control-vector-layer-range=5"], 2, &["not a range of layers"]);

    let user = User::new();
    let run = |more: &[&str]| {
        let line = ["run", &demo(), "And the king said", "--raw", "--temp", "0", "-n", "12", "--threads", "1"];
        let output = user.autoplace(&[&line[..], more].concat());
        assert!(output.status.success(), "{output:?}");
        text(&output.stdout)
    };
    let plain = run(&[]);
    assert_eq!(run(&["--control-vector-scaled", &format!("{file}:0")]), plain);
    assert_ne!(run(&["--control-vector", &file]), plain);
    assert_eq!(run(&["--control-vector", &file, "--control-vector-layer-range=3-5"]), plain);
}

#[test]
fn a_predicting_block_is_planned_and_a_note_says_how_many_tokens_it_drafts() {
    let folder = tempfile::tempdir().unwrap();
    let model = prediction_heads::random(folder.path()).display().to_string();
    let (_, without) = bytes(&model, &[]);
    let (json, with) = bytes(&model, &["--mtp"]);
    assert!(with.iter().zip(without).all(|(with, without)| *with > without), "{with:?} {without:?}");
    assert!(json.contains("up to 3 at once"), "{json}");
    for (args, words) in [
        (&["--mtp"][..], "predicts further tokens"),
        (&["--mtp=6", "--json"], "up to 6 at once"),
        (&["--mtp=6", "--emit", "llama.cpp"], "--spec-type draft-mtp --spec-draft-n-max 6"),
    ] {
        let said = plan(&model, args);
        assert!(said.contains(words), "{said}");
    }
}
