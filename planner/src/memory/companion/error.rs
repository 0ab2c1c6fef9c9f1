//! Why a companion has no cost.

use crate::{gguf, memory, profile};

/// A file cannot be loaded beside the main model, or what it takes is not known. A header that came from no file has
/// `<memory>` for its name.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
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
    WrongKind {
        /// The file.
        file: String,
        /// `general.architecture`.
        architecture: String,
        /// What it was given as, with its article.
        role: &'static str,
        /// What that is.
        wanted: &'static str,
    },
    /// A key that llama.cpp requires is not there, or holds 0.
    #[error("{file}: the key `{key}` is missing or 0")]
    Missing {
        /// The file.
        file: String,
        /// The full name of the key.
        key: String,
    },
    /// No bound of its memory is known: an encoder of images or sound or a decoder of speech whose graph we have not
    /// read, or a draft that computes with the main model's hidden states.
    #[error("{file}: the memory of {what} is not known")]
    Unread {
        /// The file.
        file: String,
        /// Its projector or architecture, and what that is of.
        what: String,
    },
    /// llama.cpp does not let this draft speculate for this model (common/speculative.cpp,
    /// `common_speculative_are_compatible`).
    #[error("{draft} cannot draft for {main}: {what} is {of_draft} and {of_main}")]
    Vocabulary {
        /// The file of the draft.
        draft: String,
        /// The file of the main model.
        main: String,
        /// What differs.
        what: String,
        /// What it is in the draft.
        of_draft: String,
        /// What it is in the main model, with the limit where there is one.
        of_main: String,
    },
    /// The projector's output is not as wide as the text model's embeddings (mtmd.cpp, `mtmd_context::mtmd_context`).
    #[error("{file} is made for embeddings of {of_mmproj}, but those of {main} are {of_main} wide")]
    Width {
        /// The file of the projector.
        file: String,
        /// The file of the main model.
        main: String,
        /// Width of what the projector gives.
        of_mmproj: u64,
        /// Width of the main model's embeddings.
        of_main: u64,
    },
}
