//! Guesses that turn out wrong are forgotten by whatever memory a model has: windows, states that cannot go back,
//! caches that move to another card in mid-text. On small models with random weights.

use crate::sim_support::card;
use crate::speculative_support::{PROMPT, alone, builder, exact, load, oracle, request, run_placed_anew, tokens};
use autoplace::generate::{DraftsOff, Generate, Prompt, Speculation};
use autoplace::llama_sys::Token;
use autoplace::machine::mib;
use autoplace::memory::Headroom;
use autoplace::plan::GpuLayers;

/// Tokens that do not repeat.
fn prompt(n: usize) -> Vec<Token> {
    let mut state = 7u32;
    let next = |_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        259 + (state >> 16) as Token % 200
    };
    (0..n).map(next).collect()
}

#[test]
fn a_window_that_has_moved_on_goes_back_with_the_text() {
    own_process!();
    let folder = tempfile::tempdir().unwrap();
    let path = exact::olmo2(folder.path());
    for swa_full in [true, false] {
        let mut request = request(1024, 2, 8).n_batch(64).n_ubatch(32);
        request.params.swa_full = swa_full;
        let model = load(&path, request);
        for length in [20, 250, 420] {
            let prompt = prompt(length);
            let generate = |seed| {
                let begun = Prompt::tokens(prompt.clone());
                let seeded = model.generate(begun).seed(seed).temp(0.8);
                seeded.max_tokens(80)
            };
            // One that does not end soon.
            let texts = (0..).map(|seed| (seed, alone(&model, generate(seed)).0));
            let (seed, plain) = { texts }.find(|(_, it)| it.tokens.len() > 40).unwrap();
            for noise in [0, 1] {
                let oracle = oracle(&prompt, &plain.tokens, noise);
                let (told, statistics) = alone(&model, generate(seed).draft_with(oracle));
                assert_eq!(told, plain, "{swa_full}, {length} tokens, {noise}");
                assert!(statistics.accepted_tokens > 0, "{statistics:?}");
            }
        }
    }
}

#[test]
fn a_state_that_cannot_go_back_is_not_guessed_for_and_that_is_said() {
    own_process!();
    let folder = tempfile::tempdir().unwrap();
    for mut sketch in crate::random_weights::all() {
        if !["mamba2", "jamba", "falcon-h1"].contains(&sketch.arch) {
            continue;
        }
        sketch.vocabulary();
        let path = crate::random_weights::write(&sketch, folder.path());
        let model = load(&path, request(512, 1, 4).n_batch(64).n_ubatch(32));
        let generate = || model.generate(PROMPT).temp(0.0).max_tokens(20);
        let (plain, _) = alone(&model, generate());
        let lookup = generate().speculate(Speculation::prompt_lookup());
        let (told, statistics) = alone(&model, lookup);
        assert_eq!(told, plain, "{}", sketch.arch);
        assert_eq!(statistics.drafts_off, Some(DraftsOff::Memory));
        assert_eq!(statistics.drafted_tokens, 0);
    }
}

#[test]
fn a_model_that_is_placed_anew_goes_on_guessing() {
    own_process!();
    let folder = tempfile::tempdir().unwrap();
    let path = exact::llama(folder.path());
    let mut request = request(512, 1, 6).headroom(Headroom::Bytes(256 << 10));
    request.params.repack = false;
    let _card = card(mib(64));
    let on = |n| builder(&path, request.clone().n_gpu_layers(GpuLayers::Exactly(n)));
    let model = on(0).load().unwrap();
    let plans = [3, 1, 0].map(|layers| on(layers).plan().unwrap());
    let generate = || -> Generate {
        let seeded = model.generate(PROMPT).seed(5).temp(0.8);
        seeded.repeat_penalty(1.1).max_tokens(60)
    };
    let (plain, _) = alone(&model, generate());
    let oracle = oracle(&tokens(&model, PROMPT), &plain.tokens, 3);
    let mut session = model.session().unwrap();
    session.begin(generate().draft_with(oracle)).unwrap();
    let (told, statistics) = run_placed_anew(&mut session, &plans);
    assert!(statistics.accepted_tokens > 4, "{statistics:?}");
    assert_eq!(told, plain.tokens);
}
