//! One attempt to load, as it is reported: what was tried, and at which stage it failed for lack of what.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::machine::Bytes;
use crate::plan::Plan;

/// How far a load came.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Stage {
    /// Planning with what was free, and with what earlier attempts taught.
    #[error("while planning")]
    Plan,
    /// Looking whether the plan still fits, right before the load.
    #[error("before the load")]
    Check,
    /// Reading the weights.
    #[error("while loading")]
    Weights,
    /// Making the context: its cache and its compute buffers.
    #[error("while making the context")]
    Context,
    /// Reserving the rest, and computing for the first time.
    #[error("while warming up")]
    WarmUp,
    /// Holding what was taken against the plan.
    #[error("while verifying")]
    Verify,
}

/// One attempt to load a model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Attempt {
    /// Layers on GPUs, the output layer counted. 0 where no plan was found.
    pub n_gpu_layers: u32,
    /// Layers of the model, the output layer counted. 0 where no plan was found.
    pub layers: u32,
    /// The GPUs of the plan that was tried.
    pub gpus: Vec<AttemptedGpu>,
    /// Why it failed; `None` for the attempt that worked.
    pub failure: Option<AttemptFailure>,
}

/// A GPU of a plan that was tried. Sizes in bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct AttemptedGpu {
    /// ggml's name of the device: `CUDA0`.
    pub device: String,
    /// The GPU's name for people.
    pub name: String,
    /// Layers on it, the output layer counted.
    pub layers: u32,
    /// What the plan takes of it.
    pub needed: u64,
    /// What the plan counted as free.
    pub planned_free: u64,
}

/// Why an attempt failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{stage}, {message}")]
#[non_exhaustive]
pub struct AttemptFailure {
    /// How far it came.
    pub stage: Stage,
    /// ggml's name of the device, or of the host's buffer type, that lacked memory, where one is known.
    pub device: Option<String>,
    /// Bytes that the plan takes of that device.
    pub needed: Option<u64>,
    /// Bytes that were free there once everything was released, where it tells.
    pub free: Option<u64>,
    /// The error, in a line.
    pub message: String,
}

impl Attempt {
    /// An attempt to follow this plan.
    pub(super) fn of(plan: &Plan, failure: Option<AttemptFailure>) -> Self {
        let gpus = plan.gpus().map(|gpu| AttemptedGpu {
            device: gpu.device.clone().unwrap_or_default(),
            name: gpu.name.clone(),
            layers: gpu.layers,
            needed: gpu.footprint.total(),
            planned_free: gpu.free,
        });
        Self {
            n_gpu_layers: plan.n_gpu_layers,
            layers: plan.layers(),
            gpus: gpus.collect(),
            failure,
        }
    }

    /// One for which no plan was found.
    pub(super) fn unplanned(message: String) -> Self {
        Self {
            n_gpu_layers: 0,
            layers: 0,
            gpus: Vec::new(),
            failure: Some(AttemptFailure {
                stage: Stage::Plan,
                device: None,
                needed: None,
                free: None,
                message,
            }),
        }
    }
}

impl fmt::Display for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.layers > 0 {
            write!(f, "{} of {} layers on GPUs", self.n_gpu_layers, self.layers)?;
            let needed = self.gpus.iter().map(|gpu| {
                let (needed, free) = (Bytes(gpu.needed), Bytes(gpu.planned_free));
                format!("{needed} of {free} free on {}", gpu.device)
            });
            let needed: Vec<String> = needed.collect();
            if !needed.is_empty() {
                write!(f, " ({})", needed.join(", "))?;
            }
        }
        match &self.failure {
            None => f.write_str(": loaded"),
            Some(failure) if self.layers > 0 => write!(f, ": {failure}"),
            Some(failure) => write!(f, "{failure}"),
        }
    }
}

pub(super) fn list(attempts: &[Attempt]) -> String {
    let all = (1..).zip(attempts);
    let all: Vec<String> = all
        .map(|(number, attempt)| format!("{number}: {attempt}"))
        .collect();
    all.join("; ")
}
