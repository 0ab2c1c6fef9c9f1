//! Bytes of the compute buffers per device: by going through the graph where we know it, else by formulas that were fitted on
//! other graphs.

use crate::machine::Gpu;
use crate::memory::context::{ContextParams, ContextSizes};
use crate::profile::ModelProfile;

use super::fitted::FittedCompute;
use super::graph::ComputeGraph;
use super::host_memory::Pinned;
use super::kv::KvCost;
use super::weights::WeightCost;
use super::{Assignment, Place};

/// Bytes of the compute buffers of one placement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ComputeBytes {
    /// On each GPU.
    pub(super) gpus: Vec<u64>,
    /// On the host.
    pub(super) host: u64,
}

/// How the compute buffers of a model are found.
#[derive(Debug, Clone)]
#[allow(clippy::large_enum_variant, reason = "there is one per estimate")]
pub(super) enum Compute {
    /// We know the graph.
    Graph(ComputeGraph),
    /// We do not.
    Fitted(FittedCompute),
}

impl Compute {
    /// `window_cells`: cells of the caches that keep a window; 0 without.
    pub(super) fn new(
        profile: &ModelProfile,
        gpus: &[&Gpu],
        params: &ContextParams,
        sizes: &ContextSizes,
        window_cells: u64,
    ) -> Self {
        // The graphs that we know end in logits, not in a pooling.
        if params.embeddings.is_some() {
            return Self::fitted(profile, gpus, params, sizes, window_cells);
        }
        let pinned = matches!(Pinned::by(gpus), Pinned::Yes { .. });
        match ComputeGraph::new(profile, gpus, params, sizes, window_cells, pinned) {
            Some(graph) => Self::Graph(graph),
            None => Self::fitted(profile, gpus, params, sizes, window_cells),
        }
    }

    fn fitted(
        profile: &ModelProfile,
        gpus: &[&Gpu],
        params: &ContextParams,
        sizes: &ContextSizes,
        window_cells: u64,
    ) -> Self {
        let fitted = FittedCompute::new(profile, gpus, params, sizes, window_cells);
        Self::Fitted(fitted)
    }

    /// The same with weights where overrides put them.
    pub(super) fn overridden(self, place: impl Fn(&str) -> Option<Place>) -> Self {
        match self {
            Self::Graph(graph) => Self::Graph(graph.overridden(place)),
            Self::Fitted(fitted) => Self::Fitted(fitted.overridden()),
        }
    }

    /// Bytes of the compute buffers under this assignment.
    pub(super) fn bytes(
        &self,
        assignment: &Assignment,
        weights: &WeightCost,
        kv: &KvCost,
    ) -> ComputeBytes {
        match self {
            Self::Graph(graph) => graph.bytes(assignment),
            Self::Fitted(fitted) => fitted.bytes(assignment, weights, kv),
        }
    }

    /// Whether these are llama.cpp's bytes.
    pub(super) fn is_exact(&self, assignment: &Assignment) -> bool {
        match self {
            Self::Graph(graph) => graph.is_exact(assignment),
            Self::Fitted(_) => false,
        }
    }
}
