//! Checks that an exception keeps its message when it passes from one library to another, even through a library of
//! another compiler. The check uses a library, a program and a stand-in for the CUDA backend, all in
//! `gpu-check/zig/exceptions`. In: the toolchain. Out: an error that names the path on which the message was lost.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::toolchain::Toolchain;
use crate::setup;
use crate::workspace::{Workspace, run};

/// The meanings of `program.cpp`'s exit codes.
const WAYS: [&str; 5] = [
    "from a library to the program",
    "from the program to a library",
    "from the program to itself, through another compiler's library",
    "from a library to the program, through another compiler's library",
    "past what another compiler's library has to tidy up",
];

pub(crate) fn check(workspace: &Workspace, toolchain: &Toolchain) -> Result<()> {
    let source = workspace.root.join("gpu-check/zig/exceptions");
    let folder = toolchain.folder.join("exceptions");
    std::fs::create_dir_all(&folder)?;
    let library = folder.join("liblibrary.so");
    run(shared(&mut toolchain.cxx(), &source.join("library.cpp"), &library))?;
    let backend = folder.join("libbackend.so");
    run(shared(
        // This compiler stands for the one on the machine on which the CUDA backend is built.
        &mut Command::new(setup::cxx()?),
        &source.join("backend.cpp"),
        &backend,
    ))?;
    let program = folder.join("program");
    run(toolchain
        .cxx()
        .arg(source.join("program.cpp"))
        .args([&library, &backend])
        // The other library may need a newer glibc, which this machine has.
        .args(["-Wl,--allow-shlib-undefined", "-Wl,-rpath,$ORIGIN", "-o"])
        .arg(&program))?;
    let status = Command::new(&program).status().with_context(|| format!("cannot start {}", program.display()))?;
    if status.success() {
        return Ok(());
    }
    let way = status.code().and_then(|code| WAYS.get(usize::try_from(code).ok()?.checked_sub(1)?));
    match way {
        Some(way) => bail!("an exception does not arrive {way}"),
        None => bail!("an exception ends the program ({status})"),
    }
}

fn shared<'a>(compiler: &'a mut Command, source: &Path, library: &Path) -> &'a mut Command {
    let name = library.file_name().unwrap_or_default().to_string_lossy();
    compiler.args(["-O2", "-fPIC", "-shared"]).arg(format!("-Wl,-soname,{name}")).arg(source).arg("-o").arg(library)
}
