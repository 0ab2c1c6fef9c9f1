//! Why an adapter or a control vector cannot be used.

use crate::gguf;

/// What is wrong with an adapter's file, by itself or for the model that it was given for. Each names the file, what
/// was needed and what was found.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)] // The fields are named for what the message says of them.
pub enum AdapterError {
    /// The header itself could not be read as it claims to be.
    #[error(transparent)]
    Header(#[from] gguf::Error),
    /// The file's data cannot be read.
    #[error("cannot read {file}: {reason}")]
    Unreadable { file: String, reason: String },
    /// The file is something else.
    #[error("{file} is no LoRA adapter: `{key}` is {found} and not `{wanted}`")]
    WrongKind {
        file: String,
        key: String,
        found: String,
        wanted: &'static str,
    },
    /// An adapter that takes effect only after certain tokens (aLoRA): from the first token on it would be another one.
    #[error("{file}: an adapter that is activated by tokens (aLoRA) cannot be used here")]
    Activated { file: String },
    /// There is nothing in it.
    #[error("{file} holds no tensor that changes a model")]
    Empty { file: String },
    /// A tensor that is no half of a pair or no direction of a layer, or that does not go with its weight.
    #[error("{file}: the tensor `{tensor}` {problem}")]
    Tensor {
        file: String,
        tensor: String,
        problem: String,
    },
    /// An adapter of another architecture.
    #[error("{file} is an adapter for `{found}`, and {model} is `{needed}`")]
    Architecture {
        file: String,
        model: String,
        found: String,
        needed: String,
    },
    /// A weight that the model does not have.
    #[error("{file} changes `{weight}`, which {model} does not have")]
    NoSuchWeight {
        file: String,
        model: String,
        weight: String,
    },
    /// An adapter for a token embedding that is the output matrix too: llama.cpp's process ends on it.
    #[error("{file} changes the token embedding, which in {model} is the output matrix too")]
    TiedEmbedding { file: String, model: String },
    /// A scale that is no number.
    #[error("the scale of {name} is {scale}, and a finite number is needed")]
    Scale { name: String, scale: f32 },
    /// Two adapters of one name.
    #[error("two adapters are called {name}: one needs a name of its own")]
    Twice { name: String },
    /// An adapter that the model was not loaded with.
    #[error(
        "the model was loaded without an adapter called {name}: {}",
        list(present)
    )]
    NoSuchAdapter { name: String, present: Vec<String> },
    /// A range of layers without any that a control vector could be added to.
    #[error(
        "control vectors cannot be added to the layers {first} to {last}: the first is 1 at least, and no later than the last"
    )]
    Layers { first: u32, last: u32 },
}

impl AdapterError {
    pub(super) fn tensor(file: &str, tensor: &str, problem: impl Into<String>) -> Self {
        Self::Tensor {
            file: file.to_owned(),
            tensor: tensor.to_owned(),
            problem: problem.into(),
        }
    }
}

fn list(present: &[String]) -> String {
    if present.is_empty() {
        "it has none".into()
    } else {
        format!("it has {}", present.join(", "))
    }
}
