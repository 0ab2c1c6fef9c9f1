//! Room 5: the choice of a placement. In: a profile, a machine and a [`Request`]. Out: a [`Plan`] with the layers on
//! each GPU, the bytes that are taken and kept free on every device, and the shortage because of which the next layer
//! is not on a GPU.
//!
//! The same header, machine and request always give the same plan. No native code is involved: the caller passes a
//! [`Probe`], which gets the bytes from llama.cpp with a `no_alloc` load.

mod advice;
mod companions;
mod depth;
mod error;
mod fit;
mod growth;
mod halving;
mod kv_cache;
mod moe_cache;
mod paging;
mod placement;
mod planner;
mod probe;
mod reasons;
mod report;
mod request;
mod saved;
mod search;
pub mod speed;
mod split_blocks;
mod stated;
mod workload;

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::json::compiled_here;
use crate::memory::{ContextParams, Split, TensorOverride};

pub use advice::{Advice, Change, ChangeKind, Effect, OffloadNotWorthwhile, Outcome};
pub use companions::PlannedCompanion;
pub use depth::{ByDepth, DepthRule, DepthWork, SecondsAtDepth};
pub use error::{Error, Shortfall};
pub use kv_cache::KvCache;
pub use moe_cache::PlannedMoeCache;
pub use paging::Paging;
pub use placement::{Placement, PlacementKind};
pub use planner::Planner;
pub use probe::{NoRoom, Probe};
pub use request::{Context, GpuLayers, HostParts, KvPlace, MoeCache, Policy, Request};
pub use saved::{MachineChange, ModelIdentity, SavedPlan, SavedPlanError};
pub use speed::Speed;
pub use workload::{Depth, Workload};

/// The placement of a model, and the reasons for it. If a plan is serialised and read again, it is the same plan.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(remote = "Self")]
#[non_exhaustive]
pub struct Plan {
    /// The model.
    pub model: ModelSummary,
    /// The number of layers on GPUs, counted from the output layer on (1 means only the output layer): the value for
    /// `llama_model_params.n_gpu_layers`.
    pub n_gpu_layers: u32,
    /// The layers of each GPU as proportions, for `llama_model_params.tensor_split`; empty if one GPU has all of them.
    #[serde(default)]
    pub tensor_split: Vec<f32>,
    /// Weights that are placed apart from their layer, for `llama_model_params.tensor_buft_overrides`. The first
    /// matching pattern decides.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub overrides: Vec<TensorOverride>,
    /// Whether all layers are on GPUs as a whole: `n_gpu_layers` is the number of blocks plus one, and no block is
    /// split.
    pub full_offload: bool,
    /// The number of blocks on GPUs that keep some of their weights on the host.
    #[serde(flatten, with = "split_blocks")]
    pub split_blocks: u32,
    /// Every device in use: the GPUs first, the host last. A plan without layers on GPUs lists only the host. For a
    /// load by such a plan, llama.cpp must get no devices, so that it does not touch any GPU.
    pub placements: Vec<Placement>,
    /// The parameters of the load and its context, with every default resolved.
    pub context: ContextParams,
    /// How accurate the plan's bytes are.
    pub confidence: Confidence,
    /// The files that are loaded together with the model, such as a draft or an mmproj, and where each of them is
    /// placed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub companions: Vec<PlannedCompanion>,
    /// The cache of experts on the GPUs; `None` without such a cache.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub moe_cache: Option<PlannedMoeCache>,
    /// Weights that do not fit in the host's memory; `None` if everything fits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paging: Option<Paging>,
    /// The predicted speed and its basis; `None` for a context that embeds texts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub speed: Option<Speed>,
    /// Notes for people. The first is the reason for the placement; then come changes to the request, and open
    /// questions.
    pub notes: Vec<String>,
    /// Another placement, which is faster above a certain depth, or below it ([`Depth::Follow`]). `None` if this
    /// placement is best at every depth, or if moving would not pay. For programs that do not move texts, this
    /// placement is the faster of the two over a whole conversation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by_depth: Option<Box<ByDepth>>,
}

compiled_here!(Plan);

/// A short description of a model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ModelSummary {
    /// The model's file (the first shard), if it was read from one.
    pub path: Option<PathBuf>,
    /// The name shown to people.
    pub name: String,
    /// The architecture, in llama.cpp's spelling.
    pub architecture: String,
    /// The name of the quantisation.
    pub file_type: Option<String>,
    /// The bytes of all files of the model together.
    pub file_bytes: u64,
    /// Number of blocks; the output layer is not counted.
    pub blocks: u32,
    /// The context length in training, in tokens; 0 if the header states none.
    pub n_ctx_train: u32,
    /// Whether some layers attend only to a sliding window.
    #[serde(default, skip_serializing_if = "crate::json::is_default")]
    pub sliding_window: bool,
}

/// How accurate the bytes of a plan are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Confidence {
    /// llama.cpp reported the bytes of this very placement.
    Probed,
    /// Weights and cache are exact. A formula gives the compute buffers, and memory for the largest error of the
    /// formula stays free.
    Estimated,
    /// Like `Estimated`, but the formula was not fitted on this architecture. The plan reserves twice the estimated
    /// bytes of the compute buffers.
    Modelled,
}

impl Plan {
    /// The context length in training, if each sequence has more tokens than this length. Beyond this length the model
    /// may write nonsense, unless [`Rope`](crate::memory::Rope) scales the positions.
    pub fn trained_on_fewer(&self) -> Option<u32> {
        let trained = self.model.n_ctx_train;
        (trained > 0 && self.context.n_ctx_seq() > trained).then_some(trained)
    }

    /// The placements on GPUs.
    pub fn gpus(&self) -> impl Iterator<Item = &Placement> {
        self.placements.iter().filter(|placement| placement.kind != PlacementKind::Host)
    }

    /// The placement on the host.
    pub fn host(&self) -> Option<&Placement> {
        self.placements.iter().find(|placement| placement.kind == PlacementKind::Host)
    }

    /// The split that the load passes to llama.cpp.
    pub fn split(&self) -> Split {
        Split::layers(self.n_gpu_layers).tensor_split(self.tensor_split.clone()).overrides(self.overrides.clone())
    }

    /// All layers of the model, the output layer included.
    pub const fn layers(&self) -> u32 {
        self.model.blocks.saturating_add(1)
    }
}
