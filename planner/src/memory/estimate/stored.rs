//! What an estimate remembers of each weight, so that overrides can be asked by name once the profile is gone: a few
//! numbers, and all names in one string.

use std::ops::Range;

use crate::gguf::TensorType;
use crate::memory::backend::BackendRules;
use crate::profile::{Factor, Layer, ModelProfile, Role, Weight};

/// Of what an architecture marks (models/gemma4.cpp and models/qwen4exp.cpp, `load_arch_tensors`) only tensors above so
/// many bytes are read lazily (llama-model-loader.cpp, `lazy_read::add`).
const LAZY_ABOVE: u64 = 4 << 30;

/// The layer that a weight follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Group {
    /// The host's, always.
    Input,
    /// A block's.
    Block(usize),
    /// The output layer's.
    Output,
    /// The output layer's copy of the token embedding.
    Tied,
    /// A copy on every device that holds a block.
    Rope,
}

/// One weight.
#[derive(Debug, Clone)]
pub(super) struct StoredWeight {
    pub(super) group: Group,
    pub(super) ty: TensorType,
    /// Elements of a row, and rows of a matrix.
    pub(super) ne0: u64,
    pub(super) ne1: u64,
    pub(super) bytes: u64,
    /// Whether its rows are read from the file as they are needed: it is on the host whatever an override says.
    pub(super) lazy: bool,
    /// What it is beside the model's own.
    pub(super) kind: Kind,
    /// What its product does in a feed-forward step, if anything.
    pub(super) feeds: Option<Feeds>,
    name: Range<usize>,
}

/// What a matrix does in a feed-forward step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Feeds {
    /// It widens: `ffn_gate`, `ffn_up`.
    Up,
    /// It narrows again: `ffn_down`.
    Down,
}

impl Feeds {
    fn of(weight: &Weight) -> Option<Self> {
        let feeds = matches!(weight.role, Role::FeedForward | Role::Experts | Role::SharedExperts);
        let down = weight.name.contains("_down");
        (feeds && weight.is_matrix()).then_some(if down { Self::Down } else { Self::Up })
    }
}

/// What a weight is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// The model's.
    Model,
    /// A factor of an adapter, where the weight is whose name it has; neither mapped nor rearranged.
    Lora,
    /// A layer's part of a control vector, on the layer's device whatever overrides say.
    ControlVector,
}

impl StoredWeight {
    /// Bytes that it takes by these rules.
    pub(super) fn alloc(&self, rules: &BackendRules) -> u64 {
        rules.alloc(self.ty, self.ne0, self.bytes)
    }

    /// A matrix of a model, without a name.
    pub(super) fn new(group: Group, ty: TensorType, ne0: u64, ne1: u64) -> Self {
        Self {
            group,
            ty,
            ne0,
            ne1,
            bytes: ty.row_bytes(ne0).saturating_mul(ne1),
            lazy: false,
            kind: Kind::Model,
            feeds: None,
            name: 0..0,
        }
    }

    /// As [`Weight::is_matrix`]. What is beside the model is none that a GPU borrows or the CPU rearranges.
    pub(super) const fn is_matrix(&self) -> bool {
        self.ne1 > 1 && matches!(self.kind, Kind::Model)
    }
}

/// All weights that llama.cpp loads.
#[derive(Debug, Clone, Default)]
pub(super) struct Stored {
    pub(super) weights: Vec<StoredWeight>,
    /// Which blocks use the frequencies of rope.
    pub(super) rope_blocks: Vec<bool>,
    /// Whether the copy for a tied output never shares the embedding.
    pub(super) tied_apart: bool,
    names: String,
}

impl Stored {
    pub(super) fn new(profile: &ModelProfile) -> Self {
        let weights = &profile.weights;
        let mut stored =
            Self { rope_blocks: weights.rope_blocks.clone(), tied_apart: weights.tied_apart, ..Self::default() };
        let count = weights.loaded().count() + 1;
        stored.weights.reserve_exact(count);
        // About what `blk.10.attn_norm.weight` takes.
        stored.names.reserve(count.saturating_mul(24));
        for (index, block) in weights.blocks.iter().enumerate() {
            stored.extend(Group::Block(index), &block.weights);
        }
        stored.extend(Group::Input, &weights.input);
        stored.extend(Group::Output, &weights.output);
        stored.extend(Group::Output, &weights.unplaced);
        stored.extend(Group::Rope, &weights.rope);
        stored.extend_by_adapters(profile);
        let tied = weights.tied_output.then(|| weights.output_matrix());
        stored.extend(Group::Tied, tied.flatten());
        if matches!(profile.architecture.as_str(), "gemma4" | "qwen4exp") {
            for weight in &mut stored.weights {
                let marked = stored.names.get(weight.name.clone()) == Some("per_layer_token_embd.weight");
                weight.lazy = marked && weight.bytes > LAZY_ABOVE;
            }
        }
        stored
    }

    fn extend<'a>(&mut self, group: Group, weights: impl IntoIterator<Item = &'a Weight>) {
        for weight in weights {
            let name = self.add_name(&weight.name);
            self.weights.push(StoredWeight {
                bytes: weight.bytes,
                feeds: Feeds::of(weight),
                name,
                ..StoredWeight::new(group, weight.ty, weight.shape[0], weight.shape[1])
            });
        }
    }

    /// What is added to the model: it follows the weights that it changes.
    fn extend_by_adapters(&mut self, profile: &ModelProfile) {
        let part = |group, kind, factor: &Factor, name| StoredWeight {
            bytes: factor.bytes,
            kind,
            name,
            ..StoredWeight::new(group, factor.ty, factor.shape[0], factor.shape[1])
        };
        for one in &profile.adapters.adapted {
            let group = match one.layer {
                Layer::Input => Group::Input,
                Layer::Block(block) => Group::Block(block),
                Layer::Output => Group::Output,
            };
            let name = self.add_name(&one.weight);
            let pair = [&one.a, &one.b].map(|it| part(group, Kind::Lora, it, name.clone()));
            self.weights.extend(pair);
        }
        if profile.adapters.control_vector {
            let floats = Factor::of_floats(u64::from(profile.hparams.n_embd));
            // llama-adapter.cpp, `llama_adapter_cvec::init`: for all layers but the first, whichever have a direction.
            let blocks = (1..profile.hparams.n_layer_trunk() as usize).map(Group::Block);
            self.weights.extend(blocks.map(|block| part(block, Kind::ControlVector, &floats, 0..0)));
        }
    }

    fn add_name(&mut self, name: &str) -> Range<usize> {
        let begin = self.names.len();
        self.names.push_str(name);
        begin..self.names.len()
    }

    /// The name of one of these weights.
    pub(super) fn name(&self, weight: &StoredWeight) -> &str {
        self.names.get(weight.name.clone()).unwrap_or_default()
    }

    /// The copy of the token embedding that a tied output needs.
    pub(super) fn tied(&self) -> Option<&StoredWeight> {
        self.weights.last().filter(|last| last.group == Group::Tied)
    }
}
