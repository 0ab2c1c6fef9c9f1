//! Bytes of weights per device: exact, by the buffer types that llama.cpp chooses (llama-model.cpp:1080-1180,
//! llama-model-loader.cpp:1116-1390).

use crate::gguf::TensorType;
use crate::memory::backend::BackendRules;
use crate::memory::context::ContextParams;
use crate::profile::{ModelProfile, Weight};

use super::{Assignment, Pinned, Place};

/// The bytes of one layer's weights on each device, summed up once.
#[derive(Debug, Clone, Default)]
struct Layer {
    /// On each GPU, by its rules.
    gpus: Vec<u64>,
    /// On the host.
    host: u64,
    /// The largest matrix, which a GPU may be lent for a large batch.
    largest: u64,
    /// Where it lies in the files: (shard, begin, end).
    spans: Vec<(usize, u64, u64)>,
}

impl Layer {
    fn of<'a>(weights: impl IntoIterator<Item = &'a Weight>, rules: &[BackendRules]) -> Self {
        let mut layer = Self {
            gpus: vec![0; rules.len()],
            ..Self::default()
        };
        for weight in weights {
            for (bytes, rules) in layer.gpus.iter_mut().zip(rules) {
                *bytes = bytes.saturating_add(alloc(rules, weight));
            }
            layer.host = layer
                .host
                .saturating_add(alloc(&BackendRules::HOST, weight));
            if weight.is_matrix() {
                layer.largest = layer.largest.max(weight.bytes);
            }
            let end = weight.offset.saturating_add(weight.bytes);
            extend_span(&mut layer.spans, (weight.shard, weight.offset, end));
        }
        layer
    }
}

fn alloc(rules: &BackendRules, weight: &Weight) -> u64 {
    rules.alloc(weight.ty, weight.shape[0], weight.bytes)
}

fn extend_span(spans: &mut Vec<(usize, u64, u64)>, (shard, begin, end): (usize, u64, u64)) {
    match spans.iter_mut().find(|span| span.0 == shard) {
        Some(span) => {
            span.1 = span.1.min(begin);
            span.2 = span.2.max(end);
        }
        None => spans.push((shard, begin, end)),
    }
}

/// The bytes of weights of one assignment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct WeightCost {
    /// On each GPU.
    pub(super) gpus: Vec<u64>,
    /// On the host.
    pub(super) host: u64,
    /// The file's bytes between the first and the last of the host's weights.
    pub(super) mapped: u64,
    /// The largest matrix among the host's blocks.
    pub(super) largest_host_block: u64,
    /// The output matrix, where the host keeps it.
    pub(super) host_output: u64,
}

/// A model's weights, summed up per layer for the GPUs at hand.
#[derive(Debug, Clone)]
pub(super) struct WeightTable {
    input: Layer,
    blocks: Vec<Layer>,
    output: Layer,
    /// The copy of the token embedding that a tied output needs on its device; empty otherwise.
    tied: Layer,
    rope: Layer,
    /// Whether the CPU keeps the tied embedding twice when the output layer is its own.
    host_duplicates_tied: bool,
}

impl WeightTable {
    pub(super) fn new(
        profile: &ModelProfile,
        rules: &[BackendRules],
        pinned: Pinned,
        params: &ContextParams,
    ) -> Self {
        let weights = &profile.weights;
        let tied = weights
            .tied_output
            .then(|| weights.output_matrix())
            .flatten();
        // Both uses of the embedding share one tensor where both choose one buffer type (llama-model-loader.cpp:1371). They
        // choose different ones where the CPU repacks matrices but not embeddings (unless a GPU's pinned memory comes first in the
        // list), and, unless the file is mapped, where the GPU's pinned memory takes a matrix but no embedding of that type.
        let repacked = pinned != Pinned::Yes && params.repack;
        let host_duplicates_tied = tied.is_some_and(|weight| {
            (repacked && repacks(weight.ty)) || (pinned != Pinned::No && !params.mmap)
        });
        Self {
            input: Layer::of(&weights.input, rules),
            blocks: weights
                .blocks
                .iter()
                .map(|block| Layer::of(&block.weights, rules))
                .collect(),
            output: Layer::of(weights.output.iter().chain(&weights.unplaced), rules),
            tied: Layer::of(tied, rules),
            rope: Layer::of(&weights.rope, rules),
            host_duplicates_tied,
        }
    }

    /// Bytes of the weights under this assignment.
    pub(super) fn cost(&self, assignment: &Assignment) -> WeightCost {
        let mut cost = WeightCost {
            gpus: vec![0; self.input.gpus.len()],
            ..WeightCost::default()
        };
        let mut spans = Vec::new();
        let mut put = |layer: &Layer, place| match place {
            Place::Gpu(gpu) => cost.gpus[gpu] = cost.gpus[gpu].saturating_add(layer.gpus[gpu]),
            Place::Host => {
                cost.host = cost.host.saturating_add(layer.host);
                for &span in &layer.spans {
                    extend_span(&mut spans, span);
                }
            }
        };
        put(&self.input, Place::Host);
        for (block, &place) in self.blocks.iter().zip(&assignment.blocks) {
            put(block, place);
        }
        put(&self.output, assignment.output);
        if assignment.output != Place::Host || self.host_duplicates_tied {
            put(&self.tied, assignment.output);
        }
        // One copy per buffer type that holds a block.
        for gpu in 0..self.input.gpus.len() {
            if assignment.holds_block(Place::Gpu(gpu)) {
                put(&self.rope, Place::Gpu(gpu));
            }
        }
        if assignment.holds_block(Place::Host) {
            put(&self.rope, Place::Host);
        }
        cost.mapped = spans
            .iter()
            .fold(0, |sum: u64, span| sum.saturating_add(span.2 - span.1));
        let on_host = |&(_, &place): &(&Layer, &Place)| place == Place::Host;
        cost.largest_host_block = self
            .blocks
            .iter()
            .zip(&assignment.blocks)
            .filter(on_host)
            .map(|(block, _)| block.largest)
            .max()
            .unwrap_or(0);
        if assignment.output == Place::Host {
            cost.host_output = self.output.largest.max(self.tied.largest);
        }
        cost
    }
}

/// Whether this CPU may rearrange matrices of this type (ggml-cpu/repack.cpp:4974-5110). What it does depends on its instruction
/// set, of which only the architecture is known here; the rearranged matrix is as large as before.
const fn repacks(ty: TensorType) -> bool {
    let everywhere = matches!(
        ty,
        TensorType::Q4_0
            | TensorType::Q2_K
            | TensorType::Q4_K
            | TensorType::IQ4_NL
            | TensorType::MXFP4
    );
    // Only the kernels for Arm and RISC-V take these.
    let elsewhere = matches!(
        ty,
        TensorType::Q1_0 | TensorType::Q8_0 | TensorType::Q5_K | TensorType::Q6_K
    );
    everywhere || (elsewhere && !cfg!(any(target_arch = "x86_64", target_arch = "x86")))
}
