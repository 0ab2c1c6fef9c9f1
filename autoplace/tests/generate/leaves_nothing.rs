//! A thousand answers of an engine that are never finished leave nothing behind. Streams and sessions are tested in
//! `soak.rs`. This test has a process of its own, whose threads and files it counts.

use std::thread;

use crate::text_support::{PROMPTS, demo, greedy, held, text};
use autoplace::generate::{Engine, Shutdown};
use test_support::{settled, wait};

const THREADS: usize = 8;
const EACH: usize = 125;

/// The numbers of open files and of threads of this process, if the system reports them. The thread that writes the
/// speed of a loaded model opens a file when the first text ends, so the numbers must settle.
fn handles() -> Option<[u64; 2]> {
    settled(|| held().map(|[.., files, threads]| [files, threads]))
}

#[test]
fn a_thousand_unfinished_answers_from_eight_threads_leave_nothing_behind() {
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
    thread::scope(|scope| {
        for number in 0..THREADS {
            let (engine, model) = (&engine, &model);
            scope.spawn(move || {
                for index in 0..EACH {
                    let prompt = PROMPTS[(index + number) % PROMPTS.len()];
                    let mut answer = engine.submit(greedy(model, prompt).max_tokens(60)).unwrap();
                    for _ in 0..index % 3 {
                        answer.next().unwrap().unwrap();
                    }
                }
            });
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
