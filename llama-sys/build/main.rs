//! Builds llama.cpp and the shim, and makes cargo link them. Each step has a module here:
//!
//! 1. `require`: checks for a compiler, cmake, and make or ninja, and says what to install if one is missing.
//! 2. `source`: finds llama.cpp's source.
//! 3. `configure`: chooses cmake options by the cargo features and by the compiler's limits (`amx`).
//! 4. `isa`: finds the instruction set that the CPU code is compiled for. The program compares it with its CPU at
//!    start.
//! 5. `compile`: runs cmake (always optimised; ggml's barrier is `native/wait.h`), in OUT_DIR or in the folder that
//!    `AUTOPLACE_LLAMA_BUILD_DIR` names.
//! 6. `shim`: compiles `native/`, which calls llama.cpp's C++ and lets no exception through; `mtmd` (feature `media`)
//!    compiles tools/mtmd, which the shim calls.
//! 7. `link`: names the libraries.
//! 8. `runtime` (if `AUTOPLACE_RUNTIME_LIBRARY` is set): builds the same as a library that a program opens.
//! 9. `bindings` (feature `bindgen`): regenerates the committed bindings' text into OUT_DIR.

mod amx;
#[cfg(feature = "bindgen")]
mod bindings;
mod compile;
mod configure;
#[macro_use]
mod cpu_features;
mod identity;
mod isa;
mod link;
mod mtmd;
mod require;
mod runtime;
mod shim;
mod source;
mod target;

use target::{Target, feature};

/// A hash of the native code and the bindings. A program opens no libraries with another hash.
fn name_build(llama_cpp: &str) -> String {
    let native = identity::hash(".".as_ref(), &["native"]);
    let name = format!("autoplace-llama-sys {}, llama.cpp {llama_cpp}, shim {native}", env!("CARGO_PKG_VERSION"));
    let Target { os, arch, env } = Target::from_cargo();
    println!("cargo:rustc-env=LLAMA_SYS_BUILD={name}");
    println!("cargo:rustc-env=LLAMA_SYS_TARGET={}", format!("{arch}-{os}-{env}").trim_end_matches('-'));
    name
}

fn main() {
    for path in ["build", "native"] {
        println!("cargo:rerun-if-changed={path}");
    }
    println!("cargo:rerun-if-env-changed=DOCS_RS");

    // docs.rs has no network and needs no native code: rustdoc only type-checks.
    if std::env::var_os("DOCS_RS").is_some() || feature("prebuilt-runtime") {
        name_build(&identity::of_bindings());
        isa::report(&isa::InstructionSet::none(), &[]);
        println!("cargo:rustc-env=LLAMA_SYS_OPENMP=0");
        println!("cargo:rustc-env=LLAMA_SYS_THREADS_SLEEP=0");
        return;
    }

    let target = Target::from_cargo();
    require::tools(&target);
    let source = source::find();
    let options = configure::options(&target);
    let instructions = isa::compiled_for(&target, &options.flags);
    let built = compile::run(&target, &source, &options, &instructions);
    let name = name_build(&identity::of_source(&source));
    let (compiler, objects) = shim::compile(&source, &name);
    // For the linker, mtmd must come after the shim, which calls mtmd, and before llama.cpp, which mtmd calls.
    let mtmd = mtmd::build(&source, &options);
    let mut libraries = link::libraries(&target, &built);
    libraries.libraries.splice(0..0, mtmd);
    isa::report(&instructions, &options.backends);
    runtime::library(&target, &compiler, &objects, &built, &libraries);
    #[cfg(feature = "bindgen")]
    bindings::generate(&source);
}
