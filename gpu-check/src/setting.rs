//! The input and output of all checks.

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context as _, Result};
use autoplace::machine::mib;
use autoplace::memory::Headroom;
use autoplace::plan::Request;
use autoplace::{Isolation, ModelBuilder};
use autoplace_measure::Measure;
use serde_json::Value;

use crate::rig::{Opened, Rig, SimCard};

/// The size of the work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Size {
    /// Models of megabytes on simulated cards. The work takes seconds.
    Small,
    /// Models of 0.1 to 60 GB, within the limits of card, disk and time.
    Real,
}

/// The input of all checks.
#[derive(Debug)]
pub(crate) struct Setting {
    /// Whether the cards are simulated.
    pub(crate) simulated: bool,
    pub(crate) size: Size,
    /// The demo model.
    pub(crate) demo: PathBuf,
    /// The folder of the results.
    pub(crate) out: PathBuf,
    /// A temporary folder for models and for learned facts about cards.
    pub(crate) scratch: PathBuf,
    /// CPU threads; `None` leaves the number to the library.
    pub(crate) threads: Option<u32>,
    /// Bytes that a simulated card's pools take at the first computation.
    pub(crate) growth: u64,
    /// Maximum number of cases of a check.
    pub(crate) cases: Option<usize>,
    /// The time after which no further case of the running check begins.
    pub(crate) until: Option<Instant>,
}

/// The result of a check.
#[derive(Debug)]
pub(crate) struct Verdict {
    pub(crate) passed: bool,
    /// A line for the table.
    pub(crate) line: String,
    /// The full result.
    pub(crate) json: Value,
}

impl Setting {
    /// The GPUs of a case: the machine's GPUs, or one simulated card of this size that exists only for this case.
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

    /// The base of all requests. A simulated card of some megabytes gets a proportionally smaller headroom.
    pub(crate) fn request(&self) -> Request {
        let mut request = Request::new();
        if self.simulated {
            request.headroom = Headroom::Bytes(SIM_HEADROOM);
        }
        request
    }

    /// Prepares a load like an application's, in a worker with these GPUs, so that a crash of a driver ends only the
    /// worker.
    ///
    /// The worker looks for the GPUs itself, because its own context on a card takes some of the card's memory. Only a
    /// simulated card is described to it, so that no GPU of this machine is used beside it.
    pub(crate) fn load_on(&self, rig: &Opened) -> Result<impl Fn(ModelBuilder) -> ModelBuilder + use<>> {
        let worker = rig.worker()?.env("XDG_CACHE_HOME", self.cache()).env("GGML_NO_BACKTRACE", "1");
        let machine = if self.simulated { Some(rig.unmeasured()?) } else { None };
        let threads = self.threads;
        Ok(move |builder: ModelBuilder| {
            let builder = builder.isolation(Isolation::Process(worker.clone()));
            let builder = machine.clone().into_iter().fold(builder, ModelBuilder::machine);
            threads.into_iter().fold(builder, ModelBuilder::n_threads)
        })
    }

    /// A measurement of a model with this request, on these GPUs.
    pub(crate) fn measure(&self, rig: &Opened, model: &Path, request: Request) -> Result<Measure<'static>> {
        Ok(Measure::new(model).request(request).load_with(self.load_on(rig)?))
    }

    /// The temporary cache for the figures that processes learn about cards.
    pub(crate) fn cache(&self) -> PathBuf {
        self.scratch.join("cache")
    }

    /// The reason to end the check after this many cases; `None` to continue.
    pub(crate) fn ends(&self, cases: usize) -> Option<&'static str> {
        if self.cases.is_some_and(|most| cases >= most) {
            return Some("no case left");
        }
        let is_late = self.until.is_some_and(|until| Instant::now() >= until);
        is_late.then_some("no time left")
    }

    /// Writes a file to the results.
    pub(crate) fn keep(&self, name: &str, content: &[u8]) -> Result<()> {
        let path = self.out.join(name);
        std::fs::write(&path, content).with_context(|| format!("cannot write {}", path.display()))
    }
}

/// The first fault, for the end of a line of the table.
pub(crate) fn first(wrong: &[String]) -> String {
    let first = wrong.first();
    first.map_or(String::new(), |first| format!("; {first}"))
}

/// The headroom of plans for a simulated card.
pub(crate) const SIM_HEADROOM: u64 = mib(1);
