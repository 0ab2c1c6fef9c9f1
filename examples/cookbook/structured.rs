//! Structured output: the answer is a value of a Rust type. The type's schema constrains the text while it is
//! generated, so that it can always be parsed.

use std::path::Path;

use anyhow::Result;
use autoplace::Model;
use autoplace::chat::ChatTemplate;
use schemars::JsonSchema;
use serde::Deserialize;

#[derive(Debug, Deserialize, JsonSchema)]
struct Recipe {
    #[schemars(length(min = 1, max = 20))]
    name: String,
    #[schemars(range(min = 1, max = 12))]
    servings: u8,
    vegetarian: bool,
}

pub fn run(path: &Path) -> Result<()> {
    let model = Model::load(path)?;
    // In a chat ...
    let mut chat = model.chat_with(ChatTemplate::family("chatml")?);
    let recipe: Recipe = chat.say_as("A recipe for unleavened bread, please.")?;
    println!("{recipe:?}");
    // ... or after a prompt.
    let recipe: Recipe = model.generate_as("A recipe for unleavened bread, as JSON: ")?;
    println!("{} for {}, vegetarian: {}", recipe.name, recipe.servings, recipe.vegetarian);
    Ok(())
}
