//! The outputs of `autoplace plan` other than its report, and the shell completions.

use crate::cli_plan::file;
use crate::cli_support::{User, demo, succeeds};
use autoplace::machine::{Gpu, Host, Machine, gib};
use autoplace::plan::SavedPlan;
use test_support::shapes::LLAMA_8B;

/// The output when a plan is saved, and the plan that was saved.
fn saved(user: &User, args: &[&str]) -> (String, SavedPlan) {
    let file = user.path("plan.json");
    let printed = user.says(&[args, &["--save", file.to_str().unwrap()]].concat());
    (printed, SavedPlan::read(file).unwrap())
}

#[test]
fn every_tool_is_given_the_plan_instead_of_the_report_and_no_simulated_gpu_is_named() {
    let (_dir, model) = file(&LLAMA_8B.builder());
    let user = User::new();
    // If a tool keeps all logits, the plan for it has room for them.
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
fn the_exit_code_is_the_same_if_nobody_reads_stderr() {
    for (args, code) in [(&["plan", "nothing.gguf"][..], 1), (&["plan", "--nothing"], 2), (&["run", "nothing.gguf"], 1)]
    {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let user = User::new();
        let status = user.command(args).stdin(std::process::Stdio::null()).stderr(writer).status().unwrap();
        assert_eq!(status.code(), Some(code), "{args:?}");
    }
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

#[test]
fn a_plan_is_drawn_as_a_picture_or_as_a_page_and_into_no_other_file() {
    let (_dir, model) = file(&LLAMA_8B.builder());
    let user = User::new();
    let [svg, html] = ["plan.svg", "plan.html"].map(|name| user.path(name).display().to_string());
    for drawn in [&svg, &html] {
        let printed =
            user.says(&["plan", &model, "--gpu", "RTX 3060=6GiB", "--ram", "64GiB", "--no-probe", "--picture", drawn]);
        assert!(printed.contains("RTX 3060"), "{printed}");
    }
    let [svg, html] = [svg, html].map(|drawn| std::fs::read_to_string(drawn).unwrap());
    assert!(svg.starts_with("<svg") && html.contains(svg.trim_end()), "{html}");
    assert!(html.contains("<pre>") && html.contains("prefers-color-scheme"), "{html}");
    let output = user.autoplace(&["plan", &model, "--picture", "plan.png"]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(2) && said.contains("ends in .svg or .html"), "{said}");
}

#[test]
fn a_host_is_described_by_its_processor_and_its_memory() {
    let (_dir, model) = file(&LLAMA_8B.builder());
    let user = User::new();
    let speed = |args: &[&str]| {
        let plan: serde_json::Value = user
            .says(&[&["plan", &model, "--gpu", "RTX 3060=3GiB", "--no-probe", "--json"], args].concat())
            .parse()
            .unwrap();
        plan["speed"]["host_rate"].as_f64().unwrap() / 1e9
    };
    // As bandwidth, 65 % of the peak is assumed, but at most 6.5 GB/s for each core.
    for (args, expected) in [
        (&["--ram", "64GiB", "--cpu", "Ryzen 9 7950X"][..], 0.65 * 83.2),
        (&["--cpu", "EPYC 9654", "--memory", "DDR5-4800 x8"], 0.65 * 307.2),
        (&["--ram", "64GiB", "--memory", "DDR4-3200 x2"], 0.65 * 51.2),
        (&["--cpu", "DGX Spark"], 20.0 * 6.5),
    ] {
        let read = speed(args);
        assert!((read / expected - 1.0).abs() < 0.01, "{args:?}: {read}");
    }
    for (args, part) in [
        (&["--cpu", "Ryzen 9 7950Y"][..], "similar names are Ryzen 9 7950X"),
        (&["--memory", "DDR9"], "not a known memory type"),
        (&["--ram", "64GiB:60GB/s", "--memory", "DDR5"], "leave one of them out"),
    ] {
        let output = user.autoplace(&[&["plan", &model, "--gpu", "RTX 3060=3GiB"], args].concat());
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && said.contains(part), "{said}");
    }
}
