//! Step 8: builds the shim as a library that a program opens, for a runtime (`cargo xtask runtime`), if the variable
//! `AUTOPLACE_RUNTIME_LIBRARY` is set. The library contains everything that is linked statically. That includes
//! llama.cpp, unless llama.cpp is built as shared libraries, which then lie beside this one.
//!
//! The library is in OUT_DIR, because cargo has one such folder for each set of features. In a folder for all sets, the
//! library would be that of the last build, and cargo would not build another one again that it finds up to date.

use std::path::PathBuf;

use crate::compile::Built;
use crate::link::Linked;
use crate::target::Target;

/// The variable that asks for the library.
const ASKED: &str = "AUTOPLACE_RUNTIME_LIBRARY";

/// The library that a program opens last. `xtask/src/runtime.rs` has the same name.
const NAME: &str = "libautoplace-llama.so";

pub(crate) fn library(target: &Target, shim: &cc::Build, objects: &[PathBuf], built: &Built, linked: &Linked) {
    println!("cargo:rerun-if-env-changed=LDFLAGS");
    println!("cargo:rerun-if-env-changed={ASKED}");
    if target.os != "linux" || std::env::var_os(ASKED).is_none_or(|value| value.is_empty()) {
        return;
    }
    let library = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets it")).join(NAME);
    let mut command = shim.get_compiler().to_command();
    // These flags come first on the command line, where cmake also puts them for llama.cpp's libraries. They may name
    // another unwinder, for example.
    let flags = std::env::var("LDFLAGS").unwrap_or_default();
    for (index, words) in flags.split('"').enumerate() {
        // Every second part was in quotes.
        command.args(if index % 2 == 1 { vec![words] } else { words.split_whitespace().collect() });
    }
    command.arg("-shared").arg("-o").arg(&library).args(objects);
    // With these flags, the library calls its own functions even if the program has functions with the same names.
    command.args([&format!("-Wl,-soname,{NAME}"), "-Wl,-Bsymbolic", "-Wl,-z,defs", "-Wl,-s"]);
    if built.dynamic {
        command.arg("-Wl,-rpath,$ORIGIN").args(&linked.libraries);
    } else {
        // The archives are linked as a whole, because the program calls functions that the shim does not call.
        command.arg("-Wl,--whole-archive").args(&linked.libraries).arg("-Wl,--no-whole-archive");
    }
    command.args(&linked.system);
    let status = command.status().unwrap_or_else(|e| panic!("cannot run {command:?}: {e}"));
    assert!(status.success(), "cannot link {} ({status})", library.display());
    // `cargo xtask runtime` reads this path from cargo's messages.
    println!("cargo:rustc-env=LLAMA_SYS_RUNTIME_LIBRARY={}", library.display());
}
