//! Step 1: checks for the tools that the build needs, so that it does not fail later in a confusing way.

use std::process::{Command, Stdio};

use crate::target::Target;

/// Panics with one paragraph if a compiler, cmake, or both make and ninja are missing.
pub(crate) fn tools(target: &Target) {
    println!("cargo:rerun-if-env-changed=CMAKE");
    let cmake = std::env::var("CMAKE").unwrap_or_else(|_| "cmake".into());
    let compiler = cc::Build::new()
        .cpp(true)
        .cargo_metadata(false)
        .try_get_compiler()
        .ok()
        // cl.exe prints its banner without arguments and fails on `--version`; it is enough that it starts.
        .filter(|tool| starts(tool.path().as_os_str(), "--version"));

    let mut missing = Vec::new();
    if !starts(cmake.as_ref(), "--version") {
        missing.push("cmake");
    }
    if compiler.is_none() {
        missing.push("a C++ compiler");
    }
    let generator_is_chosen = std::env::var_os("CMAKE_GENERATOR").is_some();
    if !target.is_msvc()
        && !generator_is_chosen
        && !["make", "gmake", "ninja"].iter().any(|tool| starts(tool.as_ref(), "--version"))
    {
        missing.push("make (or ninja)");
    }
    if !missing.is_empty() {
        panic!(
            "\n\nllama.cpp is compiled from source, and this machine lacks {}. Install what is missing: \
             `apt install cmake g++ make` (Debian, Ubuntu), `dnf install cmake gcc-c++ make` (Fedora), \
             `pacman -S cmake gcc make` (Arch), `brew install cmake` after `xcode-select --install` (macOS), \
             `winget install Kitware.CMake Microsoft.VisualStudio.2022.BuildTools` with the C++ workload (Windows). \
             A cmake elsewhere is found through the CMAKE variable, a compiler through CXX. To plan placements without \
             llama.cpp, use the crate autoplace-planner.\n\n",
            missing.join(" and ")
        );
    }
}

fn starts(program: &std::ffi::OsStr, argument: &str) -> bool {
    Command::new(program)
        .arg(argument)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok()
}
