//! The last sampler of a chain, which chooses the token.

use super::chain::NOTHING;
use super::check::{int, not_negative};
use super::{Sampler, SamplerChain};
use crate::raw;
use crate::safe::call::Error;

impl SamplerChain {
    /// Completes the chain: always chooses the likeliest token.
    ///
    /// # Errors
    ///
    /// [`Error::Call`].
    pub fn greedy(self) -> Result<Sampler, Error> {
        self.of_values(raw::SHIM_SAMPLER_KIND_GREEDY, [0.0; 3]).map(Self::finish)
    }

    /// Completes the chain: chooses a token at random, according to the probabilities. The same seed gives the same
    /// choices.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidParameter`] for 4294967295, which means "draw a seed" in llama.cpp (`LLAMA_DEFAULT_SEED`).
    pub fn dist(self, seed: u32) -> Result<Sampler, Error> {
        self.chosen_by(raw::SHIM_SAMPLER_KIND_DIST, [0.0; 3], seed)
    }

    /// Completes the chain: Mirostat (<https://arxiv.org/abs/2007.14966>), which keeps the surprise of the text near
    /// `tau` bits per token. It learns from the surprise of the chosen tokens, with `eta` as its learning rate. It
    /// estimates the shape of the distribution from the `m` likeliest tokens; llama.cpp's programs use 100.
    ///
    /// If the model is so certain that the surprise stays below `tau` for long, a number in llama.cpp overflows (the
    /// number of tokens to keep), and the choices become wrong. [`mirostat_v2`](Self::mirostat_v2) has no such number.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidParameter`] for a `tau` or `eta` that is negative or not finite, for an `m` of 0 or above
    /// 2147483647, and for the same seed as in [`dist`](Self::dist).
    pub fn mirostat(self, tau: f32, eta: f32, m: u32, seed: u32) -> Result<Sampler, Error> {
        not_negative("mirostat_tau", tau)?;
        not_negative("mirostat_eta", eta)?;
        if m == 0 {
            return Err(Error::parameter("mirostat_m", m, "it must be at least 1"));
        }
        let count = int("mirostat_m", m)?;
        let chain = self.seeded(seed)?.depending_on_logits();
        let n_vocab = chain.vocab.n_tokens() as i32;
        let params = raw::shim_sampler_params {
            kind: raw::SHIM_SAMPLER_KIND_MIROSTAT,
            count,
            n_vocab,
            seed,
            values: [tau, eta, 0.0],
            ..NOTHING
        };
        chain.simple(&params).map(Self::finish)
    }

    /// Completes the chain: Mirostat 2.0, which drops the tokens that are more surprising than a bound. The bound moves
    /// at the rate `eta`, so that the surprise of the text stays near `tau` bits per token.
    ///
    /// # Errors
    ///
    /// The errors of [`mirostat`](Self::mirostat).
    pub fn mirostat_v2(self, tau: f32, eta: f32, seed: u32) -> Result<Sampler, Error> {
        not_negative("mirostat_tau", tau)?;
        not_negative("mirostat_eta", eta)?;
        self.depending_on_logits().chosen_by(raw::SHIM_SAMPLER_KIND_MIROSTAT_V2, [tau, eta, 0.0], seed)
    }

    /// Completes the chain: adaptive-p (<https://github.com/ggml-org/llama.cpp/pull/17927>), which prefers tokens whose
    /// probability is near a target. The sampler adjusts this target so that the mean probability of the chosen tokens
    /// stays near `target`. In this mean, each token counts `decay` times as much as the next. With a negative target,
    /// the sampler works like [`dist`](Self::dist).
    ///
    /// # Errors
    ///
    /// [`Error::InvalidParameter`] for a target that is above 1.0 or not finite, for a decay outside 0.0 to 0.99, and
    /// for the same seed as in [`dist`](Self::dist).
    pub fn adaptive_p(self, target: f32, decay: f32, seed: u32) -> Result<Sampler, Error> {
        if !target.is_finite() || target > 1.0 {
            return Err(Error::parameter(
                "adaptive_target",
                target,
                "it must be at most 1.0; a negative number turns it off",
            ));
        }
        if !(0.0..=0.99).contains(&decay) {
            return Err(Error::parameter("adaptive_decay", decay, "it must be 0.0 to 0.99"));
        }
        self.depending_on_logits().chosen_by(raw::SHIM_SAMPLER_KIND_ADAPTIVE_P, [target, decay, 0.0], seed)
    }

    /// Completes the chain with a sampler that draws random numbers.
    fn chosen_by(self, kind: raw::shim_sampler_kind, values: [f32; 3], seed: u32) -> Result<Sampler, Error> {
        let params = raw::shim_sampler_params { kind, seed, values, ..NOTHING };
        let chain = self.seeded(seed)?;
        chain.simple(&params).map(Self::finish)
    }
}
