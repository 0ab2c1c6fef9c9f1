//! With a regular expression, a list of choices or a grammar as its constraint, a text meets that constraint.

use crate::native_support::load_demo;
use crate::text_support::{PROMPT, complete, in_worker, request};
use autoplace::Model;
use autoplace::generate::{Constraint, Error};
use test_support::demo_path;

fn generate(model: &Model, constraint: &Constraint, seed: u32) -> Result<String, Error> {
    model.generate(PROMPT).constraint(constraint.clone()).seed(seed).max_tokens(1500).text()
}

#[test]
fn a_regular_expression_matches_the_whole_text() {
    let model = load_demo();
    for pattern in [
        "[a-z]{2,10}@[a-z]{2,10}\\.(com|org)",
        "(yes|no|perhaps), my lord[.!?]",
        "[0-9]{1,3}(,[0-9]{3}){0,2}",
        "\\p{Lu}\\p{Ll}{1,8}( \\p{Lu}\\p{Ll}{1,8})?",
        "日本?(語|人)",
        "a/b\\\\c\n[\"'`]{3}",
        "(?i)the KING",
        "x?",
        "",
    ] {
        let whole = regex::Regex::new(&format!("^(?:{pattern})$")).unwrap();
        for seed in 0..6 {
            let text = generate(&model, &Constraint::regex(pattern), seed);
            let text = text.unwrap_or_else(|error| panic!("{pattern}: {error}"));
            assert!(whole.is_match(&text), "{pattern}: {text:?}");
        }
    }
}

#[test]
fn an_ignored_end_token_is_not_taken_as_text_of_a_constraint() {
    let model = load_demo();
    let vocab = model.native().unwrap().vocab();
    let end = String::from_utf8(vocab.piece(vocab.eos().unwrap(), true).unwrap()).unwrap();
    let wants_to_end = model.generate(PROMPT).temp(0.0).logit_bias_text(end, 1000.0);
    let may_end = wants_to_end.clone().constraint(Constraint::regex("[a-z]+")).max_tokens(7);
    let stopped = complete(may_end.clone(), &model);
    let stopped_text = may_end.clone().text().unwrap();
    let text = may_end.ignore_eos().text().unwrap();
    assert!(text.len() > stopped_text.len(), "{text:?} {stopped_text:?}");
    assert!(stopped.tokens.len() < 7);
    assert!(text.bytes().all(|byte| byte.is_ascii_lowercase()), "{text:?}");
    let must_end = wants_to_end.constraint(Constraint::regex("yes")).max_tokens(7).ignore_eos();
    assert_eq!(must_end.text().unwrap(), "yes");
}

#[test]
fn a_text_is_one_of_its_choices() {
    let model = load_demo();
    let lists: [&[&str]; 4] = [
        &["yes", "no"],
        &["a", "ab", "abc", "b"],
        &["(.*)", "[x]", "a|b", "/slash/"],
        &["日本語", "größer", "multi\nline", ""],
    ];
    for choices in lists {
        let constraint = Constraint::choices(choices.iter().copied());
        for seed in 0..8 {
            let text = generate(&model, &constraint, seed).unwrap();
            assert!(choices.contains(&&*text), "{text:?} is none of {choices:?}");
        }
    }
}

#[test]
fn a_lark_grammar_is_followed() {
    let model = load_demo();
    let balanced = Constraint::lark("start: \"(\" start \")\" | WORD\nWORD: /[a-z]{1,5}/");
    for seed in 0..6 {
        match generate(&model, &balanced, seed) {
            Ok(text) => {
                let inner = text.trim_start_matches('(').trim_end_matches(')');
                let depth = text.find(inner).unwrap();
                assert_eq!(text.len(), inner.len() + 2 * depth, "{text}");
                assert!((1..=5).contains(&inner.len()), "{text}");
            }
            Err(Error::Incomplete { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn a_gbnf_grammar_is_followed_here_and_in_a_worker() {
    let grammar =
        Constraint::gbnf("root ::= item{2,3}\nitem ::= \"- \" word (\" \" word){0,2} \"\\n\"\nword ::= [a-z]{2,6}");
    let items = regex::Regex::new("^(- [a-z]{2,6}( [a-z]{2,6}){0,2}\n){2,3}$").unwrap();
    for model in [load_demo(), in_worker(&demo_path(), request(1024, 1, false))] {
        for seed in 0..6 {
            let text = generate(&model, &grammar, seed).unwrap();
            assert!(items.is_match(&text), "{text:?}");
        }
    }
    // A grammar can only name tokens that are in the vocabulary.
    let model = load_demo();
    let said = generate(&model, &Constraint::gbnf("root ::= <think>"), 1).unwrap_err().to_string();
    assert!(said.contains("line 1, column 10: `<think>` is not a token"), "{said}");
}

#[test]
fn a_constraint_that_allows_every_text_changes_none() {
    let model = load_demo();
    let greedy = || model.generate(PROMPT).temp(0.0).max_tokens(60);
    let free = greedy().text().unwrap();
    assert_eq!(greedy().constraint(Constraint::regex("(?s:.*)")).text().unwrap(), free);
}

#[test]
fn no_token_of_a_held_text_is_a_control_token() {
    let model = load_demo();
    let vocab = model.native().unwrap().vocab();
    let control: Vec<_> = (0..vocab.n_tokens() as i32).filter(|token| vocab.is_control(*token)).collect();
    assert!(!control.is_empty());
    let any_token = Constraint::lark(format!("start: (<[0-{}]>){{1,40}}", vocab.n_tokens() - 1));
    for constraint in [any_token, Constraint::regex("(?s:.){40}")] {
        for seed in 0..4 {
            let held = model.generate(PROMPT).special(true).seed(seed);
            let mut stream = held.constraint(constraint.clone()).temp(3.0).max_tokens(100).stream().unwrap();
            for piece in stream.pieces().map(Result::unwrap) {
                let token = piece.token.unwrap();
                assert!(piece.end.is_some() || !control.contains(&token), "{constraint:?}");
            }
        }
    }
    let said = generate(&model, &Constraint::lark("start: \"a\" <|im_end|>"), 1).unwrap_err().to_string();
    assert!(said.contains("control token"), "{said}");
}

#[test]
fn the_token_that_completes_a_text_is_part_of_it() {
    let model = load_demo();
    let held = Constraint::regex("[ab]{9}c");
    let mut stream = model.generate(PROMPT).constraint(held).stream().unwrap();
    let pieces: Vec<_> = stream.pieces().map(Result::unwrap).collect();
    let last = pieces.last().unwrap();
    assert!(last.text.ends_with('c') && last.token.is_some(), "{last:?}");
    let tokens = pieces.iter().filter(|piece| piece.token.is_some()).count();
    assert_eq!(last.end.unwrap().statistics.generated_tokens, tokens);
}
