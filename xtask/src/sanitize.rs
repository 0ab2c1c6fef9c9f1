//! `sanitize`: the native code, the layer over it and the probe under AddressSanitizer, leaks included.
//!
//! Both sides are instrumented: llama.cpp and the shim by the C++ compiler's flags, Rust by rustc's, which stable
//! compilers take with `RUSTC_BOOTSTRAP`. That needs a build of llama.cpp of its own (in `target/sanitize`, minutes on
//! first use), so it is no step of `test`. Not instrumented: Rust's standard library and the C library.
//!
//! Nothing is suppressed: what llama.cpp itself does is clean in everything that these tests run. Should that change,
//! the place for a suppression and its reason is here.

use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::setup;
use crate::workspace::{Workspace, output, run};

/// Packages, what is built of their tests, and which of those are run: all, where none is named.
const RUNS: &[(&str, &[&str], &[&str])] = &[
    // Simulated GPUs, refusals, threads, and a short generation of the demo model.
    ("--package=autoplace-llama-sys", &["--no-default-features", "--tests"], &[]),
    // The probe beside real loads, and hundreds of it, good and bad; loads and generation on simulated GPUs.
    (
        "--package=autoplace",
        &["--no-default-features", "--features=constraints", "--test=load", "--test=generate"],
        &["real_loads::", "probe_leaves_nothing::", "simulated_gpu::", "generate::"],
    ),
];

/// Tests that cannot hold here: this one bounds the memory that the process grows by, and the sanitizer
/// keeps what is freed.
const SKIPPED: &[&str] = &["coming_and_going_a_thousand_times_costs_nothing"];

/// Frames stay so that reports have whole stacks.
const NATIVE_FLAGS: &str = "-fsanitize=address -fno-omit-frame-pointer -g1";
const RUST_FLAGS: &str = "-Zsanitizer=address -Cforce-frame-pointers=yes";

/// Asking for more than there is, is what some tests do: that is answered as usual and not with a report.
const OPTIONS: &str =
    "detect_leaks=1:detect_stack_use_after_return=1:allocator_may_return_null=1:strict_string_checks=1";

/// Builds and runs the tests; the first report ends it.
pub(crate) fn sanitize(workspace: &Workspace) -> Result<()> {
    if !cfg!(target_os = "linux") {
        bail!("the sanitizer is set up for Linux only");
    }
    setup::native()?;
    let host = host()?;
    let folder = workspace.target.join("sanitize");
    for (package, selection, tests) in RUNS {
        // A target makes cargo leave build scripts and procedural macros without the flags.
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
            // Tests that count memory leave that to the sanitizer.
            .env("AUTOPLACE_SANITIZED", "1");
        run(&mut command)?;
    }
    println!("\nThe sanitizer found nothing.");
    Ok(())
}

/// The triple of this machine.
pub(crate) fn host() -> Result<String> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let version = output(Command::new(rustc).arg("-vV"))?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: ")).context("`rustc -vV` names no host")?;
    Ok(host.to_owned())
}
