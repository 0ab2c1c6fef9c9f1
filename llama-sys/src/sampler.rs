//! From logits to a token: llama.cpp's sampler chain.

use std::ffi::CString;
use std::fmt;
use std::ptr::NonNull;

use crate::context::Context;
use crate::error::Error;
use crate::model::Model;
use crate::vocab::{Token, Vocab};
use crate::{raw, shim};

/// A chain that is complete: its last sampler chooses a token.
pub struct Sampler {
    chain: Chain,
    vocab: Vocab,
}

/// A chain being put together. Samplers apply in the order in which they are added; [`greedy`](Self::greedy) or
/// [`dist`](Self::dist) completes it.
#[must_use = "a chain chooses nothing until it is completed"]
pub struct SamplerChain {
    chain: Chain,
    vocab: Vocab,
}

struct Chain(NonNull<raw::llama_sampler>);

// SAFETY: a sampler is plain data with no tie to a thread; it is used through `&mut`.
unsafe impl Send for Chain {}

impl Drop for Chain {
    fn drop(&mut self) {
        // SAFETY: created by llama_sampler_chain_init and freed once, with the samplers added to it.
        unsafe { raw::llama_sampler_free(self.0.as_ptr()) };
    }
}

impl fmt::Debug for Sampler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.chain.names()).finish()
    }
}

impl fmt::Debug for SamplerChain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.chain.names()).finish()
    }
}

impl Chain {
    fn names(&self) -> Vec<String> {
        // SAFETY: the chain lives; indices below the count.
        unsafe {
            (0..raw::llama_sampler_chain_n(self.0.as_ptr()))
                .map(|index| {
                    let sampler = raw::llama_sampler_chain_get(self.0.as_ptr(), index);
                    crate::device::owned(raw::llama_sampler_name(sampler))
                })
                .collect()
        }
    }
}

impl Sampler {
    /// Starts an empty chain for the vocabulary of `model`.
    ///
    /// # Errors
    ///
    /// [`Error::NoVocabulary`] for a model without tokens.
    pub fn chain(model: &Model) -> Result<SamplerChain, Error> {
        let vocab = model.vocab();
        if vocab.n_tokens() == 0 {
            return Err(Error::NoVocabulary);
        }
        // SAFETY: neither call has preconditions; the chain is ours.
        let chain =
            unsafe { raw::llama_sampler_chain_init(raw::llama_sampler_chain_default_params()) };
        Ok(SamplerChain {
            chain: Chain(NonNull::new(chain).ok_or(Error::NoVocabulary)?),
            vocab,
        })
    }

    /// Chooses a token from the logits of token `index` of the last batch (-1: the last output) and tells the chain.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidParameter`] for an index without logits or a context of another vocabulary; [`Error::Poisoned`];
    /// [`Error::Call`].
    pub fn sample(&mut self, context: &mut Context, index: i32) -> Result<Token, Error> {
        context.check_output(index)?;
        let n_vocab = context.model().vocab().n_tokens();
        if n_vocab != self.vocab.n_tokens() {
            return Err(Error::parameter(
                "context",
                format!("{n_vocab} tokens"),
                format!(
                    "the sampler was made for a vocabulary of {}",
                    self.vocab.n_tokens()
                ),
            ));
        }
        shim::quick(|error| {
            // SAFETY: chain and context live and are borrowed mutably; `index` has logits; the chain ends in a sampler that
            // selects, as llama_sampler_sample asserts.
            unsafe {
                raw::shim_sampler_sample(self.chain.0.as_ptr(), context.as_ptr(), index, error)
            }
        })
        .map_err(|failure| Error::Call {
            what: "sampling",
            failure,
        })
    }

    /// Tells the chain of a token that it did not choose: the prompt's, for penalties.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidParameter`] for a token outside the vocabulary; [`Error::Call`].
    pub fn accept(&mut self, token: Token) -> Result<(), Error> {
        self.vocab.check(token)?;
        shim::quick(|error| {
            // SAFETY: the chain lives and is borrowed mutably.
            unsafe { raw::shim_sampler_accept(self.chain.0.as_ptr(), token, error) }
        })
        .map(drop)
        .map_err(|failure| Error::Call {
            what: "telling the sampler of a token",
            failure,
        })
    }

    /// Forgets every token it was told of, and starts its random numbers again.
    pub fn reset(&mut self) {
        // SAFETY: the chain lives and is borrowed mutably.
        unsafe { raw::llama_sampler_reset(self.chain.0.as_ptr()) };
    }

    /// The seed in use; `None` for a greedy chain.
    pub fn seed(&self) -> Option<u32> {
        // SAFETY: the chain lives.
        let seed = unsafe { raw::llama_sampler_get_seed(self.chain.0.as_ptr()) };
        (seed != raw::LLAMA_DEFAULT_SEED).then_some(seed)
    }
}

impl SamplerChain {
    fn add(self, sampler: *mut raw::llama_sampler) -> Self {
        // SAFETY: the chain takes ownership of a sampler that was just created.
        unsafe { raw::llama_sampler_chain_add(self.chain.0.as_ptr(), sampler) };
        self
    }

    fn finish(self) -> Sampler {
        Sampler {
            chain: self.chain,
            vocab: self.vocab,
        }
    }

    /// Keeps the `k` likeliest tokens; 0 keeps all.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidParameter`] beyond 2147483647.
    pub fn top_k(self, k: u32) -> Result<Self, Error> {
        let k = i32::try_from(k).map_err(|_| Error::parameter("top_k", k, "at most 2147483647"))?;
        // SAFETY: no preconditions.
        Ok(self.add(unsafe { raw::llama_sampler_init_top_k(k) }))
    }

    /// Keeps the likeliest tokens whose probabilities add up to `p`; 1.0 keeps all.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidParameter`] outside 0.0 to 1.0.
    pub fn top_p(self, p: f32) -> Result<Self, Error> {
        probability("top_p", p)?;
        // SAFETY: no preconditions.
        Ok(self.add(unsafe { raw::llama_sampler_init_top_p(p, 1) }))
    }

    /// Keeps tokens at least `p` times as likely as the likeliest; 0.0 keeps all.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidParameter`] outside 0.0 to 1.0.
    pub fn min_p(self, p: f32) -> Result<Self, Error> {
        probability("min_p", p)?;
        // SAFETY: no preconditions.
        Ok(self.add(unsafe { raw::llama_sampler_init_min_p(p, 1) }))
    }

    /// Locally typical sampling; 1.0 keeps all.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidParameter`] outside 0.0 to 1.0.
    pub fn typical(self, p: f32) -> Result<Self, Error> {
        probability("typical_p", p)?;
        // SAFETY: no preconditions.
        Ok(self.add(unsafe { raw::llama_sampler_init_typical(p, 1) }))
    }

    /// Divides the logits by `temperature`.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidParameter`] for a temperature that is not finite or is negative.
    pub fn temperature(self, temperature: f32) -> Result<Self, Error> {
        if !temperature.is_finite() || temperature < 0.0 {
            return Err(Error::parameter(
                "temp",
                temperature,
                "finite and not negative",
            ));
        }
        // SAFETY: no preconditions.
        Ok(self.add(unsafe { raw::llama_sampler_init_temp(temperature) }))
    }

    /// Makes tokens among the last `last_n` less likely: `repeat` divides their logit (1.0: off), `frequency` is subtracted
    /// per occurrence, `presence` once (0.0: off).
    ///
    /// # Errors
    ///
    /// [`Error::InvalidParameter`] for numbers that are not finite or a `repeat` of 0 or less.
    pub fn penalties(
        self,
        last_n: u32,
        repeat: f32,
        frequency: f32,
        presence: f32,
    ) -> Result<Self, Error> {
        let last_n = i32::try_from(last_n)
            .map_err(|_| Error::parameter("penalty_last_n", last_n, "at most 2147483647 tokens"))?;
        if !repeat.is_finite() || repeat <= 0.0 {
            return Err(Error::parameter(
                "penalty_repeat",
                repeat,
                "finite and above 0; 1 is off",
            ));
        }
        for (name, value) in [("penalty_freq", frequency), ("penalty_present", presence)] {
            if !value.is_finite() {
                return Err(Error::parameter(name, value, "finite; 0 is off"));
            }
        }
        let n_vocab = self.vocab.n_tokens() as i32;
        // SAFETY: the numbers are what include/llama.h asks for.
        Ok(self.add(unsafe {
            raw::llama_sampler_init_penalties(n_vocab, last_n, repeat, frequency, presence)
        }))
    }

    /// Adds to the logits of single tokens.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidParameter`] for a token outside the vocabulary or a bias that is not a number.
    pub fn logit_bias(self, biases: &[(Token, f32)]) -> Result<Self, Error> {
        for &(token, bias) in biases {
            self.vocab.check(token)?;
            if bias.is_nan() {
                return Err(Error::parameter("logit_bias", bias, "a number"));
            }
        }
        let list: Vec<raw::llama_logit_bias> = biases
            .iter()
            .map(|&(token, bias)| raw::llama_logit_bias { token, bias })
            .collect();
        let n_vocab = self.vocab.n_tokens() as i32;
        // SAFETY: the list is copied during the call (llama-sampler.cpp, llama_sampler_init_logit_bias).
        Ok(self.add(unsafe {
            raw::llama_sampler_init_logit_bias(n_vocab, list.len() as i32, list.as_ptr())
        }))
    }

    /// Allows only tokens that continue a text of the GBNF `grammar` from rule `root`.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidParameter`] for a grammar that is empty or holds a NUL byte; [`Error::Call`] for one that does not parse.
    pub fn grammar(self, grammar: &str, root: &str) -> Result<Self, Error> {
        let text = |name, text: &str| {
            CString::new(text).map_err(|_| Error::parameter(name, text, "a text without NUL"))
        };
        if grammar.trim().is_empty() {
            // llama.cpp would silently constrain nothing (llama-sampler.cpp, llama_sampler_init_grammar_impl).
            return Err(Error::parameter(
                "grammar",
                "empty",
                "a grammar with a rule",
            ));
        }
        let (grammar, root) = (text("grammar", grammar)?, text("root", root)?);
        let sampler = shim::accepted(
            // SAFETY: both texts are NUL-terminated and copied; the vocabulary lives as long as the chain.
            |error| unsafe {
                raw::shim_sampler_grammar(
                    self.vocab.as_ptr(),
                    grammar.as_ptr(),
                    root.as_ptr(),
                    error,
                )
            },
            |sampler| !sampler.is_null(),
        )
        .map_err(|failure| Error::Call {
            what: "reading the grammar",
            failure,
        })?;
        Ok(self.add(sampler))
    }

    /// Completes the chain: always the likeliest token.
    ///
    /// # Errors
    ///
    /// None today; a `Result` like every other step.
    pub fn greedy(self) -> Result<Sampler, Error> {
        // SAFETY: no preconditions.
        Ok(self
            .add(unsafe { raw::llama_sampler_init_greedy() })
            .finish())
    }

    /// Completes the chain: a token by chance, as the probabilities say. The same seed gives the same choices.
    ///
    /// # Errors
    ///
    /// None today; a `Result` like every other step.
    pub fn dist(self, seed: u32) -> Result<Sampler, Error> {
        // SAFETY: no preconditions.
        Ok(self
            .add(unsafe { raw::llama_sampler_init_dist(seed) })
            .finish())
    }
}

fn probability(name: &'static str, p: f32) -> Result<(), Error> {
    // NaN is in no range.
    if (0.0..=1.0).contains(&p) {
        Ok(())
    } else {
        Err(Error::parameter(name, p, "0.0 to 1.0"))
    }
}
