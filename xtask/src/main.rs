//! `cargo xtask <verb>`: what a visitor, a contributor, the CI and a release do with this repository.
//! One file per verb.
//!
//! A verb first brings what it needs (`setup`), then runs cargo. It knows nothing that cargo and the build scripts
//! could be asked, so what it does by hand can be done without it.

mod attack;
mod bindings;
mod conformance;
mod cuda_check;
mod demo;
mod deny;
mod features;
mod fit_table;
mod fuzz;
mod gpu_bundle;
mod interop;
mod llama_server;
mod package;
mod promises;
mod python;
mod sanitize;
mod semver;
mod setup;
mod size;
mod soak;
mod source;
mod templates;
mod test;
mod tree;
mod vulkan;
mod workspace;

use std::process::ExitCode;

use anyhow::{Result, bail};
use workspace::Workspace;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("\nerror: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &[String]) -> Result<()> {
    let Some((verb, rest)) = arguments.split_first() else {
        print!("{}", help());
        return Ok(());
    };
    let mut workspace = Workspace::find()?;
    match verb.as_str() {
        "demo" => demo::demo(&workspace, rest),
        "test" => test::test(&mut workspace, rest),
        "attack" => attack::attack(&workspace, rest),
        "conformance" => match rest {
            [] => conformance::conformance(&workspace),
            [flag] if flag == "--write" => conformance::write(&workspace),
            _ => bail!("usage: cargo xtask conformance [--write]"),
        },
        "bindings" => match rest {
            [] => bindings::check(&workspace),
            [flag] if flag == "--write" => bindings::write(&workspace),
            _ => bail!("usage: cargo xtask bindings [--write]"),
        },
        "cuda-check" => match rest {
            [] => cuda_check::cuda_check(&workspace, false),
            [flag] if flag == "--all" => cuda_check::cuda_check(&workspace, true),
            _ => bail!("usage: cargo xtask cuda-check [--all]"),
        },
        "deny" if rest.is_empty() => deny::deny(&workspace),
        "deny" => bail!("usage: cargo xtask deny"),
        "features" if rest.is_empty() => features::features(&workspace),
        "features" => bail!("usage: cargo xtask features"),
        "fit-table" => fit_table::fit_table(&workspace, rest),
        "fuzz" => fuzz::fuzz(&workspace, rest),
        "gpu-bundle" => gpu_bundle::gpu_bundle(&workspace, rest),
        "interop" if rest.is_empty() => interop::interop(&workspace),
        "interop" => bail!("usage: cargo xtask interop"),
        "llama-server" if rest.is_empty() => llama_server::llama_server(&workspace),
        "llama-server" => bail!("usage: cargo xtask llama-server"),
        "package" if rest.is_empty() => package::package(&workspace),
        "package" => bail!("usage: cargo xtask package"),
        "sanitize" if rest.is_empty() => sanitize::sanitize(&workspace),
        "sanitize" => bail!("usage: cargo xtask sanitize"),
        "semver" if rest.is_empty() => semver::semver(&workspace),
        "semver" => bail!("usage: cargo xtask semver"),
        "soak" => soak::soak(&workspace, rest),
        "templates" => templates::templates(&workspace, rest),
        "vulkan" => vulkan::vulkan(&mut workspace, rest),
        "help" | "--help" | "-h" => {
            print!("{}", help());
            Ok(())
        }
        other => bail!("there is no verb `{other}`\n\n{}", help()),
    }
}

fn help() -> String {
    let mut text = String::from(
        "cargo xtask demo [-- ARGUMENTS]     sets the machine up, then runs examples/generate.rs (with these arguments)
cargo xtask test [STEP...]          sets the machine up, then runs every check (or these steps only)
cargo xtask conformance [--write]   compares the estimate with llama.cpp over a large grid, minutes (and writes docs/conformance.md)
cargo xtask attack [PROGRAM]        what hostile clients can take of the example `serve` (or a program like it), as a table (Linux)
cargo xtask bindings [--write]      regenerates the raw bindings and compares (or replaces) the committed ones
cargo xtask cuda-check [--all]      compiles CUDA kernels of the pinned llama.cpp (or all) without a card (Linux x86-64; downloads a toolkit)
cargo xtask deny                    licences, duplicates and sources of the dependencies, and advisories against them
cargo xtask features                checks the published crates with the oldest compiler, and each feature alone
cargo xtask fit-table [WORD...]     plans beside llama.cpp's own fit: 28 models (or those of these words) on 7 simulated machines
cargo xtask fuzz [TARGET...]        random bytes for whatever reads bytes from anybody, 60 s a target or as many as `--seconds` says
cargo xtask gpu-bundle [--no-run]   makes the archive that checks the library on a machine with an NVIDIA card (Linux; compiles llama.cpp once more)
cargo xtask interop                 checks, tests and runs the planner beside llama-cpp-2 (compiles a second llama.cpp)
cargo xtask llama-server            has `doctor --watch` look at the llama-server of the pinned source (compiles it)
cargo xtask package                 packages both published crates and builds what was packaged
cargo xtask sanitize                runs the native layer and the probe under AddressSanitizer (Linux; compiles llama.cpp once more)
cargo xtask semver                  compares the libraries' interfaces with those of the last release's tag, if there is one
cargo xtask soak [TOKENS]           a million tokens, and whether memory, open files or threads grow (Linux)
cargo xtask templates DIR           renders the chat templates of a folder here and in Hugging Face's transformers, and compares
cargo xtask templates --fixtures    writes what transformers makes of the tests' own templates
cargo xtask vulkan [CHECK...]       the checks of a card on Mesa's software driver (Debian and Ubuntu; compiles ggml's shaders)
cargo xtask help                    this text

steps of test:
",
    );
    for step in test::STEPS {
        text.push_str(&format!("  {:<18}{}\n", step.name, step.what));
    }
    text
}
