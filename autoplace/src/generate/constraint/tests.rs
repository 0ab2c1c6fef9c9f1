use llama_sys::{Model, ModelParams, Vocab};

use super::{Constraint, Matcher, Vocabulary};

fn vocab() -> Vocab {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../examples/model/autoplace-demo-q8_0.gguf"
    );
    Model::load(path, ModelParams::default()).unwrap().vocab()
}

fn matcher(constraint: &Constraint, vocab: &Vocab) -> Matcher {
    let vocabulary = Vocabulary::new(vocab).unwrap();
    Matcher::new(constraint, &vocabulary, vocab).unwrap()
}

/// The vocabulary puts a space before every text.
fn kinds() -> [Constraint; 2] {
    [
        Constraint::regex(" the king( said)*"),
        Constraint::gbnf("root ::= \" the king\" (\" said\")*"),
    ]
}

#[test]
fn copies_go_on_apart() {
    let vocab = vocab();
    let tokens = vocab.tokenize("the king said", false, false).unwrap();
    for constraint in kinds() {
        let mut one = matcher(&constraint, &vocab);
        let mut other = one.clone();
        for &token in &tokens {
            one.accept(token).unwrap();
        }
        assert!(one.may_end() && !other.may_end());
        for &token in &tokens {
            other.accept(token).unwrap();
        }
        assert!(other.may_end());
    }
}

#[test]
fn a_token_that_is_not_allowed_is_refused() {
    let vocab = vocab();
    let wrong = vocab.tokenize("zebra", false, false).unwrap();
    for constraint in kinds() {
        let last = *wrong.last().unwrap();
        assert!(matcher(&constraint, &vocab).accept(last).is_err());
    }
}

#[test]
fn a_vocabulary_holds_nothing_of_the_model() {
    let vocab = vocab();
    let vocabulary = Vocabulary::new(&vocab).unwrap();
    let held = Matcher::new(&kinds()[0], &vocabulary, &vocab).unwrap();
    assert_eq!(vocab.model().holders(), 1);
    drop((vocab, held));
}
