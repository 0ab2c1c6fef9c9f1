//! Models with room for draft tokens. The tests of speculative decoding share them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use autoplace::llama_sys::Token;
use autoplace::memory::{FlashAttention, KvType};
use autoplace::plan::Request;
use autoplace::{Model, ModelBuilder};

use test_support::random_weights;
use test_support::synthetic::in_32_bits;

/// A small model with this architecture. It computes everything in 32 bits. In a llama, attention is full. In an olmo2,
/// three of four blocks have a window.
pub(crate) fn exact(architecture: &str, folder: &Path) -> PathBuf {
    random_weights::write(&in_32_bits(architecture), folder)
}

pub(crate) const PROMPT: &str = "Go, come, go,";

/// A request that leaves room for `draft_max` draft tokens. Some operations, such as the CPU's fused attention and
/// operations on 16-bit values, are rounded in another way for many tokens than for one. The request avoids them.
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

/// A closure that drafts. `answer` follows `prompt`, and the closure returns up to 8 of its tokens. If `noise` is above
/// 0, some of them are wrong, and some are in no vocabulary.
pub(crate) fn oracle(
    prompt: &[Token],
    answer: &[Token],
    noise: u32,
) -> impl FnMut(&[Token], &mut Vec<Token>) + Clone + Send + 'static {
    let whole: Arc<[Token]> = [prompt, answer].concat().into();
    let mut state = noise;
    move |so_far, draft| {
        for &token in whole.iter().skip(so_far.len()).take(8) {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let is_wrong = noise > 0 && state >> 30 == 0;
            draft.push(if is_wrong { (state >> 8) as Token % 600 - 20 } else { token });
        }
    }
}
