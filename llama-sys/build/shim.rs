//! Step 6: builds the C++ shim, always optimised like the rest of the native code.

use std::path::{Path, PathBuf};

use crate::target::feature;

/// Compiles `native/*.cpp` into OUT_DIR, ready to link, and returns the object files. The shim reports `build` as its
/// own build.
pub(crate) fn compile(source: &Path, build: &str) -> (cc::Build, Vec<PathBuf>) {
    let mut shim = cc::Build::new();
    shim.cpp(true)
        .std("c++17")
        .opt_level(2)
        .debug(false)
        .warnings(false)
        .include(source.join("include"))
        .include(source.join("ggml/include"))
        // This folder has llama-ext.h: the memory breakdown has no C interface yet.
        .include(source.join("src"))
        // This folder has ggml-backend-impl.h, which shows whether a buffer can be read back, and facts that a context
        // without data does not report.
        .include(source.join("ggml/src"))
        .include("native")
        .define("AUTOPLACE_BUILD", Some(&*format!("\"{build}\"")))
        .file("native/shim.cpp")
        .file("native/no_alloc.cpp")
        .file("native/media.cpp")
        .file("native/lora.cpp")
        .file("native/hadamard.cpp")
        .file("native/rates.cpp")
        .file("native/rows.cpp")
        .file("native/threads.cpp")
        .file("native/build.cpp");
    if feature("media") {
        shim.include(source.join("tools/mtmd")).define("AUTOPLACE_MEDIA", None);
    }
    let objects = shim.compile_intermediates();
    let mut archive = cc::Build::new();
    for object in &objects {
        archive.object(object);
    }
    archive.cpp(true).compile("llama_shim");
    (shim, objects)
}
