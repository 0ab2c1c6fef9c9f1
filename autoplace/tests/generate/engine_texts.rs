//! Texts of an engine are the texts of a raw loop, however many run at once and however prompts are cut:
//! on the demo model.

use crate::engine_support::{PROMPTS, greedy, load, request};
use autoplace::Model;
use autoplace::generate::{Answer, Engine, Error, FinishReason};
use autoplace::llama_sys::{self, Batch, ContextParams, FlashAttention, Sampler};
use autoplace::plan::Request;
use proptest::prelude::*;

const TOKENS: usize = 24;

/// What llama.cpp alone makes of a prompt: its tokens one batch, then one by one.
fn raw(model: &Model, prompt: &str) -> String {
    let native = model.native().unwrap();
    let vocab = native.vocab();
    let params = ContextParams {
        n_ctx: 512,
        flash_attention: FlashAttention::Disabled,
        n_threads: Some(1),
        n_threads_batch: Some(1),
        ..Default::default()
    };
    let mut context = llama_sys::Context::new(&native, params).unwrap();
    let mut sampler = Sampler::chain(&native).unwrap().greedy().unwrap();
    let mut batch = Batch::default();
    let tokens = vocab.tokenize(prompt, true, false).unwrap();
    for (position, token) in tokens.iter().enumerate() {
        let last = position + 1 == tokens.len();
        batch.add(*token, position as i32, 0, last);
    }
    let mut bytes = Vec::new();
    for position in tokens.len()..tokens.len() + TOKENS {
        context.decode(&batch).unwrap();
        let token = sampler.sample(&mut context, -1).unwrap();
        if vocab.is_eog(token) {
            break;
        }
        vocab.append_piece(token, false, &mut bytes).unwrap();
        batch.clear();
        batch.add(token, position as i32, 0, true);
    }
    String::from_utf8(bytes).unwrap()
}

/// The texts of all prompts at once.
fn texts(engine: &Engine, model: &Model, prompts: &[String]) -> Vec<String> {
    let submit = |prompt: &String| engine.submit(greedy(model, prompt, TOKENS)).unwrap();
    let answers: Vec<_> = prompts.iter().map(submit).collect();
    let text = |answer: Answer| answer.into_text().unwrap().0;
    answers.into_iter().map(text).collect()
}

fn prompts() -> Vec<String> {
    let long = |(index, prompt): (usize, &&str)| prompt.repeat(1 + index % 3 * 2);
    PROMPTS.iter().enumerate().map(long).collect()
}

#[test]
fn one_sequence_and_eight_give_the_texts_of_a_raw_loop() {
    let prompts = prompts();
    let alone = load(request(512, 1));
    let expected: Vec<String> = prompts.iter().map(|prompt| raw(&alone, prompt)).collect();
    for sequences in [1, 8] {
        let model = load(request(4096, sequences));
        let engine = Engine::new(&model).unwrap();
        for again in 0..2 {
            let told = texts(&engine, &model, &prompts);
            assert_eq!(told, expected, "{sequences} {again}");
        }
        let metrics = engine.metrics();
        let is_kept = metrics.cached_tokens > metrics.prompt_tokens / 3;
        assert!(is_kept || sequences == 1, "{metrics:?}");
        assert_eq!((metrics.queued, metrics.running), (0, 0));
        assert!(metrics.generated_tokens > 0);
    }
}

#[test]
fn prompts_cut_into_chunks_of_any_size_give_the_same_texts() {
    let prompts = prompts();
    let model = load(request(2048, 4));
    let expected = texts(&Engine::new(&model).unwrap(), &model, &prompts);
    for chunk in 1..=64 {
        let engine = Engine::builder(&model).prompt_chunk(chunk).start().unwrap();
        assert_eq!(
            texts(&engine, &model, &prompts),
            expected,
            "chunks of {chunk}"
        );
    }
}

#[test]
fn a_long_prompt_does_not_stall_a_text_that_runs() {
    let model = load(request(2048, 2));
    let engine = Engine::builder(&model).prompt_chunk(4).start().unwrap();
    let mut first = engine.submit(greedy(&model, PROMPTS[0], 200)).unwrap();
    first.next().unwrap().unwrap();
    let before = engine.metrics().generated_tokens;
    let long = PROMPTS.concat().repeat(4);
    let mut second = engine.submit(greedy(&model, &long, 1)).unwrap();
    second.pieces().next().unwrap().unwrap();
    // A quarter of its tokens are steps, in each of which the first got a token.
    let steps = second.statistics().prompt_tokens as u64 / 4;
    let generated = engine.metrics().generated_tokens - before;
    assert!(
        generated >= steps.min(190) && steps > 20,
        "{generated} tokens in {steps} steps"
    );
}

#[test]
fn an_answer_tells_its_pieces_its_end_and_its_statistics() {
    let model = load(request(512, 1));
    let engine = Engine::new(&model).unwrap();
    let mut answer = engine.submit(greedy(&model, PROMPTS[0], 8)).unwrap();
    assert_eq!(answer.finish_reason(), None);
    let pieces: Vec<_> = answer.pieces().map(Result::unwrap).collect();
    assert_eq!(pieces.len(), 8);
    assert!(pieces.iter().all(|piece| piece.token.is_some()));
    let end = pieces[7].end.unwrap();
    assert_eq!(end.reason, FinishReason::MaxTokens);
    assert_eq!(answer.statistics(), end.statistics);
    assert_eq!(answer.finish_reason(), Some(FinishReason::MaxTokens));
    assert!(answer.next().is_none());
    let text: String = pieces.into_iter().map(|piece| piece.text).collect();
    drop(engine);
    // A stream's pieces are the same.
    let mut stream = greedy(&model, PROMPTS[0], 8).stream().unwrap();
    let streamed: Vec<_> = stream.pieces().map(Result::unwrap).collect();
    assert_eq!(streamed.len(), 8);
    assert_eq!(
        streamed.into_iter().map(|it| it.text).collect::<String>(),
        text
    );
    assert_eq!(end.statistics.generated_tokens, 8);
}

#[test]
fn every_request_has_statistics_of_its_own() {
    let model = load(request(1024, 2));
    let vocab = model.native().unwrap().vocab();
    let engine = Engine::new(&model).unwrap();
    let asked = [(0, 40), (1, 7), (5, 21), (3, 1)];
    let submit = |(prompt, tokens): (usize, usize)| {
        let seeded = model.generate(PROMPTS[prompt]).seed(prompt as u32);
        let bias = vocab.eos().map(|eos| (eos, -1000.0));
        let seeded = bias
            .into_iter()
            .fold(seeded, |it, (eos, bias)| it.logit_bias(eos, bias));
        engine.submit(seeded.max_tokens(tokens)).unwrap()
    };
    let answers = asked.map(submit);
    let mut sums = [0; 3];
    for (at, (answer, (prompt, tokens))) in answers.into_iter().zip(asked).enumerate() {
        let (_, it) = answer.into_text().unwrap();
        let of_prompt = vocab.tokenize(PROMPTS[prompt], true, false).unwrap().len();
        assert_eq!(it.prompt_tokens, of_prompt, "{at}");
        assert_eq!(it.generated_tokens, tokens, "{at}");
        assert_eq!(it.seed, Some(prompt as u32), "{at}");
        assert!(it.cached_tokens < of_prompt, "{at}: {it}");
        assert!(
            it.first_token_latency.unwrap() >= it.prompt_time,
            "{at}: {it}"
        );
        assert_eq!(it.generation_time.is_zero(), tokens == 1, "{at}: {it}");
        // Two run, and the others wait for them.
        assert!(at < 2 || !it.queue_time.is_zero(), "{at}: {it:?}");
        let counts = [it.prompt_tokens, it.cached_tokens, it.generated_tokens];
        sums.iter_mut()
            .zip(counts)
            .for_each(|(sum, n)| *sum += n as u64);
    }
    let all = engine.metrics();
    assert_eq!(
        [all.prompt_tokens, all.cached_tokens, all.generated_tokens],
        sums
    );
}

#[test]
fn a_prompt_computes_nothing_again_unless_it_is_asked_to() {
    let model = load(request(1024, 2));
    let engine = Engine::new(&model).unwrap();
    let cached = |generate| {
        let answer = engine.submit(generate).unwrap();
        let (_, statistics) = answer.into_text().unwrap();
        (statistics.cached_tokens, statistics.prompt_tokens)
    };
    assert_eq!(cached(greedy(&model, PROMPTS[1], 2)).0, 0);
    let (again, of) = cached(greedy(&model, PROMPTS[1], 2));
    assert_eq!(again, of - 1);
    let off = greedy(&model, PROMPTS[1], 2).cache_prompt(false);
    assert_eq!(cached(off).0, 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    /// Small contexts, shared or not, and more requests than sequences: everyone gets as much text as it gets alone,
    /// and the same where every sequence has a cache of its own.
    #[test]
    fn whatever_runs_beside_a_text_it_is_the_same(
        requests in prop::collection::vec((0..PROMPTS.len(), 1usize..60), 1..12),
        sequences in 1u32..5,
        unified: bool,
        chunk in 1usize..40,
        ahead in 1usize..40,
    ) {
        let mut request = request(if unified { 192 } else { 128 * sequences }, sequences);
        request.params.kv_unified = unified;
        let model = load(request);
        let builder = Engine::builder(&model).prompt_chunk(chunk).ahead(ahead);
        let engine = builder.start().unwrap();
        let submit = |&(prompt, tokens): &(usize, usize)| {
            engine.submit(greedy(&model, PROMPTS[prompt], tokens)).unwrap()
        };
        let answers: Vec<_> = requests.iter().map(submit).collect();
        let texts: Vec<_> = answers.into_iter().map(|it| it.into_text().unwrap()).collect();
        drop(engine);
        for ((prompt, tokens), (text, statistics)) in requests.iter().zip(texts) {
            let (alone, expected) = greedy(&model, PROMPTS[*prompt], *tokens)
                .stream()
                .unwrap()
                .into_text()
                .unwrap();
            if unified {
                // Where a text lies in a shared cache depends on the others, and rounds otherwise.
                prop_assert_eq!(statistics.generated_tokens, expected.generated_tokens);
            } else {
                prop_assert_eq!(text, alone);
            }
        }
    }

    /// Without a limit, texts that share one cache outgrow it together: those that came last make room, and none is cut
    /// short by another.
    #[test]
    fn texts_without_a_limit_fill_the_context_one_after_the_other(
        prompts in prop::collection::vec(0..PROMPTS.len(), 2..6),
        sequences in 2u32..5,
    ) {
        let mut request = request(160, sequences);
        request.params.kv_unified = true;
        let model = load(request);
        let engine = Engine::new(&model).unwrap();
        let submit = |prompt: &usize| engine.submit(greedy(&model, PROMPTS[*prompt], usize::MAX)).unwrap();
        let mut answers: Vec<_> = prompts.iter().map(submit).collect();
        for answer in &mut answers {
            answer.for_each(|text| drop(text.unwrap()));
            let statistics = answer.statistics();
            let tokens = statistics.prompt_tokens + statistics.generated_tokens;
            match answer.finish_reason().unwrap() {
                // The last token needs no place.
                FinishReason::ContextFull => prop_assert_eq!(tokens, 161),
                reason => prop_assert_eq!(reason, FinishReason::EndOfGeneration),
            }
        }
    }
}

#[test]
fn a_request_is_described_for_the_engines_model() {
    let (model, other) = (load(request(512, 1)), load(Request::new()));
    let engine = Engine::new(&model).unwrap();
    let refused = engine.submit(other.generate("And")).map(drop);
    assert!(matches!(refused, Err(Error::OtherModel)), "{refused:?}");
}
