//! A session whose model is in a worker process: its texts, forks, roll-backs and re-placements are the same as in this
//! process.

use crate::text_support::{PROMPT, SYSTEM, Texts, demo, greedy, in_worker, request};
use autoplace::Model;
use autoplace::generate::{Error, Fork, Session};
use autoplace::{llama_sys, worker};
use test_support::demo_path;

/// The results of a session in which every feature is used: texts, statistics and error messages.
fn everything(model: &Model) -> String {
    let mut session = model.session().unwrap();
    let mut texts = Texts::default();
    let first = session.begin(greedy(model, SYSTEM).max_tokens(40)).unwrap();
    let second = session.begin(model.generate(PROMPT).seed(3).max_tokens(30)).unwrap();
    texts.generate_to(&mut session, first, 9);
    let third = session.fork(first, Fork::new().max_tokens(20)).unwrap();
    let possible = session.can_roll_back(second);
    let gone = session.roll_back(second, 4).unwrap();
    session.replace(None).unwrap();
    let improved = session.improve(0.5).unwrap().is_some();
    texts.step(&mut session);
    let numbers = (session.len(), session.n_seq_max(), session.is_loaded(), session.is_empty(), session.failed());
    let tokens = [first, second, third].map(|text| session.tokens(text));
    let busy = session.begin(greedy(model, PROMPT)).and_then(|_| session.begin(greedy(model, PROMPT)));
    let ended = session.end(third).map(|statistics| statistics.generated_tokens);
    texts.run(&mut session);
    let none = session.roll_back(first, 1).unwrap_err().to_string();
    let said = [first, second, third].map(|text| (texts.of(text).tokens.clone(), texts.of(text).text.clone()));
    let counted = texts.of(first).statistics().generated_tokens;
    assert!(session.is_empty() && session.last_replaced().unwrap().is_ok());
    format!("{possible:?} {gone:?} {improved} {numbers:?} {tokens:?} {busy:?} {ended:?} {none} {said:?} {counted}")
}

#[test]
fn everything_in_a_worker_is_as_in_this_process() {
    for unified in [false, true] {
        let here = everything(&demo(2048, 4, unified));
        let there = in_worker(&demo_path(), request(2048, 4, unified));
        assert_eq!(everything(&there), here, "unified: {unified}");
        // The worker can be used again, by a stream and by another session.
        assert!(there.generate(PROMPT).max_tokens(2).text().is_ok());
        let session = there.session().unwrap();
        assert_matches!(there.generate(PROMPT).stream().map(drop), Err(Error::Busy));
        drop(session);
        assert_eq!(everything(&there), here, "again, unified: {unified}");
    }
}

#[test]
fn a_closure_is_refused_and_an_abort_stops_a_step() {
    let model = in_worker(&demo_path(), request(1024, 2, false));
    let mut session = model.session().unwrap();
    let own = session.begin(model.generate(PROMPT).sampler(|_, _| 1)).map(drop);
    assert_matches!(own, Err(Error::Worker(worker::Error::Elsewhere { .. })));
    session.begin(greedy(&model, SYSTEM)).unwrap();
    session.abort_handle().abort();
    let aborted = session.step().map(drop);
    assert_matches!(aborted, Err(Error::Native(llama_sys::Error::Aborted)));
    assert!(session.is_empty());
}

#[cfg(unix)]
#[test]
fn when_the_worker_dies_texts_end_and_the_next_session_has_another() {
    let model = in_worker(&demo_path(), request(1024, 2, false));
    let text = |session: &mut Session| {
        let mut texts = Texts::default();
        let text = session.begin(greedy(&model, SYSTEM)).unwrap();
        texts.run(session);
        texts.of(text).clone()
    };
    let expected = text(&mut model.session().unwrap());
    let mut session = model.session().unwrap();
    session.begin(greedy(&model, SYSTEM)).unwrap();
    assert!(session.step().unwrap().len() <= 1);
    let worker = model.worker_id().unwrap();
    assert!(std::process::Command::new("kill").args(["-KILL", &worker.to_string()]).status().unwrap().success());
    let died = (0..100).find_map(|_| session.step().map(drop).err());
    assert_matches!(died, Some(Error::Worker(_)));
    assert!(session.is_empty() && !session.is_loaded());
    drop(session);
    assert_eq!(text(&mut model.session().unwrap()), expected);
}
