//! Texts of an engine that are held to a constraint, beside others: on the demo model.

use crate::engine_support::{PROMPTS, greedy, load, request};
use autoplace::generate::{Constraint, Engine, Error, FinishReason};
use serde_json::json;

#[test]
fn a_constraint_holds_of_its_text_and_of_no_other() {
    let model = load(request(1024, 3));
    let free = greedy(&model, PROMPTS[0], 24).text().unwrap();
    let engine = Engine::new(&model).unwrap();
    let schema = json!({
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "minimum": 1, "maximum": 999}},
        "required": ["name", "age"],
        "additionalProperties": false,
    });
    let held = greedy(&model, PROMPTS[1], 200).constraint(Constraint::json_schema(schema));
    let chosen = greedy(&model, PROMPTS[2], 24).constraint(Constraint::choices(["yes", "no"]));
    let answers = [held, chosen, greedy(&model, PROMPTS[0], 24)]
        .map(|generate| engine.submit(generate).unwrap());
    let [held, chosen, beside] = answers.map(|answer| answer.into_text().unwrap().0);
    let held: serde_json::Value = serde_json::from_str(&held).unwrap();
    assert!(held["name"].is_string() && held["age"].is_u64(), "{held}");
    assert!(chosen == "yes" || chosen == "no", "{chosen}");
    assert_eq!(beside, free);
}

#[test]
fn a_text_that_is_cut_short_is_an_error_with_what_there_was() {
    let model = load(request(512, 1));
    let engine = Engine::new(&model).unwrap();
    let cut =
        greedy(&model, PROMPTS[0], 3).constraint(Constraint::choices(["a hundred thousand sheep"]));
    let mut answer = engine.submit(cut).unwrap();
    let mut told = String::new();
    let error = loop {
        match answer.next().unwrap() {
            Ok(text) => told.push_str(&text),
            Err(error) => break error,
        }
    };
    let Error::Incomplete { limit, text } = error else {
        panic!("{error}");
    };
    assert_eq!((limit, &text), (FinishReason::MaxTokens, &told));
    assert!(!told.is_empty() && "a hundred thousand sheep".starts_with(&told));
    assert!(answer.next().is_none());
    assert_eq!(answer.finish_reason(), Some(FinishReason::MaxTokens));
}
