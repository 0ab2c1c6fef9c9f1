//! `package`: all published crates as crates.io would get them, and a build of just that.
//!
//! 1. A copy of the workspace below the target folder gets llama.cpp's source, which the repository does not hold. (In
//!    the working tree itself, an interrupted run would leave a source behind that every later build silently prefers.)
//! 2. `cargo package` packs the copy. Without its own verification: that builds a crate and then, for the crate that
//!    depends on it, the same crate once more from another folder, which is one native build too many.
//! 3. The packages are unpacked beside each other and built, the one with the other: with llama.cpp from the package,
//!    or (as a step of `test`) with the workspace's, every file of which that was read the package must hold.
//!
//! To publish: `cargo publish -p autoplace-runtime -p autoplace-llama-sys -p autoplace-planner -p autoplace-chat -p
//! autoplace-hub -p autoplace -p autoplace-measure -p autoplace-openai -p autoplace-cli` in `target/package-source`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::workspace::{Workspace, run};
use crate::{setup, source, tree};

/// Where links from the packages lead.
const REPOSITORY: &str = concat!(env!("CARGO_PKG_REPOSITORY"), "/blob/main/");

/// The limit of crates.io, in bytes.
const LIMIT: u64 = 10_000_000;

/// All that are published.
pub(crate) const PUBLISHED: [&str; 9] = [
    "autoplace-runtime",
    LLAMA_SYS,
    "autoplace-planner",
    "autoplace-chat",
    "autoplace-hub",
    "autoplace",
    "autoplace-measure",
    "autoplace-openai",
    PROGRAM,
];
const LLAMA_SYS: &str = "autoplace-llama-sys";
const PROGRAM: &str = "autoplace-cli";

/// The files without which a crate must not go out.
fn required(name: &str) -> Vec<&'static str> {
    let code = if name == PROGRAM { "src/main.rs" } else { "src/lib.rs" };
    let mut files = vec!["LICENSE-APACHE", "LICENSE-MIT", "README.md", code];
    if name == LLAMA_SYS {
        files.extend(["LICENSE-llama.cpp", "build.rs", "build/source.rs", "native/shim.cpp", "src/bindings.rs"]);
        files.extend(["llama.cpp/LICENSE", "llama.cpp/include/llama.h"]);
    }
    files
}

/// The published crates that others can call.
pub(crate) fn libraries() -> impl Iterator<Item = &'static str> {
    PUBLISHED.into_iter().filter(|name| *name != PROGRAM)
}

/// Packs all crates, checks what is in them and how large they are, and builds them as their users do.
pub(crate) fn package(workspace: &Workspace) -> Result<()> {
    let unpacked = unpacked(workspace)?;
    let mut command = cargo(workspace, "build", &unpacked)?;
    command.arg("--target-dir").arg(unpacked.join("target"));
    // The package has its own source, which is what is to be proved.
    command.env_remove("LLAMA_CPP_DIR");
    // Users have no shared folder for native builds: this is the one place where OUT_DIR is tried.
    command.env("AUTOPLACE_LLAMA_BUILD_DIR", "");
    run(&mut command)
}

/// The same, checked instead of built, and with the workspace's native build, which takes minutes: the package must
/// hold every file that it read.
pub(crate) fn package_by_shared_build(workspace: &Workspace) -> Result<()> {
    let unpacked = unpacked(workspace)?;
    let source = source::find(workspace)?;
    let read = source::read_by(workspace, &source)?;
    let packaged = unpacked.join("autoplace-llama-sys/llama.cpp");
    for file in &read {
        ensure!(
            fs::read(source.join(file))? == fs::read(packaged.join(file)).unwrap_or_default(),
            "the package autoplace-llama-sys lacks llama.cpp/{}, which the native build reads: correct the lists in \
             xtask/src/source.rs",
            file.display()
        );
    }
    println!("llama.cpp: all {} files that the native build reads", read.len());
    // What others wrote is checked already, for the documentation.
    let mut command = cargo(workspace, "check", &unpacked)?;
    run(command.arg("--target-dir").arg(&workspace.target).env("LLAMA_CPP_DIR", source))
}

/// The packages' files, by crate.
fn unpacked(workspace: &Workspace) -> Result<PathBuf> {
    setup::native()?;
    let stage = stage(workspace)?;
    let crates = pack(workspace, &stage)?;
    unpack(workspace, &crates)
}

/// The workspace with llama.cpp's source in it, below the target folder.
fn stage(workspace: &Workspace) -> Result<PathBuf> {
    let stage = workspace.target.join("package-source");
    fs::create_dir_all(&stage)?;
    for file in ["Cargo.toml", "Cargo.lock"] {
        tree::write(&stage.join(file), &fs::read(workspace.root.join(file))?)?;
    }
    for package in workspace.packages()? {
        let manifest = Path::new(package["manifest_path"].as_str().context("a package has a manifest")?);
        let member = manifest.parent().and_then(Path::file_name).context("it lies in a folder")?;
        tree::mirror(&workspace.root.join(member), &stage.join(member), &|path| {
            path.file_name().is_none_or(|name| name != "target") && path != Path::new("llama.cpp")
        })?;
    }
    // The front page of the documentation: what its links name is not in the package.
    let page = stage.join("autoplace/README.md");
    let text = fs::read_to_string(&page)?;
    tree::write(&page, with_absolute_links(&text).as_bytes())?;
    source::mirror(&source::find(workspace)?, &stage.join("llama-sys/llama.cpp"))?;
    Ok(stage)
}

fn with_absolute_links(page: &str) -> String {
    let mut parts = page.split("](");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, link| {
        let is_relative = !link.starts_with("http") && !link.starts_with('#');
        text + "](" + if is_relative { REPOSITORY } else { "" } + link
    })
}

/// `cargo package`; the paths of the two packages.
fn pack(workspace: &Workspace, stage: &Path) -> Result<Vec<PathBuf>> {
    let mut command = workspace.cargo(&["package", "--quiet", "--no-verify", "--allow-dirty"]);
    command.args(PUBLISHED.iter().flat_map(|name| ["--package", name]));
    command.arg("--manifest-path").arg(stage.join("Cargo.toml"));
    command.arg("--target-dir").arg(&workspace.target);
    run(&mut command).context("cargo 1.90 or newer packages crates that depend on each other")?;
    let version = env!("CARGO_PKG_VERSION");
    let mut paths = Vec::new();
    for name in PUBLISHED {
        let path = workspace.target.join(format!("package/{name}-{version}.crate"));
        let bytes = fs::metadata(&path).with_context(|| format!("cargo made no {}", path.display()))?.len();
        ensure!(
            bytes <= LIMIT,
            "{} is {bytes} bytes; crates.io takes {LIMIT}: see what xtask/src/source.rs lets in",
            path.display()
        );
        println!("{name}-{version}.crate: {bytes} bytes");
        paths.push(path);
    }
    Ok(paths)
}

/// The packages' files, each crate in a folder whose path stays the same, so that a second run builds
/// only what changed.
fn unpack(workspace: &Workspace, crates: &[PathBuf]) -> Result<PathBuf> {
    let check = workspace.target.join("package-check");
    for (name, path) in PUBLISHED.iter().zip(crates) {
        let scratch = tree::afresh(check.join("unpacked"))?;
        tree::unpack(path, &scratch)?;
        let folder = scratch.join(path.file_stem().context("a package has a name")?);
        let files = tree::files(&folder)?;
        for required in required(name) {
            ensure!(files.contains(Path::new(required)), "the package {name} lacks {required}");
        }
        println!("{name}: {} files", files.len());
        tree::mirror(&folder, &check.join(name), &|_| true)?;
        fs::remove_dir_all(&scratch)?;
    }
    Ok(check)
}

/// Cargo in a workspace of the packages, in which each takes the others instead of crates.io's.
fn cargo(workspace: &Workspace, verb: &str, check: &Path) -> Result<Command> {
    let patches = PUBLISHED.map(|name| format!("{name} = {{ path = \"{name}\" }}\n"));
    // And profiles: those of the workspace, so that what it has checked is not checked again.
    let own = fs::read_to_string(workspace.root.join("Cargo.toml"))?;
    let profiles = own.find("[profile.dev]").context("the workspace's Cargo.toml has no profiles")?;
    let manifest = format!(
        "[workspace]\nresolver = \"3\"\nmembers = {PUBLISHED:?}\n\n[patch.crates-io]\n{}\n{}",
        patches.concat(),
        &own[profiles..]
    );
    tree::write(&check.join("Cargo.toml"), manifest.as_bytes())?;
    // The versions that were tested, less what these crates do not use.
    fs::copy(workspace.root.join("Cargo.lock"), check.join("Cargo.lock"))?;
    let mut command = workspace.compile(verb, &["--workspace", "--lib", "--bins"]);
    command.arg("--manifest-path").arg(check.join("Cargo.toml"));
    Ok(command)
}
