//! Room 2: what a header means. A [`Header`] flows in; a [`ModelProfile`] flows out: how many layers there are, which
//! bytes belong to which layer, what a token of context costs, and how wide the widest step of the computation is.
//!
//! Nothing here knows a device. What llama.cpp would refuse by ending the process is refused here with a
//! typed [`Error`].

mod adapter;
mod adapter_error;
mod arch;
mod control_vector;
mod error;
mod file_type;
mod hparams;
mod hybrid;
mod indexer;
mod law;
mod mtp;
mod predicting;
mod quantisation;
mod quantised;
mod role;
mod slot;
mod state;
mod switches;
mod unmodelled;
mod weights;

use std::path::PathBuf;

use crate::gguf::{Header, TensorType};

pub(crate) use adapter::{Adapted, Layer};
pub use adapter::{Adapters, Factor, Lora, LoraPair};
pub use adapter_error::AdapterError;
pub use control_vector::ControlVector;
pub use error::Error;
pub use hparams::{Experts, Hyperparameters};
pub use mtp::MtpError;
pub use quantisation::{Quantisation, QuantisationError};
pub use role::Role;
pub use slot::Slot;
pub use state::{
    BlockState, Distilled, DistilledState, IndexedState, LayerState, RecurrentState, StateLaw,
};
pub use switches::Switches;
pub use unmodelled::Unmodelled;
pub use weights::{Block, Weight, WeightBytes};

/// What a model is, as far as memory is concerned.
///
/// ```
/// # use autoplace_planner::gguf::Header;
/// # use autoplace_planner::profile::ModelProfile;
/// # fn f(header: &Header) -> Result<(), autoplace_planner::profile::Error> {
/// let profile = ModelProfile::from_header(header)?;
/// println!("{}: {} layers + output", profile.name(), profile.n_layer());
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct ModelProfile {
    /// The file the header came from (the first shard), where it came from a file.
    pub path: Option<PathBuf>,
    /// `general.name`, or the file's stem, or the architecture.
    pub name: String,
    /// `general.architecture`, as llama.cpp spells it: `llama`, `qwen3moe`.
    pub architecture: String,
    /// The name of the quantisation that `general.file_type` gives (`Q4_K_M`), where it gives a known one.
    pub file_type: Option<&'static str>,
    /// Bytes of all shards together.
    pub file_bytes: u64,
    /// The numbers that shape memory: layers, widths, heads, experts, vocabulary.
    pub hparams: Hyperparameters,
    /// The steps of the computation that the header switches on.
    pub switches: Switches,
    /// The weights, arranged by where llama.cpp puts them.
    pub weights: WeightBytes,
    /// The law by which context takes memory.
    pub state: StateLaw,
    /// What is added to its computation; nothing, until [`with_lora`](Self::with_lora).
    pub adapters: Adapters,
    /// Whether the blocks that predict further tokens are loaded: not until [`with_mtp`](Self::with_mtp).
    mtp: bool,
}

impl ModelProfile {
    /// Reads the profile out of a header.
    ///
    /// # Errors
    ///
    /// [`Error`] where the header lacks a key that llama.cpp requires, or holds a value at which llama.cpp would end
    /// the process instead of returning an error. Each names the file, the key, the value and the limit.
    pub fn from_header(header: &Header) -> Result<Self, Error> {
        let architecture = header.architecture()?.to_owned();
        let hparams = Hyperparameters::read(header, &architecture)?;
        let state = StateLaw::of(header, &architecture, &hparams)?;
        let weights = WeightBytes::read(header, &architecture, &hparams, &state);
        // A header from memory is called `<memory>` or `<builder>`.
        let in_memory = header.path().to_string_lossy().starts_with('<');
        let path = (!in_memory).then(|| header.path().to_path_buf());
        let name = header
            .name()
            .map(str::to_owned)
            .or_else(|| Some(path.as_ref()?.file_stem()?.to_string_lossy().into_owned()))
            .unwrap_or_else(|| architecture.clone());
        Ok(Self {
            path,
            name,
            file_type: file_type::name(header.u32("general.file_type")?),
            file_bytes: header.file_bytes(),
            architecture,
            switches: Switches::read(header)?,
            hparams,
            weights,
            state,
            adapters: Adapters::default(),
            mtp: false,
        })
    }

    /// The model's name for people.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Blocks of the model, next-token-prediction blocks included: what llama.cpp calls `n_layer_all`.
    #[must_use]
    pub const fn n_layer(&self) -> u32 {
        self.hparams.n_layer
    }

    /// The `n_gpu_layers` at which everything that can be is on the GPU: the blocks and the output layer.
    #[must_use]
    pub const fn full_offload(&self) -> u32 {
        self.hparams.n_layer + 1
    }

    /// The type of the tensor that computes the logits, which is the token embedding's own where the two are tied.
    #[must_use]
    pub fn output_type(&self) -> Option<TensorType> {
        self.weights.output_matrix().map(|weight| weight.ty)
    }
}

#[cfg(test)]
mod tests;
