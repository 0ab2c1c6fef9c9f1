//! What is seen of a model's machine at one moment, and what is known of it beforehand.

use super::depth::DepthCost;
use crate::load::Generated;
use crate::machine::{GpuProcess, HostSample, ThrottleReason};

/// Where samples come from: [`ModelSource`](super::ModelSource) for a loaded model, anything else for tests and for
/// sources of one's own.
///
/// It lives in the sentinel's thread. What it takes of the processor there is all that watching costs.
pub trait Source: Send {
    /// What is watched. Asked once, and again when [`Sample::placement`] is not that of what is watched; `None`
    /// ends the watching.
    fn watched(&mut self) -> Option<Watched>;

    /// A sample of now; `None` ends the watching. `processes`: whether to look for programs on the GPUs as well, which
    /// takes longer than everything else.
    fn sample(&mut self, processes: bool) -> Option<Sample>;
}

/// What is known of what is watched.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Watched {
    /// The GPUs that hold the model, in the order of the samples.
    pub devices: Vec<WatchedDevice>,
    /// How much longer a token takes the more are before it.
    pub depth_cost: DepthCost,
    /// How often the model had been re-placed when this was so.
    pub placement: u64,
}

/// A GPU that is watched. Sizes in bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WatchedDevice {
    /// ggml's name of it: `CUDA0`.
    pub device: String,
    /// What must stay free of it.
    pub needed: u64,
    /// How much more than at first must be free to be reported; `None` where more room is of no use.
    pub room: Option<u64>,
    /// What was to be free of it at first, by the plan; `None` where only the first sample says so. The smaller of both
    /// counts: memory may have become free since the plan was made.
    pub left: Option<u64>,
    /// What another program must take of it to be the likely cause of a slowdown.
    pub notable: u64,
    /// Whether its driver moves memory to the host rather than to run out of it.
    pub spills: bool,
}

/// What was seen at one moment.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Sample {
    /// Each GPU that is watched, in the order of [`Watched::devices`]. A missing one reports nothing.
    pub devices: Vec<DeviceSample>,
    /// What was generated so far.
    pub generated: Generated,
    /// The host.
    pub host: HostSample,
    /// How often the model was re-placed.
    pub placement: u64,
}

/// A GPU at one moment. `None`: its driver does not report it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[must_use]
pub struct DeviceSample {
    /// Free bytes.
    pub free: Option<u64>,
    /// Bytes that this process has in the host's memory for it: what was made there, and what the driver moved
    /// there (Windows).
    pub on_host: Option<u64>,
    /// What holds its clocks down; empty where nothing does.
    pub throttle: Option<Vec<ThrottleReason>>,
    /// Its temperature in degrees Celsius.
    pub temperature: Option<u32>,
    /// The clock of its processors, in MHz.
    pub clock_mhz: Option<u32>,
    /// The other programs on it; `None` where they were not looked for as well.
    pub processes: Option<Vec<GpuProcess>>,
}

impl DeviceSample {
    /// A GPU that reports its free bytes and nothing else.
    pub fn new(free: u64) -> Self {
        Self { free: Some(free), ..Self::default() }
    }

    setters! {
        /// Sets what holds its clocks down, and its temperature in degrees Celsius.
        throttle(reasons: impl Into<Vec<ThrottleReason>>, temperature: Option<u32>)
            throttle = Some(reasons.into()), temperature = temperature;
        /// Sets the other programs on it.
        processes(processes: impl Into<Vec<GpuProcess>>) processes = Some(processes.into());
    }
}
