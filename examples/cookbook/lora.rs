//! LoRA adapters: loaded and planned with the model; each request says which of them count, and how much.

use std::path::Path;

use anyhow::Result;
use autoplace::Model;

pub fn run(path: &Path, adapter: &Path) -> Result<()> {
    let model = Model::builder(path).lora_named("style", adapter, 1.0).load()?;
    for adapter in model.adapters() {
        println!("{}", adapter.name);
    }
    let text = |scale: Option<f32>| {
        let prompt = "In the beginning";
        let scales = scale.map(|scale| ("style", scale));
        model.generate(prompt).lora(scales).temp(0.0).max_tokens(12).text()
    };
    println!("with it:    {}", text(Some(1.0))?);
    println!("half of it: {}", text(Some(0.5))?);
    println!("without it: {}", text(None)?);
    Ok(())
}
