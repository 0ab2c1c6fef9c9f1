//! A thousand sessions that nobody finishes, from eight threads on one model, leave nothing behind. A program of its
//! own, since it counts its threads and files.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::native_support::demo_path;
use crate::session_support::{Raw, SYSTEM, Texts, greedy, request, tokens_of};
use autoplace::Model;
use autoplace::generate::{Error, Fork, Session};

const THREADS: usize = 8;
const EACH: usize = 125;

/// Open files and threads of this process, where the system tells.
fn held() -> Option<[usize; 2]> {
    let count = |folder| Some(std::fs::read_dir(folder).ok()?.count());
    Some([count("/proc/self/fd")?, count("/proc/self/task")?])
}

/// A session, when it is this thread's turn.
fn session(model: &Model) -> Session {
    loop {
        match model.session() {
            Ok(session) => return session,
            Err(Error::Busy) => thread::yield_now(),
            Err(error) => panic!("{error}"),
        }
    }
}

/// A text of a session, whole.
fn text(model: &Model) -> Vec<i32> {
    let mut session = session(model);
    let sequence = session.begin(greedy(model, SYSTEM)).unwrap();
    let mut texts = Texts::default();
    texts.run(&mut session);
    texts.of(sequence).tokens.clone()
}

#[test]
fn a_thousand_sessions_opened_and_dropped_from_eight_threads() {
    own_process!();
    let model = crate::session_support::load(&demo_path(), request(1024, 3, false));
    let raw = Raw::text(&model, &tokens_of(&model, SYSTEM), 24);
    assert_eq!(text(&model), raw);
    let before = held();
    let opened = AtomicUsize::new(0);
    thread::scope(|scope| {
        for number in 0..THREADS {
            let (model, opened) = (&model, &opened);
            scope.spawn(move || {
                for index in 0..EACH {
                    let mut session = session(model);
                    opened.fetch_add(1, Ordering::Relaxed);
                    let generate = greedy(model, SYSTEM).cache_prompt(index % 2 == 0);
                    let first = session.begin(generate).unwrap();
                    for _ in 0..(index + number) % 4 {
                        session.step().unwrap();
                    }
                    match index % 5 {
                        0 => drop(session.fork(first, Fork::new()).unwrap()),
                        1 => session.abort_handle().abort(),
                        2 => drop(session.end(first).unwrap()),
                        3 => drop(session.begin(greedy(model, "In the beginning")).unwrap()),
                        _ => {}
                    }
                }
            });
        }
    });
    assert_eq!(opened.into_inner(), THREADS * EACH);
    // A thread whose work is done is there for a moment still.
    let ended = Instant::now();
    while held() != before && ended.elapsed() < Duration::from_secs(60) {
        thread::yield_now();
    }
    assert_eq!(held(), before);
    assert_eq!(text(&model), raw);
    // Nobody holds the context, or the model underneath, any more.
    let native = model.native().unwrap();
    let holders = native.holders();
    drop(model.session().unwrap());
    assert_eq!(native.holders(), holders);
}
