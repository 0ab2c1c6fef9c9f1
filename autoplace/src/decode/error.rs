//! The errors of a generation.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::piece::SequenceId;
use crate::chat::FinishReason;
use crate::worker::{self, Word};
use crate::{chat, load};

/// An error of a generation.
#[derive(Debug, Clone, thiserror::Error, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the messages name the fields")]
#[non_exhaustive]
pub enum Error {
    /// A generation already runs on this model.
    #[error("this model is generating already: drop the other stream or session first")]
    Busy,
    /// All sequences of the session's context have a running text.
    #[error("all {n_seq_max} sequences of the context are generating: end one first")]
    SequencesBusy { n_seq_max: usize },
    /// The request was made for a model other than the session's.
    #[error("this request was created for another model than the session's")]
    OtherModel,
    /// The context of the new plan has no room for the longest text, or for all texts together.
    #[error("the texts take {tokens} tokens, but the new plan's context holds only {context}")]
    ContextTooSmall { tokens: usize, context: usize },
    /// The context of the new plan has fewer sequences than there are running texts.
    #[error("{running} texts are running, but the new plan's context has only {n_seq_max} sequences")]
    TooFewSequences { running: usize, n_seq_max: usize },
    /// Other objects outside the session (a clone, a context, a vocabulary or a sampler) still use the native model.
    /// The memory of the model cannot be freed, so the model cannot be re-placed.
    #[error(
        "other objects still use the native model ({holders} references): first drop what `Model::native` returned, and everything created with it"
    )]
    NativeHeld { holders: usize },
    /// The prompt has no tokens, and the model has no BOS token to begin with.
    #[error("the prompt is empty, and the model has no BOS token")]
    EmptyPrompt,
    /// The prompt contains a picture or a sound, but the model was loaded without a projector, or the model is in a
    /// worker process, which alone knows the tokens of pictures and sounds.
    #[error(
        "the prompt contains media ({media}), but {}",
        if *in_worker { "the model is in a worker process, which alone knows its tokens" }
        else { "the model has no projector (`ModelBuilder::mmproj`, `--mmproj FILE`)" }
    )]
    NoProjector { media: String, in_worker: bool },
    /// A picture or a sound cannot be a part of this prompt. `index` counts the prompt's pictures and sounds from 0.
    #[error("the {media} cannot be used: {reason}")]
    Media { media: String, index: usize, reason: String },
    /// The prompt leaves no room for an answer.
    #[error(
        "the prompt has {tokens} tokens, but the context holds {context}, and the answer needs at least one of them"
    )]
    PromptTooLong { tokens: usize, context: usize },
    /// The context is full, and the request asked for an error in that case.
    #[error("the context is full: the text takes {tokens} tokens")]
    ContextFull { tokens: usize },
    /// The model computes embeddings or encodings and does not generate text.
    #[error("{architecture} models do not generate text")]
    NotGenerative { architecture: String },
    /// The text to which a bias belongs is not exactly one token.
    #[error("{text:?} has {tokens} tokens, but a bias needs exactly one")]
    NotOneToken { text: String, tokens: usize },
    /// The request asks for too many log-probabilities.
    #[error("{asked} log-probabilities per token were requested, but at most {most} are possible")]
    TooManyLogprobs { asked: usize, most: usize },
    /// The application's own sampler chose a token that the constraint forbids.
    #[error("the application's sampler chose token {token}, which the constraint does not allow here")]
    NotAllowed { token: llama_sys::Token },
    /// The session has no running text with this identifier.
    #[error("text {} is not running in this session", sequence.0)]
    NotRunning { sequence: SequenceId },
    /// The memory cannot discard this number of tokens. See
    /// [`Session::can_roll_back`](crate::generate::Session::can_roll_back).
    #[error("{tokens} tokens cannot be rolled back; at most {possible} can: {reason}")]
    CannotRollBack { tokens: usize, possible: usize, reason: String },
    /// The sampler depends on the logits of earlier choices, which are not kept.
    #[error(
        "the sampler depends on the logits of the {choices} choices so far, which are not kept: fork from the prompt"
    )]
    ChoicesLost { choices: usize },
    /// A text whose oldest tokens were discarded by a shift can neither be forked nor rolled back.
    #[error("{tokens} tokens of the text were shifted out of the context, and later tokens depend on them")]
    ShiftedOut { tokens: usize },
    /// The request asks for [`WhenFull::Shift`](crate::generate::WhenFull::Shift), which the memory of this model or
    /// this text does not support.
    #[error("a full context cannot shift its oldest tokens out: {reason}")]
    CannotShift { reason: String },
    /// A stop string is empty.
    #[error("a stop string is empty")]
    EmptyStop,
    /// The constraint cannot be enforced, or no text can meet it. The reason names the unsupported keyword, the place
    /// where the grammar does not parse, or the limit. `place` is the place in the schema, such as
    /// `properties.tags.items`, or in the request; an empty `place` is the whole constraint.
    #[error("the {constraint} cannot be enforced: {}{reason}", at_place(place))]
    Constraint { constraint: String, place: String, reason: String },
    /// The constraint allows no token of the vocabulary in the middle of a text.
    #[error("after {tokens} tokens the {constraint} allows no token: {reason}")]
    NoTokenAllowed { constraint: String, tokens: usize, reason: String },
    /// The text ended before it met its constraint. `text` is the part that was generated.
    #[error(
        "{} ended the text before its constraint was met, after {} bytes: {}; lists and strings without bounds \
         (`maxItems`, `maxLength`) invite a model to go on and on",
        limit,
        text.len(),
        end_of(text)
    )]
    Incomplete { limit: FinishReason, text: String },
    /// The text meets its schema but cannot be deserialized into the type.
    #[error("the text is not a value of the type: {reason}")]
    NotOfType { reason: String, text: String },
    /// The engine's queue is full ([`EngineBuilder::queue`](crate::generate::EngineBuilder::queue)).
    #[error("the engine's queue is full: {queue} texts are waiting")]
    QueueFull { queue: usize },
    /// The engine was shut down or dropped, or its thread panicked.
    #[error("the engine has ended: it accepts no requests, and unfinished texts are lost")]
    EngineEnded,
    /// llama.cpp refused a call, or a call failed.
    #[error(transparent)]
    Native(#[from] llama_sys::Error),
    /// The worker process in which the model runs has died, or the call is not available in a worker process.
    #[error(transparent)]
    Worker(#[from] worker::Error),
    /// The model is not loaded, or could not be loaded again.
    #[error(transparent)]
    Load(#[serde(with = "load::ipc_error")] Arc<load::Error>),
    /// A thread could not start, or panicked.
    #[error("the thread {name} failed: {reason}")]
    #[serde(skip)]
    Thread { name: Word, reason: String },
    /// The chat template is missing or invalid, or renders no prompt.
    #[error(transparent)]
    #[serde(skip)]
    Template(Arc<chat::Error>),
}

impl Error {
    /// Whether the error concerns the next token of one text alone, so that the other texts can continue.
    pub(crate) fn is_of_one_text(&self) -> bool {
        use llama_sys::Error::{InvalidParameter, NoCandidates};
        matches!(
            self,
            Self::NoTokenAllowed { .. }
                | Self::NotAllowed { .. }
                | Self::Native(InvalidParameter { name: "token", .. } | NoCandidates { .. })
        )
    }

    /// The error of a picture or a sound that the projector refuses. If memory was lacking or the projector is broken,
    /// the picture is not at fault, and the original error is returned.
    pub(crate) fn of_media(media: &impl ToString, error: llama_sys::Error) -> Self {
        use llama_sys::Error::{Call, InvalidParameter};
        use llama_sys::FailureCause::HostMemory;
        let reason = match &error {
            Call { failure, .. } if failure.cause != HostMemory && failure.out_of_memory.is_none() => {
                failure.reason.clone()
            }
            InvalidParameter { name: "image" | "rgb" | "sound", reason, .. } => reason.clone(),
            _ => return Self::Native(error),
        };
        Self::Media { media: media.to_string(), index: 0, reason }
    }

    /// The same error with the index of its picture or sound in the prompt.
    pub(crate) fn at_media(self, at: usize) -> Self {
        match self {
            Self::Media { media, reason, .. } => Self::Media { media, index: at, reason },
            other => other,
        }
    }

    pub(crate) fn not_loaded() -> Self {
        load::Error::NotLoaded.into()
    }
}

fn at_place(place: &str) -> String {
    if place.is_empty() { String::new() } else { format!("{place}: ") }
}

/// How many bytes of a text an error message shows.
const SHOWN: usize = 1000;

/// The end of a text, as an error message shows it.
fn end_of(text: &str) -> String {
    let from = (text.len().saturating_sub(SHOWN)..=text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    format!("{}{:?}", if from > 0 { "..." } else { "" }, &text[from..])
}

impl From<chat::Error> for Error {
    fn from(error: chat::Error) -> Self {
        Self::Template(Arc::new(error))
    }
}

impl From<load::Error> for Error {
    fn from(error: load::Error) -> Self {
        match error {
            load::Error::Native(error) => Self::Native(error),
            load::Error::Worker(error) => Self::Worker(error),
            load::Error::Busy => Self::Busy,
            load::Error::NativeHeld { holders } => Self::NativeHeld { holders },
            error => Self::Load(Arc::new(error)),
        }
    }
}
