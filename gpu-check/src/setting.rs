//! What all checks are given, and what each gives back.

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context as _, Result};
use autoplace::load::OnDifference;
use autoplace::machine::mib;
use autoplace::memory::Headroom;
use autoplace::plan::Request;
use serde_json::Value;

use crate::job::{Job, Step};
use crate::rig::{Rig, SimCard};

/// How large the work is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Size {
    /// Megabytes on simulated cards, in seconds.
    Small,
    /// Models of 0.1 to 60 GB, as far as card, disk and time go.
    Real,
}

/// What all checks share.
#[derive(Debug)]
pub(crate) struct Setting {
    /// Whether the cards are simulated.
    pub(crate) simulated: bool,
    pub(crate) size: Size,
    /// The demo model.
    pub(crate) demo: PathBuf,
    /// Where results go.
    pub(crate) out: PathBuf,
    /// Where models are written, and what is learned of cards: gone afterwards.
    pub(crate) scratch: PathBuf,
    /// Threads of the CPU; `None` leaves it to the library.
    pub(crate) threads: Option<u32>,
    /// What a simulated card's pools take at the first computation, in bytes.
    pub(crate) growth: u64,
    /// Cases of a check after which no further one is begun.
    pub(crate) cases: Option<usize>,
    /// After this no further case of the running check is begun.
    pub(crate) until: Option<Instant>,
}

/// What a check has found.
#[derive(Debug)]
pub(crate) struct Verdict {
    pub(crate) passed: bool,
    /// In a line, for the table.
    pub(crate) line: String,
    /// All of it.
    pub(crate) json: Value,
}

impl Setting {
    /// The GPUs of a case: the machine's, or one simulated card of so many bytes, which nobody else uses.
    pub(crate) fn rig(&self, case: &str, total: u64) -> Rig {
        if !self.simulated {
            return Rig::Real;
        }
        Rig::Simulated(vec![SimCard {
            name: "simulated card".to_owned(),
            total,
            growth: self.growth,
            file: self.scratch.join(format!("{case}.card")),
        }])
    }

    /// What is asked of a plan: on a simulated card of some megabytes, a headroom in proportion.
    pub(crate) fn request(&self) -> Request {
        let mut request = Request::new();
        if self.simulated {
            request.headroom = Headroom::Bytes(SIM_HEADROOM);
        }
        request
    }

    /// A job that loads as an application would, and then takes these steps.
    pub(crate) fn job(&self, rig: &Rig, model: &Path, request: Request, steps: Vec<Step>) -> Job {
        Job {
            rig: rig.clone(),
            model: model.to_owned(),
            request,
            attempts: 4,
            on_difference: OnDifference::default(),
            warm_up: true,
            steps,
            threads: self.threads,
        }
    }

    /// Where what processes learn of cards is kept meanwhile.
    pub(crate) fn cache(&self) -> PathBuf {
        self.scratch.join("cache")
    }

    /// Why no further case of this check is begun after so many, if none is.
    pub(crate) fn ends(&self, cases: usize) -> Option<&'static str> {
        if self.cases.is_some_and(|most| cases >= most) {
            return Some("no case left");
        }
        let is_late = self.until.is_some_and(|until| Instant::now() >= until);
        is_late.then_some("no time left")
    }

    /// Writes a file among the results.
    pub(crate) fn keep(&self, name: &str, content: &[u8]) -> Result<()> {
        let path = self.out.join(name);
        std::fs::write(&path, content).with_context(|| format!("cannot write {}", path.display()))
    }
}

/// The first of what is wrong, to end the line of a table with.
pub(crate) fn first(wrong: &[String]) -> String {
    let first = wrong.first();
    first.map_or(String::new(), |first| format!("; {first}"))
}

/// What plans for a simulated card leave free.
pub(crate) const SIM_HEADROOM: u64 = mib(1);
