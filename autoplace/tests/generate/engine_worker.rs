//! An engine with a worker process generates the same texts as an engine in this process. If the worker dies, none of
//! the texts ends. The model is the demo model.

use std::process::Command;

use crate::text_support::{Completion, PROMPTS, answered, demo, greedy, in_worker, request};
use autoplace::Model;
use autoplace::generate::{Engine, Error, GenerateRequest, TokenStream};
use test_support::demo_path;

/// There are more texts than sequences: greedy texts, random texts, and texts that go on to the end of the context.
fn texts(model: &Model) -> Vec<GenerateRequest> {
    let long = model.generate(PROMPTS[0]).seed(9);
    let some = PROMPTS.iter().zip(0..).map(|(prompt, seed)| match seed % 2 {
        0 => greedy(model, *prompt).max_tokens(60),
        _ => model.generate(*prompt).temp(2.0).seed(seed).max_tokens(90),
    });
    [long].into_iter().chain(some).collect()
}

fn all(model: &Model) -> Vec<Completion> {
    let engine = Engine::new(model).unwrap();
    let answers: Vec<_> = texts(model).into_iter().map(|request| engine.submit(request).unwrap()).collect();
    let completions = answers.into_iter().map(answered).collect();
    let metrics = engine.metrics();
    assert_eq!((metrics.queued, metrics.running), (0, 0));
    assert!(metrics.generated_tokens > 300 && metrics.prompt_tokens > 50, "{metrics:?}");
    completions
}

#[test]
fn texts_of_an_engine_in_a_worker_are_those_of_this_process() {
    let (here, there) = (demo(1024, 4, false), in_worker(&demo_path(), request(1024, 4, false)));
    let expected = all(&here);
    assert_eq!(all(&there), expected);
    // The worker can be used again, by a stream and by another engine.
    assert!(there.generate(PROMPTS[1]).max_tokens(2).text().is_ok());
    let engine = Engine::new(&there).unwrap();
    assert_matches!(there.generate(PROMPTS[1]).stream(), Err(Error::Busy));
    drop(engine);
    assert_eq!(all(&there), expected);
}

#[cfg(unix)]
#[test]
fn a_worker_that_is_killed_in_mid_text_ends_no_text() {
    let expected = all(&demo(1024, 4, false));
    let model = in_worker(&demo_path(), request(1024, 4, false));
    for read in [0, 1, 20] {
        let engine = Engine::builder(&model).ahead(8).start().unwrap();
        let submit = |generate| engine.submit(generate).unwrap();
        let mut answers: Vec<_> = texts(&model).into_iter().map(submit).collect();
        let first = |answer: &mut TokenStream| answer.pieces().take(read).collect::<Vec<_>>();
        let begun: Vec<_> = answers.iter_mut().map(first).collect();
        let worker = model.worker_id().unwrap();
        assert!(Command::new("kill").args(["-KILL", &worker.to_string()]).status().unwrap().success());
        for ((first, mut answer), expected) in begun.into_iter().zip(answers).zip(&expected) {
            let completion = Completion::from_pieces(first.into_iter().chain(answer.pieces()).map(Result::unwrap));
            assert_eq!(completion, *expected);
        }
        assert_ne!(model.worker_id(), Some(worker));
        assert_eq!(engine.metrics().running, 0);
    }
}
