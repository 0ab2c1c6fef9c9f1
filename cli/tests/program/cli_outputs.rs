//! What `autoplace plan` gives beside its report, and what the program tells shells.

use crate::cli_support::{demo, fails, succeeds};
use crate::shapes::{LLAMA_8B, Shape};
use autoplace::machine::Machine;
use autoplace::plan::SavedPlan;

/// A file of this shape without data, named `a model's.gguf`.
fn model(shape: &Shape) -> (tempfile::TempDir, String) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a model's.gguf");
    shape.builder().write_sparse(&path).unwrap();
    let path = path.to_str().unwrap().to_owned();
    (dir, path)
}

const CARD: [&str; 2] = ["--gpu", "RTX 3060=12GiB"];

#[test]
fn every_tool_is_told_the_plan_instead_of_the_report() {
    let (_dir, model) = model(&LLAMA_8B);
    for tool in ["llama.cpp", "ollama", "lm-studio"] {
        let args = [&["plan", &model, "--no-probe", "--emit", tool][..], &CARD].concat();
        let told = succeeds(&args);
        // Of a simulated GPU no name is told that another process would not know.
        assert!(!told.contains("SIM"), "{told}");
        assert!(told.contains("33 of 33 layers on RTX 3060"), "{told}");
    }
    let args = [&["plan", &model, "--no-probe", "--emit", "llama.cpp"][..], &CARD].concat();
    let told = succeeds(&args);
    let words = shlex::split(told.lines().last().unwrap()).unwrap();
    assert_eq!(words[1..3], ["-m".to_owned(), model]);
}

#[test]
fn a_tool_that_keeps_all_logits_is_planned_for_with_room_for_them() {
    let (_dir, model) = model(&LLAMA_8B);
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("plan.json");
    let outputs = |tool| {
        let save = file.to_str().unwrap();
        let args = ["plan", &model, "--no-probe", "--emit", tool, "--save", save];
        succeeds(&[&args[..], &CARD].concat());
        SavedPlan::read(&file).unwrap().plan.context.n_outputs_max
    };
    assert_eq!(outputs("llama.cpp"), 1);
    assert_eq!(outputs("lm-studio"), 0);
}

#[test]
fn a_saved_plan_is_read_by_the_library_and_names_no_simulated_gpu() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("plan.json");
    let save = file.to_str().unwrap();
    succeeds(&["plan", &demo(), "--gpu", "X=1GiB", "--save", save]);
    let saved = SavedPlan::read(&file).unwrap();
    assert!(saved.plan.full_offload);
    assert_eq!(saved.plan.gpus().next().unwrap().device, None);
}

#[test]
fn a_plan_for_a_machine_in_a_file_names_that_machines_gpus() {
    let dir = tempfile::tempdir().unwrap();
    let machine = dir.path().join("machine.json");
    let file = dir.path().join("plan.json");
    std::fs::write(
        &machine,
        r#"{"version": 1, "gpus": [{"name": "X", "description": "X", "kind": "discrete", "backend": "CUDA", "device": "CUDA3",
            "pci_id": null, "total": 1073741824, "free": 1073741824}],
            "host": {"total": 68719476736, "available": 62384450764, "system_available": 62384450764, "limit": {"bound": "system"}}}"#,
    )
    .unwrap();
    let (machine, save) = (machine.to_str().unwrap(), file.to_str().unwrap());
    let args = ["plan", &demo(), "--machine", machine, "--emit", "llama.cpp", "--save", save];
    let told = succeeds(&args);
    assert!(told.contains("--device CUDA3"), "{told}");
    let saved = SavedPlan::read(&file).unwrap();
    assert_eq!(saved.plan.gpus().next().unwrap().device.as_deref(), Some("CUDA3"));
    assert_eq!(saved.changes(&Machine::from_json(&std::fs::read_to_string(machine).unwrap()).unwrap()), []);
}

#[test]
fn nonsense_is_refused_in_a_line() {
    let demo = demo();
    fails(&["plan", &demo, "--emit", "vllm"], 2, &["--emit", "'vllm'", "lm-studio"]);
    fails(&["plan", &demo, "--emit", "ollama", "--json"], 2, &["--json"]);
    fails(&["plan", &demo, "--save", "/no/such/folder/x.json"], 1, &["/no/such/folder/x.json: "]);
    let embeddings = ["plan", &demo, "--embeddings", "--emit", "ollama"];
    fails(&embeddings, 1, &["ollama cannot be told a context for embeddings"]);
    fails(&["completions", "tcsh"], 2, &["tcsh"]);
}

#[test]
fn shells_complete_the_arguments() {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let script = succeeds(&["completions", shell]);
        for word in ["autoplace", "plan", "devices", "headroom", "lm-studio"] {
            assert!(script.contains(word), "{shell}: no {word}");
        }
    }
}
