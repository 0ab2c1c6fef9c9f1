//! Where llama.cpp's source is: as `llama-sys/build/source.rs` finds it in the repository, and which of
//! it is published.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::tree;
use crate::workspace::{Workspace, output};

/// What the build needs of llama.cpp. `vendor/` is configured by llama.cpp's CMakeLists.txt whatever is built:
/// its folders are header libraries of which only the CMakeLists.txt is read, but for `hash`, whose files
/// cmake wants to see.
const NEEDED: [&str; 13] = [
    "CMakeLists.txt",
    "LICENSE",
    "cmake",
    "include",
    "src",
    "ggml",
    "vendor/CMakeLists.txt",
    "vendor/hash",
    "vendor/miniaudio/CMakeLists.txt",
    "vendor/nlohmann/CMakeLists.txt",
    "vendor/sheredom/CMakeLists.txt",
    "vendor/stb/CMakeLists.txt",
    "vendor/cpp-httplib/CMakeLists.txt",
];

/// Backends that no feature of ours builds. cmake enters a backend's folder only when its option is on.
const UNUSED: [&str; 11] = [
    "ggml/src/ggml-cann",
    "ggml/src/ggml-et",
    "ggml/src/ggml-hexagon",
    "ggml/src/ggml-musa",
    "ggml/src/ggml-opencl",
    "ggml/src/ggml-openvino",
    "ggml/src/ggml-sycl",
    "ggml/src/ggml-virtgpu",
    "ggml/src/ggml-webgpu",
    "ggml/src/ggml-zdnn",
    "ggml/src/ggml-zendnn",
];

/// The root of llama.cpp's source tree.
pub(crate) fn find(workspace: &Workspace) -> Result<PathBuf> {
    if let Some(dir) = std::env::var_os("LLAMA_CPP_DIR") {
        return Ok(dir.into());
    }
    let metadata = output(&mut workspace.cargo(&[
        "metadata",
        "--locked",
        "--format-version=1",
        "--manifest-path=vendor/Cargo.toml",
    ]))?;
    let metadata: serde_json::Value =
        serde_json::from_str(&metadata).context("cargo metadata prints JSON")?;
    let packages = metadata["packages"]
        .as_array()
        .context("cargo metadata lists packages")?;
    let manifest = packages
        .iter()
        .find(|package| package["name"] == "llama-cpp-sys-2")
        .and_then(|package| package["manifest_path"].as_str())
        .context("vendor/Cargo.toml pins no llama-cpp-sys-2")?;
    Ok(Path::new(manifest).with_file_name("llama.cpp"))
}

/// Makes `to` hold what is published of the source tree `from`, and nothing else.
pub(crate) fn mirror(from: &Path, to: &Path) -> Result<()> {
    for path in NEEDED.iter().chain(&UNUSED) {
        // Else a move in llama.cpp would go unnoticed: a file missing from the package, or a backend creeping in.
        ensure!(
            from.join(path).exists(),
            "{} has no {path}: correct the lists in xtask/src/source.rs",
            from.display()
        );
    }
    tree::mirror(from, to, &|path| {
        let needed = NEEDED
            .iter()
            .any(|one| path.starts_with(one) || Path::new(one).starts_with(path));
        needed && !UNUSED.iter().any(|one| path.starts_with(one))
    })
}
