//! A thousand sessions, and a thousand answers of an engine, that nobody finishes leave nothing behind. In processes of
//! their own, since they count their threads and files.

use std::thread;
use std::time::Duration;

use crate::native_support::wait;
use crate::text_support::{PROMPTS, Raw, SYSTEM, demo, greedy, held, text, to_the_end, tokens_of};
use autoplace::Model;
use autoplace::generate::{Engine, Error, Session, Shutdown};

const THREADS: usize = 8;
const EACH: usize = 125;

/// Open files and threads of this process, where the system reports them.
fn handles() -> Option<[u64; 2]> {
    held().map(|[.., files, threads]| [files, threads])
}

/// Does the same in eight threads, each with its number and that of the time.
fn in_threads(work: impl Fn(usize, usize) + Sync) {
    thread::scope(|scope| {
        for number in 0..THREADS {
            let work = &work;
            scope.spawn(move || (0..EACH).for_each(|index| work(number, index)));
        }
    });
}

/// A session, when it is this thread's turn.
fn session(model: &Model) -> Session {
    loop {
        match model.session() {
            Ok(session) => return session,
            Err(Error::Busy) => thread::sleep(Duration::from_micros(50)),
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn a_thousand_sessions_opened_and_dropped_from_eight_threads() {
    own_process!();
    let model = demo(1024, 3, false);
    let raw = Raw::text(&model, &tokens_of(&model, SYSTEM), 24);
    let is_as_ever = || {
        let mut session = session(&model);
        session.begin(greedy(&model, SYSTEM)).unwrap();
        assert_eq!(to_the_end(&mut session)[0].tokens, raw);
    };
    is_as_ever();
    let before = handles();
    in_threads(|number, index| {
        let mut session = session(&model);
        let generate = greedy(&model, SYSTEM).cache_prompt(index % 2 == 0);
        let first = session.begin(generate).unwrap();
        for _ in 0..(index + number) % 4 {
            session.step().unwrap();
        }
        match index % 5 {
            0 => drop(session.begin(greedy(&model, SYSTEM).cache_prompt(true)).unwrap()),
            1 => session.abort_handle().abort(),
            2 => drop(session.end(first).unwrap()),
            3 => drop(session.begin(greedy(&model, "In the beginning")).unwrap()),
            _ => {}
        }
    });
    // A thread whose work is done is there for a moment still.
    wait("holds what it held", || handles() == before);
    is_as_ever();
    // Nobody holds the context, or the model underneath, any more.
    let native = model.native().unwrap();
    let holders = native.holders();
    drop(model.session().unwrap());
    assert_eq!(native.holders(), holders);
}

#[test]
fn a_thousand_answers_opened_and_dropped_leave_sequences_threads_and_texts_as_they_were() {
    own_process!();
    let model = demo(1024, 4, false);
    let expected = text(greedy(&model, PROMPTS[0]));
    let before = handles();
    let engine = Engine::builder(&model).queue(6).start().unwrap();
    let is_as_ever = || {
        assert_eq!(engine.submit(greedy(&model, PROMPTS[0])).unwrap().into_text().unwrap().0, expected);
    };
    is_as_ever();
    let running = handles();
    in_threads(|number, index| {
        let prompt = PROMPTS[(index + number) % PROMPTS.len()];
        let mut answer = engine.submit(greedy(&model, prompt).max_tokens(60)).unwrap();
        for _ in 0..index % 3 {
            answer.next().unwrap().unwrap();
        }
    });
    is_as_ever();
    wait("holds what it held", || handles() == running);
    engine.shutdown(Shutdown::Finish);
    let metrics = engine.metrics();
    assert_eq!((metrics.queued, metrics.running), (0, 0));
    assert_eq!(handles(), before);
    assert_eq!(text(greedy(&model, PROMPTS[0])), expected);
}
