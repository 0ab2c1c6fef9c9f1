//! Compares real models with llama.cpp itself: tokens, templates, greedy texts, texts constrained by grammars,
//! perplexity, forced calls, schemas, speed, and predicted speed.
//!
//! In: model files, and llama.cpp's own programs from the same source, which `cargo xtask real` fetches and compiles.
//! Out: a table, and a failure if any comparison finds a difference. Without these programs (the step `real` of `cargo
//! xtask test`), fewer texts are generated. They are compared with libllama's own API, and renderings are compared with
//! recorded ones.
//!
//! | variable | |
//! |---|---|
//! | `AUTOPLACE_REAL_MODELS` | model files, separated as in `PATH`; without it nothing is checked |
//! | `AUTOPLACE_REAL_TOOLS` | the folder with llama.cpp's own programs |
//! | `AUTOPLACE_REAL_PYTHON` | a Python that has transformers |
//! | `AUTOPLACE_REAL_GRAMMARS` | llama.cpp's folder `grammars`; without it, no text is checked against grammars |
//! | `AUTOPLACE_REAL_CHECKS` | names of checks, separated by spaces; without it all run |
//! | `AUTOPLACE_REAL_REPORT` | a file that the table is written to |

mod conversations;
mod grammars;
mod greedy;
mod perplexity;
mod prediction;
mod report;
mod rows;
mod setting;
mod speed;
mod templates;
mod texts;
mod tokens;
mod tools;
mod valid;

use std::process::ExitCode;

use rows::{Outcome, Row};
use setting::Setting;

/// One kind of comparison, with a row for each compared item.
type Check = fn(&Setting) -> Outcome<Vec<Row>>;

/// The checks in order, each with its name.
const CHECKS: [(&str, Check); 10] = [
    ("tokens", tokens::check),
    ("templates", templates::check),
    ("greedy", greedy::check),
    ("grammars", grammars::check),
    ("perplexity", perplexity::check),
    ("calls", valid::calls),
    ("schemas", valid::schemas),
    ("speed", speed::check),
    ("prediction", prediction::check),
    ("half-a-core", prediction::half_a_core),
];

fn main() -> ExitCode {
    if let Some(played) = prediction::role() {
        if let Err(error) = &played {
            eprintln!("error: {error}");
        }
        return if played.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    let settings = match Setting::of_environment() {
        Ok(settings) => settings,
        Err(error) => {
            eprintln!("error: {error}");
            return ExitCode::FAILURE;
        }
    };
    if settings.is_empty() {
        println!("no real model is named (AUTOPLACE_REAL_MODELS): `cargo xtask real` does");
        return ExitCode::SUCCESS;
    }
    let wanted = std::env::var("AUTOPLACE_REAL_CHECKS").unwrap_or_default();
    let is_wanted = |name: &str| wanted.trim().is_empty() || wanted.split_whitespace().any(|word| word == name);
    if let Some(unknown) = wanted.split_whitespace().find(|name| CHECKS.iter().all(|(check, _)| check != name)) {
        eprintln!("error: AUTOPLACE_REAL_CHECKS: there is no check {unknown:?}");
        return ExitCode::FAILURE;
    }
    let mut rows = Vec::new();
    for setting in &settings {
        for (name, check) in CHECKS.iter().filter(|(name, _)| is_wanted(name)) {
            // If a check could not run, it counts as a failed row, and the other checks still run.
            let made =
                check(setting).unwrap_or_else(|error| vec![Row::new("could not be made").fails(error.to_string())]);
            for row in made {
                let row = row.check(name, &setting.name);
                println!("{}", row.in_one_line());
                rows.push(row);
            }
        }
    }
    report::finish(&rows)
}
