//! `gpu-bundle`: makes an archive that checks the library on a machine with a card, without Rust and without a network.
//!
//! 1. Builds the programs for the oldest promised glibc and plain x86-64 (`toolchain`), with loadable backends that
//!    exceptions can cross (`exceptions`). The CUDA backend is built on the other machine, the Vulkan backend here.
//! 2. Puts them in a folder with llama.cpp's source, the CUDA backend's own cmake build, the demo model and `run.sh`.
//! 3. Checks that all files need only libraries that every system has (`portable`).
//! 4. Packs the archive, checks its size, unpacks it elsewhere, and runs it without a card: with simulated cards, and
//!    with the Vulkan backend on Mesa's software device.

mod exceptions;
pub(crate) mod portable;
pub(crate) mod toolchain;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use crate::workspace::{Workspace, output, run};
use crate::{notices, setup, source, tree, vulkan};
use toolchain::Toolchain;

/// Maximum bytes of the archive, which people copy to machines by hand.
const LIMIT: u64 = 60_000_000;

const MODEL: &str = "autoplace-demo-q8_0.gguf";

/// The programs, by their cargo targets.
const PROGRAMS: [&str; 3] = ["autoplace", "generate", "gpu-check"];

/// The packages of the programs.
const PACKAGES: [&str; 3] = ["autoplace-cli", "autoplace-examples", "autoplace-gpu-check"];

/// The features. `native` and `openmp` are left out, so that the CPU code runs on any x86-64 and no compiler runtime
/// has to be shipped.
const FEATURES: [&str; 3] =
    ["autoplace-cli/dynamic-backends", "autoplace-examples/dynamic-backends", "autoplace-gpu-check/dynamic-backends"];

/// The feature of an archive with a Vulkan backend.
const VULKAN_FEATURE: &str = "autoplace-gpu-check/vulkan";
/// The Vulkan backend. It lies in a folder of its own, so that it is loaded only if `run.sh` names it.
const VULKAN_BACKEND: &str = "libggml-vulkan.so";
/// Vulkan's loader, which comes with a card's driver.
const VULKAN_LOADER: &str = "libvulkan.so.1";

pub(crate) fn gpu_bundle(workspace: &mut Workspace, flags: &[String]) -> Result<()> {
    if let Some(other) = flags.iter().find(|flag| !["--vulkan", "--no-run"].contains(&flag.as_str())) {
        bail!("`{other}`: usage: cargo xtask gpu-bundle [--vulkan] [--no-run]");
    }
    let has = |flag: &str| flags.iter().any(|one| one == flag);
    ensure!(
        cfg!(all(target_os = "linux", target_arch = "x86_64")),
        "the bundle can be made on x86-64 Linux only; this machine is {} {}",
        std::env::consts::ARCH,
        std::env::consts::OS
    );
    setup::native()?;
    if has("--vulkan") {
        workspace.vulkan = Some(vulkan::sdk(workspace)?);
    }
    let toolchain = Toolchain::prepare(workspace)?;
    exceptions::check(workspace, &toolchain)?;
    let built = build(workspace, &toolchain)?;
    let folder = lay_out(workspace, &toolchain, &built)?;
    portable::check("gpu-bundle", &folder.join("bin"), toolchain::GLIBC, &[])?;
    if workspace.vulkan.is_some() {
        let loaded_before = ["libggml-base.so.0", VULKAN_LOADER];
        portable::check("gpu-bundle", &folder.join("vulkan"), toolchain::GLIBC, &loaded_before)?;
    }
    let archive = pack(workspace, &folder)?;
    if !has("--no-run") {
        unpack_and_run(&archive, workspace.vulkan.is_some())?;
    }
    Ok(())
}

/// The results of a build, from cargo's messages.
struct Built {
    programs: Vec<PathBuf>,
    /// The folder with llama.cpp's shared libraries and loadable backends.
    libraries: PathBuf,
}

fn build(workspace: &Workspace, toolchain: &Toolchain) -> Result<Built> {
    println!("gpu-bundle: builds the programs; llama.cpp's fourteen CPU variants take some minutes the first time");
    let mut command = toolchain.cargo(workspace)?;
    command.args([
        "--release",
        "--locked",
        "--no-default-features",
        "--message-format=json-render-diagnostics",
        "--bin=autoplace",
        "--example=generate",
        "--bin=gpu-check",
    ]);
    command.args(PACKAGES.map(|name| format!("--package={name}")));
    command.arg(format!("--features={}", features(workspace).join(",")));
    if let Some(sdk) = &workspace.vulkan {
        command.env("VULKAN_SDK", sdk).env("CMAKE_PREFIX_PATH", sdk);
    }
    let messages = output(&mut command)?;
    let mut programs = Vec::new();
    let mut libraries = None;
    for message in messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()) {
        let name = message["target"]["name"].as_str().unwrap_or_default();
        if let Some(program) = message["executable"].as_str()
            && PROGRAMS.contains(&name)
        {
            programs.push(PathBuf::from(program));
        }
        for variable in message["env"].as_array().into_iter().flatten() {
            if variable[0] == "LLAMA_SYS_BACKEND_DIR" {
                libraries = variable[1].as_str().map(PathBuf::from);
            }
        }
    }
    ensure!(programs.len() == PROGRAMS.len(), "cargo has built {programs:?} instead of {PROGRAMS:?}");
    let libraries = libraries.context("llama-sys's build script names no folder of backends")?;
    Ok(Built { programs, libraries })
}

fn features(workspace: &Workspace) -> Vec<&'static str> {
    let vulkan = workspace.vulkan.as_ref().map(|_| VULKAN_FEATURE);
    FEATURES.into_iter().chain(vulkan).collect()
}

/// Fills the archive's folder below the target folder.
fn lay_out(workspace: &Workspace, toolchain: &Toolchain, built: &Built) -> Result<PathBuf> {
    let name = format!("autoplace-gpu-check-{}", env!("CARGO_PKG_VERSION"));
    let folder = tree::afresh(toolchain.folder.join(name))?;
    let root = &workspace.root;
    tree::mirror(&root.join("gpu-check/bundle"), &folder, &|_| true)?;
    // The file is copied again, as an executable.
    copy(&root.join("gpu-check/bundle/run.sh"), &folder.join("run.sh"))?;
    source::mirror(&source::find(workspace)?, &folder.join("llama.cpp"))?;
    for licence in ["LICENSE-APACHE", "LICENSE-MIT"] {
        copy(&root.join(licence), &folder.join(licence))?;
    }
    let selection = notices::Selection { packages: &PACKAGES, features: &features(workspace) };
    notices::write(
        workspace,
        &folder.join(notices::FILE),
        &selection,
        &[("zig, and LLVM's libc++", toolchain.licences()?)],
    )?;
    copy(&root.join("examples/model").join(MODEL), &folder.join("model").join(MODEL))?;
    for program in &built.programs {
        let name = program.file_name().context("a program has a name")?;
        copy(program, &folder.join("bin").join(name))?;
    }
    copy_libraries(&built.libraries, &folder.join("bin"))?;
    if workspace.vulkan.is_some() {
        fs::create_dir_all(folder.join("vulkan"))?;
        fs::rename(folder.join("bin").join(VULKAN_BACKEND), folder.join("vulkan").join(VULKAN_BACKEND))
            .with_context(|| format!("the build has no {VULKAN_BACKEND}"))?;
    }
    let record = serde_json::to_string_pretty(&record(workspace, toolchain)?)?;
    tree::write(&folder.join("BUILD.json"), format!("{record}\n").as_bytes())?;
    Ok(folder)
}

/// Copies llama.cpp's shared libraries under the names by which programs load them. The copies look for other libraries
/// only in their own folder.
pub(crate) fn copy_libraries(from: &Path, to: &Path) -> Result<()> {
    for file in tree::files(from)? {
        let path = from.join(&file);
        // Links to libraries are additional names, of which programs use only one.
        if path.is_symlink() || !path.to_string_lossy().contains(".so") {
            continue;
        }
        // A library that programs open by its path has no other name.
        let name = portable::needs(&path)?.name;
        let name = name.map_or_else(|| file.as_os_str().to_owned(), Into::into);
        portable::copy_with_own_folder(&path, &to.join(name))?;
    }
    Ok(())
}

/// Copies a file with its permissions.
pub(crate) fn copy(from: &Path, to: &Path) -> Result<()> {
    let parent = to.parent().context("a file lies in a folder")?;
    fs::create_dir_all(parent)?;
    fs::copy(from, to).with_context(|| format!("cannot copy {} to {}", from.display(), to.display()))?;
    Ok(())
}

/// A list of the bundle's components, for readers of its results.
fn record(workspace: &Workspace, toolchain: &Toolchain) -> Result<Value> {
    let said = |program: &str, arguments: &[&str]| -> Result<String> {
        let mut command = Command::new(program);
        let text = output(command.current_dir(&workspace.root).args(arguments))?;
        Ok(text.trim().to_owned())
    };
    let (major, minor) = toolchain::GLIBC;
    let (target, packages) = (toolchain::TARGET, &toolchain.packages);
    Ok(json!({
        "version": env!("CARGO_PKG_VERSION"),
        "commit": said("git", &["describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"])?,
        "target": target,
        "glibc": format!("{major}.{minor}"),
        "rustc": said("rustc", &["--version"])?,
        "toolchain": packages,
        "features": features(workspace),
    }))
}

/// Packs the archive and checks its size.
fn pack(workspace: &Workspace, folder: &Path) -> Result<PathBuf> {
    let archive = tree::pack(workspace, folder)?;
    let bytes = fs::metadata(&archive)?.len();
    ensure!(bytes <= LIMIT, "{} has {bytes} bytes, but at most {LIMIT} are allowed", archive.display());
    println!("gpu-bundle: {}, {bytes} bytes", archive.display());
    Ok(archive)
}

/// Unpacks the archive in a separate folder outside the repository, and runs all parts that need no card.
fn unpack_and_run(archive: &Path, has_vulkan: bool) -> Result<()> {
    let name = format!("autoplace-gpu-bundle-{}", std::process::id());
    let elsewhere = tree::afresh(std::env::temp_dir().join(name))?;
    tree::unpack(archive, &elsewhere)?;
    let stem = archive.file_name().unwrap_or_default().to_string_lossy();
    let folder = elsewhere.join(stem.trim_end_matches(".tar.gz"));
    let run_with = |arguments: &[&str]| {
        let mut command = Command::new(folder.join("run.sh"));
        command.args(arguments).env_remove("LD_LIBRARY_PATH").env(vulkan::DEVICE.0, vulkan::DEVICE.1);
        run(&mut command).with_context(|| format!("the unpacked bundle fails; it remains in {}", folder.display()))
    };
    // Only one thread is used. It never waits for other threads, so a busy machine hardly slows it down.
    run_with(&["--cpu", "--small", "--threads", "1"])?;
    if has_vulkan {
        // Mesa's device computes as slowly as the host, so only a few cases of two checks are run.
        run_with(&["--vulkan", "--small", "--minutes", "0", "--cases", "4", "identical", "bytes"])?;
    }
    fs::remove_dir_all(&elsewhere)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_flag_is_refused_before_anything_is_built() {
        let mut workspace = Workspace::find().unwrap();
        let error = gpu_bundle(&mut workspace, &["--vulcan".to_owned()]).unwrap_err().to_string();
        assert!(error.starts_with("`--vulcan`: usage: cargo xtask gpu-bundle"), "{error}");
    }

    #[test]
    fn the_vulkan_backend_is_built_only_if_its_headers_are_there() {
        let mut workspace = Workspace::find().unwrap();
        assert_eq!(features(&workspace), FEATURES);
        workspace.vulkan = Some("sdk".into());
        assert_eq!(features(&workspace).last(), Some(&VULKAN_FEATURE));
    }
}
