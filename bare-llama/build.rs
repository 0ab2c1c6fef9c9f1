//! Compiles llama.cpp's own fit for the feature `fit`. The libraries of `llama-sys` leave out `common`, so this build
//! script compiles it from the same source.

#[path = "../llama-sys/build/source.rs"]
mod source;

fn main() {
    for path in ["build.rs", "native"] {
        println!("cargo:rerun-if-changed={path}");
    }
    println!("cargo:rerun-if-env-changed=DOCS_RS");
    if std::env::var_os("DOCS_RS").is_some() || std::env::var_os("CARGO_FEATURE_FIT").is_none() {
        // If DOCS_RS is set, nothing is linked.
        return;
    }
    let source = source::find();
    let common = source.join("common");
    println!("cargo:rerun-if-changed={}", common.display());
    cc::Build::new()
        .cpp(true)
        .std("c++17")
        .opt_level(2)
        .debug(false)
        // llama.cpp's own programs are built with this definition.
        .define("NDEBUG", None)
        .warnings(false)
        .include(source.join("include"))
        .include(source.join("ggml/include"))
        .include(&common)
        // The fit needs nlohmann/json.hpp to print its table of memory.
        .include(source.join("vendor"))
        .file(common.join("fit.cpp"))
        .file(common.join("json.cpp"))
        .file("native/fit.cpp")
        .compile("bare_llama_fit");
}
