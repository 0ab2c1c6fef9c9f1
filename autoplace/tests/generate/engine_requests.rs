//! Requests to an engine, on the demo model: how they wait, leave and end, and what happens to them when the engine
//! ends.

use std::sync::Arc;
use std::task::{Context, Wake, Waker};
use std::thread;
use std::time::Duration;

use crate::engine_steps::Gate;
use crate::text_support::{PROMPTS, demo, in_worker, request, text, until};
use autoplace::Model;
use autoplace::generate::{Engine, Error, FinishReason, GenerateRequest, Shutdown, TokenStream};
use futures::FutureExt;
use test_support::demo_path;

/// The length of a text that is cancelled while it is still running.
const LONG: usize = 2000;

/// Two models: the demo model in this process, and the demo model in a worker.
fn everywhere(n_ctx: u32, n_seq_max: u32, unified: bool) -> [Model; 2] {
    let there = in_worker(&demo_path(), request(n_ctx, n_seq_max, unified));
    [demo(n_ctx, n_seq_max, unified), there]
}

fn greedy(model: &Model, prompt: &str, tokens: usize) -> GenerateRequest {
    model.generate(prompt).temp(0.0).max_tokens(tokens)
}

fn alone(model: &Model, prompt: &str, tokens: usize) -> String {
    text(greedy(model, prompt, tokens))
}

#[track_caller]
fn has_ended<T>(outcome: Result<T, Error>) {
    assert_matches!(outcome.map(drop), Err(Error::EngineEnded));
}

#[test]
fn a_full_queue_refuses_and_a_text_that_leaves_it_makes_room() {
    for model in everywhere(2048, 1, false) {
        let engine = Engine::builder(&model).queue(2).ahead(4).start().unwrap();
        let submit = |prompt| engine.try_submit(greedy(&model, prompt, LONG));
        let first = submit(PROMPTS[0]).unwrap();
        let second = submit(PROMPTS[1]).unwrap();
        let third = submit(PROMPTS[2]).unwrap();
        assert_matches!(submit(PROMPTS[3]), Err(Error::QueueFull { queue: 2 }));
        drop(third);
        let fourth = submit(PROMPTS[3]).unwrap();
        until(&engine, |metrics| metrics.queued + metrics.running == 3);
        drop((second, fourth, first));
        until(&engine, |metrics| metrics.queued + metrics.running == 0);
    }
}

#[test]
fn waiting_callers_get_a_place_in_their_order() {
    for model in everywhere(2048, 1, false) {
        let engine = Engine::builder(&model).queue(0).ahead(4).start().unwrap();
        let running = engine.submit(greedy(&model, PROMPTS[0], LONG)).unwrap();
        let submit = || Box::pin(engine.submit_async(greedy(&model, PROMPTS[1], LONG)));
        let mut waiting = [submit(), submit(), submit()];
        assert!(waiting.iter_mut().all(|future| future.now_or_never().is_none()));
        drop(running);
        until(&engine, |metrics| metrics.queued + metrics.running == 0);
        // The place belongs to the caller that waits first, and no later caller may take it.
        let [first, mut second, mut third] = waiting;
        assert!((&mut second).now_or_never().is_none());
        assert_matches!(engine.try_submit(greedy(&model, PROMPTS[1], 4)), Err(Error::QueueFull { queue: 0 }));
        // If a caller gives up, the next caller gets its place.
        drop(first);
        let answer = wait_for(second);
        assert!((&mut third).now_or_never().is_none());
        drop(answer);
        until(&engine, |metrics| metrics.queued + metrics.running == 0);
        wait_for(third);
    }
}

/// Waits for the text of a future that already has a place in the queue. If there is a worker, it may still have to
/// check the request.
fn wait_for(mut future: impl Future<Output = Result<TokenStream, Error>> + Unpin) -> TokenStream {
    loop {
        if let Some(answer) = (&mut future).now_or_never() {
            return answer.unwrap();
        }
        thread::yield_now();
    }
}

#[test]
fn a_dropped_text_ends_and_its_computed_tokens_stay() {
    for model in everywhere(4096, 1, false) {
        let prompt = PROMPTS.concat().repeat(6);
        let engine = Engine::builder(&model).prompt_chunk(1).start().unwrap();
        // The text is dropped while its prompt is being computed, one token after the other.
        let answer = engine.submit(greedy(&model, &prompt.repeat(5), 10)).unwrap();
        if model.worker_id().is_none() {
            until(&engine, |metrics| metrics.prompt_tokens > 0);
        }
        drop(answer);
        until(&engine, |metrics| metrics.queued + metrics.running == 0);
        assert_eq!(engine.metrics().generated_tokens, 0);
        drop(engine);
        // The text is dropped while its answer is being generated.
        let engine = Engine::builder(&model).ahead(4).start().unwrap();
        let mut answer = engine.submit(greedy(&model, &prompt, LONG)).unwrap();
        answer.pieces().next().unwrap().unwrap();
        drop(answer);
        until(&engine, |metrics| metrics.running == 0);
        assert!(engine.metrics().generated_tokens < LONG as u64, "{:?}", engine.metrics());
        let (text, statistics) = engine.submit(greedy(&model, &prompt, 10)).unwrap().into_text().unwrap();
        assert_eq!(statistics.cached_tokens, statistics.prompt_tokens - 1);
        drop(engine);
        assert_eq!(text, alone(&model, &prompt, 10));
    }
}

#[test]
fn a_reader_that_does_not_read_stalls_nobody() {
    for (sequences, unified) in [(1, false), (2, false), (2, true)] {
        let model = demo(512 * sequences, sequences, unified);
        let engine = Engine::builder(&model).ahead(4).start().unwrap();
        let slow: Vec<_> = (0..3).map(|index| engine.submit(greedy(&model, PROMPTS[index], 100)).unwrap()).collect();
        for _ in 0..3 {
            let quick = engine.submit(greedy(&model, PROMPTS[5], 30)).unwrap();
            assert_eq!(quick.into_text().unwrap().1.generated_tokens, 30);
        }
        // The texts have given up their sequences.
        let metrics = engine.metrics();
        assert!(metrics.generated_tokens <= 3 * 30 + 3 * 6, "{metrics:?}");
        until(&engine, |metrics| metrics.running == 0 && metrics.queued == 3);
        // When the texts are read, they continue.
        let texts: Vec<_> = slow.into_iter().map(|answer| answer.into_text().unwrap()).collect();
        drop(engine);
        for (prompt, (text, statistics)) in PROMPTS.iter().zip(texts) {
            // In a shared cache, tokens that are computed again lie in other cells. So they are rounded in another way.
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
fn an_engine_that_is_shut_down_finishes_what_it_is_asked_to() {
    for model in everywhere(4096, 1, false) {
        let start = || Engine::builder(&model).ahead(LONG).start().unwrap();
        let begin = |engine: &Engine, tokens| {
            let mut first = engine.submit(greedy(&model, PROMPTS[0], tokens).ignore_eos()).unwrap();
            // Now the first text is running.
            first.pieces().next().unwrap().unwrap();
            let second = engine.submit(greedy(&model, PROMPTS[1], 20)).unwrap();
            (first, second)
        };
        let count = |answer: TokenStream| answer.into_text().map(|(_, statistics)| statistics.generated_tokens);

        let engine = start();
        let (first, second) = begin(&engine, 50);
        engine.shutdown(Shutdown::Finish);
        assert_eq!(count(first).unwrap(), 50);
        assert_eq!(count(second).unwrap(), 20);
        has_ended(engine.submit(greedy(&model, PROMPTS[0], 1)));
        // Handles of the engine still exist, but the context is free.
        assert_eq!(alone(&model, PROMPTS[0], 1), alone(&model, PROMPTS[0], 1));

        // Texts that have begun are finished. Texts that wait are not.
        let engine = start();
        // The first text is long, so that the second one certainly still waits.
        let (first, second) = begin(&engine, LONG / 2);
        engine.close(Shutdown::FinishBegun);
        has_ended(engine.submit(greedy(&model, PROMPTS[0], 1)));
        assert_eq!(count(first).unwrap(), LONG / 2);
        has_ended(count(second));
        engine.shutdown(Shutdown::FinishBegun);

        // Each text is finished in time, or it is cut short.
        let engine = start();
        let (first, second) = begin(&engine, 50);
        assert!(engine.shutdown_within(Duration::from_secs(600)));
        assert_eq!([count(first).unwrap(), count(second).unwrap()], [50, 20]);
        assert!(engine.shutdown_within(Duration::ZERO), "it has ended before");
        let engine = start();
        let (first, second) = begin(&engine, LONG);
        assert!(!engine.shutdown_within(Duration::ZERO));
        has_ended(count(first));
        has_ended(count(second));
        assert_eq!(alone(&model, PROMPTS[0], 1), alone(&model, PROMPTS[0], 1));

        let engine = start();
        let (first, mut second) = begin(&engine, LONG);
        engine.close(Shutdown::Finish);
        engine.shutdown(Shutdown::Cancel);
        has_ended(count(first));
        has_ended(second.next().unwrap());
        assert_eq!(second.finish_reason(), Some(FinishReason::Error));
        assert!(second.next().is_none());
    }
}

#[test]
fn dropping_the_last_handle_ends_everything() {
    let model = demo(4096, 1, false);
    let engine = Engine::new(&model).unwrap();
    let other = engine.clone();
    let running = engine.submit(greedy(&model, PROMPTS[0], LONG)).unwrap();
    drop(engine);
    assert!(matches!(model.session().map(drop), Err(Error::Busy)));
    drop(other);
    model.session().unwrap();
    has_ended(running.into_text());
}

struct Panics;

impl Wake for Panics {
    fn wake(self: Arc<Self>) {
        panic!("a waker that panics, on the engine's thread");
    }
}

#[test]
fn a_panic_on_the_engines_thread_is_an_error_for_everyone() {
    let model = demo(4096, 2, false);
    let expected = alone(&model, PROMPTS[3], 20);
    let engine = Engine::new(&model).unwrap();
    let gate = Gate::default();
    let held = |_| engine.submit(gate.generate(&model, PROMPTS[1]).max_tokens(100)).unwrap();
    let others: Vec<_> = (0..4).map(held).collect();
    let mut answer = engine.submit(greedy(&model, PROMPTS[0], LONG)).unwrap();
    let waker = Waker::from(Arc::new(Panics));
    // This text waits until the others have ended.
    assert!(answer.poll_piece(&mut Context::from_waker(&waker)).is_pending());
    gate.leave(4 * 100);
    // The panic is reported with the first piece of the text.
    until(&engine, |metrics| metrics.running + metrics.queued == 0);
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
