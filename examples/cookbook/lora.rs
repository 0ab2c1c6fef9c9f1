//! LoRA adapters: they are planned and loaded with the model. Each request selects adapters and their scales.

use std::path::Path;

use anyhow::Result;
use autoplace::Model;

pub fn run(path: &Path, adapter: &Path) -> Result<()> {
    let model = Model::builder(path).lora_named("style", adapter, 1.0).load()?;
    for adapter in model.adapters() {
        println!("{}: {}", adapter.name, adapter.path.display());
    }
    let prompt = || model.generate("In the beginning").temp(0.0).max_tokens(12);
    println!("with it:    {}", prompt().text()?);
    println!("half of it: {}", prompt().lora([("style", 0.5)]).text()?);
    println!("without it: {}", prompt().lora::<&str>([]).text()?);
    Ok(())
}
