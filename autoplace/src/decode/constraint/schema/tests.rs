use serde_json::{Value, json};

use crate::decode::constraint::unenforced::Unenforced;

/// A prepared schema that follows JSON Schema to the letter, without llguidance's options.
fn prepared(schema: &Value) -> Result<Value, Unenforced> {
    let mut ready = super::prepared(schema, true)?;
    ready.as_object_mut().unwrap().remove("x-guidance");
    Ok(ready)
}

fn enforced(schema: &Value) -> Value {
    prepared(schema).unwrap()
}

#[test]
fn numbers_are_bounded_by_what_can_be_read_back() {
    let most = 9_007_199_254_740_991_f64;
    assert_eq!(
        enforced(&json!({"type": "number", "exclusiveMaximum": 1, "minimum": -1e300})),
        json!({"type": "number", "minimum": -most, "maximum": 1_f64.next_down()})
    );
    assert_eq!(
        enforced(&json!({"type": "integer", "minimum": 3, "exclusiveMinimum": true})),
        json!({"type": "integer", "minimum": 3_f64.next_up(), "maximum": most})
    );
    assert_eq!(
        enforced(&json!({"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 0.5})),
        json!({"type": "number", "minimum": 1e-15, "maximum": 0.5_f64.next_down()})
    );
    assert!(prepared(&json!({"type": "number", "minimum": "1"})).is_err());
}

#[test]
fn integers_around_zero_have_no_minus_zero() {
    let parted = enforced(&json!({"title": "t", "type": ["integer", "null"], "minimum": -2, "maximum": 2}));
    assert_eq!(
        parted["anyOf"],
        json!([
            {"type": ["integer"], "minimum": 0, "maximum": 2.0},
            {"type": ["integer"], "minimum": -2.0, "maximum": -1},
            {"type": ["null"], "minimum": -2.0, "maximum": 2.0},
        ])
    );
    assert!(parted["type"].is_null() && parted["title"] == "t", "{parted}");
}

#[test]
fn data_is_not_taken_for_a_schema() {
    let schema = json!({"const": {"type": "integer", "minimum": -5, "items": true}});
    assert_eq!(enforced(&schema), schema);
    let named = json!({"type": "object", "additionalProperties": false,
                       "properties": {"type": {"type": "null"}, "items": {"type": "boolean"}}});
    assert_eq!(enforced(&named), named);
}

#[test]
fn references_are_to_schemas_from_the_root() {
    let schema = |reference: &str| {
        let properties = json!({"a": {"type": "null"}, "b": {"$ref": reference}, "c": {"prefixItems": [true]}});
        let defs = json!({"x y": true, "a~b": true});
        json!({"properties": properties, "$defs": defs, "const": {"$ref": "data"}, "other": {}})
    };
    for reference in
        ["#", "#/properties/a", "#/$defs/x y", "#/$defs/x%20y", "#/$defs/a~0b", "#/properties/c/prefixItems/0"]
    {
        prepared(&schema(reference)).unwrap();
    }
    for reference in ["#/nowhere", "#anchor", "other.json#/$defs/a", "#/other", "#/$defs/a~b%", "#/$defs", ""] {
        let said = prepared(&schema(reference)).unwrap_err().to_string();
        assert!(said.contains("from the root") && said.contains(reference), "{said}");
    }
    let based = json!({"items": {"$id": "x", "items": {"$ref": "#"}}});
    assert!(prepared(&based).unwrap_err().reason.contains("`$id` of its own"));
}
