//! Whether a placement lasts: the same work again and again at the end of its context, while the machine is watched.
//!
//! In: the request of a [`Measure`], and how long to try ([`Ready`]). Out: [`Readiness`], the placements that were
//! tried with what passed and failed of each, and the plan that passed. `trial` runs one placement, `checks` judges it,
//! `smaller` says what to try next.

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
use super::run::{Arm, Measure};
use super::{Error, Protocol};

/// Placements that are tried, each smaller than the one before.
const MOST_TRIALS: usize = 8;

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
    /// Ten runs in ten minutes, whose speed may change by 5 %.
    fn default() -> Self {
        Self { runs: 10, over: Duration::from_secs(600), drift: 0.05, is_quick: false }
    }
}

impl Ready {
    /// Six runs in two minutes, of 64 tokens each at most. Where two minutes are over before, three runs are enough.
    pub fn quick() -> Self {
        Self { runs: 6, over: Duration::from_secs(120), is_quick: true, ..Self::default() }
    }

    setters! {
        /// Sets how often the same work is done; two at least.
        runs(runs: u32) runs = runs.max(2);
        /// Sets the time that the runs are spread over. Runs that take longer than that follow each other at once.
        over(time: Duration) over = time;
        /// Sets the share by which the last runs may be slower or faster than the first: 0.05 is 5 %.
        drift(share: f64) drift = share;
    }

    fn protocol(&self, mut usual: Protocol) -> Protocol {
        if self.is_quick {
            (usual.n_prompt, usual.n_gen) = (usual.n_prompt.min(64), usual.n_gen.min(64));
        }
        usual
    }
}

/// What came of a [readiness check](Measure::ready).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Readiness {
    /// The version of this form: [`Readiness::VERSION`].
    pub version: u64,
    /// This crate, llama.cpp and its backends, with their versions.
    pub made_by: String,
    /// The placements that were tried, at most eight, each smaller than the one before.
    pub trials: Vec<Trial>,
    /// The plan that passed, to be followed ([`ModelBuilder::follow`](autoplace::ModelBuilder::follow)).
    pub plan: Option<SavedPlan>,
    /// Why no smaller placement was tried, and what a person can do, a sentence each.
    pub notes: Vec<String>,
    /// Whether it was stopped before it was known.
    pub is_stopped: bool,
}

/// One placement, run again and again.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Trial {
    /// Where the model was.
    pub placement: Measured,
    /// The generations, a sample for each run.
    pub runs: Row,
    /// The worst that was seen of the devices and the host.
    pub conditions: Conditions,
    /// The conditions of each run.
    pub each: Vec<RateConditions>,
    /// The least that this process could still take of the host's memory, in bytes, its container's limit included.
    pub host_available: Option<u64>,
    /// What was judged.
    pub checks: Vec<Check>,
}

/// One thing that was judged.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Check {
    /// What was judged.
    pub aspect: Aspect,
    /// Whether it is as it must be. Where the system reports nothing, nothing fails.
    pub passed: bool,
    /// What was found, and its limit.
    pub found: String,
}

/// What is judged of a placement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Aspect {
    /// All runs are as fast as the first ones.
    #[error("drift")]
    Drift,
    /// The plan's margin is still free on each GPU.
    #[error("headroom")]
    Headroom,
    /// Neither heat nor the power supply holds a GPU's clocks down.
    #[error("clocks")]
    Clocks,
    /// The system swapped nothing meanwhile, and nothing of this process is in swap.
    #[error("swap")]
    Swap,
    /// The plan's margin of the host's memory is still available, and what is available did not shrink.
    #[error("host memory")]
    HostMemory,
    /// Threads hardly waited for memory.
    #[error("memory pressure")]
    MemoryPressure,
    /// Threads hardly waited for a core: no other program or virtual machine keeps the processor busy.
    #[error("processor")]
    Processor,
    /// No CPU quota stopped this process.
    #[error("quota")]
    Quota,
    /// The processor was not too hot for its clock.
    #[error("heat")]
    Heat,
}

impl Readiness {
    /// The version that this crate writes.
    pub const VERSION: u64 = 1;

    /// Whether a placement passed.
    pub fn passed(&self) -> bool {
        self.plan.is_some()
    }

    /// As JSON, indented.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default()
    }
}

impl Trial {
    /// Whether nothing failed.
    pub fn passed(&self) -> bool {
        self.checks.iter().all(|check| check.passed)
    }

    /// What failed, in the order of the checks.
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
    /// Whether the placement of the request lasts: run again and again, at the end of its context.
    ///
    /// Where a GPU fails (headroom, clocks, drift) fewer layers go on GPUs at the next trial; where the host's memory
    /// is short (swap, host memory, memory pressure) the context is halved; until one passes. Where the processor is
    /// kept from computing (other programs, a quota, heat) no placement helps: there it ends, as with the smallest
    /// placement, and the notes say what a person can do.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run). A placement that does not last is no error.
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
            let model = match self.builder(&Arm::asked("", request.clone())).load() {
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
                readiness.notes.push("stopped before it was known".to_owned());
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
                Ok(_) if readiness.trials.len() == MOST_TRIALS => {
                    readiness.notes.push(format!("{MOST_TRIALS} placements were tried, and no more are"));
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
