//! Rejected draft tokens are forgotten by whatever memory a model has: windows, states that cannot go back. On
//! small models with random weights.

use crate::random_weights::Dice;
use crate::sim_support::card;
use crate::speculative_support::{PROMPT, alone, builder, exact, load, request};
use autoplace::generate::{DraftsOff, Prompt, Speculation};
use autoplace::llama_sys::Token;
use autoplace::machine::mib;
use autoplace::memory::Headroom;
use autoplace::plan::Policy;

#[test]
fn a_window_that_has_moved_on_goes_back_with_the_text() {
    own_process!();
    let folder = tempfile::tempdir().unwrap();
    let path = exact::olmo2(folder.path());
    for swa_full in [true, false] {
        let mut request = request(1024, 2, 8).n_batch(64).n_ubatch(32);
        request.params.swa_full = swa_full;
        let model = builder(&path, request).draft(&path).load().unwrap();
        for length in [20, 250, 420] {
            // Tokens that do not repeat.
            let mut dice = Dice::new(7);
            let prompt: Vec<Token> = (0..length).map(|_| 259 + dice.below(200)).collect();
            let generate = |seed| {
                let begun = Prompt::tokens(prompt.clone());
                model.generate(begun).seed(seed).temp(0.8).max_tokens(80)
            };
            // One that does not end soon.
            let texts = (0..).map(|seed| (seed, alone(&model, generate(seed)).0));
            let (seed, plain) = { texts }.find(|(_, it)| it.tokens.len() > 40).unwrap();
            let (greedy, _) = alone(&model, generate(seed).temp(0.0));
            // The likeliest tokens are drafted, of which chance takes hardly any.
            for (temp, expected) in [(0.8, plain), (0.0, greedy)] {
                let drafts = Speculation::DraftModel { draft_max: 8, p_min: 0.0 };
                let (drafted, statistics) = alone(&model, generate(seed).temp(temp).speculate(drafts));
                assert_eq!(drafted, expected, "{swa_full}, {length} tokens, {temp}");
                let accepted = statistics.accepted_tokens;
                assert!(if temp > 0.0 { accepted < statistics.drafted_tokens } else { accepted > 0 }, "{statistics:?}");
            }
        }
    }
}

#[test]
fn a_draft_goes_to_a_card_that_holds_nothing_of_the_model() {
    own_process!();
    let folder = tempfile::tempdir().unwrap();
    let path = exact::llama(folder.path());
    // Not by speed: a model this small is as fast on some hosts.
    let request = request(512, 1, 5).headroom(Headroom::Bytes(256 << 10)).policy(Policy::MostLayers);
    let with_draft = || builder(&path, request.clone()).draft(&path);
    let roomy = card(mib(256));
    let planned = with_draft().plan().unwrap().gpus().next().unwrap().clone();
    drop(roomy);
    // The model fills the one, the draft with its pools the other.
    let cards = [planned.footprint.total(), planned.companions].map(|bytes| card(bytes + planned.headroom.total()));
    let model = with_draft().load().unwrap();
    let plan = model.placement();
    assert!(plan.gpus().count() == 1 && plan.companions[0].device == Some("SIM1".to_owned()), "{plan}");
    assert!(cards.iter().all(|card| (1..=card.total()).contains(&card.peak())), "{plan}");
    // Once it is released there is room for it there again.
    assert_eq!(model.replan().unwrap().companions, plan.companions);
}

#[test]
fn with_a_state_that_cannot_go_back_nothing_is_drafted_and_that_is_said() {
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
        let (completion, statistics) = alone(&model, lookup);
        assert_eq!(completion, plain, "{}", sketch.arch);
        assert_eq!(statistics.drafts_off, Some(DraftsOff::Memory));
        assert_eq!(statistics.drafted_tokens, 0);
    }
}
