//! A generation in a worker process: what is said of it, and the stream on this side.
//!
//! The worker makes text of tokens, finds the stop strings and counts, as it would in this process. With each piece of text come the
//! tokens that were generated up to it. When the worker dies, another one is told those tokens: it brings cache, sampler and text to
//! where they were after the last of them, and goes on. A token whose text had not arrived is chosen again by the same numbers, and
//! so is the same.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use llama_sys::Token;
use serde::{Deserialize, Serialize};

use super::error::Error;
use super::last_word::LastWord;
use super::session::{self, End, FinishReason, SequenceId};
use super::stats::Statistics;
use super::{DraftsOff, Sampling, Spec, WhenFull};
use crate::load::{self, Model};
use crate::worker::{self, Sender, Worker};

/// Tokens that a worker may be ahead of its reader. It hears of more when half are read: seldom enough not to be felt, and an answer
/// that nobody reads on is not computed to its end.
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
    Piece(Piece),
    Done { last: Piece, reason: FinishReason },
    Failed(Failure),
}

/// Some text, and the tokens since the last one.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Piece {
    pub(crate) text: String,
    pub(crate) tokens: Vec<Token>,
    /// Of the whole generation, so far.
    pub(crate) nanoseconds: u64,
    /// With the first.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) prompt: Option<Box<Statistics>>,
    /// Of the whole generation, so far, where there are any.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) guesses: Option<Guesses>,
}

/// How tokens were guessed.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub(crate) struct Guesses {
    drafted: usize,
    accepted: usize,
    off: Option<DraftsOff>,
}

impl Guesses {
    /// `None` where none were made, and nothing is to be said of it.
    pub(crate) fn of(statistics: &Statistics) -> Option<Self> {
        let told = statistics.drafted_tokens > 0 || statistics.drafts_off.is_some();
        told.then_some(Self {
            drafted: statistics.drafted_tokens,
            accepted: statistics.accepted_tokens,
            off: statistics.drafts_off,
        })
    }
}

/// An error on its way from a worker.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Failure {
    Busy,
    EmptyPrompt,
    PromptTooLong {
        tokens: usize,
        context: usize,
    },
    NotGenerative {
        architecture: String,
    },
    EmptyStop,
    NothingToShift {
        keep: usize,
        context: usize,
    },
    ChoicesLost {
        choices: usize,
    },
    NotOneToken {
        text: String,
        tokens: usize,
    },
    TooManyLogprobs {
        asked: usize,
        most: usize,
    },
    Constraint {
        constraint: String,
        reason: String,
    },
    NoTokenAllowed {
        constraint: String,
        tokens: usize,
        reason: String,
    },
    Incomplete {
        limit: FinishReason,
    },
    Load(load::Failure),
}

impl From<&Error> for Failure {
    fn from(error: &Error) -> Self {
        match error {
            Error::Busy => Self::Busy,
            Error::EmptyPrompt => Self::EmptyPrompt,
            Error::PromptTooLong { tokens, context } => Self::PromptTooLong {
                tokens: *tokens,
                context: *context,
            },
            Error::NotGenerative { architecture } => Self::NotGenerative {
                architecture: architecture.clone(),
            },
            Error::EmptyStop => Self::EmptyStop,
            Error::NothingToShift { keep, context } => Self::NothingToShift {
                keep: *keep,
                context: *context,
            },
            Error::ChoicesLost { choices } => Self::ChoicesLost { choices: *choices },
            Error::NotOneToken { text, tokens } => Self::NotOneToken {
                text: text.clone(),
                tokens: *tokens,
            },
            Error::TooManyLogprobs { asked, most } => Self::TooManyLogprobs {
                asked: *asked,
                most: *most,
            },
            Error::Constraint { constraint, reason } => Self::Constraint {
                constraint: constraint.clone(),
                reason: reason.clone(),
            },
            Error::NoTokenAllowed {
                constraint,
                tokens,
                reason,
            } => Self::NoTokenAllowed {
                constraint: constraint.clone(),
                tokens: *tokens,
                reason: reason.clone(),
            },
            Error::Incomplete { limit, .. } => Self::Incomplete { limit: *limit },
            Error::Native(error) => Self::Load(error.into()),
            Error::Load(error) => Self::Load((&**error).into()),
            Error::Worker(error) => Self::Load((&load::Error::from(error.clone())).into()),
            // Those of sessions, which a worker has none of.
            error => Self::Load(load::Failure::Other {
                kind: "Generate".to_owned(),
                message: error.to_string(),
            }),
        }
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Busy => Self::Busy,
            Failure::EmptyPrompt => Self::EmptyPrompt,
            Failure::PromptTooLong { tokens, context } => Self::PromptTooLong { tokens, context },
            Failure::NotGenerative { architecture } => Self::NotGenerative { architecture },
            Failure::EmptyStop => Self::EmptyStop,
            Failure::NothingToShift { keep, context } => Self::NothingToShift { keep, context },
            Failure::ChoicesLost { choices } => Self::ChoicesLost { choices },
            Failure::NotOneToken { text, tokens } => Self::NotOneToken { text, tokens },
            Failure::TooManyLogprobs { asked, most } => Self::TooManyLogprobs { asked, most },
            Failure::Constraint { constraint, reason } => Self::Constraint { constraint, reason },
            Failure::NoTokenAllowed {
                constraint,
                tokens,
                reason,
            } => Self::NoTokenAllowed {
                constraint,
                tokens,
                reason,
            },
            Failure::Incomplete { limit } => Self::Incomplete {
                limit,
                text: String::new(),
            },
            Failure::Load(failure) => load::Error::from(failure).into(),
        }
    }
}

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
    /// What earlier workers guessed.
    guessed: Guesses,
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
            guessed: Guesses::default(),
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
        self.guessed = Guesses::of(&self.statistics).unwrap_or_default();
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

    /// Takes note of what arrived: a piece for each token, the last with the text, since a worker tells of text that is whole.
    fn take(&mut self, piece: Piece, end: Option<FinishReason>) {
        self.tokens.extend(&piece.tokens);
        let statistics = &mut self.statistics;
        if let (Some(first), None) = (piece.prompt, statistics.first_token_latency) {
            let seed = statistics.seed;
            *statistics = *first;
            statistics.seed = seed;
        }
        statistics.generated_tokens = self.tokens.len();
        let taken = self.earlier.saturating_add(piece.nanoseconds);
        statistics.generation_time = std::time::Duration::from_nanos(taken);
        if let Some(guesses) = piece.guesses {
            statistics.drafted_tokens = self.guessed.drafted.saturating_add(guesses.drafted);
            statistics.accepted_tokens = self.guessed.accepted.saturating_add(guesses.accepted);
            statistics.drafts_off = guesses.off;
        }
        if let Some(text) = &mut self.text {
            text.push_str(&piece.text);
        }
        let statistics = *statistics;
        let of = |token, text| session::Piece {
            sequence: SequenceId(0),
            token,
            text,
            logprobs: None,
            end: None,
        };
        let (last, others) = match piece.tokens.split_last() {
            Some((last, others)) => (Some(*last), others),
            None => (None, [].as_slice()),
        };
        let others = others.iter().map(|token| of(Some(*token), String::new()));
        self.pending.extend(others);
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
                Ok(Reply::Failed(failure)) => {
                    self.is_over = true;
                    let mut error = Error::from(failure);
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
        Reply::Failed(failure) => Ok(Err(failure.into())),
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
