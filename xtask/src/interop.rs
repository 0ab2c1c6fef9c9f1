//! `interop`: checks, tests and runs `examples/with-llama-cpp-2`, in which autoplace works in one program with
//! llama-cpp-2, which brings its own llama.cpp. The verb is not a part of `test`: the example is outside the workspace,
//! because only one package of a build may link llama.cpp. The example also compiles a second llama.cpp, which takes
//! minutes on first use.

use anyhow::{Context, Result, ensure};

use crate::setup;
use crate::workspace::{Workspace, output, run};

const MANIFEST: &str = "--manifest-path=examples/with-llama-cpp-2/Cargo.toml";
const MODEL: &str = "examples/model/autoplace-demo-q8_0.gguf";
const PROMPT: &str = "And the king said unto his servants,";

/// Minimum number of words in the text. The example generates 120 tokens.
const WORDS: usize = 30;

pub(crate) fn interop(workspace: &Workspace) -> Result<()> {
    setup::native()?;
    // llama-cpp-sys-2 generates its bindings during the build.
    setup::libclang()?;
    setup::rust_components(workspace)?;
    run(&mut workspace.cargo(&["fmt", MANIFEST, "--check"]))?;
    // All commands use the same profile, because each further profile would compile llama.cpp again.
    let cargo = |verb: &str, arguments: &[&str]| {
        let mut command = workspace.cargo(&[verb, "--release", "--locked", MANIFEST]);
        command
            .args(arguments)
            .env("CARGO_TARGET_DIR", workspace.target.join("interop"))
            // Flags such as `-Ctarget-cpu=native` make llama-cpp-sys-2 build ggml for this CPU, including AMX. Some
            // GCCs miscompile AMX (llama-sys/build/amx.rs). Without such flags it builds ggml for a portable baseline.
            .env("CARGO_ENCODED_RUSTFLAGS", "");
        command
    };
    run(&mut cargo("clippy", &["--all-targets", "--", "-Dwarnings"]))?;
    run(&mut cargo("test", &[]))?;
    let printed = output(&mut cargo("run", &["--", MODEL, PROMPT, "-n", "120"]))?;
    print!("{printed}");
    let (_, text) = printed.split_once(PROMPT).context("the program printed no text")?;
    let words = text.split_whitespace().count();
    ensure!(words >= WORDS && text.contains("tok/s"), "the program generated {words} words");
    Ok(())
}
