//! What happens when a full context shifts, through the public API, compared with llama.cpp's own shift.

use std::path::Path;

use crate::text_support::{
    PROMPTS, Raw, SYSTEM, Texts, answered, complete, demo, greedy, in_worker, load, random, request, small, to_the_end,
    tokens_of,
};
use autoplace::Model;
use autoplace::generate::{Engine, Error, FinishReason, GenerateRequest, WhenFull};
use autoplace::llama_sys::Token;
use autoplace::memory::{FlashAttention, KvType};
use test_support::demo_path;

const CONTEXT: u32 = 256;

/// A text that does not end by itself.
fn shifting(model: &Model, n: usize, keep: usize) -> GenerateRequest {
    greedy(model, SYSTEM).max_tokens(n).when_full(WhenFull::Shift { keep })
}

/// The `n` tokens that follow a prompt in llama.cpp's own loop, with a context of 256 tokens. When the context is full,
/// half of the tokens after the first `keep` are discarded.
fn shifted(model: &Model, prompt: &[Token], n: usize, keep: usize) -> Vec<Token> {
    let native = &model.native().unwrap();
    let mut raw = Raw::new(native, CONTEXT);
    let (mut held, mut tokens) = (prompt.len(), Vec::new());
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
    let model = demo(CONTEXT, 1, false);
    let there = in_worker(&demo_path(), request(CONTEXT, 1, false));
    let prompt = tokens_of(&model, SYSTEM);
    for (keep, kept) in [(0, 1), (9, 9), (usize::MAX, prompt.len())] {
        let text = complete(shifting(&model, 600, keep), &model);
        assert_eq!(text.tokens, shifted(&model, &prompt, 600, kept), "{keep:?}");
        assert_eq!(text.end.unwrap().reason, FinishReason::MaxTokens, "{keep:?}");
        let statistics = text.statistics();
        assert!(statistics.generated_tokens == 600 && statistics.discarded_tokens > 300, "{statistics:?}");
        assert_eq!(shifting(&there, 600, keep).text().unwrap(), text.text, "in a worker, {keep:?}");
    }
}

#[test]
fn a_memory_that_cannot_shift_says_why_when_the_text_begins() {
    let refused = |model: &Model| match shifting(model, 400, 5).stream().map(drop) {
        Err(Error::CannotShift { reason }) => reason.to_lowercase(),
        other => panic!("{other:?}"),
    };
    let f16 = request(CONTEXT, 1, false);
    let mut q8_0 = f16.clone();
    q8_0.params.type_k = KvType::Q8_0;
    let keys = refused(&load(&demo_path(), q8_0));
    assert!(keys.contains("keys of q8_0"), "{keys}");
    assert!(refused(&load(&demo_path(), f16.clone().n_batch(8).n_ubatch(2))).contains("`n_ubatch` of at least 4"));
    let folder = tempfile::tempdir().unwrap();
    // The context is longer than the cache of a window. A cache as long as the context would contain all tokens.
    let of = |arch: &str| small(&random(arch, None, folder.path()), request(4 * CONTEXT, 1, false), 0);
    for (arch, expected) in [("mamba2", "recurrent"), ("jamba", "recurrent"), ("gpt-oss", "swa_full")] {
        assert!(refused(&of(arch)).contains(expected), "{arch}");
    }
    // `keep` has the size of the whole context.
    let model = demo(CONTEXT, 1, false);
    let long = &tokens_of(&model, &SYSTEM.repeat(20))[..CONTEXT as usize - 1];
    let kept = greedy(&model, long).when_full(WhenFull::Shift { keep: usize::MAX });
    assert_matches!(kept.stream().map(drop), Err(Error::CannotShift { .. }));
    // In an engine, this error ends the text.
    let model = of("mamba2");
    let engine = Engine::new(&model).unwrap();
    let answer = engine.submit(shifting(&model, 10, 0)).unwrap().into_text();
    assert!(matches!(answer, Err(Error::CannotShift { .. })), "{answer:?}");
    let windows_in_full = |path: &Path| {
        let mut request = request(CONTEXT, 1, false);
        request.params.flash_attn = FlashAttention::Off;
        request.params.swa_full = true;
        load(path, request)
    };
    let model = windows_in_full(&random("gpt-oss", None, folder.path()));
    let text = complete(shifting(&model, 400, 5).ignore_eos(), &model);
    assert_eq!(text.statistics().generated_tokens, 400);
}

#[test]
fn a_text_that_shares_its_cells_leaves_them_where_they_are() {
    let model = demo(CONTEXT, 2, true);
    let prompt = tokens_of(&model, SYSTEM);
    let mut session = model.session().unwrap();
    let mut texts = Texts::default();
    let first = session.begin(shifting(&model, 400, 4)).unwrap();
    texts.generate_to(&mut session, first, 80);
    let so_far = session.tokens(first).unwrap();
    let second = greedy(&model, so_far).max_tokens(86).when_full(WhenFull::Shift { keep: 4 });
    let second = session.begin(second.cache_prompt(true)).unwrap();
    let mut most = 0;
    while session.statistics(second).is_some() {
        texts.step(&mut session);
        let discarded = session.statistics(first).unwrap().discarded_tokens;
        if discarded > 0 && most == 0 {
            // The shift discards all cells that are shared, and half of the others.
            most = discarded;
            assert!(most > prompt.len() + 75, "{most}");
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
    texts.generate_to(&mut session, first, 100);
    let second = session.begin(greedy(&model, other).max_tokens(240)).unwrap();
    texts.run(&mut session);
    assert_eq!(texts.of(first).tokens, shifted(&model, &tokens_of(&model, SYSTEM), 500, 9));
    assert_eq!(texts.of(second).tokens, Raw::text(&model, &tokens_of(&model, other), 240));
    assert_eq!(texts.of(second).statistics().discarded_tokens, 0);
}

#[test]
fn a_shifted_text_is_no_beginning_of_another_and_is_neither_forked_nor_rolled_back() {
    let model = demo(CONTEXT, 1, false);
    let mut session = model.session().unwrap();
    let first = session.begin(shifting(&model, 400, 9)).unwrap();
    Texts::default().generate_to(&mut session, first, 300);
    assert!(matches!(session.can_roll_back(first), Err(Error::ShiftedOut { .. })));
    assert!(matches!(session.roll_back(first, 1), Err(Error::ShiftedOut { .. })));
    let held = session.tokens(first).unwrap();
    session.end(first).unwrap();
    session.begin(greedy(&model, &*held).cache_prompt(true)).unwrap();
    let again = to_the_end(&mut session).remove(0);
    assert_eq!(again.statistics().cached_tokens, 9);
    assert_eq!(again.tokens, Raw::text(&model, &held, 24));
}

#[test]
fn texts_of_an_engine_shift_in_one_cache_and_all_come_to_their_ends() {
    let model = demo(128, 3, true);
    let engine = Engine::new(&model).unwrap();
    let answers = [0, 1, 2, 3].map(|prompt| {
        let generate = greedy(&model, PROMPTS[prompt]).max_tokens(200).when_full(WhenFull::Shift { keep: 0 });
        engine.submit(generate).unwrap()
    });
    for answer in answers.map(answered) {
        let statistics = answer.statistics();
        assert!(statistics.generated_tokens == 200 && statistics.discarded_tokens > 0, "{statistics:?}");
    }
}

#[test]
fn a_shifting_text_is_re_placed_and_goes_on() {
    let model = demo(CONTEXT, 1, false);
    let expected = complete(shifting(&model, 500, 9), &model);
    let mut session = model.session().unwrap();
    let mut texts = Texts::default();
    let text = session.begin(shifting(&model, 500, 9)).unwrap();
    for tokens in [100, 300, 420] {
        texts.generate_to(&mut session, text, tokens);
        session.replace(None).unwrap();
    }
    texts.run(&mut session);
    // The shift has changed the order of the cells. In the new context they are in another order, so sums are rounded
    // in another way.
    assert_eq!(texts.of(text).tokens[..300], expected.tokens[..300]);
    let end = texts.of(text).end.unwrap();
    assert_eq!((end.reason, end.statistics.generated_tokens), (FinishReason::MaxTokens, 500));
    assert_eq!(end.statistics.discarded_tokens, expected.statistics().discarded_tokens);
}
