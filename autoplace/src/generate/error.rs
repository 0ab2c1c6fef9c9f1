//! What can go wrong between a prompt and its text.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::piece::{FinishReason, SequenceId};
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
    /// A session generates as many texts as its context has sequences.
    #[error("all {n_seq_max} sequences of the context are generating: end one first")]
    SequencesBusy { n_seq_max: usize },
    /// The generation was described for another model than the session's.
    #[error("this generation was described for another model than the session's")]
    OtherModel,
    /// The new plan's context has no room for the texts as they are: for the longest, or for all together.
    #[error("the texts take {tokens} tokens, and the new plan's context holds {context} of them")]
    ContextTooSmall { tokens: usize, context: usize },
    /// The new plan's context has fewer sequences than texts run.
    #[error("{running} texts are running, and the new plan's context has {n_seq_max} sequences")]
    TooFewSequences { running: usize, n_seq_max: usize },
    /// The memory of the model would not become free, so it cannot be re-placed: clones of it, and contexts,
    /// vocabularies and samplers made of it, are held that are not the session's.
    #[error(
        "the model underneath is held {holders} times elsewhere: drop what `Model::native` gave, and what was made of it, first"
    )]
    NativeHeld { holders: usize },
    /// The prompt has no tokens, and the model has no BOS token to begin with.
    #[error("the prompt is empty, and the model has no token that begins a text")]
    EmptyPrompt,
    /// The prompt leaves no room for an answer.
    #[error("the prompt is {tokens} tokens long, and the context holds {context}, one of which the answer needs")]
    PromptTooLong { tokens: usize, context: usize },
    /// The context is full, and the text was to end with an error then.
    #[error("the context is full: the text takes {tokens} tokens")]
    ContextFull { tokens: usize },
    /// The model computes embeddings or encodings and generates nothing.
    #[error("{architecture} models do not generate text")]
    NotGenerative { architecture: String },
    /// A bias was asked for by a text that is several tokens, or none.
    #[error("{text:?} is {tokens} tokens, and a bias is one token's")]
    NotOneToken { text: String, tokens: usize },
    /// More log-probabilities were asked for than are reported.
    #[error("{asked} log-probabilities per token were asked for, and {most} are the most")]
    TooManyLogprobs { asked: usize, most: usize },
    /// The application's own sampler chose a token that is not allowed at this place.
    #[error("the application's sampler chose token {token}, which the constraint does not allow here")]
    NotAllowed { token: llama_sys::Token },
    /// The session has no such text: it has ended, or was never begun there.
    #[error("text {} does not run in this session", sequence.0)]
    NotRunning { sequence: SequenceId },
    /// A text cannot forget so many of its last tokens. See [`Session::can_roll_back`](super::Session::can_roll_back).
    #[error("{tokens} tokens cannot be taken back, and {possible} can: {reason}")]
    CannotRollBack { tokens: usize, possible: usize, reason: String },
    /// A sampler goes by the logits of the choices so far, which are not kept.
    #[error("the sampler goes by the logits of the {choices} choices so far, which are not kept: fork from the prompt")]
    ChoicesLost { choices: usize },
    /// A text whose oldest tokens were shifted out of the context can neither be forked nor rolled back.
    #[error("{tokens} tokens of the text were shifted out of the context: what followed them has seen them")]
    ShiftedOut { tokens: usize },
    /// A text was to shift its oldest tokens out when the context is full
    /// ([`WhenFull::Shift`](super::WhenFull::Shift)), and this model's memory, or this text, cannot.
    #[error("a full context cannot shift its oldest tokens out: {reason}")]
    CannotShift { reason: String },
    /// A stop string is empty: nothing could ever be generated before it.
    #[error("a stop string is empty")]
    EmptyStop,
    /// The constraint cannot be enforced, or no text can meet it: the keyword that is not supported, the
    /// place where the grammar does not parse, or the limit. `place` is where in a schema that is, as
    /// `properties.tags.items`, or where in a request; empty for the whole.
    #[error("the {constraint} cannot be enforced: {}{reason}", at_place(place))]
    Constraint { constraint: String, place: String, reason: String },
    /// In the middle of a text the constraint allows no token of the vocabulary.
    #[error("after {tokens} tokens the {constraint} allows no token: {reason}")]
    NoTokenAllowed { constraint: String, tokens: usize, reason: String },
    /// A text ended before it met its constraint; `text` is as far as it came.
    #[error(
        "{} ended the text before its constraint was met, after {} bytes: {}; lists and strings without bounds \
         (`maxItems`, `maxLength`) invite a model to go on and on",
        limit_of(*limit),
        text.len(),
        end_of(text)
    )]
    Incomplete { limit: FinishReason, text: String },
    /// A text meets its schema but is not a value of the type.
    #[error("the text is no value of its type: {reason}")]
    NotOfType { reason: String, text: String },
    /// As many texts as an engine takes are running and waiting
    /// ([`EngineBuilder::queue`](super::EngineBuilder::queue)).
    #[error("the engine's queue is full: {queue} texts are waiting")]
    QueueFull { queue: usize },
    /// The engine was shut down or dropped, or its thread has panicked.
    #[error("the engine has ended: it takes no texts any more, and what it had not finished is lost")]
    EngineEnded,
    /// llama.cpp refused or failed.
    #[error(transparent)]
    Native(#[from] llama_sys::Error),
    /// The worker process that the model runs in died, or the call is not available there.
    #[error(transparent)]
    Worker(#[from] worker::Error),
    /// The model is not loaded, or cannot be loaded again.
    #[error(transparent)]
    Load(#[serde(with = "load::crossing")] Arc<load::Error>),
    /// A thread could not be started, or has panicked.
    #[error("the thread {name} failed: {reason}")]
    #[serde(skip)]
    Thread { name: Word, reason: String },
    /// The chat template cannot be had, or yields no prompt.
    #[error(transparent)]
    #[serde(skip)]
    Template(Arc<chat::Error>),
}

impl Error {
    /// Whether it is of one text's next token alone, while all that others are computed with is as it was.
    pub(super) fn is_of_one_text(&self) -> bool {
        use llama_sys::Error::{InvalidParameter, NoCandidates};
        matches!(
            self,
            Self::NoTokenAllowed { .. }
                | Self::NotAllowed { .. }
                | Self::Native(InvalidParameter { name: "token", .. } | NoCandidates { .. })
        )
    }

    pub(super) fn not_loaded() -> Self {
        load::Error::NotLoaded.into()
    }
}

fn at_place(place: &str) -> String {
    if place.is_empty() { String::new() } else { format!("{place}: ") }
}

/// Bytes of a text that a message shows.
const SHOWN: usize = 1000;

/// A text as a message shows it: the end of a long one.
fn end_of(text: &str) -> String {
    let from = (text.len().saturating_sub(SHOWN)..=text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    format!("{}{:?}", if from > 0 { "..." } else { "" }, &text[from..])
}

fn limit_of(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::EndOfGeneration => "the model",
        FinishReason::StopString => "a stop string",
        FinishReason::MaxTokens => "max_tokens",
        FinishReason::ContextFull => "the end of the context",
        FinishReason::Aborted => "an abort",
        FinishReason::Error => "an error",
    }
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
