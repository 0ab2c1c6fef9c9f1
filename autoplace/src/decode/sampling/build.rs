//! Builds the sampler chain from the sampling parameters.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, Hasher, RandomState};

use llama_sys::{Model, Sampler, SamplerChain, Token};

use super::{Mirostat, SamplerKind, Sampling};
use crate::decode::error::Error;

/// Number of tokens in Mirostat's estimate (common/sampling.cpp, common_sampler_init).
const MIROSTAT_M: u32 = 100;

impl Sampling {
    /// Builds the chain as llama.cpp's programs do (common/sampling.cpp, common_sampler_init): the samplers in their
    /// requested order, then the sampler that chooses. The biases are added before the chain runs. [`Sampler::seed`] is
    /// the seed in use.
    pub(crate) fn sampler(&self, model: &Model) -> Result<Sampler, Error> {
        self.check_ranges(model)?;
        let mut chain = Sampler::chain(model)?;
        let seed = self.seed.unwrap_or_else(random_seed);
        let is_greedy = self.temperature == 0.0;
        let (tau, eta) = (self.mirostat_tau, self.mirostat_eta);
        match self.mirostat {
            Mirostat::V1 if !is_greedy => {
                return Ok(chain.temperature(self.temperature)?.mirostat(tau, eta, MIROSTAT_M, seed)?);
            }
            Mirostat::V2 if !is_greedy => {
                return Ok(chain.temperature(self.temperature)?.mirostat_v2(tau, eta, seed)?);
            }
            _ => {}
        }
        chain = chain.min_keep(self.min_keep);
        for (at, &kind) in self.samplers.iter().enumerate() {
            if is_greedy && kind == SamplerKind::Temperature {
                break;
            }
            if self.is_on(kind) && !(is_greedy && self.keeps_the_likeliest(at)) {
                chain = self.add(chain, kind, seed)?;
            }
        }
        Ok(if is_greedy {
            chain.greedy()?
        } else if self.samplers.contains(&SamplerKind::AdaptiveP) {
            chain.adaptive_p(self.adaptive_target, self.adaptive_decay, seed)?
        } else {
            chain.dist(seed)?
        })
    }

    fn is_on(&self, kind: SamplerKind) -> bool {
        let penalises = self.repeat_penalty != 1.0 || self.frequency_penalty != 0.0 || self.presence_penalty != 0.0;
        match kind {
            SamplerKind::Penalties => self.repeat_last_n > 0 && penalises,
            SamplerKind::Dry => self.dry_penalty_last_n > 0 && self.dry_multiplier > 0.0,
            SamplerKind::TopNSigma => self.top_n_sigma > 0.0,
            SamplerKind::TopK => self.top_k > 0,
            SamplerKind::TypicalP => self.typical_p < 1.0,
            SamplerKind::TopP => self.top_p < 1.0,
            SamplerKind::MinP => self.min_p > 0.0,
            SamplerKind::Xtc => self.xtc_probability > 0.0 && self.xtc_threshold <= 0.5,
            SamplerKind::Temperature => self.temperature != 1.0 || self.dynatemp_range > 0.0,
            // This sampler is added at the end of the chain, below.
            SamplerKind::AdaptiveP => false,
        }
    }

    /// Whether greedy sampling can skip a sampler: no later sampler depends on the tokens that it drops.
    fn keeps_the_likeliest(&self, at: usize) -> bool {
        let rest = self.samplers[at..].iter().take_while(|sampler| **sampler != SamplerKind::Temperature);
        rest.filter(|sampler| self.is_on(**sampler)).all(|sampler| {
            matches!(sampler, SamplerKind::TopNSigma | SamplerKind::TopK | SamplerKind::TopP | SamplerKind::MinP)
        })
    }

    fn add(&self, chain: SamplerChain, kind: SamplerKind, seed: u32) -> Result<SamplerChain, llama_sys::Error> {
        match kind {
            SamplerKind::Penalties => {
                chain.penalties(self.repeat_last_n, self.repeat_penalty, self.frequency_penalty, self.presence_penalty)
            }
            SamplerKind::Dry => chain.dry(
                self.dry_multiplier,
                self.dry_base,
                self.dry_allowed_length,
                self.dry_penalty_last_n,
                &self.dry_sequence_breakers,
            ),
            SamplerKind::TopNSigma => chain.top_n_sigma(self.top_n_sigma),
            SamplerKind::TopK => chain.top_k(self.top_k),
            SamplerKind::TypicalP => chain.typical(self.typical_p),
            SamplerKind::TopP => chain.top_p(self.top_p),
            SamplerKind::MinP => chain.min_p(self.min_p),
            SamplerKind::Xtc => chain.xtc(self.xtc_probability, self.xtc_threshold, seed),
            SamplerKind::Temperature => {
                chain.dynamic_temperature(self.temperature, self.dynatemp_range, self.dynatemp_exponent)
            }
            SamplerKind::AdaptiveP => Ok(chain),
        }
    }

    /// Refuses numbers that are out of range, even if they would have no effect.
    fn check_ranges(&self, model: &Model) -> Result<(), llama_sys::Error> {
        let chain = || Sampler::chain(model);
        // llama.cpp compares each breaker with the whole vocabulary, which is slow.
        let without_breakers = Self { dry_sequence_breakers: Vec::new(), ..self.clone() };
        let mut all = chain()?;
        for kind in SamplerKind::DEFAULT {
            all = without_breakers.add(all, kind, 0)?;
        }
        all.adaptive_p(self.adaptive_target, self.adaptive_decay, self.seed.unwrap_or(0))?;
        chain()?.mirostat_v2(self.mirostat_tau, self.mirostat_eta, 0)?;
        Ok(())
    }

    /// The biases to add before the chain. Tokens that the model's authors suppress get negative infinity.
    ///
    /// llama.cpp's own sampler searches all biases for each candidate of a constrained text (llama-sampler.cpp,
    /// llama_sampler_logit_bias_apply). Here the biases are sorted by token, so each of them is visited once.
    pub(crate) fn biases(&self, model: &Model) -> Result<BTreeMap<Token, f32>, Error> {
        let vocab = model.vocab();
        let mut list = self.logit_bias.clone();
        for (text, bias) in &self.logit_bias_text {
            match vocab.tokenize(text, false, true)?[..] {
                [token] => list.push((token, *bias)),
                ref tokens => {
                    return Err(Error::NotOneToken { text: text.clone(), tokens: tokens.len() });
                }
            }
        }
        if !list.is_empty() {
            // Refuses invalid tokens and biases.
            drop(Sampler::chain(model)?.logit_bias(&list)?);
        }
        let mut biases = BTreeMap::new();
        for (token, bias) in list {
            if biases.insert(token, bias).is_some() {
                return Err(Error::Native(llama_sys::Error::InvalidParameter {
                    name: "logit_bias",
                    value: token.to_string(),
                    reason: "the list has this token twice".into(),
                }));
            }
        }
        let suppressed = vocab.suppressed().iter().copied().filter(|token| vocab.contains(*token));
        biases.extend(suppressed.map(|token| (token, f32::NEG_INFINITY)));
        Ok(biases)
    }
}

/// A new number for each call, from the random source of std's hash maps.
fn random_seed() -> u32 {
    // LLAMA_DEFAULT_SEED (u32::MAX) would make llama.cpp draw a seed that cannot be read back.
    (RandomState::new().build_hasher().finish() >> 33) as u32
}
