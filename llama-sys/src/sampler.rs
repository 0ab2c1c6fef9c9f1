//! From logits to a token: llama.cpp's sampler chain.

use std::ffi::CString;
use std::fmt;
use std::ptr::NonNull;

use crate::context::Context;
use crate::error::Error;
use crate::model::Model;
use crate::vocab::{Token, Vocab};
use crate::{raw, shim};

/// More tokens than any context holds today.
const MAX_LAST_N: u32 = 1 << 24;

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
        let chain = made("making a sampler chain", |error| {
            // SAFETY: a valid error slot; the chain is ours.
            unsafe { raw::shim_sampler_chain(error) }
        })?;
        Ok(SamplerChain {
            chain: Chain(chain),
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
        let n_vocab = context.vocab().n_tokens();
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

    /// Draws the random numbers that `n` choices draw, and chooses nothing: a generation that goes on in another process then
    /// chooses as the first would have. What the chosen tokens were is told with [`accept`](Self::accept).
    ///
    /// Every sampler of [`SamplerChain`] draws at most one number per choice, however many candidates there are
    /// (llama-sampler.cpp, `llama_sampler_dist_apply`).
    ///
    /// # Errors
    ///
    /// [`Error::Call`].
    pub fn skip(&mut self, n: usize) -> Result<(), Error> {
        shim::quick(|error| {
            // SAFETY: the chain lives and is borrowed mutably.
            unsafe { raw::shim_sampler_skip(self.chain.0.as_ptr(), n, error) }
        })
        .map(drop)
        .map_err(|failure| Error::Call {
            what: "skipping choices of the sampler",
            failure,
        })
    }

    /// Forgets every token it was told of, and starts its random numbers again.
    ///
    /// # Errors
    ///
    /// [`Error::Call`].
    pub fn reset(&mut self) -> Result<(), Error> {
        shim::checked(|error| {
            // SAFETY: the chain lives and is borrowed mutably.
            unsafe { raw::shim_sampler_reset(self.chain.0.as_ptr(), error) }
        })
        .map(drop)
        .map_err(|failure| Error::Call {
            what: "resetting the sampler",
            failure,
        })
    }

    /// The seed in use; `None` for a greedy chain.
    pub fn seed(&self) -> Option<u32> {
        // SAFETY: the chain lives.
        let seed = unsafe { raw::llama_sampler_get_seed(self.chain.0.as_ptr()) };
        (seed != raw::LLAMA_DEFAULT_SEED).then_some(seed)
    }
}

impl SamplerChain {
    /// Adds what `make` makes.
    fn add(
        self,
        make: impl FnOnce(*mut raw::shim_error) -> *mut raw::llama_sampler,
    ) -> Result<Self, Error> {
        let sampler = made("making a sampler", make)?;
        shim::checked(|error| {
            // SAFETY: the chain takes ownership of a sampler that was just made, or frees it.
            unsafe { raw::shim_sampler_add(self.chain.0.as_ptr(), sampler.as_ptr(), error) }
        })
        .map_err(|failure| Error::Call {
            what: "adding a sampler",
            failure,
        })?;
        Ok(self)
    }

    /// Adds a sampler with at most one number.
    fn simple(
        self,
        kind: raw::shim_sampler_kind,
        count: i32,
        value: f32,
        seed: u32,
    ) -> Result<Self, Error> {
        // SAFETY: a valid error slot; no other preconditions.
        self.add(|error| unsafe { raw::shim_sampler_new(kind, count, value, seed, error) })
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
        self.simple(raw::SHIM_SAMPLER_KIND_TOP_K, k, 0.0, 0)
    }

    /// Keeps the likeliest tokens whose probabilities add up to `p`; 1.0 keeps all.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidParameter`] outside 0.0 to 1.0.
    pub fn top_p(self, p: f32) -> Result<Self, Error> {
        probability("top_p", p)?;
        self.simple(raw::SHIM_SAMPLER_KIND_TOP_P, 0, p, 0)
    }

    /// Keeps tokens at least `p` times as likely as the likeliest; 0.0 keeps all.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidParameter`] outside 0.0 to 1.0.
    pub fn min_p(self, p: f32) -> Result<Self, Error> {
        probability("min_p", p)?;
        self.simple(raw::SHIM_SAMPLER_KIND_MIN_P, 0, p, 0)
    }

    /// Locally typical sampling; 1.0 keeps all.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidParameter`] outside 0.0 to 1.0.
    pub fn typical(self, p: f32) -> Result<Self, Error> {
        probability("typical_p", p)?;
        self.simple(raw::SHIM_SAMPLER_KIND_TYPICAL, 0, p, 0)
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
        self.simple(raw::SHIM_SAMPLER_KIND_TEMP, 0, temperature, 0)
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
        // llama.cpp sets aside room for all of them at once.
        if last_n > MAX_LAST_N {
            return Err(Error::parameter(
                "penalty_last_n",
                last_n,
                format!("at most {MAX_LAST_N} tokens"),
            ));
        }
        let last_n = last_n as i32;
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
        self.add(|error| unsafe {
            raw::shim_sampler_penalties(n_vocab, last_n, repeat, frequency, presence, error)
        })
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
        self.add(|error| unsafe {
            raw::shim_sampler_logit_bias(n_vocab, list.len() as i32, list.as_ptr(), error)
        })
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
        let vocab = self.vocab.as_ptr();
        self.add(|error| {
            // SAFETY: both texts are NUL-terminated and copied; the vocabulary lives as long as the chain.
            unsafe { raw::shim_sampler_grammar(vocab, grammar.as_ptr(), root.as_ptr(), error) }
        })
    }

    /// Completes the chain: always the likeliest token.
    ///
    /// # Errors
    ///
    /// [`Error::Call`].
    pub fn greedy(self) -> Result<Sampler, Error> {
        self.simple(raw::SHIM_SAMPLER_KIND_GREEDY, 0, 0.0, 0)
            .map(Self::finish)
    }

    /// Completes the chain: a token by chance, as the probabilities say. The same seed gives the same choices.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidParameter`] for 4294967295, by which llama.cpp means "draw one" (`LLAMA_DEFAULT_SEED`).
    pub fn dist(self, seed: u32) -> Result<Sampler, Error> {
        if seed == raw::LLAMA_DEFAULT_SEED {
            return Err(Error::parameter(
                "seed",
                seed,
                "0 to 4294967294: llama.cpp would draw a seed of its own",
            ));
        }
        self.simple(raw::SHIM_SAMPLER_KIND_DIST, 0, 0.0, seed)
            .map(Self::finish)
    }
}

/// What the shim made, or why not.
fn made(
    what: &'static str,
    make: impl FnOnce(*mut raw::shim_error) -> *mut raw::llama_sampler,
) -> Result<NonNull<raw::llama_sampler>, Error> {
    shim::accepted(make, |sampler| !sampler.is_null())
        .map(|sampler| NonNull::new(sampler).expect("accepted above"))
        .map_err(|failure| Error::Call { what, failure })
}

fn probability(name: &'static str, p: f32) -> Result<(), Error> {
    // NaN is in no range.
    if (0.0..=1.0).contains(&p) {
        Ok(())
    } else {
        Err(Error::parameter(name, p, "0.0 to 1.0"))
    }
}
