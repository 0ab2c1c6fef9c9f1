//! An engine, with models whose memory cannot go back to every token: sliding windows, recurrent states, and both
//! together with attention. Every text is the same as in a bare llama.cpp loop: if it is alone, if there are other
//! texts, and if its prompt is computed in chunks.

use crate::text_support::{SEED, answered, random, raw_by_chance, request, sampled, small, until, words};
use autoplace::Model;
use autoplace::generate::{Engine, TokenStream};
use autoplace::llama_sys::Token;

const TOKENS: usize = 16;
const ALL: [&str; 5] = ["phi3", "gpt-oss", "mamba2", "jamba", "falcon-h1"];

/// A kind of model: with windows, with states, or with both.
struct Kind {
    arch: &'static str,
    model: Model,
    /// Prompts of several lengths. Some are shorter than both the windows and a graph of 32 tokens, and some are
    /// longer. Two of them have the same beginning.
    prompts: Vec<Vec<Token>>,
    /// The answers that llama.cpp gives to the prompts.
    expected: Vec<Vec<Token>>,
}

impl Kind {
    fn all(sequences: u32) -> impl Iterator<Item = Self> {
        let folder = tempfile::tempdir().unwrap();
        ALL.into_iter().map(move |arch| {
            let path = random(arch, None, folder.path());
            let model = small(&path, request(512 * sequences, sequences, false), 1 << 30);
            let prompts = [(7, 40), (8, 150), (9, 290), (9, 330), (10, 3)].map(|(seed, n)| words(seed, n));
            let expected = prompts.iter().map(|prompt| raw_by_chance(&model, prompt, TOKENS)).collect();
            Self { arch, model, prompts: prompts.into(), expected }
        })
    }

    fn submit(&self, engine: &Engine, prompt: usize) -> TokenStream {
        engine.submit(sampled(&self.model, &self.prompts[prompt][..], SEED).max_tokens(TOKENS)).unwrap()
    }

    #[track_caller]
    fn check(&self, prompt: usize, answer: TokenStream) {
        assert_eq!(answered(answer).tokens, self.expected[prompt], "{}, {prompt}", self.arch);
    }
}

#[test]
fn texts_alone_and_side_by_side_and_cut_into_chunks_are_those_of_a_raw_loop() {
    // If a text is alone, each chunk is a batch. If it is not, the other texts wait for each chunk.
    for (sequences, chunks) in [(1, [5, 5]), (3, [5, 512])] {
        for (kind, chunk) in Kind::all(sequences).zip(chunks.into_iter().cycle()) {
            let engine = Engine::builder(&kind.model).prompt_chunk(chunk).start().unwrap();
            // In the second round, a part of the prompt may already be in the context.
            for _ in 0..2 {
                let answers = [0, 1, 2, 3, 4].map(|prompt| kind.submit(&engine, prompt));
                answers.into_iter().enumerate().for_each(|(prompt, answer)| kind.check(prompt, answer));
            }
        }
    }
}

#[test]
fn suspended_texts_continue_unchanged() {
    for kind in Kind::all(1) {
        let engine = Engine::builder(&kind.model).ahead(3).start().unwrap();
        // Nobody reads these texts. So each of them gives up the only sequence to the next.
        let slow = [0, 1, 2].map(|prompt| kind.submit(&engine, prompt));
        until(&engine, |metrics| metrics.running == 0);
        kind.check(4, kind.submit(&engine, 4));
        slow.into_iter().enumerate().for_each(|(prompt, answer)| kind.check(prompt, answer));
    }
}

#[test]
fn cancelled_texts_leave_nothing_in_other_texts() {
    for kind in Kind::all(2) {
        let engine = Engine::builder(&kind.model).prompt_chunk(1).start().unwrap();
        // The text is dropped while its prompt is being computed. The next prompt begins with this whole prompt.
        let answer = kind.submit(&engine, 2);
        until(&engine, |metrics| metrics.prompt_tokens > 0);
        drop(answer);
        kind.check(3, kind.submit(&engine, 3));
        // The text is dropped in the middle. Another text continues.
        let mut cut = kind.submit(&engine, 0);
        let beside = kind.submit(&engine, 1);
        cut.pieces().next().unwrap().unwrap();
        drop(cut);
        kind.check(1, beside);
        kind.check(0, kind.submit(&engine, 0));
    }
}
