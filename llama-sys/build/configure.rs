//! Step 3: chooses cmake's options by the cargo features.

use crate::target::{Target, feature, native_cpu};
use crate::{amx, isa};

/// The cmake definitions, and facts that follow from them.
pub(crate) struct Options {
    /// `-D` definitions, in a fixed order so that equal features give an equal build folder.
    pub(crate) defines: Vec<(&'static str, String)>,
    /// Flags for C and C++.
    pub(crate) flags: Vec<&'static str>,
    /// Backends compiled in (or built as loadable libraries), by ggml's names.
    pub(crate) backends: Vec<&'static str>,
    /// Shared libraries and loadable backends instead of static libraries.
    pub(crate) dynamic: bool,
}

/// Reads the cargo features.
pub(crate) fn options(target: &Target) -> Options {
    let dynamic = feature("dynamic-backends");
    let mut options = Options { defines: Vec::new(), flags: Vec::new(), backends: vec!["CPU"], dynamic };
    let mut set = |name, on: bool| {
        options.defines.push((name, if on { "ON" } else { "OFF" }.into()));
    };

    // Builds only the library: `common`, tools, tests and examples belong to other programs.
    for name in [
        "LLAMA_BUILD_COMMON",
        "LLAMA_BUILD_TESTS",
        "LLAMA_BUILD_TOOLS",
        "LLAMA_BUILD_EXAMPLES",
        "LLAMA_BUILD_SERVER",
        "LLAMA_BUILD_APP",
        "LLAMA_OPENSSL",
        "LLAMA_ALL_WARNINGS",
        // With git, cmake would look up the commit of any repository around the source.
        "GIT_EXE",
    ] {
        set(name, false);
    }

    set("BUILD_SHARED_LIBS", dynamic);
    set("GGML_BACKEND_DL", dynamic);
    set("GGML_CPU_ALL_VARIANTS", dynamic);
    if dynamic {
        // cmake ends the run path of a library that may be installed later with a colon. The empty entry behind the
        // colon means the current folder, whose libraries would be loaded.
        set("CMAKE_BUILD_WITH_INSTALL_RPATH", true);
        // Libraries of a toolkit, such as CUDA's, are found in the folders in which cmake found them.
        set("CMAKE_INSTALL_RPATH_USE_LINK_PATH", true);
    }
    set("GGML_NATIVE", native_cpu(target));
    if target.arch == "x86_64" && !dynamic && !native_cpu(target) {
        for (name, _) in isa::PORTABLE_X86 {
            set(name, true);
        }
    }
    // A program runs in one process on one machine, so NCCL would only be another library to link and to ship.
    set("GGML_CUDA_NCCL", false);
    set("GGML_OPENMP", feature("openmp"));

    if !target.is_msvc() {
        // The shim turns a failed GGML_ASSERT into an exception, which must be able to pass through C frames.
        options.flags.push("-fexceptions");
    }
    if (dynamic || native_cpu(target)) && amx::is_miscompiled(target) {
        options.flags.push(amx::WITHOUT);
    }

    for (name, option, backend) in [
        ("cuda", "GGML_CUDA", "CUDA"),
        ("vulkan", "GGML_VULKAN", "Vulkan"),
        ("hip", "GGML_HIP", "ROCm"),
        ("rpc", "GGML_RPC", "RPC"),
        ("metal", "GGML_METAL", "Metal"),
    ] {
        let on = feature(name) && (name != "metal" || target.is_apple());
        set(option, on);
        if on {
            options.backends.push(backend);
        }
    }
    if dynamic {
        // The libraries are moved together, and must find each other at their new place.
        let own_folder = if target.is_apple() { "@loader_path" } else { "$ORIGIN" };
        options.defines.push(("CMAKE_INSTALL_RPATH", own_folder.into()));
    }
    if feature("metal") && target.is_apple() {
        options.defines.push(("GGML_METAL_EMBED_LIBRARY", "ON".into()));
    }
    if feature("cuda") {
        println!("cargo:rerun-if-env-changed=CMAKE_CUDA_ARCHITECTURES");
        // Without the variable ggml chooses the architectures: with GGML_NATIVE that of this machine's card, if cmake
        // can query it, and otherwise all.
        if let Some(list) = std::env::var("CMAKE_CUDA_ARCHITECTURES").ok().filter(|list| !list.is_empty()) {
            options.defines.push(("CMAKE_CUDA_ARCHITECTURES", list));
        }
    }
    options
}
