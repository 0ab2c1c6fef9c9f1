//! LoRA adapters: loaded and planned with the model, at a scale.

use std::path::Path;

use anyhow::Result;
use autoplace::Model;

pub fn run(path: &Path, adapter: &Path) -> Result<()> {
    let text = |scale: f32| {
        let model = Model::builder(path).lora(adapter, scale).load()?;
        println!("{:?}", model.adapters());
        model.generate("In the beginning").temp(0.0).max_tokens(12).text().map_err(autoplace::Error::from)
    };
    println!("with it:    {}", text(1.0)?);
    println!("half of it: {}", text(0.5)?);
    Ok(())
}
