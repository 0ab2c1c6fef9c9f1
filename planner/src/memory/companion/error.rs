//! Errors of companions.

use crate::{gguf, memory, profile};

/// The error for a file that cannot be loaded together with the main model, or whose memory is unknown. A header that
/// was not read from a file has the name `<memory>` or `<builder>`.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)] // The message explains the fields.
pub enum Error {
    /// The header could not be read.
    #[error(transparent)]
    Header(#[from] gguf::Error),
    /// The draft's header does not describe a usable model.
    #[error(transparent)]
    Profile(#[from] profile::Error),
    /// llama.cpp would reject the parameters for the draft.
    #[error(transparent)]
    Context(#[from] memory::Error),
    /// The file is not of the stated kind.
    #[error("{file}: the architecture is `{architecture}`, but {role} is {wanted}")]
    WrongKind { file: String, architecture: String, role: &'static str, wanted: &'static str },
    /// A key that llama.cpp requires is missing or 0.
    #[error("{file}: the key `{key}` is missing or 0")]
    Missing { file: String, key: String },
    /// No bound of the file's memory is known. Either the file is an encoder of images or sound or a decoder of speech
    /// whose graph we have not read, or it is a draft that computes with the main model's hidden states.
    #[error("{file}: the memory of {what} is not known")]
    Unread { file: String, what: String },
    /// The machine has no GPU with the name that was requested for a draft.
    #[error("the draft model {draft} was requested on `{device}`, which this machine lacks: {there}")]
    Device { draft: String, device: String, there: String },
    /// llama.cpp would refuse this draft for this model (common/speculative.cpp, `common_speculative_are_compatible`).
    #[error("{draft} cannot draft for {main}: {what} is {of_draft} in the draft model, but {of_main} in the model")]
    Vocabulary { draft: String, main: String, what: String, of_draft: String, of_main: String },
    /// The projector's output and the text model's embeddings differ in width (mtmd.cpp, `mtmd_context::mtmd_context`).
    #[error("{file} belongs to another model: its rows have {of_mmproj} elements, but {main} takes {of_main}")]
    Width { file: String, main: String, of_mmproj: u64, of_main: u64 },
}

/// The file name of a header, for errors.
pub(super) fn file(header: &gguf::Header) -> String {
    header.path().display().to_string()
}
