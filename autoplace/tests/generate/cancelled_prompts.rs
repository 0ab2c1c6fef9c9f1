//! Prompts that are cancelled while they are computed, on the demo model. The part that was computed is kept or
//! forgotten, the context is free, and the next text is the same as in a bare llama.cpp loop.

use crate::text_support::{Raw, SYSTEM, chat, greedy, request, to_the_end, tokens_of};
use autoplace::Model;
use autoplace::generate::{Error, FinishReason};
use autoplace::llama_sys;
use test_support::demo_path;

/// The number of tokens in one step.
const BATCH: u32 = 16;

fn load() -> Model {
    crate::text_support::load(&demo_path(), request(1024, 1, false).n_batch(BATCH).n_ubatch(BATCH))
}

#[test]
fn a_prompt_that_is_dropped_or_aborted_in_the_middle_leaves_nothing_half_done() {
    let model = load();
    // The prompt has many batches.
    let prompt = tokens_of(&model, &SYSTEM.repeat(12));
    let raw = Raw::text(&model, &prompt, 24);
    for (steps, aborts) in [(0, true), (1, true), (4, true), (1, false), (3, false), (5, false)] {
        let mut session = model.session().unwrap();
        session.begin(greedy(&model, &prompt[..])).unwrap();
        for _ in 0..steps {
            assert_eq!(session.step().unwrap().count(), 0, "the prompt is long");
        }
        if aborts {
            let handle = session.abort_handle();
            std::thread::spawn(move || handle.abort()).join().unwrap();
            assert_matches!(session.step().map(Iterator::count), Err(Error::Native(llama_sys::Error::Aborted)));
            assert!(session.is_empty());
        } else {
            drop(session);
            session = model.session().unwrap();
        }
        session.begin(greedy(&model, &prompt[..]).cache_prompt(true)).unwrap();
        let completion = to_the_end(&mut session).remove(0);
        assert_eq!(completion.tokens, raw, "after {steps} steps");
        // The part of the prompt that was computed is reused.
        assert!(aborts || completion.statistics().cached_tokens == steps * BATCH as usize);
        // This empties the context for the next round.
        drop(session);
        greedy(&model, "And").max_tokens(1).text().unwrap();
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
    // No answer was begun, so the question is removed.
    assert_eq!(cut.messages(), []);
    let (again, _) = cut.say(&long).unwrap().finish().unwrap();
    let (expected, _) = chat(&model, "chatml").say(&long).unwrap().finish().unwrap();
    assert_eq!((again, cut.messages().len()), (expected, 2));
}
