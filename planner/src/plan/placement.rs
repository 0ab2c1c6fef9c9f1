//! One device of a plan.

use serde::{Deserialize, Serialize};

use crate::memory::{Footprint, HeadroomParts};

/// The kind of device of a placement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum PlacementKind {
    /// A GPU with its own memory.
    Gpu,
    /// A GPU that uses the host's memory. Bytes that its own pool cannot hold are also counted on the host
    /// ([`Placement::of_host`]).
    SharedGpu,
    /// The host.
    Host,
}

/// The memory that a plan takes on one device, and the memory that the plan keeps free there. Sizes in bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Placement {
    /// The device's name for people: `RTX 4090`, `host`.
    pub name: String,
    /// The device's name in ggml (`CUDA0`), which a load uses. `None` for the host and for hypothetical GPUs.
    pub device: Option<String>,
    /// The ggml backend that drives the device.
    pub backend: String,
    /// The kind of device.
    pub kind: PlacementKind,
    /// Bytes of memory in total.
    pub total: u64,
    /// Bytes that were free when the plan was made; for the host, the bytes that this process may take.
    pub free: u64,
    /// The number of layers on the device, the output layer included. The input layer is always on the host and is not
    /// counted.
    pub layers: u32,
    /// Bytes that the model and its context take on the device.
    #[serde(flatten)]
    pub footprint: Footprint,
    /// Bytes of the footprint in the host's memory: for an integrated GPU, the bytes beyond its own pool.
    #[serde(default, skip_serializing_if = "crate::json::is_default")]
    pub of_host: u64,
    /// Bytes that the plan keeps free.
    pub headroom: HeadroomParts,
    /// Bytes for the files that are loaded together with the model ([`Plan::companions`](super::Plan::companions)),
    /// memory pools included.
    #[serde(default)]
    pub companions: u64,
    /// Bytes that the plan may take: `free` minus `headroom` and `companions`.
    pub budget: u64,
}
