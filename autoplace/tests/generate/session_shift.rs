//! What becomes of a text when the context is full: through the public API, beside llama.cpp's own context shift.

use crate::native_support::demo_path;
use crate::sim_support::card;
use crate::text_support::{Raw, SYSTEM, Texts, demo, greedy, load, request, to_the_end, tokens_of, told};
use autoplace::generate::{FinishReason, Generate, WhenFull};
use autoplace::llama_sys::Token;
use autoplace::machine::mib;
use autoplace::memory::{Headroom, KvType};
use autoplace::plan::GpuLayers;
use autoplace::{Model, load as loading};

const CONTEXT: u32 = 256;

fn load_demo() -> Model {
    demo(CONTEXT, 1, false)
}

/// A text that forgets what is in the way.
fn shifting(model: &Model, n: usize, keep: usize) -> Generate {
    greedy(model, SYSTEM).max_tokens(n).when_full(WhenFull::shift(keep))
}

/// The text of so many tokens after a prompt, by llama.cpp's own loop in a context of 256 tokens: whenever that is
/// full, half of what comes after the first `keep` tokens goes.
fn shifted(model: &Model, prompt: &[Token], n: usize, keep: usize) -> Vec<Token> {
    let native = &model.native().unwrap();
    let mut raw = Raw::new(native, CONTEXT, true);
    let mut held = prompt.len();
    let mut tokens = Vec::new();
    raw.compute(prompt);
    while tokens.len() < n {
        let token = raw.choose();
        tokens.push(token);
        if native.vocab().is_eog(token) {
            break;
        }
        if held == CONTEXT as usize {
            let discard = (held - keep) / 2;
            raw.shift(keep as i32, discard as i32);
            held -= discard;
        }
        held += 1;
        raw.compute(&[token]);
    }
    tokens
}

#[test]
fn a_text_without_end_is_that_of_llama_cpps_own_shift() {
    let model = load_demo();
    let prompt = tokens_of(&model, SYSTEM);
    for (keep, tokens) in [(0, 1), (9, 9), (usize::MAX, prompt.len())] {
        let told = told(shifting(&model, 600, keep), &model);
        assert_eq!(told.tokens, shifted(&model, &prompt, 600, tokens), "{keep:?}");
        assert_eq!(told.end.unwrap().reason, FinishReason::MaxTokens, "{keep:?}");
        let it = told.statistics();
        assert_eq!((it.generated_tokens, it.recomputed_tokens), (600, 0));
        assert!(it.discarded_tokens > 300 && it.shifted_tokens > 300, "{it:?}");
    }
}

#[test]
fn keys_that_take_memory_to_turn_are_computed_again() {
    let f16 = request(CONTEXT, 1, false);
    let mut q8_0 = f16.clone();
    q8_0.params.type_k = KvType::Q8_0;
    let small = f16.clone().n_batch(8).n_ubatch(2);
    for (request, again) in [(q8_0, true), (small, true), (f16, false)] {
        let model = load(&demo_path(), request);
        let it = told(shifting(&model, 400, 5), &model).statistics();
        assert_eq!(it.recomputed_tokens > 0, again, "{it:?}");
        assert_eq!(it.shifted_tokens > 0, !again, "{it:?}");
        assert_eq!(it.generated_tokens, 400);
    }
}

#[test]
fn a_text_that_shares_its_cells_leaves_them_where_they_are() {
    let model = demo(CONTEXT, 2, true);
    let prompt = tokens_of(&model, SYSTEM);
    let mut session = model.session().unwrap();
    let mut texts = Texts::default();
    let first = session.begin(shifting(&model, 400, 4)).unwrap();
    texts.steps(&mut session, 80);
    let so_far = session.tokens(first).unwrap();
    let second = greedy(&model, so_far).max_tokens(86).when_full(WhenFull::shift(4));
    let second = session.begin(second.cache_prompt(true)).unwrap();
    let mut most = 0;
    while session.statistics(second).is_some() {
        texts.step(&mut session);
        let statistics = session.statistics(first).unwrap();
        if statistics.discarded_tokens > 0 && most == 0 {
            // All that they share, and half of the rest.
            most = statistics.discarded_tokens;
            assert!(most > prompt.len() + 75, "{statistics:?}");
            assert_eq!(statistics.recomputed_tokens, 0);
        }
    }
    assert!(most > 0);
    texts.run(&mut session);
    let reasons = [first, second].map(|sequence| texts.of(sequence).end.unwrap().reason);
    assert_eq!(reasons, [FinishReason::MaxTokens; 2]);
    assert_eq!(texts.of(second).statistics().discarded_tokens, 0);
    let raw = Raw::text(&model, &prompt, 166);
    assert_eq!(texts.of(second).tokens, raw[80..]);
    assert_eq!(texts.of(first).tokens[..80], raw[..80]);
}

#[test]
fn only_the_text_that_is_full_shifts() {
    let model = demo(2 * CONTEXT, 2, false);
    let other = "A psalm of the sons of Korah, for";
    let mut session = model.session().unwrap();
    let mut texts = Texts::default();
    let first = session.begin(shifting(&model, 500, 9)).unwrap();
    texts.steps(&mut session, 100);
    let second = session.begin(greedy(&model, other).max_tokens(240)).unwrap();
    texts.run(&mut session);
    let raw = shifted(&model, &tokens_of(&model, SYSTEM), 500, 9);
    assert_eq!(texts.of(first).tokens, raw);
    let raw = Raw::text(&model, &tokens_of(&model, other), 240);
    assert_eq!(texts.of(second).tokens, raw);
    assert_eq!(texts.of(second).statistics().discarded_tokens, 0);
}

#[test]
fn what_a_shift_has_moved_is_not_taken_for_a_prompts_beginning() {
    let model = load_demo();
    let mut session = model.session().unwrap();
    let first = session.begin(shifting(&model, 400, 9)).unwrap();
    Texts::default().steps(&mut session, 300);
    let held = session.tokens(first).unwrap();
    session.end(first).unwrap();
    session.begin(greedy(&model, &*held).cache_prompt(true)).unwrap();
    let again = to_the_end(&mut session).remove(0);
    assert_eq!(again.statistics().cached_tokens, 9);
    assert_eq!(again.tokens, Raw::text(&model, &held, 24));
}

#[test]
fn a_shift_takes_no_memory_of_a_card() {
    own_process!();
    let gpu = card(mib(64));
    for (type_k, layers) in [(KvType::F16, 99), (KvType::F16, 2), (KvType::Q8_0, 99)] {
        let mut request = request(CONTEXT, 2, true).headroom(Headroom::Bytes(0));
        request.params.type_k = type_k;
        let builder = Model::builder(demo_path()).request(request).n_threads(1);
        let builder = builder.n_gpu_layers(GpuLayers::Exactly(layers));
        let model = builder.machine(loading::detect().unwrap()).load().unwrap();
        assert!(model.placement().n_gpu_layers > 0);
        let used = gpu.used();
        assert!(told(shifting(&model, 400, 3), &model).statistics().discarded_tokens > 0);
        assert_eq!(gpu.used(), used, "{type_k} {layers}");
    }
}
