//! A text that is held to a JSON schema is JSON that the schema allows: every one that ends, whatever the model
//! would rather write.

use crate::native_support::load_demo;
use crate::text_support::PROMPT;
use autoplace::Model;
use autoplace::generate::{Constraint, Error, FinishReason};
use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use serde_json::{Map, Value, json};

const SEEDS: u32 = 3;

fn generate(model: &Model, constraint: Constraint, seed: u32) -> Result<String, Error> {
    model.generate(PROMPT).constraint(constraint).seed(seed).max_tokens(400).text()
}

/// Why the text is not what the schema allows, formats included.
fn violation(schema: &Value, text: &str) -> Option<String> {
    let validator = jsonschema::options().should_validate_formats(true).build(schema).expect("the schema is one");
    let value: Value = match serde_json::from_str(text) {
        Ok(value) => value,
        Err(error) => return Some(format!("{error} in {text:?}")),
    };
    let error = validator.validate(&value).err()?;
    Some(format!("{error} in {text:?}"))
}

/// The schemas under a heading of the file.
fn under(heading: &str) -> Vec<Value> {
    let mut sections = include_str!("constrained_json.txt").split("\n## ");
    let found = sections.find_map(|section| section.strip_prefix(heading)?.strip_prefix('\n'));
    let lines = found.expect(heading).lines().filter(|line| !line.is_empty());
    lines.map(|line| serde_json::from_str(line).expect(line)).collect()
}

/// Every text that ends validates; where all are short, every one ends, and else some do.
fn all_validate(schemas: impl IntoIterator<Item = Value>, all_end: bool) {
    let model = load_demo();
    let mut ended = 0;
    for schema in schemas {
        for seed in 0..SEEDS {
            match generate(&model, Constraint::json_schema(schema.clone()), seed) {
                Ok(text) => {
                    assert_eq!(violation(&schema, &text), None, "{schema}");
                    ended += 1;
                }
                Err(Error::Incomplete { limit, .. }) if !all_end => {
                    let is_long = matches!(limit, FinishReason::MaxTokens | FinishReason::ContextFull);
                    assert!(is_long, "{schema}: {limit:?}");
                }
                Err(error) => panic!("{schema}: {error}"),
            }
        }
    }
    assert!(ended > 0, "no text ended");
}

#[test]
fn values_of_few_characters() {
    all_validate(under("values of few characters"), true);
}

#[test]
fn formats() {
    all_validate(
        ["date", "time", "date-time", "uuid", "ipv4", "ipv6"].map(|format| json!({"type": "string", "format": format})),
        true,
    );
    all_validate(
        ["email", "hostname", "duration", "uri"]
            .map(|format| json!({"type": "string", "format": format, "maxLength": 40, "minLength": 1})),
        true,
    );
}

#[test]
fn objects_and_arrays() {
    all_validate(under("objects and arrays"), true);
}

#[test]
fn alternatives_and_references() {
    all_validate(under("alternatives and references"), false);
}

#[test]
fn values_without_an_end_of_their_own() {
    all_validate(under("values without an end of their own"), false);
    let model = load_demo();
    for seed in 0..SEEDS {
        if let Ok(text) = generate(&model, Constraint::json_object(), seed) {
            let value: Value = serde_json::from_str(&text).unwrap();
            assert!(value.is_object(), "{text}");
        }
    }
}

#[test]
fn whitespace_comes_to_an_end() {
    let model = load_demo();
    let schema = json!({"type": "array", "items": {"type": "boolean"}, "minItems": 3, "maxItems": 3});
    for seed in 0..10 {
        let text = generate(&model, Constraint::json_schema(schema.clone()), seed).unwrap();
        let longest = text.split(|c: char| !c.is_whitespace()).map(str::len).max();
        assert!(longest <= Some(22), "{text:?}");
    }
}

/// A schema whose texts are short.
fn any_schema() -> impl Strategy<Value = Value> {
    let name = prop_oneof!["[a-zA-Z_ ]{1,6}", "[äé日\"\\\\/]{1,3}"];
    let text = "[a-z äé日\"\\\\\n]{0,6}";
    let leaf = prop_oneof![
        Just(json!({"type": "null"})),
        Just(json!({"type": "boolean"})),
        (-1000_i64..1000, 0_i64..2000).prop_map(|(low, width)| json!({
            "type": "integer", "minimum": low, "maximum": low + width
        })),
        (0_u64..4, 0_u64..6)
            .prop_map(|(least, more)| json!({"type": "string", "minLength": least, "maxLength": least + more})),
        (1_u32..4, 0_u32..4).prop_map(|(least, more)| json!({
            "type": "string", "pattern": format!("^[a-c]{{{least},{}}}(x|yz)?$", least + more)
        })),
        vec(text, 1..4).prop_map(|texts| json!({"enum": texts})),
        (-50_i64..50).prop_map(|number| json!({"const": number})),
        Just(json!({"type": "string", "format": "date"})),
    ];
    leaf.prop_recursive(3, 24, 4, move |inner| {
        let array = (inner.clone(), 0_u64..3, 0_u64..3).prop_map(|(items, least, more)| {
            json!({"type": "array", "items": items, "minItems": least, "maxItems": least + more})
        });
        let member = (inner.clone(), any::<bool>());
        let object = btree_map(name.clone(), member, 0..4).prop_map(|members| {
            let required = members.iter().filter(|(_, (_, it))| *it);
            let required: Vec<_> = required.map(|(name, _)| name.clone()).collect();
            let properties: Map<String, Value> =
                members.into_iter().map(|(name, (schema, _))| (name, schema)).collect();
            json!({
                "type": "object", "properties": properties, "required": required, "additionalProperties": false
            })
        });
        let either = (inner.clone(), inner).prop_map(|(a, b)| json!({"anyOf": [a, b]}));
        prop_oneof![array, object, either]
    })
}

#[test]
fn whatever_a_schema_allows() {
    let model = load_demo();
    let mut runner = TestRunner::new(Config { cases: 48, failure_persistence: None, ..Config::default() });
    runner
        .run(&(any_schema(), 0_u32..1000), |(schema, seed)| {
            let text = generate(&model, Constraint::json_schema(schema.clone()), seed);
            let text = text.map_err(|error| TestCaseError::fail(error.to_string()))?;
            prop_assert_eq!(violation(&schema, &text), None);
            Ok(())
        })
        .unwrap();
}
