//! A draft model: a small one drafts tokens ahead, the large one checks several at once. The text is the same.

use std::path::Path;

use anyhow::Result;
use autoplace::Model;
use autoplace::generate::Speculation;

pub fn run(path: &Path, small: &Path) -> Result<()> {
    // Planned and placed together.
    let model = Model::builder(path).draft(small).draft_max(4).load()?;
    let request = model.generate("And God said, Let there be").temp(0.0).max_tokens(32);
    let mut drafted = request.clone().speculate(Speculation::draft_model()).stream()?;
    let text = drafted.by_ref().collect::<Result<String, _>>()?;
    println!("{text}\n{}", drafted.statistics()); // how many of the draft tokens were accepted
    drop(drafted);
    assert_eq!(text, request.text()?);
    // Without a second model: `Speculation::prompt_lookup` drafts from the prompt, `.mtp(true)` by the model's own
    // block.
    Ok(())
}
