//! Generates an answer as a value of a Rust type. The type's JSON schema constrains the text while it is generated, so
//! that it can always be parsed.
//!
//!     cargo run --release --example json -- -m model.gguf -p "A recipe for bread, as JSON:"

use std::path::PathBuf;
use std::process::ExitCode;

use autoplace::Model;
use autoplace_examples::DEMO_MODEL;
use clap::Parser;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The requested value. The bounds are part of the schema, so every answer keeps them.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
struct Recipe {
    #[schemars(length(min = 1, max = 40))]
    name: String,
    #[schemars(range(min = 1, max = 12))]
    servings: u8,
    difficulty: Difficulty,
    #[schemars(length(min = 1, max = 4))]
    ingredients: Vec<Ingredient>,
}

#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum Difficulty {
    Easy,
    Medium,
    Hard,
}

#[derive(Debug, Serialize, Deserialize, JsonSchema)]
struct Ingredient {
    #[schemars(length(min = 1, max = 30))]
    what: String,
    #[schemars(range(min = 1, max = 5000))]
    grams: u16,
}

/// Asks a local model for a value of a type.
#[derive(Parser)]
#[command(version)]
struct Args {
    /// GGUF file; for a split model, its first part
    #[arg(short, long, value_name = "FILE", default_value = DEMO_MODEL, hide_default_value = true)]
    model: PathBuf,
    /// Text before the answer
    #[arg(short, long, default_value = "A recipe for unleavened bread, as JSON:\n")]
    prompt: String,
    /// Maximum number of tokens to generate
    #[arg(short, default_value_t = 400)]
    n: usize,
    /// Seed of the random choice [default: a new seed every time]
    #[arg(long)]
    seed: Option<u32>,
}

fn main() -> ExitCode {
    autoplace_examples::run(|args: Args| run(&args).map(|()| ExitCode::SUCCESS))
}

fn run(args: &Args) -> anyhow::Result<()> {
    let model = Model::load(&args.model)?;
    let mut generate = model.generate(&args.prompt).max_tokens(args.n);
    if let Some(seed) = args.seed {
        generate = generate.seed(seed);
    }
    let recipe: Recipe = generate.parse()?;
    println!("{}", serde_json::to_string_pretty(&recipe)?);
    let total: u32 = recipe.ingredients.iter().map(|ingredient| u32::from(ingredient.grams)).sum();
    println!("{} g in all, for {}", total, recipe.servings);
    Ok(())
}
