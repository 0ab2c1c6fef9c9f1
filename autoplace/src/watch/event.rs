//! What is told: conditions that began and conditions that ended.

use std::fmt;

use crate::machine::{Bytes, ThrottleReason};

/// Something that changed for a model since it was loaded. Each condition is told when it begins and when it ends.
/// Sizes in bytes, speeds in tokens per second.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Event {
    /// A GPU has less free than the model may still need of it.
    MemoryPressure {
        /// ggml's name of the GPU.
        device: String,
        /// Free.
        free: u64,
        /// What should be.
        needed: u64,
    },
    /// The end of [`MemoryPressure`](Self::MemoryPressure).
    MemoryRelieved {
        /// ggml's name of the GPU.
        device: String,
        /// Free.
        free: u64,
    },
    /// A GPU has so much more free than at first that a plan of now would put more on it.
    RoomGained {
        /// ggml's name of the GPU.
        device: String,
        /// Free.
        free: u64,
        /// Free when the watching began.
        before: u64,
    },
    /// The end of [`RoomGained`](Self::RoomGained).
    RoomLost {
        /// ggml's name of the GPU.
        device: String,
        /// Free.
        free: u64,
    },
    /// A GPU's clocks are held down by a fault: heat, or the power supply.
    Throttled {
        /// ggml's name of the GPU.
        device: String,
        /// What holds them down.
        reasons: Vec<ThrottleReason>,
        /// Its temperature in degrees Celsius.
        temperature: Option<u32>,
    },
    /// The end of [`Throttled`](Self::Throttled).
    Unthrottled {
        /// ggml's name of the GPU.
        device: String,
        /// Its temperature in degrees Celsius.
        temperature: Option<u32>,
    },
    /// Another program came to a GPU, or took more of it.
    OtherProcess {
        /// The program, where the driver tells.
        name: Option<String>,
        /// Its process id.
        pid: u32,
        /// What it holds.
        bytes: u64,
        /// ggml's name of the GPU.
        device: String,
    },
    /// The end of [`OtherProcess`](Self::OtherProcess): it went, or gave back what it took.
    OtherProcessGone {
        /// The program, where the driver told.
        name: Option<String>,
        /// Its process id.
        pid: u32,
        /// ggml's name of the GPU.
        device: String,
    },
    /// The model generates slower than it did.
    Slowdown {
        /// What it did, at the depth of now.
        expected: f64,
        /// What it does.
        observed: f64,
        /// Why, as far as can be told.
        likely_cause: Cause,
    },
    /// The end of [`Slowdown`](Self::Slowdown).
    SpeedRecovered {
        /// What it did at first, at the depth of now.
        expected: f64,
        /// What it does.
        observed: f64,
    },
    /// The model generates with fewer threads of the CPU than usual, since other programs hold more of them up.
    FewerThreads {
        /// Threads.
        threads: u32,
        /// Threads that the load has chosen.
        usual: u32,
        /// What it did with more threads, just before.
        before: f64,
        /// What it did with so many, when they were tried.
        observed: f64,
    },
    /// The end of [`FewerThreads`](Self::FewerThreads).
    ThreadsRestored {
        /// Threads.
        threads: u32,
    },
}

/// Why a model has become slower, as far as can be told.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Cause {
    /// A GPU's clocks are held down.
    Throttled {
        /// ggml's name of the GPU.
        device: String,
        /// What holds them down.
        reasons: Vec<ThrottleReason>,
    },
    /// A GPU is full, and its driver moves memory to the host.
    Spill {
        /// ggml's name of the GPU.
        device: String,
    },
    /// Another program uses a GPU.
    OtherProcess {
        /// The program, where the driver tells.
        name: Option<String>,
        /// Its process id.
        pid: u32,
        /// ggml's name of the GPU.
        device: String,
    },
    /// Threads wait for the processor's cores.
    HostBusy {
        /// The share of the last ten seconds in which one did, in percent.
        pressure: f32,
    },
    /// The host is short of memory: weights that are mapped are read from the disk again.
    HostMemory {
        /// The share of the last ten seconds in which a thread waited for memory, in percent.
        pressure: f32,
    },
    /// There are more tokens before each than at first, and nothing says how much longer a token then takes.
    DeeperContext {
        /// Tokens before each.
        depth: u64,
        /// The same at first.
        before: u64,
    },
    /// Nothing that is watched.
    Unknown,
}

/// Which way a model could be placed anew.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Resize {
    /// With less on the GPU, which has become too full.
    Smaller,
    /// With more on the GPU, which has become emptier.
    Larger,
}

impl Event {
    /// Whether it tells that a condition ended.
    #[must_use]
    pub const fn is_end(&self) -> bool {
        matches!(
            self,
            Self::MemoryRelieved { .. }
                | Self::RoomLost { .. }
                | Self::Unthrottled { .. }
                | Self::OtherProcessGone { .. }
                | Self::SpeedRecovered { .. }
                | Self::ThreadsRestored { .. }
        )
    }

    /// Which way it would be worth to place the model anew; `None` where that would not help.
    #[must_use]
    pub const fn advises(&self) -> Option<Resize> {
        match self {
            Self::MemoryPressure { .. }
            | Self::Slowdown {
                likely_cause: Cause::Spill { .. },
                ..
            } => Some(Resize::Smaller),
            Self::RoomGained { .. } => Some(Resize::Larger),
            _ => None,
        }
    }

    /// Tells it to `tracing`: what is wrong as a warning.
    pub(super) fn trace(&self) {
        match self {
            Self::MemoryPressure { .. } | Self::Throttled { .. } | Self::Slowdown { .. } => {
                tracing::warn!("{self}");
            }
            // Whoever generates has said it.
            Self::FewerThreads { .. } | Self::ThreadsRestored { .. } => tracing::debug!("{self}"),
            _ => tracing::info!("{self}"),
        }
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::MemoryPressure {
                device,
                free,
                needed,
            } => write!(
                f,
                "{device} has {} free, and the model may still need {} of it",
                Bytes(*free),
                Bytes(*needed)
            ),
            Self::MemoryRelieved { device, free } => {
                write!(f, "{device} has {} free, which is enough", Bytes(*free))
            }
            Self::RoomGained {
                device,
                free,
                before,
            } => write!(
                f,
                "{device} has {} free, and had {} at first: more of the model may fit",
                Bytes(*free),
                Bytes(*before)
            ),
            Self::RoomLost { device, free } => {
                write!(f, "{device} has {} free, as at first", Bytes(*free))
            }
            Self::Throttled {
                device,
                reasons,
                temperature,
            } => {
                write!(f, "{device} runs below its clocks: {}", Reasons(reasons))?;
                match temperature {
                    Some(celsius) => write!(f, " ({celsius} °C)"),
                    None => Ok(()),
                }
            }
            Self::Unthrottled { device, .. } => write!(f, "{device} runs at its clocks again"),
            Self::OtherProcess {
                name,
                pid,
                bytes,
                device,
            } => write!(
                f,
                "{} holds {} of {device}",
                Program(name.as_deref(), *pid),
                Bytes(*bytes)
            ),
            Self::OtherProcessGone { name, pid, device } => {
                write!(f, "{} gave {device} back", Program(name.as_deref(), *pid))
            }
            Self::Slowdown {
                expected,
                observed,
                likely_cause,
            } => write!(
                f,
                "{observed:.1} tokens per second instead of {expected:.1}: {likely_cause}"
            ),
            Self::SpeedRecovered { observed, .. } => {
                write!(f, "{observed:.1} tokens per second again")
            }
            Self::FewerThreads {
                threads,
                usual,
                before,
                observed,
            } => write!(
                f,
                "{threads} of {usual} threads generate, since others hold them up: {observed:.1} tokens per second instead of {before:.1}"
            ),
            Self::ThreadsRestored { threads } => write!(f, "{threads} threads generate, as usual"),
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Throttled { device, reasons } => {
                write!(f, "{device} runs below its clocks: {}", Reasons(reasons))
            }
            Self::Spill { device } => {
                write!(f, "{device} is full, and its driver uses the host's memory")
            }
            Self::OtherProcess { name, pid, device } => {
                write!(f, "{} uses {device}", Program(name.as_deref(), *pid))
            }
            Self::HostBusy { pressure } => write!(
                f,
                "the processor is busy, threads wait for it {pressure:.0} % of the time"
            ),
            Self::HostMemory { pressure } => write!(
                f,
                "the host is short of memory, threads wait for it {pressure:.0} % of the time"
            ),
            Self::DeeperContext { depth, before } => {
                write!(f, "{depth} tokens come before each, {before} did at first")
            }
            Self::Unknown => f.write_str("nothing that is watched explains it"),
        }
    }
}

struct Program<'a>(Option<&'a str>, u32);

impl fmt::Display for Program<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (process {})", self.0.unwrap_or("a program"), self.1)
    }
}

struct Reasons<'a>(&'a [ThrottleReason]);

impl fmt::Display for Reasons<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, reason) in self.0.iter().enumerate() {
            let comma = if n == 0 { "" } else { ", " };
            write!(f, "{comma}{reason}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{Cause, Event, Resize};
    use crate::machine::{ThrottleReason, gib, mib};

    #[test]
    fn an_event_is_one_line_with_what_there_is_and_what_is_needed() {
        let pressure = Event::MemoryPressure {
            device: "CUDA0".to_owned(),
            free: mib(12),
            needed: mib(88),
        };
        assert_eq!(
            pressure.to_string(),
            "CUDA0 has 12 MiB free, and the model may still need 88 MiB of it"
        );
        let slow = Event::Slowdown {
            expected: 80.0,
            observed: 31.25,
            likely_cause: Cause::Throttled {
                device: "CUDA0".to_owned(),
                reasons: vec![ThrottleReason::Heat, ThrottleReason::Hardware],
            },
        };
        assert_eq!(
            slow.to_string(),
            "31.2 tokens per second instead of 80.0: CUDA0 runs below its clocks: heat, hardware slowdown"
        );
        let other = Event::OtherProcess {
            name: Some("ollama".to_owned()),
            pid: 7,
            bytes: gib(5),
            device: "CUDA0".to_owned(),
        };
        assert_eq!(
            other.to_string(),
            "ollama (process 7) holds 5.0 GiB of CUDA0"
        );
    }

    #[test]
    fn a_full_gpu_asks_for_less_on_it_and_an_emptier_one_for_more() {
        let device = "CUDA0".to_owned();
        let pressure = Event::MemoryPressure {
            device: device.clone(),
            free: 0,
            needed: 1,
        };
        assert_eq!(pressure.advises(), Some(Resize::Smaller));
        let room = Event::RoomGained {
            device: device.clone(),
            free: 2,
            before: 1,
        };
        assert_eq!(room.advises(), Some(Resize::Larger));
        let relieved = Event::MemoryRelieved { device, free: 2 };
        assert_eq!((relieved.advises(), relieved.is_end()), (None, true));
    }
}
