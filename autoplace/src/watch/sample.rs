//! Samples of a model's machine, and the static facts about it.

use super::depth::DepthCost;
use crate::load::{DepthMove, ExpertUses, Generated, GeneratingThreads};
use crate::machine::{GpuProcess, HostSample, ThrottleReason};

/// A source of samples. [`ModelSource`](super::ModelSource) is the source for a loaded model; applications can write
/// others.
///
/// The sentinel's thread owns the source. The only cost of watching is the processor time that the source takes on that
/// thread.
pub trait Source: Send {
    /// Static facts about the watched model. This is called once at the beginning, and again whenever
    /// [`Sample::placement`] has changed. `None` ends the watching.
    fn watched(&mut self) -> Option<Watched>;

    /// Takes a sample; `None` ends the watching. With `processes`, the sample includes the programs on the GPUs, which
    /// takes longer than everything else.
    fn sample(&mut self, processes: bool) -> Option<Sample>;
}

/// Static facts about the watched model.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Watched {
    /// The GPUs of the model, in the order of the samples.
    pub devices: Vec<WatchedDevice>,
    /// The cost of a token at each depth.
    pub depth_cost: DepthCost,
    /// Number of re-placements of the model so far.
    pub placement: u64,
    /// The move by depth that led to this placement.
    pub moved: Option<DepthMove>,
    /// The hit rate of the cache of experts, 0 to 1, below which the model would be faster without the cache. `None`
    /// without a cache, or if the model would never be faster.
    pub expert_break_even: Option<f64>,
}

/// A watched GPU. Sizes in bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WatchedDevice {
    /// ggml's name of the GPU: `CUDA0`.
    pub device: String,
    /// Memory that must stay free.
    pub needed: u64,
    /// A gain of free memory by this number of bytes is reported; `None` if more room would be useless.
    pub room: Option<u64>,
    /// Free memory that the plan expects at first; `None` means the free memory in the first sample. If both are known,
    /// the smaller number counts, because memory may have become free since the plan was made.
    pub left: Option<u64>,
    /// The memory that another program must take before it counts as the likely cause of a slowdown.
    pub notable: u64,
    /// Whether the GPU's driver moves memory to the host instead of refusing an allocation.
    pub spills: bool,
}

/// The observations of one moment.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Sample {
    /// The watched GPUs, in the order of [`Watched::devices`]. A missing GPU reports nothing.
    pub devices: Vec<DeviceSample>,
    /// The totals of generation so far.
    pub generated: Generated,
    /// The host.
    pub host: HostSample,
    /// The generating threads of the CPU; `None` if they are unknown, for example for a model in a worker.
    pub threads: Option<GeneratingThreads>,
    /// Number of re-placements.
    pub placement: u64,
    /// Uses of the cache of experts so far.
    pub experts: ExpertUses,
    /// The move by depth that is under way, with its expected time, and the share of the weights that is loaded.
    pub moving: Option<(DepthMove, f32)>,
}

/// A GPU at one moment. `None` means that the driver does not report the value.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[must_use]
pub struct DeviceSample {
    /// Free bytes.
    pub free: Option<u64>,
    /// Bytes in host memory that this process has for this GPU. They were allocated there, or (on Windows) the driver
    /// moved them there.
    pub on_host: Option<u64>,
    /// Reasons for lowered clocks; empty if the clocks are not lowered.
    pub throttle: Option<Vec<ThrottleReason>>,
    /// The temperature of the GPU in degrees Celsius.
    pub temperature: Option<u32>,
    /// The clock of the GPU's processors, in MHz.
    pub clock_mhz: Option<u32>,
    /// The other programs on the GPU; `None` if they were not looked up.
    pub processes: Option<Vec<GpuProcess>>,
}

impl DeviceSample {
    /// A GPU that reports only its free bytes.
    pub fn new(free: u64) -> Self {
        Self { free: Some(free), ..Self::default() }
    }

    /// Sets the reasons for lowered clocks, and the temperature in degrees Celsius.
    pub fn throttle(mut self, reasons: impl Into<Vec<ThrottleReason>>, temperature: Option<u32>) -> Self {
        self.throttle = Some(reasons.into());
        self.temperature = temperature;
        self
    }

    /// Sets the other programs on the GPU.
    pub fn processes(mut self, processes: impl Into<Vec<GpuProcess>>) -> Self {
        self.processes = Some(processes.into());
        self
    }
}
