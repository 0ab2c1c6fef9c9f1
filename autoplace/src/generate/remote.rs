//! A generation in a worker process: what is said of it, and the stream on this side.
//!
//! The worker makes text of tokens, finds the stop strings and counts, as it would in this process. With each piece of
//! text come the tokens that were generated up to it. When the worker dies, another one is told those tokens: it brings
//! cache, sampler and text to where they were after the last of them, and goes on. A token whose text had not arrived
//! is chosen again by the same numbers, and so is the same.

mod message;

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use llama_sys::Token;

pub(crate) use message::{Generation, Piece, Reply, Request};

use super::error::Error;
use super::last_word::LastWord;
use super::session::{self, End, FinishReason, SequenceId};
use super::stats::Statistics;
use super::{Sampling, Spec, WhenFull};
use crate::load::{self, Model};
use crate::worker::{self, Sender, Worker};

/// Tokens that a worker may be ahead of its reader. It hears of more when half are read: seldom enough not to be felt,
/// and an answer that nobody reads on is not computed to its end.
const AHEAD: usize = 64;

const DOING: &str = "generating";

/// Stops a generation in whichever worker it is.
pub(crate) struct Abort {
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

/// The stream of a model in a worker.
#[derive(Debug)]
pub(crate) struct RemoteStream {
    model: Model,
    /// `None` once it died for good.
    worker: Option<Worker>,
    spec: Spec,
    id: u64,
    abort: Arc<Abort>,
    /// How many more workers may be started.
    attempts: u32,
    /// All that have arrived.
    tokens: Vec<Token>,
    /// Tokens that may be generated, of all.
    allowed: usize,
    statistics: Statistics,
    /// What has arrived and was not asked for yet.
    pending: VecDeque<session::Piece>,
    /// What earlier workers took to generate.
    earlier: u64,
    finished: Option<FinishReason>,
    /// The whole text, where it is held to a constraint.
    text: Option<String>,
    /// Whether the worker has said its last of this generation.
    is_over: bool,
    last_word: LastWord,
}

impl RemoteStream {
    pub(super) fn new(model: Model, mut spec: Spec) -> Result<Self, Error> {
        Sampling::check_numbers(&spec.sampling)?;
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
        let is_over = spec.limits.max_tokens == 0 && spec.constraint.is_none();
        let abort = Arc::new(Abort {
            requested: AtomicBool::new(false),
            target: Mutex::new(Some((worker.sender(), id))),
        });
        // What a worker ends before its constraint is met, it says itself.
        let last_word = LastWord::new(spec.when_full == WhenFull::Error, false);
        Ok(Self {
            finished: is_over.then_some(FinishReason::MaxTokens),
            model,
            worker: Some(worker),
            text: spec.constraint.is_some().then(String::new),
            spec,
            id,
            abort,
            attempts,
            tokens: Vec::new(),
            allowed: 0,
            statistics: Statistics {
                seed,
                ..Statistics::default()
            },
            pending: VecDeque::new(),
            earlier: 0,
            is_over: false,
            last_word,
        })
    }

    pub(super) fn statistics(&self) -> Statistics {
        self.statistics
    }

    pub(super) fn tokens(&self) -> &[Token] {
        &self.tokens
    }

    pub(super) fn finish_reason(&self) -> Option<FinishReason> {
        self.finished
    }

    /// What is told after the pieces that are still to come.
    #[cfg(feature = "async")]
    pub(super) fn last_word(&self) -> &LastWord {
        &self.last_word
    }

    pub(super) fn abort_handle(&self) -> Arc<Abort> {
        Arc::clone(&self.abort)
    }

    /// The next reply, from this worker or from others in its place.
    fn reply(&mut self) -> Result<Reply, Error> {
        loop {
            let worker = self.worker.as_mut().ok_or(load::Error::NotLoaded)?;
            let error = match talk(worker, self.id, self.tokens.len(), &mut self.allowed) {
                Ok(reply) => return Ok(reply),
                Err(error) => error,
            };
            self.resume(error)?;
        }
    }

    /// Has another worker go on where this one died.
    fn resume(&mut self, mut error: worker::Error) -> Result<(), Error> {
        self.abort.aim(None);
        // What it held is free before another asks.
        self.worker = None;
        self.earlier = nanoseconds(&self.statistics);
        loop {
            let mut worker = restart(&self.model, &mut self.attempts, error)?;
            match begin(&mut worker, self.id, &self.spec, &self.tokens) {
                Ok(Ok(_)) => {
                    self.abort.aim(Some((worker.sender(), self.id)));
                    if self.abort.is_requested() {
                        self.abort.abort();
                    }
                    self.worker = Some(worker);
                    self.allowed = self.tokens.len();
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

    /// Takes note of what arrived: a piece for each token, the last with the text, since a worker tells of
    /// text that is whole.
    fn take(&mut self, piece: Piece, end: Option<FinishReason>) {
        self.tokens.extend(&piece.tokens);
        let statistics = &mut self.statistics;
        if let Some(told) = piece.statistics {
            let before = std::mem::replace(statistics, *told);
            statistics.seed = before.seed;
            if before.first_token_latency.is_some() {
                // Another worker computes the prompt again. What guesses and shifts came to is that of the last one.
                statistics.prompt_tokens = before.prompt_tokens;
                statistics.cached_tokens = before.cached_tokens;
                statistics.prompt_time = before.prompt_time;
                statistics.first_token_latency = before.first_token_latency;
            }
        }
        statistics.generated_tokens = self.tokens.len();
        let taken = self.earlier.saturating_add(piece.nanoseconds);
        statistics.generation_time = std::time::Duration::from_nanos(taken);
        if let Some(text) = &mut self.text {
            text.push_str(&piece.text);
        }
        let statistics = *statistics;
        let mut logprobs = piece.logprobs.into_iter();
        let mut of = |token: Option<Token>, text| session::Piece {
            sequence: SequenceId(0),
            token,
            text,
            logprobs: token.and_then(|_| logprobs.next()),
            end: None,
        };
        let (last, others) = match piece.tokens.split_last() {
            Some((last, others)) => (Some(*last), others),
            None => (None, [].as_slice()),
        };
        for token in others {
            self.pending.push_back(of(Some(*token), String::new()));
        }
        let end = end.map(|reason| End {
            reason,
            statistics,
            meets_constraint: true,
        });
        let last = session::Piece {
            end,
            ..of(last, piece.text)
        };
        self.pending.push_back(last);
    }

    /// The next piece, which may be without text; `None` after the end.
    pub(super) fn next_piece(&mut self) -> Option<Result<session::Piece, Error>> {
        loop {
            if let Some(piece) = self.pending.pop_front() {
                self.finished = piece.end.map(|end| end.reason);
                self.last_word.hear(&piece);
                return Some(Ok(piece));
            }
            if self.finished.is_some() {
                return None;
            }
            match self.reply() {
                Ok(Reply::Piece(piece)) => self.take(piece, None),
                Ok(Reply::Done { last, reason }) => {
                    self.is_over = true;
                    self.take(last, Some(reason));
                }
                Ok(Reply::Failed(mut error)) => {
                    self.is_over = true;
                    self.finished = Some(match &mut error {
                        Error::Incomplete { limit, text } => {
                            // The worker may have come late, and knows the last of it only.
                            *text = self.text.take().unwrap_or_default();
                            *limit
                        }
                        _ => FinishReason::Error,
                    });
                    return Some(Err(error));
                }
                Ok(Reply::Accepted { .. }) => {}
                Err(error) => {
                    self.finished = Some(FinishReason::Error);
                    return Some(Err(error));
                }
            }
        }
    }

    /// The next piece with text; `None` after the end.
    pub(super) fn next(&mut self) -> Option<Result<String, Error>> {
        while let Some(piece) = self.next_piece() {
            match piece {
                Ok(piece) if piece.text.is_empty() => {}
                piece => return Some(piece.map(|piece| piece.text)),
            }
        }
        self.last_word.take().map(Err)
    }
}

impl Drop for RemoteStream {
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
    let generation = Generation {
        id,
        spec: spec.clone(),
        so_far: so_far.to_owned(),
    };
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

/// Stops a generation and hears what it still has to say.
fn finish(worker: &mut Worker, id: u64) -> Result<(), worker::Error> {
    worker.tell(&Request::Abort { id })?;
    loop {
        if let Reply::Done { .. } | Reply::Failed(_) = worker.receive(DOING)? {
            return Ok(());
        }
    }
}

pub(crate) fn nanoseconds(statistics: &Statistics) -> u64 {
    u64::try_from(statistics.generation_time.as_nanos()).unwrap_or(u64::MAX)
}

/// Another for each generation of this process: what comes late for one is nothing to the next.
fn next_id() -> u64 {
    static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}
