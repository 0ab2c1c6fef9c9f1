//! llama.cpp's sampler chain, which chooses a token from logits.

mod candidates;
mod chain;
mod check;
mod last;

pub use candidates::{Candidate, Candidates};
pub use chain::SamplerChain;

use std::fmt;
use std::ptr::NonNull;

use crate::raw;
use crate::safe::call::text::owned;
use crate::safe::call::{self, Error};
use crate::safe::context::Context;
use crate::safe::model::{Model, Token, Vocab, check_token};

/// A complete chain, whose last sampler chooses a token.
///
/// A sampler copies the facts that it needs about the model, and does not keep the model loaded. So after the model was
/// loaded again, the same sampler can continue if the vocabulary is the same. Only a [grammar](SamplerChain::grammar)
/// keeps the model loaded.
pub struct Sampler {
    chain: Chain,
    n_tokens: u32,
    seed: Option<u32>,
    depends_on_logits: bool,
    /// The vocabulary, if the chain has a grammar: the grammar reads the tokens' texts.
    _vocab: Option<Vocab>,
    /// A list that is filled again for each mask, with the tokens that the mask allows.
    allowed: Candidates,
}

struct Chain(NonNull<raw::llama_sampler>);

// SAFETY: a sampler is plain data that belongs to no thread; it is used only through `&mut`.
unsafe impl Send for Chain {}

impl Drop for Chain {
    fn drop(&mut self) {
        // SAFETY: llama_sampler_chain_init made the chain. It is freed once, together with its samplers.
        unsafe { raw::llama_sampler_free(self.0.as_ptr()) };
    }
}

impl fmt::Debug for Sampler {
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
                    owned(raw::llama_sampler_name(sampler))
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
        SamplerChain::new(model)
    }

    /// Chooses a token from the logits of token `index` of the last batch (-1: the last output), and accepts the
    /// choice.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidParameter`] for an index without logits or a context of another vocabulary; [`Error::Poisoned`];
    /// [`Error::Call`].
    pub fn sample(&mut self, context: &mut Context, index: i32) -> Result<Token, Error> {
        context.check_output(index)?;
        self.check_vocabulary("context", context.vocab().n_tokens())?;
        call::quick(|error| {
            // SAFETY: chain and context live and are borrowed mutably; `index` has logits; the last sampler of the
            // chain selects a token, as llama_sampler_sample asserts.
            unsafe { raw::shim_sampler_sample(self.chain.0.as_ptr(), context.as_ptr(), index, error) }
        })
        .map_err(|failure| Error::Call { what: "sampling", failure })
    }

    /// As [`sample`](Self::sample), but only among the tokens that `mask` allows: bit `t % 32` of word `t / 32` is set
    /// if token `t` may be chosen. Tokens whose words are missing are not allowed. Bits beyond the vocabulary are
    /// ignored.
    ///
    /// # Errors
    ///
    /// The errors of [`sample`](Self::sample); [`Error::NoCandidates`] for a mask that allows no token.
    pub fn sample_masked(&mut self, context: &mut Context, index: i32, mask: &[u32]) -> Result<Token, Error> {
        let mut allowed = std::mem::take(&mut self.allowed);
        let chosen = allowed.fill_masked(context, index, mask).and_then(|()| self.apply(&mut allowed));
        self.allowed = allowed;
        let token = chosen?;
        self.accept(token)?;
        Ok(token)
    }

    /// Filters and sorts the candidates, and chooses one of them. The choice is not accepted: pass it to
    /// [`accept`](Self::accept). Together, [`Candidates::fill`], `apply` and `accept` do the same as
    /// [`sample`](Self::sample).
    ///
    /// # Errors
    ///
    /// [`Error::NoCandidates`] without candidates; [`Error::InvalidParameter`] for candidates of another vocabulary;
    /// [`Error::Call`].
    pub fn apply(&mut self, candidates: &mut Candidates) -> Result<Token, Error> {
        self.check_vocabulary("candidates", candidates.n_tokens())?;
        if candidates.is_empty() {
            return Err(Error::NoCandidates { n_tokens: candidates.n_tokens() });
        }
        let chain = self.chain.0.as_ptr();
        let applied = candidates.lend(|array| {
            // SAFETY: the chain lives and is borrowed mutably; the array is valid during the call, is not empty and
            // holds tokens of the chain's vocabulary.
            call::quick(|error| unsafe { raw::shim_sampler_apply(chain, array, error) })
        });
        applied.map_err(|failure| Error::Call { what: "sampling", failure }).and_then(|_| {
            let selected = candidates.selected().map(Candidate::token);
            // A choice always exists, because the last sampler of a chain selects a token.
            selected.ok_or(Error::NoCandidates { n_tokens: self.n_tokens })
        })
    }

    /// Accepts a token that the chain did not choose, such as a token of the prompt. Penalties then count it.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidParameter`] for a token outside the vocabulary; [`Error::Call`].
    pub fn accept(&mut self, token: Token) -> Result<(), Error> {
        check_token(token, self.n_tokens)?;
        call::quick(|error| {
            // SAFETY: the chain lives and is borrowed mutably.
            unsafe { raw::shim_sampler_accept(self.chain.0.as_ptr(), token, error) }
        })
        .map(drop)
        .map_err(|failure| Error::Call { what: "accepting a token", failure })
    }

    /// Whether a choice changes state in a way that depends on the logits. Mirostat and adaptive-p have running means,
    /// and in mirostat and XTC the logits decide how many random numbers are drawn. With such a chain, choices cannot
    /// be [skipped](Self::skip). Repeat the choices then: [`apply`](Self::apply) the chain to the same candidates, and
    /// [`accept`](Self::accept) each choice.
    pub fn depends_on_logits(&self) -> bool {
        self.depends_on_logits
    }

    /// Draws the random numbers of `n` choices without choosing. With this, a generation that continues in another
    /// process makes the same choices as in the first process. Penalties need the chosen tokens too: pass them to
    /// [`accept`](Self::accept).
    ///
    /// If a chain does not [depend on the logits](Self::depends_on_logits), each of its samplers draws at most one
    /// number per choice, whatever the number of candidates (llama-sampler.cpp, `llama_sampler_dist_apply`).
    ///
    /// # Errors
    ///
    /// [`Error::InvalidParameter`] for a chain that depends on the logits, unless `n` is 0; [`Error::Call`].
    pub fn skip(&mut self, n: usize) -> Result<(), Error> {
        if self.depends_on_logits && n > 0 {
            return Err(Error::parameter(
                "skip",
                n,
                "the random numbers that this chain draws depend on the logits: repeat the choices instead",
            ));
        }
        call::quick(|error| {
            // SAFETY: the chain lives and is borrowed mutably.
            unsafe { raw::shim_sampler_skip(self.chain.0.as_ptr(), n, error) }
        })
        .map(drop)
        .map_err(|failure| Error::Call { what: "skipping choices of the sampler", failure })
    }

    /// The seed in use; `None` for a chain without random choices.
    pub fn seed(&self) -> Option<u32> {
        self.seed
    }

    fn check_vocabulary(&self, name: &'static str, n_tokens: u32) -> Result<(), Error> {
        if n_tokens == self.n_tokens {
            return Ok(());
        }
        Err(Error::parameter(
            name,
            format!("{n_tokens} tokens"),
            format!("the sampler was made for a vocabulary of {} tokens", self.n_tokens),
        ))
    }
}
