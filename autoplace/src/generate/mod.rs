//! Using a loaded model: prompts in, text out.
//!
//! In: a [`Model`] and a prompt. Out: a [`TokenStream`], an iterator of text that cancels when dropped; or a [`Session`] with several
//! texts at once. The loop adds nothing to llama.cpp's own: one decode, one sample, one piece per token. Between two tokens the model
//! can be placed anew.

mod cache;
mod choose;
mod custom;
mod error;
mod logprobs;
mod prompt;
pub(crate) mod remote;
mod replace;
mod sampling;
mod sequence;
mod session;
mod stats;
mod stream;
mod text;
mod token_stream;

pub use error::Error;
pub use logprobs::TokenLogprobs;
pub use prompt::Prompt;
pub use replace::{Replaced, Resumed};
pub use sampling::{Mirostat, SamplerKind, Sampling};
pub use session::{End, FinishReason, Piece, SequenceId, Session};
pub use stats::Statistics;
pub(crate) use stream::LocalStream;
pub use token_stream::{AbortHandle, TokenStream};

use custom::Custom;
use llama_sys::{Candidates, Token};
use serde::{Deserialize, Serialize};

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
    /// What of the prompt the context holds already is not computed again.
    cache_prompt: bool,
    sampling: Sampling,
    /// How many of the likeliest tokens are told beside the chosen one.
    #[serde(default)]
    logprobs: Option<usize>,
    /// Not for a worker.
    #[serde(skip)]
    custom: Option<Custom>,
    stops: Vec<String>,
    limits: Limits,
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
                sampling: self.sampling(),
                logprobs: None,
                custom: None,
                stops: Vec::new(),
                limits: Limits {
                    max_tokens: usize::MAX,
                    special: false,
                },
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

    /// All sampling parameters at once. Default: the model's own ([`Model::sampling`]).
    pub fn sampling(mut self, sampling: Sampling) -> Self {
        self.spec.sampling = sampling;
        self
    }

    /// Divides the logits; 0.0 always takes the likeliest token. Default: the model's own, or 0.8.
    pub fn temperature(mut self, temperature: f32) -> Self {
        self.spec.sampling.temperature = temperature;
        self
    }

    /// Keeps the `k` likeliest tokens; 0 keeps all. Default: the model's own, or 40.
    pub fn top_k(mut self, k: u32) -> Self {
        self.spec.sampling.top_k = k;
        self
    }

    /// Keeps the likeliest tokens whose probabilities add up to `p`; 1.0 keeps all. Default: the model's own, or 0.95.
    pub fn top_p(mut self, p: f32) -> Self {
        self.spec.sampling.top_p = p;
        self
    }

    /// Keeps tokens at least `p` times as likely as the likeliest; 0.0 keeps all. Default: the model's own, or 0.05.
    pub fn min_p(mut self, p: f32) -> Self {
        self.spec.sampling.min_p = p;
        self
    }

    /// Divides the logits of the last 64 tokens ([`Sampling::repeat_last_n`]) by `penalty`; 1.0 is off. Default: the model's own, or 1.0.
    pub fn repeat_penalty(mut self, penalty: f32) -> Self {
        self.spec.sampling.repeat_penalty = penalty;
        self
    }

    /// Subtracts `penalty` from the logit of a recent token for each time that it came; 0.0, the default, is off.
    pub fn frequency_penalty(mut self, penalty: f32) -> Self {
        self.spec.sampling.frequency_penalty = penalty;
        self
    }

    /// Subtracts `penalty` once from the logit of a recent token; 0.0, the default, is off.
    pub fn presence_penalty(mut self, penalty: f32) -> Self {
        self.spec.sampling.presence_penalty = penalty;
        self
    }

    /// Drops the likeliest tokens with this `probability`, down to the last that is at least `threshold` likely (XTC); 0.0 is off.
    /// Default: the model's own, or off.
    pub fn xtc(mut self, probability: f32, threshold: f32) -> Self {
        self.spec.sampling.xtc_probability = probability;
        self.spec.sampling.xtc_threshold = threshold;
        self
    }

    /// Punishes tokens that go on with a repetition (DRY), by `multiplier`; 0.0, the default, is off. [`Sampling`] has its other
    /// numbers.
    pub fn dry(mut self, multiplier: f32) -> Self {
        self.spec.sampling.dry_multiplier = multiplier;
        self
    }

    /// Keeps the surprise of the text near `tau` bits per token, instead of all samplers but the temperature. Default: the model's own,
    /// or off.
    pub fn mirostat(mut self, mirostat: Mirostat, tau: f32) -> Self {
        self.spec.sampling.mirostat = mirostat;
        self.spec.sampling.mirostat_tau = tau;
        self
    }

    /// Prefers tokens whose probability is near `target`, 0.0 to 1.0, whatever chance would choose of those that the other samplers
    /// leave. Default: off.
    pub fn adaptive_p(mut self, target: f32) -> Self {
        let sampling = &mut self.spec.sampling;
        sampling.adaptive_target = target;
        if !sampling.samplers.contains(&SamplerKind::AdaptiveP) {
            sampling.samplers.push(SamplerKind::AdaptiveP);
        }
        self
    }

    /// Adds `bias` to the logit of a token; can be called for several. -1000.0 forbids it as long as there is another.
    pub fn logit_bias(mut self, token: Token, bias: f32) -> Self {
        self.spec.sampling.logit_bias.push((token, bias));
        self
    }

    /// The same for the token that `text` is: [`Error::NotOneToken`] when the generation begins, if it is more or fewer.
    pub fn logit_bias_text(mut self, text: impl Into<String>, bias: f32) -> Self {
        let biases = &mut self.spec.sampling.logit_bias_text;
        biases.push((text.into(), bias));
        self
    }

    /// Which samplers apply, in this order. Without any, a token is chosen by the model's own probabilities. Default: the model's own, or
    /// [`SamplerKind::DEFAULT`].
    pub fn samplers(mut self, samplers: impl IntoIterator<Item = SamplerKind>) -> Self {
        self.spec.sampling.samplers = samplers.into_iter().collect();
        self
    }

    /// Tells with each piece how likely its token was, and which `n` tokens were the likeliest, at most 128
    /// ([`Piece::logprobs`]): by the model's own distribution, before any sampler. Default: nothing.
    pub fn logprobs(mut self, n: usize) -> Self {
        self.spec.logprobs = Some(n);
        self
    }

    /// Chooses each token by a closure, of the candidates that the other samplers leave and the tokens so far, the prompt's first.
    /// [`Candidates::selected`] is what would be chosen without it; where [`samplers`](Self::samplers) are none, all tokens are there.
    /// [`Candidates::softmax`] computes their probabilities.
    ///
    /// Any token of the vocabulary may be chosen; under a constraint, one that it allows, or the text ends with [`Error::NotAllowed`].
    /// Each text has a copy of the closure. It cannot choose for a model in a worker process:
    /// [`worker::Error::Elsewhere`](crate::worker::Error::Elsewhere).
    ///
    /// ```no_run
    /// # let model = autoplace::Model::load("model.gguf")?;
    /// // Never twice the same token.
    /// let generate = model.generate("Once upon a time").sampler(|candidates, so_far| {
    ///     candidates.retain(|candidate| !so_far.ends_with(&[candidate.token()]));
    ///     let likeliest = candidates.iter().max_by(|a, b| a.logit().total_cmp(&b.logit()));
    ///     likeliest.map_or(0, |candidate| candidate.token())
    /// });
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn sampler<F>(mut self, choose: F) -> Self
    where
        F: FnMut(&mut Candidates, &[Token]) -> Token + Clone + Send + 'static,
    {
        self.spec.custom = Some(Custom::new(choose));
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
    /// [`Error::PromptTooLong`], [`Error::EmptyPrompt`], [`Error::EmptyStop`], [`Error::NotGenerative`]; [`Error::Busy`] while
    /// another stream or session of this model lives; [`Error::Native`] for a sampling parameter out of range,
    /// [`Error::NotOneToken`] and [`Error::TooManyLogprobs`]; [`Error::Worker`] when
    /// the model's worker process has died or cannot be started again.
    pub fn stream(self) -> Result<TokenStream, Error> {
        if self.model.is_elsewhere() {
            if self.spec.custom.is_some() {
                let what = "the choice of its tokens";
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
        let mut tokens = so_far.clone();
        // So that no token costs an allocation.
        let room = self.model.placement().context.n_ctx as usize;
        tokens.reserve(max_tokens.min(room).saturating_sub(tokens.len()));
        let sequence = session.begin_after(self, so_far)?;
        let statistics = session.statistics(sequence).unwrap_or_default();
        Ok(LocalStream::new(session, tokens, statistics, max_tokens))
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
