//! Guesses change no text, whatever they are: through the public API, on a small model that rounds nothing,
//! and on the demo model.

use crate::native_support::demo_path;
use crate::speculative_support::{PROMPT, alone, builder, exact, load, request, told};
use crate::text_support::REPEATED;
use autoplace::Model;
use autoplace::generate::{FinishReason, Generate, Speculation};
use proptest::prelude::*;

/// A model that drafts with itself: what is likeliest comes true, and what chance takes may be another.
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
fn statistics_tell_how_much_was_guessed_and_came_true() {
    let model = load(&demo_path(), request(1024, 1, 8));
    let greedy = model.generate(REPEATED).temp(0.0).max_tokens(60);
    let lookup = greedy.speculate(Speculation::prompt_lookup());
    let (_, statistics) = alone(&model, lookup);
    assert!(statistics.accepted_tokens > 0, "{statistics:?}");
    assert!(statistics.accepted_tokens <= statistics.drafted_tokens);
    assert!(statistics.acceptance_rate() > 0.0 && statistics.acceptance_rate() <= 1.0);
    assert!(statistics.to_string().contains("draft tokens accepted"), "{statistics}");
}

#[test]
fn the_tokens_of_a_stream_come_with_their_pieces() {
    let model = load_exact();
    let (plain, counted) = alone(&model, greedy(&model));
    assert_eq!(counted.drafted_tokens, 0);
    let mut stream = drafting(greedy(&model)).stream().unwrap();
    let mut text = String::new();
    while let Some(piece) = stream.next() {
        text.push_str(&piece.unwrap());
        let generated = stream.statistics().generated_tokens;
        assert!(plain.text.starts_with(&text) && generated <= plain.tokens.len());
    }
    assert_eq!(text, plain.text);
    assert_eq!(stream.statistics().generated_tokens, plain.tokens.len());
    assert!(stream.statistics().accepted_tokens > 8);
}

#[test]
fn a_guess_goes_no_further_than_the_text() {
    let model = load_exact();
    let (whole, _) = alone(&model, greedy(&model));
    let guessed = |generate: Generate| alone(&model, drafting(generate));
    for most in 1..24 {
        let (told, statistics) = guessed(greedy(&model).max_tokens(most));
        assert_eq!(told.tokens, whole.tokens[..most]);
        assert_eq!(told.reason, Some(FinishReason::MaxTokens));
        assert_eq!(statistics.generated_tokens, most);
    }
    // A stop string at every place of it.
    let words: Vec<&str> = whole.text.split_inclusive(' ').collect();
    for word in words.iter().filter(|word| word.trim().len() > 1).take(12) {
        let (plain, counted) = alone(&model, greedy(&model).stop(*word));
        let (told, statistics) = guessed(greedy(&model).stop(*word));
        assert_eq!(told, plain);
        assert_eq!(told.reason, Some(FinishReason::StopString));
        assert_eq!(statistics.generated_tokens, counted.generated_tokens);
    }
}

#[test]
fn an_end_of_generation_within_a_guess_ends_the_text() {
    let model = load_exact();
    let vocab = model.native().unwrap().vocab();
    // Hot enough for the end to come at some time.
    let hot = |seed| seeded(&model, seed).max_tokens(300).temp(3.0).top_k(0).top_p(1.0).min_p(0.0);
    let ended = |seed: &u32| {
        let (told, _) = alone(&model, hot(*seed));
        told.reason == Some(FinishReason::EndOfGeneration) && told.tokens.len() > 6
    };
    for seed in (0..200).filter(ended).take(3) {
        let (plain, _) = alone(&model, hot(seed));
        assert!(vocab.is_eog(*plain.tokens.last().unwrap()));
        let (told, statistics) = alone(&model, drafting(hot(seed)));
        assert_eq!(told, plain);
        assert_eq!(statistics.generated_tokens, plain.tokens.len() - 1);
        let (streamed, _) = self::told(drafting(hot(seed)));
        assert_eq!(streamed.text, plain.text);
    }
}

#[cfg(feature = "constraints")]
#[test]
fn a_constraint_holds_for_what_is_guessed_too() {
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
fn a_plan_has_an_output_for_every_guess_of_every_sequence() {
    let plan = |sequences, guesses| {
        let request = request(512, sequences, guesses);
        builder(&demo_path(), request).plan().unwrap()
    };
    assert_eq!(plan(3, 0).context.n_outputs_max, 3);
    assert_eq!(plan(3, 4).context.n_outputs_max, 15);
    let host = |guesses| plan(3, guesses).host().unwrap().footprint.total();
    assert!(host(16) > host(0));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// The law: whatever is guessed, the text is the same, and so are its tokens and why it ended.
    #[test]
    fn no_guess_changes_a_text(seed in 0..50u32, max_tokens in 1..40usize, is_greedy: bool) {
        thread_local!(static MODEL: Model = load_exact());
        MODEL.with(|model| {
            let generate = if is_greedy { greedy(model) } else { seeded(model, seed) };
            let generate = generate.max_tokens(max_tokens);
            let (plain, counted) = alone(model, generate.clone());
            let (told, statistics) = alone(model, drafting(generate));
            prop_assert_eq!(told, plain);
            prop_assert_eq!(statistics.generated_tokens, counted.generated_tokens);
            prop_assert!(statistics.accepted_tokens <= statistics.drafted_tokens);
            prop_assert!(statistics.accepted_tokens < statistics.generated_tokens.max(1));
            Ok(())
        })?;
    }
}
