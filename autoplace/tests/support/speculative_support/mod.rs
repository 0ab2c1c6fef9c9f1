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
pub(crate) struct Completion {
    pub(crate) text: String,
    pub(crate) tokens: Vec<Token>,
    pub(crate) reason: Option<FinishReason>,
}

/// Runs a session of one text to its end. After every fourth step it is re-placed by the next of these plans, and
/// restored each time.
fn run(session: &mut Session, plans: &[Plan]) -> (Completion, Statistics) {
    let (mut completion, mut statistics) = (Completion::default(), Statistics::default());
    let mut plans = plans.iter().cycle();
    for step in 0.. {
        if session.is_empty() {
            break;
        }
        if step % 5 == 4
            && let Some(next) = plans.next()
        {
            assert_eq!(session.replace(Some(next.clone())).unwrap().resumed, Resumed::Restored);
        }
        for piece in session.step().unwrap() {
            completion.text.push_str(&piece.text);
            completion.tokens.extend(piece.token);
            if let Some(end) = piece.end {
                (completion.reason, statistics) = (Some(end.reason), end.statistics);
            }
        }
    }
    (completion, statistics)
}

/// As [`run`]: its tokens, and its statistics.
pub(crate) fn run_replacing(session: &mut Session, plans: &[Plan]) -> (Vec<Token>, Statistics) {
    let (completion, statistics) = run(session, plans);
    (completion.tokens, statistics)
}

/// A text of a session of its own.
pub(crate) fn alone(model: &Model, generate: Generate) -> (Completion, Statistics) {
    let mut session = model.session().unwrap();
    session.begin(generate).unwrap();
    run(&mut session, &[])
}
