//! Bytes of the compute buffers per device: by going through the graph where we know it, else by formulas that were fitted on
//! other graphs.

use crate::machine::Gpu;
use crate::memory::context::{ContextParams, ContextSizes};
use crate::profile::{Adapted, Layer, ModelProfile};

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
    Fitted {
        model: FittedCompute,
        /// What adapters may add to it on a device.
        adapters: u64,
    },
    /// We know it with all that is added to the model and without: the more of the two is needed.
    Adapted([Box<ComputeGraph>; 2]),
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
            Some(graph) if profile.adapters.is_empty() => Self::Graph(graph),
            Some(graph) => Self::Adapted([Box::new(graph.without_adapters()), Box::new(graph)]),
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
        Self::Fitted {
            model: FittedCompute::new(profile, gpus, params, sizes, window_cells),
            adapters: most_of_adapters(profile, sizes),
        }
    }

    /// The same with weights where overrides put them.
    pub(super) fn overridden(self, place: impl Fn(&str) -> Option<Place>) -> Self {
        match self {
            Self::Graph(graph) => Self::Graph(graph.overridden(place)),
            Self::Adapted(graphs) => {
                Self::Adapted(graphs.map(|graph| Box::new(graph.overridden(&place))))
            }
            Self::Fitted { model, adapters } => Self::Fitted {
                model: model.overridden(),
                adapters,
            },
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
            Self::Adapted(graphs) => {
                let [without, with] = graphs.each_ref().map(|graph| graph.bytes(assignment));
                without.most(&with)
            }
            Self::Fitted { model, adapters } => {
                let mut bytes = model.bytes(assignment, weights, kv);
                for device in bytes.gpus.iter_mut().chain([&mut bytes.host]) {
                    *device = device.saturating_add(*adapters);
                }
                bytes
            }
        }
    }

    /// Whether the graph is known.
    pub(super) const fn is_simulated(&self) -> bool {
        !matches!(self, Self::Fitted { .. })
    }

    /// Whether these are llama.cpp's bytes.
    pub(super) fn is_exact(&self, assignment: &Assignment) -> bool {
        match self {
            Self::Graph(graph) => graph.is_exact(assignment),
            // In which order adapters are added is left to chance (llama-adapter.h, `llama_adapter_loras`), and with it what overlaps.
            Self::Adapted(_) | Self::Fitted { .. } => false,
        }
    }
}

impl ComputeBytes {
    /// The more of both on each device.
    fn most(mut self, other: &Self) -> Self {
        for (bytes, other) in self.gpus.iter_mut().zip(&other.gpus) {
            *bytes = (*bytes).max(*other);
        }
        self.host = self.host.max(other.host);
        self
    }
}

/// What adapters add to a device's buffer at most, in a graph that we do not know: beside a product the two of one pair, and a block's
/// factors where they are copied to the device that computes it.
fn most_of_adapters(profile: &ModelProfile, sizes: &ContextSizes) -> u64 {
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
    let mut blocks = std::collections::BTreeMap::<_, u64>::new();
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
