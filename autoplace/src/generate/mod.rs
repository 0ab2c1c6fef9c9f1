//! Using a loaded model: prompts in, text out.
//!
//! In: a [`Model`] and a prompt. Out: a [`TokenStream`], an iterator of text that cancels when dropped; or a
//! [`Session`] with several texts at once. The loop adds nothing to llama.cpp's own: one decode, one sample, one piece
//! per token. Between two tokens the model can be placed anew.

mod cache;
mod channel;
mod chat;
mod checkpoints;
mod choose;
#[cfg_attr(not(feature = "constraints"), path = "unconstrained.rs")]
mod constraint;
mod custom;
mod engine;
mod error;
mod fork;
mod join;
mod last_word;
mod logprobs;
mod pieces;
mod place;
mod prompt;
pub(crate) mod remote;
mod replace;
mod roll_back;
mod sampling;
mod saved;
mod sequence;
mod session;
mod share;
mod shift;
mod speculative;
mod stats;
mod stream;
#[cfg(feature = "async")]
mod stream_async;
mod text;
mod token_stream;
mod turn;
mod turns;
mod wait;

pub use chat::{Chat, ChatStream};
pub use checkpoints::CheckpointUse;
#[cfg(feature = "constraints")]
pub use constraint::Constraint;
#[cfg(feature = "async")]
pub use engine::AsyncAnswer;
pub use engine::{Answer, Engine, EngineBuilder, Metrics, Shutdown, Submission};
pub use error::Error;
pub use fork::Fork;
pub use logprobs::TokenLogprobs;
pub use pieces::Pieces;
pub use prompt::Prompt;
pub use replace::{Replaced, Resumed};
pub use roll_back::RolledBack;
pub use sampling::{Mirostat, SamplerKind, Sampling};
pub use saved::{SavedCache, SavedCacheError};
pub use session::{End, FinishReason, Piece, SequenceId, Session};
pub use shift::{Keep, WhenFull};
pub use speculative::{DraftsOff, Speculation};
pub use stats::Statistics;
pub(crate) use stream::LocalStream;
#[cfg(feature = "async")]
pub use stream_async::AsyncTokenStream;
pub use token_stream::{AbortHandle, TokenStream};

#[cfg(not(feature = "constraints"))]
use constraint::Constraint;
use constraint::Matcher;
use custom::Custom;
use last_word::LastWord;
use llama_sys::{Token, Vocab};
use serde::{Deserialize, Serialize};
use speculative::CustomDrafter;

use crate::load::Model;
use crate::worker;

/// A generation being described: finish it with [`stream`](Self::stream) or [`text`](Self::text).
#[derive(Debug, Clone)]
#[must_use = "nothing is generated until `stream` or `text` is called"]
pub struct Generate {
    model: Model,
    spec: Spec,
}

/// What is to be generated.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Spec {
    prompt: Prompt,
    /// What of the prompt the context holds already is not computed again. `None`: as whoever generates does it.
    cache_prompt: Option<bool>,
    sampling: Sampling,
    /// Adapters with their scales, instead of all as they were loaded.
    lora: Option<Vec<(String, f32)>>,
    /// How many of the likeliest tokens are told beside the chosen one.
    #[serde(default)]
    logprobs: Option<usize>,
    /// Not for a worker.
    #[serde(skip)]
    custom: Option<Custom>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    constraint: Option<Constraint>,
    stops: Vec<String>,
    limits: Limits,
    #[serde(default)]
    speculation: Speculation,
    /// Not for a worker.
    #[serde(skip)]
    drafter: Option<CustomDrafter>,
    #[serde(default)]
    when_full: WhenFull,
}

/// How far a text goes, and what of it is shown.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct Limits {
    max_tokens: usize,
    /// Control tokens are written out.
    special: bool,
}

impl Spec {
    /// What of the end is told as an error.
    fn last_word(&self) -> LastWord {
        LastWord::new(self.when_full == WhenFull::Error, self.constraint.is_some())
    }

    /// What the text is held to, from its beginning.
    fn matcher(&self, model: &Model, vocab: &Vocab) -> Result<Option<Matcher>, Error> {
        let constraint = self.constraint.as_ref();
        constraint.map(|it| it.begin(model, vocab)).transpose()
    }
}

impl Model {
    /// Describes a generation that continues `prompt`.
    ///
    /// A text is plain: control tokens written in it are not read as such. [`Prompt`] has the other kinds.
    pub fn generate(&self, prompt: impl Into<Prompt>) -> Generate {
        Generate {
            model: self.clone(),
            spec: Spec {
                prompt: prompt.into(),
                cache_prompt: None,
                sampling: self.sampling(),
                lora: None,
                logprobs: None,
                custom: None,
                constraint: None,
                stops: Vec::new(),
                limits: Limits {
                    max_tokens: usize::MAX,
                    special: false,
                },
                speculation: Speculation::Off,
                drafter: None,
                when_full: WhenFull::Stop,
            },
        }
    }
}

impl Generate {
    /// Another prompt.
    pub fn prompt(mut self, prompt: impl Into<Prompt>) -> Self {
        self.spec.prompt = prompt.into();
        self
    }

    /// Ends after `n` tokens. Default: at the end of the text or of the context.
    pub fn max_tokens(mut self, n: usize) -> Self {
        self.spec.limits.max_tokens = n;
        self
    }

    /// Computes only what of the prompt the context does not hold from earlier texts, which may have another rounding:
    /// then the same seed can give another text. [`Statistics::cached_tokens`] says how much was there. Default: off,
    /// and on in an [`Engine`].
    ///
    /// What a text leaves in the context is kept until another needs the place. Recurrent models go on where a text
    /// ended, models with sliding windows also where the window is still held, and both from a
    /// [checkpoint](crate::ModelBuilder::checkpoints) before.
    pub fn cache_prompt(mut self, cache: bool) -> Self {
        self.spec.cache_prompt = Some(cache);
        self
    }

    /// What happens when the context has no place for the next token. Default: the text ends.
    pub fn when_full(mut self, when_full: WhenFull) -> Self {
        self.spec.when_full = when_full;
        self
    }

    /// Computes with these of the model's [adapters](Model::adapters), at these scales, and with no others; none at all
    /// where the list is empty. Default: all of them, as they were [loaded](crate::ModelBuilder::lora).
    ///
    /// Nothing is loaded for it, but the compute buffers are reserved anew where the adapters are others than those of
    /// the text before. In a [`Session`], texts with other adapters take turns.
    pub fn lora<N: Into<String>>(mut self, adapters: impl IntoIterator<Item = (N, f32)>) -> Self {
        let adapters = adapters.into_iter();
        let named = adapters.map(|(name, scale)| (name.into(), scale));
        self.spec.lora = Some(named.collect());
        self
    }

    /// Ends before `text` would appear; can be called several times.
    pub fn stop(mut self, text: impl Into<String>) -> Self {
        self.spec.stops.push(text.into());
        self
    }

    /// Writes control tokens out as text instead of leaving them out.
    pub fn special(mut self, show: bool) -> Self {
        self.spec.limits.special = show;
        self
    }

    /// Checks everything and returns the stream; nothing is computed before its first `next`.
    ///
    /// # Errors
    ///
    /// [`Error::PromptTooLong`], [`Error::EmptyPrompt`], [`Error::EmptyStop`], [`Error::NothingToShift`],
    /// [`Error::NotGenerative`]; [`Error::Constraint`] and [`Error::NoTokenAllowed`]; [`Error::Busy`] while another
    /// stream or session of this model lives; [`Error::Native`] for a sampling parameter out of range,
    /// [`Error::NotOneToken`] and [`Error::TooManyLogprobs`]; [`Error::Worker`] when the model's worker process has
    /// died or cannot be started again.
    pub fn stream(self) -> Result<TokenStream, Error> {
        if self.model.is_elsewhere() {
            let own = match (&self.spec.custom, &self.spec.drafter) {
                (Some(_), _) => Some("the choice of its tokens"),
                (None, Some(_)) => Some("the guessing of its tokens"),
                (None, None) => None,
            };
            if let Some(what) = own {
                return Err(worker::Error::Elsewhere { what }.into());
            }
            return remote::RemoteStream::new(self.model, self.spec).map(TokenStream::from);
        }
        self.stream_here(Vec::new()).map(TokenStream::from)
    }

    /// What a worker was asked to generate.
    pub(crate) fn of(model: Model, spec: Spec) -> Self {
        Self { model, spec }
    }

    /// The stream of a model in this process, which goes on after the tokens that an earlier process has generated.
    pub(crate) fn stream_here(self, so_far: Vec<Token>) -> Result<LocalStream, Error> {
        let mut session = self.model.session()?;
        let max_tokens = self.spec.limits.max_tokens;
        let last_word = self.spec.last_word();
        let mut tokens = so_far.clone();
        // So that no token costs an allocation.
        let room = self.model.placement().context.n_ctx as usize;
        tokens.reserve(max_tokens.min(room).saturating_sub(tokens.len()));
        let sequence = session.begin_after(self, so_far)?;
        let statistics = session.statistics(sequence).unwrap_or_default();
        Ok(LocalStream::new(
            session, tokens, statistics, max_tokens, last_word,
        ))
    }

    /// Whether [`logprobs`](Self::logprobs) were asked for.
    pub fn tells_logprobs(&self) -> bool {
        self.spec.logprobs.is_some()
    }

    fn into_parts(self) -> (Model, Spec) {
        (self.model, self.spec)
    }

    /// Generates everything and returns the text.
    ///
    /// # Errors
    ///
    /// As [`stream`](Self::stream), [`Error::Incomplete`], [`Error::ContextFull`], and whatever llama.cpp
    /// fails on meanwhile.
    pub fn text(self) -> Result<String, Error> {
        self.stream()?.into_text().map(|(text, _)| text)
    }
}
