//! A draft model: a small model drafts tokens ahead, and the large model checks several of them at once. The text is
//! the same as without the draft.

use std::path::Path;

use anyhow::Result;
use autoplace::Model;
use autoplace::generate::Speculation;

pub fn run(path: &Path, small: &Path) -> Result<()> {
    // The two models are planned and placed together.
    let model = Model::builder(path).draft(small).draft_max(4).load()?;
    let request = model.generate("And God said, Let there be").temp(0.0).max_tokens(32);
    let mut drafted = request.clone().speculate(Speculation::draft_model()).stream()?;
    let text = drafted.by_ref().collect::<Result<String, _>>()?;
    println!("{text}\n{}", drafted.statistics()); // includes the number of accepted draft tokens
    drop(drafted);
    assert_eq!(text, request.text()?);
    // Without a second model, `Speculation::prompt_lookup` drafts from the prompt, and `.mtp(true)` drafts with the
    // model's own MTP block.
    Ok(())
}
