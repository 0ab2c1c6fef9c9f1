//! What we have no model of: a profile flows in; why its memory cannot be told by arithmetic flows out.

use super::{ModelProfile, StateLaw, Weight, arch};

/// Why no arithmetic over the header tells how much memory a model takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unmodelled<'a> {
    /// Its context follows no law we know, for this reason ([`StateLaw::Unknown`]).
    State(&'a str),
    /// The graph of this architecture is wired like none whose compute buffers we have read, in this way.
    Graph {
        /// `general.architecture`.
        architecture: &'a str,
        /// What it does, and where llama.cpp does it.
        does: &'static str,
    },
    /// The file holds weights that no table of ours places ([`WeightBytes::unplaced`](super::WeightBytes::unplaced)).
    Weights {
        /// The name of the first.
        first: &'a str,
        /// How many they are.
        count: usize,
        /// Their bytes together.
        bytes: u64,
    },
}

impl ModelProfile {
    /// Why an estimate of this model's memory may be too low, if it may: then only llama.cpp can tell. The first
    /// reason of several.
    #[must_use]
    pub fn unmodelled(&self) -> Option<Unmodelled<'_>> {
        if let StateLaw::Unknown { reason } = &self.state {
            return Some(Unmodelled::State(reason));
        }
        if let Some(does) = arch::unmodelled_graph(&self.architecture) {
            return Some(Unmodelled::Graph {
                architecture: &self.architecture,
                does,
            });
        }
        let unplaced = &self.weights.unplaced;
        unplaced.first().map(|first| Unmodelled::Weights {
            first: &first.name,
            count: unplaced.len(),
            bytes: Weight::sum(unplaced),
        })
    }
}
