//! What may be stated of a draft.

use serde::{Deserialize, Serialize};

use crate::memory::KvType;

/// What is stated of how a draft is loaded. All else follows from the plan.
///
/// ```
/// use autoplace_planner::memory::{KvType, companion::DraftOptions};
/// let mut options = DraftOptions::default();
/// (options.type_k, options.device) = (Some(KvType::Q8_0), Some("CUDA1".to_owned()));
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct DraftOptions {
    /// Type of its keys. Default: `F16`, whatever the main model's are.
    pub type_k: Option<KvType>,
    /// Type of its values. Default: `F16`.
    pub type_v: Option<KvType>,
    /// Layers of it on its GPU, the output layer counted first; more than there are means all, 0 is the host. Default:
    /// all, or the host where no GPU has room for all.
    pub n_gpu_layers: Option<u32>,
    /// The GPU that it is on, by a name that [`Machine::gpu_named`](crate::machine::Machine::gpu_named) takes, or
    /// [`HOST`](Self::HOST). Default: where it costs the main model least.
    pub device: Option<String>,
}

impl DraftOptions {
    /// The [`device`](Self::device) of a draft that is on the host: llama.cpp's word for it.
    pub const HOST: &str = "none";

    /// Whether it is on the host, whatever there is room for.
    pub(crate) fn is_on_host(&self) -> bool {
        self.n_gpu_layers == Some(0) || self.device.as_deref() == Some(Self::HOST)
    }
}
