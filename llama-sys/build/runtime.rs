//! Step 8: builds the shim as a library that a program opens, for a runtime (`cargo xtask runtime`), if
//! `AUTOPLACE_RUNTIME_LIBRARIES` names a folder for it. The library contains everything that is linked statically. That
//! includes llama.cpp, unless llama.cpp is built as shared libraries, which then lie beside this one.

use std::path::PathBuf;

use crate::compile::Built;
use crate::link::Linked;
use crate::source::folder;
use crate::target::Target;

/// The library that a program opens last. `xtask/src/runtime.rs` has the same name.
const NAME: &str = "libautoplace-llama.so";

pub(crate) fn library(target: &Target, shim: &cc::Build, objects: &[PathBuf], built: &Built, linked: &Linked) {
    println!("cargo:rerun-if-env-changed=LDFLAGS");
    if target.os != "linux" {
        return;
    }
    let Some(folder) = folder("AUTOPLACE_RUNTIME_LIBRARIES") else {
        return;
    };
    let library = folder.join(NAME);
    std::fs::create_dir_all(&folder).unwrap_or_else(|e| panic!("cannot create {}: {e}", folder.display()));
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
}
