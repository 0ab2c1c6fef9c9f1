//! Where the weights of one placement lie.

use super::build::Homes;
use super::tensor::Memory;
use super::weights::{Stored, Weights};
use crate::memory::estimate::host_memory::repacks;
use crate::memory::estimate::{Assignment, Place};

/// Where overrides put weights; `None` for those that stay with their layer.
#[derive(Debug, Clone)]
pub(super) struct Overrides {
    /// Block by block, in the order of the block's weights.
    blocks: Vec<Vec<Option<Place>>>,
    embedding: Option<Place>,
    output: Option<Place>,
    output_norm: Option<Place>,
    rope: Option<Place>,
}

impl Overrides {
    /// `place` says where an override puts the weight of a name.
    pub(super) fn of(weights: &Weights, place: impl Fn(&str) -> Option<Place>) -> Self {
        let blocks = weights.blocks.iter();
        Self {
            blocks: blocks
                .map(|block| block.names.iter().map(|name| place(name)).collect())
                .collect(),
            embedding: place("token_embd.weight"),
            output: place(if weights.tied {
                "token_embd.weight"
            } else {
                "output.weight"
            }),
            output_norm: place("output_norm.weight"),
            rope: weights.rope_name.as_deref().and_then(place),
        }
    }

    /// Whether they move the token embedding to a GPU.
    pub(super) const fn move_embedding(&self) -> bool {
        matches!(self.embedding, Some(Place::Gpu(_)))
    }
}

/// A model's weights under one assignment.
pub(super) struct Located<'a> {
    pub(super) weights: &'a Weights,
    pub(super) assignment: &'a Assignment,
    pub(super) overrides: Option<&'a Overrides>,
    /// Whether matrices of the host are taken to be rearranged for the CPU.
    pub(super) repacked: bool,
}

impl Located<'_> {
    fn memory(&self, place: Place, stored: Option<&Stored>) -> Memory {
        let repacks = |stored: &Stored| stored.ne[1] > 1 && repacks(stored.ty);
        match place {
            Place::Gpu(gpu) => Memory::gpu(gpu),
            Place::Host if self.repacked && stored.is_some_and(repacks) => Memory::Repacked,
            Place::Host => Memory::Host,
        }
    }

    /// Whether all layers are on GPUs: they are taken from the end.
    pub(super) fn is_offloaded(&self) -> bool {
        matches!(self.assignment.blocks.first(), Some(Place::Gpu(_)))
    }
}

impl Homes for Located<'_> {
    fn block(&self, block: usize) -> Place {
        let place = self.assignment.blocks.get(block);
        place.copied().unwrap_or(Place::Host)
    }

    fn weight(&self, block: usize, index: usize) -> Memory {
        let moved = self.overrides.and_then(|all| all.blocks[block][index]);
        let place = moved.unwrap_or_else(|| self.block(block));
        self.memory(place, self.weights.blocks[block].weights.get(index))
    }

    fn rope(&self, block: usize) -> Memory {
        let moved = self.overrides.and_then(|all| all.rope);
        self.memory(moved.unwrap_or_else(|| self.block(block)), None)
    }

    fn embedding(&self) -> Memory {
        let moved = self.overrides.and_then(|all| all.embedding);
        self.memory(moved.unwrap_or(Place::Host), None)
    }

    fn output(&self) -> Memory {
        let moved = self.overrides.and_then(|all| all.output);
        let place = moved.unwrap_or(self.assignment.output);
        self.memory(place, self.weights.output.as_ref())
    }

    fn output_norm(&self) -> Memory {
        let moved = self.overrides.and_then(|all| all.output_norm);
        self.memory(moved.unwrap_or(self.assignment.output), None)
    }
}
