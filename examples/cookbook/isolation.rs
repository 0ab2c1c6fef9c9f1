//! Isolation: the model runs in a child process. A crash of llama.cpp is only an error in the application. With
//! `OnDeath::Resume` it is not even an error: another child loads the model and continues after the last token.

use std::path::Path;

use anyhow::Result;
use autoplace::{Isolation, Model, OnDeath, WorkerProcess};

// fn main() {
//     autoplace::worker_main(); // returns at once, except in the child
//     ...
// }

pub fn run(path: &Path) -> Result<()> {
    let resume = OnDeath::Resume { attempts: 2 };
    let worker = WorkerProcess::own_executable().on_death(resume);
    let model = Model::builder(path).isolation(Isolation::Process(worker)).load()?;
    println!("in process {:?}, not in {}", model.worker_id(), std::process::id());
    println!("{}", model.generate("And it came to pass").max_tokens(12).text()?);
    Ok(())
}
