//! An engine on models whose memory cannot go back to every token: sliding windows, recurrent states, both beside
//! attention. Every text is that of a raw llama.cpp loop, alone and beside others, cut into chunks, put aside and taken
//! up again. On small models with random weights of 32 bits: the same tokens lie in other cells of a window where they
//! were computed in other chunks, and are summed in another order.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::thread;

use crate::session_support::{Raw, request, sampled};
use autoplace::Model;
use autoplace::generate::{Answer, Engine, Generate, Metrics, Statistics};
use autoplace::llama_sys::{self, Token};
use autoplace::memory;

/// A model of each kind of memory.
struct Kind {
    title: &'static str,
    path: PathBuf,
    /// Its state knows only its last token.
    recurrent: bool,
}

fn kinds(folder: &Path) -> Vec<Kind> {
    let kinds = [
        ("phi3", false),
        ("gemma3", false),
        ("gpt-oss", false),
        ("mamba2", true),
        ("jamba", true),
        ("falcon-h1", true),
    ];
    let of = |(title, recurrent): (&'static str, bool)| {
        let mut sketches = crate::random_weights::all().into_iter();
        let sketch = sketches.find(|sketch| sketch.arch == title).unwrap();
        let mut sketch = sketch.in_floats();
        sketch.vocabulary();
        let path = crate::random_weights::write(&sketch, folder);
        Kind {
            title,
            path,
            recurrent,
        }
    };
    kinds.map(of).into()
}

fn load(kind: &Kind, n_ctx: u32, sequences: u32) -> Model {
    let mut request = request(n_ctx * sequences, sequences, false);
    request = request.n_batch(64).n_ubatch(32);
    request.params.swa_full = false;
    request.params.type_k = memory::KvType::F32;
    request.params.type_v = memory::KvType::F32;
    crate::session_support::load(&kind.path, request)
}

const SEED: u32 = 4;
const TOKENS: usize = 16;

/// llama.cpp's own text after these tokens, by the same chance: it tells of every token before it.
fn raw(model: &Model, prompt: &[Token]) -> Vec<Token> {
    let native = &model.native().unwrap();
    let n_ctx = (prompt.len() + TOKENS + 8) as u32;
    let raw = Raw::of(native, n_ctx, false, llama_sys::KvType::F32);
    let raw = raw.by_chance(SEED, 0).go_on(prompt, TOKENS);
    let different: BTreeSet<_> = raw.iter().collect();
    assert!(different.len() > raw.len() / 4, "{raw:?}");
    raw
}

fn generate(model: &Model, prompt: &[Token]) -> Generate {
    sampled(model, prompt, SEED).max_tokens(TOKENS)
}

/// Prompts shorter and longer than the windows, and than a graph of 32 tokens. Two begin alike.
fn prompts() -> Vec<Vec<Token>> {
    let of = |seed: u32, n: usize| -> Vec<Token> {
        let mut state = seed;
        let next = |_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            259 + (state >> 16) as Token % 200
        };
        (0..n).map(next).collect()
    };
    vec![of(7, 40), of(8, 150), of(9, 290), of(9, 330), of(10, 3)]
}

fn tokens(mut answer: Answer) -> (Vec<Token>, Statistics) {
    let pieces: Vec<_> = answer.pieces().map(Result::unwrap).collect();
    let tokens = pieces.iter().filter_map(|piece| piece.token).collect();
    (tokens, answer.statistics())
}

/// Waits until the engine's thread has seen it.
#[track_caller]
fn until(engine: &Engine, holds: impl Fn(Metrics) -> bool) {
    let begun = std::time::Instant::now();
    while !holds(engine.metrics()) {
        assert!(begun.elapsed().as_secs() < 60, "{:?}", engine.metrics());
        thread::yield_now();
    }
}

#[test]
fn texts_alone_and_side_by_side_and_cut_into_chunks_are_those_of_a_raw_loop() {
    let folder = tempfile::tempdir().unwrap();
    let prompts = prompts();
    for kind in kinds(folder.path()) {
        for sequences in [1, 3] {
            let model = load(&kind, 512, sequences);
            let expected: Vec<_> = prompts.iter().map(|prompt| raw(&model, prompt)).collect();
            for chunk in [5, 32, 512] {
                let engine = Engine::builder(&model).prompt_chunk(chunk).start().unwrap();
                // The second time some of it may be in the context.
                for round in 0..2 {
                    let submit =
                        |prompt: &Vec<Token>| engine.submit(generate(&model, prompt)).unwrap();
                    let answers: Vec<_> = prompts.iter().map(submit).collect();
                    for (answer, expected) in answers.into_iter().zip(&expected) {
                        let case = format!("{}, {sequences} at once, {chunk}, {round}", kind.title);
                        assert_eq!(tokens(answer).0, *expected, "{case}");
                    }
                }
            }
        }
    }
}

#[test]
fn a_conversation_computes_what_is_new_of_every_memory() {
    let folder = tempfile::tempdir().unwrap();
    for kind in kinds(folder.path()) {
        let model = load(&kind, 512, 2);
        let engine = Engine::new(&model).unwrap();
        let mut turn = prompts().remove(1);
        let mut held = 0;
        for _ in 0..3 {
            let answer = engine.submit(generate(&model, &turn)).unwrap();
            let (told, statistics) = tokens(answer);
            assert_eq!(told, raw(&model, &turn), "{}", kind.title);
            assert_eq!(statistics.cached_tokens, held, "{}", kind.title);
            turn.extend(&told);
            // The last token was not computed.
            held = turn.len() - 1;
            turn.extend(&prompts()[4]);
        }
        // The same again, to within the second turn: a state goes back to the checkpoint before the end of the first
        // prompt.
        let answer = engine.submit(generate(&model, &turn[..held - 40])).unwrap();
        let (told, statistics) = tokens(answer);
        assert_eq!(told, raw(&model, &turn[..held - 40]), "{}", kind.title);
        if kind.recurrent {
            assert_eq!(statistics.cached_tokens, 150 - 4, "{}", kind.title);
        }
    }
}

#[test]
fn texts_that_are_put_aside_go_on_as_they_were() {
    let folder = tempfile::tempdir().unwrap();
    let prompts = prompts();
    for kind in kinds(folder.path()) {
        let model = load(&kind, 512, 1);
        let expected: Vec<_> = prompts.iter().map(|prompt| raw(&model, prompt)).collect();
        let engine = Engine::builder(&model).ahead(3).start().unwrap();
        let submit = |prompt: &Vec<Token>| engine.submit(generate(&model, prompt)).unwrap();
        // Nobody reads them, so that each makes room for the next, on the one sequence that there is.
        let slow: Vec<_> = prompts[..3].iter().map(submit).collect();
        until(&engine, |it| it.suspended >= 2);
        let quick = submit(&prompts[4]);
        assert_eq!(tokens(quick).0, expected[4], "{}", kind.title);
        for (answer, expected) in slow.into_iter().zip(&expected) {
            assert_eq!(tokens(answer).0, *expected, "{}", kind.title);
        }
    }
}

#[test]
fn texts_that_are_cancelled_leave_nothing_of_theirs_in_another() {
    let folder = tempfile::tempdir().unwrap();
    let prompts = prompts();
    for kind in kinds(folder.path()) {
        let model = load(&kind, 512, 2);
        let engine = Engine::builder(&model).prompt_chunk(1).start().unwrap();
        // In the middle of a prompt, of which the next one has more.
        let answer = engine.submit(generate(&model, &prompts[2])).unwrap();
        until(&engine, |it| it.prompt_tokens > 0);
        drop(answer);
        let answer = engine.submit(generate(&model, &prompts[3])).unwrap();
        assert_eq!(tokens(answer).0, raw(&model, &prompts[3]), "{}", kind.title);
        // In the middle of a text, beside another that goes on.
        let mut cut = engine.submit(generate(&model, &prompts[0])).unwrap();
        let beside = engine.submit(generate(&model, &prompts[1])).unwrap();
        cut.pieces().next().unwrap().unwrap();
        drop(cut);
        assert_eq!(tokens(beside).0, raw(&model, &prompts[1]), "{}", kind.title);
        let again = engine.submit(generate(&model, &prompts[0])).unwrap();
        assert_eq!(tokens(again).0, raw(&model, &prompts[0]), "{}", kind.title);
    }
}
