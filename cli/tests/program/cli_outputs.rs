//! What `autoplace plan` gives beside its report, and the completions that it gives shells.

use crate::cli_plan::file;
use crate::cli_support::{User, demo, succeeds};
use crate::shapes::LLAMA_8B;
use autoplace::machine::{Gpu, Host, Machine, gib};
use autoplace::plan::SavedPlan;

/// What is printed of a plan that is saved too, and the saved plan.
fn saved(user: &User, args: &[&str]) -> (String, SavedPlan) {
    let file = user.path("plan.json");
    let printed = user.says(&[args, &["--save", file.to_str().unwrap()]].concat());
    (printed, SavedPlan::read(file).unwrap())
}

#[test]
fn every_tool_is_given_the_plan_instead_of_the_report_and_no_simulated_gpu_is_named() {
    let (_dir, model) = file(&LLAMA_8B.builder());
    let user = User::new();
    // One that keeps all logits is planned for with room for them.
    for (tool, n_outputs_max) in [("ollama", 1), ("lm-studio", 0), ("llama.cpp", 1)] {
        let (printed, saved) = saved(&user, &["plan", &model, "--emit", tool, "--gpu", "RTX 3060=12GiB"]);
        assert!(!printed.contains("SIM"), "{printed}");
        assert!(printed.contains("33 of 33 layers on RTX 3060"), "{printed}");
        assert_eq!((saved.plan.full_offload, saved.plan.context.n_outputs_max), (true, n_outputs_max), "{tool}");
        assert_eq!(saved.plan.gpus().next().unwrap().device, None);
        if tool == "llama.cpp" {
            let words = shlex::split(printed.lines().last().unwrap()).unwrap();
            assert_eq!(words[1..3], ["-m", &model]);
        }
    }
}

#[test]
fn a_plan_for_a_machine_in_a_file_names_that_machines_gpus() {
    let user = User::new();
    let machine =
        Machine::new(Host::new(gib(64))).with_gpu(Gpu::new("X").total(gib(1)).backend("CUDA").device("CUDA3"));
    let file = user.path("machine.json");
    machine.write(&file).unwrap();
    let args = ["plan", &demo(), "--machine", file.to_str().unwrap(), "--emit", "llama.cpp"];
    let (printed, saved) = saved(&user, &args);
    assert!(printed.contains("--device CUDA3"), "{printed}");
    assert_eq!(saved.plan.gpus().next().unwrap().device.as_deref(), Some("CUDA3"));
    assert_eq!(saved.changes(&machine), []);
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
