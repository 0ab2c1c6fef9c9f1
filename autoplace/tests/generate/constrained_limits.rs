//! A constraint that cannot be met or enforced is refused by what is wrong with it, whoever wrote it. What cuts a text
//! short that is held to one is in `front_ends.rs`.

use crate::native_support::load_demo;
use crate::text_support::PROMPT;
use autoplace::Model;
use autoplace::generate::{Constraint, Error};
use serde_json::{Value, json};

/// What a constraint is refused for, before anything is generated.
fn refusal(model: &Model, constraint: Constraint) -> String {
    let stream = model.generate(PROMPT).constraint(constraint).stream();
    match stream {
        Err(error @ (Error::Constraint { .. } | Error::NoTokenAllowed { .. })) => error.to_string(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_keyword_that_cannot_be_enforced_is_named() {
    let model = load_demo();
    for (schema, keyword) in [
        (json!({"type": "array", "uniqueItems": true}), "uniqueItems"),
        (json!({"not": {"type": "string"}}), "not"),
        (json!({"if": {}, "then": {}}), "if"),
        (json!({"type": "array", "contains": {"type": "null"}}), "contains"),
        (json!({"type": "object", "propertyNames": {"maxLength": 3}}), "propertyNames"),
        (json!({"type": "object", "minProperties": 2}), "minProperties"),
        (json!({"type": "string", "format": "no-such"}), "no-such"),
        (json!({"oneOf": [{"type": "integer"}, {"type": "number"}]}), "oneOf"),
        (json!({"properties": {"a": {"dependentRequired": {"b": ["c"]}}}}), "dependentRequired"),
        (json!({"$ref": "https://example.com/schema"}), "https://example.com/schema"),
        (json!({"$ref": "#/nowhere"}), "nowhere"),
        (json!({"type": "elephant"}), "elephant"),
        (json!({"const": 1e300}), "1e+300"),
        (json!({"x-guidance": {"lenient": true}, "not": {}}), "not"),
    ] {
        let said = refusal(&model, Constraint::json_schema(schema.clone()));
        assert!(said.contains(keyword), "{schema}: {said}");
        assert!(!said.contains('\n'), "{said}");
    }
}

#[test]
fn what_no_text_can_meet_is_refused() {
    let model = load_demo();
    for constraint in [
        Constraint::json_schema(json!(false)),
        Constraint::json_schema(json!({"enum": []})),
        Constraint::json_schema(json!({"type": "integer", "minimum": 5, "maximum": 3})),
        Constraint::json_schema(json!({"type": "string", "minLength": 5, "maxLength": 3})),
        Constraint::json_schema(json!({"allOf": [{"type": "string"}, {"type": "null"}]})),
        Constraint::json_schema(
            json!({"type": "object", "required": ["a"], "additionalProperties": false}),
        ),
        Constraint::json_schema(json!({"$ref": "#"})),
        Constraint::json_schema(json!("text")),
        Constraint::regex("[a&&b]"),
        Constraint::regex("a)(b"),
        Constraint::regex("(?=a)b"),
        Constraint::choices(Vec::<String>::new()),
        Constraint::lark("start: undefined"),
        Constraint::lark("start: a\na: b\nb: a"),
        Constraint::lark("no grammar"),
        Constraint::gbnf("root ::= undefined"),
        Constraint::gbnf("start ::= \"no root\""),
        Constraint::gbnf("root ::= root"),
        Constraint::gbnf("root ::= [a"),
        Constraint::gbnf("root ::= \"\\q\""),
        Constraint::gbnf("root ::= * \"a\""),
        Constraint::gbnf("root ::= <[7]>"),
        Constraint::gbnf(""),
    ] {
        let said = refusal(&model, constraint.clone());
        assert!(said.len() < 500 && !said.contains('\n'), "{constraint:?}: {said}");
    }
}

fn list(count: usize, item: impl Fn(usize) -> Value) -> Value {
    (0..count).map(item).collect()
}

/// What nobody in good faith would write. Each is refused or followed, in bounded time and memory: the test ends.
fn hostile() -> Vec<Constraint> {
    let chain: Value = (0..1900)
        .map(|i| {
            let next = format!("#/$defs/d{}", (i + 1) % 1900);
            (format!("d{i}"), json!({"type": "object", "properties": {"x": {"$ref": next}}}))
        })
        .collect::<serde_json::Map<_, _>>()
        .into();
    let nested = (0..400).fold(json!({}), |inner, _| json!({"items": inner}));
    let optional: Value = (0..900)
        .map(|i| (format!("p{i}"), json!({"type": "string"})))
        .collect::<serde_json::Map<_, _>>()
        .into();
    let patterns: Value = (0..24)
        .map(|i| (format!("^x{i}(a|b)*c(a|b){{12}}$"), json!(true)))
        .collect::<serde_json::Map<_, _>>()
        .into();
    let either = |key: &str, n: usize| json!({"anyOf": list(n, |i| json!({"type": "object", "required": [format!("{key}{i}")]}))});
    let mut all: Vec<Constraint> = vec![
        json!({"$ref": "#/$defs/d0", "$defs": chain}),
        nested,
        json!({"enum": list(30_000, |i| json!(format!("value {i} of many")))}),
        json!({"enum": list(200_000, |i| json!(i))}),
        json!({"oneOf": list(5000, |i| json!({"const": i}))}),
        json!({"allOf": [either("a", 300), either("b", 300)]}),
        json!({"allOf": list(30, |i| either(&i.to_string(), 2))}),
        json!({"type": "object", "properties": optional}),
        json!({"type": "object", "patternProperties": patterns}),
        json!({"type": "array", "minItems": 1_000_000_000}),
        json!({"type": "string", "minLength": 1_000_000_000}),
        json!({"type": "string", "pattern": "^(a|a|b?)*(a+)+(.*)*c{1,500}$"}),
        json!({"type": "number", "multipleOf": 1e-9}),
        json!({"type": "number", "multipleOf": 0}),
        json!({"description": "x".repeat(2 << 20)}),
        json!({"$ref": format!("#/{}", "é".repeat(200)), "enum": ["é".repeat(5000)]}),
    ]
    .into_iter()
    .map(Constraint::json_schema)
    .collect();
    all.extend([
        Constraint::regex("(a|b)*a(a|b){20}(a|b)*b(a|b){20}"),
        Constraint::regex("((((((x{100}){100}){100}){100}){100}){100})"),
        Constraint::regex("(".repeat(100_000)),
        Constraint::regex(format!("{}a{}", "(".repeat(90), ")*".repeat(90))),
        Constraint::regex("a|b".repeat(1 << 20)),
        Constraint::choices((0..100_000).map(|i| i.to_string())),
        Constraint::lark("start: start start | \"a\" | "),
        Constraint::lark("start: (\"a\" | b){1,100000}\nb: (start{1,1000}){1,1000}"),
        Constraint::lark(format!("start: {}", "(".repeat(100_000))),
        Constraint::gbnf(
            "root ::= (a a)* \"b\"\na ::= (\"x\" | \"x\" a | a2)*\na2 ::= \"x\"* \"x\"* \"x\"*",
        ),
        Constraint::gbnf("root ::= ((((\"x\"{40}){40}){40}){40})"),
        Constraint::gbnf("root ::= \"x\"{2000} | \"x\"{3,1} | [^x]{0,99999999999999999999}"),
        Constraint::gbnf(format!("root ::= {}", "(".repeat(100_000))),
        Constraint::gbnf("root ::= \"(\" root root | \"(\" root | \"\""),
        Constraint::gbnf("root ::= \\"),
    ]);
    all
}

#[test]
fn a_hostile_constraint_is_an_error_or_followed() {
    let model = load_demo();
    let mut refused = 0;
    for constraint in hostile() {
        let held = model.generate(PROMPT).seed(1).constraint(constraint);
        match held.max_tokens(8).text() {
            Ok(_) | Err(Error::Incomplete { .. }) => {}
            Err(Error::Constraint { .. } | Error::NoTokenAllowed { .. }) => refused += 1,
            Err(error) => panic!("{error}"),
        }
    }
    assert!(refused >= 10, "{refused} were refused");
}
