//! `company`: measures how long a text takes while other programs compute, for autoplace and for bare llama.cpp loops
//! whose threads wait in different ways.
//!
//! In: the pinned source. It is built two more times: with OpenMP (llama.cpp's default), and with ggml's own threads.
//! Out: the table of `benches/company.rs`.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use anyhow::Result;

use crate::workspace::{Workspace, run};
use crate::{setup, source};

/// Measures with these models. The default is the demo model and `2GiB`, a model of 2 GiB that the benchmark writes.
pub(crate) fn company(workspace: &Workspace, models: &[String]) -> Result<()> {
    setup::native()?;
    let folder = workspace.target.join("company");
    let llama_cpp = source::find(workspace)?;
    fs::create_dir_all(&folder)?;
    let program = folder.join("loop.cpp");
    fs::copy(workspace.root.join("xtask/company/loop.cpp"), &program)?;
    for (name, openmp) in [("openmp", "ON"), ("pool", "OFF")] {
        build(&llama_cpp, &folder.join("build"), &folder.join(name), openmp, &program)?;
    }
    let mut bench = workspace.cargo(&["bench", "--package=autoplace-benches", "--bench=company", "--"]);
    let models = models.iter().map(|model| if model == "2GiB" { Ok(model.into()) } else { std::path::absolute(model) });
    let models = models.collect::<Result<Vec<PathBuf>, _>>()?;
    run(bench.args(models).env("AUTOPLACE_BENCH_PEERS", folder).env("AUTOPLACE_BENCH_LLAMA_CPP", llama_cpp))
}

/// Builds the loop, and copies it and llama.cpp's libraries into `folder`. All kinds of the loop share one build
/// folder, because only ggml's CPU code differs.
fn build(llama_cpp: &Path, build: &Path, folder: &Path, openmp: &str, program: &Path) -> Result<()> {
    let cmake = env::var_os("CMAKE").unwrap_or_else(|| "cmake".into());
    let mut configure = Command::new(&cmake);
    configure.arg("-S").arg(llama_cpp).arg("-B").arg(build);
    configure.args(["-DCMAKE_BUILD_TYPE=Release", "-DBUILD_SHARED_LIBS=ON"]);
    configure.args(["-DCMAKE_BUILD_WITH_INSTALL_RPATH=ON", "-DCMAKE_INSTALL_RPATH=$ORIGIN"]);
    configure.arg(format!("-DGGML_OPENMP={openmp}"));
    for part in ["COMMON", "TESTS", "TOOLS", "EXAMPLES", "SERVER", "APP"] {
        configure.arg(format!("-DLLAMA_BUILD_{part}=OFF"));
    }
    run(&mut configure)?;
    let mut make = Command::new(&cmake);
    make.arg("--build").arg(build).args(["--target", "llama", "--parallel"]);
    run(make.arg(std::thread::available_parallelism()?.to_string()))?;
    fs::create_dir_all(folder)?;
    let libraries = build.join("bin");
    for library in fs::read_dir(&libraries)? {
        let library = library?;
        fs::copy(library.path(), folder.join(library.file_name()))?;
    }
    let mut compiler = Command::new(setup::cxx()?);
    compiler.args(["-std=c++17", "-O2"]).arg(program);
    for include in ["include", "ggml/include"] {
        compiler.arg("-I").arg(llama_cpp.join(include));
    }
    compiler.arg("-L").arg(folder).args(["-lllama", "-lggml", "-lggml-cpu", "-lggml-base", "-Wl,-rpath,$ORIGIN"]);
    run(compiler.arg("-o").arg(folder.join("loop")))
}
