//! Compiles clip.cpp and the graphs of its encoders from the llama.cpp that `vendor/` pins.

use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=native/reserve.cpp");
    println!("cargo:rerun-if-changed=../../vendor/Cargo.lock");
    println!("cargo:rerun-if-env-changed=LLAMA_CPP_DIR");
    let source = source();
    let mut build = cc::Build::new();
    build.cpp(true).std("c++17").warnings(false);
    for folder in ["include", "ggml/include", "ggml/src", "tools/mtmd", "vendor"] {
        build.include(source.join(folder));
    }
    let models = source.join("tools/mtmd/models");
    let models = std::fs::read_dir(models).expect("the pinned llama.cpp has tools/mtmd/models");
    for entry in models {
        let file = entry.expect("a folder can be listed").path();
        if file.extension().is_some_and(|extension| extension == "cpp") {
            build.file(file);
        }
    }
    build.file("native/reserve.cpp").compile("clip_reserve");
}

/// The folder of `LLAMA_CPP_DIR`, as in `llama-sys`, or the pinned package.
fn source() -> PathBuf {
    if let Some(folder) = std::env::var_os("LLAMA_CPP_DIR") {
        return folder.into();
    }
    let output = Command::new(std::env::var_os("CARGO").expect("cargo sets it"))
        .args(["metadata", "--locked", "--format-version=1"])
        .arg("--manifest-path=../../vendor/Cargo.toml")
        .output()
        .expect("cargo starts");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).expect("cargo metadata prints JSON");
    let packages = metadata["packages"].as_array().expect("a list");
    let manifest = packages
        .iter()
        .find(|package| package["name"] == "llama-cpp-sys-4")
        .and_then(|package| package["manifest_path"].as_str())
        .expect("vendor pins llama-cpp-sys-4");
    let folder = Path::new(manifest).parent();
    folder.expect("a manifest lies in a folder").join("llama.cpp")
}
