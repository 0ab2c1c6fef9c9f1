//! Helpers that the tests of simulated GPUs share.

use llama_sys::sim::{Rules, SimGpu};
use llama_sys::{Context, ContextParams, Device, Error, Model, ModelParams, Token};

pub(crate) use super::demo_path;

pub(crate) const MIB: u64 = 1 << 20;

/// A prompt of more than 32 tokens. From 32 tokens on, GPUs also compute with the weights on the host.
pub(crate) const PROMPT: &str = "In the beginning God created the heaven and the earth. And the earth was without form, and \
                                 void; and darkness was upon the face of the deep. And the Spirit of God moved upon the face \
                                 of the waters.";

/// The card that most tests use.
pub(crate) fn card(total: u64) -> SimGpu {
    card_by(Rules::Plain, total)
}

/// A card that has the rules of a backend.
pub(crate) fn card_by(rules: Rules, total: u64) -> SimGpu {
    let card = SimGpu::builder("SIM card").total(total);
    card.rules(rules).register().unwrap()
}

pub(crate) const fn vulkan(alignment: u64, max_alloc: u64) -> Rules {
    Rules::Vulkan { alignment, max_alloc }
}

pub(crate) fn params(devices: &[Device], n_gpu_layers: i32) -> ModelParams {
    ModelParams {
        n_gpu_layers,
        devices: Some(devices.to_vec()),
        // Repacked weights would be multiplied in another order. Only with the same order is the text certain to be the
        // same.
        use_extra_bufts: false,
        ..ModelParams::default()
    }
}

/// The demo model on these cards.
pub(crate) fn try_load(cards: &[&SimGpu], n_gpu_layers: i32) -> Result<Model, Error> {
    let devices: Vec<Device> = cards.iter().map(|card| card.device()).collect();
    Model::load(demo_path(), params(&devices, n_gpu_layers))
}

pub(crate) fn load(cards: &[&SimGpu], n_gpu_layers: i32) -> Model {
    try_load(cards, n_gpu_layers).unwrap()
}

/// Parameters of a small context, which is quick. It has one thread, because several tests run at the same time on the
/// same cores.
pub(crate) fn context_params() -> ContextParams {
    ContextParams {
        n_ctx: 256,
        n_batch: 128,
        n_ubatch: 128,
        n_threads: Some(1),
        n_threads_batch: Some(1),
        ..ContextParams::default()
    }
}

pub(crate) fn context(model: &Model) -> Context {
    Context::new(model, context_params()).unwrap()
}

/// The greedy continuation of [`PROMPT`].
pub(crate) fn greedy(context: &mut Context, count: usize) -> Vec<Token> {
    let prompt = super::tokens(PROMPT);
    assert!(prompt.len() > 32, "{} tokens", prompt.len());
    super::greedy(context, &prompt, count)
}

/// Checks that a load has left nothing on these cards.
#[track_caller]
pub(crate) fn are_empty<'a>(cards: impl IntoIterator<Item = &'a SimGpu>) {
    for card in cards {
        assert_eq!((card.used(), card.buffers()), (0, 0));
    }
}
