//! Using a loaded model: prompts in, text out.
//!
//! In: a [`Model`] and a prompt. Out: a [`TokenStream`], an iterator of text that cancels when dropped; or a [`Session`] with several
//! texts at once. The loop adds nothing to llama.cpp's own: one decode, one sample, one piece per token. Between two tokens the model
//! can be placed anew.

mod cache;
mod error;
mod fork;
mod prompt;
pub(crate) mod remote;
mod replace;
mod roll_back;
mod sampling;
mod saved;
mod sequence;
mod session;
mod shift;
mod stats;
mod stream;
mod text;
mod token_stream;

pub use error::Error;
pub use fork::Fork;
pub use prompt::Prompt;
pub use replace::{Replaced, Resumed};
pub use roll_back::RolledBack;
pub use sampling::Sampling;
pub use saved::{SavedCache, SavedCacheError};
pub use session::{End, FinishReason, Piece, SequenceId, Session};
pub use shift::{Keep, WhenFull};
pub use stats::Statistics;
pub(crate) use stream::LocalStream;
pub use token_stream::{AbortHandle, TokenStream};

use llama_sys::Token;
use serde::{Deserialize, Serialize};

use crate::load::Model;

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
    /// What of the prompt the context holds already is not computed again.
    cache_prompt: bool,
    sampling: Sampling,
    stops: Vec<String>,
    limits: Limits,
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

impl Model {
    /// Describes a generation that continues `prompt`.
    ///
    /// A text is plain: control tokens written in it are not read as such. [`Prompt`] has the other kinds.
    pub fn generate(&self, prompt: impl Into<Prompt>) -> Generate {
        Generate {
            model: self.clone(),
            spec: Spec {
                prompt: prompt.into(),
                cache_prompt: false,
                sampling: Sampling::default(),
                stops: Vec::new(),
                limits: Limits {
                    max_tokens: usize::MAX,
                    special: false,
                },
                when_full: WhenFull::Stop,
            },
        }
    }
}

impl Generate {
    /// Ends after `n` tokens. Default: at the end of the text or of the context.
    pub fn max_tokens(mut self, n: usize) -> Self {
        self.spec.limits.max_tokens = n;
        self
    }

    /// Computes only what of the prompt the context does not hold from earlier texts, which may have another rounding: then the same
    /// seed can give another text. [`Statistics::cached_tokens`] says how much was there. Default: off.
    ///
    /// What a text leaves in the context is kept until another needs the place. Recurrent models can only go on where a text ended, and
    /// with sliding windows what has left the window is computed again.
    pub fn cache_prompt(mut self, cache: bool) -> Self {
        self.spec.cache_prompt = cache;
        self
    }

    /// What happens when the context has no place for the next token. Default: the text ends.
    pub fn when_full(mut self, when_full: WhenFull) -> Self {
        self.spec.when_full = when_full;
        self
    }

    /// All sampling parameters at once.
    pub fn sampling(mut self, sampling: Sampling) -> Self {
        self.spec.sampling = sampling;
        self
    }

    /// Divides the logits; 0.0 always takes the likeliest token. Default 0.8.
    pub fn temperature(mut self, temperature: f32) -> Self {
        self.spec.sampling.temperature = temperature;
        self
    }

    /// Keeps the `k` likeliest tokens; 0 keeps all. Default 40.
    pub fn top_k(mut self, k: u32) -> Self {
        self.spec.sampling.top_k = k;
        self
    }

    /// Keeps the likeliest tokens whose probabilities add up to `p`; 1.0 keeps all. Default 0.95.
    pub fn top_p(mut self, p: f32) -> Self {
        self.spec.sampling.top_p = p;
        self
    }

    /// Keeps tokens at least `p` times as likely as the likeliest; 0.0 keeps all. Default 0.05.
    pub fn min_p(mut self, p: f32) -> Self {
        self.spec.sampling.min_p = p;
        self
    }

    /// Divides the logits of the last 64 tokens by `penalty`; 1.0, the default, is off.
    pub fn repeat_penalty(mut self, penalty: f32) -> Self {
        self.spec.sampling.repeat_penalty = penalty;
        self
    }

    /// Seed of the random choice: the same seed gives the same text. Default: a new one every time.
    pub fn seed(mut self, seed: u32) -> Self {
        self.spec.sampling.seed = Some(seed);
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
    /// [`Error::PromptTooLong`], [`Error::EmptyPrompt`], [`Error::EmptyStop`], [`Error::NothingToShift`], [`Error::NotGenerative`];
    /// [`Error::Busy`] while
    /// another stream or session of this model lives; [`Error::Native`] for a sampling parameter out of range; [`Error::Worker`] when
    /// the model's worker process has died or cannot be started again.
    pub fn stream(self) -> Result<TokenStream, Error> {
        if self.model.is_elsewhere() {
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
        let full_is_error = self.spec.when_full == WhenFull::Error;
        let mut tokens = so_far.clone();
        // So that no token costs an allocation.
        let room = self.model.placement().context.n_ctx as usize;
        tokens.reserve(max_tokens.min(room).saturating_sub(tokens.len()));
        let sequence = session.begin_after(self, so_far)?;
        let statistics = session.statistics(sequence).unwrap_or_default();
        let mut stream = LocalStream::new(session, tokens, statistics, max_tokens);
        stream.full_is_error(full_is_error);
        Ok(stream)
    }

    fn into_parts(self) -> (Model, Spec) {
        (self.model, self.spec)
    }

    /// Generates everything and returns the text.
    ///
    /// # Errors
    ///
    /// As [`stream`](Self::stream), and whatever llama.cpp fails on meanwhile.
    pub fn text(self) -> Result<String, Error> {
        self.stream()?.into_text().map(|(text, _)| text)
    }
}
