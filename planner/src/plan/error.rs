//! Why there is no plan.

use serde::{Deserialize, Serialize};

use crate::machine::Bytes;
use crate::{memory, profile};

/// What a device would need, has, and lacks.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[error(
    "{} on {device}: {} needed, {} of {} free usable",
    if *missing > 0 { format!("{} missing", Bytes(*missing)) } else { "enough".to_owned() },
    Bytes(*needed), Bytes(*budget), Bytes(*free)
)]
#[non_exhaustive]
pub struct Shortfall {
    /// The device's name for people.
    pub device: String,
    /// Bytes that the placement would take of it.
    pub needed: u64,
    /// Bytes that it may take: free bytes less the headroom.
    pub budget: u64,
    /// Bytes that are free there.
    pub free: u64,
    /// Bytes that are missing; 0 where this device would do.
    pub missing: u64,
}

/// Why there is no plan. Only errors that a user of a plan can act on cross from one process to another.
#[derive(Debug, thiserror::Error, Serialize, Deserialize)]
#[serde(remote = "Self")]
#[non_exhaustive]
#[allow(missing_docs)] // The fields are named for what the message says of them.
pub enum Error {
    /// The model fits nowhere. This is the placement that lacks the least, or the one that was asked for; `layers`
    /// counts the output layer.
    #[error(
        "{model} does not fit with {n_gpu_layers} of {layers} layers on a GPU and a context of {n_ctx}: {}",
        list(devices)
    )]
    DoesNotFit { model: String, n_gpu_layers: u32, layers: u32, n_ctx: u32, devices: Vec<Shortfall> },
    /// A context was asked for twice, of different lengths.
    #[error("`context` is {context:?} and `params.n_ctx` is {n_ctx}: which of them is meant?")]
    TwoContexts { context: super::Context, n_ctx: u32 },
    /// Layers on a GPU were asked for, and there is none.
    #[error("{n_gpu_layers} layers on a GPU were asked for, but there is no usable GPU")]
    NoGpu { n_gpu_layers: u32 },
    /// The architecture's memory follows no known law, and there was no probe to ask llama.cpp.
    #[error("the memory that {model} needs cannot be computed: {reason}; plan with a probe, which asks llama.cpp")]
    Unknown { model: String, reason: String },
    /// The request cannot be loaded at all.
    #[error(transparent)]
    #[serde(skip)]
    Memory(#[from] memory::Error),
    /// Further tokens cannot be predicted in such a context.
    #[error(transparent)]
    #[serde(skip)]
    Mtp(#[from] profile::MtpError),
    /// The model fits nowhere together with what is to be loaded beside it.
    #[error("with {companions} beside it: {}", why(source.as_deref()))]
    Beside { companions: String, source: Option<Box<Error>> },
    /// A file cannot be loaded beside the model.
    #[error(transparent)]
    #[serde(skip)]
    Companion(#[from] memory::companion::Error),
    /// The probe failed.
    #[error("the probe with {n_gpu_layers} layers on the GPU failed: {source}")]
    #[serde(skip)]
    Probe { n_gpu_layers: u32, source: Box<dyn std::error::Error + Send + Sync> },
}

crate::json::compiled_here!(Error);

fn why(source: Option<&Error>) -> String {
    source.map_or_else(|| "no GPU has room for that, nor has the host".to_owned(), ToString::to_string)
}

/// Several of them in a line.
pub(super) fn list(items: &[impl ToString]) -> String {
    let items: Vec<String> = items.iter().map(ToString::to_string).collect();
    items.join("; ")
}
