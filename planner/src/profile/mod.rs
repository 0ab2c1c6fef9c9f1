//! Room 2: what a header means. A [`Header`] flows in; a [`ModelProfile`] flows out: how many layers there are, which
//! bytes belong to which layer, what a token of context costs. What llama.cpp would refuse by ending the process is
//! refused here with a typed [`Error`].

mod adapter;
mod arch;
mod control_vector;
mod hparams;
mod hybrid;
mod indexer;
mod law;
mod mtp;
mod names;
mod quantisation;
mod state;
mod weights;

use std::path::PathBuf;

use crate::gguf::{Header, Tensor};

use hparams::Keys;

pub use adapter::{AdapterError, Adapters, Lora, LoraPair};
pub use control_vector::ControlVector;
pub(crate) use hparams::MAX_LAYERS;
pub use hparams::{Error, Experts, Hyperparameters};
pub use mtp::MtpError;
pub use names::Role;
pub use quantisation::Quantisation;
pub use state::{BlockState, KeptTensor, Part, Rows, StateLaw};
pub(crate) use weights::Group;
pub use weights::{Weight, WeightBytes};

/// What a model is, as far as memory is concerned.
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
    /// The alignment of the tensors' data in the file, in bytes (`general.alignment`); of several shards the least.
    pub alignment: u32,
    /// The numbers that shape memory: layers, widths, heads, experts, vocabulary.
    pub hparams: Hyperparameters,
    /// The weights, arranged by where llama.cpp puts them.
    pub weights: WeightBytes,
    /// The law by which context takes memory.
    pub state: StateLaw,
    /// What is added to its computation; nothing, until [`with_lora`](Self::with_lora).
    pub adapters: Adapters,
    /// Whether the blocks that predict further tokens are loaded: not until [`with_mtp`](Self::with_mtp).
    mtp: bool,
}

/// What the names of a projector's tensors begin with (tools/mtmd/clip-impl.h); no model of llama.cpp's has such a name
/// (llama-arch.cpp, `LLM_TENSOR_NAMES`).
const PROJECTOR: [&str; 3] = ["v.", "a.", "mm."];

/// Whether a tensor of this name belongs to a projector of pictures or sound, and not to a model.
pub fn is_of_projector(name: &str) -> bool {
    PROJECTOR.iter().any(|prefix| name.starts_with(prefix))
}

/// Refuses a model with a projector in its file: llama.cpp refuses tensors that it does not use (`wrong number of
/// tensors`, llama-model-loader.cpp, `done_getting_tensors`).
fn check_projector(keys: &Keys<'_>) -> Result<(), Error> {
    let mut of_projector = keys.header.tensors().map(Tensor::name).filter(|name| is_of_projector(name));
    match of_projector.next() {
        // It is nothing but a projector.
        Some(first) if keys.architecture != "clip" => Err(Error::Projector {
            file: keys.header.path().display().to_string(),
            first: first.to_owned(),
            count: 1 + of_projector.count(),
        }),
        _ => Ok(()),
    }
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
        let keys = Keys { header, architecture: &architecture };
        check_projector(&keys)?;
        let hparams = Hyperparameters::read(&keys)?;
        let state = StateLaw::of(&keys, &hparams)?;
        let weights = WeightBytes::read(&keys, &hparams, &state);
        let file_type = header.u32("general.file_type")?.and_then(quantisation::file_type);
        let path = (!header.is_in_memory()).then(|| header.path().to_path_buf());
        let name = header.title().unwrap_or_else(|| architecture.clone());
        Ok(Self {
            path,
            name,
            file_type,
            file_bytes: header.file_bytes(),
            alignment: header.alignment(),
            architecture,
            hparams,
            weights,
            state,
            adapters: Adapters::default(),
            mtp: false,
        })
    }

    /// Blocks of the model, next-token-prediction blocks included: what llama.cpp calls `n_layer_all`.
    pub const fn n_layer(&self) -> u32 {
        self.hparams.n_layer
    }

    /// The `n_gpu_layers` at which everything that can be is on the GPU: the blocks and the output layer.
    pub const fn full_offload(&self) -> u32 {
        self.hparams.n_layer + 1
    }

    /// Why an estimate of this model's memory may be too low, if it may: then only llama.cpp knows what it takes. Of
    /// several reasons the first: the law of its context, its graph, or weights that no table of ours places.
    pub fn unmodelled(&self) -> Option<String> {
        if let StateLaw::Unknown { reason } = &self.state {
            return Some(reason.clone());
        }
        // The buffers came out 25 times too small.
        if self.architecture == "gemma3n" {
            let does = "computes several streams at once, of whose buffers we have no model (models/gemma3n.cpp)";
            return Some(format!("`gemma3n` {does}"));
        }
        let unplaced = &self.weights.unplaced;
        let Weight { name, .. } = unplaced.first()?;
        let (count, bytes) = (unplaced.len(), Weight::sum(unplaced));
        Some(format!("the file holds {count} tensors ({bytes} bytes) of no known place, such as `{name}`"))
    }
}

#[cfg(test)]
mod tests;
