//! Blocks that predict further tokens change no text, follow it wherever it goes, and guess from the right hidden
//! states: on small models with weights that are random, or made so that every guess comes true.

use std::path::Path;

use crate::speculative_support::{
    PROMPT, Told, alone, builder, exact, heads, oracle, request, run, tokens, told,
};
use autoplace::generate::{
    DraftsOff, Engine, Generate, Keep, Prompt, Speculation, Statistics, WhenFull,
};
use autoplace::llama_sys::Token;
use autoplace::load::Error;
use autoplace::plan::{self, Request};
use autoplace::profile::MtpError;
use autoplace::{Isolation, Model, WorkerProcess};

fn load(path: &Path, request: Request) -> Model {
    builder(path, request).mtp(true).load().unwrap()
}

fn greedy(model: &Model) -> Generate {
    model.generate(PROMPT).temperature(0.0).max_tokens(60)
}

fn seeded(model: &Model, seed: u32) -> Generate {
    let seeded = model.generate(PROMPT).seed(seed).temperature(0.7);
    seeded.repeat_penalty(1.1).max_tokens(60)
}

/// However sure.
fn mtp(draft_max: u32) -> Speculation {
    Speculation::Mtp {
        draft_max,
        p_min: 0.0,
    }
}

/// All that was guessed came true, and that was something.
#[track_caller]
fn all_came_true(statistics: &Statistics) {
    assert!(statistics.drafted_tokens > 10, "{statistics:?}");
    assert_eq!(
        statistics.accepted_tokens, statistics.drafted_tokens,
        "{statistics:?}"
    );
}

#[test]
fn guesses_from_the_right_hidden_states_come_true() {
    let folder = tempfile::tempdir().unwrap();
    let path = heads::steps(folder.path());
    for draft_max in [1, 3, 6] {
        let model = load(&path, request(512, 1, draft_max));
        let (plain, _) = alone(&model, greedy(&model));
        assert_eq!(plain.tokens.len(), 60);
        let (drafted, statistics) = alone(&model, greedy(&model).speculate(mtp(draft_max)));
        assert_eq!(drafted, plain);
        all_came_true(&statistics);
    }
}

#[test]
fn guesses_that_are_wrong_change_no_text() {
    let folder = tempfile::tempdir().unwrap();
    let path = heads::random(folder.path());
    let model = load(&path, request(512, 1, 4));
    let (plain, _) = alone(&model, greedy(&model));
    let (drafted, statistics) = alone(&model, greedy(&model).speculate(mtp(4)));
    assert_eq!(drafted, plain);
    assert!(statistics.drafted_tokens > 10, "{statistics:?}");
    assert!(
        statistics.accepted_tokens < statistics.drafted_tokens,
        "{statistics:?}"
    );
    for seed in 1..8 {
        let (plain, _) = told(seeded(&model, seed));
        let (drafted, _) = told(seeded(&model, seed).speculate(mtp(4)));
        assert_eq!(drafted, plain, "{seed}");
    }
    // A random block is sure of nothing.
    let sure = Speculation::Mtp {
        draft_max: 4,
        p_min: 0.99,
    };
    let (drafted, statistics) = alone(&model, greedy(&model).speculate(sure));
    assert_eq!((drafted, statistics.drafted_tokens), (plain, 0));
}

#[test]
fn a_prompt_in_pieces_of_any_size_is_followed() {
    let folder = tempfile::tempdir().unwrap();
    let path = heads::steps(folder.path());
    let prompt: Vec<Token> = (0..300).map(|n| 259 + n * 7 % 250).collect();
    for (n_batch, n_ubatch) in [(2048, 512), (64, 64), (100, 16), (7, 7)] {
        let request = request(768, 1, 3).n_batch(n_batch).n_ubatch(n_ubatch);
        let model = load(&path, request);
        let generate = || {
            let generate = model.generate(Prompt::tokens(prompt.clone()));
            generate.temperature(0.0).max_tokens(40)
        };
        let (plain, _) = alone(&model, generate());
        let (drafted, statistics) = alone(&model, generate().speculate(mtp(3)));
        assert_eq!(drafted, plain, "{n_batch}, {n_ubatch}");
        all_came_true(&statistics);
    }
}

#[test]
fn each_text_of_a_session_is_followed_by_itself() {
    let folder = tempfile::tempdir().unwrap();
    for (path, comes_true) in [
        (heads::steps(folder.path()), true),
        (heads::random(folder.path()), false),
    ] {
        for unified in [false, true] {
            let mut request = request(1024, 3, 3);
            request.params.kv_unified = unified;
            let model = load(&path, request);
            let texts = |model: &Model| [greedy(model), seeded(model, 3), seeded(model, 4)];
            let expected = texts(&model).map(|generate| alone(&model, generate).0);
            for _ in 0..2 {
                let mut session = model.session().unwrap();
                for generate in texts(&model) {
                    session.begin(generate.speculate(mtp(3))).unwrap();
                }
                let told = run(&mut session);
                for ((drafted, statistics), expected) in told.iter().zip(&expected) {
                    assert_eq!(drafted, expected);
                    if comes_true {
                        all_came_true(statistics);
                    }
                }
            }
        }
    }
}

#[test]
fn an_engine_has_guesses_for_all_its_texts() {
    let folder = tempfile::tempdir().unwrap();
    let path = heads::steps(folder.path());
    let model = load(&path, request(1024, 4, 3));
    let (plain, _) = told(greedy(&model));
    let engine = Engine::new(&model).unwrap();
    let answers: Vec<_> = (0..6)
        .map(|_| engine.submit(greedy(&model).speculate(mtp(3))).unwrap())
        .collect();
    for answer in answers {
        let (text, statistics) = answer.into_text().unwrap();
        assert_eq!(text, plain.text);
        assert_eq!(statistics.accepted_tokens, statistics.drafted_tokens);
        assert!(statistics.drafted_tokens > 0, "{statistics:?}");
    }
}

#[test]
fn what_goes_back_or_begins_like_another_text_is_followed_on() {
    let folder = tempfile::tempdir().unwrap();
    let path = heads::steps(folder.path());
    let model = load(&path, request(1024, 1, 3));
    let generate = || greedy(&model).cache_prompt(true).speculate(mtp(3));
    let (plain, _) = alone(&model, greedy(&model));

    // A prompt that is in the cache, with another end.
    let mut session = model.session().unwrap();
    session.begin(generate()).unwrap();
    all_came_true(&run(&mut session)[0].1);
    let longer = model.generate(format!("{PROMPT} and then")).max_tokens(60);
    let longer = longer.temperature(0.0).cache_prompt(true);
    session.begin(longer.speculate(mtp(3))).unwrap();
    let (_, statistics) = run(&mut session).remove(0);
    assert!(statistics.cached_tokens > 0, "{statistics:?}");
    all_came_true(&statistics);

    // A text that goes back, and goes on as before.
    let text = session.begin(generate()).unwrap();
    let mut tokens: Vec<Token> = Vec::new();
    while tokens.len() < 30 {
        let pieces = session.step().unwrap();
        tokens.extend(pieces.filter_map(|piece| piece.token));
    }
    let rolled_back = session.roll_back(text, 9).unwrap();
    tokens.truncate(tokens.len() - rolled_back.tokens);
    let (told, statistics) = run(&mut session).remove(0);
    assert_eq!([tokens, told.tokens].concat(), plain.tokens);
    assert_eq!(statistics.accepted_tokens, statistics.drafted_tokens);
}

#[test]
fn a_text_that_outgrows_the_context_is_followed_on() {
    let folder = tempfile::tempdir().unwrap();
    let path = heads::steps(folder.path());
    let model = load(&path, request(64, 1, 3));
    let endless = || {
        let generate = greedy(&model).max_tokens(150);
        generate.when_full(WhenFull::shift(Keep::Tokens(4)))
    };
    let (plain, _) = alone(&model, endless());
    let (drafted, statistics) = alone(&model, endless().speculate(mtp(3)));
    assert_eq!(drafted, plain);
    assert!(statistics.discarded_tokens > 0, "{statistics:?}");
    all_came_true(&statistics);
    for path in [path, heads::random_states(folder.path())] {
        for n_ctx in [24, 27, 256] {
            let model = load(&path, request(n_ctx, 1, 5));
            let full = || seeded(&model, 2).max_tokens(usize::MAX);
            let (plain, _) = alone(&model, full());
            let (drafted, _) = alone(&model, full().speculate(mtp(5)));
            assert_eq!(drafted, plain, "{n_ctx}");
            let shifted = || {
                let generate = seeded(&model, 3).max_tokens(2 * n_ctx as usize);
                generate.when_full(WhenFull::shift(Keep::Tokens(4)))
            };
            let (plain, _) = alone(&model, shifted());
            let (drafted, _) = alone(&model, shifted().speculate(mtp(5)));
            assert_eq!(drafted, plain, "{n_ctx}, shifted");
        }
    }
}

#[test]
fn a_model_in_a_worker_predicts_there() {
    let folder = tempfile::tempdir().unwrap();
    let path = heads::steps(folder.path());
    let here = load(&path, request(512, 1, 3));
    let program = WorkerProcess::program(env!("CARGO_BIN_EXE_autoplace-worker"));
    let there = builder(&path, request(512, 1, 3)).mtp(true);
    let there = there.isolation(Isolation::Process(program)).load().unwrap();
    let (text, _) = told(greedy(&here));
    let (drafted, statistics) = told(greedy(&there).speculate(mtp(3)));
    assert_eq!(drafted, text);
    all_came_true(&statistics);
    // What cannot be is refused before there is a worker, with its own type.
    let program = WorkerProcess::program("/nonexistent/worker");
    let none = builder(&exact::llama(folder.path()), request(512, 1, 3)).mtp(true);
    let error = none.isolation(Isolation::Process(program)).load();
    let error = error.unwrap_err();
    assert!(
        matches!(error, Error::Mtp(MtpError::NoHeads { .. })),
        "{error}"
    );
}

#[test]
fn sequences_that_share_their_cells_are_followed_from_where_there_is_room() {
    let folder = tempfile::tempdir().unwrap();
    let path = heads::steps(folder.path());
    // What ended texts have left fills the cells of all.
    let mut request = request(256, 2, 3);
    request.params.kv_unified = true;
    let model = load(&path, request);
    let generate = |length: i32| {
        let prompt: Vec<Token> = (0..length).map(|n| 259 + n * 7 % 250).collect();
        let generate = model.generate(Prompt::tokens(prompt)).cache_prompt(true);
        generate.temperature(0.0).max_tokens(30)
    };
    for length in [100, 120, 90, 140, 30] {
        let (plain, _) = alone(&model, generate(length));
        let mut session = model.session().unwrap();
        session.begin(generate(length).speculate(mtp(3))).unwrap();
        session.begin(generate(50).speculate(mtp(3))).unwrap();
        let texts = run(&mut session);
        assert_eq!(texts[0].0, plain, "{length}");
        for (_, statistics) in &texts {
            assert_eq!(statistics.accepted_tokens, statistics.drafted_tokens);
        }
    }
}

#[test]
fn a_recurrent_state_goes_back_to_before_a_wrong_guess() {
    let folder = tempfile::tempdir().unwrap();
    let path = heads::random_states(folder.path());
    for draft_max in [1, 4] {
        let model = load(&path, request(512, 1, draft_max));
        let (plain, _) = alone(&model, greedy(&model));
        let (drafted, statistics) = alone(&model, greedy(&model).speculate(mtp(draft_max)));
        assert_eq!(drafted, plain, "{draft_max}");
        assert!(statistics.drafted_tokens > 10, "{statistics:?}");
        let mut wrong = 0;
        for seed in 1..6 {
            let (plain, _) = alone(&model, seeded(&model, seed));
            let (drafted, _) = alone(&model, seeded(&model, seed).speculate(mtp(draft_max)));
            assert_eq!(drafted, plain, "{seed}");
            // Some of it right, and some of it wrong: by any other guess too.
            let prompt = tokens(&model, PROMPT);
            let oracle = oracle(&prompt, &plain.tokens, seed);
            let (drafted, statistics) = alone(&model, seeded(&model, seed).draft_with(oracle));
            assert_eq!(drafted, plain, "{seed}");
            assert_ne!(statistics.drafts_off, Some(DraftsOff::Memory));
            assert!(statistics.accepted_tokens > 4, "{statistics:?}");
            wrong += statistics.drafted_tokens - statistics.accepted_tokens;
        }
        assert!(wrong > 0, "{draft_max}");
    }
}

#[test]
fn a_model_with_a_recurrent_state_is_followed_too() {
    let folder = tempfile::tempdir().unwrap();
    let path = heads::steps_with_states(folder.path());
    let model = load(&path, request(512, 1, 3));
    let (plain, _) = alone(&model, greedy(&model));
    for _ in 0..2 {
        let generate = greedy(&model).cache_prompt(true);
        let (drafted, statistics) = alone(&model, generate.speculate(mtp(3)));
        assert_eq!(drafted, plain);
        all_came_true(&statistics);
    }
    // Of several sequences llama.cpp takes states back only while all are computed together.
    let error = builder(&path, request(512, 2, 3)).mtp(true).load();
    let error = error.unwrap_err();
    assert!(
        matches!(
            error,
            Error::Plan(plan::Error::Mtp(MtpError::Sequences { n_seq_max: 2, .. }))
        ),
        "{error}"
    );
}

#[test]
fn what_other_texts_guess_by_is_beside_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = heads::steps(folder.path());
    let model = load(&path, request(1024, 2, 4));
    let (plain, _): (Told, _) = alone(&model, greedy(&model));
    let mut session = model.session().unwrap();
    let lookup = Speculation::prompt_lookup();
    session.begin(greedy(&model).speculate(lookup)).unwrap();
    session.begin(greedy(&model).speculate(mtp(4))).unwrap();
    let texts = run(&mut session);
    assert!(texts.iter().all(|(told, _)| *told == plain));
    all_came_true(&texts[1].1);
}

#[test]
fn without_such_a_block_nothing_is_guessed_and_that_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let path = heads::steps(folder.path());
    // The file has one, and nobody asked for it.
    let model = crate::speculative_support::load(&path, request(512, 1, 3));
    let (plain, _) = alone(&model, greedy(&model));
    let (drafted, statistics) = alone(&model, greedy(&model).speculate(mtp(3)));
    assert_eq!(drafted, plain);
    assert_eq!(statistics.drafts_off, Some(DraftsOff::NoHeads));
    assert_eq!(statistics.drafted_tokens, 0);
    // The file has none.
    let path = exact::llama(folder.path());
    let error = builder(&path, request(512, 1, 3)).mtp(true).load();
    let error = error.unwrap_err();
    assert!(
        matches!(error, Error::Mtp(MtpError::NoHeads { .. })),
        "{error}"
    );
}
