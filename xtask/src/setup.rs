//! Installs what a verb requires besides Rust. On Debian and Ubuntu, packages are installed if that needs no answer
//! from the user (as root, or with sudo without a password). On other systems, the verb prints a paragraph that
//! describes what to run.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::workspace::{Workspace, run, succeeds};

/// A missing requirement, and the package that provides it.
struct Missing {
    what: &'static str,
    package: &'static str,
}

/// The usual names of a C++ compiler.
const COMPILERS: [&str; 3] = ["c++", "g++", "clang++"];

/// This machine's C++ compiler: the value of CXX, or the first of the usual names that starts. [`native`] installs one,
/// and must be called first.
pub(crate) fn cxx() -> Result<String> {
    let found = || {
        let name = COMPILERS.into_iter().find(|name| succeeds(name, &["--version"]));
        name.map(str::to_owned)
    };
    chosen("CXX").or_else(found).context("there is no C++ compiler")
}

/// Requires cmake, a C++ compiler, and make or ninja, as `llama-sys/build/require.rs` does.
pub(crate) fn native() -> Result<()> {
    if let Some(cmake) = chosen("CMAKE")
        && !succeeds(&cmake, &["--version"])
    {
        bail!("the variable CMAKE is `{cmake}`, which does not start: correct or unset it");
    }
    if let Some(compiler) = chosen("CXX")
        && !succeeds(&compiler, &["--version"])
    {
        bail!("the variable CXX is `{compiler}`, which does not start: correct or unset it");
    }
    let mut missing = Vec::new();
    if chosen("CMAKE").is_none() && !succeeds("cmake", &["--version"]) {
        missing.push(Missing { what: "cmake", package: "cmake" });
    }
    // On Windows the cc crate finds Visual Studio's compiler outside of PATH, and the build script checks for it.
    if cfg!(unix) {
        if chosen("CXX").is_none() && !any_starts(&COMPILERS) {
            missing.push(Missing { what: "a C++ compiler", package: "g++" });
        }
        if chosen("CMAKE_GENERATOR").is_none() && !any_starts(&["make", "gmake", "ninja"]) {
            missing.push(Missing { what: "make (or ninja)", package: "make" });
        }
    }
    install(
        &missing,
        "llama.cpp is compiled from source. Install what is missing: `apt install cmake g++ make` (Debian, Ubuntu), \
         `dnf install cmake gcc-c++ make` (Fedora), `pacman -S cmake gcc make` (Arch), `brew install cmake` after \
         `xcode-select --install` (macOS), `winget install Kitware.CMake Microsoft.VisualStudio.2022.BuildTools` with the \
         C++ workload (Windows). A cmake elsewhere is found through the variable CMAKE, a compiler through CXX.",
    )
}

/// Requires libclang with its headers, for bindgen. Users of the crates do not need it.
pub(crate) fn libclang() -> Result<()> {
    let missing = if has_libclang() { Vec::new() } else { vec![Missing { what: "libclang", package: "libclang-dev" }] };
    install(
        &missing,
        "The check of the raw bindings regenerates them with bindgen. Install libclang: `apt install libclang-dev` (Debian, \
         Ubuntu), `dnf install clang-devel` (Fedora), `pacman -S clang` (Arch), `brew install llvm` (macOS), `winget install \
         LLVM.LLVM` (Windows). One elsewhere is found through the variable LIBCLANG_PATH.",
    )
}

/// Requires ggml's shader compiler, the Vulkan loader and Mesa's software driver.
pub(crate) fn vulkan() -> Result<()> {
    let lies = |path: &str| Path::new(path).exists();
    let mut missing = Vec::new();
    if !succeeds("glslc", &["--version"]) {
        missing.push(Missing { what: "glslc", package: "glslc" });
    }
    if !lies("/usr/share/vulkan/icd.d/lvp_icd.x86_64.json") && !lies("/usr/share/vulkan/icd.d/lvp_icd.json") {
        missing.push(Missing { what: "Mesa's Vulkan driver", package: "mesa-vulkan-drivers" });
    }
    if !lies("/usr/lib/x86_64-linux-gnu/libvulkan.so.1") {
        missing.push(Missing { what: "the Vulkan loader", package: "libvulkan1" });
    }
    install(&missing, "Install it: `apt install glslc mesa-vulkan-drivers libvulkan1`.")
}

/// Requires a Python that can create environments.
pub(crate) fn python() -> Result<&'static str> {
    // Debian's own Python has the module `venv`, but not the packages that the module needs.
    let is_whole = |python: &&str| succeeds(python, &["-c", "import venv, ensurepip"]);
    let programs = ["python3", "python"];
    if let Some(python) = programs.into_iter().find(is_whole) {
        return Ok(python);
    }
    let missing = Missing { what: "Python 3.10 or newer with venv", package: "python3-venv" };
    install(
        &[missing],
        "Install it: `apt install python3-venv` (Debian, Ubuntu), `dnf install python3` (Fedora), `pacman -S python` (Arch), `brew install \
         python` (macOS), `winget install Python.Python.3.13` (Windows).",
    )?;
    Ok("python3")
}

/// Requires rustfmt and clippy, which rustup's minimal profile leaves out.
pub(crate) fn rust_components(workspace: &Workspace) -> Result<()> {
    for (verb, component) in [("fmt", "rustfmt"), ("clippy", "clippy")] {
        let mut ask = workspace.cargo(&[verb, "--version"]);
        if ask.output().is_ok_and(|output| output.status.success()) {
            continue;
        }
        println!("setup: {component} is missing; `rustup component add {component}`");
        if run(Command::new("rustup").args(["component", "add", component])).is_err() {
            bail!(
                "{component} is missing: `rustup component add {component}`, or the package of that name of your system"
            );
        }
    }
    Ok(())
}

/// A cargo tool (such as `cargo-deny`) of this version: the one on PATH, or our own copy, which is compiled if it is
/// missing.
pub(crate) fn tool(workspace: &Workspace, name: &str, version: &str) -> Result<PathBuf> {
    let root = workspace.target.join("tools");
    let ours = root.join("bin").join(name);
    let verb = name.trim_start_matches("cargo-");
    let is_pinned = |program: &Path| {
        let said = Command::new(program).args([verb, "--version"]).output();
        said.is_ok_and(|output| output.stdout.trim_ascii().ends_with(version.as_bytes()))
    };
    for program in [Path::new(name), &ours] {
        if is_pinned(program) {
            return Ok(program.to_owned());
        }
    }
    println!("setup: compiling {name} {version}, some minutes");
    let mut install = workspace.cargo(&["install", "--quiet", "--locked", "--version", version]);
    install.arg("--root").arg(&root).arg(name);
    // An unoptimised build takes less than half of the time. The checks would not gain enough speed from optimisation.
    install.env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "0").env("CARGO_PROFILE_RELEASE_LTO", "off");
    install.env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16");
    // Without this, the tool's build would fill our target folder.
    run(install.env_remove("CARGO_TARGET_DIR")).with_context(|| format!("{name} is missing"))?;
    Ok(ours)
}

fn chosen(variable: &str) -> Option<String> {
    std::env::var(variable).ok().filter(|value| !value.is_empty())
}

fn any_starts(programs: &[&str]) -> bool {
    programs.iter().any(|program| succeeds(program, &["--version"]))
}

fn install(missing: &[Missing], otherwise: &str) -> Result<()> {
    if missing.is_empty() {
        return Ok(());
    }
    let names: Vec<&str> = missing.iter().map(|one| one.what).collect();
    let names = names.join(" and ");
    let packages: Vec<&str> = missing.iter().map(|one| one.package).collect();
    let Some(mut become_root) = apt() else {
        bail!("this machine lacks {names}. {otherwise}");
    };
    println!("setup: this machine lacks {names}; `apt-get install {}`", packages.join(" "));
    become_root.extend(["env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-qq"]);
    let apt_get = |arguments: &[&str]| {
        let mut command = Command::new(become_root[0]);
        command.args(&become_root[1..]).args(arguments).stdin(std::process::Stdio::null());
        run(&mut command)
    };
    // An unreachable source of packages is not fatal, because the other sources may have the packages.
    if let Err(error) = apt_get(&["update"]) {
        eprintln!("setup: {error:#}; trying to install anyway");
    }
    let mut arguments = vec!["install", "--yes", "--no-install-recommends"];
    arguments.extend(&packages);
    apt_get(&arguments).map_err(|error| error.context(format!("this machine lacks {names}. {otherwise}")))
}

/// The prefix of a command that runs apt-get as root without a question; `None` if that is impossible or apt-get is
/// missing.
fn apt() -> Option<Vec<&'static str>> {
    if !succeeds("apt-get", &["--version"]) {
        return None;
    }
    let id = Command::new("id").arg("-u").output().ok()?;
    if id.stdout.trim_ascii() == b"0" {
        return Some(Vec::new());
    }
    succeeds("sudo", &["-n", "true"]).then(|| vec!["sudo", "-n"])
}

/// Whether libclang is installed. On Linux, the folders of distributions are searched. On other systems this returns
/// true, because bindgen itself searches and reports failures.
fn has_libclang() -> bool {
    if !cfg!(target_os = "linux") || chosen("LIBCLANG_PATH").is_some() {
        return true;
    }
    let mut dirs: Vec<PathBuf> =
        ["/usr/lib", "/usr/lib64", "/usr/local/lib", "/usr/local/lib64"].map(PathBuf::from).to_vec();
    for parent in ["/usr/lib", "/usr/lib/llvm"] {
        for dir in children(Path::new(parent)) {
            dirs.extend([dir.join("lib"), dir.join("lib64"), dir]);
        }
    }
    let is_library = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        name.starts_with("libclang.so")
            || (name.starts_with("libclang-") && !name.starts_with("libclang-cpp") && name.contains(".so"))
    };
    // The library alone cannot parse `#include <stddef.h>`, because distributions package its headers separately.
    let has_headers =
        |dir: &Path| children(&dir.join("clang")).iter().any(|version| version.join("include/stddef.h").is_file());
    let library = dirs.iter().any(|dir| children(dir).iter().any(is_library));
    library && dirs.iter().any(|dir| has_headers(dir))
}

fn children(dir: &Path) -> Vec<PathBuf> {
    std::fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}
