//! What is seen of a model's machine at one moment, and what is known of it beforehand.

use std::time::Duration;

use super::depth::DepthCost;
use crate::machine::{GpuProcess, ThrottleReason};

/// Where samples come from: [`ModelSource`](super::ModelSource) for a loaded model, anything else for tests and for
/// sources of one's own.
///
/// It lives in the sentinel's thread. What it takes of the processor there is all that watching costs.
pub trait Source: Send {
    /// What is watched. Asked once, and again when [`Sample::placement`] is not that of what is watched; `None`
    /// ends the watching.
    fn watched(&mut self) -> Option<Watched>;

    /// What is so now; `None` ends the watching. `processes`: whether to look for programs on the GPUs as well, which
    /// takes longer than everything else.
    fn sample(&mut self, processes: bool) -> Option<Sample>;
}

/// What is known of what is watched.
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct Watched {
    /// The GPUs that hold the model, in the order of the samples.
    pub devices: Vec<WatchedDevice>,
    /// How much longer a token takes the more are before it.
    pub depth_cost: DepthCost,
    /// How often the model had been placed anew when it was this.
    pub placement: u64,
}

impl Watched {
    /// These GPUs.
    #[must_use]
    pub fn new(devices: impl Into<Vec<WatchedDevice>>) -> Self {
        Self {
            devices: devices.into(),
            ..Self::default()
        }
    }

    /// Sets how often the model had been placed anew when it was this.
    #[must_use]
    pub const fn placement(mut self, placement: u64) -> Self {
        self.placement = placement;
        self
    }

    /// Sets how much longer a token takes the more are before it.
    #[must_use]
    pub fn depth_cost(mut self, cost: DepthCost) -> Self {
        self.depth_cost = cost;
        self
    }
}

/// A GPU that is watched. Sizes in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct WatchedDevice {
    /// ggml's name of it: `CUDA0`.
    pub device: String,
    /// What must stay free of it.
    pub needed: u64,
    /// How much more than at first must be free to be worth a word; `None` where more room is of no use.
    pub room: Option<u64>,
    /// What was to be free of it at first, by the plan; `None` where only the first sample says so. The smaller of both
    /// counts: memory may have become free since the plan was made.
    pub left: Option<u64>,
    /// What another program must take of it to be worth a word.
    pub notable: u64,
    /// Whether its driver moves memory to the host rather than to run out of it.
    pub spills: bool,
}

impl WatchedDevice {
    /// A GPU by ggml's name, of which so many bytes must stay free. More room is of no use, 256 MiB of another program
    /// are notable, and its driver does not spill.
    #[must_use]
    pub fn new(device: impl Into<String>, needed: u64) -> Self {
        Self {
            device: device.into(),
            needed,
            room: None,
            left: None,
            notable: 256 << 20,
            spills: false,
        }
    }

    /// Sets how much more than at first must be free to be worth a word.
    #[must_use]
    pub const fn room(mut self, bytes: u64) -> Self {
        self.room = Some(bytes);
        self
    }

    /// Sets what was to be free of it at first.
    #[must_use]
    pub const fn left(mut self, bytes: u64) -> Self {
        self.left = Some(bytes);
        self
    }

    /// Sets what another program must take to be worth a word.
    #[must_use]
    pub const fn notable(mut self, bytes: u64) -> Self {
        self.notable = bytes;
        self
    }

    /// Sets whether its driver moves memory to the host.
    #[must_use]
    pub const fn spills(mut self, spills: bool) -> Self {
        self.spills = spills;
        self
    }
}

/// What is so at one moment.
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct Sample {
    /// Of each GPU that is watched, in the order of [`Watched::devices`]. One that is missing tells nothing.
    pub devices: Vec<DeviceSample>,
    /// What was generated so far.
    pub generated: Generated,
    /// The host.
    pub host: HostSample,
    /// The threads that generate, once they were changed.
    pub threads: Option<GeneratingThreads>,
    /// How often the model was placed anew.
    pub placement: u64,
}

impl Sample {
    /// Of these GPUs, in the order of [`Watched::devices`]; nothing is generated, and the host does not tell.
    #[must_use]
    pub fn new(devices: impl Into<Vec<DeviceSample>>) -> Self {
        Self {
            devices: devices.into(),
            ..Self::default()
        }
    }

    /// Sets what was generated so far.
    #[must_use]
    pub const fn generated(mut self, generated: Generated) -> Self {
        self.generated = generated;
        self
    }

    /// Sets what the host tells.
    #[must_use]
    pub const fn host(mut self, host: HostSample) -> Self {
        self.host = host;
        self
    }

    /// Sets the threads that generate.
    #[must_use]
    pub const fn threads(mut self, threads: GeneratingThreads) -> Self {
        self.threads = Some(threads);
        self
    }

    /// Sets how often the model was placed anew.
    #[must_use]
    pub const fn placement(mut self, placement: u64) -> Self {
        self.placement = placement;
        self
    }
}

/// A GPU at one moment. `None`: its driver does not tell.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
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
    /// The other programs on it; `None` where they were not looked for as well.
    pub processes: Option<Vec<GpuProcess>>,
}

impl DeviceSample {
    /// A GPU that tells its free bytes and nothing else.
    #[must_use]
    pub const fn new(free: u64) -> Self {
        Self {
            free: Some(free),
            on_host: None,
            throttle: None,
            temperature: None,
            processes: None,
        }
    }

    /// Sets the bytes that this process has in the host's memory for it.
    #[must_use]
    pub const fn on_host(mut self, bytes: u64) -> Self {
        self.on_host = Some(bytes);
        self
    }

    /// Sets what holds its clocks down, and its temperature in degrees Celsius.
    #[must_use]
    pub fn throttle(
        mut self,
        reasons: impl Into<Vec<ThrottleReason>>,
        temperature: Option<u32>,
    ) -> Self {
        self.throttle = Some(reasons.into());
        self.temperature = temperature;
        self
    }

    /// Sets the other programs on it.
    #[must_use]
    pub fn processes(mut self, processes: impl Into<Vec<GpuProcess>>) -> Self {
        self.processes = Some(processes.into());
        self
    }
}

/// Running totals of what was generated one token at a time, prompts not counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Generated {
    /// Tokens.
    pub tokens: u64,
    /// The time that they took.
    pub time: Duration,
    /// The sum, over these tokens, of the tokens before each.
    pub depths: u64,
}

impl Generated {
    /// So many tokens, in so much time, with this sum of the tokens before each.
    #[must_use]
    pub const fn new(tokens: u64, time: Duration, depths: u64) -> Self {
        Self {
            tokens,
            time,
            depths,
        }
    }
}

/// The threads of the CPU that generate, as they were changed last. Speeds in tokens per second.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct GeneratingThreads {
    /// Threads.
    pub threads: u32,
    /// Threads that the load has chosen.
    pub usual: u32,
    /// The speed before the change.
    pub before: f64,
    /// The speed after it.
    pub after: f64,
}

impl GeneratingThreads {
    /// So many of so many threads, with the speeds before and after the change.
    #[must_use]
    pub const fn new(threads: u32, usual: u32, before: f64, after: f64) -> Self {
        Self {
            threads,
            usual,
            before,
            after,
        }
    }
}

/// The host at one moment. `None`: the system does not tell.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[non_exhaustive]
pub struct HostSample {
    /// The share of the last ten seconds in which a thread waited for a core, in percent (Linux: `/proc/pressure/cpu`).
    pub cpu_pressure: Option<f32>,
    /// The share of the last ten seconds in which a thread waited for memory, in percent (Linux:
    /// `/proc/pressure/memory`).
    pub memory_pressure: Option<f32>,
}

impl HostSample {
    /// The shares of time in which threads waited for a core and for memory, in percent.
    #[must_use]
    pub const fn new(cpu_pressure: Option<f32>, memory_pressure: Option<f32>) -> Self {
        Self {
            cpu_pressure,
            memory_pressure,
        }
    }
}
