//! What generating one token reads: the bytes of each layer that must come from memory.

use crate::memory::ContextParams;
use crate::profile::{BlockState, ModelProfile, Role, Weight};

/// Bytes that one generated token reads, layer by layer, the output layer last.
///
/// A token reads every weight of a block once, but of the experts only those it uses; of the token embedding one row, which is
/// nothing; and every key and value that it attends to.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Traffic {
    /// Weights.
    pub weights: Vec<u64>,
    /// Keys and values, or recurrent state (read and written).
    pub kv: Vec<u64>,
}

impl Traffic {
    /// The traffic of a token that has `depth` others before it.
    #[must_use]
    pub fn of(profile: &ModelProfile, params: &ContextParams, depth: u32) -> Self {
        // What predicts further tokens has no part in one that is not predicted.
        let trunk = profile.hparams.n_layer_trunk() as usize;
        let idle = |index| profile.predicts() && index >= trunk;
        let blocks = profile.weights.blocks.iter().enumerate();
        let used = |weight: &Weight| used_bytes(profile, weight);
        let sum = |weights: &mut dyn Iterator<Item = &Weight>| {
            weights.map(used).fold(0, u64::saturating_add)
        };
        let output = profile.weights.output.iter();
        // Where the output is tied to the embedding, the embedding is read whole for the logits.
        let tied = profile.weights.output_matrix();
        let tied = tied.filter(|_| profile.weights.tied_output);
        let weights = blocks
            .map(|(index, block)| match idle(index) {
                true => 0,
                false => sum(&mut block.weights.iter()),
            })
            .chain([sum(&mut output.chain(tied))])
            .collect();
        let every = profile.hparams.every_block_in_full();
        let states = profile.state.blocks().unwrap_or(&every);
        let kv = states
            .iter()
            .map(|state| state_bytes(state, params, depth))
            .chain([0])
            .collect();
        Self { weights, kv }
    }

    /// All bytes of a token.
    #[must_use]
    pub fn total(&self) -> u64 {
        let all = self.weights.iter().chain(&self.kv);
        all.fold(0, |sum, &bytes| sum.saturating_add(bytes))
    }
}

/// What a token reads of a weight of a block: of experts its share.
pub(in crate::plan) fn used_bytes(profile: &ModelProfile, weight: &Weight) -> u64 {
    match &profile.hparams.experts {
        Some(experts) if weight.role == Role::Experts => {
            let used = u128::from(experts.used) * u128::from(weight.bytes);
            let share = used / u128::from(experts.count).max(1);
            u64::try_from(share).unwrap_or(u64::MAX).min(weight.bytes)
        }
        _ => weight.bytes,
    }
}

/// What a token reads of a block's state.
fn state_bytes(state: &BlockState, params: &ContextParams, depth: u32) -> u64 {
    let rows = |k: u32, v: u32, tokens: u32| {
        let keys = params.type_k.tensor_type().row_bytes(u64::from(k));
        let values = params.type_v.tensor_type().row_bytes(u64::from(v));
        keys.saturating_add(values)
            .saturating_mul(u64::from(tokens))
    };
    // Read and written, in 32-bit floats.
    let recurrent = |r: u32, s: u32| (u64::from(r) + u64::from(s)) * 8;
    match *state {
        BlockState::Full(cache) => rows(cache.k, cache.v, depth),
        BlockState::Windowed { state, window } => rows(state.k, state.v, depth.min(window)),
        BlockState::Compressed { k } => rows(k, 0, depth),
        BlockState::CompressedWindowed { k, window } => rows(k, 0, depth.min(window)),
        // At most: the index chooses among the keys, how many is a matter of the header and of the depth.
        BlockState::Indexed(state) => {
            rows(state.k, state.v.unwrap_or(0), depth).saturating_add(rows(state.index_k, 0, depth))
        }
        BlockState::Distilled(state) => {
            let before = state.distilled.map_or(0, |distilled| {
                let keys = depth / distilled.ratio.max(1);
                let index = rows(distilled.index_k.unwrap_or(0), 0, keys);
                rows(state.k, 0, keys).saturating_add(index)
            });
            rows(state.k, 0, depth.min(state.window)).saturating_add(before)
        }
        BlockState::Recurrent(state) => recurrent(state.r, state.s),
        BlockState::FullAndRecurrent(cache, state) => {
            rows(cache.k, cache.v, depth).saturating_add(recurrent(state.r, state.s))
        }
        BlockState::None => 0,
    }
}
