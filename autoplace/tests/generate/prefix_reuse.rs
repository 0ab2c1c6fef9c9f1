//! A prompt that begins like an earlier one pays only for the rest, and its text is the same: through the public API,
//! on the demo model.

use crate::native_support::demo_path;
use crate::session_support::{SYSTEM, greedy, request, to_the_end};
use autoplace::Model;
use autoplace::generate::{Generate, Prompt, Statistics};
use proptest::prelude::*;

fn load(n_ctx: u32, n_seq_max: u32, kv_unified: bool) -> Model {
    crate::session_support::load(&demo_path(), request(n_ctx, n_seq_max, kv_unified))
}

fn load_demo() -> Model {
    load(1024, 1, false)
}

fn told(generate: Generate) -> (String, Statistics) {
    generate.stream().unwrap().into_text().unwrap()
}

#[test]
fn only_the_rest_of_a_prompt_is_computed() {
    let model = load_demo();
    let prompts = [format!("{SYSTEM}bread"), format!("{SYSTEM}wine and oil")];
    let alone = prompts.clone().map(|prompt| told(greedy(&model, prompt)));
    assert!(
        alone
            .iter()
            .all(|(_, statistics)| statistics.cached_tokens == 0)
    );
    let again = prompts.map(|prompt| told(greedy(&model, prompt).cache_prompt(true)));
    for ((alone, first), (again, statistics)) in alone.iter().zip(&again) {
        assert_eq!(alone, again);
        assert_eq!(first.prompt_tokens, statistics.prompt_tokens);
        assert!(
            statistics.cached_tokens > 10 && statistics.cached_tokens < statistics.prompt_tokens,
            "{statistics:?}"
        );
    }
}

#[test]
fn the_same_prompt_computes_its_last_token_only() {
    let model = load_demo();
    let (first, _) = told(greedy(&model, SYSTEM));
    let (again, statistics) = told(greedy(&model, SYSTEM).cache_prompt(true));
    assert_eq!(first, again);
    assert_eq!(statistics.cached_tokens, statistics.prompt_tokens - 1);
    let (unasked, statistics) = told(greedy(&model, SYSTEM));
    assert_eq!((unasked, statistics.cached_tokens), (first, 0));
}

#[test]
fn an_answer_is_in_the_cache_for_the_next_turn() {
    let model = load_demo();
    let (answer, first) = told(greedy(&model, SYSTEM));
    let turn = format!("{SYSTEM}{answer} And he said,");
    let (alone, _) = told(greedy(&load_demo(), turn.clone()));
    let (told, statistics) = told(greedy(&model, turn).cache_prompt(true));
    assert_eq!(told, alone);
    assert!(
        statistics.cached_tokens >= first.prompt_tokens,
        "{statistics:?}"
    );
}

#[test]
fn a_text_that_was_dropped_leaves_what_was_computed() {
    let model = load_demo();
    let (alone, _) = told(greedy(&model, SYSTEM));
    let mut stream = greedy(&model, SYSTEM).stream().unwrap();
    stream.next().unwrap().unwrap();
    drop(stream);
    let (again, statistics) = told(greedy(&model, SYSTEM).cache_prompt(true));
    assert_eq!(again, alone);
    assert_eq!(statistics.cached_tokens, statistics.prompt_tokens - 1);
}

#[test]
fn texts_of_one_session_share_what_they_begin_with() {
    let ends = ["bread", "wine", "oil", "water"];
    let long = SYSTEM.repeat(6);
    for unified in [false, true] {
        let model = load(2048, 4, unified);
        let alone = ends.map(|end| told(greedy(&model, format!("{long}{end}"))).0);
        let mut session = model.session().unwrap();
        let generate = |end| greedy(&model, format!("{long}{end}")).cache_prompt(true);
        session.begin(generate(ends[0])).unwrap();
        // Its prompt is computed when the others begin.
        let mut first: String = session.step().unwrap().map(|piece| piece.text).collect();
        for end in &ends[1..] {
            session.begin(generate(end)).unwrap();
        }
        let texts = to_the_end(&mut session);
        first.push_str(&texts[0].0);
        assert_eq!(first, alone[0], "unified: {unified}");
        for ((text, statistics), alone) in texts[1..].iter().zip(&alone[1..]) {
            assert_eq!(text, alone, "unified: {unified}");
            assert!(statistics.cached_tokens > 64, "{statistics:?}");
        }
    }
}

#[test]
fn conversations_keep_their_own_caches_while_there_are_sequences() {
    let model = load(1024, 2, false);
    let mut session = model.session().unwrap();
    let conversations = [
        "The first song of David, when he",
        "A psalm of the sons of Korah, for",
    ];
    let mut texts = conversations.map(String::from);
    for turn in 0..4 {
        for text in &mut texts {
            session
                .begin(greedy(&model, text.as_str()).cache_prompt(true))
                .unwrap();
            let (answer, statistics) = to_the_end(&mut session).remove(0);
            if turn > 0 {
                let new = statistics.prompt_tokens - statistics.cached_tokens;
                assert!(new < 16, "turn {turn}: {statistics:?}");
            }
            text.push_str(&answer);
            text.push_str(" And then");
        }
    }
}

#[test]
fn what_is_kept_makes_room_for_what_runs() {
    // One cache for all: what idle texts hold is in the way of the long one.
    let model = load(512, 4, true);
    let mut session = model.session().unwrap();
    for start in ["Abraham", "Isaac", "Jacob"] {
        session
            .begin(
                greedy(&model, format!("{start} {SYSTEM}"))
                    .max_tokens(60)
                    .cache_prompt(true),
            )
            .unwrap();
        to_the_end(&mut session);
    }
    let long = "In the beginning ".repeat(60);
    // Not more: a cache that others share sums in another order, which tells after some fifty tokens on
    // some processors.
    let (alone, _) = told(greedy(&load_demo(), long.clone()).max_tokens(32));
    session
        .begin(greedy(&model, long).max_tokens(32).cache_prompt(true))
        .unwrap();
    assert_eq!(to_the_end(&mut session)[0].0, alone);
}

#[test]
fn control_tokens_in_a_text_are_text_and_in_markup_are_tokens() {
    let model = load_demo();
    let vocab = model.native().unwrap().vocab();
    let bos = vocab.bos().unwrap();
    let written = String::from_utf8(vocab.piece(bos, true).unwrap()).unwrap();
    let count = |prompt: Prompt| told(greedy(&model, prompt).max_tokens(1)).1.prompt_tokens;
    assert_eq!(count(Prompt::markup(written.clone())), 1);
    assert!(count(Prompt::text(written.clone()).add_special(false)) > 1);
    let parts = Prompt::markup(written.clone())
        .then_text(written)
        .then_tokens([bos]);
    assert!(count(parts) > 3);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    /// Whatever came before, the greedy text of a prompt is the same.
    #[test]
    fn earlier_texts_never_change_a_text(
        prompts in prop::collection::vec("(And|the|king|said|unto| |,){1,30}", 1..8),
        sequences in 1u32..4,
        unified: bool,
    ) {
        let model = load(1024, sequences, unified);
        for prompt in prompts {
            let alone = told(greedy(&model, prompt.clone()).max_tokens(8)).0;
            let again = told(greedy(&model, prompt.clone()).max_tokens(8).cache_prompt(true)).0;
            prop_assert_eq!(&alone, &again, "after itself");
            let half: String = prompt.chars().take(prompt.len() / 2).collect();
            let _ = told(greedy(&model, half).max_tokens(8).cache_prompt(true));
            let again = told(greedy(&model, prompt).max_tokens(8).cache_prompt(true)).0;
            prop_assert_eq!(&alone, &again, "after its half");
        }
    }
}
