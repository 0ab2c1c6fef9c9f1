//! A generation in a worker process: what is said of it, and the text on this side.
//!
//! The worker makes text of tokens, finds the stop strings and counts, as it would in this process, and sends each
//! piece with what the text took so far. When it dies, another one is told the tokens that have arrived: it brings
//! cache, sampler and text to where they were after the last of them, and goes on. A token that had not arrived is
//! chosen again by the same numbers, and so is the same.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use llama_sys::Token;
use serde::{Deserialize, Serialize};

use super::error::Error;
use super::piece::{Message, Piece};
use super::request::Spec;
use super::stats::Statistics;
use crate::load::{self, Model};
use crate::worker::{self, Sender, Worker};

/// Tokens that a worker may be ahead of its reader. It hears of more when half are read: seldom enough not to be felt,
/// and an answer that nobody reads on is not computed to its end.
const AHEAD: usize = 64;

const DOING: &str = "generating";

/// What a worker is asked for, of a generation.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Request {
    /// Check everything, and wait for tokens to be allowed.
    Generate(Box<Generation>),
    /// So many more tokens may be generated.
    Allow { id: u64, tokens: usize },
    /// Stop with an error.
    Abort { id: u64 },
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Generation {
    pub(crate) id: u64,
    pub(crate) spec: Spec,
    /// What an earlier worker has generated.
    pub(crate) so_far: Vec<Token>,
}

/// What a worker answers.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Reply {
    Accepted { seed: Option<u32> },
    Piece(Box<(Piece, Statistics)>),
    Failed(#[serde(with = "worker::crossing")] Error),
}

pub(super) struct Abort {
    requested: AtomicBool,
    /// Where the generation is, and what it is called there; `None` between two workers.
    target: Mutex<Option<(Sender, u64)>>,
}

impl Abort {
    pub(super) fn abort(&self) {
        self.requested.store(true, Ordering::Release);
        let target = self.target.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((sender, id)) = &*target {
            // A worker that is gone has stopped.
            let _ = sender.send(&Request::Abort { id: *id });
        }
    }

    fn aim(&self, target: Option<(Sender, u64)>) {
        *self.target.lock().unwrap_or_else(PoisonError::into_inner) = target;
    }

    fn is_requested(&self) -> bool {
        self.requested.load(Ordering::Acquire)
    }
}

impl fmt::Debug for Abort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Abort").finish_non_exhaustive()
    }
}

#[derive(Debug)]
pub(super) struct RemoteText {
    model: Model,
    /// `None` once it died for good.
    worker: Option<Worker>,
    spec: Spec,
    id: u64,
    abort: Arc<Abort>,
    /// How many more workers may be started.
    attempts: u32,
    /// Tokens that may be generated, of all.
    allowed: usize,
    /// So far, over all workers.
    statistics: Statistics,
    /// When the last worker died, if the prompt was computed then.
    earlier: Option<Statistics>,
    /// Whether the worker has said its last of this generation.
    is_over: bool,
}

impl RemoteText {
    pub(super) fn new(model: Model, mut spec: Spec) -> Result<(Self, Statistics), Error> {
        spec.sampling.check_numbers()?;
        if let Some(replacement) = model.requested() {
            model.carry_out(&replacement)?;
        }
        let mut attempts = model.worker_attempts();
        let mut worker = match model.take_worker() {
            Ok(worker) => worker,
            // It died in an earlier generation.
            Err(load::Error::Worker(error)) => restart(&model, &mut attempts, error)?,
            Err(error) => return Err(error.into()),
        };
        let id = next_id();
        let seed = loop {
            let error = match begin(&mut worker, id, &spec, &[]) {
                Ok(Ok(seed)) => break seed,
                Ok(Err(refused)) => {
                    model.return_worker(worker);
                    return Err(refused);
                }
                Err(error) => error,
            };
            drop(worker);
            worker = restart(&model, &mut attempts, error)?;
        };
        // Another worker has to draw the same numbers.
        spec.sampling.seed = seed.or(spec.sampling.seed);
        let abort = Arc::new(Abort {
            requested: AtomicBool::new(false),
            target: Mutex::new(Some((worker.sender(), id))),
        });
        let statistics = Statistics { seed, ..Statistics::default() };
        let text = Self {
            model,
            worker: Some(worker),
            spec,
            id,
            abort,
            attempts,
            allowed: 0,
            statistics,
            earlier: None,
            is_over: false,
        };
        Ok((text, statistics))
    }

    pub(super) fn abort_handle(&self) -> Arc<Abort> {
        Arc::clone(&self.abort)
    }

    /// The next piece after these tokens, from this worker or from others in its place.
    pub(super) fn next(&mut self, tokens: &[Token]) -> Message {
        loop {
            let worker = self.worker.as_mut().ok_or(load::Error::NotLoaded)?;
            match talk(worker, self.id, tokens.len(), &mut self.allowed) {
                Ok(Reply::Piece(told)) => {
                    let (piece, statistics) = *told;
                    self.is_over = piece.end.is_some();
                    return Ok(self.over_all_workers(piece, statistics));
                }
                Ok(Reply::Failed(error)) => {
                    self.is_over = true;
                    return Err(error);
                }
                Ok(Reply::Accepted { .. }) => {}
                Err(error) => self.resume(error, tokens)?,
            }
        }
    }

    /// A piece with what all workers took. Another one computes the prompt again, and what drafts and shifts came to is
    /// that of the last.
    fn over_all_workers(
        &mut self,
        mut piece: Piece,
        mut statistics: Statistics,
    ) -> (Piece, Statistics) {
        if let Some(earlier) = &self.earlier {
            statistics.prompt_tokens = earlier.prompt_tokens;
            statistics.cached_tokens = earlier.cached_tokens;
            statistics.prompt_time = earlier.prompt_time;
            statistics.first_token_latency = earlier.first_token_latency;
            statistics.generation_time += earlier.generation_time;
        }
        self.statistics = statistics;
        if let Some(end) = &mut piece.end {
            end.statistics = statistics;
        }
        (piece, statistics)
    }

    fn resume(&mut self, mut error: worker::Error, tokens: &[Token]) -> Result<(), Error> {
        self.abort.aim(None);
        // What it held is free before another asks.
        self.worker = None;
        let has_begun = self.statistics.first_token_latency.is_some();
        self.earlier = has_begun.then_some(self.statistics);
        loop {
            let mut worker = restart(&self.model, &mut self.attempts, error)?;
            match begin(&mut worker, self.id, &self.spec, tokens) {
                Ok(Ok(_)) => {
                    self.abort.aim(Some((worker.sender(), self.id)));
                    if self.abort.is_requested() {
                        self.abort.abort();
                    }
                    self.worker = Some(worker);
                    self.allowed = tokens.len();
                    return Ok(());
                }
                Ok(Err(refused)) => {
                    self.worker = Some(worker);
                    self.is_over = true;
                    return Err(refused);
                }
                Err(died) => error = died,
            }
        }
    }
}

impl Drop for RemoteText {
    fn drop(&mut self) {
        self.abort.aim(None);
        let Some(mut worker) = self.worker.take() else {
            return;
        };
        if !self.is_over {
            // Its replies would be taken for those to the next request. It ends with the computation that is going on.
            if let Err(error) = finish(&mut worker, self.id) {
                self.model.worker_is_dead(error);
                return;
            }
        }
        self.model.return_worker(worker);
    }
}

/// Starts another worker in place of one that died with `error`, or returns why not.
fn restart(model: &Model, attempts: &mut u32, mut error: worker::Error) -> Result<Worker, Error> {
    loop {
        if !error.is_death() || *attempts == 0 {
            model.worker_is_dead(error.clone());
            return Err(error.into());
        }
        *attempts -= 1;
        tracing::warn!("{error}; starting another");
        match model.restart_worker() {
            Ok(worker) => return Ok(worker),
            Err(load::Error::Worker(again)) => error = again,
            Err(refused) => {
                model.worker_is_dead(error);
                return Err(refused.into());
            }
        }
    }
}

/// Asks for a generation: the seed in use, or why it is refused.
fn begin(
    worker: &mut Worker,
    id: u64,
    spec: &Spec,
    so_far: &[Token],
) -> Result<Result<Option<u32>, Error>, worker::Error> {
    let generation = Generation { id, spec: spec.clone(), so_far: so_far.to_owned() };
    worker.send(&Request::Generate(Box::new(generation)), DOING)?;
    match worker.receive(DOING)? {
        Reply::Accepted { seed } => Ok(Ok(seed)),
        Reply::Failed(error) => Ok(Err(error)),
        _ => Err(worker::Error::Protocol {
            doing: DOING,
            reason: "it began before it was told to".into(),
        }),
    }
}

/// Allows as many tokens as are read, and waits for a reply.
fn talk(
    worker: &mut Worker,
    id: u64,
    read: usize,
    allowed: &mut usize,
) -> Result<Reply, worker::Error> {
    let more = (read + AHEAD).saturating_sub(*allowed);
    if more >= AHEAD / 2 {
        worker.tell(&Request::Allow { id, tokens: more })?;
        *allowed += more;
    }
    worker.receive(DOING)
}

fn finish(worker: &mut Worker, id: u64) -> Result<(), worker::Error> {
    worker.tell(&Request::Abort { id })?;
    loop {
        match worker.receive(DOING)? {
            Reply::Piece(told) if told.0.end.is_some() => return Ok(()),
            Reply::Failed(_) => return Ok(()),
            _ => {}
        }
    }
}

/// Another for each generation of this process: what comes late for one is nothing to the next.
fn next_id() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}
