//! With a JSON schema as its constraint, a text is JSON that the schema allows, whatever the model would prefer. The
//! only exception is a text that a limit cuts short.

use crate::native_support::load_demo;
use crate::text_support::PROMPT;
use autoplace::Model;
use autoplace::generate::{Constraint, Error, FinishReason};
use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use serde_json::{Map, Value, json};

const SEEDS: u32 = 3;

fn generate(model: &Model, constraint: Constraint, seed: u32) -> Result<String, Error> {
    model.generate(PROMPT).constraint(constraint).seed(seed).max_tokens(400).text()
}

/// How the text violates the schema; `None` if it does not. Formats are checked too.
fn violation(schema: &Value, text: &str) -> Option<String> {
    let validator = jsonschema::options().should_validate_formats(true).build(schema).expect("the schema is one");
    let value: Value = match serde_json::from_str(text) {
        Ok(value) => value,
        Err(error) => return Some(format!("{error} in {text:?}")),
    };
    let error = validator.validate(&value).err()?;
    Some(format!("{error} in {text:?}"))
}

/// In the file of schemas, the headings for schemas under which a text need not end.
const MAY_GO_ON: [&str; 2] = ["alternatives and references", "values without an end of their own"];

#[test]
fn every_text_that_ends_is_what_its_schema_allows() {
    let model = load_demo();
    for section in include_str!("constrained_json.txt").split("\n## ").skip(1) {
        let (heading, schemas) = section.split_once('\n').unwrap();
        let mut ended = 0;
        for schema in schemas.lines().filter(|line| !line.is_empty()) {
            let schema: Value = serde_json::from_str(schema).expect(schema);
            let mut constraints = vec![Constraint::json_schema(schema.clone())];
            constraints.extend((schema == json!({"type": "object"})).then(Constraint::json_object));
            for (constraint, seed) in
                constraints.iter().flat_map(|constraint| (0..SEEDS).map(move |seed| (constraint, seed)))
            {
                match generate(&model, constraint.clone(), seed) {
                    Ok(text) => {
                        assert_eq!(violation(&schema, &text), None, "{schema}");
                        ended += 1;
                    }
                    Err(Error::Incomplete { limit, .. }) if MAY_GO_ON.contains(&heading) => {
                        let is_long = matches!(limit, FinishReason::MaxTokens | FinishReason::ContextFull);
                        assert!(is_long, "{schema}: {limit:?}");
                    }
                    Err(error) => panic!("{schema}: {error}"),
                }
            }
        }
        assert!(ended > 0, "no text ended: {heading}");
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

/// A schema that allows only short texts.
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
            let required = members.iter().filter(|(_, (_, needed))| *needed);
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

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(48) })]

    #[test]
    fn any_schema_allows_the_text_that_it_constrains(schema in any_schema(), seed in 0_u32..1000) {
        thread_local!(static MODEL: Model = load_demo());
        let text = MODEL.with(|model| generate(model, Constraint::json_schema(schema.clone()), seed)).unwrap();
        prop_assert_eq!(violation(&schema, &text), None);
    }
}
