//! Threads for what the CPU computes: how many generate, how many compute prompts, and why.
//!
//! In: the cores of the machine, the plan, and what a few tokens take with each number ([`trial`](super::trial)). Out:
//! [`Threads`], for the report; and while the model generates, from the times of its steps, the threads of the next one
//! ([`Pacer`]).
//!
//! ggml's threads wait for each other after every operation. One that has to share its core with another program holds
//! up all the others, and of a small model hundreds of times per token: two threads on two cores that two other
//! programs use are then slower than one.

mod pace;

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use self::pace::{Change, Pace};
use super::recipe::Verify;
use crate::machine::{Host, mib};
use crate::plan::Plan;

/// Threads that generate where every layer is on a GPU, and the CPU looks tokens up and does what a backend cannot.
const BESIDE_GPUS: u32 = 4;

/// Weights on the host of the largest model that is measured: at 10 GB/s, which two channels of DDR4 have to spare, a
/// token reads them in 27 ms.
const MOST_WEIGHTS: u64 = mib(256);

/// The threads that a load has chosen for what the CPU computes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Threads {
    /// Threads that generate.
    pub generation: u32,
    /// Threads that compute prompts.
    pub prompt: u32,
    /// Why so many generate.
    pub basis: ThreadBasis,
    /// What was measured, the most threads first.
    pub tried: Vec<TriedThreads>,
}

/// Why so many threads generate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ThreadBasis {
    /// It was [asked for](super::ModelBuilder::n_threads).
    #[error("as was asked")]
    Asked,
    /// Of what was measured, the most threads within 10 % of the fastest.
    #[error("measured")]
    Measured,
    /// All layers are on GPUs: a few threads do what is left.
    #[error("since all layers are on GPUs")]
    FullOffload,
    /// One per physical core: a token takes too long for others to be tried.
    #[error("one per core, since a token takes too long to try others")]
    LargeModel,
    /// One per physical core: the model does not generate.
    #[error("one per core, since the model does not generate")]
    NotGenerative,
    /// One per physical core: nothing is computed to verify the load.
    #[error("one per core, since nothing is computed to verify the load")]
    NotVerified,
}

/// What a number of threads was measured at.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, thiserror::Error)]
#[error("{tokens_per_second:.1} tok/s with {threads}")]
#[non_exhaustive]
pub struct TriedThreads {
    /// Threads.
    pub threads: u32,
    /// Tokens per second, one at a time, in an empty context.
    pub tokens_per_second: f64,
}

impl Threads {
    /// What holds before anything is measured. [`ThreadBasis::Measured`]: a trial is to say how many generate.
    pub(super) fn before(
        (asked, for_prompts): (Option<u32>, Option<u32>),
        host: &Host,
        plan: &Plan,
        verify: Verify,
    ) -> Self {
        let cores = cores(host);
        let (generation, basis) = match asked {
            Some(asked) => (asked, ThreadBasis::Asked),
            None if is_on_gpus(plan) => (cores.min(BESIDE_GPUS), ThreadBasis::FullOffload),
            None if verify == Verify::Off => (cores, ThreadBasis::NotVerified),
            None if weights_on_host(plan) > MOST_WEIGHTS => (cores, ThreadBasis::LargeModel),
            None => (cores, ThreadBasis::Measured),
        };
        Self { generation, prompt: for_prompts.or(asked).unwrap_or(cores), basis, tried: Vec::new() }
    }
}

/// One thread per physical core to compute with: a second one on the same core only waits for the same memory.
pub(super) fn cores(host: &Host) -> u32 {
    let allowed = std::thread::available_parallelism().map_or(1, |n| n.get() as u32);
    let cores = host.usable_cores.or(host.physical_cores).unwrap_or(allowed);
    cores.min(allowed).max(1)
}

/// Whether the CPU computes no layer, nor attention.
fn is_on_gpus(plan: &Plan) -> bool {
    plan.full_offload && plan.overrides.is_empty() && plan.context.offload_kqv
}

fn weights_on_host(plan: &Plan) -> u64 {
    plan.host().map_or(0, |host| host.footprint.weights)
}

/// Numbers of threads that are worth a try, the most first: all, all but one where another program wants a
/// core, and halves.
pub(super) fn ladder(most: u32) -> Vec<u32> {
    let mut rungs = vec![most];
    rungs.extend((most >= 4).then_some(most - 1));
    let halves = std::iter::successors(Some(most / 2), |threads| Some(threads / 2));
    rungs.extend(halves.take_while(|&threads| threads > 0));
    rungs
}

impl fmt::Display for Threads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { generation, prompt, .. } = self;
        write!(f, "threads: {generation} to generate, {}", self.basis)?;
        for (n, tried) in self.tried.iter().enumerate() {
            let before = if n == 0 { ": " } else { ", " };
            write!(f, "{before}{tried}")?;
        }
        write!(f, "; {prompt} for prompts")
    }
}

/// Sizes of steps that are told apart: 1, 2 to 3, 4 to 7, ..., 128 and more.
const SIZES: usize = 8;

/// What decides how many threads compute the next step: like is held against like. A step of eight texts takes longer
/// than one of a single text, and one with draft tokens longer than one without; sizes within a factor of two share a
/// [`Pace`].
#[derive(Debug)]
pub(crate) struct Pacer {
    chosen: Threads,
    /// None where the number was asked for, or there is no choice.
    paces: Option<[Option<Pace>; SIZES]>,
    change: Option<GeneratingThreads>,
}

/// The threads of the CPU that generate, as they were changed last. Speeds in tokens per second.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
#[error("{threads} of {usual} threads generate: {after:.1} tokens per second instead of {before:.1}")]
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

impl Pacer {
    pub(super) fn new(chosen: Threads) -> Self {
        let adapts = chosen.basis != ThreadBasis::Asked && chosen.prompt > 1;
        let most = match chosen.basis {
            ThreadBasis::FullOffload => chosen.generation,
            _ => chosen.prompt,
        };
        let first = || {
            Pace::new(ladder(most), chosen.generation, |threads| {
                let tried = chosen.tried.iter().find(|it| it.threads == threads)?;
                Some(1.0 / tried.tokens_per_second)
            })
        };
        let paces = adapts.then(|| {
            let mut paces = [const { None }; SIZES];
            paces[0] = Some(first());
            paces
        });
        Self { chosen, paces, change: None }
    }

    /// Threads for a step that generates so many tokens.
    pub(crate) fn threads(&mut self, tokens: usize) -> u32 {
        let generation = self.chosen.generation;
        self.pace(tokens).map_or(generation, |pace| pace.threads())
    }

    pub(crate) fn prompt(&self) -> u32 {
        self.chosen.prompt
    }

    /// Takes note of a step that generated so many tokens, none of them a draft token.
    pub(crate) fn step(&mut self, tokens: usize, took: Duration) -> Option<GeneratingThreads> {
        let pace = self.pace(tokens)?;
        let usual = pace.usual();
        let Change { from: _, to: threads, before, after } = pace.step(took)?;
        let told = GeneratingThreads { threads, usual, before: tokens as f64 / before, after: tokens as f64 / after };
        self.change = Some(told);
        self.change
    }

    /// The last change, while it stands.
    pub(crate) fn change(&self) -> Option<GeneratingThreads> {
        self.change
    }

    fn pace(&mut self, tokens: usize) -> Option<&mut Pace> {
        let [first, others @ ..] = self.paces.as_mut()?;
        let first = first.as_mut()?;
        match size(tokens) {
            0 => Some(first),
            n => Some(others[n - 1].get_or_insert_with(|| first.of_another_size())),
        }
    }
}

fn size(tokens: usize) -> usize {
    let log = tokens.checked_ilog2().unwrap_or(0) as usize;
    log.min(SIZES - 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::TriedThreads;

    #[test]
    fn a_ladder_goes_down_to_one_thread_in_halves() {
        assert_eq!(ladder(1), [1]);
        assert_eq!(ladder(2), [2, 1]);
        assert_eq!(ladder(3), [3, 1]);
        assert_eq!(ladder(6), [6, 5, 3, 1]);
        assert_eq!(ladder(16), [16, 15, 8, 4, 2, 1]);
    }

    #[test]
    fn the_line_says_what_was_measured() {
        let tried = |threads, tokens_per_second| TriedThreads { threads, tokens_per_second };
        let threads = Threads {
            generation: 1,
            prompt: 2,
            basis: ThreadBasis::Measured,
            tried: vec![tried(2, 33.25), tried(1, 1065.0)],
        };
        assert_eq!(
            threads.to_string(),
            "threads: 1 to generate, measured: 33.2 tok/s with 2, 1065.0 tok/s with 1; 2 for prompts"
        );
    }

    const STEP: Duration = Duration::from_millis(1);

    fn chosen(basis: ThreadBasis) -> Threads {
        let tried = |threads, tokens_per_second| TriedThreads { threads, tokens_per_second };
        Threads { generation: 2, prompt: 2, basis, tried: vec![tried(2, 1000.0), tried(1, 700.0)] }
    }

    /// Steps of so many tokens that take long with two threads, until something changes.
    fn until_change(pacer: &mut Pacer, tokens: usize) -> Option<GeneratingThreads> {
        (0..1000).find_map(|_| {
            let threads = pacer.threads(tokens);
            pacer.step(tokens, if threads == 1 { STEP } else { 30 * STEP })
        })
    }

    #[test]
    fn a_change_is_told_in_tokens_per_second_and_stands() {
        let mut pacer = Pacer::new(chosen(ThreadBasis::Measured));
        assert_eq!((pacer.threads(1), pacer.prompt(), pacer.change()), (2, 2, None));
        let told = until_change(&mut pacer, 1).expect("a change");
        assert_eq!((told.threads, told.usual), (1, 2));
        assert!((told.before * 0.03 - 1.0).abs() < 1e-9, "{told:?}");
        assert_eq!(told.to_string(), "1 of 2 threads generate: 1000.0 tokens per second instead of 33.3");
        assert_eq!((pacer.threads(1), pacer.prompt()), (1, 2));
        assert_eq!(pacer.change(), Some(told));
        // Steps that were not seen before begin where others are.
        assert_eq!((pacer.threads(3), pacer.threads(200)), (1, 1));
    }

    #[test]
    fn what_was_asked_for_is_kept() {
        let mut pacer = Pacer::new(chosen(ThreadBasis::Asked));
        assert_eq!(until_change(&mut pacer, 1), None);
        assert_eq!(pacer.threads(1), 2);
    }

    #[test]
    fn larger_steps_are_held_against_their_like() {
        let mut pacer = Pacer::new(chosen(ThreadBasis::Measured));
        let mut step = |tokens, took| pacer.step(tokens, took);
        for _ in 0..1000 {
            assert_eq!(step(1, STEP), None);
            assert_eq!(step(8, 9 * STEP), None);
            assert_eq!(step(64, 70 * STEP), None);
        }
    }
}
