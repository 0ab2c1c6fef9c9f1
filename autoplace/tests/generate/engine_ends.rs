//! How texts of an engine end where the context is full or a limit cuts them short, and how they go on beyond it:
//! on the demo model.

use crate::engine_support::{PROMPTS, greedy, load, request};
use autoplace::generate::{Answer, Engine, Error, FinishReason, Keep, WhenFull};
use autoplace::llama_sys::{self, Candidate};

/// What was read, and what the last of it was.
fn read(answer: &mut Answer) -> (String, Option<Error>) {
    let mut text = String::new();
    for piece in &mut *answer {
        match piece {
            Ok(piece) => text.push_str(&piece),
            Err(error) => return (text, Some(error)),
        }
    }
    (text, None)
}

#[test]
fn a_text_that_shifts_is_that_of_a_stream_and_longer_than_the_context() {
    let model = load(request(64, 1));
    let shifting = || {
        let generate = greedy(&model, PROMPTS[0], 150);
        generate.when_full(WhenFull::shift(Keep::Prompt))
    };
    let expected = shifting().text().unwrap();
    let engine = Engine::new(&model).unwrap();
    let (text, statistics) = engine.submit(shifting()).unwrap().into_text().unwrap();
    assert_eq!(text, expected);
    assert_eq!(statistics.generated_tokens, 150);
    assert!(statistics.discarded_tokens > 0);
}

#[test]
fn texts_that_shift_share_one_cache_and_all_come_to_their_ends() {
    let mut request = request(128, 3);
    request.params.kv_unified = true;
    let model = load(request);
    let engine = Engine::new(&model).unwrap();
    let generate = |prompt: &&str| {
        let generate = greedy(&model, prompt, 200);
        generate.when_full(WhenFull::shift(Keep::Nothing))
    };
    let answers: Vec<_> = PROMPTS
        .iter()
        .take(4)
        .map(|prompt| engine.submit(generate(prompt)).unwrap())
        .collect();
    for answer in answers {
        let (_, statistics) = answer.into_text().unwrap();
        assert_eq!(statistics.generated_tokens, 200);
        assert!(statistics.discarded_tokens > 0);
    }
}

#[test]
fn a_shift_that_could_forget_nothing_is_refused_when_it_is_submitted() {
    let model = load(request(64, 1));
    let engine = Engine::new(&model).unwrap();
    let shift = WhenFull::Shift {
        keep: Keep::Nothing,
        discard: Some(0),
    };
    let refused = engine.submit(greedy(&model, PROMPTS[0], 9).when_full(shift));
    let refused = refused.map(drop).unwrap_err();
    assert!(
        matches!(refused, Error::NothingToShift { context: 64, .. }),
        "{refused:?}"
    );
}

#[test]
fn a_full_context_is_an_error_after_the_last_piece_where_it_was_to_be_one() {
    let model = load(request(64, 1));
    let engine = Engine::new(&model).unwrap();
    let endless = || greedy(&model, PROMPTS[0], 1000);
    let (expected, _) = engine.submit(endless()).unwrap().into_text().unwrap();
    let mut answer = engine.submit(endless().when_full(WhenFull::Error)).unwrap();
    let (text, error) = read(&mut answer);
    assert_eq!(text, expected);
    assert!(
        matches!(error, Some(Error::ContextFull { tokens: 65 })),
        "{error:?}"
    );
    assert!(answer.next().is_none(), "it is told once");
    assert_eq!(answer.finish_reason(), Some(FinishReason::ContextFull));
    let failed = engine.submit(endless().when_full(WhenFull::Error)).unwrap();
    let failed = failed.into_text().map(drop);
    assert!(matches!(failed, Err(Error::ContextFull { .. })));
}

#[cfg(feature = "constraints")]
#[test]
fn a_text_that_a_limit_cuts_short_ends_with_an_error() {
    use autoplace::generate::Constraint;
    let model = load(request(128, 1));
    let engine = Engine::new(&model).unwrap();
    let letters = || {
        let letters = Constraint::regex("[a-z]{50}");
        model.generate(PROMPTS[0]).seed(1).constraint(letters)
    };
    let mut answer = engine.submit(letters().max_tokens(3)).unwrap();
    let (text, error) = read(&mut answer);
    let Some(Error::Incomplete { limit, text: cut }) = error else {
        panic!("{error:?}");
    };
    assert_eq!((limit, &cut), (FinishReason::MaxTokens, &text));
    assert!(answer.next().is_none(), "it is told once");
    let failed = engine.submit(letters().max_tokens(3)).unwrap().into_text();
    assert!(matches!(failed, Err(Error::Incomplete { .. })));
    // Whoever reads tokens sees it at the last one.
    let mut answer = engine.submit(letters().max_tokens(3)).unwrap();
    let pieces: Vec<_> = answer.pieces().map(Result::unwrap).collect();
    assert!(!pieces.last().unwrap().end.unwrap().meets_constraint);
    let (whole, _) = engine.submit(letters()).unwrap().into_text().unwrap();
    assert_eq!(whole.len(), 50);
}

#[test]
fn a_text_whose_token_cannot_be_chosen_ends_and_no_other() {
    let model = load(request(1024, 2));
    let expected = greedy(&model, PROMPTS[0], 40).text().unwrap();
    let engine = Engine::new(&model).unwrap();
    let other = engine.submit(greedy(&model, PROMPTS[0], 40)).unwrap();
    let mut left = 6;
    let failing = greedy(&model, PROMPTS[1], 40).sampler(move |candidates, _| {
        left -= 1;
        let first = candidates.iter().next().map(Candidate::token);
        if left == 0 { -1 } else { first.unwrap() }
    });
    let mut failing = engine.submit(failing).unwrap();
    let pieces: Vec<_> = failing.pieces().collect();
    assert_eq!(pieces.len(), 6);
    let failed = pieces.into_iter().next_back().unwrap();
    let is_native = matches!(
        failed,
        Err(Error::Native(llama_sys::Error::InvalidParameter {
            name: "token",
            ..
        }))
    );
    assert!(is_native, "{failed:?}");
    assert_eq!(failing.finish_reason(), Some(FinishReason::Error));
    assert_eq!(other.into_text().unwrap().0, expected);
    drop(failing);
    assert_eq!(engine.metrics().running, 0);
}
