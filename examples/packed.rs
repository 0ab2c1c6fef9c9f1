//! An application in the form that users get: program, model and llama.cpp are in one folder. Nothing is compiled or
//! installed on the user's machine. docs/runtime.md explains how to turn such a folder into an AppImage, a package or
//! an image.
//!
//!     packed/bin/packed               this program, built with the feature `prebuilt-runtime`
//!     packed/lib/autoplace-runtime/   a runtime: `cargo xtask runtime`
//!     packed/share/model.gguf
//!
//! `cargo xtask test runtime` assembles the folder and runs it on a system without other software.

use std::io::{Write, stdin, stdout};
use std::path::Path;

use anyhow::Context as _;
use autoplace::{Isolation, Model, WorkerProcess, llama_sys};

fn main() -> anyhow::Result<()> {
    // A second process of this program runs the model, so a crash of llama.cpp does not end the application.
    autoplace::worker_main();
    let program = std::env::current_exe()?;
    let folder = program.parent().and_then(Path::parent).context("the program lies in no folder")?;
    let worker = Isolation::Process(WorkerProcess::own_executable());
    let model = Model::builder(folder.join("share/model.gguf")).isolation(worker).load()?;
    eprintln!("{}\n{}", llama_sys::build_info(), model.placement());
    for line in stdin().lines() {
        let stream = model.generate(line?).temp(0.0).max_tokens(48).stream()?;
        for piece in stream {
            print!("{}", piece?);
            stdout().flush()?;
        }
        println!();
    }
    Ok(())
}
