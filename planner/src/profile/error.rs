//! Why a header yields no profile.

use crate::gguf;

/// What is wrong with a model's header. Each names the file, what was read there, and what it should have been.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)] // The fields are named for what the message says of them.
pub enum Error {
    /// The header itself could not be read as it claims to be.
    #[error(transparent)]
    Header(#[from] gguf::Error),
    /// A key that llama.cpp requires is not there.
    #[error("{file}: the key `{key}` is missing")]
    Missing { file: String, key: String },
    /// A key holds a value that llama.cpp does not take: most of them end its process.
    #[error("{file}: `{key}` is {value}, but {limit}")]
    Value {
        file: String,
        key: String,
        value: String,
        /// What llama.cpp takes, and where it says so.
        limit: String,
    },
}
