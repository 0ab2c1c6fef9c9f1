//! The readiness check: whether a placement keeps its speed while the same work repeats at the end of its context.
//!
//! The request of a [`Measure`] and the options of a [`Ready`] flow in. [`Readiness`] flows out, with the tried
//! placements, their checks, and the plan that passed. `trial` runs one placement, `checks` judges it, and `smaller`
//! chooses the next one.

mod checks;
mod host;
mod smaller;
mod trial;

#[cfg(test)]
mod tests;

use std::fmt;
use std::time::Duration;

use autoplace::gguf::Header;
use autoplace::load::{self, build_name};
use autoplace::machine::RateConditions;
use autoplace::plan::{Plan, SavedPlan};
use serde::{Deserialize, Serialize};

use super::conditions::Conditions;
use super::measurement::{Measured, Row};
use super::run::{Measure, Variant};
use super::{Error, Protocol};

/// Maximum number of placements to try. Each is smaller than the previous one.
const MAX_TRIALS: usize = 8;

/// How a placement is tried.
#[derive(Debug, Clone, PartialEq)]
#[must_use]
pub struct Ready {
    runs: u32,
    over: Duration,
    drift: f64,
    is_quick: bool,
}

impl Default for Ready {
    /// Ten runs in ten minutes. The speed may change by 5 %.
    fn default() -> Self {
        Self { runs: 10, over: Duration::from_secs(600), drift: 0.05, is_quick: false }
    }
}

impl Ready {
    /// Six runs in two minutes, with at most 64 tokens in a prompt and at most 64 generated tokens. If the two minutes
    /// are over before the sixth run, three runs are enough.
    pub fn quick() -> Self {
        Self { runs: 6, over: Duration::from_secs(120), is_quick: true, ..Self::default() }
    }

    /// Sets the number of runs, at least two.
    pub fn runs(mut self, runs: u32) -> Self {
        self.runs = runs.max(2);
        self
    }

    /// Sets the time over which the runs are spread. If the runs take longer than this time, they follow each other
    /// without a pause.
    pub fn over(mut self, time: Duration) -> Self {
        self.over = time;
        self
    }

    /// Sets the share by which the last runs may be slower or faster than the first runs: 0.05 is 5 %.
    pub fn drift(mut self, share: f64) -> Self {
        self.drift = share;
        self
    }

    fn protocol(&self, mut usual: Protocol) -> Protocol {
        if self.is_quick {
            (usual.n_prompt, usual.n_gen) = (usual.n_prompt.min(64), usual.n_gen.min(64));
        }
        usual
    }
}

/// The result of a [readiness check](Measure::ready).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Readiness {
    /// The format version: [`Readiness::VERSION`].
    pub version: u64,
    /// The names and versions of this crate, llama.cpp and its backends.
    pub made_by: String,
    /// The tried placements, at most eight. Each is smaller than the previous one.
    pub trials: Vec<Trial>,
    /// The plan that passed, for [`ModelBuilder::follow`](autoplace::ModelBuilder::follow).
    pub plan: Option<SavedPlan>,
    /// The reasons why no smaller placement was tried, and advice for the user. Each note is a sentence.
    pub notes: Vec<String>,
    /// Whether the check was stopped before it had a result.
    pub is_stopped: bool,
}

/// A trial of one placement.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Trial {
    /// The placement.
    pub placement: Measured,
    /// The generations, with a sample for each run.
    pub runs: Row,
    /// The worst state of the devices and the host.
    pub conditions: Conditions,
    /// The conditions of each run.
    pub each: Vec<RateConditions>,
    /// The smallest number of bytes of the host's memory that were left for this process, within its container's limit.
    pub host_available: Option<u64>,
    /// The checks.
    pub checks: Vec<Check>,
}

/// One check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Check {
    /// The checked aspect.
    pub aspect: Aspect,
    /// Whether the aspect is within its limit. An aspect that the system does not report passes.
    pub passed: bool,
    /// The observed value, and its limit.
    pub found: String,
}

/// An aspect of a placement that is checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Aspect {
    /// The runs are about as fast as the first runs.
    #[error("drift")]
    Drift,
    /// The GPUs still have the plan's margin free.
    #[error("headroom")]
    Headroom,
    /// Neither heat nor the power supply holds a GPU's clocks down.
    #[error("clocks")]
    Clocks,
    /// The system did not swap during the trial, and no memory of this process is in swap.
    #[error("swap")]
    Swap,
    /// The plan's margin of the host's memory is still available, and the available memory hardly shrank.
    #[error("host memory")]
    HostMemory,
    /// Threads hardly ever waited for memory.
    #[error("memory pressure")]
    MemoryPressure,
    /// Threads hardly ever waited for a core, so no other program or virtual machine keeps the processor busy.
    #[error("processor")]
    Processor,
    /// No CPU quota stopped this process for long.
    #[error("quota")]
    Quota,
    /// The processor hardly ever lowered its clock because of heat.
    #[error("heat")]
    Heat,
}

impl Readiness {
    /// The format version that this crate writes.
    pub const VERSION: u64 = 1;

    /// Whether a placement passed.
    pub fn passed(&self) -> bool {
        self.plan.is_some()
    }

    /// The result as indented JSON.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default()
    }
}

impl Trial {
    /// Whether all checks passed.
    pub fn passed(&self) -> bool {
        self.checks.iter().all(|check| check.passed)
    }

    /// The failed aspects, in the order of the checks.
    pub fn failed(&self) -> impl Iterator<Item = Aspect> {
        self.checks.iter().filter(|check| !check.passed).map(|check| check.aspect)
    }
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = if self.passed { "pass" } else { "FAIL" };
        write!(f, "{verdict}  {:<15}  {}", self.aspect.to_string(), self.found)
    }
}

impl Measure<'_> {
    /// Checks by repeated runs at the end of the context whether the placement of the request keeps its speed.
    ///
    /// If a GPU fails (headroom, clocks, drift), the next trial has fewer layers on GPUs. If the host's memory is short
    /// (swap, host memory, memory pressure), the next trial has half the context. The trials end when a placement
    /// passes and when there is no smaller placement. They also end if other programs, a quota or heat keep the
    /// processor from computing, because no placement can improve that. [`Readiness::notes`] then has advice for
    /// the user.
    ///
    /// # Errors
    ///
    /// Those of [`run`](Self::run). A placement that fails its checks is not an error.
    pub fn ready(mut self, ready: &Ready) -> Result<Readiness, Error> {
        let header = Header::open(&self.path).map_err(load::Error::from)?;
        let mut request = self.same_context(self.request.clone());
        let mut readiness = Readiness {
            version: Readiness::VERSION,
            made_by: build_name(),
            trials: Vec::new(),
            plan: None,
            notes: Vec::new(),
            is_stopped: false,
        };
        loop {
            let model = match self.builder(&Variant::asked("", request.clone())).load() {
                Ok(model) => model,
                Err(error) if readiness.trials.is_empty() => return Err(error.into()),
                Err(error) => {
                    readiness.notes.push(format!("nothing smaller can be loaded: {error}"));
                    break;
                }
            };
            let plan = model.placement();
            let Some((trial, shortfall)) = self.trial(&model, ready, readiness.trials.len())? else {
                readiness.is_stopped = true;
                readiness.notes.push("stopped before there was a result".to_owned());
                break;
            };
            let passed = trial.passed();
            let next = smaller::next(&request, &plan, &trial, shortfall);
            readiness.trials.push(trial);
            if passed {
                let saved = SavedPlan::new(Plan::clone(&plan), request, &header).map_err(load::Error::from)?;
                readiness.plan = Some(saved);
                break;
            }
            match next {
                Ok(_) if readiness.trials.len() == MAX_TRIALS => {
                    readiness.notes.push(format!("{MAX_TRIALS} placements were tried, which is the limit"));
                    break;
                }
                Ok(next) => request = next,
                Err(why) => {
                    readiness.notes.extend(why);
                    break;
                }
            }
        }
        Ok(readiness)
    }
}
