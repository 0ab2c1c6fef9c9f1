//! `package`: packs all published crates as for crates.io, and builds the packages.
//!
//! 1. Copies the workspace below the target folder and adds llama.cpp's source, which the repository does not contain.
//!    (The source is not added to the working tree itself. There, an interrupted run would leave the source, and every
//!    later build would silently prefer it.)
//! 2. Packs the copy with `cargo package`, but without its verification. The verification would build each crate again
//!    for every crate that depends on it, which means one native build too many.
//! 3. Unpacks the packages into one folder and builds them against each other, with llama.cpp from the package. As a
//!    step of `test`, the verb uses the workspace's llama.cpp, and checks that the package contains every file that the
//!    build has read.
//!
//! To publish: `cargo publish -p autoplace-runtime -p autoplace-llama-sys -p autoplace-gguf -p autoplace-planner -p
//! autoplace-chat -p autoplace-hub -p autoplace-media -p autoplace -p autoplace-measure -p autoplace-pool -p
//! autoplace-openai -p autoplace-cli` in `target/package-source`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::workspace::{Workspace, run};
use crate::{setup, source, tree};

/// The address to which links in the packages lead.
const REPOSITORY: &str = concat!(env!("CARGO_PKG_REPOSITORY"), "/blob/main/");

/// crates.io's size limit in bytes.
const LIMIT: u64 = 10_000_000;

/// All published crates.
pub(crate) const PUBLISHED: [&str; 12] = [
    "autoplace-runtime",
    LLAMA_SYS,
    "autoplace-gguf",
    "autoplace-planner",
    "autoplace-chat",
    "autoplace-hub",
    "autoplace-media",
    "autoplace",
    "autoplace-measure",
    "autoplace-pool",
    "autoplace-openai",
    PROGRAM,
];
const LLAMA_SYS: &str = "autoplace-llama-sys";
const PROGRAM: &str = "autoplace-cli";

/// Files that a crate's package must contain.
fn required(name: &str) -> Vec<&'static str> {
    let code = if name == PROGRAM { "src/main.rs" } else { "src/lib.rs" };
    let mut files = vec!["LICENSE-APACHE", "LICENSE-MIT", "README.md", code];
    if name == LLAMA_SYS {
        files.extend([
            "LICENSE-llama.cpp",
            "build/main.rs",
            "build/source.rs",
            "native/shim.cpp",
            "src/raw/bindings.rs",
        ]);
        files.extend(["llama.cpp/LICENSE", "llama.cpp/include/llama.h"]);
    }
    files
}

/// The published crates with a library.
pub(crate) fn libraries() -> impl Iterator<Item = &'static str> {
    PUBLISHED.into_iter().filter(|name| *name != PROGRAM)
}

/// Packs all crates, checks their files and sizes, and builds them as a user would.
pub(crate) fn package(workspace: &Workspace) -> Result<()> {
    let unpacked = unpacked(workspace)?;
    let mut command = cargo(workspace, "build", &unpacked)?;
    command.arg("--target-dir").arg(unpacked.join("target"));
    // The packaged source must be used.
    command.env_remove("LLAMA_CPP_DIR");
    // Users have no shared folder for native builds. So this is the only build that tests OUT_DIR.
    command.env("AUTOPLACE_LLAMA_BUILD_DIR", "");
    run(&mut command)
}

/// Like [`package`], but only checks the crates, with the workspace's native build, because a new native build would
/// take minutes. The package must contain every file that the build has read.
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
    // The dependencies were already checked for the documentation.
    let mut command = cargo(workspace, "check", &unpacked)?;
    run(command.arg("--target-dir").arg(&workspace.target).env("LLAMA_CPP_DIR", source))
}

/// Packs all crates and returns the folder of their unpacked files.
fn unpacked(workspace: &Workspace) -> Result<PathBuf> {
    setup::native()?;
    let stage = stage(workspace)?;
    let crates = pack(workspace, &stage)?;
    unpack(workspace, &crates)
}

/// The workspace with llama.cpp's source, below the target folder.
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
    // The links are changed, because the front page of the documentation links to files that the package does not
    // contain.
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

/// Runs `cargo package` and returns the paths of the packages.
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

/// Unpacks the packages. Each crate keeps its path from run to run, so that a second run builds only changes.
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

/// Cargo in a workspace of the packages, where each package uses the others instead of crates.io's.
fn cargo(workspace: &Workspace, verb: &str, check: &Path) -> Result<Command> {
    let patches = PUBLISHED.map(|name| format!("{name} = {{ path = \"{name}\" }}\n"));
    // The profiles are those of the workspace, so that dependencies are not checked again.
    let own = fs::read_to_string(workspace.root.join("Cargo.toml"))?;
    let profiles = own.find("[profile.dev]").context("the workspace's Cargo.toml has no profiles")?;
    let manifest = format!(
        "[workspace]\nresolver = \"3\"\nmembers = {PUBLISHED:?}\n\n[patch.crates-io]\n{}\n{}",
        patches.concat(),
        &own[profiles..]
    );
    tree::write(&check.join("Cargo.toml"), manifest.as_bytes())?;
    // The lock file has the tested versions. Versions that these crates do not use are dropped.
    fs::copy(workspace.root.join("Cargo.lock"), check.join("Cargo.lock"))?;
    let mut command = workspace.compile(verb, &["--workspace", "--lib", "--bins"]);
    command.arg("--manifest-path").arg(check.join("Cargo.toml"));
    Ok(command)
}
