//! From a prompt to text: through the public API, on the demo model.

use crate::native_support::{demo_path, load_demo};
use autoplace::Model;
use autoplace::generate::{Error, FinishReason, Sampling};
use autoplace::llama_sys::{self, Batch, Context, ContextParams, Sampler};
use autoplace::plan;

const PROMPT: &str = "And the king said unto his servants,";

#[test]
fn greedy_text_equals_a_plain_llama_cpp_loops() {
    let model = load_demo();
    let text = model
        .generate(PROMPT)
        .temperature(0.0)
        .max_tokens(40)
        .text()
        .unwrap();

    let native = &model.native().unwrap();
    let mut context = Context::new(
        native,
        ContextParams {
            n_threads: Some(1),
            ..ContextParams::default()
        },
    )
    .unwrap();
    let mut sampler = Sampler::chain(native).unwrap().greedy().unwrap();
    let vocab = native.vocab();
    let mut batch = Batch::default();
    let prompt = vocab.tokenize(PROMPT, true, false).unwrap();
    for (position, &token) in prompt.iter().enumerate() {
        batch.add(token, position as i32, 0, position + 1 == prompt.len());
    }
    let mut bytes = Vec::new();
    for position in (prompt.len() as i32..).take(40) {
        context.decode(&batch).unwrap();
        let token = sampler.sample(&mut context, -1).unwrap();
        if vocab.is_eog(token) {
            break;
        }
        vocab.append_piece(token, false, &mut bytes).unwrap();
        batch.clear();
        batch.add(token, position, 0, true);
    }
    assert_eq!(text, String::from_utf8_lossy(&bytes));
}

#[test]
fn the_same_seed_gives_the_same_text_and_another_seed_another() {
    let model = load_demo();
    let text = |seed| {
        model
            .generate(PROMPT)
            .seed(seed)
            .temperature(1.0)
            .max_tokens(30)
            .text()
            .unwrap()
    };
    assert_eq!(text(7), text(7));
    assert_ne!(text(7), text(8));
}

#[test]
fn a_drawn_seed_can_be_read_and_used_again() {
    let model = load_demo();
    let (text, stats) = model
        .generate(PROMPT)
        .max_tokens(20)
        .stream()
        .unwrap()
        .into_text()
        .unwrap();
    let seed = stats.seed.expect("something was left to chance");
    assert_eq!(
        model
            .generate(PROMPT)
            .max_tokens(20)
            .seed(seed)
            .text()
            .unwrap(),
        text
    );
    let greedy = model
        .generate(PROMPT)
        .sampling(Sampling::greedy())
        .max_tokens(1)
        .stream()
        .unwrap();
    assert_eq!(greedy.statistics().seed, None);
}

#[test]
fn statistics_count_what_was_done() {
    let model = load_demo();
    let mut stream = model
        .generate(PROMPT)
        .temperature(0.0)
        .max_tokens(12)
        .stream()
        .unwrap();
    assert_eq!(stream.statistics().first_token_latency, None);
    while stream.next().is_some() {}
    let stats = stream.statistics();
    assert_eq!(
        stats.prompt_tokens,
        model
            .native()
            .unwrap()
            .vocab()
            .tokenize(PROMPT, true, false)
            .unwrap()
            .len()
    );
    assert_eq!(stats.generated_tokens, 12);
    assert_eq!(stream.finish_reason(), Some(FinishReason::MaxTokens));
    assert!(stats.prompt_tokens_per_second() > 0.0 && stats.tokens_per_second() > 0.0);
    assert!(stats.first_token_latency.unwrap() >= stats.prompt_time);
}

#[test]
fn a_stop_string_ends_the_text_before_it() {
    let model = load_demo();
    let whole = model
        .generate(PROMPT)
        .temperature(0.0)
        .max_tokens(60)
        .text()
        .unwrap();
    let stop = whole.split_whitespace().nth(5).unwrap();
    let mut stream = model
        .generate(PROMPT)
        .temperature(0.0)
        .max_tokens(60)
        .stop(stop)
        .stream()
        .unwrap();
    let text: String = stream.by_ref().map(Result::unwrap).collect();
    assert_eq!(stream.finish_reason(), Some(FinishReason::StopString));
    assert_eq!(text, whole.split(stop).next().unwrap());
}

#[test]
fn a_full_context_ends_the_stream_and_says_so() {
    let model = Model::builder(demo_path())
        .context(plan::Context::Tokens(256))
        .threads(1)
        .load()
        .unwrap();
    // Never let it end by itself: the penalty keeps it moving, and end tokens are rare in a greedy run.
    let mut stream = model.generate(PROMPT).temperature(0.0).stream().unwrap();
    while stream.next().is_some() {}
    match stream.finish_reason() {
        Some(FinishReason::ContextFull) => {
            let stats = stream.statistics();
            // The last token is chosen and needs no place any more.
            assert_eq!(stats.prompt_tokens + stats.generated_tokens, 256 + 1);
        }
        other => assert_eq!(other, Some(FinishReason::EndOfGeneration)),
    }
}

#[test]
fn a_prompt_as_long_as_the_context_is_refused_and_one_shorter_is_not() {
    let model = Model::builder(demo_path())
        .context(plan::Context::Tokens(256))
        .threads(1)
        .load()
        .unwrap();
    let vocab = model.native().unwrap().vocab();
    let mut prompt = String::from("and");
    while vocab.tokenize(&prompt, true, false).unwrap().len() < 256 {
        prompt.push_str(" and");
    }
    match model.generate(&prompt).stream() {
        Err(Error::PromptTooLong {
            tokens: 256,
            context: 256,
        }) => {}
        other => panic!("{other:?}"),
    }
    let shorter = prompt.strip_suffix(" and").unwrap();
    assert_eq!(vocab.tokenize(shorter, true, false).unwrap().len(), 255);
    // The refusal gave the context back; prompts longer than a batch of 512 are computed in parts.
    let text = model.generate(shorter).temperature(0.0).text().unwrap();
    assert!(!text.is_empty());
}

#[test]
fn a_context_that_llama_cpp_rounds_up_is_as_long_as_was_asked() {
    let model = Model::builder(demo_path())
        .context(plan::Context::Tokens(100))
        .threads(1)
        .load()
        .unwrap();
    let mut stream = model.generate(PROMPT).seed(5).stream().unwrap();
    while stream.next().is_some() {}
    let stats = stream.statistics();
    assert!(
        stats.prompt_tokens + stats.generated_tokens <= 101,
        "{stats}"
    );
}

#[test]
fn an_abort_after_the_end_does_not_reach_the_next_generation() {
    let model = load_demo();
    let mut stream = model.generate(PROMPT).max_tokens(2).stream().unwrap();
    while stream.next().is_some() {}
    let late = stream.abort_handle();
    drop(stream);
    late.abort();
    model.generate(PROMPT).max_tokens(2).text().unwrap();
}

#[test]
fn a_prompt_in_parts_gives_the_same_text_as_in_one() {
    let mut request = plan::Request::new();
    request = request.n_batch(7).n_ubatch(3);
    let parts = Model::builder(demo_path())
        .request(request)
        .threads(1)
        .load()
        .unwrap();
    let whole = load_demo();
    let long = PROMPT.repeat(4);
    let text = |model: &Model| {
        model
            .generate(&long)
            .temperature(0.0)
            .max_tokens(20)
            .text()
            .unwrap()
    };
    assert_eq!(text(&parts), text(&whole));
}

#[test]
fn an_empty_prompt_begins_a_text() {
    let text = load_demo()
        .generate("")
        .temperature(0.0)
        .max_tokens(5)
        .text()
        .unwrap();
    assert!(!text.trim().is_empty());
}

#[test]
fn no_tokens_asked_for_are_no_tokens() {
    let mut stream = load_demo().generate(PROMPT).max_tokens(0).stream().unwrap();
    assert!(stream.next().is_none());
    assert_eq!(stream.finish_reason(), Some(FinishReason::MaxTokens));
}

#[test]
fn one_stream_at_a_time_and_dropping_it_frees_the_model() {
    let model = load_demo();
    let mut first = model.generate(PROMPT).stream().unwrap();
    first.next().unwrap().unwrap();
    assert!(matches!(model.generate(PROMPT).stream(), Err(Error::Busy)));
    drop(first);
    model.generate(PROMPT).max_tokens(2).text().unwrap();
}

#[test]
fn a_stream_can_be_read_on_another_thread_and_outlive_the_model() {
    let stream = load_demo()
        .generate(PROMPT)
        .temperature(0.0)
        .max_tokens(5)
        .stream()
        .unwrap();
    let text = std::thread::spawn(move || stream.map(Result::unwrap).collect::<String>())
        .join()
        .unwrap();
    assert!(!text.is_empty());
}

#[test]
fn an_aborted_stream_returns_the_error_once_and_then_ends() {
    let model = load_demo();
    let mut stream = model.generate(PROMPT).stream().unwrap();
    stream.abort_handle().abort();
    assert!(matches!(
        stream.next(),
        Some(Err(Error::Native(llama_sys::Error::Aborted)))
    ));
    assert!(stream.next().is_none());
    assert_eq!(stream.finish_reason(), Some(FinishReason::Error));
    drop(stream);
    // The next generation starts afresh.
    model.generate(PROMPT).max_tokens(2).text().unwrap();
}

#[test]
fn parameters_out_of_range_are_refused_before_anything_is_computed() {
    let model = load_demo();
    for bad in [
        model.generate(PROMPT).temperature(f32::NAN),
        model.generate(PROMPT).temperature(-0.5),
        model.generate(PROMPT).top_p(1.5),
        model.generate(PROMPT).min_p(-0.1),
        model.generate(PROMPT).repeat_penalty(0.0),
    ] {
        let error = bad.stream().unwrap_err();
        assert!(
            matches!(
                error,
                Error::Native(llama_sys::Error::InvalidParameter { .. })
            ),
            "{error:?}"
        );
    }
    assert!(matches!(
        model.generate(PROMPT).stop("").stream(),
        Err(Error::EmptyStop)
    ));
}

#[test]
fn control_tokens_in_the_prompt_are_plain_text() {
    let model = load_demo();
    let vocab = model.native().unwrap().vocab();
    let eos = vocab.eos().unwrap();
    let text = String::from_utf8(vocab.piece(eos, true).unwrap()).unwrap();
    let plain = vocab.tokenize(&text, false, false).unwrap();
    assert!(!plain.contains(&eos), "{plain:?}");
    assert_eq!(vocab.tokenize(&text, false, true).unwrap(), [eos]);
    model.generate(text).max_tokens(2).text().unwrap();
}

#[test]
fn a_repeat_penalty_changes_what_repeats() {
    let model = load_demo();
    let text = |penalty| {
        model
            .generate("and and and and")
            .temperature(0.0)
            .repeat_penalty(penalty)
            .max_tokens(40)
            .text()
            .unwrap()
    };
    assert_ne!(text(1.0), text(1.8));
}
