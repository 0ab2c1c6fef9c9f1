//! Events: the beginnings and ends of conditions.

use crate::load::{DepthMove, GeneratingThreads, Replacement};
use crate::machine::{Bytes, ThrottleReason};

/// A change of a condition that affects a loaded model. Each condition is reported when it begins and when it ends.
///
/// `device` is ggml's name of the GPU; `pid` and `name` are those of another program. Sizes are in bytes, speeds in
/// tokens per second at the current depth, temperatures in degrees Celsius.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages name the fields")]
#[non_exhaustive]
pub enum Event {
    /// A GPU has less free memory than the model may still need.
    #[error("{device} has {} free, and the model may still need {} of it", Bytes(*.free), Bytes(*.needed))]
    MemoryPressure { device: String, free: u64, needed: u64 },
    /// The end of [`MemoryPressure`](Self::MemoryPressure).
    #[error("{device} has {} free, which is enough", Bytes(*.free))]
    MemoryRelieved { device: String, free: u64 },
    /// A GPU has gained so much free memory that a new plan would place more of the model on it.
    #[error("{device} has {} free, and had {} before: more of the model may fit", Bytes(*.free), Bytes(*.before))]
    RoomGained { device: String, free: u64, before: u64 },
    /// The end of [`RoomGained`](Self::RoomGained).
    #[error("{device} has {} free, as before", Bytes(*.free))]
    RoomLost { device: String, free: u64 },
    /// Heat or the power supply lowers a GPU's clocks.
    #[error("{device} runs at reduced clocks: {}{}", list(.reasons), celsius(*.temperature))]
    Throttled { device: String, reasons: Vec<ThrottleReason>, temperature: Option<u32> },
    /// The end of [`Throttled`](Self::Throttled).
    #[error("{device} runs at full clocks again")]
    Unthrottled { device: String, temperature: Option<u32> },
    /// Another program has started to use a GPU, or uses more of the GPU's memory.
    #[error("{} holds {} of {device}", program(.name.as_deref(), *.pid), Bytes(*.bytes))]
    OtherProcess { name: Option<String>, pid: u32, bytes: u64, device: String },
    /// The end of [`OtherProcess`](Self::OtherProcess): the program ended, or released the memory.
    #[error("{} released {device}", program(.name.as_deref(), *.pid))]
    OtherProcessGone { name: Option<String>, pid: u32, device: String },
    /// The model generates more slowly than before.
    #[error("{observed:.1} tokens per second instead of {expected:.1}: {likely_cause}")]
    Slowdown { expected: f64, observed: f64, likely_cause: Cause },
    /// The end of [`Slowdown`](Self::Slowdown).
    #[error("{observed:.1} tokens per second again")]
    SpeedRecovered { expected: f64, observed: f64 },
    /// The model would be faster without its cache of experts, because too few of the used experts are in the cache.
    #[error(
        "the cache of experts serves {:.0} % of the uses: below {:.0} %, the model would be faster without it",
        100.0 * .hits, 100.0 * .break_even
    )]
    ExpertMisses { hits: f64, break_even: f64 },
    /// The end of [`ExpertMisses`](Self::ExpertMisses).
    #[error("the cache of experts serves {:.0} % of the uses again, so it pays", 100.0 * .hits)]
    ExpertHits { hits: f64 },
    /// The model generates with fewer threads of the CPU than on a quiet machine, because fewer threads were measured
    /// to be faster, or because other programs delayed a prompt. In the second case, the speeds are 0. The usual reason
    /// of both is that other programs delay the other threads.
    #[error("{}", GeneratingThreads { threads: *.threads, most: *.most, before: *.before, after: *.observed })]
    FewerThreads { threads: u32, most: u32, before: f64, observed: f64 },
    /// The end of [`FewerThreads`](Self::FewerThreads).
    #[error("{threads} threads generate again")]
    ThreadsRestored { threads: u32 },
    /// The model moves to its other placement, because of the depth of its texts. The texts wait meanwhile. The time in
    /// `moving` is the expected time. `done` is the share of the weights that is loaded: 0.0 at the beginning. The
    /// event is sent again at each quarter.
    #[error("{}", moving_in_words(.moving, *.done))]
    Moving { moving: DepthMove, done: f32 },
    /// The end of [`Moving`](Self::Moving).
    #[error("{moved}")]
    Moved { moved: DepthMove },
}

/// The likely cause of a slowdown. A pressure is the percentage of the last ten seconds during which some thread
/// waited.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages name the fields")]
#[non_exhaustive]
pub enum Cause {
    /// A GPU's clocks are lowered.
    #[error("{device} runs at reduced clocks: {}", list(.reasons))]
    Throttled { device: String, reasons: Vec<ThrottleReason> },
    /// A GPU is full, and its driver moves memory to the host.
    #[error("{device} is full, and its driver uses the host's memory")]
    Spill { device: String },
    /// Another program has started to use a GPU, or uses more of the GPU's memory. The fields describe the program that
    /// took the most.
    #[error("{} uses {device}", program(.name.as_deref(), *.pid))]
    OtherProcess { name: Option<String>, pid: u32, device: String },
    /// Threads wait for the processor's cores.
    #[error("the processor is busy: threads wait for it {pressure:.0} % of the time")]
    HostBusy { pressure: f32 },
    /// The host is short of memory, so mapped weights are read from the disk again.
    #[error("the host is short of memory: threads wait for it {pressure:.0} % of the time")]
    HostMemory { pressure: f32 },
    /// The texts are deeper than at first, and it is unknown how much slower this makes a token.
    #[error("the texts are longer: about {depth} tokens precede each new one, instead of {before} at first")]
    DeeperContext { depth: u64, before: u64 },
    /// None of the watched conditions explains the slowdown.
    #[error("no watched condition explains it")]
    Unknown,
}

fn moving_in_words(moving: &DepthMove, done: f32) -> String {
    let DepthMove { tokens, before, after, time, .. } = moving;
    if done > 0.0 {
        return format!("moving to {after}: {:.0} % of the weights are loaded", done * 100.0);
    }
    let seconds = time.as_secs_f64().max(1.0);
    format!("after {tokens} live tokens the model moves from {before} to {after}, which takes about {seconds:.0} s")
}

impl Event {
    /// Whether the event is the end of a condition.
    pub const fn is_end(&self) -> bool {
        matches!(
            self,
            Self::MemoryRelieved { .. }
                | Self::RoomLost { .. }
                | Self::Unthrottled { .. }
                | Self::OtherProcessGone { .. }
                | Self::SpeedRecovered { .. }
                | Self::ExpertHits { .. }
                | Self::ThreadsRestored { .. }
                | Self::Moved { .. }
        )
    }

    /// The re-placement that would help; `None` if none would. If a GPU became too full, or if a cache of experts does
    /// not pay, this is a re-placement by a new plan. If a GPU gained room, it is a re-placement by a better plan with
    /// a [gain](crate::load::BetterPlan::gain) of at least `min_gain`.
    pub const fn advises(&self, min_gain: f64) -> Option<Replacement> {
        match self {
            // A new plan takes the measured hits of the cache of experts into account.
            Self::MemoryPressure { .. }
            | Self::ExpertMisses { .. }
            | Self::Slowdown { likely_cause: Cause::Spill { .. }, .. } => Some(Replacement::Replan),
            Self::RoomGained { .. } => Some(Replacement::Better { min_gain }),
            _ => None,
        }
    }

    /// Logs the event with `tracing`; problems become warnings.
    pub(super) fn trace(&self) {
        match self {
            Self::MemoryPressure { .. }
            | Self::Throttled { .. }
            | Self::Slowdown { .. }
            | Self::ExpertMisses { .. } => {
                tracing::warn!("{self}");
            }
            // The generating thread has logged the change.
            Self::FewerThreads { .. } | Self::ThreadsRestored { .. } => tracing::debug!("{self}"),
            _ => tracing::info!("{self}"),
        }
    }
}

fn program(name: Option<&str>, pid: u32) -> String {
    format!("{} (process {pid})", name.unwrap_or("a program"))
}

fn list(reasons: &[ThrottleReason]) -> String {
    let reasons: Vec<String> = reasons.iter().map(ToString::to_string).collect();
    reasons.join(", ")
}

fn celsius(temperature: Option<u32>) -> String {
    temperature.map_or_else(String::new, |celsius| format!(" ({celsius} °C)"))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Cause, DepthMove, Event, Replacement};
    use crate::machine::{ThrottleReason, gib, mib};

    #[test]
    fn an_event_is_one_line_with_its_numbers() {
        let device = || "CUDA0".to_owned();
        let reasons = vec![ThrottleReason::Heat, ThrottleReason::Hardware];
        let pressure = Event::MemoryPressure { device: device(), free: mib(12), needed: mib(88) };
        let slow = Event::Slowdown {
            expected: 80.0,
            observed: 31.25,
            likely_cause: Cause::Throttled { device: device(), reasons: reasons.clone() },
        };
        let hot = Event::Throttled { device: device(), reasons, temperature: Some(87) };
        let likely_cause = Cause::OtherProcess { name: Some("ollama".to_owned()), pid: 7, device: device() };
        let other = Event::Slowdown { expected: 80.0, observed: 8.0, likely_cause };
        let (before, after) = ("20 layers on CUDA0".to_owned(), "18 layers on CUDA0".to_owned());
        let time = Duration::from_secs(4);
        let moving = DepthMove { tokens: 9000, before, after, lost: Duration::ZERO, time };
        let begins = Event::Moving { moving: moving.clone(), done: 0.0 };
        let goes_on = Event::Moving { moving, done: 0.5 };
        let came = Event::OtherProcess { name: None, pid: 9, bytes: gib(5), device: device() };
        let lines = [
            "CUDA0 has 12 MiB free, and the model may still need 88 MiB of it",
            "31.2 tokens per second instead of 80.0: CUDA0 runs at reduced clocks: heat, hardware slowdown",
            "8.0 tokens per second instead of 80.0: ollama (process 7) uses CUDA0",
            "a program (process 9) holds 5.0 GiB of CUDA0",
            "CUDA0 runs at reduced clocks: heat, hardware slowdown (87 °C)",
            "after 9000 live tokens the model moves from 20 layers on CUDA0 to 18 layers on CUDA0, which takes about 4 s",
            "moving to 18 layers on CUDA0: 50 % of the weights are loaded",
        ];
        assert_eq!([&pressure, &slow, &other, &came, &hot, &begins, &goes_on].map(ToString::to_string), lines);
        assert_eq!(pressure.advises(0.1), Some(Replacement::Replan));
    }
}
