//! Why a companion has no cost.

use crate::{gguf, memory, profile};

/// A file cannot be loaded beside the main model, or what it takes is not known. A header that came from no file has
/// `<memory>` for its name, or `<builder>`.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)] // The fields are named for what the message says of them.
pub enum Error {
    /// The header itself could not be read as it claims to be.
    #[error(transparent)]
    Header(#[from] gguf::Error),
    /// The draft's header yields no profile.
    #[error(transparent)]
    Profile(#[from] profile::Error),
    /// llama.cpp would not take the parameters for the draft.
    #[error(transparent)]
    Context(#[from] memory::Error),
    /// The file is of another kind than it was given as.
    #[error("{file}: the architecture is `{architecture}`, but {role} is {wanted}")]
    WrongKind { file: String, architecture: String, role: &'static str, wanted: &'static str },
    /// A key that llama.cpp requires is not there, or holds 0.
    #[error("{file}: the key `{key}` is missing or 0")]
    Missing { file: String, key: String },
    /// No bound of its memory is known: an encoder of images or sound or a decoder of speech whose graph we have not
    /// read, or a draft that computes with the main model's hidden states.
    #[error("{file}: the memory of {what} is not known")]
    Unread { file: String, what: String },
    /// llama.cpp does not let this draft speculate for this model (common/speculative.cpp,
    /// `common_speculative_are_compatible`).
    #[error("{draft} cannot draft for {main}: {what} is {of_draft} and {of_main}")]
    Vocabulary { draft: String, main: String, what: String, of_draft: String, of_main: String },
    /// The projector's output is not as wide as the text model's embeddings (mtmd.cpp, `mtmd_context::mtmd_context`).
    #[error("{file} is made for embeddings of {of_mmproj}, but those of {main} are {of_main} wide")]
    Width { file: String, main: String, of_mmproj: u64, of_main: u64 },
}
