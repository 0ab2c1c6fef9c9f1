//! A draft model is placed beside the main one, changes no text, and goes where it goes: on small models with random
//! weights and simulated cards.

use std::path::Path;

use crate::sim_support::card;
use crate::speculative_support::{PROMPT, alone, builder, exact, request, run, told};
use autoplace::Model;
use autoplace::generate::{DraftsOff, Generate, Speculation};
use autoplace::load::Error;
use autoplace::machine::mib;
use autoplace::memory::companion;
use autoplace::memory::{Headroom, companion::Role};
use autoplace::plan::{self, GpuLayers, Plan, Request};

/// A model that drafts for itself: all that it drafts comes true.
fn load(path: &Path, request: Request) -> Model {
    builder(path, request).draft(path).load().unwrap()
}

fn greedy(model: &Model) -> Generate {
    model.generate(PROMPT).temperature(0.0).max_tokens(60)
}

fn seeded(model: &Model, seed: u32) -> Generate {
    let seeded = model.generate(PROMPT).seed(seed).temperature(0.7);
    seeded.repeat_penalty(1.1).max_tokens(60)
}

/// Sure of nothing, since a random model never is.
fn draft() -> Speculation {
    Speculation::DraftModel {
        draft_max: 5,
        p_min: 0.0,
    }
}

#[test]
fn what_a_model_drafts_for_itself_comes_true() {
    own_process!();
    let folder = tempfile::tempdir().unwrap();
    let path = exact::llama(folder.path());
    let model = load(&path, request(512, 1, 5));
    let (plain, _) = alone(&model, greedy(&model));
    let (drafted, statistics) = alone(&model, greedy(&model).speculate(draft()));
    assert_eq!(drafted, plain);
    assert!(statistics.accepted_tokens > 10, "{statistics:?}");
    assert!(statistics.acceptance_rate() > 0.9, "{statistics:?}");
    for seed in 1..8 {
        let (plain, _) = told(seeded(&model, seed));
        let (drafted, _) = told(seeded(&model, seed).speculate(draft()));
        assert_eq!(drafted, plain);
    }
    // It is less sure of anything than that.
    let sure = Speculation::DraftModel {
        draft_max: 5,
        p_min: 0.99,
    };
    let (drafted, statistics) = alone(&model, greedy(&model).speculate(sure));
    assert_eq!((drafted, statistics.drafted_tokens), (plain, 0));
}

#[test]
fn each_text_has_drafts_of_its_own() {
    own_process!();
    let folder = tempfile::tempdir().unwrap();
    let path = exact::llama(folder.path());
    let model = load(&path, request(768, 3, 5));
    let texts = |model: &Model| [greedy(model), seeded(model, 3), seeded(model, 4)];
    let expected = texts(&model).map(|generate| alone(&model, generate).0);
    for _ in 0..2 {
        let mut session = model.session().unwrap();
        for generate in texts(&model) {
            session.begin(generate.speculate(draft())).unwrap();
        }
        for ((drafted, _), expected) in run(&mut session).iter().zip(&expected) {
            assert_eq!(drafted, expected);
        }
    }
}

#[test]
fn a_draft_goes_no_further_than_the_context() {
    own_process!();
    let folder = tempfile::tempdir().unwrap();
    let path = exact::llama(folder.path());
    for n_ctx in [24, 27, 256] {
        let model = load(&path, request(n_ctx, 1, 5));
        let endless = || seeded(&model, 2).max_tokens(usize::MAX);
        let (plain, _) = alone(&model, endless());
        let (drafted, _) = alone(&model, endless().speculate(draft()));
        assert_eq!(drafted, plain, "{n_ctx}");
    }
}

#[test]
fn without_a_draft_model_nothing_is_drafted_and_that_is_said() {
    own_process!();
    let folder = tempfile::tempdir().unwrap();
    let path = exact::llama(folder.path());
    let model = crate::speculative_support::load(&path, request(512, 1, 5));
    let (plain, _) = alone(&model, greedy(&model));
    let (drafted, statistics) = alone(&model, greedy(&model).speculate(draft()));
    assert_eq!(drafted, plain);
    assert_eq!(statistics.drafts_off, Some(DraftsOff::NoModel));
}

#[test]
fn a_draft_of_another_vocabulary_is_refused_by_what_differs() {
    own_process!();
    let folder = tempfile::tempdir().unwrap();
    let path = exact::llama(folder.path());
    let other = tempfile::tempdir().unwrap();
    let mut sketch = crate::random_weights::all().remove(1);
    sketch.dims.n_vocab = 1024;
    sketch.vocabulary();
    let other = sketch.write(other.path());
    let error = builder(&path, request(512, 1, 5)).draft(&other).load();
    match error.unwrap_err() {
        Error::Plan(plan::Error::Companion(companion::Error::Vocabulary { what, .. })) => {
            assert_eq!(what, "the size of the vocabulary");
        }
        error => panic!("{error:?}"),
    }
}

#[test]
fn beside_a_draft_no_card_runs_over_and_what_moves_takes_it_along() {
    own_process!();
    let folder = tempfile::tempdir().unwrap();
    let path = exact::llama(folder.path());
    let mut request = request(512, 1, 5).headroom(Headroom::Bytes(256 << 10));
    request.params.repack = false;
    let mut on_card = 0;
    for size in [2, 3, 4, 6, 64] {
        let card = card(mib(size));
        let model = load(&path, request.clone());
        let plan = model.placement();
        let planned = plan.companions.iter().find(|one| one.role == Role::Draft);
        on_card += usize::from(planned.unwrap().gpu.is_some());
        let notes = &model.report().notes;
        assert!(notes.iter().any(|note| note.contains("draft")), "{notes:?}");
        // To the end of the context, both of them.
        let endless = || seeded(&model, 2).max_tokens(usize::MAX);
        let (plain, _) = alone(&model, endless());
        let (drafted, _) = alone(&model, endless().speculate(draft()));
        assert_eq!(drafted, plain, "{size} MiB");
        assert!(card.peak() <= card.total(), "{plan}");
    }
    assert!(on_card > 0, "some card has room for a draft");

    let _card = card(mib(64));
    let on = |layers| -> Plan {
        let exactly = request.clone().gpu_layers(GpuLayers::Exactly(layers));
        builder(&path, exactly).draft(&path).plan().unwrap()
    };
    let plans = [3, 0, 1].map(on);
    let model = load(&path, request.clone());
    let (plain, _) = alone(&model, greedy(&model));
    let mut session = model.session().unwrap();
    session.begin(greedy(&model).speculate(draft())).unwrap();
    let (told, statistics) = crate::speculative_support::run_placed_anew(&mut session, &plans);
    assert_eq!(told, plain.tokens);
    assert!(statistics.accepted_tokens > 0);
}
