//! Planning errors.

use serde::{Deserialize, Serialize};

use crate::machine::Bytes;
use crate::{memory, profile};

use super::advice::Advice;

/// The memory of one device in a placement that does not fit: needed, usable and missing bytes.
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
    /// Bytes that the placement needs there.
    pub needed: u64,
    /// Usable bytes: the free bytes minus the headroom.
    pub budget: u64,
    /// Free bytes of the device.
    pub free: u64,
    /// Missing bytes; 0 if this device has enough.
    pub missing: u64,
}

/// Why planning failed. Of these errors, only those that the user of a plan can act on are sent between processes.
#[derive(Debug, thiserror::Error, Serialize, Deserialize)]
#[serde(remote = "Self")]
#[non_exhaustive]
#[allow(missing_docs)] // The message explains the fields.
pub enum Error {
    /// The model does not fit. The devices are the devices of the requested placement. If no placement was requested,
    /// they are those of the candidate with the fewest missing bytes. `layers` includes the output layer. A load adds
    /// [advice](Error::advice), and the message ends with the cheapest change of the advice.
    #[error(
        "{model} does not fit with {n_gpu_layers} of {layers} layers on a GPU and a context of {n_ctx}: {}{}",
        list(devices), cheapest(advice.as_deref())
    )]
    DoesNotFit {
        model: String,
        n_gpu_layers: u32,
        layers: u32,
        n_ctx: u32,
        devices: Vec<Shortfall>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        advice: Option<Box<Advice>>,
    },
    /// The request states two different context lengths.
    #[error("`context` is {context:?} and `params.n_ctx` is {n_ctx}: set only one of them")]
    TwoContexts { context: super::Context, n_ctx: u32 },
    /// The request requires layers on a GPU, but no GPU is usable. `why` names the backends of the build and the cards
    /// that were seen.
    #[error("{n_gpu_layers} layers on a GPU were requested, but {why}")]
    NoGpu { n_gpu_layers: u32, why: String },
    /// The planner has no memory model of this architecture or context, and no probe was given.
    #[error("the memory that {model} needs cannot be computed: {reason}; plan with a probe, which asks llama.cpp")]
    Unknown { model: String, reason: String },
    /// llama.cpp would reject the request's parameters.
    #[error(transparent)]
    #[serde(skip)]
    Memory(#[from] memory::Error),
    /// The model cannot predict further tokens in a context with the requested parameters.
    #[error(transparent)]
    #[serde(skip)]
    Mtp(#[from] profile::MtpError),
    /// The model does not fit together with its companions.
    #[error("with {companions} beside the model: {}", why(source.as_deref()))]
    Beside { companions: String, source: Option<Box<Error>> },
    /// A companion file cannot be loaded together with the model.
    #[error(transparent)]
    #[serde(skip)]
    Companion(#[from] memory::companion::Error),
    /// The probe failed.
    #[error("the probe with {n_gpu_layers} layers on the GPU failed: {source}")]
    #[serde(skip)]
    Probe { n_gpu_layers: u32, source: Box<dyn std::error::Error + Send + Sync> },
}

crate::json::compiled_here!(Error);

impl Error {
    /// Changes with which the model fits; `None` unless [`advised`](super::Planner::advised) has tried changes.
    pub fn advice(&self) -> Option<&Advice> {
        match self {
            Self::DoesNotFit { advice, .. } => advice.as_deref(),
            Self::Beside { source: Some(source), .. } => source.advice(),
            _ => None,
        }
    }

    /// The error's field for advice; `None` for an error without such a field.
    pub(super) fn advice_mut(&mut self) -> Option<&mut Option<Box<Advice>>> {
        match self {
            Self::DoesNotFit { advice, .. } => Some(advice),
            Self::Beside { source: Some(source), .. } => source.advice_mut(),
            _ => None,
        }
    }
}

/// The cheapest change, for the end of the message of a model that does not fit.
fn cheapest(advice: Option<&Advice>) -> String {
    match advice {
        None => String::new(),
        Some(advice) => match advice.changes.first() {
            Some(change) => format!("; {change}"),
            None => "; no change that was tried makes it fit".to_owned(),
        },
    }
}

fn why(source: Option<&Error>) -> String {
    source.map_or_else(|| "neither a GPU nor the host has room for it".to_owned(), ToString::to_string)
}

/// The items in one line.
pub(super) fn list(items: &[impl ToString]) -> String {
    let items: Vec<String> = items.iter().map(ToString::to_string).collect();
    items.join("; ")
}
