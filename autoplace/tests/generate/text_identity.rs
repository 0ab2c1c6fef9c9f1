//! Greedy text is that of a raw llama.cpp loop, token by token, whatever is reused, cut into parts, computed beside it
//! or guessed: through the public API, on the demo model.
//!
//! Others of the same promise: saved files and shifts (`session_*.rs`), every memory (`session_memories.rs`,
//! `engine_memories.rs`).

use crate::native_support::demo_path;
use crate::speculative_support::{builder, load, request, tokens};
use crate::text_support::{Raw, answered, told};
use autoplace::Model;
use autoplace::generate::{Engine, Generate, Speculation};
use autoplace::llama_sys::{KvType, Token};

/// Of three lengths, the longest of them longer than any part that it is cut into.
const PROMPTS: [&str; 3] = [
    "And the king said unto his servants, Go ye now unto the house of my father",
    "In the beginning God created the heaven and the earth. And the earth was without form, and void; and darkness was upon the face of \
     the deep. And the Spirit of God moved upon the face of the waters. And God said, Let there be light: and there was light. And God saw \
     the light, that it was good: and God divided the light from the darkness. And God called the light Day, and the darkness he called \
     Night. And the evening and the morning were the first day. And God said, Let there be a firmament in the midst of the waters, and \
     let it divide the waters from the waters.",
    "And he said, Go, and they went; and he said, Come, and they came; and he said,",
];

const TOKENS: usize = 32;

/// Of a batch or a chunk, in tokens: small ones, and those around what graphs and kernels are made for.
const SIZES: [u32; 18] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 16, 17, 31, 32, 33, 48, 63, 64];

/// What llama.cpp makes of all prompts.
fn expected(model: &Model) -> Vec<Vec<Token>> {
    let raw = |prompt: &&str| {
        let raw = Raw::of(&model.native().unwrap(), 1024, false, KvType::F32);
        raw.go_on(&tokens(model, prompt), TOKENS)
    };
    PROMPTS.iter().map(raw).collect()
}

fn greedy(model: &Model, prompt: &str) -> Generate {
    model.generate(prompt).temp(0.0).max_tokens(TOKENS)
}

#[test]
fn prompts_in_batches_of_sizes_from_1_to_64() {
    let model = load(&demo_path(), request(1024, 1, 0));
    let expected = expected(&model);
    assert!(tokens(&model, PROMPTS[1]).len() > 2 * 64);
    drop(model);
    for size in SIZES {
        // Each in one graph, or in two.
        let model = load(&demo_path(), request(1024, 1, 0).n_batch(size).n_ubatch(size.div_ceil(1 + size % 2)));
        for (prompt, expected) in PROMPTS.iter().zip(&expected) {
            assert_eq!(told(greedy(&model, prompt), &model).tokens, *expected, "batches of {size}");
        }
    }
}

#[test]
fn prompts_in_chunks_of_sizes_from_1_to_64_side_by_side() {
    let model = load(&demo_path(), request(3 * 512, 3, 0));
    let expected = expected(&model);
    for chunk in SIZES {
        let engine = Engine::builder(&model).prompt_chunk(chunk as usize).start().unwrap();
        let submit = |prompt: &&str| {
            let generate = greedy(&model, prompt).cache_prompt(chunk % 4 == 0);
            engine.submit(generate).unwrap()
        };
        let answers: Vec<_> = PROMPTS.iter().map(submit).collect();
        for (answer, expected) in answers.into_iter().zip(&expected) {
            assert_eq!(answered(answer).tokens, *expected, "chunks of {chunk}");
        }
    }
}

/// Every way of guessing, by its name.
fn guessing(model: &Model, prompt: &str) -> Vec<(&'static str, Generate)> {
    let greedy = || greedy(model, prompt);
    let drafts = Speculation::DraftModel { draft_max: 5, p_min: 0.0 };
    vec![("lookup", greedy().speculate(Speculation::prompt_lookup())), ("draft model", greedy().speculate(drafts))]
}

#[test]
fn tokens_that_are_guessed_in_an_engine() {
    for sequences in [1, 3] {
        let request = request(1024 * sequences, sequences, 8);
        let model = builder(&demo_path(), request).draft(demo_path()).load().unwrap();
        let expected = expected(&model);
        let engine = Engine::new(&model).unwrap();
        let mut accepted = [0; 2];
        for (at, accepted) in accepted.iter_mut().enumerate() {
            let submit = |prompt: &&str| {
                let (method, generate) = guessing(&model, prompt).swap_remove(at);
                (method, engine.submit(generate).unwrap())
            };
            let answers: Vec<_> = PROMPTS.iter().map(submit).collect();
            for ((method, answer), expected) in answers.into_iter().zip(&expected) {
                let told = answered(answer);
                assert_eq!(told.tokens, *expected, "{method}, {sequences} sequences");
                *accepted += told.statistics().accepted_tokens;
            }
        }
        assert!(accepted.iter().all(|accepted| *accepted > 8), "{accepted:?}");
    }
}
