//! What adapters add to the compute buffers.

use std::collections::BTreeMap;

use crate::memory::context::ContextSizes;
use crate::profile::{Adapted, Layer, ModelProfile};

/// What adapters add to a device's buffer at most, beside a product the two of one pair, and a block's
/// factors where they are copied to the device that computes it.
pub(super) fn most_of_adapters(profile: &ModelProfile, sizes: &ContextSizes) -> u64 {
    let adapted = &profile.adapters.adapted;
    let tokens = sizes.n_tokens;
    let used = profile
        .hparams
        .experts
        .map_or(1, |experts| u64::from(experts.used.max(1)));
    let widths = |one: &Adapted| {
        let copies = if one.a.shape[2] > 1 { used } else { 1 };
        let widths = one.b.shape[1]
            .saturating_mul(2)
            .saturating_add(one.b.shape[0]);
        widths.saturating_mul(copies)
    };
    let widest = adapted.iter().map(widths).max().unwrap_or(0);
    let mut blocks = BTreeMap::<_, u64>::new();
    for one in adapted {
        let block = match one.layer {
            Layer::Input => 0,
            Layer::Block(block) => block + 1,
            Layer::Output => usize::MAX,
        };
        let bytes = blocks.entry(block).or_default();
        *bytes = bytes
            .saturating_add(one.a.bytes)
            .saturating_add(one.b.bytes);
    }
    let factors = blocks.into_values().max().unwrap_or(0);
    let products = widest.saturating_mul(4).saturating_mul(tokens);
    products.saturating_add(factors)
}
