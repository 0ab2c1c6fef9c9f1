//! Models for several texts at once: their texts run together, and a model gets fewer places where memory is short.

use std::sync::Barrier;
use std::thread;

use autoplace::generate::{self, Engine};
use autoplace::plan::{GpuLayers, Request};
use autoplace::{Isolation, Model};
use autoplace_pool::{ModelHandle, ModelSpec, PoolBuilder};
use libtest_mimic::Failed;
use test_support::demo_path;

use crate::support::{Card, PROMPT, TEXT, TOKENS, alone, builder, request, spec, until};

/// Tokens of context of each text. With this many, a place for one more text takes a considerable part of the card.
const EACH: u32 = 2048;

/// The request for this number of texts at once, with all layers on the card.
fn for_texts(texts: u32) -> Request {
    request().n_ctx(EACH * texts).n_seq_max(texts).n_gpu_layers(GpuLayers::All)
}

fn several(name: &str) -> ModelSpec {
    spec(name).request(for_texts(4))
}

/// Bytes that the model takes of a card with this number of texts at once.
fn held(texts: u32) -> u64 {
    let card = Card::new(1 << 30);
    let model = Model::builder(demo_path()).request(for_texts(texts)).n_threads(1).without_learning().load().unwrap();
    assert!(model.placement().full_offload);
    card.used()
}

/// Eight texts at once, each of which is the text of the model alone.
fn eight_texts(handle: &ModelHandle) -> Result<(), Failed> {
    let prompts: Vec<String> = (0..8).map(|number| format!("{number} times {PROMPT}")).collect();
    let model = alone();
    let expected = prompts.iter().map(|prompt| model.generate(&**prompt).temp(0.0).max_tokens(TOKENS).text());
    let expected: Vec<String> = expected.collect::<Result<_, _>>()?;
    let engine: Engine = handle.engine()?;
    let submit = |prompt: &String| engine.submit(handle.generate(&**prompt).temp(0.0).max_tokens(TOKENS));
    let streams = prompts.iter().map(submit).collect::<Result<Vec<_>, _>>()?;
    for (stream, expected) in streams.into_iter().zip(&expected) {
        assert_eq!(stream.into_text()?.0, *expected);
    }
    Ok(())
}

pub(crate) fn run_together() -> Result<(), Failed> {
    let card = Card::new(256 << 20);
    let pool = builder(&[&card]).model(several("a")).start()?;
    let handle = pool.get("a").wait()?;
    assert_eq!(handle.placement().context.n_seq_max, 4);
    eight_texts(&handle)?;
    let status = pool.status().remove(0);
    assert_eq!((status.in_use, status.n_ctx), (1, Some(EACH)));
    Ok(())
}

/// Many handles ask for the engine at the same time, right after the load, and all get the same one.
pub(crate) fn one_engine() -> Result<(), Failed> {
    let card = Card::new(256 << 20);
    for isolation in [None, Some(Isolation::None)] {
        let pool = isolation.into_iter().fold(builder(&[&card]), PoolBuilder::isolation).model(several("a")).start()?;
        for _ in 0..5 {
            let handle = pool.get("a").wait()?;
            let begin = Barrier::new(8);
            let outcomes: Vec<Result<String, generate::Error>> = thread::scope(|scope| {
                let asked = |handle: ModelHandle| {
                    let begin = &begin;
                    scope.spawn(move || {
                        begin.wait();
                        let engine = handle.engine()?;
                        let stream = engine.submit(handle.generate(PROMPT).temp(0.0).max_tokens(TOKENS))?;
                        Ok(stream.into_text()?.0)
                    })
                };
                let users: Vec<_> = (0..8).map(|_| asked(handle.clone())).collect();
                users.into_iter().map(|user| user.join().expect("no panic")).collect()
            });
            for outcome in outcomes {
                assert_eq!(outcome?, *TEXT);
            }
            drop(handle);
            assert!(pool.unload("a")?);
            until(|| pool.activity().is_settled);
        }
    }
    Ok(())
}

pub(crate) fn fewer_places() -> Result<(), Failed> {
    let (one, four) = (held(1), held(4));
    // Beside a model for four texts there is room for the weights and for one or two texts, but not for four.
    let card = Card::new(four + (one + four) / 2);
    let pool = builder(&[&card]).model(several("a")).model(several("b")).start()?;
    let first = pool.get("a").wait()?;
    assert_eq!(first.placement().context.n_seq_max, 4);
    let second = pool.get("b").wait()?;
    let plan = second.placement();
    let places = plan.context.n_seq_max;
    assert!(plan.full_offload && (1..4).contains(&places), "{plan}");
    // Each text has the same context, and the texts without a place wait for one.
    assert_eq!(plan.context.n_ctx_seq(), EACH);
    for handle in [&first, &second] {
        eight_texts(handle)?;
    }
    assert!(card.peak() <= card.total(), "{} of {}", card.peak(), card.total());
    Ok(())
}
