//! How the next token is chosen.

use std::hash::{BuildHasher, Hasher, RandomState};

use llama_sys::Sampler;
use serde::{Deserialize, Serialize};

/// Sampling parameters, in llama.cpp's terms and with its defaults (common/common.h, common_params_sampling).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Sampling {
    /// Divides the logits; 0.0 always takes the likeliest token.
    pub temperature: f32,
    /// Keeps the k likeliest tokens; 0 keeps all.
    pub top_k: u32,
    /// Keeps the likeliest tokens whose probabilities add up to p; 1.0 keeps all.
    pub top_p: f32,
    /// Keeps tokens at least p times as likely as the likeliest; 0.0 keeps all.
    pub min_p: f32,
    /// Divides the logits of recent tokens; 1.0 is off.
    pub repeat_penalty: f32,
    /// How many recent tokens the penalty looks at.
    pub repeat_last_n: u32,
    /// Seed of the random choice; `None` draws one, which [`Statistics::seed`](super::Statistics::seed) tells.
    pub seed: Option<u32>,
}

impl Default for Sampling {
    fn default() -> Self {
        Self {
            temperature: 0.8,
            top_k: 40,
            top_p: 0.95,
            min_p: 0.05,
            repeat_penalty: 1.0,
            repeat_last_n: 64,
            seed: None,
        }
    }
}

impl Sampling {
    /// The likeliest token always: the same text every time.
    pub fn greedy() -> Self {
        Self {
            temperature: 0.0,
            ..Self::default()
        }
    }

    /// Refuses what is no number: a message to a worker has no way to say it, and no sampler takes it.
    pub(super) fn check_numbers(&self) -> Result<(), llama_sys::Error> {
        let numbers = [
            ("temp", self.temperature),
            ("top_p", self.top_p),
            ("min_p", self.min_p),
            ("penalty_repeat", self.repeat_penalty),
        ];
        match numbers.into_iter().find(|(_, number)| !number.is_finite()) {
            Some((name, number)) => Err(llama_sys::Error::InvalidParameter {
                name,
                value: number.to_string(),
                reason: "a finite number".into(),
            }),
            None => Ok(()),
        }
    }

    /// Builds the chain, in llama.cpp's order: penalties, top-k, top-p, min-p, temperature, choice. Returns the seed in use.
    pub(super) fn sampler(
        &self,
        model: &llama_sys::Model,
    ) -> Result<(Sampler, Option<u32>), llama_sys::Error> {
        let mut chain = Sampler::chain(model)?;
        if self.repeat_penalty != 1.0 && self.repeat_last_n > 0 {
            chain = chain.penalties(self.repeat_last_n, self.repeat_penalty, 0.0, 0.0)?;
        }
        if self.temperature == 0.0 {
            // What is out of range is refused even where it would have no effect.
            let _in_range = Sampler::chain(model)?
                .top_k(self.top_k)?
                .top_p(self.top_p)?
                .min_p(self.min_p)?;
            return Ok((chain.greedy()?, None));
        }
        chain = chain
            .top_k(self.top_k)?
            .top_p(self.top_p)?
            .min_p(self.min_p)?
            .temperature(self.temperature)?;
        let seed = self.seed.unwrap_or_else(random_seed);
        Ok((chain.dist(seed)?, Some(seed)))
    }
}

/// A different number every time, from the source of randomness that std keeps for its hash maps.
fn random_seed() -> u32 {
    // LLAMA_DEFAULT_SEED (u32::MAX) would make llama.cpp draw one that nobody can read back.
    (RandomState::new().build_hasher().finish() >> 33) as u32
}
