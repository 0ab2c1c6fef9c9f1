//! Finds llama.cpp's source as `llama-sys/build/source.rs` does in the repository, and selects the part to publish.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::tree;
use crate::workspace::{Workspace, output};

/// The parts of llama.cpp that the build needs, including those of the feature `media`. llama.cpp's CMakeLists.txt
/// always configures `vendor/`. Its folders are header libraries. cmake reads only their CMakeLists.txt, except in
/// `hash`, whose files it checks. On Windows cmake/win-app.cmake depends on the manifest of the programs.
const NEEDED: [&str; 28] = [
    "CMakeLists.txt",
    "LICENSE",
    "cmake",
    "common/win-app.manifest",
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
    "tools/mtmd/clip-graph.h",
    "tools/mtmd/clip-impl.h",
    "tools/mtmd/clip-model.h",
    "tools/mtmd/clip.cpp",
    "tools/mtmd/clip.h",
    "tools/mtmd/debug",
    "tools/mtmd/models",
    "tools/mtmd/mtmd-audio.cpp",
    "tools/mtmd/mtmd-audio.h",
    "tools/mtmd/mtmd-image.cpp",
    "tools/mtmd/mtmd-image.h",
    "tools/mtmd/mtmd-internal.h",
    "tools/mtmd/mtmd.cpp",
    "tools/mtmd/mtmd.h",
];

/// Backends that none of our features builds. cmake enters a backend's folder only if the option of the backend is on.
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
    if let Some(dir) = std::env::var_os("LLAMA_CPP_DIR").filter(|dir| !dir.is_empty()) {
        return Ok(dir.into());
    }
    let metadata = output(&mut workspace.cargo(&[
        "metadata",
        "--locked",
        "--format-version=1",
        "--manifest-path=vendor/Cargo.toml",
    ]))?;
    let metadata: serde_json::Value = serde_json::from_str(&metadata).context("cargo metadata prints JSON")?;
    let packages = metadata["packages"].as_array().context("cargo metadata lists packages")?;
    let manifest = packages
        .iter()
        .find(|package| package["name"] == "llama-cpp-sys-4")
        .and_then(|package| package["manifest_path"].as_str())
        .context("vendor/Cargo.toml pins no llama-cpp-sys-4")?;
    Ok(Path::new(manifest).with_file_name("llama.cpp"))
}

/// The files below `source` that the workspace's native builds have read, as relative paths. The list comes from
/// cmake's list of inputs, from the compilers' dependency files, and from the sources of unbuilt targets, which cmake
/// checks.
pub(crate) fn read_by(workspace: &Workspace, source: &Path) -> Result<BTreeSet<PathBuf>> {
    let mut read = BTreeSet::new();
    let builds = workspace.builds_with_mtmd().into_iter().map(|build| build.join("build"));
    // Builds without this file are only partly configured.
    for build in builds.filter(|build| build.join("CMakeFiles/Makefile.cmake").is_file()) {
        let mut lists = vec![build.join("CMakeFiles/Makefile.cmake")];
        // The build of mtmd has no such list of unbuilt targets, because it builds all of its targets.
        lists.extend(Some(build.join("compile_commands.json")).filter(|list| list.is_file()));
        let objects = tree::files(&build)?.into_iter();
        let objects = objects.filter(|file| file.to_string_lossy().ends_with(".o.d"));
        lists.extend(objects.map(|file| build.join(file)));
        for list in lists {
            let text = fs::read_to_string(&list).with_context(|| list.display().to_string())?;
            let paths = text.split(|c: char| c.is_whitespace() || c == '"');
            let inside = paths.filter_map(|path| Path::new(path).strip_prefix(source).ok());
            for path in inside.filter(|path| source.join(path).is_file()) {
                let path = fs::canonicalize(source.join(path))?;
                read.insert(path.strip_prefix(fs::canonicalize(source)?)?.to_owned());
            }
        }
    }
    ensure!(
        read.contains(Path::new("src/llama.cpp")),
        "no native build of {} is found: set AUTOPLACE_LLAMA_BUILD_DIR, or run `cargo xtask package`",
        source.display()
    );
    Ok(read)
}

/// Makes `to` contain exactly the published part of the source tree `from`.
pub(crate) fn mirror(from: &Path, to: &Path) -> Result<()> {
    for path in NEEDED.iter().chain(&UNUSED) {
        // Without this check, a file that llama.cpp has moved would be missing in the package, and a new backend would
        // go unnoticed.
        ensure!(from.join(path).exists(), "{} has no {path}: correct the lists in xtask/src/source.rs", from.display());
    }
    tree::mirror(from, to, &is_published)
}

/// Whether this file of the source tree is published, or this folder has published files.
pub(crate) fn is_published(path: &Path) -> bool {
    let needed = NEEDED.iter().any(|one| path.starts_with(one) || Path::new(one).starts_with(path));
    needed && !UNUSED.iter().any(|one| path.starts_with(one))
}
