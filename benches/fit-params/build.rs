//! Compiles the simulated card against the headers of the llama.cpp that llama-cpp-2 builds.

use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=native/card.cpp");
    let ggml = package("llama-cpp-sys-2").join("llama.cpp/ggml");
    cc::Build::new()
        .cpp(true)
        .std("c++17")
        .file("native/card.cpp")
        .include(ggml.join("include"))
        .include(ggml.join("src"))
        .warnings(false)
        .compile("fit_params_card");
}

/// The folder into which cargo unpacked a package that this one depends on.
fn package(name: &str) -> PathBuf {
    let cargo = std::env::var_os("CARGO").expect("cargo sets it");
    let output = Command::new(cargo)
        .args(["metadata", "--locked", "--format-version=1"])
        .output()
        .expect("cargo starts");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let metadata: serde_json::Value =
        serde_json::from_slice(&output.stdout).expect("cargo metadata prints JSON");
    let packages = metadata["packages"].as_array().expect("a list");
    let manifest = packages
        .iter()
        .find(|package| package["name"] == name)
        .and_then(|package| package["manifest_path"].as_str())
        .unwrap_or_else(|| panic!("{name} is no dependency"));
    Path::new(manifest)
        .parent()
        .expect("a manifest lies in a folder")
        .to_owned()
}
