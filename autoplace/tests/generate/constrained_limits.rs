//! If a constraint cannot be met or enforced, it is refused with a reason. Limits that cut a text short are tested in
//! `front_ends.rs`.

use crate::native_support::load_demo;
use crate::text_support::{PROMPT, status};
use autoplace::Model;
use autoplace::generate::{Constraint, Error};
use serde_json::{Map, Value, json};
use test_support::own_process;

/// Why a constraint is refused before a text is generated.
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
        (json!({"type": "string", "format": "regex"}), "format: regex"),
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
fn a_constraint_that_no_text_can_meet_is_refused() {
    let model = load_demo();
    for constraint in [
        Constraint::json_schema(json!(false)),
        Constraint::json_schema(json!({"enum": []})),
        Constraint::json_schema(json!({"type": "integer", "minimum": 5, "maximum": 3})),
        Constraint::json_schema(json!({"type": "string", "minLength": 5, "maxLength": 3})),
        Constraint::json_schema(json!({"allOf": [{"type": "string"}, {"type": "null"}]})),
        Constraint::json_schema(json!({"type": "object", "required": ["a"], "additionalProperties": false})),
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
        Constraint::gbnf("root ::= root \"a\" | \"b\""),
        Constraint::gbnf("root ::= a root\na ::= \"x\"?"),
        Constraint::gbnf("root ::= \"a\" root"),
        Constraint::gbnf("root ::= [a"),
        Constraint::gbnf("root ::= [\\U00110000]"),
        Constraint::gbnf("root ::= <no such token>"),
        Constraint::gbnf(""),
    ] {
        let said = refusal(&model, constraint.clone());
        assert!(said.len() < 500 && !said.contains('\n'), "{constraint:?}: {said}");
    }
}

fn list(count: usize, item: impl Fn(usize) -> Value) -> Value {
    (0..count).map(item).collect()
}

fn object(count: usize, member: impl Fn(usize) -> (String, Value)) -> Value {
    (0..count).map(member).collect::<Map<_, _>>().into()
}

/// A function that makes a constraint. Constraints are made only when they are needed, because some have megabytes.
type Make = fn() -> Constraint;

fn schema(schema: Value) -> Constraint {
    Constraint::json_schema(schema)
}

fn any_object(key: &str, n: usize) -> Value {
    json!({"anyOf": list(n, |i| json!({"type": "object", "required": [format!("{key}{i}")]}))})
}

/// Hostile constraints. Each must be refused, or enforced within limits of time and memory.
const HOSTILE: [Make; 37] = [
    || {
        let chain = object(1900, |i| {
            let next = format!("#/$defs/d{}", (i + 1) % 1900);
            (format!("d{i}"), json!({"type": "object", "properties": {"x": {"$ref": next}}}))
        });
        schema(json!({"$ref": "#/$defs/d0", "$defs": chain}))
    },
    || schema((0..400).fold(json!({}), |inner, _| json!({"items": inner}))),
    || schema(json!({"enum": list(30_000, |i| json!(format!("value {i} of many")))})),
    || schema(json!({"enum": list(100_000, |i| json!(i))})),
    || schema(json!({"oneOf": list(5000, |i| json!({"const": i}))})),
    || schema(json!({"allOf": [any_object("a", 300), any_object("b", 300)]})),
    || schema(json!({"allOf": list(30, |i| any_object(&i.to_string(), 2))})),
    || schema(json!({"patternProperties": object(24, |i| (format!("^x{i}(a|b)*c(a|b){{12}}$"), json!(true)))})),
    || schema(json!({"type": "array", "minItems": 1_000_000_000})),
    || schema(json!({"type": "string", "minLength": 1_000_000_000})),
    || schema(json!({"type": "string", "pattern": "^(a|a|b?)*(a+)+(.*)*c{1,500}$"})),
    || schema(json!({"type": "number", "multipleOf": 1e-9})),
    || schema(json!({"type": "number", "multipleOf": 0})),
    || schema(json!({"description": "x".repeat(2 << 20)})),
    || schema(json!({"$ref": format!("#/{}", "é".repeat(200)), "enum": ["é".repeat(5000)]})),
    || Constraint::regex("(a|b)*a(a|b){20}(a|b)*b(a|b){20}"),
    || Constraint::regex("((((((x{100}){100}){100}){100}){100}){100})"),
    || Constraint::regex("(".repeat(100_000)),
    || Constraint::regex(format!("{}a{}", "(".repeat(90), ")*".repeat(90))),
    || Constraint::regex("a|b".repeat(1 << 20)),
    || Constraint::choices((0..100_000).map(|i| i.to_string())),
    || Constraint::lark("start: start start | \"a\" | "),
    || Constraint::lark("start: (\"a\" | b){1,100000}\nb: (start{1,1000}){1,1000}"),
    || Constraint::lark(format!("start: {}", "(".repeat(100_000))),
    || Constraint::lark(format!("start: {}\"a\"{}", "(".repeat(3_900), ")".repeat(3_900))),
    || Constraint::regex(format!("{}a{}", "(".repeat(2_600), ")".repeat(2_600))),
    || Constraint::gbnf("root ::= (a a)* \"b\"\na ::= (\"x\" | \"x\" a | a2)*\na2 ::= \"x\"* \"x\"* \"x\"*"),
    || Constraint::gbnf("root ::= ((((\"x\"{40}){40}){40}){40})"),
    || Constraint::gbnf("root ::= \"x\"{2000} | [^x]{0,99999999999999999999}"),
    || Constraint::gbnf(format!("root ::= {}", "(".repeat(100_000))),
    || Constraint::gbnf("root ::= \"(\" root root | \"(\" root | \"\""),
    || Constraint::gbnf(format!("root ::= {}", "\"a\"? ".repeat(8_000))),
    || Constraint::gbnf(format!("root ::= ({}\"b\") root | \"\"", "\"a\"? ".repeat(8_000))),
    // Each rule contains the previous rule twice.
    || {
        let rules: String = (1..60).map(|i| format!("r{i} ::= r{} r{}\n", i - 1, i - 1)).collect();
        Constraint::gbnf(format!("root ::= r59\nr0 ::= \"x\" | \"y\"?\n{rules}"))
    },
    // Words that begin alike, next to a rule that reads them letter by letter.
    || {
        let words: Vec<String> = (0..2_000).map(|i| format!("\"w{i}\"")).collect();
        Constraint::gbnf(format!("root ::= (word | ({}) root [a-z0-9])\nword ::= [a-z] word?", words.join(" | ")))
    },
    || {
        let rules: String = (0..1_900).map(|i| format!("r{i} ::= \"a\" r{} | r{}?\n", i + 1, i + 2)).collect();
        Constraint::gbnf(format!("root ::= r0\n{rules}r1900 ::= root\nr1901 ::= \"z\""))
    },
    || {
        let rules: String = (0..20_000).map(|i| format!("r{i} ::= r{}\n", i + 1)).collect();
        Constraint::gbnf(format!("root ::= r0\n{rules}r20000 ::= \"z\""))
    },
];

fn numbers() -> Value {
    json!({"enum": list(4500, |i| json!(100_000 + i))})
}

fn has(key: &str, of: Value) -> Value {
    json!({"type": "object", "properties": {key: of}})
}

fn named(of: Value) -> Value {
    object(500, |i| (format!("p{i}"), of.clone()))
}

fn both(one: Value, other: Value) -> Constraint {
    schema(json!({"allOf": [one, other]}))
}

fn one_of_them() -> Value {
    let optional = named(json!({"type": "null"}));
    json!({"type": "object", "properties": optional, "additionalProperties": false, "minProperties": 1})
}

fn kind(i: usize) -> Value {
    let names = list(250, |j| json!(format!("{i} {j}")));
    json!({"type": "object", "properties": {"kind": {"enum": names}}, "required": ["kind"]})
}

/// Schemas and grammars that once took gigabytes or minutes, or ended the process. They are grouped by the message with
/// which they are refused.
const BOMBS: [(&str, &[Make]); 9] = [
    (
        "combinations of its schemas apply at once",
        &[
            || both(json!({"anyOf": list(1800, |_| json!({"type": "object"}))}), has("x", numbers())),
            || schema(json!({"anyOf": list(1800, |_| json!({"type": "object"})), "properties": {"x": numbers()}})),
            || both(numbers(), has("x", numbers())),
            || {
                let all = json!({"type": "object", "additionalProperties": numbers()});
                both(json!({"type": "object", "properties": named(json!(true))}), all)
            },
            || {
                let all = json!({"type": "array", "items": numbers()});
                both(json!({"type": "array", "prefixItems": list(1000, |_| json!(true))}), all)
            },
            || {
                let [a, b] = ["a", "b"].map(|name| named(json!({"$ref": format!("#/$defs/{name}")})));
                let [a, b] = [a, b].map(|properties| json!({"type": "object", "properties": properties}));
                let defined = json!({"a": has("x", numbers()), "b": has("y", numbers())});
                schema(json!({"allOf": [a, b], "$defs": defined}))
            },
            || schema(json!({"properties": named(json!(true)), "patternProperties": {"^p": numbers()}})),
        ],
    ),
    ("nested without end", &[|| schema(json!({"anyOf": list(5000, |_| json!({"$ref": "#"}))}))]),
    (
        "may begin in more than 1100 ways",
        &[|| schema(json!({"anyOf": list(900, |i| json!({"type": "array", "items": {"$ref": "#"}, "minItems": i}))}))],
    ),
    (
        "`minProperties` is 1",
        &[|| schema(one_of_them()), || Constraint::lark(format!("start: %json {}", one_of_them()))],
    ),
    ("`oneOf`s hold too many values", &[|| schema(json!({"oneOf": list(250, kind)}))]),
    (
        "9000 numbers with bounds",
        &[|| schema(json!({"anyOf": list(9000, |i| json!({"type": "number", "minimum": -1.5e-9, "maximum": i}))}))],
    ),
    ("parameters (`::`)", &[|| Constraint::lark("b: <\">\nstart: a::0\na::_: a::incr(_) \"y\" | \"x\"")]),
    ("another grammar (`%lark`)", &[|| Constraint::lark("start: %lark {\nstart: A\nA: B B\nB: /a?/\n}")]),
    (
        "a `capture`",
        &[|| {
            let captures = (0..400).map(|i| format!("r{i}[capture]: r{}\n", i + 1)).collect::<String>();
            Constraint::lark(format!("start: r0\n{captures}r400: start /[a-z]/ | \"z\""))
        }],
    ),
];

#[test]
fn large_schemas_of_tools_are_followed() {
    let closed = |properties| json!({"type": "object", "properties": properties, "additionalProperties": false});
    let types =
        [json!({"type": "integer", "minimum": 0}), json!({"type": ["string", "null"]}), json!({"enum": [1, "a"]})];
    let arguments = |i| closed(object(12, |j| (format!("a{i}_{j}"), types[j % 3].clone())));
    let tool = |i: usize| {
        json!({"type": "object", "properties": {"name": {"const": format!("tool {i}")}, "arguments": arguments(i)},
               "required": ["name", "arguments"], "additionalProperties": false})
    };
    let resources = object(100, |i| {
        let field = |j| (format!("f{j}"), json!({"$ref": format!("#/$defs/{}", (7 * i + 13 * j) % 100)}));
        (i.to_string(), closed(object(20, field)))
    });
    let model = load_demo();
    for schema in [
        closed(object(900, |i| (format!("p{i}"), json!({"type": "string"})))),
        json!({"anyOf": list(128, tool)}),
        json!({"oneOf": list(100, tool)}),
        json!({"enum": list(10_000, |i| json!(format!("value {i} of many")))}),
        json!({"$ref": "#/$defs/0", "$defs": resources}),
        json!({"allOf": [{"$ref": "#/$defs/base"}, {"type": "object", "properties": {"a0_3": {"maximum": 9}}}],
               "$defs": {"base": arguments(0)}}),
    ] {
        match model.generate(PROMPT).constraint(Constraint::json_schema(schema)).max_tokens(16).text() {
            Ok(_) | Err(Error::Incomplete { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

/// Each constraint is tested in a separate process, so that the peak of memory is its own. If a constraint would take
/// gigabytes or minutes, it is refused, and the error contains the limit that it exceeds.
#[test]
fn a_hostile_constraint_is_an_error_or_followed_in_256_mib() {
    const INDEX: &str = "AUTOPLACE_HOSTILE";
    let bombs = BOMBS.iter().flat_map(|(why, bombs)| bombs.iter().map(|make| (make, Some(*why))));
    let all: Vec<(&Make, Option<&str>)> = HOSTILE.iter().map(|make| (make, None)).chain(bombs).collect();
    if let Ok(index) = std::env::var(INDEX) {
        let (make, why) = all[index.parse::<usize>().unwrap()];
        return hold_in_256_mib(make(), why);
    }
    for (index, (make, _)) in all.iter().enumerate() {
        println!("{:.100}", format!("{:?}", make()));
        assert!(own_process::ran_with(&[(INDEX, &index.to_string())]));
    }
}

fn hold_in_256_mib(constraint: Constraint, refused: Option<&str>) {
    let model = load_demo();
    model.generate(PROMPT).constraint(Constraint::choices(["a"])).text().unwrap();
    // The maximum of this process's memory in KiB; 0 if the system does not report it.
    let peak = || status("VmHWM").unwrap_or(0);
    let before = peak();
    let held = model.generate(PROMPT).seed(1).constraint(constraint);
    match held.max_tokens(256).text() {
        Ok(_) | Err(Error::Incomplete { .. }) if refused.is_none() => {}
        Err(error @ (Error::Constraint { .. } | Error::NoTokenAllowed { .. })) => {
            assert!(refused.is_none_or(|why| error.to_string().contains(why)), "{error}");
        }
        other => panic!("{other:?}"),
    }
    // The kernel adds up the numbers of several cores. So a second reading may be slightly lower than the first.
    let grown = peak().saturating_sub(before);
    assert!(grown <= 256 << 10, "{grown} KiB");
}
