//! `sanitize`: runs the native code, the Rust layer over it and the probe under AddressSanitizer, with leak detection.
//!
//! Both sides are instrumented: llama.cpp and the shim by flags of the C++ compiler, and Rust by flags of rustc, which
//! stable compilers accept with `RUSTC_BOOTSTRAP`. This needs a separate build of llama.cpp in `target/sanitize`, which
//! takes minutes on first use. So `sanitize` is not a step of `test`. Rust's standard library and the C library are not
//! instrumented.
//!
//! No report is suppressed, because llama.cpp is clean in all these tests. A future suppression belongs here with its
//! reason.

use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::selected::run_tests;
use crate::setup;
use crate::workspace::{Workspace, output};

/// Packages, the selection of test targets, and the tests to run (all if empty).
const RUNS: &[(&str, &[&str], &[&str])] = &[
    // Simulated GPUs, refusals, threads, and a short generation of the demo model.
    ("--package=autoplace-llama-sys", &["--no-default-features", "--tests"], &[]),
    // Probes and real loads, hundreds of valid and invalid probes, and loads and generation on simulated GPUs.
    (
        "--package=autoplace",
        &["--no-default-features", "--features=constraints", "--test=load", "--test=generate"],
        &["real_loads::", "probe_leaves_nothing::", "simulated_gpu::", "generate::"],
    ),
];

/// A test that cannot pass here: it limits the growth of memory, and the sanitizer retains freed memory.
const SKIPPED: &[&str] = &["ten_thousand_registrations_take_no_memory"];

/// With frame pointers, reports contain whole stacks.
const NATIVE_FLAGS: &str = "-fsanitize=address -fno-omit-frame-pointer -g1";
const RUST_FLAGS: &str = "-Zsanitizer=address -Cforce-frame-pointers=yes";

/// Some tests request more memory than the machine has. The allocator must then return null instead of reporting an
/// error.
const OPTIONS: &str =
    "detect_leaks=1:detect_stack_use_after_return=1:allocator_may_return_null=1:strict_string_checks=1";

/// Builds and runs the tests. The first report ends the run.
pub(crate) fn sanitize(workspace: &Workspace) -> Result<()> {
    if !cfg!(target_os = "linux") {
        bail!("the sanitizer is set up for Linux only");
    }
    setup::native()?;
    let host = host()?;
    let folder = workspace.target.join("sanitize");
    for (package, selection, tests) in RUNS {
        // If a target is given, cargo builds build scripts and procedural macros without the flags.
        let target = format!("--target={host}");
        let mut arguments = vec!["test", package, &target, "--no-fail-fast"];
        arguments.extend(*selection);
        arguments.extend(["--", "--test-threads=1"]);
        arguments.extend(*tests);
        arguments.extend(SKIPPED.iter().flat_map(|test| ["--skip", test]));
        let mut command = workspace.cargo(&arguments);
        command
            .env("CARGO_TARGET_DIR", &folder)
            .env("AUTOPLACE_LLAMA_BUILD_DIR", folder.join("llama"))
            .env("RUSTC_BOOTSTRAP", "1")
            .env("RUSTFLAGS", RUST_FLAGS)
            .env("CFLAGS", NATIVE_FLAGS)
            .env("CXXFLAGS", NATIVE_FLAGS)
            .env("ASAN_OPTIONS", OPTIONS)
            // Tests that count memory skip the count under the sanitizer.
            .env("AUTOPLACE_SANITIZED", "1");
        run_tests(&mut command)?;
    }
    println!("\nThe sanitizer found nothing.");
    Ok(())
}

/// The target triple of this machine.
pub(crate) fn host() -> Result<String> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let version = output(Command::new(rustc).arg("-vV"))?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: ")).context("`rustc -vV` names no host")?;
    Ok(host.to_owned())
}
