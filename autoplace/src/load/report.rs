//! The report of a load: the plan, the bytes that llama.cpp and the devices report, and all attempts.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::depth::DepthMove;
use super::error::Attempt;
use super::options::Verify;
use super::threads::Threads;
use crate::machine::{Bytes, LearnedHeadroom};
use crate::memory::{Footprint, HeadroomParts};
use crate::plan::Plan;

/// The result of a load: the plan, the memory taken, and every attempt. Its `Display` describes the load.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct LoadReport {
    /// The plan of the load.
    pub plan: Plan,
    /// The GPUs of the plan, in its order.
    pub gpus: Vec<GpuReport>,
    /// The host.
    pub host: HostReport,
    /// The projector's allocations, if the model has a projector. [`Plan::companions`](crate::plan::Plan::companions)
    /// contains the planned bytes.
    pub projector: Option<ProjectorReport>,
    /// The computation that verified the load.
    pub warm_up: WarmUp,
    /// The threads that the CPU uses.
    pub threads: Threads,
    /// Every attempt. The last attempt succeeded.
    pub attempts: Vec<Attempt>,
    /// The reason why other loads could not see which GPUs this load uses; `None` if it had a lease.
    pub unleased: Option<String>,
    /// Further notes, for people to read.
    pub notes: Vec<String>,
    /// Duration of the successful attempt: reading the weights, creating the contexts, and the warm-up.
    pub time: Duration,
    /// The move that this load was a part of, if the model [follows the depth](crate::plan::Depth) of its texts.
    pub moved: Option<DepthMove>,
}

/// One GPU after a load. Sizes in bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct GpuReport {
    /// ggml's name of the device: `CUDA0`.
    pub device: String,
    /// The GPU's display name.
    pub name: String,
    /// The number of layers on the GPU, including the output layer.
    pub layers: u32,
    /// The bytes that the plan needs on the GPU.
    pub planned: Footprint,
    /// The headroom that the plan leaves.
    pub headroom: HeadroomParts,
    /// Additional bytes that were left free because earlier attempts had failed on this GPU.
    pub withheld: u64,
    /// The bytes that llama.cpp reports as allocated after the warm-up, if it reports them.
    pub allocated: Option<Footprint>,
    /// The growth of `allocated` after the context was created, from compute buffers that llama.cpp does not reserve
    /// itself.
    pub grown: u64,
    /// Free bytes before the load, if the device reports them.
    pub before: Option<u64>,
    /// Bytes free after the load and before the first computation.
    pub loaded: Option<u64>,
    /// Bytes free after the warm-up.
    pub used: Option<u64>,
    /// The reason why something other than this load may also have changed the free bytes; `None` if there is no such
    /// reason.
    #[serde(rename = "doubt")]
    pub unreliable: Option<NotLearnedReason>,
    /// The memory that driver and pools took in addition to the buffers, or the reason why this memory is unknown.
    pub learned: Result<LearnedHeadroom, NotLearnedReason>,
}

/// The host after a load. Sizes in bytes. Its free memory is shared by all programs and is not measured.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct HostReport {
    /// The bytes that the plan needs on the host.
    pub planned: Footprint,
    /// The bytes that llama.cpp reports as allocated, without the buffer of logits. Of a mapped file, the data of the
    /// weights is counted.
    pub allocated: Footprint,
}

/// The bytes that llama.cpp reports for a projector after a load: its weights, and its buffers for the largest image.
/// Sizes in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ProjectorReport {
    /// Bytes on the projector's GPU; `None` if it is on the host.
    pub gpu: Option<Footprint>,
    /// Bytes on the host.
    pub host: Footprint,
}

/// The computation that verified a load.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct WarmUp {
    /// How much was to be computed.
    pub verify: Verify,
    /// Number of computed tokens.
    pub tokens: u64,
    /// The last position.
    pub last_position: u32,
    /// Bytes by which compute buffers grew during the warm-up although they had been reserved. The growth during later
    /// texts is in [`Statistics::buffer_growth`](crate::generate::Statistics::buffer_growth).
    #[serde(default)]
    pub buffer_growth: u64,
    /// How often the warm-up had to reserve a graph again.
    #[serde(default)]
    pub reallocations: u32,
    /// The reason why nothing was computed; `None` if the warm-up ran.
    pub skipped: Option<String>,
    /// The duration, including the reservation of buffers.
    pub time: Duration,
}

/// The reason why a load could not measure the memory of a GPU's driver and pools.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum NotLearnedReason {
    /// The device does not report its free memory, or llama.cpp does not report its allocations.
    #[error("its free or allocated memory is not reported")]
    NotReported,
    /// An earlier model of this process has used the GPU, so the measurement would miss memory that the driver took for
    /// that model.
    #[error("an earlier model of this process used it")]
    NotFirst,
    /// The GPU has one layer, which may be just the output layer.
    #[error("it has a single layer, which does not represent others")]
    OneLayer,
    /// The GPU uses the host's memory, which other programs change too.
    #[error("it uses the host's memory, which other programs change too")]
    SharedMemory,
    /// The GPU is on another machine, whose driver is unknown here.
    #[error("it is on another machine with an unknown driver")]
    Remote,
    /// The programs on the GPU in NVIDIA's list, or their sizes, have changed since the load began. In a container,
    /// this process itself may appear in that list as another program.
    #[error("other programs took or released memory meanwhile")]
    OtherPrograms,
    /// The free memory changed in a way that this load cannot explain: it grew, or it shrank by several times the
    /// memory of any known driver.
    #[error("its free memory changed for reasons other than this load")]
    Disturbed,
    /// The model neither generates nor embeds, so no batch was computed.
    #[error("the model does not generate, and nothing was computed")]
    NotGenerative,
    /// Verification was off ([`Verify::Off`]).
    #[error("nothing was computed")]
    NotComputed,
}

impl GpuReport {
    /// Bytes by which the free memory shrank between the beginning of the load and the end of the warm-up, if the
    /// device reports its free memory.
    pub fn taken(&self) -> Option<u64> {
        Some(self.before?.saturating_sub(self.used?))
    }

    /// Bytes taken in addition to llama.cpp's buffers, by driver and pools or by another program.
    pub fn beyond(&self) -> Option<u64> {
        Some(self.taken()?.saturating_sub(self.allocated?.total()))
    }

    /// Bytes that llama.cpp allocated beyond the plan.
    pub fn unplanned(&self) -> u64 {
        self.allocated.unwrap_or_default().total().saturating_sub(self.planned.total())
    }

    /// Bytes taken beyond the plan's footprint and headroom. This number decides whether the load is kept. If the
    /// device's free memory is unreliable, the bytes that llama.cpp reports are used.
    pub fn difference(&self) -> u64 {
        self.counted().saturating_sub(self.planned.total().saturating_add(self.left()))
    }

    /// Bytes that the plan left free: the headroom, and the bytes that were withheld after earlier attempts.
    pub(super) const fn left(&self) -> u64 {
        self.headroom.total().saturating_add(self.withheld)
    }

    /// Bytes that count as taken by this load.
    pub(super) fn counted(&self) -> u64 {
        let allocated = self.allocated.unwrap_or_default().total();
        match self.unreliable {
            None => self.taken().unwrap_or(0).max(allocated),
            Some(_) => allocated,
        }
    }
}

impl LoadReport {
    /// Number of attempts.
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
        if let Some(moved) = &self.moved {
            write!(f, "\n  {moved}")?;
        }
        if let Some(by_depth) = plan.by_depth_in_words() {
            write!(f, "\n  {by_depth}")?;
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
                write!(f, "; {beyond} taken in addition, of {left} left for that; {free} free")?;
            }
            _ => write!(f, "; it does not report its free memory")?,
        }
        self.unreliable.map_or(Ok(()), |reason| write!(f, " ({reason})"))
    }
}

impl fmt::Display for HostReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "host: {}", planned_and_allocated(self.planned, Some(self.allocated)))
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
                write!(f, "warm-up: {tokens} tokens, up to position {last_position}, in {seconds:.2} s")?;
                match self.buffer_growth {
                    0 => Ok(()),
                    bytes => write!(f, ", compute buffers grew by {}", Bytes(bytes)),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::GpuReport;
    use crate::load::NotLearnedReason;
    use crate::machine::mib;
    use crate::memory::{Footprint, HeadroomParts};

    /// The report of a plan of 600 MiB with a headroom of 100 MiB. The card had 800 MiB free, and the load took 690
    /// MiB.
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
            unreliable: None,
            learned: Err(NotLearnedReason::NotFirst),
        }
    }

    #[test]
    fn taken_bytes_and_llama_cpps_count_are_distinguished() {
        let report = report();
        assert_eq!(report.taken(), Some(mib(690)));
        assert_eq!(report.beyond(), Some(mib(89)));
        assert_eq!((report.unplanned(), report.difference()), (mib(1), 0));
        assert_eq!(
            report.to_string(),
            "card (CUDA0): planned 600 MiB, allocated 601 MiB; 89 MiB taken in addition, of 100 MiB left for that; 110 MiB free"
        );
    }

    #[test]
    fn only_bytes_beyond_footprint_and_headroom_are_a_difference() {
        let used = |free| GpuReport { used: Some(mib(free)), ..report() };
        let unreliable = || GpuReport { unreliable: Some(NotLearnedReason::OtherPrograms), ..used(0) };
        let allocated = Some(Footprint::new(mib(710), 0, 0));
        for (report, difference) in [
            (used(100), 0),
            (used(99), 1),
            (used(0), 100),
            // The plan left the withheld bytes free too, so only 30 of the 100 MiB are a difference.
            (GpuReport { withheld: mib(70), ..used(0) }, 30),
            // Changes by other programs do not count; the bytes that llama.cpp reports do.
            (unreliable(), 0),
            (GpuReport { allocated, ..unreliable() }, 10),
            // A device without a report is not measured.
            (GpuReport { before: None, used: None, ..report() }, 0),
        ] {
            assert_eq!(report.difference(), mib(difference), "{report}");
        }
    }
}
