//! Helpers that the integration tests share.

#![allow(dead_code, reason = "each test file uses its part")]

pub(crate) mod sim;

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use llama_sys::{Batch, Context, ContextParams, Error, Model, ModelParams, Sampler, Token};

/// The model that is in the repository.
pub(crate) fn demo_path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/model/autoplace-demo-q8_0.gguf")
}

/// Parameters without any device but the CPU.
pub(crate) fn cpu() -> ModelParams {
    ModelParams { devices: Some(Vec::new()), ..ModelParams::default() }
}

/// The demo model on the CPU. It is loaded once in each process of tests.
pub(crate) fn demo_model() -> Model {
    static MODEL: OnceLock<Model> = OnceLock::new();
    let load = || Model::load(demo_path(), cpu()).expect("the demo model loads");
    MODEL.get_or_init(load).clone()
}

/// A context of the demo model.
pub(crate) fn cpu_context(params: ContextParams) -> Context {
    // Contexts have one thread, because several tests run at the same time on the same cores.
    let params = ContextParams { n_threads: Some(1), n_threads_batch: Some(1), ..params };
    Context::new(&demo_model(), params).expect("the demo model makes a context")
}

pub(crate) fn tokens(text: &str) -> Vec<Token> {
    demo_model().vocab().tokenize(text, true, false).unwrap()
}

/// A batch with these tokens of sequence 0 from a position on; the last one is an output.
pub(crate) fn batch_of(tokens: &[Token], start: i32) -> Batch {
    let mut batch = Batch::with_capacity(tokens.len());
    for (offset, &token) in tokens.iter().enumerate() {
        batch.add(token, start + offset as i32, 0, offset + 1 == tokens.len());
    }
    batch
}

/// Decodes these tokens, then chooses greedily `count` times.
pub(crate) fn greedy(context: &mut Context, tokens: &[Token], count: usize) -> Vec<Token> {
    let mut sampler = Sampler::chain(context.model()).unwrap().greedy().unwrap();
    let mut all = tokens.to_vec();
    let mut batch = batch_of(tokens, 0);
    while all.len() < tokens.len() + count {
        context.decode(&batch).unwrap();
        let token = sampler.sample(context, -1).unwrap();
        batch = batch_of(&[token], all.len() as i32);
        all.push(token);
    }
    all.split_off(tokens.len())
}

/// The parameter that is refused, according to an error.
#[track_caller]
pub(crate) fn refused<T: std::fmt::Debug>(result: Result<T, Error>) -> &'static str {
    match result {
        Err(Error::InvalidParameter { name, .. }) => name,
        other => panic!("expected a refused parameter, got {other:?}"),
    }
}
