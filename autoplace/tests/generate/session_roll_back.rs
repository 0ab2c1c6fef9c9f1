//! The last tokens of a text are forgotten as if they had never been chosen: through the public API, on the demo model.

use crate::native_support::demo_path;
use crate::session_support::{Raw, SYSTEM, Texts, greedy, request, tokens_of, told};
use autoplace::Model;
use autoplace::generate::{Error, FinishReason, Generate, Mirostat, Sampling};

fn load() -> Model {
    crate::session_support::load(&demo_path(), request(1024, 2, false))
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

#[test]
fn what_a_sampler_learns_of_logits_is_lost_but_not_before_its_first_choice() {
    let model = load();
    let mut mirostat = Sampling::default();
    mirostat.mirostat = Mirostat::V2;
    mirostat.seed = Some(4);
    let mut xtc = Sampling::default();
    (xtc.xtc_probability, xtc.xtc_threshold) = (0.5, 0.05);
    xtc.seed = Some(4);
    for sampling in [mirostat, xtc] {
        let generate = model.generate(SYSTEM).sampling(sampling).max_tokens(24);
        let whole = told(generate.clone(), &model).text;
        let mut session = model.session().unwrap();
        let mut texts = Texts::default();
        let sequence = session.begin(generate.clone()).unwrap();
        texts.steps(&mut session, 6);
        let refused = session.roll_back(sequence, 2);
        assert!(
            matches!(
                refused,
                Err(Error::CannotRollBack {
                    tokens: 2,
                    possible: 0,
                    ..
                })
            ),
            "{refused:?}"
        );
        texts.run(&mut session);
        assert_eq!(texts.of(sequence).text, whole, "nothing has changed");
        drop(session);
        let (text, _) = rolled_back(&model, generate, 6, 6);
        assert_eq!(text, whole);
    }
}

#[test]
fn an_applications_own_sampler_is_shown_what_is_left() {
    let model = load();
    let prompt = tokens_of(&model, SYSTEM).len();
    let generate = |most: usize| {
        model
            .generate(SYSTEM)
            .top_p(1.0)
            .min_p(0.0)
            .sampler(move |candidates, so_far| {
                let mut sorted: Vec<_> = candidates.iter().collect();
                sorted.sort_by(|a, b| b.logit().total_cmp(&a.logit()));
                sorted[(so_far.len() - prompt) % most].token()
            })
            .max_tokens(24)
    };
    let whole = told(generate(3), &model).text;
    for (steps, tokens) in [(5, 1), (12, 7), (12, 12)] {
        let (text, _) = rolled_back(&model, generate(3), steps, tokens);
        assert_eq!(text, whole, "{tokens} of {steps}");
    }
}

#[cfg(feature = "constraints")]
#[test]
fn a_constraint_forgets_too() {
    let model = load();
    let constraint = autoplace::generate::Constraint::regex("([a-z]{3} [0-9]{2} ){4}x");
    let generate = model.generate(SYSTEM).seed(3).constraint(constraint);
    let whole = told(generate.clone(), &model);
    assert!(whole.text.ends_with('x'), "{}", whole.text);
    let length = whole.tokens.len();
    for (steps, tokens) in [(2, 1), (7, 4), (7, 7), (length - 1, 3)] {
        let (text, generated) = rolled_back(&model, generate.clone(), steps, tokens);
        assert_eq!((text, generated), (whole.text.clone(), length));
    }
}
