//! Log-probabilities, and samplers that an application supplies, through the public API, on the demo model.

use crate::native_support::load_demo;
use crate::text_support::{PROMPT, Raw, demo, likeliest, text, tokens_of};
use autoplace::generate::{Error, GenerateRequest, Piece};
use autoplace::llama_sys::{self, ContextParams, Token};

fn pieces(generate: GenerateRequest) -> Result<Vec<Piece>, Error> {
    generate.stream()?.pieces().collect()
}

fn tokens(pieces: &[Piece]) -> Vec<Token> {
    pieces.iter().filter_map(|piece| piece.token).collect()
}

#[test]
fn log_probabilities_are_a_softmax_over_all_logits() {
    let model = load_demo();
    let generate = model.generate(PROMPT).seed(3).top_k(5).max_tokens(12);
    let reported = pieces(generate.clone().logprobs(4)).unwrap();
    assert_eq!(tokens(&reported), tokens(&pieces(generate).unwrap()));

    let params = ContextParams { n_threads: Some(1), ..ContextParams::default() };
    let mut raw = Raw::with(&model.native().unwrap(), params);
    raw.compute(&tokens_of(&model, PROMPT));
    for piece in &reported {
        let logits: Vec<f64> = raw.context().logits(-1).unwrap().iter().map(|logit| f64::from(*logit)).collect();
        let sum: f64 = logits.iter().map(|logit| logit.exp()).sum();
        let logprobs = piece.logprobs.as_ref().unwrap();
        assert_eq!(Some(logprobs.token), piece.token);
        for &(token, logprob) in [(logprobs.token, logprobs.logprob)].iter().chain(&logprobs.top) {
            let expected = (logits[token as usize].exp() / sum).ln();
            assert!((f64::from(logprob) - expected).abs() < 1e-4, "{logprob} {expected}");
        }
        let mut sorted = logits.clone();
        sorted.sort_by(|a, b| b.total_cmp(a));
        assert_eq!(logprobs.top.iter().map(|token| logits[token.0 as usize]).collect::<Vec<_>>(), sorted[..4]);
        raw.compute(&[logprobs.token]);
    }
}

#[test]
fn log_probabilities_are_reported_on_request_and_up_to_a_limit() {
    let generate = load_demo().generate(PROMPT).max_tokens(2);
    assert!(pieces(generate.clone()).unwrap().iter().all(|piece| piece.logprobs.is_none()));
    let chosen = pieces(generate.clone().logprobs(0)).unwrap();
    let is_alone = |piece: &Piece| piece.logprobs.as_ref().is_some_and(|logprobs| logprobs.top.is_empty());
    assert!(chosen.iter().all(is_alone));
    assert_matches!(pieces(generate.logprobs(129)), Err(Error::TooManyLogprobs { asked: 129, most: 128 }));
}

#[test]
fn a_closure_that_takes_the_likeliest_or_what_is_selected_changes_nothing() {
    let model = load_demo();
    let greedy = model.generate(PROMPT).temp(0.0).max_tokens(20);
    let own = model.generate(PROMPT).samplers([]).seed(1).sampler(likeliest);
    assert_eq!(text(own.max_tokens(20)), text(greedy));
    let seeded = model.generate(PROMPT).seed(6).repeat_penalty(1.3).max_tokens(20);
    let own = seeded.clone().sampler(|candidates, _| {
        assert!(candidates.len() <= 40);
        candidates.selected().unwrap().token()
    });
    assert_eq!(text(own), text(seeded));
}

#[test]
fn a_closure_sees_the_tokens_so_far_and_each_text_has_its_own() {
    let model = load_demo();
    let prompt = tokens_of(&model, PROMPT);
    let mut calls = 0;
    let forced: Vec<Token> = (10..20).collect();
    let generate = model.generate(PROMPT).max_tokens(5).sampler(move |_, so_far| {
        assert_eq!(so_far[..prompt.len()], prompt);
        assert_eq!(so_far.len(), prompt.len() + calls);
        calls += 1;
        forced[calls]
    });
    for _ in 0..2 {
        let pieces = pieces(generate.clone()).unwrap();
        assert_eq!(tokens(&pieces), [11, 12, 13, 14, 15]);
    }
}

#[test]
fn a_text_whose_token_cannot_be_chosen_ends_and_the_others_miss_nothing() {
    let model = demo(3 * 512, 3, false);
    let fails_at_5 = |bad: Token| {
        let mut left = 5;
        model.generate(PROMPT).sampler(move |candidates, so_far| {
            left -= 1;
            if left == 0 { bad } else { likeliest(candidates, so_far) }
        })
    };
    // The other text ends long before the two failures, at the same time, or later.
    for tokens in [1, 5, 12] {
        let mut session = model.session().unwrap();
        let other = session.begin(model.generate(PROMPT).max_tokens(tokens)).unwrap();
        let failing = [-1, i32::MAX].map(|bad| session.begin(fails_at_5(bad)).unwrap());
        let (mut failed, mut received) = (Vec::new(), Vec::new());
        while !session.is_empty() {
            match session.step().map(|pieces| received.extend(pieces.map(|piece| piece.sequence))) {
                Ok(()) => {}
                Err(Error::Native(llama_sys::Error::InvalidParameter { name: "token", .. })) => {
                    failed.extend(session.failed());
                }
                Err(error) => panic!("{error}"),
            }
        }
        failed.sort_unstable();
        assert_eq!(failed, failing);
        let count = |id| received.iter().filter(|sequence| **sequence == id).count();
        assert_eq!(count(other), tokens);
        // The tokens before the failure are reported.
        assert_eq!(failing.map(count), [4, 4]);
        assert_eq!((session.step().unwrap().count(), session.failed()), (0, None));
    }
}

#[test]
fn a_closure_that_panics_leaves_a_model_that_works() {
    let model = load_demo();
    let plain = || model.generate(PROMPT).temp(0.0).max_tokens(12);
    let expected = plain().text().unwrap();
    for after in [0, 1, 5] {
        let mut calls = 0;
        let mut stream = model
            .generate(PROMPT)
            .sampler(move |candidates, so_far| {
                calls += 1;
                assert!(calls <= after, "an application's own mistake");
                likeliest(candidates, so_far)
            })
            .stream()
            .unwrap();
        let read = std::panic::AssertUnwindSafe(|| stream.by_ref().for_each(drop));
        assert!(std::panic::catch_unwind(read).is_err());
        drop(stream);
        assert_eq!(plain().text().unwrap(), expected, "after {after}");
        assert_eq!(plain().cache_prompt(true).text().unwrap(), expected);
    }
}
