//! Answers as values of a type.

use std::collections::BTreeMap;

use crate::native_support::load_demo;
use crate::text_support::PROMPT;
use autoplace::Model;
use autoplace::generate::{Constraint, Error, FinishReason};
use schemars::JsonSchema;
use serde::Deserialize;
use serde::de::DeserializeOwned;

#[derive(Debug, Deserialize, JsonSchema)]
#[expect(dead_code, reason = "only read by serde")]
struct City {
    #[schemars(length(max = 12))]
    name: String,
    inhabitants: u32,
    altitude: i16,
    founded: Option<i64>,
    shape: Shape,
    #[schemars(length(max = 3))]
    rivers: Vec<River>,
    capital: bool,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(tag = "type")]
#[expect(dead_code, reason = "only read by serde")]
enum River {
    Stream { width: u8 },
    Canal { locks: u64, depth: i32 },
}

/// An enum whose variants have other names in JSON. Some variants are empty, and some have values of different forms.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[expect(dead_code, reason = "only read by serde")]
enum Shape {
    NothingAtAll,
    Circle(u8),
    Rectangle { width: i32, height: usize },
    Pair(i8, char),
}

#[derive(Debug, Deserialize, JsonSchema)]
#[expect(dead_code, reason = "only read by serde")]
struct Tree {
    value: i32,
    child: Option<Box<Tree>>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "only read by serde")]
enum Either {
    Number(u16),
    Flag(bool),
}

fn all_parse<T: DeserializeOwned + JsonSchema>(model: &Model) {
    let mut parsed = 0;
    for seed in 0..4 {
        match model.generate(PROMPT).seed(seed).max_tokens(600).parse::<T>() {
            Ok(_) => parsed += 1,
            Err(Error::Incomplete { limit, .. }) => assert_ne!(limit, FinishReason::StopString),
            Err(error) => panic!("{}: {error}: {error:?}", T::schema_name()),
        }
    }
    assert!(parsed > 0, "no {} ended", T::schema_name());
}

#[test]
fn values_of_many_types_are_parsed() {
    let model = load_demo();
    all_parse::<City>(&model);
    all_parse::<River>(&model);
    all_parse::<Shape>(&model);
    all_parse::<Tree>(&model);
    all_parse::<Either>(&model);
    all_parse::<(u8, Option<bool>, i64)>(&model);
    all_parse::<Vec<u32>>(&model);
    all_parse::<BTreeMap<String, i8>>(&model);
    all_parse::<[f64; 2]>(&model);
    all_parse::<u64>(&model);
    let (_, _): (bool, bool) = model.generate_as(PROMPT).unwrap();
}

/// A type that refuses some of the values that its schema allows.
#[derive(Debug, Deserialize, JsonSchema)]
struct Impossible {
    #[schemars(with = "bool")]
    #[expect(dead_code, reason = "only read by serde")]
    number: u8,
}

#[test]
fn an_error_of_the_type_keeps_the_text() {
    let error = load_demo().generate_as::<Impossible>(PROMPT).unwrap_err();
    let Error::NotOfType { reason, text } = error else { panic!("{error:?}") };
    assert!(text.contains("\"number\"") && reason.contains("expected u8"), "{text}: {reason}");
}

#[test]
fn the_constraint_of_a_type_allows_no_other_properties() {
    let model = load_demo();
    for seed in 0..4 {
        let held = model.generate(PROMPT).seed(seed);
        let text = held.constraint(Constraint::of_type::<Option<Tree>>()).text();
        let Ok(text) = text else { continue };
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        let names: Vec<_> = value.as_object().into_iter().flatten().map(|(name, _)| &**name).collect();
        assert!(names.iter().all(|name| ["value", "child"].contains(name)), "{text}");
    }
}
