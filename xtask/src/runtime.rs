//! `runtime`: makes a complete set of llama.cpp's shared libraries for programs built with `prebuilt-runtime`.
//!
//! 1. The build script of llama-sys links its shim as a library (`llama-sys/build/runtime.rs`). By default it uses the
//!    GPU bundle's compilers, and makes one library for each kind of CPU, for any x86-64 Linux. With `--here` it makes
//!    a single library for this machine.
//! 2. Puts the libraries in a folder with their licences, and checks that they need only libraries that each system
//!    has.
//! 3. Completes the manifest through the crate that reads it (`runtime/examples/seal.rs`), and packs the folder.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use crate::gpu_bundle::toolchain::{GLIBC, TARGET, Toolchain};
use crate::gpu_bundle::{copy, copy_libraries, portable};
use crate::workspace::{Workspace, output, run};
use crate::{cuda_check, packed, setup, tree, vulkan};

/// Asks llama-sys's build script for the shim as a library. `.cargo/config.toml` sets it for builds for this machine.
const ASKED: &str = "AUTOPLACE_RUNTIME_LIBRARY";

/// The variable in which the build script reports the path of the shim.
const LIBRARY: &str = "LLAMA_SYS_RUNTIME_LIBRARY";

/// A library that some systems lack: the backend that needs it, the name and the source of the library and, for a
/// driver, the required CUDA version.
struct Other {
    backend: &'static str,
    library: &'static str,
    source: &'static str,
    cuda: Option<u32>,
}

const OTHERS: [Other; 4] = [
    Other {
        backend: "Vulkan",
        library: "libvulkan.so.1",
        source: "Vulkan's loader: the package libvulkan1 or vulkan-loader",
        cuda: None,
    },
    Other {
        backend: "CUDA",
        library: "libcuda.so.1",
        source: "NVIDIA's driver, 580 or newer",
        // The number is the toolkit's version in `cuda_check::REQUIREMENTS`. Minor versions are compatible.
        cuda: Some(13_000),
    },
    Other { backend: "CUDA", library: "libcudart.so.13", source: "nvidia-cuda-runtime", cuda: None },
    Other { backend: "CUDA", library: "libcublas.so.13", source: "nvidia-cublas", cuda: None },
];

/// The variable in which the build script lists the backends.
const BACKENDS: &str = "LLAMA_SYS_BACKENDS";

/// The library that a program opens last; see `llama-sys/build/runtime.rs`.
const SHIM: &str = "libautoplace-llama.so";

/// llama.cpp's libraries in the order of their dependencies.
const LLAMA_CPP: [&str; 3] = ["libggml-base.so.0", "libggml.so.0", "libllama.so.0"];

pub(crate) fn runtime(workspace: &mut Workspace, arguments: &[String]) -> Result<()> {
    ensure!(
        cfg!(all(target_os = "linux", target_arch = "x86_64")),
        "runtimes can be made on x86-64 Linux only; this machine is {} {}",
        std::env::consts::ARCH,
        std::env::consts::OS
    );
    let has = |flag: &str| arguments.iter().any(|argument| argument == flag);
    if let Some(other) =
        arguments.iter().find(|argument| !["--here", "--vulkan", "--cuda", "--twice"].contains(&argument.as_str()))
    {
        bail!("`{other}`: `cargo xtask runtime [--vulkan] [--cuda] [--twice]`, or `--here` for this machine alone");
    }
    setup::native()?;
    if has("--here") {
        return archive_here(workspace).map(drop);
    }
    if has("--vulkan") {
        workspace.vulkan = Some(vulkan::sdk(workspace)?);
    }
    let toolchain = Toolchain::prepare(workspace)?;
    let cuda = if has("--cuda") { Some(cuda_check::library(workspace)?) } else { None };
    let folder = for_any(workspace, &toolchain, "runtime", cuda.as_deref())?;
    if has("--twice") {
        let again = for_any(workspace, &toolchain, "runtime-again", cuda.as_deref())?;
        compare(&folder, &again)?;
    }
    archive(workspace, &folder).map(drop)
}

/// The archive of a runtime from this workspace's own native build, for this machine alone.
pub(crate) fn archive_here(workspace: &Workspace) -> Result<PathBuf> {
    // cargo ignores `autoplace/media` if `autoplace` is the only selected package.
    let library = ["build", "--package=autoplace-llama-sys", "--lib", "--features=media,rpc"];
    let folder = here(workspace, &mut workspace.cargo(&library))?;
    archive(workspace, &folder)
}

/// A runtime from this workspace's own native build. If the build is missing, the command `build` makes it.
pub(crate) fn here(workspace: &Workspace, build: &mut Command) -> Result<PathBuf> {
    let built = variables(&output(build.arg("--message-format=json-render-diagnostics"))?)?;
    let folder = tree::afresh(workspace.target.join("runtime/here"))?;
    copy(shim(&built)?, &folder.join(SHIM))?;
    let compiler = output(Command::new(setup::cxx()?).arg("--version"))?;
    let needs = portable::needs(&folder.join(SHIM))?;
    let requires = required(workspace, &needs.libraries)?;
    seal(workspace, &folder, &built, &[SHIM], compiler.lines().next().unwrap_or_default(), &requires)?;
    Ok(folder)
}

/// A runtime for any x86-64 Linux, with loadable backends and an optional CUDA backend.
fn for_any(workspace: &Workspace, toolchain: &Toolchain, name: &str, cuda: Option<&Path>) -> Result<PathBuf> {
    let root = workspace.target.join(name);
    let mut build = toolchain.cargo(workspace)?;
    let features = match workspace.vulkan {
        Some(_) => "dynamic-backends,media,rpc,vulkan",
        None => "dynamic-backends,media,rpc",
    };
    build
        .args(["--release", "--locked", "--no-default-features", "--package=autoplace-llama-sys", "--lib"])
        .args(["--features", features, "--message-format=json-render-diagnostics"])
        .env(ASKED, "1")
        .env("AUTOPLACE_LLAMA_BUILD_DIR", root.join("llama"));
    if let Some(sdk) = &workspace.vulkan {
        build.env("VULKAN_SDK", sdk).env("CMAKE_PREFIX_PATH", sdk);
    }
    println!("runtime: llama.cpp for fourteen kinds of CPU takes some minutes the first time");
    let mut built = variables(&output(&mut build)?)?;
    let libraries = PathBuf::from(built.get("LLAMA_SYS_BACKEND_DIR").context("the build has no folder of backends")?);
    let folder = tree::afresh(root.join("set"))?;
    copy_libraries(&libraries, &folder)?;
    copy(shim(&built)?, &folder.join(SHIM))?;
    if let Some(library) = cuda {
        copy(library, &folder.join("libggml-cuda.so"))?;
        built.entry(BACKENDS.to_owned()).or_default().push_str(",CUDA");
    }
    let mut opened = LLAMA_CPP.to_vec();
    opened.push(SHIM);
    let others: Vec<&str> = OTHERS.iter().map(|other| other.library).collect();
    let requires = required(workspace, &portable::check("runtime", &folder, GLIBC, &others)?)?;
    fs::write(folder.join("LICENSE-zig"), toolchain.licences()?)?;
    let compiler = format!("{}, glibc {}.{}", toolchain.packages.join(", "), GLIBC.0, GLIBC.1);
    seal(workspace, &folder, &built, &opened, &compiler, &requires)?;
    Ok(folder)
}

/// Tests the native layer with libraries that are opened instead of linked, and the example `packed`.
pub(crate) fn test(workspace: &Workspace) -> Result<()> {
    if !cfg!(target_os = "linux") {
        println!("runtimes can be made on Linux only: nothing is tested here");
        return Ok(());
    }
    // This command reuses the build of the previous step.
    let set = here(workspace, &mut workspace.compile("test", &["--workspace", "--no-run"]))?;
    // The command selects the whole workspace like earlier steps, so that unchanged parts are not compiled again.
    let opened = ["test", "--workspace", "--features=autoplace/prebuilt-runtime", "--test=sys"];
    let build = ["--example=packed", "--no-run", "--message-format=json-render-diagnostics"];
    let messages = output(workspace.cargo(&opened).args(build))?;
    let program = messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let mut program = program.filter(|message| message["target"]["name"] == "packed");
    let program = program.find_map(|message| message["executable"].as_str().map(PathBuf::from));
    packed::packed(workspace, &program.context("cargo has built no example `packed`")?, &set)?;
    run(workspace.cargo(&opened).env("AUTOPLACE_RUNTIME", &set))
}

/// The variables that llama-sys's build script passes to its crate.
fn variables(messages: &str) -> Result<BTreeMap<String, String>> {
    let messages = messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let of_build = messages.filter(|message| message["reason"] == "build-script-executed");
    let variables = of_build.filter_map(|message| message["env"].as_array().cloned()).flatten();
    let known =
        variables.filter_map(|variable| Some((variable[0].as_str()?.to_owned(), variable[1].as_str()?.to_owned())));
    let known: BTreeMap<_, _> = known.filter(|(name, _)| name.starts_with("LLAMA_SYS_")).collect();
    ensure!(known.contains_key("LLAMA_SYS_BUILD"), "cargo did not report the output of llama-sys's build script");
    Ok(known)
}

/// The shim of the build with these variables. Another build, for example with other features, has a shim of its own.
fn shim(built: &BTreeMap<String, String>) -> Result<&Path> {
    built.get(LIBRARY).map(Path::new).with_context(|| format!("the build has no shim as a library: is {ASKED} set?"))
}

/// The needed libraries for which a program looks before it opens a runtime.
fn required(workspace: &Workspace, needs: &BTreeSet<String>) -> Result<Vec<Value>> {
    let pinned = fs::read_to_string(workspace.root.join(cuda_check::REQUIREMENTS))?;
    let needed = OTHERS.iter().filter(|other| needs.contains(other.library));
    let described = needed.map(|Other { backend, library, source, cuda }| {
        let package = pinned.lines().find(|line| line.split("==").next() == Some(*source));
        let source =
            package.map_or_else(|| (*source).to_owned(), |name| format!("NVIDIA's Python package {name}, or CUDA 13"));
        json!({ "backend": backend, "library": library, "source": source, "cuda": cuda })
    });
    Ok(described.collect())
}

/// Adds the licences and the manifest to the folder.
fn seal(
    workspace: &Workspace,
    folder: &Path,
    built: &BTreeMap<String, String>,
    libraries: &[&str],
    compiler: &str,
    requires: &[Value],
) -> Result<()> {
    for licence in ["LICENSE-APACHE", "LICENSE-MIT", "llama-sys/LICENSE-llama.cpp"] {
        let from = workspace.root.join(licence);
        copy(&from, &folder.join(from.file_name().context("a file has a name")?))?;
    }
    let list = |name: &str| {
        let text = built.get(name).map(String::as_str).unwrap_or_default();
        text.split(',').filter(|part| !part.is_empty()).map(str::to_owned).collect::<Vec<_>>()
    };
    let backends = list(BACKENDS);
    let target = &built["LLAMA_SYS_TARGET"];
    let version = env!("CARGO_PKG_VERSION");
    let loadable = built.contains_key("LLAMA_SYS_BACKEND_DIR");
    let place = if loadable { String::new() } else { "-here".to_owned() };
    let kinds = backends.join("-").to_lowercase();
    // The name contains hashes of llama.cpp and of the shim, so that sets of different builds can be installed in the
    // same folder.
    let build = &built["LLAMA_SYS_BUILD"];
    let hashes = build.split([' ', ',']).filter(|word| word.len() == 16).map(|hash| &hash[..8]);
    let made_from = hashes.collect::<Vec<_>>().join("-");
    let manifest = json!({
        "name": format!("autoplace-runtime-{version}-{made_from}-{target}-{kinds}{place}"),
        "build": build,
        "target": target,
        "compiler": compiler,
        "backends": backends,
        "loadable": loadable,
        "openmp": built.get("LLAMA_SYS_OPENMP").is_some_and(|value| value == "1"),
        "threads_sleep": built.get("LLAMA_SYS_THREADS_SLEEP").is_some_and(|value| value == "1"),
        "instructions": list("LLAMA_SYS_INSTRUCTION_SET"),
        "libraries": libraries,
        "requires": requires,
    });
    fs::write(folder.join("runtime.json"), manifest.to_string())?;
    let seal = ["run", "--quiet", "--locked", "--package=autoplace-runtime", "--example=seal", "--"];
    run(workspace.cargo(&seal).arg(folder))
}

/// Compares two builds file by file and prints the result.
fn compare(one: &Path, other: &Path) -> Result<()> {
    let read =
        |folder: &Path| -> Result<Value> { Ok(serde_json::from_slice(&fs::read(folder.join("runtime.json"))?)?) };
    let (one, other) = (read(one)?, read(other)?);
    let files = one["files"].as_object().context("a manifest has files")?;
    let differ: Vec<&String> =
        files.iter().filter(|(name, entry)| other["files"][name] != **entry).map(|file| file.0).collect();
    ensure!(differ.is_empty(), "two builds differ in {differ:?}");
    println!("runtime: two builds in two folders are the same in all {} files", files.len());
    Ok(())
}

/// Makes the installable archive, named after the set, and returns its path.
fn archive(workspace: &Workspace, folder: &Path) -> Result<PathBuf> {
    let manifest: Value = serde_json::from_slice(&fs::read(folder.join("runtime.json"))?)?;
    let name = manifest["name"].as_str().context("a manifest has a name")?;
    let named = workspace.target.join("runtime").join(name);
    tree::mirror(folder, &named, &|_| true)?;
    let archive = tree::pack(workspace, &named)?;
    let bytes = fs::metadata(&archive)?.len();
    let hash = output(Command::new("sha256sum").arg(&archive))?;
    println!("runtime: {}, {bytes} bytes, for {TARGET}", archive.display());
    println!("runtime: SHA-256 {}", hash.split_whitespace().next().unwrap_or_default());
    Ok(archive)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// cargo's message about the build script of llama-sys with these variables.
    fn message(variables: &[(&str, &str)]) -> String {
        let env: Vec<[&str; 2]> = variables.iter().map(|(name, value)| [*name, *value]).collect();
        json!({ "reason": "build-script-executed", "out_dir": "/target/build/a/out", "env": env }).to_string()
    }

    #[test]
    fn the_shim_of_a_runtime_is_that_of_the_same_build() {
        let other = message(&[("OTHER", "value")]);
        let name = ("LLAMA_SYS_BUILD", "autoplace-llama-sys 1.0.0");
        let with_media = message(&[name, (LIBRARY, "/target/build/with-media/out/libautoplace-llama.so")]);
        let built = variables(&format!("{other}\n{with_media}\nnot JSON\n")).unwrap();
        assert_eq!(shim(&built).unwrap(), Path::new("/target/build/with-media/out/libautoplace-llama.so"));
        let without = variables(&message(&[name])).unwrap();
        let error = shim(&without).unwrap_err().to_string();
        assert!(error.contains(ASKED), "{error}");
    }

    #[test]
    fn a_build_without_llama_sys_is_an_error() {
        assert!(variables(&message(&[("OTHER", "value")])).is_err());
    }
}
