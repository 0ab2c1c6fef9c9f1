//! What the tests of the engine share: the demo model, loaded so that a text is the same in every shape of batch.

#![allow(dead_code, reason = "each test file uses its part")]

use autoplace::Model;
use autoplace::generate::Generate;
use autoplace::memory::FlashAttention;
use autoplace::plan::{Context, Request};

use crate::native_support::demo_path;

pub(crate) const PROMPTS: [&str; 8] = [
    "And the king said unto his servants,",
    "In the beginning God created",
    "And it came to pass in those days that",
    "The first song of David, when he",
    "Blessed is the man that",
    "And Moses went up from the plains of Moab unto the mountain of",
    "Now these are the names of the children of",
    "Praise ye the LORD.",
];

/// The CPU's fused attention has another rounding for 64 tokens and more than for fewer; the plain one has the
/// same for any number.
pub(crate) fn request(n_ctx: u32, n_seq_max: u32) -> Request {
    let mut request = Request::new()
        .n_seq_max(n_seq_max)
        .context(Context::Tokens(n_ctx));
    request.params.flash_attn = FlashAttention::Off;
    request
}

pub(crate) fn load(request: Request) -> Model {
    let builder = Model::builder(demo_path()).request(request).threads(1);
    builder.load().unwrap()
}

pub(crate) fn greedy(model: &Model, prompt: &str, tokens: usize) -> Generate {
    model.generate(prompt).temperature(0.0).max_tokens(tokens)
}
