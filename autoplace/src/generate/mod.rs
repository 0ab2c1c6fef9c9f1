//! Using a loaded model: prompts in, text out.
//!
//! In: a [`Model`] and a prompt. Out: a [`TokenStream`], an iterator of text that cancels when dropped. The loop
//! adds nothing to llama.cpp's own: one decode, one sample, one piece per token.

mod error;
mod sampling;
mod stats;
mod stream;
mod text;

pub use error::Error;
pub use sampling::Sampling;
pub use stats::Statistics;
pub use stream::{FinishReason, TokenStream};

use crate::load::Model;

/// A generation being described: finish it with [`stream`](Self::stream) or [`text`](Self::text).
#[derive(Debug, Clone)]
#[must_use = "nothing is generated until `stream` or `text` is called"]
pub struct Generate {
    model: Model,
    spec: Spec,
}

/// What is to be generated.
#[derive(Debug, Clone)]
struct Spec {
    prompt: String,
    sampling: Sampling,
    max_tokens: usize,
    stops: Vec<String>,
    special: bool,
}

impl Model {
    /// Describes a generation that continues `prompt`.
    ///
    /// The prompt is plain text: control tokens written in it are not read as such.
    pub fn generate(&self, prompt: impl Into<String>) -> Generate {
        Generate {
            model: self.clone(),
            spec: Spec {
                prompt: prompt.into(),
                sampling: Sampling::default(),
                max_tokens: usize::MAX,
                stops: Vec::new(),
                special: false,
            },
        }
    }
}

impl Generate {
    /// Ends after `n` tokens. Default: at the end of the text or of the context.
    pub fn max_tokens(mut self, n: usize) -> Self {
        self.spec.max_tokens = n;
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
        self.spec.special = show;
        self
    }

    /// Checks everything and returns the stream; nothing is computed before its first `next`.
    ///
    /// # Errors
    ///
    /// [`Error::PromptTooLong`], [`Error::EmptyPrompt`], [`Error::EmptyStop`], [`Error::NotGenerative`]; [`Error::Busy`] while
    /// another stream of this model lives; [`Error::Native`] for a sampling parameter out of range.
    pub fn stream(self) -> Result<TokenStream, Error> {
        let native = &self.model.native()?;
        // Encoders (BERT), encoder-decoders (T5) and diffusion models (LLaDA) have no next token.
        let causal = native.has_decoder() && !native.has_encoder() && native.shape().causal;
        if !causal || native.is_diffusion() {
            return Err(Error::NotGenerative {
                architecture: self.model.placement().model.architecture.clone(),
            });
        }
        if self.spec.stops.iter().any(String::is_empty) {
            return Err(Error::EmptyStop);
        }
        let vocab = native.vocab();
        let mut prompt = vocab.tokenize(&self.spec.prompt, true, false)?;
        if prompt.is_empty() {
            prompt.push(vocab.bos().ok_or(Error::EmptyPrompt)?);
        }
        let (sampler, seed) = self.spec.sampling.sampler(native)?;
        let slot = self.model.slot();
        let context = slot.take()?.ok_or(Error::Busy)?;
        if !context.has_memory() {
            slot.give_back(context);
            return Err(Error::NotGenerative {
                architecture: self.model.placement().model.architecture.clone(),
            });
        }
        // llama.cpp rounds a context up to a multiple of 256; what was asked for, and planned, is what holds.
        let planned = self.model.placement().context.n_ctx;
        let capacity = context.n_ctx_seq().min(planned) as usize;
        if prompt.len() >= capacity {
            slot.give_back(context);
            return Err(Error::PromptTooLong {
                tokens: prompt.len(),
                context: capacity,
            });
        }
        Ok(TokenStream::new(stream::Parts {
            context,
            model: self.model,
            vocab,
            sampler,
            seed,
            prompt,
            capacity,
            max_tokens: self.spec.max_tokens,
            stops: self.spec.stops,
            special: self.spec.special,
        }))
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
