//! Generations in a worker process: the messages, and both sides of the connection.
//!
//! The worker runs an engine of its own (`host`), for an engine of this process or for a stream, which is the only text
//! of one. It makes text of tokens, finds the stop strings and counts, as it would in this process, and sends each
//! piece with what the text took so far.
//!
//! When it dies, another one is sent every text with the tokens that have arrived (`link`): it brings cache, sampler
//! and text to where they were after the last of them, and goes on. A token that had not arrived is chosen again by
//! the same numbers, and so is the same.

mod host;
mod link;
mod session;

pub(crate) use host::Host;
pub(super) use link::{Link, Reader};
pub(super) use session::SessionThere;
pub(crate) use session::{SessionCall, SessionHost};

use llama_sys::Token;
use serde::{Deserialize, Serialize};

use super::engine::Shutdown;
use super::error::Error;
use super::piece::Piece;
use super::request::Spec;
use super::stats::Statistics;
use super::step::PromptChunk;
use crate::load::remote::Loading;
use crate::{load, worker};

type Request = worker::Request<Loading, TextCall, ()>;

/// A request to a worker about a run of texts. A text has a number that the application gives it.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum TextCall {
    /// The first of a run: take the context.
    Start(Start),
    /// Check a text, and generate it after the tokens that an earlier worker has generated.
    Submit { id: u64, spec: Box<Spec>, so_far: Vec<Token> },
    /// Cancel a text.
    Cancel { id: u64 },
    /// Send no more of a text, or go on with it: its reader is behind.
    Hold { id: u64, is_held: bool },
    /// Take no more texts, and give the context back when the last one has ended.
    Close { how: Shutdown },
    /// A call of a session, in place of a run.
    Session(SessionCall),
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Start {
    pub(crate) run: u64,
    /// Pieces that a text may be ahead of its reader.
    pub(super) ahead: usize,
    pub(super) prompt_chunk: PromptChunk,
}

/// What a worker answers.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Reply {
    Started,
    /// It has not started.
    Refused(#[serde(with = "load::crossing")] Error),
    Accepted {
        id: u64,
        statistics: Statistics,
    },
    /// Of the text whose number the piece has.
    Piece(Box<(Piece, Statistics)>),
    Failed {
        id: u64,
        #[serde(with = "load::crossing")]
        error: Error,
    },
    /// The last of a run: the context is free.
    Closed,
}
