//! `cargo xtask <verb>`: the tasks of visitors, contributors, the CI and releases. Each verb has its own file.
//!
//! A verb first installs its requirements (`setup`), and then runs cargo. A verb contains no knowledge that cargo and
//! the build scripts lack, so everything can also be done without it.

mod attack;
mod beside;
mod bindings;
mod cited;
mod clients;
mod company;
mod conformance;
mod cuda_check;
mod demo;
mod deny;
mod dist;
mod document;
mod features;
mod fit_table;
mod fuzz;
mod gpu_bundle;
mod interop;
mod ledger;
mod llama_server;
mod llama_tools;
mod notices;
mod package;
mod packed;
mod pictures;
mod promises;
mod python;
mod real;
mod remote;
mod rooms;
mod runtime;
mod sanitize;
mod schemas;
mod selected;
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

use std::path::Path;
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
    match (verb.as_str(), rest) {
        ("demo", [flag]) if flag == "--remote" => remote::demo(&workspace),
        ("rpc-server", _) => remote::rpc_server(&workspace, rest),
        ("demo", _) => demo::demo(&workspace, rest),
        ("test", _) => test::test(&mut workspace, rest),
        ("attack", _) => attack::attack(&workspace, rest),
        ("company", _) => company::company(&workspace, rest),
        (verb @ ("first-token" | "conversations" | "server-memory"), _) => beside::beside(&workspace, verb, rest),
        ("conformance", []) => conformance::conformance(&workspace, false),
        ("conformance", [flag]) if flag == "--write" => conformance::conformance(&workspace, true),
        ("bindings", []) => bindings::check(&workspace),
        ("bindings", [flag]) if flag == "--write" => bindings::write(&workspace),
        ("cited", [earlier]) => cited::cited(&workspace, Path::new(earlier)),
        ("cuda-check", []) => cuda_check::cuda_check(&workspace, false),
        ("cuda-check", [flag]) if flag == "--all" => cuda_check::cuda_check(&workspace, true),
        ("clients", _) => clients::clients(&workspace, rest),
        ("deny", []) => deny::deny(&workspace),
        ("dist", []) => dist::dist(&workspace),
        ("features", []) => features::features(&workspace),
        ("fit-table", _) => fit_table::fit_table(&workspace, rest),
        ("fuzz", _) => fuzz::fuzz(&workspace, rest),
        ("gpu-bundle", _) => gpu_bundle::gpu_bundle(&mut workspace, rest),
        ("interop", []) => interop::interop(&workspace),
        ("ledger", _) => ledger::ledger(&workspace, rest),
        ("llama-server", []) => llama_server::llama_server(&workspace),
        ("package", []) => package::package(&workspace),
        ("pictures", []) => pictures::pictures(&workspace),
        ("real", _) => real::real(&workspace, rest),
        ("runtime", _) => runtime::runtime(&mut workspace, rest),
        ("sanitize", []) => sanitize::sanitize(&workspace),
        ("schemas", [model]) => schemas::schemas(&workspace, Path::new(model), false),
        ("schemas", [model, flag]) if flag == "--write" => schemas::schemas(&workspace, Path::new(model), true),
        ("semver", []) => semver::semver(&workspace),
        ("soak", _) => soak::soak(&workspace, rest),
        ("templates", [flag]) if flag == "--fixtures" => templates::fixtures(&workspace),
        ("templates", [flag]) if flag == "--published" => templates::published(&workspace),
        ("templates", [folder]) => templates::compare(&workspace, Path::new(folder)),
        ("vulkan", _) => vulkan::vulkan(&mut workspace, rest),
        ("help" | "--help" | "-h", _) => {
            print!("{}", help());
            Ok(())
        }
        _ => bail!("there is no verb `{}`\n\n{}", arguments.join(" "), help()),
    }
}

fn help() -> String {
    let mut text = String::from(
        "cargo xtask demo [-- ARGUMENTS]     sets the machine up, then runs examples/generate.rs (with these arguments)
cargo xtask demo --remote           runs a model on two rpc-servers of this machine, and kills one of them in the middle of the text
cargo xtask rpc-server [ARGUMENT..] builds autoplace-rpc-server, which serves devices to other machines (with arguments: runs it)
cargo xtask test [STEP...]          sets the machine up, then runs every check (or only these steps)
cargo xtask conformance [--write]   compares the estimate with llama.cpp over a large grid, in minutes (and writes docs/conformance.md)
cargo xtask attack [PROGRAM [WORD]] measures how much memory hostile clients can take from `autoplace serve` (or from another program) (Linux)
cargo xtask bindings [--write]      generates the raw bindings again and compares them with (or replaces) the committed ones
cargo xtask cited FOLDER            compares the pinned llama.cpp with the earlier one in this folder: lists cited functions that have changed, and new assertions
cargo xtask clients [MODEL] [--write] [--only PROGRAM]
                                    runs programs of 22 clients, coding agents included, against `autoplace serve` (and writes docs/clients.md)
cargo xtask company [MODEL|2GiB...] measures how long texts take beside other programs, with autoplace and with llama.cpp's ways to wait (compiles llama.cpp twice more; takes hours)
cargo xtask conversations MODEL [CONVERSATIONS]
                                    counts the tokens that 200 conversations on eight places compute again, beside the llama-server of an earlier llama.cpp (compiles it)
cargo xtask cuda-check [--all]      compiles some CUDA kernels of the pinned llama.cpp (or all of them) without a card (Linux x86-64; downloads a toolkit)
cargo xtask deny                    checks licences, duplicates and sources of the dependencies, and advisories against them
cargo xtask dist                    makes the program's archive and its Debian package, unpacks both and generates a text with each (Linux)
cargo xtask features                checks the published crates with the oldest supported compiler, and each feature alone
cargo xtask first-token MODEL [ROUNDS] [LOAD]
                                    measures how long many clients wait for their first token, beside llama-server (compiles it); LOAD selects loads by a part of their names
cargo xtask fit-table [WORD...]     compares plans with llama.cpp's own fit: 28 models (or those whose names contain a word) on 7 simulated machines; --caches compares caches of experts
cargo xtask fuzz [TARGET...]        gives random bytes to every parser of untrusted bytes, for 60 s per target (or `--seconds N`)
cargo xtask gpu-bundle [--vulkan] [--no-run]
                                    makes the archive that checks the library on a machine with an NVIDIA card, or with `--vulkan` on any card (Linux; compiles llama.cpp once more)
cargo xtask interop                 checks, tests and runs the planner together with llama-cpp-2 (compiles a second llama.cpp)
cargo xtask ledger [FILE...]        prints the ledger of measured speeds beside the predicted speeds, or adds submissions (`autoplace measure --submission`)
cargo xtask llama-server            tests `doctor --watch` and the endpoint client with a llama-server (compiles it)
cargo xtask package                 makes the packages of all published crates and builds them
cargo xtask pictures                checks the pages of `plan --picture`, `measure --picture` and `serve` in Chromium, light and dark
cargo xtask real [--write] [CHECK...]
                                    compares two public models with llama.cpp's own programs (compiles them), transformers and OpenAI's client
cargo xtask runtime [--vulkan] [--cuda]
                                    makes a runtime for programs built with `prebuilt-runtime` (Linux; compiles llama.cpp once more; `--here` uses this machine's own build; `--twice` builds twice and compares)
cargo xtask sanitize                runs the native layer and the probe under AddressSanitizer (Linux; compiles llama.cpp once more)
cargo xtask schemas MODEL [--write] runs the JSON-Schema-Test-Suite with the vocabulary of a model (and writes its table in docs/constrained-output.md)
cargo xtask semver                  compares the libraries' interfaces with those of the last release's tag, if there is one
cargo xtask server-memory MODEL [REQUESTS] [requests|clients]
                                    measures the server's memory after 1,000 requests and after 64 clients that come and go, beside llama-server's (Linux; compiles it)
cargo xtask soak [TOKENS]           generates a million tokens and checks whether memory, open files or threads grow (Linux)
cargo xtask templates DIR           renders the chat templates of a folder here and in Hugging Face's transformers, and compares the prompts
cargo xtask templates --published   does the same with the templates in npm's @huggingface/ollama-utils (needs npm)
cargo xtask templates --fixtures    writes the prompts that transformers makes of the tests' own templates
cargo xtask vulkan [CHECK...]       runs the GPU check on Mesa's software driver (Debian and Ubuntu; compiles ggml's shaders)
cargo xtask help                    prints this text

steps of test:
",
    );
    for step in test::STEPS {
        text.push_str(&format!("  {:<18}{}\n", step.name, step.what));
    }
    text
}
