//! The last tokens of a text are forgotten as if they had never been chosen: through the public API, on the demo model.

#![cfg(feature = "llama")]

mod native_support;
mod session_support;

use autoplace::Model;
use autoplace::generate::{Error, FinishReason, Generate};
use native_support::demo_path;
use session_support::{Raw, SYSTEM, Texts, greedy, request, tokens_of, told};

fn load() -> Model {
    session_support::load(&demo_path(), request(1024, 2, false))
}

/// The text, rolled back by `tokens` after `steps` steps and told to its end.
fn rolled_back(model: &Model, generate: Generate, steps: usize, tokens: usize) -> (String, usize) {
    let mut session = model.session().unwrap();
    let mut texts = Texts::default();
    let sequence = session.begin(generate).unwrap();
    texts.steps(&mut session, steps);
    let gone = session.roll_back(sequence, tokens).unwrap();
    assert_eq!(gone.tokens, tokens);
    let told = texts.of(sequence);
    told.text.truncate(told.text.len() - gone.text);
    texts.run(&mut session);
    let told = texts.of(sequence);
    (
        told.text.clone(),
        told.end.unwrap().statistics.generated_tokens,
    )
}

#[test]
fn a_text_goes_on_as_if_nothing_had_been_chosen() {
    let model = load();
    let generate = greedy(&model, SYSTEM);
    let whole = told(generate.clone(), &model);
    assert_eq!(
        whole.tokens,
        Raw::text(&model, &tokens_of(&model, SYSTEM), 24)
    );
    for (steps, tokens) in [(1, 1), (5, 1), (12, 7), (12, 12), (23, 20)] {
        let again = rolled_back(&model, generate.clone(), steps, tokens);
        assert_eq!(again, (whole.text.clone(), 24), "{tokens} of {steps}");
    }
}

#[test]
fn the_sampler_forgets_too_its_penalties_and_its_random_numbers() {
    let model = load();
    let generate = model.generate(SYSTEM).seed(11).repeat_penalty(1.4);
    let generate = generate.max_tokens(24);
    let whole = told(generate.clone(), &model).text;
    for (steps, tokens) in [(3, 2), (12, 7), (20, 20)] {
        let (text, _) = rolled_back(&model, generate.clone(), steps, tokens);
        assert_eq!(text, whole, "{tokens} of {steps}");
    }
}

#[test]
fn text_that_was_held_back_is_held_back_again() {
    let model = load();
    let whole = told(greedy(&model, SYSTEM).max_tokens(60), &model).text;
    let stop: String = whole.chars().skip(20).take(15).collect();
    let before = whole.split(&stop).next().unwrap();
    let generate = greedy(&model, SYSTEM).max_tokens(60).stop(&stop);
    let length = told(generate.clone(), &model).tokens.len();
    for steps in 1..length {
        for tokens in 1..=steps.min(4) {
            let (text, _) = rolled_back(&model, generate.clone(), steps, tokens);
            assert_eq!(text, before, "{tokens} of {steps}");
        }
    }
}

#[test]
fn rolled_back_into_its_prompt_a_text_is_that_of_the_shorter_prompt() {
    let model = load();
    let prompt = tokens_of(&model, SYSTEM);
    let mut session = model.session().unwrap();
    for (steps, tokens) in [(0, 3), (1, 4), (6, 10)] {
        let mut texts = Texts::default();
        let sequence = session.begin(greedy(&model, SYSTEM)).unwrap();
        texts.steps(&mut session, steps);
        session.roll_back(sequence, tokens).unwrap();
        let left = prompt.len() + steps - tokens;
        assert_eq!(session.tokens(sequence).unwrap(), &prompt[..left]);
        texts.of(sequence).tokens.clear();
        texts.run(&mut session);
        let raw = Raw::text(&model, &prompt[..left], 24);
        let told = texts.of(sequence);
        assert_eq!(told.tokens, raw, "{tokens} after {steps} steps");
        let end = told.end.unwrap();
        assert_eq!(end.reason, FinishReason::MaxTokens);
        assert_eq!(end.statistics.prompt_tokens, left);
    }
}

#[test]
fn one_token_stays_and_what_is_refused_changes_nothing() {
    let model = load();
    let prompt = tokens_of(&model, SYSTEM);
    let mut session = model.session().unwrap();
    let mut texts = Texts::default();
    let sequence = session.begin(greedy(&model, SYSTEM)).unwrap();
    texts.steps(&mut session, 3);
    let possible = prompt.len() + 3 - 1;
    assert_eq!(session.can_roll_back(sequence).unwrap(), possible);
    let refused = session.roll_back(sequence, possible + 1);
    let Err(Error::CannotRollBack { tokens, .. }) = refused else {
        panic!("{refused:?}");
    };
    assert_eq!(tokens, possible + 1);
    texts.run(&mut session);
    assert_eq!(texts.of(sequence).tokens, Raw::text(&model, &prompt, 24));
    let ended = session.roll_back(sequence, 1);
    assert!(matches!(ended, Err(Error::NotRunning)), "{ended:?}");
    assert_eq!(session.can_roll_back(sequence).unwrap(), 0);
}
