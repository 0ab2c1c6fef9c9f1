//! `features`: checks that the published crates compile with the oldest supported compiler, and that the library
//! compiles with each of its features alone.
//!
//! Only Rust code is checked. As on docs.rs, no native code is built, so no feature needs a toolkit.

use std::process::Command;

use anyhow::{Context, Result};

use crate::package;
use crate::workspace::{Workspace, run};

/// The workspace's `rust-version`.
const OLDEST: &str = env!("CARGO_PKG_RUST_VERSION");

pub(crate) fn features(workspace: &Workspace) -> Result<()> {
    let check = |arguments: &[&str]| {
        let mut cargo = Command::new("rustup");
        cargo.args(["run", "--install", OLDEST, "cargo", "check", "--locked"]).args(arguments);
        cargo.current_dir(&workspace.root).env("DOCS_RS", "1");
        // A separate target folder keeps the builds of other compilers.
        cargo.env("CARGO_TARGET_DIR", workspace.target.join("features"));
        run(&mut cargo)
    };
    let mut published = vec!["--lib", "--bins"];
    published.extend(package::PUBLISHED.iter().flat_map(|name| ["--package", name]));
    check(&published)?;

    let packages = workspace.packages()?;
    let features = packages.iter().filter(|package| package["name"] == "autoplace");
    let features = features.flat_map(|package| package["features"].as_object()).flatten();
    let features: Vec<&String> = features.map(|(name, _)| name).collect();
    for feature in &features {
        let alone = ["--package=autoplace", "--no-default-features", "--features", feature];
        check(&alone).with_context(|| format!("the feature `{feature}` alone"))?;
    }
    println!("Rust {OLDEST}: {} features, each alone", features.len());
    Ok(())
}
