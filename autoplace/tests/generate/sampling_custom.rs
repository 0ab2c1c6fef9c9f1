//! Log-probabilities, and samplers of an application's own: through the public API, on the demo model.

use crate::native_support::{demo_path, load_demo};
use autoplace::Model;
use autoplace::generate::{Error, Generate, Piece, SequenceId};
use autoplace::llama_sys::{self, Batch, Candidate, Candidates, Context, ContextParams, Token};
use autoplace::plan::Request;

const PROMPT: &str = "And the king said unto his servants,";

fn pieces(model: &Model, generate: Generate) -> Result<Vec<Piece>, Error> {
    let mut session = model.session()?;
    session.begin(generate)?;
    let mut pieces = Vec::new();
    while !session.is_empty() {
        pieces.extend(session.step()?);
    }
    Ok(pieces)
}

fn tokens(pieces: &[Piece]) -> Vec<Token> {
    pieces.iter().filter_map(|piece| piece.token).collect()
}

fn likeliest(candidates: &mut Candidates, _: &[Token]) -> Token {
    let likeliest = candidates
        .iter()
        .max_by(|a, b| a.logit().total_cmp(&b.logit()));
    likeliest.map_or(-1, Candidate::token)
}

#[test]
fn log_probabilities_are_a_softmax_over_all_logits() {
    let model = load_demo();
    let generate = model.generate(PROMPT).seed(3).top_k(5).max_tokens(12);
    let told = pieces(&model, generate.clone().logprobs(4)).unwrap();
    assert_eq!(tokens(&told), tokens(&pieces(&model, generate).unwrap()));

    let native = &model.native().unwrap();
    let params = ContextParams {
        n_threads: Some(1),
        ..ContextParams::default()
    };
    let mut context = Context::new(native, params).unwrap();
    let prompt = native.vocab().tokenize(PROMPT, true, false).unwrap();
    let mut batch = Batch::default();
    for (position, &token) in prompt.iter().enumerate() {
        batch.add(token, position as i32, 0, position + 1 == prompt.len());
    }
    for (position, piece) in (prompt.len() as i32..).zip(&told) {
        context.decode(&batch).unwrap();
        let logits: Vec<f64> = context
            .logits(-1)
            .unwrap()
            .iter()
            .map(|it| f64::from(*it))
            .collect();
        let sum: f64 = logits.iter().map(|logit| logit.exp()).sum();
        let close = |token: Token, logprob: f32| {
            let expected = (logits[token as usize].exp() / sum).ln();
            assert!(
                (f64::from(logprob) - expected).abs() < 1e-4,
                "{logprob} {expected}"
            );
        };
        let logprobs = piece.logprobs.as_ref().unwrap();
        assert_eq!(Some(logprobs.token), piece.token);
        close(logprobs.token, logprobs.logprob);
        for &(token, logprob) in &logprobs.top {
            close(token, logprob);
        }
        let mut sorted = logits.clone();
        sorted.sort_by(|a, b| b.total_cmp(a));
        let top: Vec<f64> = logprobs
            .top
            .iter()
            .map(|it| logits[it.0 as usize])
            .collect();
        assert_eq!(top, sorted[..4]);
        batch.clear();
        batch.add(logprobs.token, position, 0, true);
    }
}

#[test]
fn log_probabilities_are_told_if_asked_for_and_not_without_end() {
    let model = load_demo();
    let generate = model.generate(PROMPT).max_tokens(2);
    let none = pieces(&model, generate.clone()).unwrap();
    assert!(none.iter().all(|piece| piece.logprobs.is_none()));
    let chosen = pieces(&model, generate.clone().logprobs(0)).unwrap();
    let all = chosen
        .iter()
        .all(|piece| piece.logprobs.as_ref().is_some_and(|it| it.top.is_empty()));
    assert!(all);
    let many = pieces(&model, generate.logprobs(129));
    assert!(matches!(
        many,
        Err(Error::TooManyLogprobs {
            asked: 129,
            most: 128
        })
    ));
}

#[test]
fn a_closure_that_takes_the_likeliest_is_greedy() {
    let model = load_demo();
    let greedy = model
        .generate(PROMPT)
        .temperature(0.0)
        .max_tokens(20)
        .text();
    let own = model
        .generate(PROMPT)
        .samplers([])
        .seed(1)
        .sampler(likeliest);
    assert_eq!(own.max_tokens(20).text().unwrap(), greedy.unwrap());
}

#[test]
fn a_closure_that_takes_what_is_selected_changes_nothing() {
    let model = load_demo();
    let plain = model
        .generate(PROMPT)
        .seed(6)
        .repeat_penalty(1.3)
        .max_tokens(20);
    let own = plain.clone().sampler(|candidates, _| {
        assert!(candidates.len() <= 40);
        candidates.selected().unwrap().token()
    });
    assert_eq!(own.text().unwrap(), plain.text().unwrap());
}

#[test]
fn a_closure_sees_the_tokens_so_far_and_each_text_has_its_own() {
    let model = load_demo();
    let prompt = model
        .native()
        .unwrap()
        .vocab()
        .tokenize(PROMPT, true, false)
        .unwrap();
    let mut calls = 0;
    let forced: Vec<Token> = (10..20).collect();
    let generate = model
        .generate(PROMPT)
        .max_tokens(5)
        .sampler(move |_, so_far| {
            assert_eq!(so_far[..prompt.len()], prompt);
            assert_eq!(so_far.len(), prompt.len() + calls);
            calls += 1;
            forced[calls]
        });
    for _ in 0..2 {
        let pieces = pieces(&model, generate.clone()).unwrap();
        assert_eq!(tokens(&pieces), [11, 12, 13, 14, 15]);
    }
}

#[test]
fn a_token_outside_the_vocabulary_ends_the_text_with_an_error() {
    let model = load_demo();
    for bad in [-1, i32::MAX] {
        let ended = pieces(&model, model.generate(PROMPT).sampler(move |_, _| bad));
        assert!(
            matches!(
                ended,
                Err(Error::Native(llama_sys::Error::InvalidParameter {
                    name: "token",
                    ..
                }))
            ),
            "{ended:?}"
        );
    }
    // Nothing is left behind.
    model.generate(PROMPT).max_tokens(2).text().unwrap();
}

#[test]
fn a_text_whose_token_cannot_be_chosen_ends_and_the_others_miss_nothing() {
    let request = Request::new().n_seq_max(3);
    let builder = Model::builder(demo_path()).request(request).threads(1);
    let model = builder.load().unwrap();
    let fails_at = |nth: usize| {
        let mut left = nth;
        model.generate(PROMPT).sampler(move |candidates, so_far| {
            left -= 1;
            match left {
                0 => -1,
                _ => likeliest(candidates, so_far),
            }
        })
    };
    // The last token of the other comes with the failures, or after them.
    for tokens in [5, 12] {
        let mut session = model.session().unwrap();
        let other = session.begin(model.generate(PROMPT).max_tokens(tokens));
        let other = other.unwrap();
        let failing = [5, 5].map(|nth| session.begin(fails_at(nth)).unwrap());
        let mut failed: Vec<SequenceId> = Vec::new();
        let mut told = Vec::new();
        while !session.is_empty() {
            let step = session.step().map(Iterator::collect::<Vec<_>>);
            match step {
                Ok(pieces) => told.extend(pieces),
                Err(Error::Native(llama_sys::Error::InvalidParameter {
                    name: "token", ..
                })) => {
                    failed.extend(session.failed());
                }
                Err(error) => panic!("{error}"),
            }
        }
        failed.sort_unstable();
        assert_eq!(failed, failing);
        let count = |id| told.iter().filter(|piece| piece.sequence == id).count();
        assert_eq!(count(other), tokens);
        // What they had before is told.
        assert_eq!(failing.map(count), [4, 4]);
        assert_eq!(session.failed(), None);
    }
}

#[test]
fn a_closure_that_panics_leaves_a_model_that_works() {
    let model = load_demo();
    let plain = || model.generate(PROMPT).temperature(0.0).max_tokens(12);
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
