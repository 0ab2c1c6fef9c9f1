//! Generations as `Stream`s, in an executor of a few lines, with `futures` and in tokio: on the demo model.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

use crate::engine_support::{PROMPTS, greedy, load, request};
use crate::native_support::demo_path;
use autoplace::generate::{Answer, AsyncAnswer, Engine, Error, FinishReason, Submission, WhenFull};
use autoplace::{Isolation, Model, WorkerProcess, llama_sys};
use futures::stream::{self, StreamExt, TryStreamExt};

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// An executor: all that a runtime has to do. Tells the answer, and how often the future was asked.
fn block_on<F: Future>(future: F) -> (F::Output, usize) {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = pin!(future);
    for polls in 1.. {
        let mut context = Context::from_waker(&waker);
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return (output, polls);
        }
        thread::park();
    }
    unreachable!("it polls until there is an answer")
}

async fn text(stream: &mut AsyncAnswer) -> Result<String, Error> {
    stream.try_collect().await
}

fn in_worker() -> Model {
    let worker = WorkerProcess::program(env!("CARGO_BIN_EXE_autoplace-worker"));
    let builder = Model::builder(demo_path()).threads(1);
    builder
        .isolation(Isolation::Process(worker))
        .load()
        .unwrap()
}

#[test]
fn an_async_stream_has_the_text_of_a_stream_here_and_in_a_worker() {
    for model in [load(request(512, 1)), in_worker()] {
        let generate = greedy(&model, PROMPTS[0], 80);
        let expected = generate.clone().text().unwrap();
        for _ in 0..2 {
            let mut stream = generate.clone().stream().unwrap().into_async().unwrap();
            let (told, polls) = block_on(text(&mut stream));
            assert_eq!(told.unwrap(), expected);
            // Nobody asks before there is something: at most once for each piece, and once for the end.
            assert!(polls <= 80 + 2, "{polls}");
            assert_eq!(stream.finish_reason(), Some(FinishReason::MaxTokens));
            assert_eq!(stream.statistics().generated_tokens, 80);
            // After the end the context is free.
        }
    }
}

#[test]
fn pieces_of_an_async_stream_are_those_of_a_stream() {
    let model = load(request(512, 1));
    let generate = greedy(&model, PROMPTS[0], 12);
    let mut stream = generate.clone().stream().unwrap();
    let expected: Vec<_> = stream.pieces().map(|it| it.unwrap().token).collect();
    drop(stream);
    let mut stream = generate.stream().unwrap().into_async().unwrap();
    let pieces = stream.pieces().map(|it| it.unwrap().token);
    let told: Vec<_> = block_on(pieces.collect()).0;
    assert_eq!(told, expected);
}

#[test]
fn a_stream_that_is_cancelled_gives_the_context_back() {
    let model = load(request(4096, 1));
    // In mid-text.
    let generate = greedy(&model, PROMPTS[0], usize::MAX);
    let mut stream = generate.stream().unwrap().into_async().unwrap();
    block_on(stream.next()).0.unwrap().unwrap();
    stream.cancel();
    assert!(block_on(text(&mut stream)).0.is_ok());
    assert_eq!(stream.finish_reason(), None);
    drop(model.session().unwrap());
    // In the middle of a prompt.
    let generate = greedy(&model, &PROMPTS.concat().repeat(20), 10);
    let mut stream = generate.stream().unwrap().into_async().unwrap();
    stream.cancel();
    let outcome = block_on(text(&mut stream)).0;
    let is_aborted = matches!(outcome, Err(Error::Native(llama_sys::Error::Aborted)));
    // Or before it was begun.
    assert!(is_aborted || outcome.is_ok_and(|it| it.is_empty()));
    while block_on(stream.next()).0.is_some() {}
    drop(model.session().unwrap());
}

#[test]
fn a_stream_that_is_dropped_ends() {
    let model = load(request(4096, 1));
    let generate = greedy(&model, PROMPTS[0], usize::MAX);
    let mut stream = generate.stream().unwrap().into_async().unwrap();
    block_on(stream.next()).0.unwrap().unwrap();
    drop(stream);
    let begun = std::time::Instant::now();
    while let Err(error) = model.session() {
        assert!(matches!(error, Error::Busy), "{error}");
        assert!(begun.elapsed().as_secs() < 60, "it never ends");
        thread::yield_now();
    }
}

#[test]
fn answers_of_an_engine_are_streams_in_one_task() {
    let model = load(request(2048, 4));
    let generates: Vec<_> = PROMPTS.iter().map(|it| greedy(&model, it, 20)).collect();
    let expected: Vec<_> = generates
        .iter()
        .map(|it| it.clone().text().unwrap())
        .collect();
    let engine = Engine::builder(&model).queue(0).start().unwrap();
    let answer = |generate| {
        let submission = engine.submit_async(generate);
        async move { submission.await?.try_collect::<String>().await }
    };
    let texts = generates.into_iter().map(answer);
    let all = stream::iter(texts).buffered(8).try_collect::<Vec<_>>();
    assert_eq!(block_on(all).0.unwrap(), expected);
    drop(engine);
}

#[test]
fn answers_of_an_engine_are_read_by_tasks_of_tokio() {
    let model = load(request(2048, 4));
    let generates: Vec<_> = PROMPTS.iter().map(|it| greedy(&model, it, 20)).collect();
    let expected: Vec<_> = generates
        .iter()
        .map(|it| it.clone().text().unwrap())
        .collect();
    let engine = Engine::builder(&model).queue(1).start().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let tasks: Vec<_> = generates
        .into_iter()
        .map(|generate| {
            let engine = engine.clone();
            runtime.spawn(async move {
                let mut answer = engine.submit_async(generate).await?.into_async();
                let mut text = String::new();
                while let Some(piece) = answer.pieces().next().await {
                    text.push_str(&piece?.text);
                }
                Ok::<_, Error>(text)
            })
        })
        .collect();
    let texts: Vec<_> = tasks
        .into_iter()
        .map(|task| runtime.block_on(task).unwrap().unwrap())
        .collect();
    assert_eq!(texts, expected);
}

#[test]
fn an_async_stream_and_an_answer_move_between_threads() {
    fn is_sent<T: Send + Unpin + 'static>() {}
    fn is_shared<T: Sync>() {}
    is_sent::<Answer>();
    is_sent::<AsyncAnswer>();
    is_sent::<Pin<Box<Submission>>>();
    is_sent::<Engine>();
    is_shared::<Engine>();
}

#[test]
fn a_full_context_that_was_to_be_an_error_is_the_last_of_a_stream_here_and_in_a_worker() {
    let worker = WorkerProcess::program(env!("CARGO_BIN_EXE_autoplace-worker"));
    let builder = Model::builder(demo_path()).request(request(64, 1));
    let builder = builder.threads(1).isolation(Isolation::Process(worker));
    for model in [load(request(64, 1)), builder.load().unwrap()] {
        let generate = greedy(&model, PROMPTS[0], 1000).when_full(WhenFull::Error);
        let failed = generate.clone().text();
        assert!(
            matches!(failed, Err(Error::ContextFull { tokens: 65 })),
            "{failed:?}"
        );
        let mut stream = generate.stream().unwrap().into_async().unwrap();
        let (failed, _) = block_on(text(&mut stream));
        assert!(
            matches!(failed, Err(Error::ContextFull { tokens: 65 })),
            "{failed:?}"
        );
        assert_eq!(stream.finish_reason(), Some(FinishReason::ContextFull));
    }
}

#[test]
fn a_stream_that_is_over_stops_no_other_when_it_is_dropped() {
    let model = load(request(512, 1));
    let unread = greedy(&model, PROMPTS[0], 4).stream().unwrap();
    let late = unread.abort_handle();
    let unread = unread.into_async().unwrap();
    // It ends by itself, and nobody has read it.
    let begun = std::time::Instant::now();
    let next = loop {
        match greedy(&model, PROMPTS[1], 20).stream() {
            Ok(next) => break next,
            Err(error) => assert!(matches!(error, Error::Busy), "{error}"),
        }
        assert!(begun.elapsed().as_secs() < 60, "it never ends");
        thread::yield_now();
    };
    drop(unread);
    late.abort();
    assert_eq!(next.into_text().unwrap().1.generated_tokens, 20);
}
