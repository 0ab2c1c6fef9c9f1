//! The same model in another quantisation, as `llama-quantize` would write it: other types, other bytes, nothing else.

use super::mixture::{Mixture, block_of};
use super::{ModelProfile, Quantisation, Weight, WeightBytes};

/// What data in a file begins at multiples of (`GGUF_DEFAULT_ALIGNMENT`), in bytes.
const ALIGNMENT: u64 = 32;

impl ModelProfile {
    /// This model in another quantisation, made from the original weights as `llama-quantize` does it: every matrix has the type that
    /// its rules choose (llama-quant.cpp), norms and whatever else it leaves alone stay as they are here.
    ///
    /// Bytes of the weights are to the byte those of a file that `llama-quantize` writes with an importance matrix; others choose types
    /// by rules of their own.
    #[must_use]
    pub fn quantised(&self, quantisation: Quantisation) -> Self {
        let mut weights = self.weights.clone();
        let before = sum(&mut weights);
        retype(self, quantisation, &mut weights);
        arrange(&mut weights);
        let after = sum(&mut weights);
        Self {
            file_type: Some(quantisation.name()),
            file_bytes: self.file_bytes.saturating_sub(before).saturating_add(after),
            weights,
            ..self.clone()
        }
    }
}

/// All that the file holds.
fn all(weights: &mut WeightBytes) -> Vec<&mut Weight> {
    let blocks = weights.blocks.iter_mut();
    weights
        .input
        .iter_mut()
        .chain(blocks.flat_map(|block| block.weights.iter_mut()))
        .chain(&mut weights.output)
        .chain(&mut weights.rope)
        .chain(&mut weights.skipped)
        .chain(&mut weights.unplaced)
        .collect()
}

fn sum(weights: &mut WeightBytes) -> u64 {
    let each = all(weights).into_iter().map(|weight| weight.bytes);
    each.fold(0, u64::saturating_add)
}

fn retype(profile: &ModelProfile, quantisation: Quantisation, weights: &mut WeightBytes) {
    let mut all = all(weights);
    // What is of no block comes first.
    all.sort_by(|a, b| {
        let key = |weight: &Weight| block_of(&weight.name);
        let by_block = key(a).cmp(&key(b));
        by_block.then_with(|| a.name.cmp(&b.name))
    });
    let names = all.iter().map(|weight| weight.name.as_str());
    let mut mixture = Mixture::new(quantisation, profile, names);
    for weight in all {
        let ty = mixture.next(weight);
        if ty == weight.ty {
            continue;
        }
        let rows = weight.shape[1..]
            .iter()
            .fold(1, |rows: u64, &n| rows.saturating_mul(n));
        weight.ty = ty;
        weight.bytes = ty.row_bytes(weight.shape[0]).saturating_mul(rows);
    }
}

/// Puts the data of each shard one after the other, in the order in which it was.
fn arrange(weights: &mut WeightBytes) {
    let mut all = all(weights);
    all.sort_by_key(|weight| (weight.shard, weight.offset));
    let mut end = None;
    for weight in all {
        match end {
            Some((shard, end)) if shard == weight.shard => weight.offset = end,
            // Where the data of a shard begins does not change.
            _ => {}
        }
        let after = weight.offset.saturating_add(weight.bytes);
        let after = after.checked_next_multiple_of(ALIGNMENT).unwrap_or(after);
        end = Some((weight.shard, after));
    }
}
