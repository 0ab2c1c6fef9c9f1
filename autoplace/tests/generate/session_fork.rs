//! One text becomes several: through the public API, on the demo model, beside llama.cpp's own loop.

use crate::native_support::demo_path;
use crate::session_support::{Raw, SYSTEM, Texts, greedy, request, tokens_of, told};
use autoplace::Model;
use autoplace::generate::{Error, FinishReason, Fork, Mirostat, Sampling};

fn load(n_ctx: u32, n_seq_max: u32, unified: bool) -> Model {
    crate::session_support::load(&demo_path(), request(n_ctx, n_seq_max, unified))
}

#[test]
fn a_fork_goes_on_as_its_text_does() {
    for unified in [false, true] {
        let model = load(1024, 3, unified);
        let raw = Raw::text(&model, &tokens_of(&model, SYSTEM), 24);
        let mut session = model.session().unwrap();
        let mut texts = Texts::default();
        let first = session.begin(greedy(&model, SYSTEM)).unwrap();
        // Before its prompt is computed, and in the middle of its text.
        let early = session.fork(first, Fork::new()).unwrap();
        texts.steps(&mut session, 7);
        let late = session.fork(first, Fork::new()).unwrap();
        assert_eq!(session.tokens(late), session.tokens(first));
        assert_eq!(session.statistics(late), session.statistics(first));
        texts.run(&mut session);
        assert_eq!(texts.of(first).tokens, raw, "unified: {unified}");
        assert_eq!(texts.of(early).tokens, raw, "unified: {unified}");
        assert_eq!(texts.of(late).tokens, raw[7..], "unified: {unified}");
        let end = texts.of(late).end.unwrap();
        assert_eq!(end.statistics.generated_tokens, 24);
    }
}

#[test]
fn several_answers_to_one_prompt_compute_it_once() {
    for unified in [false, true] {
        let model = load(1024, 4, unified);
        let sampled = |seed| model.generate(SYSTEM).seed(seed).max_tokens(16);
        let alone = [1, 2, 3, 4].map(|seed| told(sampled(seed), &model).tokens);
        let mut session = model.session().unwrap();
        let mut texts = Texts::default();
        let first = session.begin(sampled(1)).unwrap();
        texts.step(&mut session);
        let others = [2, 3, 4].map(|seed| {
            let fork = Fork::from_prompt().seed(seed);
            session.fork(first, fork).unwrap()
        });
        texts.run(&mut session);
        for (sequence, alone) in [first].into_iter().chain(others).zip(alone) {
            assert_eq!(texts.of(sequence).tokens, alone, "unified: {unified}");
        }
        for other in others {
            let statistics = texts.of(other).end.unwrap().statistics;
            assert_eq!(statistics.cached_tokens, statistics.prompt_tokens - 1);
            assert_eq!(statistics.generated_tokens, 16);
        }
    }
}

#[test]
fn a_fork_remembers_what_its_text_has_said_for_penalties_and_by_chance() {
    let model = load(1024, 2, false);
    let generate = model
        .generate(SYSTEM)
        .seed(5)
        .repeat_penalty(1.3)
        .max_tokens(24);
    let alone = told(generate.clone(), &model);
    let mut session = model.session().unwrap();
    let mut texts = Texts::default();
    let first = session.begin(generate).unwrap();
    texts.steps(&mut session, 9);
    let twin = session.fork(first, Fork::new()).unwrap();
    session.end(first).unwrap();
    texts.run(&mut session);
    assert_eq!(texts.of(twin).tokens, alone.tokens[9..]);
}

#[test]
fn a_stop_string_that_has_begun_ends_the_fork_too() {
    let model = load(1024, 2, true);
    let whole = told(greedy(&model, SYSTEM).max_tokens(60), &model).text;
    // Across the ends of words, and so of tokens.
    let stop: String = whole.chars().skip(20).take(15).collect();
    let before = whole.split(&stop).next().unwrap();
    let mut session = model.session().unwrap();
    let generate = greedy(&model, SYSTEM).max_tokens(60).stop(&stop);
    for steps in 1..14 {
        let mut texts = Texts::default();
        let first = session.begin(generate.clone()).unwrap();
        texts.steps(&mut session, steps);
        let said = texts.of(first).text.clone();
        let Ok(fork) = session.fork(first, Fork::new()) else {
            break;
        };
        session.end(first);
        texts.run(&mut session);
        let told = texts.of(fork);
        assert_eq!(said + &told.text, before, "{steps}");
        assert_eq!(told.end.unwrap().reason, FinishReason::StopString);
    }
}

#[test]
fn a_fork_has_its_own_sampling_from_the_next_token_on() {
    let model = load(1024, 2, true);
    let mut session = model.session().unwrap();
    let mut texts = Texts::default();
    let first = session
        .begin(
            model
                .generate(SYSTEM)
                .seed(1)
                .temperature(1.5)
                .max_tokens(20),
        )
        .unwrap();
    texts.steps(&mut session, 6);
    let calm = Fork::new().sampling(Sampling::greedy()).max_tokens(12);
    let calm = session.fork(first, calm).unwrap();
    let so_far = session.tokens(calm).unwrap().to_vec();
    texts.run(&mut session);
    assert_eq!(texts.of(calm).tokens, Raw::text(&model, &so_far, 6));
    assert_eq!(texts.of(calm).end.unwrap().statistics.seed, None);
}

#[test]
fn forks_of_one_cache_share_their_cells() {
    // Five times the prompt would not fit.
    let model = load(256, 5, true);
    let long = SYSTEM.repeat(6);
    let prompt = tokens_of(&model, &long);
    assert!(prompt.len() > 100, "{}", prompt.len());
    let raw = Raw::text(&model, &prompt, 8);
    let mut session = model.session().unwrap();
    let mut texts = Texts::default();
    let first = session.begin(greedy(&model, long).max_tokens(8)).unwrap();
    texts.step(&mut session);
    let forks: Vec<_> = (0..4)
        .map(|_| session.fork(first, Fork::from_prompt()).unwrap())
        .collect();
    // One goes, and what it shared with the others is still counted once.
    session.end(first).unwrap();
    texts.run(&mut session);
    for fork in forks {
        assert_eq!(texts.of(fork).tokens, raw);
        assert_eq!(texts.of(fork).end.unwrap().reason, FinishReason::MaxTokens);
    }
}

#[test]
fn a_fork_without_a_place_is_refused_and_the_text_goes_on() {
    let model = load(1024, 2, false);
    let mut session = model.session().unwrap();
    let first = session.begin(greedy(&model, SYSTEM)).unwrap();
    let second = session.fork(first, Fork::new()).unwrap();
    let full = session.fork(second, Fork::new());
    assert!(
        matches!(full, Err(Error::SequencesBusy { n_seq_max: 2 })),
        "{full:?}"
    );
    session.end(second).unwrap();
    let ended = session.fork(second, Fork::new());
    assert!(matches!(ended, Err(Error::NotRunning)), "{ended:?}");
    let mut hot = Sampling::default();
    hot.temperature = -1.0;
    let refused = session.fork(first, Fork::new().sampling(hot));
    assert!(matches!(refused, Err(Error::Native(_))), "{refused:?}");
    assert_eq!(session.len(), 1);
    let mut texts = Texts::default();
    texts.run(&mut session);
    let raw = Raw::text(&model, &tokens_of(&model, SYSTEM), 24);
    assert_eq!(texts.of(first).tokens, raw);
}

#[test]
fn choices_that_went_by_their_logits_cannot_be_taken_over_but_answers_can_be_begun() {
    let model = load(1024, 2, false);
    let mut mirostat = Sampling::default();
    mirostat.mirostat = Mirostat::V2;
    mirostat.seed = Some(4);
    let generate = model.generate(SYSTEM).sampling(mirostat.clone());
    let generate = generate.max_tokens(24);
    let alone = told(generate.clone(), &model);
    let mut session = model.session().unwrap();
    let mut texts = Texts::default();
    let first = session.begin(generate).unwrap();
    texts.steps(&mut session, 5);
    let refused = session.fork(first, Fork::new());
    assert!(
        matches!(refused, Err(Error::ChoicesLost { choices: 5 })),
        "{refused:?}"
    );
    let twin = session.fork(first, Fork::from_prompt()).unwrap();
    texts.run(&mut session);
    assert_eq!(texts.of(first).tokens, alone.tokens);
    assert_eq!(texts.of(twin).tokens, alone.tokens);
    // A sampler that does not can take over from one that does, and not the other way round.
    let plain = Sampling::default();
    for (of, into, can) in [
        (mirostat.clone(), plain.clone(), true),
        (plain, mirostat, false),
    ] {
        let first = session.begin(model.generate(SYSTEM).sampling(of)).unwrap();
        texts.steps(&mut session, 3);
        let forked = session.fork(first, Fork::new().sampling(into));
        assert_eq!(forked.is_ok(), can, "{forked:?}");
        forked.map(|it| session.end(it)).ok();
        session.end(first);
    }
}

#[test]
fn an_own_sampler_is_copied_with_what_it_remembers_and_for_another_answer_as_it_was() {
    let model = load(1024, 3, false);
    let mut calls = 0;
    let generate = model.generate(SYSTEM).max_tokens(12);
    let generate = generate
        .top_p(1.0)
        .min_p(0.0)
        .sampler(move |candidates, _| {
            calls += 1;
            let mut sorted: Vec<_> = candidates.iter().collect();
            sorted.sort_by(|a, b| b.logit().total_cmp(&a.logit()));
            sorted[calls % 4].token()
        });
    let alone = told(generate.clone(), &model).tokens;
    let mut session = model.session().unwrap();
    let mut texts = Texts::default();
    let first = session.begin(generate).unwrap();
    texts.steps(&mut session, 5);
    let twin = session.fork(first, Fork::new()).unwrap();
    let anew = session.fork(first, Fork::from_prompt()).unwrap();
    texts.run(&mut session);
    assert_eq!(texts.of(first).tokens, alone);
    assert_eq!(texts.of(twin).tokens, alone[5..]);
    assert_eq!(texts.of(anew).tokens, alone);
}

#[cfg(feature = "constraints")]
#[test]
fn a_fork_is_held_to_the_same_constraint() {
    let model = load(1024, 3, true);
    let constraint = autoplace::generate::Constraint::regex("([a-z]{3} [0-9]{2} ){4}x");
    let generate = model.generate(SYSTEM).seed(3).constraint(constraint);
    let alone = told(generate.clone(), &model);
    let mut session = model.session().unwrap();
    let mut texts = Texts::default();
    let first = session.begin(generate).unwrap();
    texts.steps(&mut session, 6);
    let twin = session.fork(first, Fork::new()).unwrap();
    let other = session.fork(first, Fork::from_prompt().seed(9)).unwrap();
    texts.run(&mut session);
    assert_eq!(texts.of(first).tokens, alone.tokens);
    assert_eq!(texts.of(twin).tokens, alone.tokens[6..]);
    let other = texts.of(other);
    assert!(other.end.unwrap().meets_constraint);
    let numbers = other.text.split(' ').skip(1).step_by(2).take(4);
    let numbers: Vec<u32> = numbers.map(|it| it.parse().unwrap()).collect();
    assert_eq!((numbers.len(), other.text.len()), (4, 29));
    assert_ne!(other.text, alone.text);
}
