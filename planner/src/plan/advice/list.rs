//! The advice: changes in the order of their cost to the user, or the reason why there is none.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::plan::{Plan, Workload};

use super::change::{Change, per_second};

/// Changes that would make more of a model fit.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Advice {
    /// The changes, the cheapest for the user first; empty if everything is on GPUs.
    pub changes: Vec<Change>,
    /// `Some` if the layers on GPUs gain almost nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pointless: Option<OffloadNotWorthwhile>,
    /// The workload of all plans and speeds. If a context is too short for this workload, the [typical
    /// workload](Workload::typical) for that context is used.
    pub workload: Workload,
    /// Whether the user has everything without a change.
    #[serde(skip)]
    pub(super) lacks_nothing: bool,
}

/// Offloading gains almost nothing: the plan generates hardly faster than the host alone. All speeds are in tokens per
/// second.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error, Serialize, Deserialize)]
#[error(
    "pointless: {n_gpu_layers} of {layers} layers on GPUs generate about {} tok/s, the host alone {}",
    per_second(*tokens_per_second), per_second(*all_on_host)
)]
#[non_exhaustive]
pub struct OffloadNotWorthwhile {
    /// The number of layers on GPUs.
    pub n_gpu_layers: u32,
    /// All layers of the model, the output layer included.
    pub layers: u32,
    /// The plan's speed.
    pub tokens_per_second: f64,
    /// The speed with every layer on the host.
    pub all_on_host: f64,
}

/// The minimum speed-up, as a factor, that justifies GPU layers or a change.
pub(super) const WORTH: f64 = 1.1;

impl Advice {
    /// Whether there is nothing to change: the whole request fits, and no change would be faster.
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty() && self.pointless.is_none() && self.lacks_nothing
    }
}

impl OffloadNotWorthwhile {
    /// Checks whether the GPU layers gain too little. `None` if they gain enough, if all layers or no layers are on
    /// GPUs, or if no speed is known.
    pub(super) fn check(plan: &Plan) -> Option<Self> {
        let speed = plan.speed.as_ref()?;
        let (tokens_per_second, all_on_host) = (speed.tokens_per_second, speed.all_on_host);
        let on_both = plan.n_gpu_layers > 0 && !plan.full_offload;
        (on_both && tokens_per_second <= all_on_host * WORTH).then_some(Self {
            n_gpu_layers: plan.n_gpu_layers,
            layers: plan.layers(),
            tokens_per_second,
            all_on_host,
        })
    }
}

impl fmt::Display for Advice {
    /// Writes one line for each item. Without items, writes one line with the reason why there are none.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.changes.is_empty() && self.pointless.is_none() {
            return f.write_str(match self.lacks_nothing {
                true => "nothing to change: everything that was requested fits",
                false => "no change that was tried puts more of the model on GPUs",
            });
        }
        let pointless = self.pointless.iter().map(ToString::to_string);
        let lines: Vec<String> = pointless.chain(self.changes.iter().map(ToString::to_string)).collect();
        f.write_str(&lines.join("\n"))
    }
}
