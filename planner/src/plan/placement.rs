//! One device of a plan.

use serde::{Deserialize, Serialize};

use crate::memory::{Footprint, HeadroomParts};

/// The kind of device that a placement is on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum PlacementKind {
    /// A GPU with memory of its own.
    Gpu,
    /// A GPU that uses the host's memory: what its own pool does not hold is counted against the host's too
    /// ([`Placement::of_host`]).
    SharedGpu,
    /// The host.
    Host,
}

/// What one device holds, and what of it stays free. Sizes in bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Placement {
    /// Its name for people: `RTX 4090`, `host`.
    pub name: String,
    /// Its name in ggml (`CUDA0`), which a load uses. `None` for the host and for hypothetical GPUs.
    pub device: Option<String>,
    /// The ggml backend that drives it.
    pub backend: String,
    /// What it is.
    pub kind: PlacementKind,
    /// Bytes it has.
    pub total: u64,
    /// Bytes that were free when it was planned; of the host, those that this process may take.
    pub free: u64,
    /// Layers on it, the output layer counted. The input layer is always on the host and not counted.
    pub layers: u32,
    /// What the plan takes of it.
    #[serde(flatten)]
    pub footprint: Footprint,
    /// Bytes of the footprint that lie in the host's memory: of an integrated GPU those beyond its own pool.
    #[serde(default, skip_serializing_if = "crate::json::is_default")]
    pub of_host: u64,
    /// What is left free on purpose.
    pub headroom: HeadroomParts,
    /// Bytes for what is loaded beside the model ([`Plan::companions`](super::Plan::companions)), its pools included.
    #[serde(default)]
    pub companions: u64,
    /// `free` less `headroom` and `companions`: what the plan may take.
    pub budget: u64,
}
