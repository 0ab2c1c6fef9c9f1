//! Sessions: what a conversation left in the context is saved, and a later process goes on without computing it again.

use std::path::Path;

use anyhow::Result;
use autoplace::Model;

pub fn run(path: &Path) -> Result<()> {
    let file = std::env::temp_dir().join(format!("autoplace-cookbook-{}.kv", std::process::id()));
    let history = "Now these are the names of the children of Israel, which came into Egypt: ".repeat(4);
    let model = Model::load(path)?;
    model.generate(&history).max_tokens(8).text()?;
    model.save_cache(&file)?;
    drop(model);

    let model = Model::load(path)?;
    // A file of another model, or a damaged one, is an error, and the prompt is computed: slower, and the same.
    if let Err(error) = model.restore_cache(&file) {
        eprintln!("{error}");
    }
    let mut stream = model.generate(&history).cache_prompt(true).max_tokens(8).stream()?;
    let text = stream.by_ref().collect::<Result<String, _>>()?;
    let statistics = stream.statistics();
    println!("{text:?}: {} of {} prompt tokens were there", statistics.cached_tokens, statistics.prompt_tokens);
    std::fs::remove_file(file)?;
    Ok(())
}
