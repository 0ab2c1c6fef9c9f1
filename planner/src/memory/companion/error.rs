//! Why a companion has no cost.

use crate::gguf::Header;
use crate::{gguf, memory, profile};

use super::file;

/// A file cannot be loaded beside the main model, or what it takes is not known.
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
        /// The file, or `<memory>` where the header came from there.
        file: String,
        /// `general.architecture`.
        architecture: String,
        /// What it was given as, with its article.
        role: &'static str,
        /// What that is.
        wanted: &'static str,
    },
    /// A key that llama.cpp requires is not there.
    #[error("{file}: the key `{key}` is missing")]
    Missing {
        /// The file, or `<memory>` where the header came from there.
        file: String,
        /// The full name of the key.
        key: String,
    },
    /// A key holds a value that llama.cpp does not take.
    #[error("{file}: `{key}` is {value}, but {limit}")]
    Value {
        /// The file, or `<memory>` where the header came from there.
        file: String,
        /// The full name of the key.
        key: String,
        /// The value that was read.
        value: u64,
        /// What llama.cpp takes, and where it says so.
        limit: &'static str,
    },
    /// An encoder of images or sound, or a decoder of speech, whose graph we have not read, so that no bound of its
    /// buffers is known.
    #[error("{file}: the memory of {kind} projector `{projector}` is not known")]
    UnreadProjector {
        /// The file, or `<memory>` where the header came from there.
        file: String,
        /// `an image`, `an audio` or `a speech`.
        kind: &'static str,
        /// `clip.projector_type`.
        projector: String,
    },
    /// The draft computes with hidden states of the main model, and its context is of another kind than we know.
    #[error("{file}: the memory of a draft of architecture `{architecture}` is not known")]
    UnreadDraft {
        /// The file, or `<memory>` where the header came from there.
        file: String,
        /// `general.architecture`.
        architecture: String,
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

/// A file that does not have this key.
pub(super) fn missing(header: &Header, key: &str) -> Error {
    Error::Missing {
        file: file(header),
        key: key.to_owned(),
    }
}

/// A file with a projector of this kind that we have not read.
pub(super) fn unread(header: &Header, kind: &'static str, projector: String) -> Error {
    Error::UnreadProjector {
        file: file(header),
        kind,
        projector,
    }
}
