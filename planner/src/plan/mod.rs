//! Room 5: which placement is best. A profile, a machine and a [`Request`] flow in; a [`Plan`] flows out: how many
//! layers on which GPU, what every device takes and keeps free, and why not one layer more.
//!
//! The same header, machine and request always give the same plan. Nothing here is native code: a probe (llama.cpp's
//! own `no_alloc` load) is passed in as a [`Probe`].

mod advice;
mod companions;
mod error;
mod fit;
mod growth;
mod halving;
mod kv_cache;
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
mod stated;
mod workload;

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::json::compiled_here;
use crate::memory::{ContextParams, Split, TensorOverride};

pub use advice::{Advice, Change, ChangeKind, Effect, Outcome, Pointless};
pub use companions::PlannedCompanion;
pub use error::{Error, Shortfall};
pub use kv_cache::KvCache;
pub use paging::Paging;
pub use placement::{Placement, PlacementKind};
pub use planner::Planner;
pub use probe::{NoRoom, Probe};
pub use request::{Context, GpuLayers, HostParts, Policy, Request};
pub use saved::{MachineChange, ModelIdentity, SavedPlan, SavedPlanError};
pub use speed::Speed;
pub use workload::Workload;

/// Where a model goes, and why. It serialises, and what is read back is the same plan.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(remote = "Self")]
#[non_exhaustive]
pub struct Plan {
    /// The model.
    pub model: ModelSummary,
    /// Layers on GPUs, the output layer counted first: what `llama_model_params.n_gpu_layers` takes.
    pub n_gpu_layers: u32,
    /// The layers per GPU as proportions, for `llama_model_params.tensor_split`; empty where one GPU takes them all.
    #[serde(default)]
    pub tensor_split: Vec<f32>,
    /// Weights that stay elsewhere than their layer, for `llama_model_params.tensor_buft_overrides`: the
    /// first match decides.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub overrides: Vec<TensorOverride>,
    /// Whether everything that can be is on GPUs: `n_gpu_layers` is the number of blocks and one.
    pub full_offload: bool,
    /// Blocks on GPUs of which a part stays on the host.
    #[serde(default)]
    pub parted_blocks: u32,
    /// Every device that is used, GPUs first and the host last. Without layers on GPUs it is the host alone, and the
    /// load must be given no devices, so that nothing touches a GPU.
    pub placements: Vec<Placement>,
    /// The parameters of the load and its context, every default resolved.
    pub context: ContextParams,
    /// How far the bytes of the plan can be trusted.
    pub confidence: Confidence,
    /// What is loaded beside the model, and where.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub companions: Vec<PlannedCompanion>,
    /// Weights that the host's memory has no room for; `None` where everything fits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paging: Option<Paging>,
    /// How fast it is, predicted, and on what basis; `None` where it embeds texts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub speed: Option<Speed>,
    /// Why it is this plan, for people: what decided, what was changed of the request, what is not known.
    pub notes: Vec<String>,
}

compiled_here!(Plan);

/// A model, in a line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ModelSummary {
    /// Its file (the first shard), if it came from one.
    pub path: Option<PathBuf>,
    /// Its name for people.
    pub name: String,
    /// Its architecture, as llama.cpp spells it.
    pub architecture: String,
    /// The name of its quantisation.
    pub file_type: Option<String>,
    /// Bytes of its files.
    pub file_bytes: u64,
    /// Its blocks; with the output layer there is one layer more.
    pub blocks: u32,
    /// Tokens of context that it was trained on.
    pub n_ctx_train: u32,
    /// Whether some of its layers attend to a sliding window.
    #[serde(default, skip_serializing_if = "crate::json::is_default")]
    pub sliding_window: bool,
}

/// How far the bytes of a plan can be trusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Confidence {
    /// llama.cpp itself reported them for this very placement.
    Probed,
    /// Weights and cache are exact; the compute buffers come from a formula, and what it may miss is left free.
    Estimated,
    /// The same, for a kind of model that the formula was not fitted on: as much again is left free.
    Modelled,
}

impl Plan {
    /// The tokens that the model was trained on, where the context of a sequence has more: what it makes of the others
    /// may be nonsense, unless [`Rope`](crate::memory::Rope) says how to scale them.
    pub fn trained_on_fewer(&self) -> Option<u32> {
        let trained = self.model.n_ctx_train;
        (trained > 0 && self.context.n_ctx_seq() > trained).then_some(trained)
    }

    /// The GPUs that are used.
    pub fn gpus(&self) -> impl Iterator<Item = &Placement> {
        self.placements.iter().filter(|placement| placement.kind != PlacementKind::Host)
    }

    /// The host.
    pub fn host(&self) -> Option<&Placement> {
        self.placements.iter().find(|placement| placement.kind == PlacementKind::Host)
    }

    /// What llama.cpp is given for it.
    pub fn split(&self) -> Split {
        Split::layers(self.n_gpu_layers).tensor_split(self.tensor_split.clone()).overrides(self.overrides.clone())
    }

    /// Layers of the model, the output layer counted.
    pub const fn layers(&self) -> u32 {
        self.model.blocks.saturating_add(1)
    }
}
