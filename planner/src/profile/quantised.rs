//! The same model in another quantisation: other types, other bytes, nothing else.

use crate::gguf::TensorType;

use super::{ModelProfile, Quantisation, Weight, WeightBytes};

/// What data in a file begins at multiples of (`GGUF_DEFAULT_ALIGNMENT`), in bytes.
const ALIGNMENT: u64 = 32;

impl ModelProfile {
    /// This model in another quantisation, about: each matrix of a block has the quantisation's bits per element, where
    /// `llama-quantize` gives some more and some fewer. Together they are within a hundredth of published files. What
    /// is not quantised in this file (norms, routers), or has rows of no whole blocks, stays as it is.
    #[must_use]
    pub fn quantised(&self, quantisation: Quantisation) -> Self {
        if self.file_type == Some(quantisation.name()) {
            return self.clone();
        }
        let mut weights = self.weights.clone();
        let before = sum(&mut weights);
        retype(quantisation, &mut weights);
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

fn retype(quantisation: Quantisation, weights: &mut WeightBytes) {
    let mut all = all(weights);
    let tied = all.iter().all(|weight| weight.name != "output.weight");
    for weight in &mut all {
        let ty = match weight.name.as_str() {
            "output.weight" => quantisation.output_type(),
            "token_embd.weight" if tied => quantisation.output_type(),
            _ => quantisation.default_type(),
        };
        let is_kept = weight.ty == TensorType::F32 || !weight.name.ends_with(".weight");
        if is_kept || !weight.shape[0].is_multiple_of(ty.block_size()) {
            continue;
        }
        let elements = weight
            .shape
            .iter()
            .fold(1, |all: u64, &n| all.saturating_mul(n));
        let rows = elements / weight.shape[0].max(1);
        weight.bytes = if weight.name.starts_with("blk.") {
            bytes_of(elements, quantisation.block_bits())
        } else {
            ty.row_bytes(weight.shape[0]).saturating_mul(rows)
        };
        weight.ty = ty;
    }
}

#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss
)]
fn bytes_of(elements: u64, bits: f64) -> u64 {
    (elements as f64 * bits / 8.0).ceil() as u64
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
