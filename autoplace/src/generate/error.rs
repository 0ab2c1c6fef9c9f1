//! What can go wrong between a prompt and its text.

use std::sync::Arc;

use crate::load;

/// An error of a generation.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A generation already runs on this model.
    #[error("this model is generating already: drop the other stream first")]
    Busy,
    /// The prompt has no tokens, and the model has no BOS token to begin with.
    #[error("the prompt is empty, and the model has no token that begins a text")]
    EmptyPrompt,
    /// The prompt leaves no room for an answer.
    #[error(
        "the prompt is {tokens} tokens long, and the context holds {context}, one of which the answer needs"
    )]
    PromptTooLong {
        /// Tokens of the prompt.
        tokens: usize,
        /// Tokens that the context holds.
        context: usize,
    },
    /// The model computes embeddings or encodings and generates nothing.
    #[error("{architecture} models do not generate text")]
    NotGenerative {
        /// `general.architecture` of the file.
        architecture: String,
    },
    /// A stop string is empty: nothing could ever be generated before it.
    #[error("a stop string is empty")]
    EmptyStop,
    /// llama.cpp refused or failed.
    #[error(transparent)]
    Native(#[from] llama_sys::Error),
    /// The model is not loaded, or cannot be loaded anew.
    #[error(transparent)]
    Load(Arc<load::Error>),
}

impl From<load::Error> for Error {
    fn from(error: load::Error) -> Self {
        match error {
            load::Error::Native(error) => Self::Native(error),
            error => Self::Load(Arc::new(error)),
        }
    }
}
