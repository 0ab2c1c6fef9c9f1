use llama_sys::{Model, ModelParams, Vocab};

use super::{Constraint, Matcher, Vocabulary};

fn vocab() -> Vocab {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/model/autoplace-demo-q8_0.gguf");
    Model::load(path, ModelParams::default()).unwrap().vocab()
}

#[test]
fn a_token_that_is_not_allowed_is_refused() {
    let vocab = vocab();
    let wrong = vocab.tokenize("zebra", false, false).unwrap();
    // The vocabulary puts a space before every text.
    let constraint = Constraint::regex(" the king( said)*");
    let mut matcher = Matcher::new(&constraint, &Vocabulary::new(&vocab).unwrap()).unwrap();
    assert!(matcher.accept(*wrong.last().unwrap()).is_err());
}

/// Whether a whole text is one that the constraint allows.
fn allows(constraint: &Constraint, text: &str) -> bool {
    let vocabulary = Vocabulary::new(&vocab()).unwrap();
    let mut matcher = Matcher::new(constraint, &vocabulary).unwrap();
    let env = vocabulary.factory.tok_env().clone();
    for token in env.tokenize_bytes(text.as_bytes()) {
        let Ok(mask) = matcher.mask() else {
            return false;
        };
        if mask[token as usize / 32] >> (token % 32) & 1 == 0 {
            return false;
        }
        matcher.accept(token as i32).unwrap();
    }
    matcher.may_end()
}

#[test]
fn a_schema_within_a_lark_grammar_is_held_to_what_one_alone_is() {
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
    let letters = ["a", "b"].map(|it| env.tokenize_bytes(it.as_bytes())[0] as i32);
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
fn what_weighs_too_much_is_refused_before_it_is_compiled() {
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
