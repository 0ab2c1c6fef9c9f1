//! Why a model was not loaded.

use crate::{gguf, plan, profile};

/// An error on the way from a path to a loaded model.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file is no GGUF that llama.cpp could load.
    #[error(transparent)]
    Gguf(#[from] gguf::Error),
    /// The file's hyper-parameters are missing, contradictory, or beyond what llama.cpp takes.
    #[error(transparent)]
    Profile(#[from] profile::Error),
    /// There is no safe placement; the error says how many bytes are missing where.
    #[error(transparent)]
    Plan(#[from] plan::Error),
    /// A device of the plan is not there.
    #[error(
        "the plan uses the device {device}, which this process does not have: {}",
        list(present)
    )]
    DeviceGone {
        /// ggml's name of the device.
        device: String,
        /// The GPUs that are there.
        present: Vec<String>,
    },
    /// llama.cpp refused or failed.
    #[error(transparent)]
    Native(#[from] llama_sys::Error),
}

fn list(present: &[String]) -> String {
    if present.is_empty() {
        "it has no GPU".into()
    } else {
        format!("it has {}", present.join(", "))
    }
}
