//! Whatever is drafted, no text changes. The tests use the public API, a small model without rounding differences, and
//! the demo model.

use crate::speculative::{draft, greedy, seeded};
use crate::speculative_support::{PROMPT, builder, exact, oracle, request};
use crate::text_support::{self, REPEATED, Raw, SYSTEM, answered, complete, in_worker, tokens_of};
use autoplace::Model;
use autoplace::generate::{Engine, Error, FinishReason, Speculation};
use autoplace::worker;
use proptest::prelude::*;
use test_support::demo_path;

/// A model that is also its own draft model. Greedy draft tokens are accepted. Random ones may differ from the model's
/// choice.
fn load_exact() -> Model {
    let folder = tempfile::tempdir().unwrap();
    let path = exact("llama", folder.path());
    builder(&path, request(1024, 1, 8)).draft(&path).load().unwrap()
}

#[test]
fn tokens_that_are_drafted_in_an_engine_are_those_of_a_raw_loop() {
    let prompts = [PROMPT, SYSTEM, REPEATED];
    for source in [Speculation::prompt_lookup(), draft()] {
        let mut accepted = 0;
        for sequences in [1, 3] {
            let request = text_support::request(1024 * sequences, sequences, false).draft_max(8);
            let model = builder(&demo_path(), request).draft(demo_path()).load().unwrap();
            let engine = Engine::new(&model).unwrap();
            let answers = prompts.map(|prompt| {
                let generate = model.generate(prompt).temp(0.0).max_tokens(60).speculate(source);
                engine.submit(generate).unwrap()
            });
            for (prompt, answer) in prompts.into_iter().zip(answers) {
                let raw = Raw::text(&model, &tokens_of(&model, prompt), 60);
                let completion = answered(answer);
                assert_eq!(completion.tokens, raw, "{source:?}, {sequences} sequences");
                let statistics = completion.statistics();
                accepted += statistics.accepted_tokens;
                assert_eq!(
                    statistics.to_string().contains("draft tokens accepted"),
                    statistics.drafted_tokens > 0,
                    "{statistics}"
                );
                assert_eq!(statistics.acceptance_rate() > 0.0, statistics.accepted_tokens > 0, "{statistics}");
            }
        }
        assert!(accepted > 0, "{source:?}");
    }
}

#[test]
fn a_constraint_holds_for_draft_tokens_too() {
    let model = load_exact();
    for seed in 0..4 {
        let held = || {
            let digits = autoplace::generate::Constraint::regex("[0-9]{2}(, [0-9]{2}){6}");
            seeded(&model, seed).constraint(digits)
        };
        let plain = complete(held(), &model);
        assert_eq!(plain.text.len(), 26, "{plain:?}");
        let drafted = complete(held().speculate(draft()), &model);
        assert_eq!(drafted, plain);
        assert!(drafted.statistics().drafted_tokens > 0, "{drafted:?}");
    }
}

#[test]
fn an_application_drafts_by_a_closure_of_its_own_and_changes_no_text() {
    let model = load_exact();
    let prompt = tokens_of(&model, PROMPT);
    let mut wrong = 0;
    for noise in 0..6 {
        for generate in
            [greedy(&model), seeded(&model, 3).constraint(autoplace::generate::Constraint::regex("[^x]{40}"))]
        {
            let plain = complete(generate.clone(), &model);
            let oracle = oracle(&prompt, &plain.tokens, noise);
            let drafted = complete(generate.clone().draft_with(oracle.clone()), &model);
            assert_eq!(drafted, plain, "{noise}");
            let statistics = drafted.statistics();
            assert!(statistics.accepted_tokens > 4, "{statistics:?}");
            // When a token ends the text, the tokens that were drafted after it are wasted.
            assert!(noise > 0 || statistics.accepted_tokens + 1 >= statistics.drafted_tokens, "{statistics:?}");
            wrong += statistics.drafted_tokens - statistics.accepted_tokens;
            // A closure drafts, and nothing else does. Its drafts end where the text ends.
            for most in [1, 7] {
                let cut = generate.clone().max_tokens(most).speculate(draft()).draft_with(oracle.clone());
                assert_eq!(complete(cut, &model).tokens, plain.tokens[..most]);
            }
        }
    }
    assert!(wrong > 0);
    let there = in_worker(&demo_path(), request(512, 1, 4));
    let refused = there.generate(PROMPT).draft_with(|_, _| {}).stream().map(drop);
    assert_matches!(refused, Err(Error::Worker(worker::Error::Elsewhere { .. })));
}

#[test]
fn a_plan_has_an_output_for_every_draft_token_of_every_sequence() {
    for (draft_max, outputs) in [(0, 3), (4, 15)] {
        let plan = builder(&demo_path(), request(512, 3, draft_max)).plan().unwrap();
        assert_eq!(plan.context.n_outputs_max, outputs);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// Drafts change neither the text, nor its tokens, nor its end. The text may end in the middle of a draft. A limit
    /// on tokens, a stop string or the end of the generation may end the text. At a high temperature, the generation
    /// always ends by itself at some time.
    #[test]
    fn no_draft_changes_a_text(
        seed in 0..50u32,
        max_tokens in 1..60usize,
        kind in 0..3,
        stop in prop::option::of(0..120usize),
    ) {
        thread_local!(static MODEL: Model = load_exact());
        MODEL.with(|model| {
            let mut generate = match kind {
                0 => greedy(model).max_tokens(max_tokens),
                1 => seeded(model, seed).max_tokens(max_tokens),
                _ => seeded(model, seed).max_tokens(120).temp(3.0).top_k(0).top_p(1.0).min_p(0.0),
            };
            let mut plain = complete(generate.clone(), model);
            // Any part of the text can be the stop string, because there are hardly any spaces in the vocabulary.
            let word = stop.map_or_else(String::new, |at| plain.text.chars().skip(at).take(3).collect());
            if !word.is_empty() {
                generate = generate.stop(word);
                plain = complete(generate.clone(), model);
                prop_assert_eq!(plain.end.unwrap().reason, FinishReason::StopString);
            }
            let generate = generate.speculate(Speculation::DraftModel { draft_max: 8, p_min: 0.0 });
            let drafted = complete(generate, model);
            prop_assert_eq!(&drafted, &plain);
            let statistics = drafted.statistics();
            prop_assert_eq!(statistics.generated_tokens, plain.statistics().generated_tokens);
            prop_assert!(statistics.accepted_tokens <= statistics.drafted_tokens);
            prop_assert!(statistics.accepted_tokens < statistics.generated_tokens.max(1));
            Ok(())
        })?;
    }
}
