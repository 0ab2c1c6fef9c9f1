//! Streams and sessions on the demo model. The behaviour that all front ends share is tested in `front_ends.rs`.

use crate::native_support::load_demo;
use crate::text_support::{
    PROMPT, Raw, Texts, complete, demo, greedy, load, text, text_and_statistics, to_the_end, tokens_of,
};
use autoplace::generate::{Engine, Error, FinishReason, Sampling};
use autoplace::llama_sys::ContextParams;
use autoplace::plan::Request;
use test_support::demo_path;

#[test]
fn greedy_text_of_a_model_loaded_by_default_equals_a_plain_llama_cpp_loops() {
    let model = load_demo();
    let params = ContextParams { n_threads: Some(1), ..ContextParams::default() };
    let raw = Raw::with(&model.native().unwrap(), params);
    let raw = raw.go_on(&tokens_of(&model, PROMPT), 40);
    assert_eq!(complete(greedy(&model, PROMPT).max_tokens(40), &model).tokens, raw);
}

#[test]
fn a_drawn_seed_can_be_read_and_used_again() {
    let generate = load_demo().generate(PROMPT).max_tokens(20);
    let (drawn, statistics) = text_and_statistics(generate.clone());
    let seed = statistics.seed.expect("something was left to chance");
    assert_eq!(text(generate.clone().seed(seed)), drawn);
    assert_eq!(generate.sampling(Sampling::greedy()).stream().unwrap().statistics().seed, None);
}

#[test]
fn a_text_after_nothing_can_be_read_on_another_thread_and_outlive_the_model() {
    let stream = greedy(&load_demo(), "").stream().unwrap();
    let read = std::thread::spawn(move || stream.into_text().unwrap().0);
    assert!(!read.join().unwrap().trim().is_empty());
}

#[test]
fn the_tokens_of_a_text_are_that_text_again_and_a_continuation_keeps_its_space() {
    let model = load_demo();
    for text in [PROMPT, "Once", " led by a space", "two  spaces\nand a line", "naïve ☃", ""] {
        let tokens = model.tokenize(text).unwrap();
        assert_eq!(model.detokenize(&tokens).unwrap(), text, "{tokens:?}");
    }
    let (text, whole) = ("And the king said", model.tokenize("And the king said").unwrap());
    // After the BOS token, the text can be divided at any token, and stays the same.
    for at in 2..whole.len() {
        let parts = [&whole[..at], &whole[at..]].map(|tokens| model.detokenize(tokens).unwrap());
        assert_eq!(parts.concat(), text, "{at}");
    }
    assert_matches!(model.detokenize(&[-1]), Err(Error::Native(_)));
    assert_eq!(model.detokenize(&[]).unwrap(), "");
}

#[test]
fn a_text_that_a_limit_has_cut_says_so() {
    let model = load_demo();
    let (_, cut) = text_and_statistics(greedy(&model, PROMPT).max_tokens(5));
    assert_eq!(cut.finish_reason, Some(FinishReason::MaxTokens));
    assert!(cut.to_string().ends_with("max_tokens ended the text"), "{cut}");
    let mut stream = greedy(&model, PROMPT).max_tokens(50).stream().unwrap();
    stream.next().unwrap().unwrap();
    assert_eq!(stream.statistics().finish_reason, None);
    stream.abort_handle().abort();
    assert_eq!(stream.into_text().unwrap().1.finish_reason, Some(FinishReason::Aborted));
}

#[test]
fn the_context_is_lent_to_one_session_stream_or_engine_of_its_own_model() {
    let (model, other) = (load_demo(), load_demo());
    let mut session = model.session().unwrap();
    assert_matches!(model.session().map(drop), Err(Error::Busy));
    assert_matches!(model.generate(PROMPT).stream(), Err(Error::Busy));
    assert_matches!(Engine::new(&model).map(drop), Err(Error::Busy));
    assert_matches!(session.begin(other.generate(PROMPT)), Err(Error::OtherModel));
    assert!(session.step().unwrap().next().is_none());
    drop(session);
    let mut stream = model.generate(PROMPT).stream().unwrap();
    stream.next().unwrap().unwrap();
    assert_matches!(model.session().map(drop), Err(Error::Busy));
    drop(stream);
    let engine = Engine::new(&model).unwrap();
    assert_matches!(model.session().map(drop), Err(Error::Busy));
    assert_matches!(engine.submit(other.generate(PROMPT)), Err(Error::OtherModel));
    drop(engine);
    model.session().unwrap();
}

#[test]
fn texts_run_side_by_side_and_each_ends_by_itself() {
    let model = load(&demo_path(), Request::new().n_seq_max(3));
    let mut session = model.session().unwrap();
    assert_eq!(session.n_seq_max(), 3);
    for tokens in [4, 0, 12] {
        session.begin(greedy(&model, PROMPT).max_tokens(tokens)).unwrap();
    }
    assert_matches!(session.begin(greedy(&model, PROMPT)), Err(Error::SequencesBusy { n_seq_max: 3 }));
    let ended = to_the_end(&mut session);
    for (completion, tokens) in ended.iter().zip([4, 0, 12]) {
        assert_eq!(completion.end.unwrap().reason, FinishReason::MaxTokens);
        assert_eq!(completion.statistics().generated_tokens, tokens);
        assert!(ended[2].text.starts_with(&completion.text));
    }
}

#[test]
fn a_text_joins_those_that_run_and_leaves_them() {
    let request = Request::new().n_seq_max(2).n_batch(16).n_ubatch(8);
    let model = load(&demo_path(), request);
    let mut session = model.session().unwrap();
    let long = model.generate(PROMPT.repeat(3)).max_tokens(5);
    let first = session.begin(model.generate(PROMPT).seed(1)).unwrap();
    let mut texts = Texts::default();
    (0..4).for_each(|_| texts.step(&mut session));
    let second = session.begin(long.clone()).unwrap();
    // While the parts of a long prompt are computed, the other text continues.
    let of_both: Vec<_> = session.step().unwrap().map(|piece| piece.sequence).collect();
    assert_eq!(of_both, [first]);
    assert_eq!(session.end(first).unwrap().generated_tokens, texts.of(first).tokens.len() + 1);
    assert!(session.end(first).is_none());
    assert!(session.statistics(first).is_none());
    // A text has ended, so its place is free.
    let third = session.begin(long).unwrap();
    assert!(third > second && session.len() == 2);
}

#[test]
fn texts_that_share_a_cache_end_when_it_is_full() {
    let model = demo(256, 2, true);
    let mut session = model.session().unwrap();
    for seed in [1, 2] {
        session.begin(model.generate(PROMPT).seed(seed)).unwrap();
    }
    let (mut room, mut full) = (256 + 2, 0);
    for completion in to_the_end(&mut session) {
        full += usize::from(completion.end.unwrap().reason == FinishReason::ContextFull);
        let statistics = completion.statistics();
        room -= statistics.prompt_tokens + statistics.generated_tokens;
    }
    // Both texts together fill the cache, unless one of them ends by itself.
    assert!(full < 2 || room <= 2, "{room} places are left");
}
