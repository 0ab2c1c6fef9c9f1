//! What a load came to: the plan, what llama.cpp and the devices say, and everything that was tried.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::error::Attempt;
use super::recipe::Verify;
use super::threads::Threads;
use crate::machine::{Bytes, LearnedHeadroom};
use crate::memory::{Footprint, HeadroomParts};
use crate::plan::Plan;

/// The result of a load: the plan, what was taken, every attempt. Its `Display` puts it in words.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct LoadReport {
    /// The plan that was followed.
    pub plan: Plan,
    /// The GPUs of the plan, in its order.
    pub gpus: Vec<GpuReport>,
    /// The host.
    pub host: HostReport,
    /// What was computed to verify the load.
    pub warm_up: WarmUp,
    /// The threads that were chosen for what the CPU computes.
    pub threads: Threads,
    /// Every attempt, the one that worked last.
    pub attempts: Vec<Attempt>,
    /// Why other loads did not see what this one took of its GPUs, if they did not.
    pub unleased: Option<String>,
    /// What else there is to say, for people.
    pub notes: Vec<String>,
}

/// One GPU after a load. Sizes in bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct GpuReport {
    /// ggml's name of the device: `CUDA0`.
    pub device: String,
    /// The GPU's name for people.
    pub name: String,
    /// Layers on it, the output layer counted.
    pub layers: u32,
    /// What the plan takes of it.
    pub planned: Footprint,
    /// What the plan leaves free on it.
    pub headroom: HeadroomParts,
    /// What was left free beside that, because earlier attempts had failed on it.
    pub withheld: u64,
    /// What llama.cpp says it has allocated, where it says so; the warm-up included.
    pub allocated: Option<Footprint>,
    /// How much of that came after the context was made: compute buffers that llama.cpp does not reserve by itself.
    pub grown: u64,
    /// Free before the load, if the device reports it.
    pub before: Option<u64>,
    /// Free when the model was loaded and nothing computed.
    pub loaded: Option<u64>,
    /// Free after the warm-up.
    pub used: Option<u64>,
    /// Why the change of its free bytes says nothing about this load, if it does not.
    pub doubt: Option<Doubt>,
    /// What driver and pools took beside the buffers; or why nothing was learned of that.
    pub learned: Result<LearnedHeadroom, Doubt>,
}

/// The host after a load. Sizes in bytes. Its free memory is shared by all programs, and is not measured.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct HostReport {
    /// What the plan takes of it.
    pub planned: Footprint,
    /// What llama.cpp says it has allocated. The buffer of logits is not in it, and a mapped file counts with its span.
    pub allocated: Footprint,
}

/// What was computed to verify a load.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct WarmUp {
    /// What was asked for.
    pub verify: Verify,
    /// Tokens that were computed.
    pub tokens: u64,
    /// The last position that was reached.
    pub last_position: u32,
    /// Why nothing was computed, if nothing was.
    pub skipped: Option<String>,
    /// How long it took, reserving included.
    pub time: Duration,
}

/// Why nothing is learned of a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Doubt {
    /// Nothing reports its free memory, or what llama.cpp has allocated there.
    #[error("nothing reports how much of it is free, or allocated")]
    NotReported,
    /// A model of this process was on it before: what the driver loaded for that would be missing from the measurement.
    #[error("an earlier model of this process has used it")]
    NotFirst,
    /// It has one layer, which may be the output layer alone.
    #[error("it has a single layer, whose work says nothing of others")]
    OneLayer,
    /// It uses the host's memory, which everything else on the machine changes too.
    #[error("its memory is the host's, which others change meanwhile")]
    SharedMemory,
    /// It is on another machine, whose driver is not known here.
    #[error("it is on another machine, whose driver is not known")]
    Remote,
    /// NVIDIA's driver lists other programs, or other bytes of theirs, than before the load. In a container the list
    /// may name this process as another.
    #[error("other programs took or gave back memory meanwhile")]
    OtherPrograms,
    /// Its free memory changed in a way that this model cannot have caused: more became free, or several times as much
    /// was taken as any driver and pools are known to take.
    #[error("its free memory changed meanwhile by what this model did not do")]
    Disturbed,
    /// The model does not generate, and was not loaded to embed: no batch of it was computed.
    #[error("the model does not generate, and nothing was computed")]
    NotGenerative,
    /// Nothing was computed, as was asked ([`Verify::Off`]).
    #[error("nothing was computed")]
    NotComputed,
}

impl GpuReport {
    /// Bytes by which its free memory shrank, from before the load to after the warm-up, if the device reports it.
    pub fn taken(&self) -> Option<u64> {
        Some(self.before?.saturating_sub(self.used?))
    }

    /// Bytes that were taken beside the buffers that llama.cpp counts: by driver and pools, or by another program.
    pub fn beyond(&self) -> Option<u64> {
        Some(self.taken()?.saturating_sub(self.allocated?.total()))
    }

    /// Bytes that llama.cpp has allocated beyond the plan.
    pub fn unplanned(&self) -> u64 {
        self.allocated.unwrap_or_default().total().saturating_sub(self.planned.total())
    }

    /// Bytes that were taken beyond the plan's footprint and all that it left free: what a load is judged by. Where the
    /// device's free memory says nothing about this load, llama.cpp's own account stands for what was taken.
    pub fn difference(&self) -> u64 {
        self.counted().saturating_sub(self.planned.total().saturating_add(self.left()))
    }

    /// Bytes that the plan left free: its headroom, and what earlier attempts added.
    pub(super) const fn left(&self) -> u64 {
        self.headroom.total().saturating_add(self.withheld)
    }

    /// What counts as taken by this load.
    pub(super) fn counted(&self) -> u64 {
        let allocated = self.allocated.unwrap_or_default().total();
        match self.doubt {
            None => self.taken().unwrap_or(0).max(allocated),
            Some(_) => allocated,
        }
    }
}

impl LoadReport {
    /// Attempts that it took.
    pub const fn tries(&self) -> usize {
        self.attempts.len()
    }
}

impl fmt::Display for LoadReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plan = &self.plan;
        let (layers, all) = (plan.n_gpu_layers, plan.layers());
        write!(f, "{}: {layers} of {all} layers on GPUs, a context of {}", plan.model.name, plan.context.n_ctx)?;
        if self.tries() > 1 {
            write!(f, ", at attempt {}", self.tries())?;
        }
        for gpu in &self.gpus {
            write!(f, "\n  {gpu}")?;
        }
        let Self { host, warm_up, threads, .. } = self;
        write!(f, "\n  {host}\n  {warm_up}\n  {threads}")?;
        for (number, attempt) in (1..).zip(&self.attempts) {
            if attempt.failure.is_some() {
                write!(f, "\n  attempt {number}: {attempt}")?;
            }
        }
        if let Some(why) = &self.unleased {
            write!(f, "\n  loaded without a lease, so others may count the same free bytes: {why}")?;
        }
        for note in &self.notes {
            write!(f, "\n  note: {note}")?;
        }
        Ok(())
    }
}

impl fmt::Display for GpuReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, device, .. } = self;
        write!(f, "{name} ({device}): {}", planned_and_allocated(self.planned, self.allocated))?;
        match (self.beyond().map(Bytes), self.used.map(Bytes), Bytes(self.left())) {
            (Some(beyond), Some(free), left) => {
                write!(f, "; {beyond} taken beside that, where {left} were left; {free} free")?;
            }
            _ => write!(f, "; it does not report what is free")?,
        }
        self.doubt.map_or(Ok(()), |doubt| write!(f, " ({doubt})"))
    }
}

impl fmt::Display for HostReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let span = if self.allocated.weights > self.planned.weights { ", a mapped file with its span" } else { "" };
        write!(f, "host: {}{span}", planned_and_allocated(self.planned, Some(self.allocated)))
    }
}

fn planned_and_allocated(planned: Footprint, allocated: Option<Footprint>) -> String {
    let allocated = allocated.map(|allocated| format!(", allocated {}", Bytes(allocated.total())));
    format!("planned {}{}", Bytes(planned.total()), allocated.unwrap_or_default())
}

impl fmt::Display for WarmUp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.skipped {
            Some(reason) => write!(f, "warm-up: none, {reason}"),
            None => {
                let Self { tokens, last_position, time, .. } = self;
                let seconds = time.as_secs_f64();
                write!(f, "warm-up: {tokens} tokens, up to position {last_position}, in {seconds:.2} s")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::GpuReport;
    use crate::load::Doubt;
    use crate::machine::mib;
    use crate::memory::{Footprint, HeadroomParts};

    /// A plan of 600 MiB that leaves 100, on a card of which 800 were free and 690 were taken.
    fn report() -> GpuReport {
        let mut headroom = HeadroomParts::default();
        (headroom.driver, headroom.growth, headroom.margin) = (mib(50), mib(30), mib(20));
        GpuReport {
            device: "CUDA0".to_owned(),
            name: "card".to_owned(),
            layers: 3,
            planned: Footprint::new(mib(500), mib(60), mib(40)),
            headroom,
            withheld: 0,
            allocated: Some(Footprint::new(mib(500), mib(60), mib(41))),
            grown: mib(1),
            before: Some(mib(800)),
            loaded: Some(mib(160)),
            used: Some(mib(110)),
            doubt: None,
            learned: Err(Doubt::NotFirst),
        }
    }

    #[test]
    fn what_was_taken_is_told_apart_from_what_llama_cpp_counts() {
        let report = report();
        assert_eq!(report.taken(), Some(mib(690)));
        assert_eq!(report.beyond(), Some(mib(89)));
        assert_eq!((report.unplanned(), report.difference()), (mib(1), 0));
        assert_eq!(
            report.to_string(),
            "card (CUDA0): planned 600 MiB, allocated 601 MiB; 89 MiB taken beside that, where 100 MiB were left; 110 MiB free"
        );
    }

    #[test]
    fn only_more_than_footprint_and_headroom_is_a_difference() {
        let used = |free| GpuReport { used: Some(mib(free)), ..report() };
        let doubted = || GpuReport { doubt: Some(Doubt::OtherPrograms), ..used(0) };
        let allocated = Some(Footprint::new(mib(710), 0, 0));
        for (report, difference) in [
            (used(100), 0),
            (used(99), 1),
            (used(0), 100),
            // What earlier attempts taught was left free too.
            (GpuReport { withheld: mib(70), ..used(0) }, 30),
            // Memory that others change is none, and what llama.cpp says is.
            (doubted(), 0),
            (GpuReport { allocated, ..doubted() }, 10),
            // Where a device reports nothing, nothing is measured.
            (GpuReport { before: None, used: None, ..report() }, 0),
        ] {
            assert_eq!(report.difference(), mib(difference), "{report}");
        }
    }
}
