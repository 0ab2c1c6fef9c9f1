//! Chooses the threads of the CPU: how many threads generate, how many compute prompts, and why.
//!
//! In: the cores of the machine, and the plan. Out: [`Threads`] for the report. During generation, the [`Pacer`]
//! chooses the threads of the next step from the times of earlier steps.
//!
//! ggml's threads wait for each other after every operation, so a thread that shares its core delays all others.

mod follow;
mod pace;

use serde::{Deserialize, Serialize};

use crate::machine::{CpuLimit, Host};
use crate::plan::Plan;

pub(super) use self::follow::Follower;
pub use self::pace::GeneratingThreads;
pub(crate) use self::pace::{BatchThreads, Pacer};

/// Generation threads if every layer is on a GPU. The CPU then only looks up tokens and computes operations that a
/// backend lacks.
const BESIDE_GPUS: u32 = 4;

/// A number of threads is acceptable if its time per token is at most this multiple of the fastest time. Among
/// acceptable numbers, the largest with a free core for each thread is preferred, because deeper contexts will need the
/// threads.
const TOLERANCE: f64 = 1.1;

/// More threads than free cores are chosen only if a token takes more than this multiple of their time when each thread
/// has a free core. The multiple is smaller than [`TOLERANCE`], because more threads are measured for longer.
const CLOSE: f64 = 1.05;

/// The initial threads of a load.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("threads: {generation} to generate, {basis}; {prompt} for prompts")]
#[non_exhaustive]
pub struct Threads {
    /// The number of threads that generate. If fewer threads turn out to be faster, fewer generate, unless the number
    /// was requested.
    pub generation: u32,
    /// The number of threads that compute prompts.
    pub prompt: u32,
    /// The reason for the number of generating threads.
    pub basis: ThreadBasis,
    /// Whether the number of prompt threads was requested.
    #[serde(default)]
    pub(crate) prompt_is_asked: bool,
}

/// The reason for the number of generating threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ThreadBasis {
    /// [Requested](super::ModelBuilder::n_threads).
    #[error("as requested")]
    Asked,
    /// All layers are on GPUs, so a few threads are enough for the remaining work.
    #[error("because all layers are on GPUs")]
    FullOffload,
    /// One thread per physical core.
    #[error("one per core")]
    PerCore,
    /// The number of threads that the CPU quota can keep busy.
    #[error("limited by the CPU quota")]
    TimeLimit,
}

impl Threads {
    pub(super) fn new((asked, for_prompts): (Option<u32>, Option<u32>), host: &Host, plan: &Plan) -> Self {
        let prompt_asked = for_prompts.or(asked);
        let basis = match asked {
            Some(_) => ThreadBasis::Asked,
            // The CPU computes neither a layer nor attention.
            None if plan.full_offload && plan.context.offload_kqv => ThreadBasis::FullOffload,
            None if host.share_of_time(host.usable_cores.or(host.physical_cores).unwrap_or(1)) < 1.0 => {
                ThreadBasis::TimeLimit
            }
            None => ThreadBasis::PerCore,
        };
        let [generation, prompt] = [asked, prompt_asked].map(Option::unwrap_or_default);
        let threads = Self { generation, prompt, basis, prompt_is_asked: prompt_asked.is_some() };
        threads.on(cores(host))
    }

    /// A note if more threads were requested than can run at once. Numbers that the load chooses are never larger.
    pub(super) fn too_many(&self, host: &Host) -> Option<String> {
        let most = allowed(host);
        let generation = (self.basis == ThreadBasis::Asked).then_some((self.generation, "to generate"));
        let prompt = self.prompt_is_asked.then_some((self.prompt, "for prompts"));
        let asked: Vec<String> = [generation, prompt]
            .into_iter()
            .flatten()
            .filter(|&(threads, _)| threads > most)
            .map(|(threads, what)| format!("{threads} threads {what}"))
            .collect();
        let cores = match cores(host) {
            1 => "one core".to_owned(),
            cores => format!("{cores} cores"),
        };
        (!asked.is_empty()).then(|| {
            format!(
                "{} on {cores}, as requested, are slow: a thread that shares its core delays all others",
                asked.join(" and ")
            )
        })
    }

    /// These threads, changed for a process with `cores` cores. Numbers that were requested stay the same.
    fn on(self, cores: u32) -> Self {
        let generation = match self.basis {
            ThreadBasis::Asked => self.generation,
            ThreadBasis::FullOffload => cores.min(BESIDE_GPUS),
            ThreadBasis::PerCore | ThreadBasis::TimeLimit => cores,
        };
        let prompt = if self.prompt_is_asked { self.prompt } else { cores };
        Self { generation, prompt, ..self }
    }
}

/// One thread per physical core, or fewer under a CPU quota. A second thread on the same core would only wait for the
/// same memory.
pub(super) fn cores(host: &Host) -> u32 {
    let allowed = allowed(host);
    host.compute_threads().unwrap_or(allowed).min(allowed).max(1)
}

/// The number of threads of this process that can run at once: the processors that it may use, with the second threads
/// of cores, or fewer under a CPU quota.
fn allowed(host: &Host) -> u32 {
    let allowed = std::thread::available_parallelism().map_or(1, |n| n.get() as u32);
    // The standard library rounds a quota down: one and a half cores become one.
    let rounded_down = |limit: &&CpuLimit| u64::from(allowed) == (limit.quota_us / limit.period_us.max(1)).max(1);
    host.cpu_limit.as_ref().filter(rounded_down).map_or(allowed, CpuLimit::threads)
}

/// Numbers of threads to try, in descending order: all threads, all but one (because another program may need a core),
/// a half, a quarter and so on.
fn ladder(most: u32) -> Vec<u32> {
    let mut rungs = vec![most];
    rungs.extend((most >= 4).then_some(most - 1));
    let halves = std::iter::successors(Some(most / 2), |threads| Some(threads / 2));
    rungs.extend(halves.take_while(|&threads| threads > 0));
    rungs
}

/// Chooses the largest acceptable number of threads for which cores are `free`. But if a larger number is faster than
/// that by a twentieth, chooses the fastest. `None` without measurements.
fn choose(speeds: impl Iterator<Item = (u32, f64)> + Clone, free: u32) -> Option<(u32, f64)> {
    let by_speed = |a: &(u32, f64), b: &(u32, f64)| a.1.total_cmp(&b.1);
    let fitting = speeds.clone().filter(|&(threads, _)| threads <= free);
    let fastest = fitting.clone().map(|(_, speed)| speed).fold(0.0, f64::max);
    let acceptable = fitting.filter(|(_, speed)| speed * TOLERANCE >= fastest);
    let chosen = acceptable.max_by_key(|(threads, _)| *threads);
    let beyond = speeds.filter(|&(threads, _)| threads > free).max_by(by_speed);
    beyond.filter(|beyond| chosen.is_none_or(|chosen| beyond.1 > CLOSE * chosen.1)).or(chosen)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ladder_goes_down_to_one_thread_in_halves() {
        assert_eq!(ladder(1), [1]);
        assert_eq!(ladder(2), [2, 1]);
        assert_eq!(ladder(3), [3, 1]);
        assert_eq!(ladder(6), [6, 5, 3, 1]);
        assert_eq!(ladder(16), [16, 15, 8, 4, 2, 1]);
    }

    #[test]
    fn more_threads_are_kept_unless_fewer_are_clearly_faster() {
        let chosen = |speeds: &[(u32, f64)]| Some(choose(speeds.iter().copied(), 8)?.0);
        assert_eq!(chosen(&[(2, 2600.0), (1, 1700.0)]), Some(2));
        assert_eq!(chosen(&[(2, 1000.0), (1, 1090.0)]), Some(2));
        assert_eq!(chosen(&[(2, 1000.0), (1, 1110.0)]), Some(1));
        assert_eq!(chosen(&[(2, 33.0), (1, 1065.0)]), Some(1));
        assert_eq!(chosen(&[(8, 90.0), (7, 100.0), (4, 99.0), (1, 30.0)]), Some(7));
        assert_eq!(chosen(&[]), None);
    }

    #[test]
    fn more_threads_than_free_cores_are_chosen_only_if_they_are_clearly_faster() {
        let chosen = |speeds: &[(u32, f64)], free| Some(choose(speeds.iter().copied(), free)?.0);
        assert_eq!(chosen(&[(2, 1040.0), (1, 1000.0)], 1), Some(1));
        assert_eq!(chosen(&[(2, 1060.0), (1, 1000.0)], 1), Some(2));
        let flat = [(16, 100.0), (15, 99.0), (8, 98.0), (4, 97.0)];
        assert_eq!([16, 15, 8, 6].map(|free| chosen(&flat, free)), [16, 15, 8, 4].map(Some));
        assert_eq!(chosen(&[(16, 200.0), (15, 195.0), (8, 100.0)], 8), Some(16));
        assert_eq!(chosen(&[(16, 90.0), (8, 100.0)], 4), Some(8), "no number with a free core for each was measured");
    }
}
