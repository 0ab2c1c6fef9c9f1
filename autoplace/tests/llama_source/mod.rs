//! The source of the llama.cpp that is built, found as llama-sys/build finds it.

use std::path::{Path, PathBuf};
use std::process::Command;

/// One of its files.
pub(crate) fn read(file: &str) -> String {
    let root = match std::env::var_os("LLAMA_CPP_DIR") {
        Some(root) => PathBuf::from(root),
        None => pinned(),
    };
    let file = root.join(file);
    std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}

/// The package that the build has fetched before this test.
fn pinned() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("../vendor/Cargo.toml");
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--locked", "--format-version=1"])
        .arg("--manifest-path")
        .arg(manifest)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    let package = packages
        .iter()
        .find(|package| package["name"] == "llama-cpp-sys-2")
        .unwrap();
    Path::new(package["manifest_path"].as_str().unwrap()).with_file_name("llama.cpp")
}
