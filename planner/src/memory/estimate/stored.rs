//! What an estimate remembers of each weight, so that overrides can be asked by name once the profile is gone.

use crate::memory::backend::BackendRules;
use crate::profile::{Group, LoraPair, ModelProfile, Weight};

/// One weight.
#[derive(Debug, Clone)]
pub(super) struct StoredWeight {
    pub(super) group: Group,
    /// Whether it is a factor of an adapter, where the weight is whose name it has; neither mapped nor rearranged.
    pub(super) is_added: bool,
    pub(super) weight: Weight,
}

impl StoredWeight {
    /// Bytes that it takes by these rules.
    pub(super) fn alloc(&self, rules: &BackendRules) -> u64 {
        rules.alloc(self.weight.ty, self.weight.shape[0], self.weight.bytes)
    }

    /// As [`Weight::is_matrix`]. What is beside the model is none that a GPU borrows or the CPU rearranges.
    pub(super) fn is_matrix(&self) -> bool {
        !self.is_added && self.weight.is_matrix()
    }
}

/// All weights that llama.cpp loads.
#[derive(Debug, Clone)]
pub(super) struct Stored {
    pub(super) weights: Vec<StoredWeight>,
    pub(super) n_blocks: usize,
    /// Which blocks use the frequencies of rope.
    pub(super) rope_blocks: Vec<bool>,
    /// Whether the copy for a tied output never shares the embedding.
    pub(super) tied_apart: bool,
}

impl Stored {
    pub(super) fn new(profile: &ModelProfile) -> Self {
        let weights = &profile.weights;
        let mut stored = Self {
            weights: Vec::with_capacity(weights.loaded().count() + 1),
            n_blocks: weights.blocks.len(),
            rope_blocks: weights.rope_blocks.clone(),
            tied_apart: weights.tied_apart,
        };
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
        stored
    }

    fn extend<'a>(&mut self, group: Group, weights: impl IntoIterator<Item = &'a Weight>) {
        let weights = weights.into_iter().cloned();
        self.weights.extend(weights.map(|weight| StoredWeight { group, is_added: false, weight }));
    }

    /// What is added to the model: it follows the weights that it changes.
    fn extend_by_adapters(&mut self, profile: &ModelProfile) {
        for (group, LoraPair { a, b }) in &profile.adapters.adapted {
            let stored = |factor: &Weight| StoredWeight { group: *group, is_added: true, weight: factor.clone() };
            self.weights.extend([a, b].map(stored));
        }
    }

    /// The copy of the token embedding that a tied output needs.
    pub(super) fn tied(&self) -> Option<&StoredWeight> {
        self.weights.last().filter(|last| last.group == Group::Tied)
    }
}
