//! The texts of an engine are the same as in a bare loop, whatever the number of texts that run at once. The model is
//! the demo model.

use crate::text_support::{
    PROMPTS, Raw, answered, demo, greedy, likeliest, load, request, text, text_and_statistics, tokens_of, words,
};
use autoplace::generate::{Engine, Error, FinishReason, Metrics, Speculation};
use autoplace::llama_sys;
use proptest::prelude::*;
use test_support::demo_path;

#[test]
fn one_sequence_and_eight_give_the_texts_of_a_raw_loop() {
    let long = |(index, prompt): (usize, &&str)| prompt.repeat(1 + index % 3 * 2);
    let prompts: Vec<String> = PROMPTS.iter().enumerate().map(long).collect();
    let alone = demo(512, 1, false);
    let raw = |prompt: &String| Raw::text(&alone, &tokens_of(&alone, prompt), 24);
    let expected: Vec<_> = prompts.iter().map(raw).collect();
    for sequences in [1, 8] {
        let model = demo(4096, sequences, false);
        let engine = Engine::new(&model).unwrap();
        for again in 0..2 {
            let submit = |prompt: &String| engine.submit(greedy(&model, &**prompt)).unwrap();
            let answers: Vec<_> = prompts.iter().map(submit).collect();
            let tokens: Vec<_> = answers.into_iter().map(|answer| answered(answer).tokens).collect();
            assert_eq!(tokens, expected, "{sequences} {again}");
        }
        let metrics = engine.metrics();
        let is_kept = metrics.cached_tokens > metrics.prompt_tokens / 3;
        assert!(is_kept || sequences == 1, "{metrics:?}");
        assert_eq!((metrics.queued, metrics.running), (0, 0));
        assert!(metrics.generated_tokens > 0);
    }
}

#[test]
fn every_request_has_statistics_of_its_own() {
    let model = demo(1024, 2, false);
    let eos = model.native().unwrap().vocab().eos().unwrap();
    let engine = Engine::new(&model).unwrap();
    let asked = [(0, 40), (1, 7), (5, 21), (3, 1)];
    let answers = asked.map(|(prompt, tokens)| {
        let seeded = model.generate(PROMPTS[prompt]).seed(prompt as u32);
        let endless = seeded.logit_bias(eos, -1000.0).max_tokens(tokens);
        engine.submit(endless).unwrap()
    });
    let mut sums = [0; 3];
    for (at, (answer, (prompt, tokens))) in answers.into_iter().zip(asked).enumerate() {
        let (_, statistics) = answer.into_text().unwrap();
        let of_prompt = tokens_of(&model, PROMPTS[prompt]).len();
        assert_eq!((statistics.prompt_tokens, statistics.generated_tokens), (of_prompt, tokens), "{at}");
        assert_eq!(statistics.seed, Some(prompt as u32), "{at}");
        assert!(statistics.cached_tokens < of_prompt, "{at}: {statistics}");
        assert!(statistics.first_token_latency.unwrap() >= statistics.prompt_time, "{at}: {statistics}");
        assert_eq!(statistics.generation_time.is_zero(), tokens == 1, "{at}: {statistics}");
        // Two texts run, and each of the other texts waits until a running text has ended.
        assert!(at < 2 || !statistics.queue_time.is_zero(), "{at}: {statistics:?}");
        let counts = [statistics.prompt_tokens, statistics.cached_tokens, statistics.generated_tokens];
        sums.iter_mut().zip(counts).for_each(|(sum, n)| *sum += n as u64);
    }
    let all = engine.metrics();
    let counted = [all.prompt_tokens, all.cached_tokens, all.generated_tokens];
    assert_eq!(counted, sums);
}

#[test]
fn a_common_beginning_is_computed_once_unless_reuse_is_off() {
    let prompt = words(1, 300);
    let other = [&prompt[..200], &words(2, 20)].concat();
    for unified in [false, true] {
        let model = demo(4096, 4, unified);
        let engine = Engine::new(&model).unwrap();
        let submit = |prompt: &Vec<_>| engine.submit(greedy(&model, &prompt[..]).max_tokens(4)).unwrap();
        drop([&prompt, &prompt, &other, &prompt].map(submit).map(answered));
        let Metrics { prompt_tokens, cached_tokens, .. } = engine.metrics();
        // The 300 tokens of the first prompt and the 20 other tokens are computed once. For each later prompt, the
        // engine computes again fewer than 64 tokens.
        assert!(prompt_tokens - cached_tokens < 300 + 20 + 3 * 64, "unified: {unified}, {cached_tokens}");
        for (reuse, cached) in [(true, 299), (false, 0)] {
            let again = engine.submit(greedy(&model, &prompt[..]).cache_prompt(reuse)).unwrap();
            assert_eq!(answered(again).statistics().cached_tokens, cached);
        }
    }
}

#[test]
fn a_text_whose_token_cannot_be_chosen_ends_and_no_other() {
    let model = demo(1024, 2, false);
    let expected = text(greedy(&model, PROMPTS[0]));
    let engine = Engine::new(&model).unwrap();
    let other = engine.submit(greedy(&model, PROMPTS[0])).unwrap();
    let mut left = 6;
    let failing = greedy(&model, PROMPTS[1]).sampler(move |candidates, so_far| {
        left -= 1;
        if left == 0 { -1 } else { likeliest(candidates, so_far) }
    });
    let mut failing = engine.submit(failing).unwrap();
    let pieces: Vec<_> = failing.pieces().collect();
    assert_eq!(pieces.len(), 6);
    let native = pieces.into_iter().next_back().unwrap().unwrap_err();
    assert_matches!(native, Error::Native(llama_sys::Error::InvalidParameter { name: "token", .. }));
    assert_eq!(failing.finish_reason(), Some(FinishReason::Error));
    assert_eq!(other.into_text().unwrap().0, expected);
    drop(failing);
    assert_eq!(engine.metrics().running, 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]

    /// The contexts are small. Some have a shared cache, and there are more requests than sequences. Each text is as
    /// long as if it were alone. If every sequence has a cache of its own, the text is also the same.
    #[test]
    fn a_text_is_the_same_beside_any_other_texts(
        requests in prop::collection::vec((0..PROMPTS.len(), 1usize..60), 1..12),
        sequences in 1u32..5,
        unified: bool,
        chunk in 1usize..40,
        ahead in 1usize..40,
    ) {
        let model = demo(if unified { 192 } else { 128 * sequences }, sequences, unified);
        let engine = Engine::builder(&model).prompt_chunk(chunk).ahead(ahead).start().unwrap();
        let of = |&(prompt, n): &(usize, usize)| greedy(&model, PROMPTS[prompt]).max_tokens(n);
        let submit = |request| engine.submit(of(request)).unwrap();
        let answers: Vec<_> = requests.iter().map(submit).collect();
        let texts: Vec<_> = answers.into_iter().map(|answer| answer.into_text().unwrap()).collect();
        drop(engine);
        for (request, (text, statistics)) in requests.iter().zip(texts) {
            let (alone, expected) = text_and_statistics(of(request));
            if unified {
                // In a shared cache, the other texts determine in which cells a text lies. In other cells, rounding is
                // different.
                prop_assert_eq!(statistics.generated_tokens, expected.generated_tokens);
            } else {
                prop_assert_eq!(text, alone);
            }
        }
    }

    /// Texts without a limit together fill the cache that they share. The newest texts are suspended, and no text cuts
    /// another one short.
    #[test]
    fn texts_without_a_limit_fill_the_context_one_after_the_other(
        prompts in prop::collection::vec(0..PROMPTS.len(), 2..6),
        sequences in 2u32..5,
    ) {
        let model = load(&demo_path(), request(160, sequences, true).draft_max(8));
        let engine = Engine::new(&model).unwrap();
        let endless = |prompt: &usize| {
            greedy(&model, PROMPTS[*prompt]).max_tokens(usize::MAX).speculate(Speculation::prompt_lookup())
        };
        let submit = |prompt| engine.submit(endless(prompt)).unwrap();
        let mut answers: Vec<_> = prompts.iter().map(submit).collect();
        for answer in &mut answers {
            answer.for_each(|text| drop(text.unwrap()));
            let statistics = answer.statistics();
            let tokens = statistics.prompt_tokens + statistics.generated_tokens;
            match answer.finish_reason().unwrap() {
                // The last token needs no cell of the cache.
                FinishReason::ContextFull => prop_assert_eq!(tokens, 161),
                reason => prop_assert_eq!(reason, FinishReason::EndOfGeneration),
            }
        }
    }
}
