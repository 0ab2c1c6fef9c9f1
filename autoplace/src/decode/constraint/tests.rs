use std::collections::HashSet;
use std::sync::{Arc, OnceLock};

use llama_sys::{Model, ModelParams, Vocab};

use serde_json::json;

use super::{Constraint, Matcher};
use crate::chat::Tool;
use crate::decode::error::Error;
use crate::load::vocabulary::{Vocabulary, words};

pub(super) fn vocab() -> Vocab {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/model/autoplace-demo-q8_0.gguf");
    Model::load(path, ModelParams::default()).unwrap().vocab()
}

/// The demo model's vocabulary, read once for all tests.
pub(super) fn vocabulary() -> Arc<Vocabulary> {
    static READ: OnceLock<Arc<Vocabulary>> = OnceLock::new();
    Arc::clone(READ.get_or_init(|| Vocabulary::new(&vocab()).unwrap()))
}

#[test]
fn a_token_that_is_not_allowed_is_refused() {
    let vocab = vocab();
    let wrong = vocab.tokenize("zebra", false, false).unwrap();
    // The vocabulary adds a space before every text.
    let constraint = Constraint::regex(" the king( said)*");
    let mut matcher = Matcher::new(&constraint, &Vocabulary::new(&vocab).unwrap()).unwrap();
    assert!(matcher.accept(*wrong.last().unwrap()).is_err());
}

/// Whether the constraint allows a whole text.
pub(super) fn allows(constraint: &Constraint, text: &str) -> bool {
    allows_of(&vocabulary(), constraint, text)
}

/// Whether the constraint allows a whole text in which these texts are control tokens.
pub(super) fn allows_with_control(constraint: &Constraint, text: &str, control: &[&str]) -> bool {
    let vocab = vocab();
    let (words, _) = words(&vocab, false).unwrap();
    let control = control.iter().map(|token| (*token).to_owned()).collect();
    allows_of(&Arc::new(Vocabulary::from_words(&vocab, &words, control, HashSet::new()).unwrap()), constraint, text)
}

fn allows_of(vocabulary: &Arc<Vocabulary>, constraint: &Constraint, text: &str) -> bool {
    let mut matcher = Matcher::new(constraint, vocabulary).unwrap();
    let env = vocabulary.factory.tok_env().clone();
    for (said, token) in env.tokenize_bytes(text.as_bytes()).into_iter().enumerate() {
        let mask = match matcher.mask() {
            Ok(mask) => mask,
            Err(error) => {
                eprintln!("{error} of {text:?}");
                return false;
            }
        };
        if mask[token as usize / 32] >> (token % 32) & 1 == 0 {
            eprintln!("no token {said} ({:?}) of {text:?}", env.tok_trie().token_str(token));
            return false;
        }
        matcher.accept(token as i32).unwrap();
    }
    matcher.may_end()
}

#[test]
fn a_schema_in_a_lark_grammar_is_checked_like_one_alone() {
    let grammar = |schema: &str| Constraint::lark(format!("start: \"<\" %json {schema} \">\""));
    let number = grammar(r#"{"type": "integer", "exclusiveMinimum": 1, "maximum": 3}"#);
    assert!(allows(&number, "<2>") && !allows(&number, "<1>") && !allows(&number, "<4>"));
    assert!(!allows(&grammar(r#"{"const": "a", "x-guidance": {"whitespace_pattern": "x"}}"#), "<x\"a\">"));
}

#[test]
fn a_text_whose_parser_would_keep_too_much_ends() {
    let regex = format!("[ab]*a{}", "[ab]".repeat(60_000));
    let vocabulary = Vocabulary::new(&vocab()).unwrap();
    let mut matcher = Matcher::new(&Constraint::regex(regex), &vocabulary).unwrap();
    let env = vocabulary.factory.tok_env().clone();
    let letters = ["a", "b"].map(|letter| env.tokenize_bytes(letter.as_bytes())[0] as i32);
    let mut dice = 1_u32;
    let refused = (0..20_000).find_map(|_| {
        dice ^= dice << 13;
        dice ^= dice >> 17;
        dice ^= dice << 5;
        matcher.accept(letters[dice as usize % 2]).and_then(|()| matcher.mask().map(drop)).err()
    });
    let refused = refused.unwrap().to_string();
    assert!(refused.contains("would keep more than 256 MiB"), "{refused}");
}

#[test]
fn a_heavy_constraint_is_refused_before_it_is_compiled() {
    let vocabulary = Vocabulary::new(&vocab()).unwrap();
    for constraint in [
        Constraint::regex("a?".repeat(8_000)),
        Constraint::regex("\\pL".repeat(8_000)),
        Constraint::lark(format!("start: {} \"b\"", "start \"a\" | ".repeat(3_000))),
        Constraint::lark(format!("start: {}", "\"a\"?".repeat(8_000))),
        Constraint::lark(format!(
            "start: A14\nA0: /a?/\n{}",
            (1..15).map(|i| format!("A{i}: A{} A{}\n", i - 1, i - 1)).collect::<String>()
        )),
        Constraint::lark(format!("start: A\nA: {}/b/", "~/.*a.*/ & ".repeat(8_000))),
        Constraint::json_schema(serde_json::json!({"pattern": format!("^{}$", "a?".repeat(8_000))})),
    ] {
        let refused = Matcher::new(&constraint, &vocabulary).unwrap_err().to_string();
        assert!(refused.contains("larger than 256 KiB") || refused.contains("too large together"), "{refused}");
    }
}

fn tools() -> Vec<Tool> {
    let days = json!({"type": "object", "properties": {"days": {"type": "integer", "minimum": 3, "maximum": 7}},
        "required": ["days"]});
    let tags = json!({"type": "object", "properties": {"tags": {"type": "array", "items": {"type": "string"},
        "maxItems": 2, "uniqueItems": true}}, "required": ["tags"]});
    vec![Tool::new("walk", "", days), Tool::new("tag", "", tags)]
}

#[test]
fn an_answer_is_calls_or_the_other_form_and_nothing_else() {
    let form =
        json!({"type": "object", "properties": {"name": {"type": "string", "maxLength": 9}}, "required": ["name"]});
    let either = Constraint::json_schema(form).or_calls(&tools());
    let call = |arguments: &str| format!("<tool_call>\n{{\"name\":\"walk\",\"arguments\":{arguments}}}\n</tool_call>");
    for text in [
        r#"{"name":"Ann"}"#.to_owned(),
        call(r#"{"days":3}"#),
        [call(r#"{"days":3}"#), call(r#"{"days":7}"#)].join("\n"),
    ] {
        assert!(allows(&either, &text), "{text}");
    }
    for text in [r#"{"name":3}"#.to_owned(), "Hello".to_owned(), call(r#"{"days":8}"#), call("{}")] {
        assert!(!allows(&either, &text), "{text}");
    }
}

#[test]
fn an_error_names_a_place_like_the_request() {
    let place = |constraint: Constraint| match constraint.check().unwrap_err() {
        Error::Constraint { place, .. } => place,
        error => panic!("{error}"),
    };
    let unique = json!({"type": "array", "items": {"type": "string"}, "uniqueItems": true});
    let object = json!({"type": "object", "properties": {"tags": unique}});
    assert_eq!(place(Constraint::json_schema(object.clone())), "properties.tags");
    let schema = Constraint::json_schema(object).at("response_format.json_schema.schema");
    assert_eq!(place(schema), "response_format.json_schema.schema.properties.tags");
    // llguidance reports no place, so the place is that of the innermost schema that fails even if it is compiled by
    // itself.
    let looks = json!({"type": "object", "properties": {"a": {"type": "string"}, "p": {"anyOf": [
        {"type": "null"}, {"type": "string", "pattern": "^(?=a)b$"}]}}});
    assert_eq!(place(Constraint::json_schema(looks)), "properties.p.anyOf[1]");
}

#[test]
fn unenforceable_keywords_are_removed_and_named() {
    let schema = json!({"type": "object", "properties": {
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 3}, "uniqueItems": true, "maxItems": 3},
        "code": {"type": "string", "pattern": "^(?!x)[a-z]{2}$", "maxLength": 2},
        "kind": {"oneOf": [{"type": "integer", "minimum": 0}, {"type": "integer", "maximum": 9}]},
        "days": {"type": "integer", "minimum": 1, "maximum": 7},
    }, "required": ["tags", "days"], "if": {"required": ["code"]}, "then": {"required": ["kind"]}});
    let (enforced, unenforced) = Constraint::enforceable(&schema);
    let places: Vec<(&str, bool)> = ["properties.tags", "properties.code", "properties.kind", ""]
        .map(|place| (place, unenforced.iter().any(|part| part.place == place)))
        .into();
    assert!(places.iter().all(|(_, is_there)| *is_there) && unenforced.len() == 4, "{unenforced:?}");
    let held = Constraint::json_schema(enforced);
    assert!(allows(&held, r#"{"tags":["a","a"],"code":"xy","days":7}"#));
    for text in [r#"{"tags":["abcd"],"days":7}"#, r#"{"tags":[],"code":"xyz","days":7}"#, r#"{"tags":[],"days":8}"#] {
        assert!(!allows(&held, text), "{text}");
    }
}

#[test]
fn objects_have_no_unnamed_properties_unless_they_are_open() {
    let named = json!({"type": "object", "properties": {"a": {"type": "null"}}, "required": ["a"]});
    let other = r#"{"a":null,"b":1}"#;
    let more = |members: serde_json::Value| {
        let mut schema = named.clone();
        schema.as_object_mut().unwrap().extend(members.as_object().unwrap().clone());
        schema
    };
    let mixed = json!({"allOf": [named, {"type": "object", "properties": {"b": {"type": "integer"}}}]});
    let by_name = json!({"$defs": {"base": named}, "allOf": [{"$ref": "#/$defs/base"}],
        "properties": {"b": {"type": "integer"}}});
    let kinds = json!({"type": "object", "properties": {"a": {"type": "null"}},
        "anyOf": [{"properties": {"b": {"type": "integer"}}, "required": ["b"]}, {"properties": {"c": {"type": "integer"}}}]});
    for (schema, text, is_allowed) in [
        (named.clone(), other, false),
        (more(json!({"additionalProperties": true})), other, true),
        (more(json!({"additionalProperties": {"type": "integer"}})), other, true),
        (json!({"type": "object"}), other, true),
        (json!({"type": "object", "properties": {"x": named}}), r#"{"x":{"a":null,"b":1}}"#, false),
        (more(json!({"required": ["a", "z"]})), r#"{"a":null,"z":1}"#, true),
        (mixed.clone(), other, true),
        (mixed, r#"{"a":null,"b":1,"c":2}"#, false),
        (by_name.clone(), r#"{"a":null,"b":1}"#, true),
        (by_name, r#"{"a":null,"c":1}"#, false),
        (kinds.clone(), r#"{"a":null,"b":1}"#, true),
        (kinds.clone(), r#"{"a":null,"c":1}"#, true),
        (kinds, r#"{"a":null,"d":1}"#, false),
    ] {
        assert_eq!(allows(&Constraint::json_schema(schema.clone()), text), is_allowed, "{schema} {text}");
    }
    assert!(allows(&Constraint::json_schema(named).open_objects(), other));
}

#[test]
fn formats_are_enforced_rightly_and_unknown_ones_are_annotations() {
    let held = |format: &str| Constraint::json_schema(json!({"type": "string", "format": format}));
    for (format, right, wrong) in [
        ("date", &["2024-02-29", "2000-02-29", "2023-02-28"][..], &["2023-02-29", "1900-02-29", "2024-04-31"][..]),
        ("time", &["23:59:60Z", "01:29:60+01:30", "15:59:60.5-08:00"], &["22:59:60Z", "23:59:60+01:00", "24:00:00Z"]),
        (
            "date-time",
            &["2024-02-29T23:59:60Z", "1998-12-31T15:59:60.123-08:00"],
            &["2023-02-29T00:00:00Z", "1998-12-31T23:58:60Z"],
        ),
        ("ipv6", &["::ffff:192.168.0.1", "::1", "1:2:3:4:5:6:7:8"], &["1::2:192.168.256.1", "1::d6::42"]),
        ("hostname", &["a.b-c.example"], &["-a", "a_b", "a..b", "xn--x"]),
        ("email", &["a.b@example.com", "\\\"a b\\\"@example.com"], &["a..b@example.com", "a@"]),
        ("uri-reference", &["/a?b#c", "a/b", "", "http://[::1]/"], &["a b", "\\\\\\\\a"]),
        ("json-pointer", &["", "/a~0b/~1"], &["a", "/~2"]),
        ("uri-template", &["/{a:3}/{b*}"], &["/{a", "}"]),
    ] {
        let held = held(format);
        for (texts, is_right) in [(right, true), (wrong, false)] {
            for text in texts {
                assert_eq!(allows(&held, &format!("\"{text}\"")), is_right, "{format}: {text}");
            }
        }
    }
    for format in ["password", "binary", "path", "e164", "int32", "uri-path"] {
        assert!(allows(&held(format), "\"any thing\""), "{format}");
    }
    let said = held("regex").check().unwrap_err().to_string();
    assert!(said.contains("`format: regex`"), "{said}");
}

#[test]
fn a_keyword_with_null_counts_as_absent() {
    let schema = json!({"type": "object", "properties": {"a": {"type": "integer", "minimum": null, "enum": null}},
        "required": null, "additionalProperties": null, "$defs": null, "anyOf": null});
    let held = Constraint::json_schema(schema);
    assert!(allows(&held, "{}") && allows(&held, r#"{"a":3}"#) && !allows(&held, r#"{"a":"b"}"#));
    assert!(allows(&Constraint::json_schema(json!({"const": null})), "null"));
}

#[test]
fn endless_values_are_refused_and_never_offered() {
    let endless = json!({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]});
    for schema in [json!({"$ref": "#"}), endless, json!({"type": "array", "items": {"$ref": "#"}, "minItems": 1})] {
        let error = Constraint::json_schema(schema.clone()).check().unwrap_err();
        assert!(matches!(error, Error::Constraint { .. }), "{schema}: {error}");
    }
    let optional = json!({"type": "object", "properties": {"a": {"$ref": "#/$defs/loop"}, "b": {"type": "null"}},
        "$defs": {"loop": {"$ref": "#/$defs/loop"}}});
    let held = Constraint::json_schema(optional);
    assert!(allows(&held, r#"{"b":null}"#) && !begins(&held, "{\"a"));
}

/// Whether a text under the constraint can begin with this text.
fn begins(constraint: &Constraint, text: &str) -> bool {
    let vocabulary = vocabulary();
    let mut matcher = Matcher::new(constraint, &vocabulary).unwrap();
    let env = vocabulary.factory.tok_env().clone();
    env.tokenize_bytes(text.as_bytes()).into_iter().all(|token| {
        let mask = matcher.mask().unwrap();
        mask[token as usize / 32] >> (token % 32) & 1 == 1 && matcher.accept(token as i32).is_ok()
    })
}

/// Samples random allowed tokens, like a model without any preference. No schema leads to a state without an allowed
/// token.
#[test]
fn no_token_is_offered_that_cannot_be_followed() {
    let vocabulary = vocabulary();
    // If a name began here, it could never be completed.
    for patterns in [json!({".*": false}), json!({"": false}), json!({"^a": false, "^[^a]": false, "^$": false})] {
        let held = Constraint::json_schema(json!({"type": "object", "patternProperties": patterns}));
        assert!(allows(&held, "{}") && !begins(&held, "{\""), "{patterns}");
    }
    let taken = json!({"type": "object", "patternProperties": {"^(a|b)$": {"type": "null"}},
        "properties": {"a": {"type": ["null", "boolean"]}, "b": true}, "additionalProperties": false});
    let held = Constraint::json_schema(taken);
    assert!(allows(&held, r#"{"a":null,"b":null}"#) && !begins(&held, r#"{"a":t"#) && !begins(&held, r#"{"b":null,"#));
    let schemas = [
        json!({"type": "object", "patternProperties": {"^x": {"type": "null"}}, "additionalProperties": false}),
        json!({"type": "object", "patternProperties": {"^[a-z]$": {"type": "null"}}, "additionalProperties": false,
            "properties": {"a": {"type": "boolean"}}}),
        json!({"type": "object", "patternProperties": {".*": false}}),
        json!({"type": "object", "patternProperties": {"^.*$": {"type": "null"}}, "additionalProperties": {"type": "null"}}),
        json!({"type": "object", "patternProperties": {"^(a|b)$": {"type": "null"}}, "properties": {"a": {"type": "null"},
            "b": {"type": "null"}}, "additionalProperties": false}),
        json!({"type": "object", "patternProperties": {"^a": false, "^b": {"type": "null"}}, "additionalProperties": false}),
        json!({"type": "string", "pattern": "^[^\\x00-\\uffff]{0,2}$"}),
        json!({"type": "string", "pattern": "a{3}", "maxLength": 4}),
        json!({"type": "object", "properties": {"a": {"type": "string", "pattern": "^[\\ud800-\\udbff]$"}}}),
        json!({"type": "string", "pattern": "^[\\x00-\\x1f]{1,3}$"}),
        json!({"type": "string", "pattern": "^\\x7f?$"}),
    ];
    for schema in schemas {
        let Ok(begun) = Matcher::new(&Constraint::json_schema(schema.clone()), &vocabulary) else { continue };
        for seed in 1..40_u32 {
            let (mut matcher, mut dice) = (begun.clone(), seed.wrapping_mul(747_796_405));
            for _ in 0..60 {
                if matcher.is_complete() {
                    break;
                }
                let mask = matcher.mask().unwrap_or_else(|error| panic!("{schema}: {error}")).to_vec();
                let allowed: Vec<u32> = (0..mask.len() as u32 * 32)
                    .filter(|token| mask[*token as usize / 32] >> (token % 32) & 1 == 1)
                    .collect();
                dice ^= dice << 13;
                dice ^= dice >> 17;
                dice ^= dice << 5;
                matcher.accept(allowed[dice as usize % allowed.len()] as i32).unwrap();
            }
        }
    }
}
