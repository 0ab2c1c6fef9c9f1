//! Texts in sessions are forked and rolled back, on the demo model.

use crate::text_support::{PROMPT, Raw, SYSTEM, Texts, complete, demo, greedy, to_the_end, tokens_of};
use autoplace::Model;
use autoplace::generate::{Constraint, Error, FinishReason, Fork, GenerateRequest, Mirostat, Sampling};
use autoplace::llama_sys::{Candidates, Token};

/// Texts with a sampler, a constraint or a stop string that has state.
fn kinds(model: &Model) -> Vec<(&'static str, GenerateRequest)> {
    let nth = |candidates: &Candidates, n: usize| -> Token {
        let mut sorted: Vec<_> = candidates.iter().collect();
        sorted.sort_by(|a, b| b.logit().total_cmp(&a.logit()));
        sorted[n].token()
    };
    let prompt = tokens_of(model, SYSTEM).len();
    let own = model.generate(SYSTEM).top_p(1.0).min_p(0.0).max_tokens(24);
    let by_length = own.sampler(move |candidates, so_far: &[Token]| nth(candidates, (so_far.len() - prompt) % 3));
    let whole = complete(greedy(model, SYSTEM).max_tokens(60), model).text;
    // The stop string extends over several words, and so over several tokens.
    let stop: String = whole.chars().skip(20).take(15).collect();
    vec![
        ("greedy", greedy(model, SYSTEM)),
        ("penalties, by chance", model.generate(SYSTEM).seed(11).repeat_penalty(1.4).max_tokens(24)),
        ("a sampler of the tokens so far", by_length),
        ("a stop string", greedy(model, SYSTEM).max_tokens(60).stop(stop)),
        ("a constraint", model.generate(SYSTEM).seed(3).constraint(Constraint::regex("([a-z]{3} [0-9]{2} ){4}x"))),
    ]
}

/// The positions at which a text with this length is forked or rolled back.
fn places(length: usize) -> impl Iterator<Item = usize> {
    [1, 6, 12, 20, length - 1].into_iter().filter(move |place| *place < length)
}

#[test]
fn a_fork_goes_on_as_its_text_does_or_begins_as_it_began() {
    for unified in [false, true] {
        let model = demo(1024, 4, unified);
        for (kind, generate) in kinds(&model) {
            let alone = complete(generate.clone(), &model);
            for place in places(alone.statistics().generated_tokens) {
                let case = format!("{kind} after {place} tokens, unified: {unified}");
                let mut session = model.session().unwrap();
                let mut texts = Texts::default();
                let first = session.begin(generate.clone()).unwrap();
                // The first fork is made before the prompt is computed, and the second in the middle of the text.
                let early = session.fork(first, Fork::new()).unwrap();
                texts.generate_to(&mut session, first, place);
                let late = session.fork(first, Fork::new()).unwrap();
                assert_eq!(session.tokens(late), session.tokens(first), "{case}");
                let again = session.fork(first, Fork::from_prompt()).unwrap();
                let (said, tokens) = (texts.of(first).text.clone(), texts.of(first).tokens.clone());
                // From here on, the fork does not need its original any more.
                let mut whole = vec![early, again];
                match place % 2 {
                    0 => drop(session.end(first).unwrap()),
                    _ => whole.push(first),
                }
                texts.run(&mut session);
                for sequence in whole {
                    let text = texts.of(sequence);
                    assert_eq!((&text.tokens, &text.text), (&alone.tokens, &alone.text), "{case}");
                }
                let text = texts.of(late);
                assert_eq!([tokens, text.tokens.clone()].concat(), alone.tokens, "{case}");
                assert_eq!(said + &text.text, alone.text, "{case}");
                assert_eq!(text.end.unwrap().reason, alone.end.unwrap().reason, "{case}");
                assert_eq!(text.statistics().generated_tokens, alone.statistics().generated_tokens, "{case}");
            }
        }
    }
}

#[test]
fn several_answers_to_one_prompt_compute_it_once() {
    for unified in [false, true] {
        let model = demo(2048, 4, unified);
        // The prompt is so long that a copy of it is worthwhile.
        let prompt = SYSTEM.repeat(4);
        let seeded = |seed| model.generate(&*prompt).seed(seed).max_tokens(16);
        let mut session = model.session().unwrap();
        let mut texts = Texts::default();
        let first = session.begin(seeded(1)).unwrap();
        texts.generate_to(&mut session, first, 1);
        let others = [2, 3, 4].map(|seed| session.fork(first, Fork::from_prompt().seed(seed)).unwrap());
        texts.run(&mut session);
        drop(session);
        for (seed, sequence) in (1..).zip([first].into_iter().chain(others)) {
            let alone = complete(seeded(seed), &model).tokens;
            let text = texts.of(sequence);
            assert_eq!(text.tokens, alone, "{seed}, unified: {unified}");
            let statistics = text.statistics();
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
    let first = session.begin(model.generate(SYSTEM).seed(1).temp(1.5).max_tokens(20)).unwrap();
    texts.generate_to(&mut session, first, 6);
    let calm = session.fork(first, Fork::new().sampling(Sampling::greedy()).max_tokens(12)).unwrap();
    let so_far = session.tokens(calm).unwrap();
    texts.run(&mut session);
    assert_eq!(texts.of(calm).tokens, Raw::text(&model, &so_far, 6));
    assert_eq!(texts.of(calm).statistics().seed, None);
}

#[test]
fn a_fork_copies_what_an_own_sampler_remembers_and_a_roll_back_keeps_it() {
    let model = demo(1024, 3, false);
    let mut calls = 0;
    let generate = model.generate(SYSTEM).top_p(1.0).min_p(0.0).max_tokens(12);
    let generate = generate.sampler(move |candidates, _| {
        calls += 1;
        let mut sorted: Vec<_> = candidates.iter().collect();
        sorted.sort_by(|a, b| b.logit().total_cmp(&a.logit()));
        sorted[calls % 4].token()
    });
    let alone = complete(generate.clone(), &model).tokens;
    let mut session = model.session().unwrap();
    let mut texts = Texts::default();
    let first = session.begin(generate.clone()).unwrap();
    texts.generate_to(&mut session, first, 5);
    let twin = session.fork(first, Fork::new()).unwrap();
    let again = session.fork(first, Fork::from_prompt()).unwrap();
    texts.run(&mut session);
    assert_eq!(texts.of(first).tokens, alone);
    assert_eq!(texts.of(twin).tokens, alone[5..]);
    assert_eq!(texts.of(again).tokens, alone, "another answer begins with the sampler as it was");

    let mut texts = Texts::default();
    let back = session.begin(generate).unwrap();
    texts.generate_to(&mut session, back, 5);
    session.roll_back(back, 4).unwrap();
    texts.run(&mut session);
    // The sampler's choices repeat after four calls. Four tokens were rolled back, so the same tokens are chosen again.
    assert_eq!(texts.of(back).tokens, [&alone[..5], &alone[1..]].concat());
}

#[test]
fn forks_of_one_cache_share_their_cells() {
    // There is no room in the cache for five copies of the prompt.
    let model = demo(256, 5, true);
    let long = SYSTEM.repeat(6);
    let prompt = tokens_of(&model, &long);
    assert!(prompt.len() > 100, "{}", prompt.len());
    let raw = Raw::text(&model, &prompt, 8);
    let mut session = model.session().unwrap();
    let first = session.begin(greedy(&model, long).max_tokens(8)).unwrap();
    Texts::default().generate_to(&mut session, first, 1);
    for _ in 0..4 {
        session.fork(first, Fork::from_prompt()).unwrap();
    }
    // One text has ended. The cells that the other texts share are still counted only once.
    session.end(first).unwrap();
    for text in to_the_end(&mut session) {
        assert_eq!(text.tokens, raw);
        assert_eq!(text.end.unwrap().reason, FinishReason::MaxTokens);
    }
}

#[test]
fn a_fork_without_a_place_is_refused_and_the_text_goes_on() {
    let model = demo(1024, 2, false);
    let mut session = model.session().unwrap();
    let first = session.begin(greedy(&model, SYSTEM)).unwrap();
    let second = session.fork(first, Fork::new()).unwrap();
    assert_matches!(session.fork(second, Fork::new()), Err(Error::SequencesBusy { n_seq_max: 2 }));
    session.end(second).unwrap();
    assert_matches!(session.fork(second, Fork::new()), Err(Error::NotRunning { .. }));
    let mut hot = Sampling::default();
    hot.temperature = -1.0;
    assert_matches!(session.fork(first, Fork::new().sampling(hot)), Err(Error::Native(_)));
    assert_eq!(session.len(), 1);
    let raw = Raw::text(&model, &tokens_of(&model, SYSTEM), 24);
    assert_eq!(to_the_end(&mut session)[0].tokens, raw);
}

/// The text that was generated after a roll-back. At the token `place`, the text is rolled back by `tokens` tokens, and
/// then generated to its end.
fn rolled_back(model: &Model, generate: GenerateRequest, place: usize, tokens: usize) -> (String, usize) {
    let mut session = model.session().unwrap();
    let mut texts = Texts::default();
    let sequence = session.begin(generate).unwrap();
    texts.generate_to(&mut session, sequence, place);
    let gone = session.roll_back(sequence, tokens).unwrap();
    assert_eq!(gone.tokens, tokens);
    let text = texts.of(sequence);
    text.text.truncate(text.text.len() - gone.text);
    texts.run(&mut session);
    let text = texts.of(sequence);
    (text.text.clone(), text.statistics().generated_tokens)
}

#[test]
fn a_text_rolled_back_goes_on_as_if_nothing_had_been_chosen() {
    let model = demo(1024, 1, false);
    for (kind, generate) in kinds(&model) {
        let whole = complete(generate.clone(), &model);
        let generated = whole.statistics().generated_tokens;
        for place in places(generated) {
            for tokens in [1, place.div_ceil(2), place] {
                let again = rolled_back(&model, generate.clone(), place, tokens);
                assert_eq!(again, (whole.text.clone(), generated), "{kind}: {tokens} of {place}");
            }
        }
    }
}

#[test]
fn rolled_back_into_its_prompt_a_text_is_that_of_the_shorter_prompt() {
    let model = demo(1024, 2, false);
    let prompt = tokens_of(&model, SYSTEM);
    let mut session = model.session().unwrap();
    for (place, tokens) in [(0, 3), (1, 4), (6, 10)] {
        let mut texts = Texts::default();
        let sequence = session.begin(greedy(&model, SYSTEM)).unwrap();
        texts.generate_to(&mut session, sequence, place);
        session.roll_back(sequence, tokens).unwrap();
        let left = prompt.len() + place - tokens;
        assert_eq!(session.tokens(sequence).unwrap(), &prompt[..left]);
        texts.of(sequence).tokens.clear();
        texts.run(&mut session);
        let text = texts.of(sequence);
        assert_eq!(text.tokens, Raw::text(&model, &prompt[..left], 24), "{tokens} after {place}");
        assert_eq!(text.end.unwrap().reason, FinishReason::MaxTokens);
        assert_eq!(text.statistics().prompt_tokens, left);
    }
}

#[test]
fn a_fork_of_a_rolled_back_text_and_a_rolled_back_fork_are_texts_like_others() {
    for unified in [false, true] {
        let model = demo(1024, 3, unified);
        let prompt = tokens_of(&model, SYSTEM);
        let raw = Raw::text(&model, &prompt, 24);
        let mut session = model.session().unwrap();
        let mut texts = Texts::default();
        let first = session.begin(greedy(&model, SYSTEM)).unwrap();
        texts.generate_to(&mut session, first, 12);
        let second = session.fork(first, Fork::new()).unwrap();
        session.roll_back(first, 8).unwrap();
        session.roll_back(second, 3).unwrap();
        let third = session.fork(first, Fork::new()).unwrap();
        texts.run(&mut session);
        assert_eq!(texts.of(first).tokens[12..], raw[4..], "unified: {unified}");
        assert_eq!(texts.of(second).tokens, raw[9..], "unified: {unified}");
        assert_eq!(texts.of(third).tokens, raw[4..], "unified: {unified}");
    }
}

#[test]
fn one_token_stays_and_a_refusal_changes_nothing() {
    let model = demo(1024, 1, false);
    let prompt = tokens_of(&model, SYSTEM);
    let mut session = model.session().unwrap();
    let mut texts = Texts::default();
    let sequence = session.begin(greedy(&model, SYSTEM)).unwrap();
    texts.generate_to(&mut session, sequence, 3);
    let possible = prompt.len() + 3 - 1;
    assert_eq!(session.can_roll_back(sequence).unwrap(), possible);
    let refused = session.roll_back(sequence, possible + 1);
    assert_matches!(refused, Err(Error::CannotRollBack { tokens, .. }) if *tokens == possible + 1);
    texts.run(&mut session);
    assert_eq!(texts.of(sequence).tokens, Raw::text(&model, &prompt, 24));
    assert_matches!(session.roll_back(sequence, 1), Err(Error::NotRunning { .. }));
    assert_matches!(session.can_roll_back(sequence), Err(Error::NotRunning { .. }));
}

#[test]
fn choices_by_logits_are_lost_except_before_the_first() {
    let model = demo(1024, 2, false);
    let mut mirostat = Sampling::default();
    (mirostat.mirostat, mirostat.seed) = (Mirostat::V2, Some(4));
    let generate = model.generate(SYSTEM).sampling(mirostat.clone()).max_tokens(24);
    let alone = complete(generate.clone(), &model);
    let mut session = model.session().unwrap();
    let mut texts = Texts::default();
    let first = session.begin(generate.clone()).unwrap();
    texts.generate_to(&mut session, first, 6);
    assert_matches!(session.fork(first, Fork::new()), Err(Error::ChoicesLost { choices: 6 }));
    assert_matches!(session.roll_back(first, 2), Err(Error::CannotRollBack { tokens: 2, .. }));
    let twin = session.fork(first, Fork::from_prompt()).unwrap();
    texts.run(&mut session);
    assert_eq!(texts.of(first).tokens, alone.tokens, "nothing has changed");
    assert_eq!(texts.of(twin).tokens, alone.tokens);
    drop(session);
    assert_eq!(rolled_back(&model, generate, 6, 6).0, alone.text);
    // If a sampler depends on logits, it may be replaced by one that depends only on tokens, but not the other way
    // round.
    let mut session = model.session().unwrap();
    for (of, into, can) in [(mirostat.clone(), Sampling::default(), true), (Sampling::default(), mirostat, false)] {
        let first = session.begin(model.generate(PROMPT).sampling(of)).unwrap();
        Texts::default().generate_to(&mut session, first, 3);
        let forked = session.fork(first, Fork::new().sampling(into));
        assert_eq!(forked.is_ok(), can, "{forked:?}");
        forked.map(|fork| session.end(fork)).ok();
        session.end(first);
    }
}
