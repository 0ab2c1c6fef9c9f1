//! One text becomes several, and the last tokens of one are forgotten as if they had never been chosen: in sessions, on
//! the demo model.

use crate::text_support::{PROMPT, Raw, SYSTEM, Texts, demo, greedy, to_the_end, tokens_of, told};
use autoplace::Model;
use autoplace::generate::{Error, FinishReason, Fork, Generate, Mirostat, Sampling};
use autoplace::llama_sys::{Candidates, Token};

/// Everything that a sampler, a constraint or a stop string remembers of a text.
fn kinds(model: &Model) -> Vec<(&'static str, Generate)> {
    let nth = |candidates: &Candidates, n: usize| -> Token {
        let mut sorted: Vec<_> = candidates.iter().collect();
        sorted.sort_by(|a, b| b.logit().total_cmp(&a.logit()));
        sorted[n].token()
    };
    let prompt = tokens_of(model, SYSTEM).len();
    let own = || model.generate(SYSTEM).top_p(1.0).min_p(0.0).max_tokens(24);
    let by_length = own().sampler(move |candidates, so_far: &[Token]| nth(candidates, (so_far.len() - prompt) % 3));
    let mut calls = 0;
    let by_calls = own().sampler(move |candidates, _: &[Token]| {
        calls += 1;
        nth(candidates, calls % 4)
    });
    let whole = told(greedy(model, SYSTEM).max_tokens(60), model).text;
    // Across the ends of words, and so of tokens.
    let stop: String = whole.chars().skip(20).take(15).collect();
    let penalties = model.generate(SYSTEM).seed(11).repeat_penalty(1.4);
    #[cfg_attr(not(feature = "constraints"), expect(unused_mut, reason = "there is no more"))]
    let mut kinds = vec![
        ("greedy", greedy(model, SYSTEM)),
        ("penalties, by chance", penalties.max_tokens(24)),
        ("a sampler of the tokens so far", by_length),
        ("a stop string", greedy(model, SYSTEM).max_tokens(60).stop(stop)),
        ("a sampler that counts", by_calls),
    ];
    #[cfg(feature = "constraints")]
    {
        let held = autoplace::generate::Constraint::regex("([a-z]{3} [0-9]{2} ){4}x");
        kinds.push(("a constraint", model.generate(SYSTEM).seed(3).constraint(held)));
    }
    kinds
}

/// The steps after which a text is forked or rolled back: all of one whose pieces are held back.
fn steps(kind: &str, length: usize) -> Vec<usize> {
    match kind {
        "a stop string" => (1..length).collect(),
        _ => [1, 6, 12, 20, length - 1].into_iter().filter(|it| *it < length).collect(),
    }
}

#[test]
fn a_fork_goes_on_as_its_text_does_or_begins_as_it_began() {
    for unified in [false, true] {
        let model = demo(1024, 4, unified);
        let prompt = tokens_of(&model, SYSTEM);
        for (kind, generate) in kinds(&model) {
            let alone = told(generate.clone(), &model);
            if kind == "greedy" {
                assert_eq!(alone.tokens, Raw::text(&model, &prompt, 24));
            }
            for steps in steps(kind, alone.tokens.len()) {
                let case = format!("{kind} after {steps} steps, unified: {unified}");
                let mut session = model.session().unwrap();
                let mut texts = Texts::default();
                let first = session.begin(generate.clone()).unwrap();
                // Before its prompt is computed, and in the middle of its text.
                let early = session.fork(first, Fork::new()).unwrap();
                texts.steps(&mut session, steps);
                let late = session.fork(first, Fork::new()).unwrap();
                assert_eq!(session.tokens(late), session.tokens(first), "{case}");
                assert_eq!(session.statistics(late), session.statistics(first), "{case}");
                let anew = session.fork(first, Fork::from_prompt()).unwrap();
                let said = texts.of(first).text.clone();
                // The fork needs its text no more.
                if steps % 2 == 0 {
                    session.end(first).unwrap();
                }
                texts.run(&mut session);
                let whole = [early, anew].into_iter().chain((steps % 2 == 1).then_some(first));
                for sequence in whole {
                    let told = texts.of(sequence);
                    assert_eq!((&told.tokens, &told.text), (&alone.tokens, &alone.text), "{case}");
                }
                let told = texts.of(late);
                assert_eq!(told.tokens, alone.tokens[steps..], "{case}");
                assert_eq!(said + &told.text, alone.text, "{case}");
                let (end, of_alone) = (told.end.unwrap(), alone.end.unwrap());
                assert_eq!(end.reason, of_alone.reason, "{case}");
                let generated = of_alone.statistics.generated_tokens;
                assert_eq!(end.statistics.generated_tokens, generated, "{case}");
                let cached = texts.of(anew).statistics().cached_tokens;
                assert_eq!(cached, prompt.len() - 1, "{case}");
            }
        }
    }
}

#[test]
fn several_answers_to_one_prompt_compute_it_once() {
    for unified in [false, true] {
        let model = demo(1024, 4, unified);
        let seeded = |seed| model.generate(SYSTEM).seed(seed).max_tokens(16);
        let mut session = model.session().unwrap();
        let mut texts = Texts::default();
        let first = session.begin(seeded(1)).unwrap();
        texts.step(&mut session);
        let fork = |seed| Fork::from_prompt().seed(seed);
        let others = [2, 3, 4].map(|seed| session.fork(first, fork(seed)).unwrap());
        texts.run(&mut session);
        drop(session);
        for (seed, sequence) in (1..).zip([first].into_iter().chain(others)) {
            let alone = told(seeded(seed), &model).tokens;
            let told = texts.of(sequence);
            assert_eq!(told.tokens, alone, "{seed}, unified: {unified}");
            let statistics = told.statistics();
            let cached = if seed == 1 { 0 } else { statistics.prompt_tokens - 1 };
            assert_eq!((statistics.cached_tokens, statistics.generated_tokens), (cached, 16));
        }
    }
}

#[test]
fn a_fork_has_its_own_sampling_from_the_next_token_on() {
    let model = demo(1024, 2, true);
    let mut session = model.session().unwrap();
    let mut texts = Texts::default();
    let hot = model.generate(SYSTEM).seed(1).temp(1.5);
    let first = session.begin(hot.max_tokens(20)).unwrap();
    texts.steps(&mut session, 6);
    let calm = Fork::new().sampling(Sampling::greedy()).max_tokens(12);
    let calm = session.fork(first, calm).unwrap();
    let so_far = session.tokens(calm).unwrap();
    texts.run(&mut session);
    assert_eq!(texts.of(calm).tokens, Raw::text(&model, &so_far, 6));
    assert_eq!(texts.of(calm).statistics().seed, None);
}

#[test]
fn forks_of_one_cache_share_their_cells() {
    // Five times the prompt would not fit.
    let model = demo(256, 5, true);
    let long = SYSTEM.repeat(6);
    let prompt = tokens_of(&model, &long);
    assert!(prompt.len() > 100, "{}", prompt.len());
    let raw = Raw::text(&model, &prompt, 8);
    let mut session = model.session().unwrap();
    let first = session.begin(greedy(&model, long).max_tokens(8)).unwrap();
    session.step().unwrap();
    for _ in 0..4 {
        session.fork(first, Fork::from_prompt()).unwrap();
    }
    // One goes, and what it shared with the others is still counted once.
    session.end(first).unwrap();
    for told in to_the_end(&mut session) {
        assert_eq!(told.tokens, raw);
        assert_eq!(told.end.unwrap().reason, FinishReason::MaxTokens);
    }
}

#[test]
fn a_fork_without_a_place_is_refused_and_the_text_goes_on() {
    let model = demo(1024, 2, false);
    let mut session = model.session().unwrap();
    let first = session.begin(greedy(&model, SYSTEM)).unwrap();
    let second = session.fork(first, Fork::new()).unwrap();
    let full = session.fork(second, Fork::new());
    assert_is!(full, Err(Error::SequencesBusy { n_seq_max: 2 }));
    session.end(second).unwrap();
    assert_is!(session.fork(second, Fork::new()), Err(Error::NotRunning));
    let mut hot = Sampling::default();
    hot.temperature = -1.0;
    let refused = session.fork(first, Fork::new().sampling(hot));
    assert_is!(refused, Err(Error::Native(_)));
    assert_eq!(session.len(), 1);
    let raw = Raw::text(&model, &tokens_of(&model, SYSTEM), 24);
    assert_eq!(to_the_end(&mut session)[0].tokens, raw);
}

#[test]
fn a_text_rolled_back_goes_on_as_if_nothing_had_been_chosen() {
    let model = demo(1024, 1, false);
    // Of a counting sampler it is not known what it would have counted.
    let kinds = kinds(&model).into_iter().filter(|it| it.0 != "a sampler that counts");
    for (kind, generate) in kinds {
        let whole = told(generate.clone(), &model);
        let length = whole.tokens.len();
        for steps in steps(kind, length) {
            let all: Vec<usize> = match kind {
                "a stop string" => (1..=steps.min(4)).collect(),
                _ => vec![1, steps.div_ceil(2), steps],
            };
            for tokens in all {
                let again = rolled_back(&model, generate.clone(), steps, tokens);
                let generated = whole.statistics().generated_tokens;
                assert_eq!(again, (whole.text.clone(), generated), "{kind}: {tokens} of {steps}");
            }
        }
    }
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
    (told.text.clone(), told.statistics().generated_tokens)
}

#[test]
fn rolled_back_into_its_prompt_a_text_is_that_of_the_shorter_prompt() {
    let model = demo(1024, 2, false);
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
        let told = texts.of(sequence);
        let raw = Raw::text(&model, &prompt[..left], 24);
        assert_eq!(told.tokens, raw, "{tokens} after {steps} steps");
        assert_eq!(told.end.unwrap().reason, FinishReason::MaxTokens);
        assert_eq!(told.statistics().prompt_tokens, left);
    }
}

#[test]
fn one_token_stays_and_what_is_refused_changes_nothing() {
    let model = demo(1024, 1, false);
    let prompt = tokens_of(&model, SYSTEM);
    let mut session = model.session().unwrap();
    let mut texts = Texts::default();
    let sequence = session.begin(greedy(&model, SYSTEM)).unwrap();
    texts.steps(&mut session, 3);
    let possible = prompt.len() + 3 - 1;
    assert_eq!(session.can_roll_back(sequence).unwrap(), possible);
    let refused = session.roll_back(sequence, possible + 1);
    assert_is!(refused, Err(Error::CannotRollBack { tokens, .. }) if tokens == possible + 1);
    texts.run(&mut session);
    assert_eq!(texts.of(sequence).tokens, Raw::text(&model, &prompt, 24));
    assert_is!(session.roll_back(sequence, 1), Err(Error::NotRunning));
    assert_eq!(session.can_roll_back(sequence).unwrap(), 0);
}

#[test]
fn choices_that_went_by_their_logits_are_lost_but_not_before_the_first() {
    let model = demo(1024, 2, false);
    let mut mirostat = Sampling::default();
    (mirostat.mirostat, mirostat.seed) = (Mirostat::V2, Some(4));
    let mut xtc = Sampling::default();
    (xtc.xtc_probability, xtc.xtc_threshold, xtc.seed) = (0.5, 0.05, Some(4));
    for sampling in [mirostat.clone(), xtc] {
        let generate = model.generate(SYSTEM).sampling(sampling).max_tokens(24);
        let alone = told(generate.clone(), &model);
        let mut session = model.session().unwrap();
        let mut texts = Texts::default();
        let first = session.begin(generate.clone()).unwrap();
        texts.steps(&mut session, 6);
        let refused = session.fork(first, Fork::new());
        assert_is!(refused, Err(Error::ChoicesLost { choices: 6 }));
        let refused = session.roll_back(first, 2);
        assert_is!(refused, Err(Error::CannotRollBack { tokens: 2, possible: 0, .. }));
        let twin = session.fork(first, Fork::from_prompt()).unwrap();
        texts.run(&mut session);
        assert_eq!(texts.of(first).tokens, alone.tokens, "nothing has changed");
        assert_eq!(texts.of(twin).tokens, alone.tokens);
        drop(session);
        assert_eq!(rolled_back(&model, generate, 6, 6).0, alone.text);
    }
    // A sampler that does not can take over from one that does, and not the other way round.
    let mut session = model.session().unwrap();
    let plain = Sampling::default();
    for (of, into, can) in [(mirostat.clone(), plain.clone(), true), (plain, mirostat, false)] {
        let first = session.begin(model.generate(PROMPT).sampling(of)).unwrap();
        Texts::default().steps(&mut session, 3);
        let forked = session.fork(first, Fork::new().sampling(into));
        assert_eq!(forked.is_ok(), can, "{forked:?}");
        forked.map(|it| session.end(it)).ok();
        session.end(first);
    }
}

#[cfg(feature = "constraints")]
#[test]
fn another_answer_to_a_prompt_is_held_to_the_same_constraint() {
    let model = demo(1024, 2, true);
    let held = autoplace::generate::Constraint::regex("([a-z]{3} [0-9]{2} ){4}x");
    let mut session = model.session().unwrap();
    let first = session.begin(model.generate(SYSTEM).seed(3).constraint(held)).unwrap();
    Texts::default().steps(&mut session, 6);
    session.fork(first, Fork::from_prompt().seed(9)).unwrap();
    session.end(first).unwrap();
    let other = to_the_end(&mut session).remove(0);
    assert!(other.end.unwrap().meets_constraint);
    let numbers = other.text.split(' ').skip(1).step_by(2).take(4);
    let numbers: Vec<u32> = numbers.map(|it| it.parse().unwrap()).collect();
    assert_eq!((numbers.len(), other.text.len()), (4, 29));
}
