//! A thousand answers that nobody finishes leave nothing behind. A program of its own, since it counts its threads.

use std::thread;

use crate::engine_support::{PROMPTS, greedy, load, request};
use autoplace::generate::{Engine, Shutdown};

/// Threads of engines in this process, where the system tells.
fn engines() -> usize {
    let Ok(threads) = std::fs::read_dir("/proc/self/task") else {
        return 0;
    };
    let name = |thread: std::io::Result<std::fs::DirEntry>| {
        std::fs::read_to_string(thread.ok()?.path().join("comm")).ok()
    };
    let names = threads.filter_map(name);
    // The kernel keeps 15 characters of a name.
    names
        .filter(|name| name.starts_with("autoplace-engin"))
        .count()
}

#[test]
fn a_thousand_answers_opened_and_dropped_leave_sequences_threads_and_texts_as_they_were() {
    own_process!();
    let model = load(request(1024, 4));
    let expected = greedy(&model, PROMPTS[0], 30).text().unwrap();
    let engine = Engine::builder(&model).queue(6).start().unwrap();
    let first = engine.submit(greedy(&model, PROMPTS[0], 30)).unwrap();
    assert_eq!(first.into_text().unwrap().0, expected);
    assert_eq!(engines(), usize::from(cfg!(target_os = "linux")));
    thread::scope(|scope| {
        for number in 0..8 {
            let (engine, model) = (engine.clone(), &model);
            scope.spawn(move || {
                for index in 0..125 {
                    let prompt = PROMPTS[(index + number) % PROMPTS.len()];
                    let mut answer = engine.submit(greedy(model, prompt, 60)).unwrap();
                    for _ in 0..index % 3 {
                        answer.next().unwrap().unwrap();
                    }
                }
            });
        }
    });
    let last = engine.submit(greedy(&model, PROMPTS[0], 30)).unwrap();
    assert_eq!(last.into_text().unwrap().0, expected);
    engine.shutdown(Shutdown::Finish);
    let metrics = engine.metrics();
    assert_eq!((metrics.queued, metrics.running), (0, 0));
    assert_eq!(engines(), 0);
    assert_eq!(greedy(&model, PROMPTS[0], 30).text().unwrap(), expected);
}
