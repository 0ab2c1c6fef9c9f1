//! Requests of an engine: how they wait, leave and end, and what becomes of them when the engine ends.
//! On the demo model.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread;

use crate::engine_support::{PROMPTS, greedy, load, request};
use crate::native_support::demo_path;
use autoplace::generate::{Answer, Engine, Error, FinishReason, Shutdown};
use autoplace::{Isolation, Model, WorkerProcess, llama_sys};

/// A text that is not over before anybody reads.
const LONG: usize = 2000;

fn alone(model: &Model, prompt: &str, tokens: usize) -> String {
    greedy(model, prompt, tokens).text().unwrap()
}

#[track_caller]
fn has_ended<T>(outcome: Result<T, Error>) {
    let outcome = outcome.map(drop);
    assert!(matches!(outcome, Err(Error::EngineEnded)), "{outcome:?}");
}

/// Waits until the engine's thread has seen it.
#[track_caller]
fn until(engine: &Engine, holds: impl Fn(autoplace::generate::Metrics) -> bool) {
    let begun = std::time::Instant::now();
    while !holds(engine.metrics()) {
        assert!(begun.elapsed().as_secs() < 60, "{:?}", engine.metrics());
        thread::yield_now();
    }
}

#[test]
fn fifty_threads_share_four_sequences() {
    let model = load(request(1024, 4));
    let expected: Vec<String> = PROMPTS.iter().map(|it| alone(&model, it, 12)).collect();
    let engine = Engine::builder(&model).queue(3).start().unwrap();
    thread::scope(|scope| {
        for index in 0..50 {
            let (engine, model, expected) = (engine.clone(), &model, &expected);
            scope.spawn(move || {
                let which = index % PROMPTS.len();
                let answer = engine.submit(greedy(model, PROMPTS[which], 12)).unwrap();
                assert_eq!(answer.into_text().unwrap().0, expected[which]);
            });
        }
    });
    let metrics = engine.metrics();
    assert_eq!((metrics.queued, metrics.running), (0, 0));
}

#[test]
fn a_full_queue_refuses_and_a_text_that_leaves_it_makes_room() {
    let model = load(request(2048, 1));
    let engine = Engine::builder(&model).queue(2).ahead(4).start().unwrap();
    let submit = |prompt| engine.try_submit(greedy(&model, prompt, LONG));
    let first = submit(PROMPTS[0]).unwrap();
    let second = submit(PROMPTS[1]).unwrap();
    let third = submit(PROMPTS[2]).unwrap();
    let refused = submit(PROMPTS[3]).map(drop);
    assert!(
        matches!(refused, Err(Error::QueueFull { queue: 2 })),
        "{refused:?}"
    );
    drop(third);
    let fourth = submit(PROMPTS[3]).unwrap();
    until(&engine, |it| it.queued == 2 && it.running == 1);
    drop((second, fourth, first));
    until(&engine, |it| it.queued + it.running == 0);
}

/// Polls once.
fn poll<T>(future: &mut (impl Future<Output = T> + Unpin)) -> Poll<T> {
    Pin::new(future).poll(&mut Context::from_waker(Waker::noop()))
}

#[test]
fn those_who_wait_for_a_place_get_it_in_their_order() {
    let model = load(request(2048, 1));
    let engine = Engine::builder(&model).queue(0).ahead(4).start().unwrap();
    let running = engine.submit(greedy(&model, PROMPTS[0], LONG)).unwrap();
    let mut waiting: Vec<_> = (0..3)
        .map(|_| engine.submit_async(greedy(&model, PROMPTS[1], LONG)))
        .collect();
    assert!(waiting.iter_mut().all(|it| poll(it).is_pending()));
    drop(running);
    until(&engine, |it| it.running == 0);
    // The place is the first one's, and nobody may take it who has come since.
    assert!(poll(&mut waiting[1]).is_pending());
    let late = engine.try_submit(greedy(&model, PROMPTS[1], 4)).map(drop);
    assert!(
        matches!(late, Err(Error::QueueFull { queue: 0 })),
        "{late:?}"
    );
    // One that gives up hands it on.
    drop(waiting.remove(0));
    let Poll::Ready(answer) = poll(&mut waiting[0]) else {
        panic!("the next has a place");
    };
    assert!(poll(&mut waiting[1]).is_pending());
    drop(answer);
    until(&engine, |it| it.running == 0);
    assert!(poll(&mut waiting[1]).is_ready());
}

#[test]
fn a_thread_that_waits_for_a_place_gets_it_when_a_text_has_ended() {
    let model = load(request(2048, 1));
    let engine = Engine::builder(&model).queue(0).ahead(4).start().unwrap();
    let running = engine.submit(greedy(&model, PROMPTS[0], LONG)).unwrap();
    thread::scope(|scope| {
        let waits = scope.spawn(|| engine.submit(greedy(&model, PROMPTS[1], 8))?.into_text());
        drop(running);
        assert_eq!(waits.join().unwrap().unwrap().1.generated_tokens, 8);
    });
}

#[test]
fn what_cannot_be_is_refused_before_it_is_queued() {
    let model = load(request(256, 1));
    let engine = Engine::new(&model).unwrap();
    let submit = |generate| engine.try_submit(generate).map(drop);
    let long = submit(model.generate(PROMPTS[0].repeat(100)));
    assert!(
        matches!(long, Err(Error::PromptTooLong { context: 256, .. })),
        "{long:?}"
    );
    let stop = submit(model.generate("And").stop(""));
    assert!(matches!(stop, Err(Error::EmptyStop)), "{stop:?}");
    let range = submit(model.generate("And").top_p(7.0));
    let is_range = matches!(
        range,
        Err(Error::Native(llama_sys::Error::InvalidParameter { .. }))
    );
    assert!(is_range, "{range:?}");
    assert_eq!(engine.metrics(), Default::default());
    let busy = model.session().map(drop);
    assert!(matches!(busy, Err(Error::Busy)), "{busy:?}");
    let nothing = engine.submit(greedy(&model, "And", 0)).unwrap();
    assert_eq!(nothing.into_text().unwrap().0, "");
}

#[test]
fn a_text_that_is_dropped_ends_and_leaves_what_was_computed() {
    let model = load(request(4096, 1));
    let prompt = PROMPTS.concat().repeat(6);
    let engine = Engine::builder(&model).prompt_chunk(1).start().unwrap();
    // In the middle of its prompt.
    let answer = engine.submit(greedy(&model, &prompt, 10)).unwrap();
    until(&engine, |it| it.prompt_tokens > 0);
    drop(answer);
    until(&engine, |it| it.running == 0);
    assert_eq!(engine.metrics().generated_tokens, 0);
    drop(engine);
    // In the middle of its text.
    let engine = Engine::builder(&model).ahead(4).start().unwrap();
    let mut answer = engine.submit(greedy(&model, &prompt, LONG)).unwrap();
    answer.pieces().next().unwrap().unwrap();
    drop(answer);
    until(&engine, |it| it.running == 0);
    assert!(
        engine.metrics().generated_tokens <= 6,
        "{:?}",
        engine.metrics()
    );
    let again = engine.submit(greedy(&model, &prompt, 10)).unwrap();
    let (text, statistics) = again.into_text().unwrap();
    assert_eq!(statistics.cached_tokens, statistics.prompt_tokens - 1);
    drop(engine);
    assert_eq!(text, alone(&model, &prompt, 10));
}

#[test]
fn a_reader_that_does_not_read_stalls_nobody() {
    for (sequences, unified) in [(1, false), (2, false), (2, true)] {
        let mut request = request(512 * sequences, sequences);
        request.params.kv_unified = unified;
        let model = load(request);
        let engine = Engine::builder(&model).ahead(4).start().unwrap();
        let slow: Vec<_> = (0..3)
            .map(|index| engine.submit(greedy(&model, PROMPTS[index], 100)).unwrap())
            .collect();
        for _ in 0..3 {
            let quick = engine.submit(greedy(&model, PROMPTS[5], 30)).unwrap();
            assert_eq!(quick.into_text().unwrap().1.generated_tokens, 30);
        }
        // They have paused, and given their places up.
        let metrics = engine.metrics();
        assert!(metrics.generated_tokens <= 3 * 30 + 3 * 6, "{metrics:?}");
        assert!(metrics.suspended > 0, "{metrics:?}");
        // And go on when they are read.
        let texts: Vec<_> = slow.into_iter().map(|it| it.into_text().unwrap()).collect();
        drop(engine);
        for (prompt, (text, statistics)) in PROMPTS.iter().zip(texts) {
            // In a shared cache what is computed again lies elsewhere, which rounds otherwise.
            if unified {
                assert!(statistics.generated_tokens == 100, "{statistics}");
            } else {
                assert_eq!(text, alone(&model, prompt, 100), "{sequences}");
            }
            assert!(!statistics.queue_time.is_zero());
        }
    }
}

#[test]
fn an_engine_that_is_shut_down_finishes_what_it_is_told_to() {
    let model = load(request(4096, 1));
    let start = || Engine::builder(&model).ahead(LONG).start().unwrap();
    let begin = |engine: &Engine, tokens| {
        let mut first = engine.submit(greedy(&model, PROMPTS[0], tokens)).unwrap();
        // It runs.
        first.pieces().next().unwrap().unwrap();
        let second = engine.submit(greedy(&model, PROMPTS[1], 20)).unwrap();
        (first, second)
    };
    let count = |answer: Answer| answer.into_text().map(|(_, it)| it.generated_tokens);

    let engine = start();
    let (first, second) = begin(&engine, 50);
    engine.shutdown(Shutdown::Finish);
    assert_eq!(count(first).unwrap(), 50);
    assert_eq!(count(second).unwrap(), 20);
    has_ended(engine.submit(greedy(&model, PROMPTS[0], 1)));
    // The context is free, while handles are left.
    assert_eq!(alone(&model, PROMPTS[0], 1), alone(&model, PROMPTS[0], 1));

    let engine = start();
    let (first, second) = begin(&engine, LONG);
    engine.shutdown(Shutdown::FinishBegun);
    assert_eq!(count(first).unwrap(), LONG);
    has_ended(count(second));

    let engine = start();
    let (first, mut second) = begin(&engine, LONG);
    engine.close(Shutdown::Finish);
    engine.shutdown(Shutdown::Cancel);
    has_ended(count(first));
    has_ended(second.next().unwrap());
    assert_eq!(second.finish_reason(), Some(FinishReason::Error));
    assert!(second.next().is_none());
}

#[test]
fn dropping_the_last_handle_ends_everything() {
    let model = load(request(4096, 1));
    let engine = Engine::builder(&model).queue(0).start().unwrap();
    let other = engine.clone();
    let running = engine.submit(greedy(&model, PROMPTS[0], LONG)).unwrap();
    let mut waiting = engine.submit_async(greedy(&model, PROMPTS[1], 1));
    assert!(poll(&mut waiting).is_pending());
    drop(engine);
    assert!(matches!(model.session().map(drop), Err(Error::Busy)));
    drop(other);
    model.session().unwrap();
    has_ended(running.into_text());
    let Poll::Ready(refused) = poll(&mut waiting) else {
        panic!("nobody will ever make room");
    };
    has_ended(refused);
}

struct Panics;

impl Wake for Panics {
    fn wake(self: Arc<Self>) {
        panic!("a waker that panics, on the engine's thread");
    }
}

#[test]
fn a_panic_on_the_engines_thread_is_an_error_for_everyone() {
    let model = load(request(4096, 2));
    let expected = alone(&model, PROMPTS[3], 20);
    let engine = Engine::new(&model).unwrap();
    let others: Vec<_> = (0..4)
        .map(|_| engine.submit(greedy(&model, PROMPTS[1], 100)).unwrap())
        .collect();
    let mut answer = engine.submit(greedy(&model, PROMPTS[0], LONG)).unwrap();
    let waker = Waker::from(Arc::new(Panics));
    // It waits behind the others.
    assert!(
        answer
            .poll_piece(&mut Context::from_waker(&waker))
            .is_pending()
    );
    // The panic comes with its first piece.
    until(&engine, |it| it.running + it.queued == 0);
    for other in others {
        match other.into_text() {
            Ok((_, statistics)) => assert_eq!(statistics.generated_tokens, 100),
            outcome => has_ended(outcome),
        }
    }
    has_ended(answer.into_text());
    has_ended(engine.submit(greedy(&model, PROMPTS[0], 1)));
    drop(engine);
    assert_eq!(alone(&model, PROMPTS[3], 20), expected);
}

#[test]
fn a_model_in_a_worker_has_no_engine_here() {
    let worker = WorkerProcess::program(env!("CARGO_BIN_EXE_autoplace-worker"));
    let model = Model::builder(demo_path())
        .threads(1)
        .isolation(Isolation::Process(worker))
        .load()
        .unwrap();
    let refused = Engine::new(&model).map(drop);
    assert!(matches!(refused, Err(Error::Worker(_))), "{refused:?}");
    // Its streams have pieces as any other's.
    let mut stream = greedy(&model, PROMPTS[0], 9).stream().unwrap();
    let pieces: Vec<_> = stream.pieces().map(Result::unwrap).collect();
    assert_eq!(pieces.iter().filter(|it| it.token.is_some()).count(), 9);
    let end = pieces.last().unwrap().end.unwrap();
    assert_eq!(end.reason, FinishReason::MaxTokens);
    assert_eq!(end.statistics, stream.statistics());
    let text: String = pieces.into_iter().map(|it| it.text).collect();
    drop(stream);
    assert_eq!(text, alone(&model, PROMPTS[0], 9));
}
