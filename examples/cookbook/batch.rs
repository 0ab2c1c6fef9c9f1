//! A batch job: runs many texts through one model, as many at a time as the engine has sequences. The results have the
//! order of the texts.

use std::path::Path;

use anyhow::Result;
use autoplace::{Constraint, Engine, Model};

pub fn run(path: &Path) -> Result<()> {
    let model = Model::builder(path).parallel(4, 256).load()?;
    let engine = Engine::new(&model)?;
    let reviews = ["What a day!", "Never again.", "It was fine.", "My best meal yet.", "Cold soup."];
    let asked = reviews.map(|review| {
        let prompt = format!("Review: {review}\nThe writer is ");
        let request = model.generate(prompt).constraint(Constraint::choices(["happy", "unhappy"]));
        engine.submit(request.temp(0.0)) // waits while the queue is full
    });
    for (review, answer) in reviews.iter().zip(asked) {
        let (text, _) = answer?.into_text()?;
        println!("{text:<8} {review}");
    }
    Ok(())
}
