//! Simulated cards, plans for them, and texts: what the tests of re-placing a model share.

#![allow(dead_code, reason = "each test file uses its part")]

use std::path::Path;

use autoplace::generate::{Error, Generate, SequenceId, Session};
use autoplace::load;
use autoplace::memory::Headroom;
use autoplace::plan::{GpuLayers, Plan, Request};
use autoplace::{Model, ModelBuilder};

pub(crate) const PROMPT: &str = "And the king said unto his servants,";

/// A request that leaves cards what a warm-up makes buffers grow by. Nothing is repacked, so that host and cards
/// compute the same to the last bit.
pub(crate) fn request() -> Request {
    let mut request = Request::new().headroom(Headroom::Bytes(256 << 10));
    request.params.repack = false;
    request
}

/// A load that is tried once: what a plan lacks is an error, and no other plan.
pub(crate) fn builder(path: &Path, request: &Request) -> ModelBuilder {
    Model::builder(path).request(request.clone()).n_threads(1).attempts(1)
}

/// A plan with so many layers on cards, for what is free now.
pub(crate) fn plan(path: &Path, request: &Request, layers: u32) -> Plan {
    let exactly = request.clone().n_gpu_layers(GpuLayers::Exactly(layers));
    builder(path, &exactly).plan().unwrap()
}

/// Loads by a plan of [`plan`].
pub(crate) fn load(path: &Path, request: &Request, layers: u32) -> Model {
    let exactly = request.clone().n_gpu_layers(GpuLayers::Exactly(layers));
    builder(path, &exactly).load().unwrap()
}

/// Re-places it as soon as nobody generates.
pub(crate) fn replace(model: &Model, plan: Option<&Plan>) {
    while let Err(error) = model.replace(plan.cloned()) {
        assert!(matches!(error, load::Error::Busy), "{error}");
    }
}

/// Greedy, and by chance with a penalty: everything that a sampler remembers.
pub(crate) fn generations(model: &Model, prompt: &str, tokens: usize) -> [Generate; 2] {
    [
        model.generate(prompt).temp(0.0).repeat_penalty(1.2).max_tokens(tokens),
        model.generate(prompt).seed(7).temp(1.2).repeat_penalty(1.3).max_tokens(tokens),
    ]
}

/// The text of a stream, with something done before each of its pieces.
pub(crate) fn text_of(
    generate: Generate,
    mut before_piece: impl FnMut(&mut autoplace::generate::TokenStream, usize),
) -> String {
    let mut stream = generate.stream().unwrap();
    let mut text = String::new();
    for index in 0.. {
        before_piece(&mut stream, index);
        match stream.next() {
            Some(piece) => text.push_str(&piece.unwrap()),
            None => break,
        }
    }
    text
}

/// Runs a session to its end, with something done before each step. The texts in the order in which they were begun.
pub(crate) fn texts_of(
    session: &mut Session,
    begun: &[SequenceId],
    mut before_step: impl FnMut(&mut Session, usize),
) -> Result<Vec<String>, Error> {
    let mut texts = vec![String::new(); begun.len()];
    let mut steps = 0;
    while !session.is_empty() {
        before_step(session, steps);
        steps += 1;
        for piece in session.step()? {
            let at = begun.iter().position(|id| *id == piece.sequence).unwrap();
            texts[at].push_str(&piece.text);
        }
    }
    Ok(texts)
}
