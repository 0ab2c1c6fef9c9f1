//! Drafts change no text, whatever they are: through the public API, on a small model that rounds nothing,
//! and on the demo model.

use crate::native_support::demo_path;
use crate::speculative_support::{PROMPT, alone, builder, exact, load, request, tokens, told};
use crate::text_support::{REPEATED, Raw, SYSTEM, answered};
use autoplace::Model;
use autoplace::generate::{Engine, FinishReason, Generate, Speculation};
use autoplace::llama_sys::KvType;
use proptest::prelude::*;

/// A model that drafts with itself: the likeliest token is accepted, and what chance takes may be another.
fn load_exact() -> Model {
    let folder = tempfile::tempdir().unwrap();
    let path = exact::llama(folder.path());
    builder(&path, request(1024, 1, 8)).draft(&path).load().unwrap()
}

fn drafting(generate: Generate) -> Generate {
    generate.speculate(Speculation::DraftModel { draft_max: 8, p_min: 0.0 })
}

fn greedy(model: &Model) -> Generate {
    model.generate(PROMPT).temp(0.0).max_tokens(60)
}

/// By chance, with all that a sampler remembers.
fn seeded(model: &Model, seed: u32) -> Generate {
    model.generate(PROMPT).temp(0.9).repeat_penalty(1.1).seed(seed).max_tokens(60)
}

#[test]
fn statistics_report_how_many_tokens_were_drafted_and_accepted() {
    let model = load(&demo_path(), request(1024, 1, 8));
    let lookup = model.generate(REPEATED).temp(0.0).max_tokens(60).speculate(Speculation::prompt_lookup());
    let (_, statistics) = alone(&model, lookup);
    assert!(statistics.accepted_tokens > 0, "{statistics:?}");
    assert!(statistics.accepted_tokens <= statistics.drafted_tokens);
    assert!(statistics.acceptance_rate() > 0.0 && statistics.acceptance_rate() <= 1.0);
    assert!(statistics.to_string().contains("draft tokens accepted"), "{statistics}");
}

#[test]
fn tokens_that_are_drafted_in_an_engine_are_those_of_a_raw_loop() {
    let prompts = [PROMPT, SYSTEM, REPEATED];
    for source in [Speculation::prompt_lookup(), Speculation::DraftModel { draft_max: 5, p_min: 0.0 }] {
        let mut accepted = 0;
        for sequences in [1, 3] {
            let request = request(1024 * sequences, sequences, 8);
            let model = builder(&demo_path(), request).draft(demo_path()).load().unwrap();
            let engine = Engine::new(&model).unwrap();
            let answers = prompts.map(|prompt| {
                let generate = model.generate(prompt).temp(0.0).max_tokens(60).speculate(source);
                engine.submit(generate).unwrap()
            });
            for (prompt, answer) in prompts.into_iter().zip(answers) {
                let raw = Raw::of(&model.native().unwrap(), 1024, false, KvType::F32);
                let told = answered(answer);
                assert_eq!(told.tokens, raw.go_on(&tokens(&model, prompt), 60), "{source:?}, {sequences} sequences");
                accepted += told.statistics().accepted_tokens;
            }
        }
        assert!(accepted > 0, "{source:?}");
    }
}

#[cfg(feature = "constraints")]
#[test]
fn a_constraint_holds_for_draft_tokens_too() {
    let model = load_exact();
    for seed in 0..4 {
        let held = || {
            let digits = autoplace::generate::Constraint::regex("[0-9]{2}(, [0-9]{2}){6}");
            seeded(&model, seed).constraint(digits)
        };
        let (plain, _) = alone(&model, held());
        assert_eq!(plain.text.len(), 26, "{plain:?}");
        let (told, statistics) = alone(&model, drafting(held()));
        assert_eq!(told, plain);
        assert!(statistics.drafted_tokens > 0, "{statistics:?}");
    }
}

#[test]
fn a_plan_has_an_output_for_every_draft_token_of_every_sequence() {
    let plan = |sequences, draft_max| {
        let request = request(512, sequences, draft_max);
        builder(&demo_path(), request).plan().unwrap()
    };
    assert_eq!(plan(3, 0).context.n_outputs_max, 3);
    assert_eq!(plan(3, 4).context.n_outputs_max, 15);
    let host = |draft_max| plan(3, draft_max).host().unwrap().footprint.total();
    assert!(host(16) > host(0));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// The law: whatever is drafted, the text is the same, and so are its tokens and why it ended, be it in the middle
    /// of a draft: by a number of tokens, a stop string, or an end of generation, which comes at some time where it is
    /// hot.
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
                _ => seeded(model, seed).max_tokens(300).temp(3.0).top_k(0).top_p(1.0).min_p(0.0),
            };
            let (mut plain, mut counted) = alone(model, generate.clone());
            // Not a word: the vocabulary has next to no spaces.
            let word = stop.map_or_else(String::new, |at| plain.text.chars().skip(at).take(3).collect());
            if !word.is_empty() {
                generate = generate.stop(word);
                (plain, counted) = alone(model, generate.clone());
                prop_assert_eq!(plain.reason, Some(FinishReason::StopString));
            }
            let (told, statistics) = alone(model, drafting(generate.clone()));
            prop_assert_eq!(&told, &plain);
            prop_assert_eq!(statistics.generated_tokens, counted.generated_tokens);
            prop_assert!(statistics.accepted_tokens <= statistics.drafted_tokens);
            prop_assert!(statistics.accepted_tokens < statistics.generated_tokens.max(1));
            prop_assert_eq!(self::told(drafting(generate)).0.text, plain.text);
            Ok(())
        })?;
    }
}
