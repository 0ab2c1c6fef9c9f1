//! A pool: several models on one machine. Each model is loaded when it is needed. If the models do not fit together,
//! the pool makes room.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use autoplace_pool::{ModelSpec, Pool};

// fn main() {
//     autoplace::worker_main(); // each model runs in a process of its own
//     ...
// }

pub fn run(path: &Path) -> Result<()> {
    // In an application these are different files; `PoolFile::read("pool.toml")` reads them from a file.
    let pool = Pool::builder()
        .model(ModelSpec::new("chat", path))
        .model(ModelSpec::new("title", path).alias("small").idle(Duration::from_secs(600)))
        .start()?;
    let chat = pool.get("chat").wait()?; // `.await` in a task; loaded as long as the handle lives
    println!("{}", chat.generate("And it came to pass").max_tokens(12).text()?);
    println!("{}", pool.get("small").wait()?.generate("In the beginning").max_tokens(4).text()?);
    for model in pool.status() {
        println!("{}: {:?}, layers {:?}", model.name, model.residence, model.layers);
    }
    if let Some(plan) = pool.last_plan() {
        println!("{plan}"); // the last decision, and its reasons
    }
    Ok(())
}
