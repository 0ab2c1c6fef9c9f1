//! `semver`: compares the public interface of the published libraries with the interface of the last release. It uses
//! cargo-semver-checks.
//!
//! In: the newest tag `vX.Y.Z` below HEAD. Out: every item whose change needs a larger version step than the Cargo.toml
//! files make. Before the first tag, nothing is compared.

use std::process::Command;

use anyhow::{Result, ensure};

use crate::workspace::{Workspace, run};
use crate::{package, setup};

/// The version of cargo-semver-checks. It reads the rustdoc JSON of Rust 1.93 and newer. A stable Rust with another
/// format needs a newer version.
const VERSION: &str = "0.51.0";

/// Features to enable in addition to the default features, as on docs.rs. The other features select how llama.cpp is
/// built.
const FEATURES: [(&str, &str); 1] = [("autoplace", "--features=async,hub,schemars")];

/// Fails if a library breaks the promise of its last release.
pub(crate) fn semver(workspace: &Workspace) -> Result<()> {
    // An unpacked archive of the source has no history, and no release is made from it.
    if !workspace.root.join(".git").exists() {
        println!("this folder is not a clone of the repository: there are no tags to compare with");
        return Ok(());
    }
    let tag = last_release(workspace)?;
    let Some(tag) = tag.as_deref() else {
        let is_shallow = workspace.git(&["rev-parse", "--is-shallow-repository"])?.trim() == "true";
        let changelog = std::fs::read_to_string(workspace.root.join("CHANGELOG.md"))?;
        ensure!(
            !(is_shallow && has_release(&changelog)),
            "CHANGELOG.md has a release, but its tag is not in this shallow clone: `git fetch --unshallow --tags`"
        );
        println!("no tag of a release (vX.Y.Z) is below HEAD yet: there is nothing to compare with");
        return Ok(());
    };
    let manifests = workspace.git(&["grep", "-h", "^name = ", tag, "--", "*/Cargo.toml"])?;
    let (released, new): (Vec<&str>, Vec<&str>) = package::libraries().partition(|name| {
        let line = format!("name = \"{name}\"");
        manifests.lines().any(|other| other == line)
    });
    println!("comparing with {tag}: {}", released.join(", "));
    if !new.is_empty() {
        println!("new since {tag}, so not compared: {}", new.join(", "));
    }

    let tool = setup::tool(workspace, "cargo-semver-checks", VERSION)?;
    // The builds of all crates and of both versions share their dependencies.
    let target = workspace.target.join("semver");
    // The JSON of both sides has the same path, so cargo must not reuse the output of an earlier run.
    let mut clean = workspace.cargo(&["clean", "--quiet", "--target-dir"]);
    clean.arg(&target).args(released.iter().flat_map(|name| ["--package", name]));
    run(&mut clean)?;
    let breaks = |name: &&str| {
        let mut check = Command::new(&tool);
        check.args(["semver-checks", "--default-features", "--baseline-rev", tag, "--package", name]);
        check.args(FEATURES.iter().filter(|(of, _)| of == name).map(|(_, features)| features));
        check.current_dir(&workspace.root).env("CARGO_TARGET_DIR", &target);
        // Documentation needs no native code, and the release may have another llama.cpp (llama-sys/build).
        check.env("DOCS_RS", "1");
        run(&mut check).inspect_err(|error| eprintln!("{error:#}")).is_err()
    };
    let broken: Vec<&str> = released.into_iter().filter(breaks).collect();
    ensure!(
        broken.is_empty(),
        "more has changed since {tag} than the version allows, or the check failed: {}. If the changes are intended, raise the \
         versions in Cargo.toml",
        broken.join(", ")
    );
    Ok(())
}

/// The newest release tag among this commit's ancestors. `None` before the first release and in a shallow clone.
pub(crate) fn last_release(workspace: &Workspace) -> Result<Option<String>> {
    let tags = workspace.git(&["tag", "--list", "v*", "--merged", "HEAD"])?;
    Ok(newest(&tags).map(str::to_owned))
}

/// The highest release among these tags. Each line contains a tag. Pre-releases do not count.
fn newest(tags: &str) -> Option<&str> {
    let releases = tags.lines().filter_map(|tag| Some((version(tag.strip_prefix('v')?)?, tag)));
    releases.max().map(|(_, tag)| tag)
}

/// Whether a change log has the section of a release, `## [X.Y.Z] - DATE`.
fn has_release(changelog: &str) -> bool {
    let titles = changelog.lines().filter_map(|line| line.strip_prefix("## [")?.split_once(']'));
    titles.map(|(title, _)| title).any(|title| version(title).is_some())
}

fn version(text: &str) -> Option<[u64; 3]> {
    let numbers: Option<Vec<u64>> = text.split('.').map(|number| number.parse().ok()).collect();
    numbers?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_release_is_found_by_version_and_not_by_text() {
        assert_eq!(newest("v0.10.0\nv0.2.1\nv0.9.9\n"), Some("v0.10.0"));
    }

    #[test]
    fn prereleases_and_foreign_tags_are_not_releases() {
        assert_eq!(newest("v0.1.0\nv0.2.0-rc.1\nv3\nv1.2.3.4\nvendor-9.0.0\n"), Some("v0.1.0"));
        assert_eq!(newest("v0.1.0-alpha\nvendor\n"), None);
        assert_eq!(newest(""), None);
    }

    #[test]
    fn a_change_log_has_a_release_if_a_section_is_a_version() {
        assert!(!has_release("# Changelog\n\n## [Unreleased]\n\nThe first release, 0.1.0"));
        assert!(has_release("## [Unreleased]\n\n## [0.1.0] - 2026-12-01\n"));
    }
}
