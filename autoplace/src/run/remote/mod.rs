//! Generation in a worker process. This module has the messages, and the code with which the application sends and
//! receives them.
//!
//! The worker runs its own engine (`run::host`), whether the application uses an engine or a single stream. Like a
//! local engine, the worker assembles the text, finds stop strings, and collects the statistics. Each piece carries the
//! statistics of its text so far.
//!
//! When a worker dies, its replacement gets every text with the tokens that have arrived (`link`). The replacement
//! restores the cache, the sampler and the text to their state after the last of these tokens, and continues. If tokens
//! did not arrive before the worker died, they are chosen again with the same random numbers, so they are the same
//! tokens.

mod link;
mod session;

pub(crate) use link::{Link, Reader};
pub(crate) use session::{Answer, SessionCall, View, WorkerSession};

use std::sync::Arc;

use llama_sys::Token;
use serde::{Deserialize, Serialize};

use super::places::Shutdown;
use crate::chat::Media;
use crate::decode::error::Error;
use crate::decode::piece::Piece;
use crate::decode::request::Spec;
use crate::decode::stats::Statistics;
use crate::decode::step::PromptChunk;
use crate::load::remote::Loading;
use crate::load::{DepthMove, Placed};
use crate::{load, worker};

type Request = worker::Request<Loading, TextCall, ()>;

/// A request to a worker about a run of texts. The application numbers the texts.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum TextCall {
    /// Begins a run: the worker takes the context.
    Start(Start),
    /// Keeps a picture or a sound under a number. Prompts contain only this number, so the picture or sound is sent
    /// only once, even for several texts.
    Keep { number: u64, media: Media },
    /// Drops pictures and sounds to which no text refers any more.
    Forget { numbers: Vec<u64> },
    /// Checks a text and generates it, after the tokens that an earlier worker generated for it.
    Submit { id: u64, spec: Box<Spec>, so_far: Vec<Token> },
    /// Cancels a text.
    Cancel { id: u64 },
    /// Holds back the pieces of a text whose reader is behind, or continues to send its pieces.
    Hold { id: u64, is_held: bool },
    /// Refuses further texts. The worker gives the context back when the last text has ended.
    Close { how: Shutdown },
    /// A call of a session instead of a run.
    Session(SessionCall),
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Start {
    pub(crate) run: u64,
    /// The maximum number of pieces that are computed ahead of a text's reader.
    pub(crate) ahead: usize,
    pub(crate) prompt_chunk: PromptChunk,
}

/// A reply of a worker.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Reply {
    Started,
    /// The run could not start.
    Refused(#[serde(with = "load::ipc_error")] Error),
    Accepted {
        id: u64,
        statistics: Statistics,
    },
    /// A piece. The sequence number of the piece identifies the text to which it belongs.
    Piece(Box<(Piece, Statistics)>),
    Failed {
        id: u64,
        #[serde(with = "load::ipc_error")]
        error: Error,
    },
    /// The model was re-placed during the run.
    Placed(Arc<Placed>),
    /// A move to the placement for another depth has begun, has made progress, or has ended.
    Moving(Option<(DepthMove, f32)>),
    /// The last reply of a run: the context is free.
    Closed,
}
