//! Models with room for draft tokens, and texts: what the tests of speculative decoding share.

#![allow(dead_code, reason = "each test file uses its part")]

pub(crate) mod exact;
pub(crate) mod heads;

use std::path::Path;

use autoplace::generate::{FinishReason, Generate, Resumed, Session, Statistics};
use autoplace::llama_sys::Token;
use autoplace::memory::{FlashAttention, KvType};
use autoplace::plan::{Plan, Request};
use autoplace::{Model, ModelBuilder};

pub(crate) const PROMPT: &str = "Go, come, go,";

/// Room for `draft_max` draft tokens, and nothing that rounds differently for many tokens than for one, as the CPU's
/// fused attention and values of 16 bits do.
pub(crate) fn request(n_ctx: u32, n_seq_max: u32, draft_max: u32) -> Request {
    let mut request = Request::new().n_ctx(n_ctx).n_seq_max(n_seq_max).draft_max(draft_max);
    request.params.flash_attn = FlashAttention::Off;
    request.params.type_k = KvType::F32;
    request.params.type_v = KvType::F32;
    request
}

pub(crate) fn builder(path: &Path, request: Request) -> ModelBuilder {
    Model::builder(path).request(request).n_threads(1).without_learning()
}

pub(crate) fn load(path: &Path, request: Request) -> Model {
    builder(path, request).load().unwrap()
}

/// A text to its end.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Told {
    pub(crate) text: String,
    pub(crate) tokens: Vec<Token>,
    pub(crate) reason: Option<FinishReason>,
}

pub(crate) fn told(generate: Generate) -> (Told, Statistics) {
    let mut stream = generate.stream().unwrap();
    let text = stream.by_ref().map(Result::unwrap).collect();
    let told = Told { text, tokens: Vec::new(), reason: stream.finish_reason() };
    (told, stream.statistics())
}

/// Runs a session to its end: texts and statistics in the order of their beginnings.
pub(crate) fn run(session: &mut Session) -> Vec<(Told, Statistics)> {
    let mut texts = std::collections::BTreeMap::<_, (Told, Statistics)>::new();
    while !session.is_empty() {
        for piece in session.step().unwrap() {
            let (told, statistics) = texts.entry(piece.sequence).or_default();
            assert_eq!(told.reason, None, "nothing comes after the end");
            told.text.push_str(&piece.text);
            told.tokens.extend(piece.token);
            if let Some(end) = piece.end {
                told.reason = Some(end.reason);
                *statistics = end.statistics;
            }
        }
    }
    texts.into_values().collect()
}

/// Runs a session of one text to its end, placed anew by turns with these plans, after every fourth step, and
/// restored each time: its tokens, and its statistics.
pub(crate) fn run_placed_anew(session: &mut Session, plans: &[Plan]) -> (Vec<Token>, Statistics) {
    let (mut tokens, mut statistics) = (Vec::new(), Statistics::default());
    for step in 0.. {
        if session.is_empty() {
            break;
        }
        if step % 5 == 4 {
            let next = plans[step / 5 % plans.len()].clone();
            assert_eq!(session.replace(Some(next)).unwrap().resumed, Resumed::Restored);
        }
        for piece in session.step().unwrap() {
            tokens.extend(piece.token);
            if let Some(end) = piece.end {
                statistics = end.statistics;
            }
        }
    }
    (tokens, statistics)
}

/// A text of a session of its own, with its tokens.
pub(crate) fn alone(model: &Model, generate: Generate) -> (Told, Statistics) {
    let mut session = model.session().unwrap();
    session.begin(generate).unwrap();
    run(&mut session).remove(0)
}

/// Tokens of a prompt, as a generation begins with them.
pub(crate) fn tokens(model: &Model, prompt: &str) -> Vec<Token> {
    model.native().unwrap().vocab().tokenize(prompt, true, false).unwrap()
}
