//! Greedy text is that of a raw llama.cpp loop, token by token, whatever is reused, cut into parts, computed beside it
//! or guessed: through the public API, on the demo model.
//!
//! Others of the same promise: forks, roll-backs, saved files and shifts (`session_*.rs`), every memory
//! (`session_memories.rs`, `engine_memories.rs`).

use crate::native_support::demo_path;
use crate::speculative_support::{alone, builder, load, oracle, request, tokens};
use autoplace::Model;
use autoplace::generate::{Answer, Engine, Generate, Speculation, Statistics};
use autoplace::llama_sys::{Batch, Context, ContextParams, FlashAttention, KvType, Sampler, Token};
use autoplace::plan::Request;

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

/// llama.cpp's own loop: the prompt in one batch, then token after token, the likeliest each time.
fn raw(model: &Model, prompt: &[Token], most: usize) -> Vec<Token> {
    let native = &model.native().unwrap();
    let params = ContextParams {
        n_ctx: 1024,
        n_batch: 1024,
        n_threads: Some(1),
        n_threads_batch: Some(1),
        flash_attention: FlashAttention::Disabled,
        type_k: KvType::F32,
        type_v: KvType::F32,
        ..ContextParams::default()
    };
    let mut context = Context::new(native, params).unwrap();
    let mut sampler = Sampler::chain(native).unwrap().greedy().unwrap();
    let mut batch = Batch::default();
    for (position, &token) in (0..).zip(prompt) {
        batch.add(token, position, 0, position as usize + 1 == prompt.len());
    }
    let mut answer = Vec::new();
    for position in (prompt.len() as i32..).take(most) {
        context.decode(&batch).unwrap();
        let token = sampler.sample(&mut context, -1).unwrap();
        answer.push(token);
        if native.vocab().is_eog(token) {
            break;
        }
        batch.clear();
        batch.add(token, position, 0, true);
    }
    answer
}

/// What llama.cpp makes of all prompts.
fn expected(model: &Model) -> Vec<Vec<Token>> {
    let raw = |prompt: &&str| raw(model, &tokens(model, prompt), TOKENS);
    PROMPTS.iter().map(raw).collect()
}

fn greedy(model: &Model, prompt: &str) -> Generate {
    model.generate(prompt).temperature(0.0).max_tokens(TOKENS)
}

/// The tokens of a stream of its own.
fn streamed(generate: Generate) -> (Vec<Token>, Statistics) {
    let mut stream = generate.stream().unwrap();
    let pieces: Vec<_> = stream.pieces().map(Result::unwrap).collect();
    let tokens = pieces.iter().filter_map(|piece| piece.token).collect();
    (tokens, stream.statistics())
}

fn answered(mut answer: Answer) -> (Vec<Token>, Statistics) {
    let pieces: Vec<_> = answer.pieces().map(Result::unwrap).collect();
    let tokens = pieces.iter().filter_map(|piece| piece.token).collect();
    (tokens, answer.statistics())
}

#[test]
fn a_prompt_whose_beginning_the_context_holds() {
    let model = load(&demo_path(), request(1024, 1, 0));
    let whole = tokens(&model, PROMPTS[1]);
    let again = |prompt: &[Token]| {
        let generate = model.generate(prompt).temperature(0.0).max_tokens(TOKENS);
        streamed(generate.cache_prompt(true))
    };
    // A beginning of it; more of it; all of it, twice; less again; and another text that parts from it in the middle.
    let mut parted = whole[..whole.len() / 2].to_vec();
    parted.extend(tokens(&model, PROMPTS[0]));
    let third = &whole[..whole.len() / 3];
    for (prompt, held) in [
        (third, 0),
        (&whole[..], third.len()),
        (&whole[..], whole.len() - 1),
        (third, third.len() - 1),
        (&whole[..], third.len()),
        (&parted[..], whole.len() / 2),
    ] {
        let (told, statistics) = again(prompt);
        assert_eq!(told, raw(&model, prompt, TOKENS), "{held} held");
        assert!(
            statistics.cached_tokens >= held && statistics.cached_tokens < prompt.len(),
            "{statistics:?}, of which {held} were held"
        );
    }
}

#[test]
fn prompts_in_batches_of_every_size_from_1_to_64() {
    let model = load(&demo_path(), request(1024, 1, 0));
    let expected = expected(&model);
    assert!(tokens(&model, PROMPTS[1]).len() > 2 * 64);
    drop(model);
    for size in 1..=64 {
        let request: Request = request(1024, 1, 0).n_batch(size).n_ubatch(size);
        let model = load(&demo_path(), request);
        for (prompt, expected) in PROMPTS.iter().zip(&expected) {
            let (told, _) = streamed(greedy(&model, prompt));
            assert_eq!(told, *expected, "batches of {size}");
        }
    }
}

#[test]
fn prompts_in_chunks_of_every_size_from_1_to_64_side_by_side() {
    let model = load(&demo_path(), request(3 * 512, 3, 0));
    let expected = expected(&model);
    for chunk in 1..=64 {
        let engine = Engine::builder(&model).prompt_chunk(chunk).start().unwrap();
        let submit = |prompt: &&str| {
            let generate = greedy(&model, prompt).cache_prompt(false);
            engine.submit(generate).unwrap()
        };
        let answers: Vec<_> = PROMPTS.iter().map(submit).collect();
        for (answer, expected) in answers.into_iter().zip(&expected) {
            assert_eq!(answered(answer).0, *expected, "chunks of {chunk}");
        }
    }
}

/// Every way of guessing, by its name.
fn guessing(model: &Model, prompt: &str, answer: &[Token]) -> Vec<(&'static str, Generate)> {
    let greedy = || greedy(model, prompt);
    let drafts = Speculation::DraftModel {
        draft_max: 5,
        p_min: 0.0,
    };
    let prompt = tokens(model, prompt);
    vec![
        ("lookup", greedy().speculate(Speculation::prompt_lookup())),
        ("draft model", greedy().speculate(drafts)),
        ("all right", greedy().draft_with(oracle(&prompt, answer, 0))),
        (
            "some wrong",
            greedy().draft_with(oracle(&prompt, answer, 3)),
        ),
    ]
}

#[test]
fn tokens_that_are_guessed_by_every_method() {
    let builder = builder(&demo_path(), request(1024, 1, 8)).draft(demo_path());
    let model = builder.load().unwrap();
    let mut accepted = [0; 4];
    for (prompt, expected) in PROMPTS.iter().zip(expected(&model)) {
        for (at, (method, generate)) in guessing(&model, prompt, &expected).into_iter().enumerate()
        {
            let (told, statistics) = alone(&model, generate);
            assert_eq!(told.tokens, expected, "{method}");
            accepted[at] += statistics.accepted_tokens;
        }
    }
    assert!(
        accepted.iter().all(|accepted| *accepted > 8),
        "{accepted:?}"
    );
}

#[test]
fn tokens_that_are_guessed_in_an_engine() {
    for sequences in [1, 3] {
        let request = request(1024 * sequences, sequences, 8);
        let builder = builder(&demo_path(), request).draft(demo_path());
        let model = builder.load().unwrap();
        let expected = expected(&model);
        let engine = Engine::new(&model).unwrap();
        let mut accepted = [0; 4];
        for (at, accepted) in accepted.iter_mut().enumerate() {
            let submit = |(prompt, expected): (&&str, &Vec<Token>)| {
                let (method, generate) = guessing(&model, prompt, expected).swap_remove(at);
                (method, engine.submit(generate).unwrap())
            };
            let answers: Vec<_> = PROMPTS.iter().zip(&expected).map(submit).collect();
            for ((method, answer), expected) in answers.into_iter().zip(&expected) {
                let (told, statistics) = answered(answer);
                assert_eq!(told, *expected, "{method}, {sequences} sequences");
                *accepted += statistics.accepted_tokens;
            }
        }
        assert!(
            accepted.iter().all(|accepted| *accepted > 8),
            "{accepted:?}"
        );
    }
}
