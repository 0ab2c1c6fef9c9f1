//! Room 2: the meaning of a header. In: a [`Header`]. Out: a [`ModelProfile`], which has the number of layers, the
//! weights of each layer, and the memory of the context. A header that would make llama.cpp abort is rejected with a
//! typed [`Error`].

mod adapter;
mod arch;
mod control_vector;
mod file_type;
mod hparams;
mod hybrid;
mod indexer;
mod kv_layout;
mod mtp;
mod names;
mod quantisation;
mod rotation;
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
pub use names::WeightRole;
pub use quantisation::Quantisation;
pub use state::{BlockState, KeptTensor, KvLayout, Part, Rotation, Rows};
pub(crate) use weights::Group;
pub use weights::{Weight, WeightBytes};

/// The properties of a model that determine its memory.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct ModelProfile {
    /// The file of the header (the first shard), if it was read from one.
    pub path: Option<PathBuf>,
    /// `general.name`, or else the file's stem or the architecture.
    pub name: String,
    /// `general.architecture`, in llama.cpp's spelling: `llama`, `qwen3moe`.
    pub architecture: String,
    /// The quantisation's name for `general.file_type` (`Q4_K_M`), if the name is known.
    pub file_type: Option<&'static str>,
    /// Bytes of all shards together.
    pub file_bytes: u64,
    /// The alignment of the tensors' data in the file, in bytes (`general.alignment`); of several shards, the smallest
    /// alignment.
    pub alignment: u32,
    /// The numbers that determine memory: layers, widths, heads, experts, vocabulary.
    pub hparams: Hyperparameters,
    /// The weights, grouped by where llama.cpp puts them.
    pub weights: WeightBytes,
    /// The tensors that each block keeps in a context.
    pub state: KvLayout,
    /// The adapters that [`with_lora`](Self::with_lora) has added.
    pub adapters: Adapters,
    /// Whether the blocks that predict further tokens are loaded; false until [`with_mtp`](Self::with_mtp) is called.
    mtp: bool,
    /// Whether llama.cpp creates matrices that are not in the file, to transform the inputs of weights
    /// (`prism.hadamard`).
    pub(crate) transforms_inputs: bool,
}

/// Prefixes of a projector's tensors (tools/mtmd/clip-impl.h). No model of llama.cpp has such names (llama-arch.cpp,
/// `LLM_TENSOR_NAMES`).
const PROJECTOR: [&str; 3] = ["v.", "a.", "mm."];

/// Whether a tensor of this name belongs to a projector for images or sound.
pub fn is_of_projector(name: &str) -> bool {
    PROJECTOR.iter().any(|prefix| name.starts_with(prefix))
}

/// Rejects a model file that contains a projector: llama.cpp rejects files with unused tensors (`wrong number of
/// tensors`, llama-model-loader.cpp, `done_getting_tensors`).
fn check_projector(keys: &Keys<'_>) -> Result<(), Error> {
    let mut of_projector = keys.header.tensors().map(Tensor::name).filter(|name| is_of_projector(name));
    match of_projector.next() {
        // A file of architecture `clip` is only a projector.
        Some(first) if keys.architecture != "clip" => Err(Error::Projector {
            file: keys.header.path().display().to_string(),
            first: first.to_owned(),
            count: 1 + of_projector.count(),
        }),
        _ => Ok(()),
    }
}

impl TryFrom<&Header> for ModelProfile {
    type Error = Error;

    /// Like [`ModelProfile::from_header`].
    fn try_from(header: &Header) -> Result<Self, Error> {
        Self::from_header(header)
    }
}

impl ModelProfile {
    /// Reads the profile from a header.
    ///
    /// # Errors
    ///
    /// [`Error`] if the header lacks a key that llama.cpp requires, or has a value at which llama.cpp would abort
    /// instead of returning an error. The message names the file, the key, the value and the limit.
    pub fn from_header(header: &Header) -> Result<Self, Error> {
        let architecture = header.architecture()?.to_owned();
        let keys = Keys { header, architecture: &architecture };
        check_projector(&keys)?;
        let hparams = Hyperparameters::read(&keys)?;
        let state = KvLayout::new(&keys, &hparams)?;
        let weights = WeightBytes::read(&keys, &hparams, &state);
        let file_type = header.u32("general.file_type")?.and_then(file_type::name);
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
            transforms_inputs: header.u32("prism.hadamard.version")?.is_some(),
        })
    }

    /// The number of blocks of the model, including those that predict further tokens: llama.cpp's `n_layer_all`.
    pub const fn n_layer(&self) -> u32 {
        self.hparams.n_layer
    }

    /// The `n_gpu_layers` of full offload: the blocks plus the output layer.
    pub const fn full_offload(&self) -> u32 {
        self.hparams.n_layer + 1
    }

    /// The first weight that stays on the host even if its layer is on a GPU.
    fn kept_on_host(&self) -> Option<&Weight> {
        let on_layers = self.weights.grouped().filter(|(group, _)| *group != Group::Input);
        let mut weights = on_layers.map(|(_, weight)| weight).chain(self.weights.output_matrix());
        weights.find(|weight| weight.stays_on_host())
    }

    /// The first reason why an estimate of this model's memory may be too low, or `None`. If there is such a reason,
    /// only a probe of llama.cpp can tell the memory. These are the reasons, in order: an unknown KV layout, a graph
    /// that the estimate does not model, matrices that are not in the file, weights of a type that no GPU multiplies
    /// by, weights that belong to no known layer.
    pub fn unmodelled(&self) -> Option<String> {
        if let KvLayout::Unknown { reason } = &self.state {
            return Some(reason.clone());
        }
        // For this architecture, the estimated buffers were 25 times too small.
        if self.architecture == "gemma3n" {
            let does = "computes several streams at once, and we have no model of their buffers (models/gemma3n.cpp)";
            return Some(format!("`gemma3n` {does}"));
        }
        if self.transforms_inputs {
            let makes = "llama.cpp makes further matrices for this file (`prism.hadamard.version`)";
            return Some(format!("{makes}, which only llama.cpp itself counts"));
        }
        if let Some(Weight { name, ty, .. }) = self.kept_on_host() {
            return Some(format!("no GPU multiplies by weights of the type {ty}, such as `{name}`"));
        }
        let unplaced = &self.weights.unplaced;
        let Weight { name, .. } = unplaced.first()?;
        let (count, bytes) = (unplaced.len(), Weight::sum(unplaced));
        Some(format!("the file contains {count} tensors ({bytes} bytes) whose place is not known, such as `{name}`"))
    }
}

#[cfg(test)]
mod tests;
