//! An engine on models whose memory cannot go back to every token: sliding windows, recurrent states, both beside
//! attention. Every text is that of a raw llama.cpp loop, alone and beside others, and cut into chunks. On small models
//! with random weights of 32 bits: the same tokens lie in other cells of a window where they were computed in other
//! chunks, and are summed in another order.

use std::path::{Path, PathBuf};

use crate::text_support::{SEED, answered, random, raw_by_chance, request, sampled, small, until, words};
use autoplace::Model;
use autoplace::generate::{Engine, Generate};
use autoplace::llama_sys::Token;

const GIB: u64 = 1 << 30;

/// A model of each kind of memory: windows, states, and both.
const KINDS: [&str; 6] = ["phi3", "gemma3", "gpt-oss", "mamba2", "jamba", "falcon-h1"];

fn kinds(folder: &Path) -> impl Iterator<Item = (&'static str, PathBuf)> {
    KINDS.into_iter().map(move |arch| (arch, random(arch, None, folder)))
}

fn load(path: &Path, n_ctx: u32, sequences: u32) -> Model {
    small(path, request(n_ctx * sequences, sequences, false), GIB)
}

const TOKENS: usize = 16;

fn raw(model: &Model, prompt: &[Token]) -> Vec<Token> {
    raw_by_chance(model, prompt, TOKENS)
}

fn generate(model: &Model, prompt: &[Token]) -> Generate {
    sampled(model, prompt, SEED).max_tokens(TOKENS)
}

/// Prompts shorter and longer than the windows, and than a graph of 32 tokens. Two begin alike.
fn prompts() -> Vec<Vec<Token>> {
    [(7, 40), (8, 150), (9, 290), (9, 330), (10, 3)].map(|(seed, n)| words(seed, n)).into()
}

#[test]
fn texts_alone_and_side_by_side_and_cut_into_chunks_are_those_of_a_raw_loop() {
    let folder = tempfile::tempdir().unwrap();
    let prompts = prompts();
    for (title, path) in kinds(folder.path()) {
        for sequences in [1, 3] {
            let model = load(&path, 512, sequences);
            let expected: Vec<_> = prompts.iter().map(|prompt| raw(&model, prompt)).collect();
            // Alone, a chunk is a batch; beside others it is what they wait for.
            let chunks = if sequences == 1 { &[5][..] } else { &[5, 512] };
            for &chunk in chunks {
                let engine = Engine::builder(&model).prompt_chunk(chunk).start().unwrap();
                // The second time some of it may be in the context.
                for round in 0..2 {
                    let submit = |prompt: &Vec<Token>| engine.submit(generate(&model, prompt)).unwrap();
                    let answers: Vec<_> = prompts.iter().map(submit).collect();
                    for (answer, expected) in answers.into_iter().zip(&expected) {
                        let case = format!("{title}, {sequences} at once, {chunk}, {round}");
                        assert_eq!(answered(answer).tokens, *expected, "{case}");
                    }
                }
            }
        }
    }
}

#[test]
fn texts_that_are_put_aside_go_on_as_they_were() {
    let folder = tempfile::tempdir().unwrap();
    let prompts = prompts();
    for (title, path) in kinds(folder.path()) {
        let model = load(&path, 512, 1);
        let expected: Vec<_> = prompts.iter().map(|prompt| raw(&model, prompt)).collect();
        let engine = Engine::builder(&model).ahead(3).start().unwrap();
        let submit = |prompt: &Vec<Token>| engine.submit(generate(&model, prompt)).unwrap();
        // Nobody reads them, so that each makes room for the next, on the one sequence that there is.
        let slow: Vec<_> = prompts[..3].iter().map(submit).collect();
        until(&engine, |it| it.running == 0);
        let quick = submit(&prompts[4]);
        assert_eq!(answered(quick).tokens, expected[4], "{title}");
        for (answer, expected) in slow.into_iter().zip(&expected) {
            assert_eq!(answered(answer).tokens, *expected, "{title}");
        }
    }
}

#[test]
fn texts_that_are_cancelled_leave_nothing_of_theirs_in_another() {
    let folder = tempfile::tempdir().unwrap();
    let prompts = prompts();
    for (title, path) in kinds(folder.path()) {
        let model = load(&path, 512, 2);
        let engine = Engine::builder(&model).prompt_chunk(1).start().unwrap();
        // In the middle of a prompt, of which the next one has more.
        let answer = engine.submit(generate(&model, &prompts[2])).unwrap();
        until(&engine, |it| it.prompt_tokens > 0);
        drop(answer);
        let answer = engine.submit(generate(&model, &prompts[3])).unwrap();
        assert_eq!(answered(answer).tokens, raw(&model, &prompts[3]), "{title}");
        // In the middle of a text, beside another that goes on.
        let mut cut = engine.submit(generate(&model, &prompts[0])).unwrap();
        let beside = engine.submit(generate(&model, &prompts[1])).unwrap();
        cut.pieces().next().unwrap().unwrap();
        drop(cut);
        assert_eq!(answered(beside).tokens, raw(&model, &prompts[1]), "{title}");
        let again = engine.submit(generate(&model, &prompts[0])).unwrap();
        assert_eq!(answered(again).tokens, raw(&model, &prompts[0]), "{title}");
    }
}
