//! `test`: runs every check. The checks that find mistakes soonest come first. `.ci/run` runs only this.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};

use crate::selected::run_tests;
use crate::workspace::{Workspace, output, run};
use crate::{
    bindings, clients, package, pictures, promises, python, real, rooms, runtime, semver, setup, size, vulkan,
};

/// One named part of the test.
pub(crate) struct Step {
    pub(crate) name: &'static str,
    pub(crate) what: &'static str,
    run: fn(&Workspace) -> Result<()>,
}

/// All steps. They use few different selections of packages and features, because each selection compiles the
/// dependencies again.
pub(crate) const STEPS: &[Step] = &[
    Step {
        name: "format",
        what: "rustfmt has nothing to change",
        run: |workspace| run(&mut workspace.cargo(&["fmt", "--all", "--check"])),
    },
    Step {
        name: "size",
        what: "prints the crates' lines beside those of the last release; no comment is too wide",
        run: size::size,
    },
    Step {
        name: "promises",
        what: "a test holds each promise of the documentation and each bound of SECURITY.md",
        run: promises::promises,
    },
    Step {
        name: "rooms",
        what: "the rooms of a crate import from those above them in ARCHITECTURE.md",
        run: rooms::rooms,
    },
    Step { name: "locked", what: "every Cargo.lock is what its Cargo.toml asks for", run: locked },
    Step { name: "pure", what: "the planner alone depends on no native code", run: pure },
    Step {
        name: "lint",
        what: "clippy finds nothing in any target (compiles llama.cpp, if no earlier step has)",
        // The flag `--all-targets` would compile the examples as tests, but the tests of the examples need them as
        // programs.
        run: |workspace| {
            run(&mut workspace.compile("test", &["--workspace", "--no-run"]))?;
            run(&mut workspace.compile("test", &["--workspace", "--bench=*", "--no-run"]))
        },
    },
    Step { name: "test", what: "all tests and doc tests pass", run: all_tests },
    Step {
        name: "runtime",
        what: "the native layer's tests pass with libraries that are opened, and so does an application packed with them (Linux)",
        run: runtime::test,
    },
    Step {
        name: "clients",
        what: "the most common clients work with `autoplace serve`, and Hugging Face's client shares a cache with the hub",
        run: clients_step,
    },
    Step {
        name: "real",
        what: "a real model's tokens, templates, texts, calls and schemas equal libllama's, if the model can be downloaded",
        run: real::test,
    },
    Step {
        name: "pictures",
        what: "the program's pictures and the server's page look right in Chromium, if it is installed",
        run: pictures::test,
    },
    Step {
        name: "bench",
        what: "every benchmark runs once, without being measured",
        run: |workspace| tests(workspace, &["--workspace", "--bench=*"]),
    },
    Step {
        name: "docs",
        what: "the documentation builds without a warning",
        run: |workspace| {
            let mut cargo = workspace.compile("doc", &["--workspace", "--no-deps"]);
            // The documentation is built as on docs.rs, without native code.
            run(cargo.env("RUSTDOCFLAGS", "-Dwarnings").env("DOCS_RS", "1"))
        },
    },
    Step { name: "bindings", what: "the committed bindings belong to the pinned llama.cpp", run: bindings::check },
    Step {
        name: "package",
        what: "all crates as they would be published are complete, small enough, and compile",
        run: package::package_by_shared_build,
    },
    Step {
        name: "semver",
        what: "the libraries break no more than their version says, since the last release's tag",
        run: semver::semver,
    },
];

/// Runs all steps or the named ones, up to the first failure. If all steps run, Vulkan's software driver is used if it
/// is available.
pub(crate) fn test(workspace: &mut Workspace, names: &[String]) -> Result<()> {
    for name in names {
        ensure!(STEPS.iter().any(|step| step.name == name), "there is no step `{name}`; `cargo xtask help` lists them");
    }
    let steps: Vec<&Step> =
        STEPS.iter().filter(|step| names.is_empty() || names.iter().any(|name| name == step.name)).collect();
    workspace.clippy = true;
    // All requirements are installed at the start, so that a missing one is not noticed after half an hour.
    setup::native()?;
    setup::rust_components(workspace)?;
    if steps.iter().any(|step| step.name == "bindings") && !bindings::are_known(workspace)? {
        setup::libclang()?;
    }
    if steps.iter().any(|step| ["clients", "real"].contains(&step.name)) {
        setup::python()?;
    }

    if names.is_empty() {
        match vulkan::for_tests(workspace) {
            Ok(sdk) => workspace.vulkan = Some(sdk),
            Err(error) => eprintln!("setup: Vulkan's tests are left out: {error:#}"),
        }
    }

    let begin = Instant::now();
    let builds = workspace.native_builds();
    let workspace = &*workspace;
    std::thread::scope(|scope| {
        // The downloads use the network more than a core, so they run at the same time as the steps. Errors are ignored
        // here, because the step that needs the files tries again and reports them.
        let bring = || {
            let models = real::download(workspace).is_ok();
            clients::of_few(workspace).is_ok() && python::environment(workspace, clients::OPENAI).is_ok() && models
        };
        let mut clients = names.is_empty().then(|| scope.spawn(bring));
        for (index, step) in steps.iter().enumerate() {
            println!("\n== {}/{} {}: {}", index + 1, steps.len(), step.name, step.what);
            let begin = Instant::now();
            if let Some(clients) = clients.take_if(|_| step.name == "clients") {
                let _ = clients.join();
            }
            (step.run)(workspace).with_context(|| format!("step `{}`", step.name))?;
            println!("== {} took {}", step.name, seconds(begin));
        }
        Ok::<_, anyhow::Error>(())
    })?;
    once(&builds, &workspace.native_builds())?;
    let number = if steps.len() == 1 { "1 step".to_owned() } else { format!("All {} steps", steps.len()) };
    println!("\n{number} passed in {}.", seconds(begin));
    Ok(())
}

/// Property tests draw the same cases in every run, so that a failure points to the current change. They draw 100
/// cases, unless a test sets another number. A plain `cargo test` draws 256 new cases.
const RANDOM_CASES: [(&str, &str); 2] = [("PROPTEST_RNG_SEED", "20261121"), ("PROPTEST_CASES", "100")];

const TEST_THREADS: &str = "RUST_TEST_THREADS";

/// Runs the tests of the clients, in an environment with the packages that they need.
fn clients_step(workspace: &Workspace) -> Result<()> {
    let python = python::environment(workspace, clients::OPENAI)?;
    let programs = clients::list(&clients::of_few(workspace)?)?;
    // A command that names a test does not build the examples. They are built first, as in the step `test`.
    run(&mut workspace.compile("test", &["--workspace", "--no-run"]))?;
    let mut cargo = workspace.compile("test", &["--workspace"]);
    cargo.args(["--test=program", "--test=hub", "--", "--ignored", "client::"]);
    run_tests(cargo.env("AUTOPLACE_PYTHON", python).env(clients::PROGRAMS, programs))
}

/// Runs all tests. It continues after a failure, so that one run names all failing tests.
fn all_tests(workspace: &Workspace) -> Result<()> {
    tests(workspace, &["--workspace", "--no-fail-fast"])
}

fn tests(workspace: &Workspace, selection: &[&str]) -> Result<()> {
    let mut cargo = workspace.compile("test", selection);
    for (name, value) in RANDOM_CASES {
        if std::env::var_os(name).is_none() {
            cargo.env(name, value);
        }
    }
    if std::env::var_os(TEST_THREADS).is_none() {
        // There is one more thread than cores, because some tests wait for a worker or a clock.
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        cargo.env(TEST_THREADS, (cores + 1).to_string());
    }
    run(&mut cargo)
}

/// Folders that are outside the workspace and have a Cargo.lock of their own.
const LOCKED: [&str; 4] = ["benches/clip-buffers", "examples/with-llama-cpp-2", "fuzz", "vendor"];

/// Checks the lock files of these folders. The alias `cargo xtask` checks the workspace's own lock file with
/// `--locked`.
fn locked(workspace: &Workspace) -> Result<()> {
    for folder in LOCKED {
        let mut cargo = workspace.cargo(&["update", "--quiet", "--workspace", "--locked"]);
        run(cargo.arg("--manifest-path").arg(workspace.root.join(folder).join("Cargo.toml")))?;
    }
    Ok(())
}

/// Checks that the planner can be built without a C++ compiler.
fn pure(workspace: &Workspace) -> Result<()> {
    let tree = output(&mut workspace.cargo(&[
        "tree",
        "--package=autoplace-planner",
        "--edges=normal,build",
        "--target=all",
        "--prefix=none",
        "--format={p}",
    ]))?;
    let packages: BTreeSet<&str> = tree.lines().filter_map(|line| line.split_whitespace().next()).collect();
    for native in ["autoplace-llama-sys", "bindgen", "cc", "cmake"] {
        if packages.contains(native) {
            bail!("the planner depends on `{native}`");
        }
    }
    println!("{} packages, none of them native", packages.len());
    Ok(())
}

/// Checks that llama.cpp was compiled at most once, because that takes minutes. In the CI, a second build is a failure.
/// On other machines, another run in the same tree may be its cause.
fn once(before: &BTreeSet<PathBuf>, after: &BTreeSet<PathBuf>) -> Result<()> {
    let new = after.difference(before).count();
    if new <= 1 {
        return Ok(());
    }
    let message = format!(
        "llama.cpp was compiled {new} times instead of once: two steps select different features or options \
         (see llama-sys/build/compile.rs)"
    );
    if std::env::var_os("CI").is_some() {
        bail!(message);
    }
    eprintln!("\nwarning: {message}, or another build ran meanwhile");
    Ok(())
}

fn seconds(since: Instant) -> String {
    format!("{:.1} s", since.elapsed().as_secs_f64())
}
