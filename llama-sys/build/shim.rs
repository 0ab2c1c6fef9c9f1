//! Step 5: the C++ shim, always optimised like the rest of the native code.

use std::path::Path;

/// Compiles `native/*.cpp` into OUT_DIR.
pub(crate) fn compile(source: &Path) {
    cc::Build::new()
        .cpp(true)
        .std("c++17")
        .opt_level(2)
        .debug(false)
        .warnings(false)
        .include(source.join("include"))
        .include(source.join("ggml/include"))
        // llama-ext.h: the memory breakdown has no C interface yet.
        .include(source.join("src"))
        // ggml-backend-impl.h: which buffers can be read back, and what a context without data cannot say of itself.
        .include(source.join("ggml/src"))
        .include("native")
        .file("native/shim.cpp")
        .file("native/no_alloc.cpp")
        .file("native/lora.cpp")
        .file("native/rates.cpp")
        .compile("llama_shim");
}
