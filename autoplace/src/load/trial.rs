//! The trial of a load: a few tokens with each number of threads on the real graph, by turns.
//!
//! It comes after everything of the load was measured, computes what generating computes, and leaves the context empty.

use std::time::{Duration, Instant};

use llama_sys::{Batch, Context, Error};

use super::threads::{ThreadBasis, Threads, TriedThreads, choose, ladder};
use super::warm_up::is_generative;

/// When no further run begins, nor a further token of one but its first.
const LONGEST: Duration = Duration::from_millis(100);
/// Runs of each number at most.
const ROUNDS: usize = 5;
/// What a run should take: several of the scheduler's slices of time in all rounds together.
const RUN: Duration = Duration::from_millis(4);
/// Tokens of a run at most.
const TOKENS: u32 = 16;

/// Measures where that is yet to say how many threads generate, and has the context compute so from then on.
///
/// # Errors
///
/// When llama.cpp fails to compute.
pub(super) fn try_out(context: &mut Context, mut threads: Threads) -> Result<Threads, Error> {
    if threads.basis == ThreadBasis::Measured {
        if generates(context) {
            threads.tried = Trial::new(context).run(threads.generation)?;
            let speeds = threads.tried.iter().map(|tried| (tried.threads, tried.tokens_per_second));
            threads.generation = choose(speeds).unwrap_or(threads.generation);
        } else {
            threads.basis = ThreadBasis::NotGenerative;
        }
    }
    context.set_threads(threads.generation, threads.prompt)?;
    Ok(threads)
}

struct Trial<'a> {
    context: &'a mut Context,
    batch: Batch,
    begun: Instant,
    /// The position of the next token.
    position: i32,
}

impl<'a> Trial<'a> {
    fn new(context: &'a mut Context) -> Self {
        Self { context, batch: Batch::with_capacity(1), begun: Instant::now(), position: 0 }
    }

    /// What each number up to `most` was measured at, the most first.
    fn run(mut self, most: u32) -> Result<Vec<TriedThreads>, Error> {
        // Pages of a mapped file that were not read yet, and threads that were not started yet, say nothing
        // of later tokens.
        self.tokens(1, 1)?;
        self.tokens(most, 1)?;
        let runs = |threads| Runs { threads, seconds: Vec::new() };
        let mut all: Vec<Runs> = ladder(most).into_iter().map(runs).collect();
        for round in 0..ROUNDS {
            // The fewest first: on a busy machine many may take most of the time that there is.
            for runs in all.iter_mut().rev() {
                if round == 0 || self.begun.elapsed() <= LONGEST {
                    // One where nothing is known yet: nothing is infinitely fast.
                    let tokens = (RUN.as_secs_f64() / runs.fastest()).clamp(1.0, TOKENS.into());
                    let seconds = self.tokens(runs.threads, tokens as u32)?;
                    runs.seconds.push(seconds);
                }
            }
        }
        self.forget()?;
        Ok(all.iter().filter_map(Runs::tried).collect())
    }

    /// Computes so many tokens one after the other. Returns the seconds of each, on average.
    fn tokens(&mut self, threads: u32, tokens: u32) -> Result<f64, Error> {
        self.context.set_threads(threads, threads)?;
        if self.position + TOKENS as i32 > self.context.n_ctx_seq() as i32 {
            self.forget()?;
        }
        let n_vocab = self.context.model().vocab().n_tokens().max(1);
        let begun = Instant::now();
        let mut computed = 0;
        while computed < tokens && (computed == 0 || self.begun.elapsed() < LONGEST) {
            // Tokens that differ, so that a router of experts has something to choose.
            let token = (self.position as u32).wrapping_mul(31) % n_vocab;
            self.batch.clear();
            self.batch.add(token as i32, self.position, 0, true);
            self.context.decode(&self.batch)?;
            self.context.synchronize()?;
            self.position += 1;
            computed += 1;
        }
        Ok(begun.elapsed().as_secs_f64() / f64::from(computed))
    }

    /// Not by clearing the whole cache, which would touch every page of it.
    fn forget(&mut self) -> Result<(), Error> {
        self.position = 0;
        self.context.kv_seq_remove(0, 0..i32::MAX).map(drop)
    }
}

/// Whether there is a next token, and room for as many as a run takes.
fn generates(context: &Context) -> bool {
    is_generative(context) && !context.embeds() && context.n_ctx_seq() >= TOKENS
}

/// The seconds per token that were seen with a number of threads.
struct Runs {
    threads: u32,
    seconds: Vec<f64>,
}

impl Runs {
    /// The median; `None` before the first run.
    fn median(&self) -> Option<f64> {
        let mut seconds = self.seconds.clone();
        seconds.sort_by(f64::total_cmp);
        seconds.get(seconds.len() / 2).copied()
    }

    /// The least; without end before the first run.
    fn fastest(&self) -> f64 {
        self.seconds.iter().copied().fold(f64::INFINITY, f64::min)
    }

    fn tried(&self) -> Option<TriedThreads> {
        let seconds = self.median()?;
        Some(TriedThreads { threads: self.threads, tokens_per_second: 1.0 / seconds })
    }
}
