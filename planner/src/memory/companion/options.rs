//! The options of a draft model.

use serde::{Deserialize, Serialize};

use crate::memory::KvType;

/// Options for the load of a draft model. The plan chooses everything else.
///
/// ```
/// use autoplace_planner::memory::{KvType, companion::DraftOptions};
/// let mut options = DraftOptions::default();
/// (options.type_k, options.device) = (Some(KvType::Q8_0), Some("CUDA1".to_owned()));
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct DraftOptions {
    /// Type of the draft's keys. Default: `F16`, independent of the main model's types.
    pub type_k: Option<KvType>,
    /// Type of the draft's values. Default: `F16`.
    pub type_v: Option<KvType>,
    /// Number of the draft's layers on its GPU, counted from the output layer on. A number larger than the number of
    /// the draft's layers means all layers; 0 means the host. Default: all layers, or the host if no GPU has room for
    /// all of them.
    pub n_gpu_layers: Option<u32>,
    /// The GPU of the draft, by a name for [`Machine::gpu_named`](crate::machine::Machine::gpu_named), or
    /// [`HOST`](Self::HOST). Default: the device on which the draft slows the main model down least.
    pub device: Option<String>,
}

impl DraftOptions {
    /// The value of [`device`](Self::device) for a draft on the host; the word is llama.cpp's.
    pub const HOST: &str = "none";

    /// Whether these options keep the draft on the host.
    pub(crate) fn is_on_host(&self) -> bool {
        self.n_gpu_layers == Some(0) || self.device.as_deref() == Some(Self::HOST)
    }
}
