//! `dist`: makes the installable program `autoplace`, as an archive in cargo-dist's layout with its hash, and as a
//! Debian package. Neither needs a C++ compiler.
//!
//! 1. Builds the program with `prebuilt-runtime`. The program then writes its manual pages and completions below
//!    `target/program`, beside the notices of the code of others (`notices`).
//! 2. Packs the archive with cargo-dist and the package with cargo-deb, as configured in `cli/Cargo.toml` and
//!    `dist-workspace.toml`.
//! 3. Makes a runtime for this machine, which needs a C++ compiler.
//! 4. Unpacks archive and package, each in a folder of its own, checks the files, and generates a text with the program
//!    and the runtime (`trial`).

mod trial;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::gpu_bundle::portable;
use crate::workspace::{Workspace, output, run};
use crate::{notices, python, runtime, setup, tree};
use trial::Trial;

const PACKAGE: &str = "autoplace-cli";
const TARGET: &str = "x86_64-unknown-linux-gnu";
const VERSION: &str = env!("CARGO_PKG_VERSION");

const DEB: &str = "3.8.0";

/// The file that pins cargo-dist to the version in `dist-workspace.toml`.
const DIST: &str = "xtask/dist/requirements.txt";

/// The folder of generated files, relative to the repository's root. It is outside cargo's target folder, because
/// `cli/Cargo.toml` contains its path and cargo's target folder may be elsewhere.
const PROGRAM: &str = "target/program";

/// Shells and the files of their completions.
const COMPLETIONS: [(&str, &str); 3] = [("bash", "autoplace.bash"), ("zsh", "_autoplace"), ("fish", "autoplace.fish")];

/// Required files of the archive, in addition to the other pages of the manual.
const ARCHIVED: [&str; 10] = [
    "CHANGELOG.md",
    "LICENSE-APACHE",
    "LICENSE-MIT",
    "README.md",
    "THIRD-PARTY-NOTICES",
    "autoplace",
    "completions/_autoplace",
    "completions/autoplace.bash",
    "completions/autoplace.fish",
    "man/autoplace-plan.1",
];

/// Required files of the Debian package.
const PACKAGED: [&str; 10] = [
    "usr/bin/autoplace",
    "usr/share/bash-completion/completions/autoplace",
    "usr/share/doc/autoplace/CHANGELOG.md",
    "usr/share/doc/autoplace/LICENSE-APACHE",
    "usr/share/doc/autoplace/README.md",
    "usr/share/doc/autoplace/THIRD-PARTY-NOTICES",
    "usr/share/doc/autoplace/copyright",
    "usr/share/fish/vendor_completions.d/autoplace.fish",
    "usr/share/man/man1/autoplace-plan.1.gz",
    "usr/share/zsh/vendor-completions/_autoplace",
];

pub(crate) fn dist(workspace: &Workspace) -> Result<()> {
    ensure!(
        cfg!(all(target_os = "linux", target_arch = "x86_64")),
        "archives of the program can be made on x86-64 Linux only"
    );
    setup::native()?;
    let deb = setup::tool(workspace, "cargo-deb", DEB)?;
    let dist = python::environment(workspace, DIST)?.with_file_name("dist");
    let (program, compiled) = build(workspace)?;
    generate(workspace, &program)?;
    write_notices(workspace, &workspace.root.join(PROGRAM), &compiled)?;
    let needs = portable::needs(&program)?;
    println!(
        "dist: {}, glibc {}",
        needs.libraries.iter().cloned().collect::<Vec<_>>().join(" "),
        glibc(&needs.versions)
    );

    // Build scripts read the variable. With another value than in `build`, the whole program would be compiled again.
    let mut pack = Command::new(dist);
    pack.current_dir(&workspace.root).env_remove("CARGO_MANIFEST_DIR");
    run(pack.args(["dist", "build", "--artifacts=local", "--allow-dirty", "--target", TARGET]))?;
    let trial = Trial { model: workspace.root.join(trial::MODEL), runtime: runtime::archive_here(workspace)? };
    archive(workspace, &trial)?;
    // cargo-deb packs the program that is already built.
    let folder = workspace.target.join("debian");
    run(Command::new(deb)
        .current_dir(&workspace.root)
        .args(["deb", "--package", PACKAGE, "--no-build", "--profile=dist", "--target", TARGET, "--output"])
        .arg(&folder))?;
    debian(workspace, &folder, &trial)
}

/// The features of the program in archives and packages.
pub(crate) fn features(workspace: &Workspace) -> Result<Vec<String>> {
    let table = &metadata(workspace)?["dist"];
    let features = table["features"].as_array().context("cli/Cargo.toml has no features for cargo-dist")?;
    Ok(features.iter().filter_map(Value::as_str).map(str::to_owned).collect())
}

/// Builds the program in the same way as cargo-dist, which then finds it up to date. Returns the program and the
/// packages of others that were compiled into it, in the form `name version`.
fn build(workspace: &Workspace) -> Result<(PathBuf, BTreeSet<String>)> {
    let messages = output(
        workspace
            .cargo(&["build", "--profile=dist", "--locked", "--no-default-features", "--target", TARGET])
            .args(["--package", PACKAGE, "--features", &features(workspace)?.join(",")])
            .arg("--message-format=json-render-diagnostics"),
    )?;
    let folder = workspace.target.join(TARGET);
    let compiled = messages.lines().filter_map(|line| serde_json::from_str(line).ok());
    let compiled = compiled.filter_map(|message| compiled_package(&message, &folder)).collect();
    Ok((folder.join("dist/autoplace"), compiled))
}

/// The package of a registry whose library cargo has compiled into this folder. Build scripts, macros and their
/// dependencies are compiled into another folder.
fn compiled_package(message: &Value, folder: &Path) -> Option<String> {
    let mut files = message["filenames"].as_array()?.iter().filter_map(Value::as_str);
    let is_inside = files.any(|file| Path::new(file).starts_with(folder));
    let (source, package) = message["package_id"].as_str()?.split_once('#')?;
    (is_inside && source.starts_with("registry+")).then(|| package.replace('@', " "))
}

/// Writes the notices. Fails if they lack a package that was compiled into the program.
fn write_notices(workspace: &Workspace, folder: &Path, compiled: &BTreeSet<String>) -> Result<()> {
    let features = features(workspace)?;
    let features: Vec<&str> = features.iter().map(String::as_str).collect();
    let selection = notices::Selection { packages: &[PACKAGE], features: &features };
    let named = notices::write(workspace, &folder.join(notices::FILE), &selection, &[])?;
    let missing: Vec<&String> = compiled.difference(&named).collect();
    ensure!(
        missing.is_empty() && !compiled.is_empty(),
        "cargo has compiled {} packages of others into the program; {} does not name {missing:?}",
        compiled.len(),
        notices::FILE
    );
    Ok(())
}

/// Lets the program write its manual pages and completions.
fn generate(workspace: &Workspace, program: &Path) -> Result<()> {
    let folder = tree::afresh(workspace.root.join(PROGRAM))?;
    fs::create_dir(folder.join("man"))?;
    run(Command::new(program).arg("man").arg(folder.join("man")))?;
    for (shell, file) in COMPLETIONS {
        let script = output(Command::new(program).args(["completions", shell]))?;
        tree::write(&folder.join("completions").join(file), script.as_bytes())?;
    }
    Ok(())
}

/// The `[package.metadata]` of `cli`.
fn metadata(workspace: &Workspace) -> Result<Value> {
    let mut packages = workspace.packages()?.into_iter();
    let cli =
        packages.find(|package| package["name"] == PACKAGE).context("the workspace has no package autoplace-cli")?;
    Ok(cli["metadata"].clone())
}

/// Checks the archive's hash and files, and runs its program.
fn archive(workspace: &Workspace, trial: &Trial) -> Result<()> {
    let made = workspace.target.join("distrib");
    let name = format!("{PACKAGE}-{TARGET}");
    let archive = made.join(format!("{name}.tar.xz"));
    run(Command::new("sha256sum")
        .current_dir(&made)
        .args(["--check", "--strict", "--quiet"])
        .arg(format!("{name}.tar.xz.sha256")))?;
    let folder = tree::afresh(workspace.target.join("program-archive"))?;
    run(Command::new("tar").arg("-xJf").arg(&archive).arg("-C").arg(&folder))?;
    complete(&archive, &folder.join(&name), &ARCHIVED, &folder.join(&name).join("autoplace"))?;
    trial.run(&folder.join(&name).join("autoplace"), workspace.target.join("program-home"))
}

/// Checks the package's files in a separate root folder, and runs its program.
fn debian(workspace: &Workspace, made: &Path, trial: &Trial) -> Result<()> {
    let package = made.join(format!("autoplace_{VERSION}-1_amd64.deb"));
    print!("{}", output(Command::new("dpkg").arg("--info").arg(&package))?);
    let root = tree::afresh(workspace.target.join("program-root"))?;
    run(Command::new("dpkg-deb").arg("--extract").arg(&package).arg(&root))?;
    complete(&package, &root, &PACKAGED, &root.join("usr/bin/autoplace"))?;
    trial.run(&root.join("usr/bin/autoplace"), workspace.target.join("program-home"))
}

/// Checks that a folder has these files, that no file is empty, and that the program prints the version.
fn complete(made: &Path, folder: &Path, wanted: &[&str], program: &Path) -> Result<()> {
    let files = tree::files(folder)?;
    for file in wanted {
        let bytes = fs::metadata(folder.join(file)).map_or(0, |found| found.len());
        ensure!(bytes > 0, "{} lacks {file}", made.display());
    }
    let said = output(Command::new(program).arg("--version"))?;
    ensure!(said.trim() == format!("autoplace {VERSION}"), "the program in {} says `{}`", made.display(), said.trim());
    println!("dist: {}: {} files, {} bytes", made.display(), files.len(), fs::metadata(made)?.len());
    Ok(())
}

/// The newest glibc version that a program requires.
fn glibc<'a>(versions: impl IntoIterator<Item = &'a String>) -> String {
    let numbers =
        |version: &str| version.split('.').map(|number| number.parse::<u32>().unwrap_or(0)).collect::<Vec<_>>();
    let versions = versions.into_iter().filter_map(|version| version.strip_prefix("GLIBC_"));
    versions.max_by_key(|version| numbers(version)).unwrap_or("none").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tables() -> (Workspace, Value) {
        let workspace = Workspace::find().unwrap();
        let tables = metadata(&workspace).unwrap();
        (workspace, tables)
    }

    #[test]
    fn the_files_of_archive_and_package_are_in_the_repository_or_generated() {
        let (workspace, tables) = tables();
        let cli = workspace.root.join("cli");
        let assets = tables["deb"]["assets"].as_array().unwrap().iter().map(|asset| &asset[0]);
        let included = tables["dist"]["include"].as_array().unwrap();
        let made = |path: &str| {
            let path = path.strip_prefix("../target/program/")?;
            let file = path.strip_prefix("completions/");
            let is_made = file.is_none_or(|file| COMPLETIONS.iter().any(|completion| completion.1 == file));
            Some(is_made && ["completions", "man", notices::FILE].contains(&path.split('/').next()?))
        };
        let mut count = 0;
        for path in assets.chain(included).map(|value| value.as_str().unwrap()) {
            let is_there = path == "target/release/autoplace" || made(path).unwrap_or_else(|| cli.join(path).is_file());
            assert!(is_there, "cli/Cargo.toml: `{path}`");
            count += 1;
        }
        assert!(count > 5, "{count}");
    }

    #[test]
    fn every_generated_completion_is_in_the_package() {
        let (_, tables) = tables();
        for (_, file) in COMPLETIONS {
            assert!(tables["deb"]["assets"].to_string().contains(file), "{file}");
        }
    }

    #[test]
    fn archive_and_package_have_the_notices_of_the_code_of_others() {
        let (_, tables) = tables();
        let path = format!("../{PROGRAM}/{}", notices::FILE);
        assert!(tables["dist"]["include"].as_array().unwrap().contains(&path.as_str().into()), "{}", tables["dist"]);
        assert!(tables["deb"]["assets"].to_string().contains(&path), "{}", tables["deb"]);
        assert!(ARCHIVED.contains(&notices::FILE) && PACKAGED.iter().any(|file| file.ends_with(notices::FILE)));
    }

    #[test]
    fn a_package_is_compiled_into_the_program_if_its_library_is_in_the_targets_folder() {
        let message = |file: &str, package: &str| serde_json::json!({ "filenames": [file], "package_id": package });
        let serde = "registry+https://github.com/rust-lang/crates.io-index#serde@1.0.0";
        let of = |file: &str, package: &str| compiled_package(&message(file, package), Path::new("/target/triple"));
        assert_eq!(of("/target/triple/dist/deps/libserde.rlib", serde).as_deref(), Some("serde 1.0.0"));
        assert_eq!(of("/target/dist/deps/libserde.rlib", serde), None);
        assert_eq!(of("/target/triple/dist/deps/libgguf.rlib", "path+file:///gguf#autoplace-gguf@0.1.0"), None);
    }

    #[test]
    fn archive_and_package_have_the_same_program_which_needs_no_compiler() {
        let (_, tables) = tables();
        for table in ["dist", "deb"] {
            assert_eq!(tables[table]["default-features"], false, "{table}");
            assert_eq!(tables[table]["features"], serde_json::json!(["prebuilt-runtime", "man", "media"]), "{table}");
        }
    }

    #[test]
    fn binstall_requests_the_archive_that_cargo_dist_makes() {
        let (workspace, tables) = tables();
        let filled = |key: &str| {
            let text = tables["binstall"][key].as_str().unwrap().to_owned();
            let values = [
                ("repo", env!("CARGO_PKG_REPOSITORY")),
                ("version", VERSION),
                ("name", PACKAGE),
                ("target", TARGET),
                ("bin", "autoplace"),
                ("binary-ext", ""),
            ];
            values.iter().fold(text, |text, (name, value)| text.replace(&format!("{{ {name} }}"), value))
        };
        // A release is tagged vX.Y.Z (CONTRIBUTING.md).
        let address = format!("/releases/download/v{VERSION}/{PACKAGE}-{TARGET}.tar.xz");
        assert_eq!(filled("pkg-url"), env!("CARGO_PKG_REPOSITORY").to_owned() + &address);
        assert_eq!(filled("bin-dir"), format!("{PACKAGE}-{TARGET}/autoplace"));
        let pins = fs::read_to_string(workspace.root.join(DIST)).unwrap();
        let (_, pinned) = pins.split_once("cargo-dist==").unwrap();
        let version = pinned.split_whitespace().next().unwrap();
        let config = fs::read_to_string(workspace.root.join("dist-workspace.toml")).unwrap();
        assert!(config.contains(&format!("cargo-dist-version = \"{version}\"")), "{config}");
        assert!(config.contains(&format!("targets = [\"{TARGET}\"]")), "{config}");
    }

    #[test]
    fn the_newest_glibc_is_found_by_number() {
        let versions = ["GLIBC_2.4", "GLIBC_2.34", "GCC_3.0", "GLIBC_2.28"].map(str::to_owned);
        assert_eq!(glibc(&versions), "2.34");
    }
}
