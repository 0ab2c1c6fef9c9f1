//! A prompt that is cancelled while it is computed: what was computed of it is kept or forgotten, the context is free,
//! and the next text is a raw llama.cpp loop's. On the demo model.

use crate::native_support::demo_path;
use crate::text_support::{Raw, SYSTEM, chat, complete, greedy, request, to_the_end, tokens_of};
use autoplace::Model;
use autoplace::generate::{Error, FinishReason};
use autoplace::llama_sys::{self, Token};

/// Tokens that a step computes.
const BATCH: u32 = 16;

fn load() -> Model {
    crate::text_support::load(&demo_path(), request(1024, 1, false).n_batch(BATCH).n_ubatch(BATCH))
}

/// Of many batches.
fn prompt(model: &Model) -> Vec<Token> {
    let prompt = tokens_of(model, &SYSTEM.repeat(12));
    assert!(prompt.len() > 10 * BATCH as usize);
    prompt
}

#[test]
fn a_session_is_dropped_in_the_middle_of_a_prompt_and_the_next_goes_on_from_there() {
    let model = load();
    let prompt = prompt(&model);
    let raw = Raw::text(&model, &prompt, 24);
    for steps in [1, 3, 5] {
        let mut session = model.session().unwrap();
        session.begin(greedy(&model, &prompt[..])).unwrap();
        for _ in 0..steps {
            assert_eq!(session.step().unwrap().count(), 0, "the prompt is long");
        }
        drop(session);
        let completion = complete(greedy(&model, &prompt[..]).cache_prompt(true), &model);
        assert_eq!(completion.tokens, raw, "after {steps} steps");
        assert_eq!(completion.statistics().cached_tokens, steps * BATCH as usize);
        // So that the next round begins from nothing.
        greedy(&model, "And").max_tokens(1).text().unwrap();
    }
}

#[test]
fn an_abort_in_the_middle_of_a_prompt_ends_it_and_leaves_nothing_half_done() {
    let model = load();
    let prompt = prompt(&model);
    let raw = Raw::text(&model, &prompt, 24);
    let mut session = model.session().unwrap();
    for steps in [0, 1, 4] {
        session.begin(greedy(&model, &prompt[..])).unwrap();
        for _ in 0..steps {
            session.step().unwrap();
        }
        let handle = session.abort_handle();
        std::thread::spawn(move || handle.abort()).join().unwrap();
        assert_is!(session.step().map(Iterator::count), Err(Error::Native(llama_sys::Error::Aborted)));
        assert!(session.is_empty());
        session.begin(greedy(&model, &prompt[..]).cache_prompt(true)).unwrap();
        assert_eq!(to_the_end(&mut session).remove(0).tokens, raw, "after {steps} steps");
    }
}

#[test]
fn a_chat_whose_answer_is_aborted_before_it_begins_can_be_asked_again() {
    let model = load();
    let mut cut = chat(&model, "chatml");
    let long = SYSTEM.repeat(6);
    let mut stream = cut.say(&long).unwrap();
    stream.abort_handle().abort();
    assert!(stream.next().is_none());
    assert_eq!(stream.finish_reason(), Some(FinishReason::Aborted));
    drop(stream);
    // Nothing was answered, and the question is taken back.
    assert_eq!(cut.messages(), []);
    let (again, _) = cut.say(&long).unwrap().finish().unwrap();
    let (expected, _) = chat(&model, "chatml").say(&long).unwrap().finish().unwrap();
    assert_eq!((again, cut.messages().len()), (expected, 2));
}
