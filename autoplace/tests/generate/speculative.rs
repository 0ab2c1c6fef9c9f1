//! Drafts change no text, and go on after a re-placement, in a worker, and for prompts that are computed in pieces. The
//! drafter is a model, or a block for multi-token prediction. The models are small. Their weights are random, or such
//! that every draft token is accepted.

use std::path::{Path, PathBuf};

use crate::replace_support::run_replacing;
use crate::sim_support::card;
use crate::speculative_support::{PROMPT, builder, exact, load as load_alone, request};
use crate::text_support::{Completion, complete, random, text, text_and_statistics, to_the_end, words, worker};
use autoplace::generate::{DraftingPaused, GenerateRequest, Speculation, Statistics};
use autoplace::load::Error;
use autoplace::machine::mib;
use autoplace::memory::Headroom;
use autoplace::memory::companion::{self, CompanionRole};
use autoplace::plan::{self, GpuLayers, Request};
use autoplace::profile::MtpError;
use autoplace::{Isolation, Model, WorkerProcess};
use test_support::demo_path;
use test_support::prediction_heads;

pub(crate) fn greedy(model: &Model) -> GenerateRequest {
    model.generate(PROMPT).temp(0.0).max_tokens(60)
}

/// Random sampling, with a sampler that has state.
pub(crate) fn seeded(model: &Model, seed: u32) -> GenerateRequest {
    model.generate(PROMPT).seed(seed).temp(0.7).repeat_penalty(1.1).max_tokens(60)
}

/// Drafts of the block for multi-token prediction, with no minimum probability.
fn mtp(draft_max: u32) -> Speculation {
    Speculation::Mtp { draft_max, p_min: 0.0 }
}

/// Drafts of a draft model. There is no minimum probability, because a model with random weights is never sure.
pub(crate) fn draft() -> Speculation {
    Speculation::DraftModel { draft_max: 5, p_min: 0.0 }
}

/// A model together with its block for multi-token prediction.
fn load(path: &Path, request: Request) -> Model {
    builder(path, request).mtp(true).load().unwrap()
}

/// A model, and what drafts for it.
struct Way {
    name: &'static str,
    path: PathBuf,
    /// Whether a copy of the model drafts, and not the model's own block.
    by_itself: bool,
    /// Whether all draft tokens are accepted. If not, some of them are.
    all_accepted: bool,
    /// The number of sequences. If there are several, llama.cpp can roll recurrent states back only while it computes
    /// all sequences together.
    sequences: u32,
}

impl Way {
    fn all(folder: &Path) -> [Self; 5] {
        let of = |name, write: fn(&Path) -> PathBuf, by_itself, all_accepted, sequences| {
            let path = write(folder);
            Self { name, path, by_itself, all_accepted, sequences }
        };
        [
            of("itself", |folder| exact("llama", folder), true, true, 3),
            of("steps", prediction_heads::steps, false, true, 3),
            of("random", prediction_heads::random, false, false, 3),
            of("steps, with states", prediction_heads::steps_with_states, false, true, 1),
            of("random, with states", |folder| exact("qwen35", folder), false, false, 1),
        ]
    }

    fn load(&self, request: Request) -> Model {
        match self.by_itself {
            true => builder(&self.path, request).draft(&self.path).load().unwrap(),
            false => load(&self.path, request),
        }
    }

    fn drafting(&self, draft_max: u32, p_min: f32) -> Speculation {
        match self.by_itself {
            true => Speculation::DraftModel { draft_max, p_min },
            false => Speculation::Mtp { draft_max, p_min },
        }
    }

    #[track_caller]
    fn check(&self, statistics: &Statistics) {
        let (drafted, accepted) = (statistics.drafted_tokens, statistics.accepted_tokens);
        assert!(drafted > 10, "{}: {statistics:?}", self.name);
        // If both models compute the same from the same input, nearly all draft tokens are accepted.
        let all = accepted == drafted || (self.by_itself && statistics.acceptance_rate() > 0.9);
        assert_eq!(all, self.all_accepted, "{}: {statistics:?}", self.name);
    }
}

/// Checks that there were draft tokens, and that all of them were accepted.
#[track_caller]
fn check_all_accepted(statistics: &Statistics) {
    assert!(statistics.drafted_tokens > 10, "{statistics:?}");
    assert_eq!(statistics.accepted_tokens, statistics.drafted_tokens, "{statistics:?}");
}

#[test]
fn drafts_change_no_text_and_are_accepted_where_they_are_right() {
    let folder = tempfile::tempdir().unwrap();
    for way in Way::all(folder.path()) {
        for draft_max in [1, 3, 6] {
            let model = way.load(request(512, 1, draft_max));
            let plain = complete(greedy(&model), &model);
            assert_eq!(plain.tokens.len(), 60);
            // In the second round, the whole prompt may be in the context.
            for _ in 0..2 {
                let drafting = greedy(&model).cache_prompt(true).speculate(way.drafting(draft_max, 0.0));
                let drafted = complete(drafting, &model);
                assert_eq!(drafted, plain, "{}, {draft_max}", way.name);
                way.check(&drafted.statistics());
            }
            for seed in (1..6).filter(|_| draft_max == 3) {
                let drafting = seeded(&model, seed).speculate(way.drafting(draft_max, 0.0));
                assert_eq!(text(drafting), text(seeded(&model, seed)), "{}, {seed}", way.name);
            }
            // With random weights, no token has that probability.
            if way.by_itself || !way.all_accepted {
                let sure = complete(greedy(&model).speculate(way.drafting(draft_max, 0.99)), &model);
                assert_eq!(sure, plain, "{}", way.name);
                assert_eq!(sure.statistics().drafted_tokens, 0, "{}", way.name);
            }
        }
    }
}

#[test]
fn each_text_of_a_session_is_followed_by_itself() {
    let folder = tempfile::tempdir().unwrap();
    for way in Way::all(folder.path()) {
        for unified in [false, true] {
            if way.sequences == 1 || (way.by_itself && unified) {
                continue;
            }
            let mut request = request(1024, way.sequences, 5);
            request.params.kv_unified = unified;
            let model = way.load(request);
            let texts = |model: &Model| [greedy(model), seeded(model, 3), seeded(model, 4)];
            let expected = texts(&model).map(|generate| complete(generate, &model));
            for _ in 0..2 {
                let mut session = model.session().unwrap();
                for generate in texts(&model) {
                    session.begin(generate.speculate(way.drafting(3, 0.0))).unwrap();
                }
                let drafted = to_the_end(&mut session);
                assert_eq!(drafted, expected, "{}, unified: {unified}", way.name);
                if way.all_accepted && !way.by_itself {
                    drafted.iter().for_each(|text| check_all_accepted(&text.statistics()));
                }
            }
        }
    }
}

#[test]
fn a_draft_goes_no_further_than_the_context() {
    let folder = tempfile::tempdir().unwrap();
    for way in Way::all(folder.path()) {
        for n_ctx in [24, 27, 96] {
            let model = way.load(request(n_ctx, 1, 5));
            let full = seeded(&model, 2).max_tokens(usize::MAX);
            let drafting = full.clone().speculate(way.drafting(5, 0.0));
            assert_eq!(complete(drafting, &model), complete(full, &model), "{}, {n_ctx}", way.name);
        }
    }
}

#[test]
fn without_a_drafter_nothing_is_drafted_and_the_reason_is_given() {
    let folder = tempfile::tempdir().unwrap();
    let (plain, steps) = (exact("llama", folder.path()), prediction_heads::steps(folder.path()));
    let lookup = Speculation::prompt_lookup;
    // The state of these models cannot go back.
    let [mamba, jamba, falcon] = ["mamba2", "jamba", "falcon-h1"].map(|arch| random(arch, None, folder.path()));
    for (path, room, drafting, off) in [
        (&plain, 5, draft(), DraftingPaused::NoModel),
        // The file contains a block, but the load did not ask for it.
        (&steps, 3, mtp(3), DraftingPaused::NoHeads),
        (&plain, 0, lookup(), DraftingPaused::NoRoom),
        (&mamba, 4, lookup(), DraftingPaused::Memory),
        (&jamba, 4, lookup(), DraftingPaused::Memory),
        (&falcon, 4, lookup(), DraftingPaused::Memory),
    ] {
        let model = load_alone(path, request(512, 1, room));
        let plain = complete(greedy(&model), &model);
        assert_eq!(plain.statistics().drafts_off, None);
        let drafted = complete(greedy(&model).speculate(drafting), &model);
        assert_eq!(drafted, plain);
        let statistics = drafted.statistics();
        assert_eq!((statistics.drafts_off, statistics.drafted_tokens), (Some(off), 0));
    }
    // The file contains no prediction block, or the context has several sequences.
    let none = builder(&plain, request(512, 1, 3)).mtp(true).load();
    assert_matches!(none, Err(Error::Mtp(MtpError::NoHeads { .. })));
    let states = prediction_heads::steps_with_states(folder.path());
    let two = builder(&states, request(512, 2, 3)).mtp(true).load();
    assert_matches!(two, Err(Error::Plan(plan::Error::Mtp(MtpError::Sequences { n_seq_max: 2, .. }))));
    // The vocabulary of the draft model is another one. The planner's tests cover the ways in which vocabularies may
    // differ.
    let other = builder(&plain, request(512, 1, 5)).draft(demo_path()).load();
    assert_matches!(other, Err(Error::Plan(plan::Error::Companion(companion::Error::Vocabulary { .. }))));
}

#[test]
fn no_card_is_overfull_beside_a_draft_which_moves_with_its_model() {
    own_process!();
    let folder = tempfile::tempdir().unwrap();
    let path = exact("llama", folder.path());
    let mut request = request(512, 1, 5).headroom(Headroom::Bytes(256 << 10));
    request.params.repack = false;
    let with_draft = |request: Request| builder(&path, request).draft(&path);
    let mut on_card = 0;
    for size in [2, 3, 4, 6, 64] {
        let card = card(mib(size));
        let model = with_draft(request.clone()).load().unwrap();
        let plan = model.placement();
        let planned = plan.companions.iter().find(|one| one.role == CompanionRole::Draft);
        on_card += usize::from(planned.unwrap().gpu.is_some());
        let notes = &model.report().notes;
        assert!(notes.iter().any(|note| note.contains("draft")), "{notes:?}");
        // Both texts run to the end of the context.
        let endless = || seeded(&model, 2).max_tokens(usize::MAX);
        assert_eq!(complete(endless().speculate(draft()), &model), complete(endless(), &model), "{size} MiB");
        assert!(card.peak() <= card.total(), "{plan}");
    }
    assert!(on_card > 0, "some card has room for a draft");

    let _card = card(mib(64));
    let plans = [3, 0, 1].map(|layers| {
        let exactly = request.clone().n_gpu_layers(GpuLayers::Exactly(layers));
        with_draft(exactly).plan().unwrap()
    });
    let model = with_draft(request.clone()).load().unwrap();
    let plain = complete(greedy(&model), &model);
    let mut session = model.session().unwrap();
    session.begin(greedy(&model).speculate(draft())).unwrap();
    let moved = run_replacing(&mut session, &plans);
    assert_eq!(moved, plain);
    assert!(moved.statistics().accepted_tokens > 0);
}

#[test]
fn a_prompt_in_pieces_of_any_size_is_followed() {
    let folder = tempfile::tempdir().unwrap();
    let path = prediction_heads::steps(folder.path());
    for (n_batch, n_ubatch) in [(2048, 512), (64, 64), (100, 16), (7, 7)] {
        let model = load(&path, request(768, 1, 3).n_batch(n_batch).n_ubatch(n_ubatch));
        let generate = || model.generate(words(1, 300)).temp(0.0).max_tokens(40);
        let drafted = complete(generate().speculate(mtp(3)), &model);
        assert_eq!(drafted, complete(generate(), &model), "{n_batch}, {n_ubatch}");
        check_all_accepted(&drafted.statistics());
    }
}

#[test]
fn a_model_in_a_worker_predicts_there() {
    let folder = tempfile::tempdir().unwrap();
    let path = prediction_heads::steps(folder.path());
    let here = load(&path, request(512, 1, 3));
    let there = builder(&path, request(512, 1, 3)).mtp(true).isolation(Isolation::Process(worker())).load().unwrap();
    let (drafted, statistics) = text_and_statistics(greedy(&there).speculate(mtp(3)));
    assert_eq!(drafted, text(greedy(&here)));
    check_all_accepted(&statistics);
    // If a request is impossible, it is refused with an error of its own type, before a worker starts.
    let program = WorkerProcess::program("/nonexistent/worker");
    let none = builder(&exact("llama", folder.path()), request(512, 1, 3)).mtp(true);
    let none = none.isolation(Isolation::Process(program)).load();
    assert_matches!(none, Err(Error::Mtp(MtpError::NoHeads { .. })));
}

#[test]
fn sequences_that_share_their_cells_are_followed_from_where_there_is_room() {
    // In the shared cache, texts that have ended still occupy cells.
    let mut request = request(256, 2, 3);
    request.params.kv_unified = true;
    let folder = tempfile::tempdir().unwrap();
    for way in &Way::all(folder.path())[..2] {
        let model = way.load(request.clone());
        let drafting = way.drafting(3, 0.0);
        let generate = |seed, n| model.generate(words(seed, n)).cache_prompt(true).temp(0.0).max_tokens(30);
        // The texts run one after the other. Each of them has a sequence of its own.
        drop([1, 2].map(|seed| complete(generate(seed, 150).speculate(drafting), &model)));
        for length in [100, 120, 90, 140, 30] {
            let plain = complete(generate(1, length), &model);
            let mut session = model.session().unwrap();
            session.begin(generate(1, length).speculate(drafting)).unwrap();
            session.begin(generate(1, 50).speculate(drafting)).unwrap();
            let texts = to_the_end(&mut session);
            assert_eq!(texts[0], plain, "{length}");
            for statistics in texts.iter().map(Completion::statistics) {
                assert!(statistics.accepted_tokens == statistics.drafted_tokens || way.by_itself);
            }
        }
    }
}
