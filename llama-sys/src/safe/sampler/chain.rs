//! A sampler chain under construction.

use std::ffi::c_char;
use std::fmt;
use std::ptr::NonNull;

use super::check::{
    MIN_TEMPERATURE, bias, finite, int, last_n as check_last_n, not_negative, probability, sequence_breakers,
    temperature as check_temperature, text,
};
use super::{Candidates, Chain, Sampler};
use crate::raw;
use crate::safe::call::{self, Error};
use crate::safe::model::{Model, Token, Vocab};

/// The lowest dynamic temperature. The temperature depends on a power of the entropy and may approach 0, but logits
/// divided by it must stay finite.
const MIN_DYNAMIC: f32 = 1e-3;

/// A chain under construction. Samplers apply in the order in which they are added; [`greedy`](Self::greedy),
/// [`dist`](Self::dist), [`mirostat`](Self::mirostat), [`mirostat_v2`](Self::mirostat_v2) or
/// [`adaptive_p`](Self::adaptive_p) completes it.
#[must_use = "a chain chooses nothing until it is completed"]
pub struct SamplerChain {
    chain: Chain,
    pub(super) vocab: Vocab,
    min_keep: usize,
    seed: Option<u32>,
    depends_on_logits: bool,
    has_grammar: bool,
}

impl fmt::Debug for SamplerChain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.chain.names()).finish()
    }
}

/// Default parameters of a sampler. Each kind of sampler reads only some of them.
pub(super) const NOTHING: raw::shim_sampler_params = raw::shim_sampler_params {
    kind: raw::SHIM_SAMPLER_KIND_GREEDY,
    count: 0,
    n_vocab: 0,
    seed: 0,
    min_keep: 0,
    values: [0.0; 3],
};

impl SamplerChain {
    pub(super) fn new(model: &Model) -> Result<Self, Error> {
        let vocab = model.vocab();
        if vocab.n_tokens() == 0 {
            return Err(Error::NoVocabulary);
        }
        let chain = made("making a sampler chain", |error| {
            // SAFETY: a valid error slot; the chain is ours.
            unsafe { raw::shim_sampler_chain(error) }
        })?;
        Ok(Self { chain: Chain(chain), vocab, min_keep: 0, seed: None, depends_on_logits: false, has_grammar: false })
    }

    /// Adds the sampler that `make` returns.
    fn add(self, make: impl FnOnce(*mut raw::shim_error) -> *mut raw::llama_sampler) -> Result<Self, Error> {
        let sampler = made("making a sampler", make)?;
        call::checked(|error| {
            // SAFETY: the chain takes ownership of a sampler that was just made, or frees it.
            unsafe { raw::shim_sampler_add(self.chain.0.as_ptr(), sampler.as_ptr(), error) }
        })
        .map_err(|failure| Error::Call { what: "adding a sampler", failure })?;
        Ok(self)
    }

    /// Adds a sampler that is defined by numbers alone.
    pub(super) fn simple(self, params: &raw::shim_sampler_params) -> Result<Self, Error> {
        // SAFETY: valid pointers; no other preconditions.
        self.add(|error| unsafe { raw::shim_sampler_new(params, error) })
    }

    pub(super) fn of_values(self, kind: raw::shim_sampler_kind, values: [f32; 3]) -> Result<Self, Error> {
        let min_keep = self.min_keep;
        self.simple(&raw::shim_sampler_params { kind, min_keep, values, ..NOTHING })
    }

    pub(super) fn finish(self) -> Sampler {
        Sampler {
            chain: self.chain,
            n_tokens: self.vocab.n_tokens(),
            seed: self.seed,
            depends_on_logits: self.depends_on_logits,
            _vocab: self.has_grammar.then_some(self.vocab),
            allowed: Candidates::default(),
        }
    }

    /// Records the seed from which the next sampler draws its random numbers.
    pub(super) fn seeded(mut self, seed: u32) -> Result<Self, Error> {
        if seed == raw::LLAMA_DEFAULT_SEED {
            return Err(Error::parameter(
                "seed",
                seed,
                "it must be 0 to 4294967294; for this number llama.cpp draws a seed of its own",
            ));
        }
        self.seed = Some(seed);
        Ok(self)
    }

    pub(super) fn depending_on_logits(mut self) -> Self {
        self.depends_on_logits = true;
        self
    }

    /// Makes the filters that are added after this (top-p, min-p, typical and XTC) leave at least `n` tokens. The
    /// default 0 means one token.
    pub fn min_keep(mut self, n: usize) -> Self {
        self.min_keep = n;
        self
    }

    /// Keeps the `k` likeliest tokens; 0 keeps all.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidParameter`] beyond 2147483647.
    pub fn top_k(self, k: u32) -> Result<Self, Error> {
        let count = int("top_k", k)?;
        self.simple(&raw::shim_sampler_params { kind: raw::SHIM_SAMPLER_KIND_TOP_K, count, ..NOTHING })
    }

    /// Keeps the likeliest tokens whose probabilities add up to `p`; 1.0 keeps all.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidParameter`] outside 0.0 to 1.0.
    pub fn top_p(self, p: f32) -> Result<Self, Error> {
        probability("top_p", p)?;
        self.of_values(raw::SHIM_SAMPLER_KIND_TOP_P, [p, 0.0, 0.0])
    }

    /// Keeps tokens at least `p` times as likely as the likeliest; 0.0 keeps all.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidParameter`] outside 0.0 to 1.0.
    pub fn min_p(self, p: f32) -> Result<Self, Error> {
        probability("min_p", p)?;
        self.of_values(raw::SHIM_SAMPLER_KIND_MIN_P, [p, 0.0, 0.0])
    }

    /// Locally typical sampling (<https://arxiv.org/abs/2202.00666>): keeps the tokens whose surprise is closest to the
    /// expected one and whose probabilities add up to `p`; 1.0 keeps all.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidParameter`] outside 0.0 to 1.0.
    pub fn typical(self, p: f32) -> Result<Self, Error> {
        probability("typical_p", p)?;
        self.of_values(raw::SHIM_SAMPLER_KIND_TYPICAL, [p, 0.0, 0.0])
    }

    /// Keeps tokens whose logit is at most `n` standard deviations of all logits below the highest
    /// (<https://arxiv.org/abs/2411.07641>); 0.0 or less keeps all.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidParameter`] if `n` is not finite.
    pub fn top_n_sigma(self, n: f32) -> Result<Self, Error> {
        finite("top_n_sigma", n)?;
        self.of_values(raw::SHIM_SAMPLER_KIND_TOP_N_SIGMA, [n, 0.0, 0.0])
    }

    /// Excludes top choices: with probability `chance`, drops all tokens whose probability is at least `threshold`,
    /// except the least likely of them. A `chance` of 0.0 or a threshold above 0.5 drops none. It draws from separate
    /// random numbers, by `seed`.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidParameter`] outside 0.0 to 1.0, and for the seed as [`dist`](Self::dist).
    pub fn xtc(self, chance: f32, threshold: f32, seed: u32) -> Result<Self, Error> {
        probability("xtc_probability", chance)?;
        probability("xtc_threshold", threshold)?;
        let is_on = chance > 0.0 && threshold <= 0.5;
        // A sampler that is off draws no random numbers, so it needs no seed.
        let chain = match is_on {
            true => self.seeded(seed)?.depending_on_logits(),
            false => self,
        };
        let min_keep = chain.min_keep;
        chain.simple(&raw::shim_sampler_params {
            kind: raw::SHIM_SAMPLER_KIND_XTC,
            seed,
            min_keep,
            values: [chance, threshold, 0.0],
            ..NOTHING
        })
    }

    /// Divides the logits by `temperature`; 0.0 keeps only the likeliest token.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidParameter`] for a temperature that is not finite, is negative, or is so low that logits divided
    /// by it may be infinite: 0.000001 is the lowest besides 0.0.
    pub fn temperature(self, temperature: f32) -> Result<Self, Error> {
        check_temperature(temperature)?;
        self.of_values(raw::SHIM_SAMPLER_KIND_TEMP, [temperature, 0.0, 0.0])
    }

    /// Divides the logits by a temperature that depends on their entropy: `temperature` - `range` if one token is
    /// certain, `temperature` + `range` if all are equally likely. In between, the temperature rises with the entropy,
    /// taken as a share of the maximum entropy and raised to the power `exponent`. A lowest temperature below 0.001 is
    /// raised to 0.001.
    ///
    /// # Errors
    ///
    /// As [`temperature`](Self::temperature); [`Error::InvalidParameter`] for a range or an exponent that is not finite
    /// or is negative.
    #[doc(alias = "temp_ext")]
    pub fn dynamic_temperature(self, temperature: f32, range: f32, exponent: f32) -> Result<Self, Error> {
        check_temperature(temperature)?;
        not_negative("dynatemp_range", range)?;
        not_negative("dynatemp_exponent", exponent)?;
        let highest = temperature + range;
        let mut numbers = [temperature, range, exponent];
        if range > 0.0 && temperature - range < MIN_DYNAMIC && highest > MIN_DYNAMIC {
            // Raises the lowest temperature and keeps the highest.
            let middle = f32::midpoint(highest, MIN_DYNAMIC);
            numbers = [middle, middle - MIN_DYNAMIC, exponent];
        }
        self.of_values(raw::SHIM_SAMPLER_KIND_TEMP_EXT, numbers)
    }

    /// Makes tokens among the last `last_n` less likely. Their logit is divided by `repeat` (1.0: off). Then
    /// `frequency` is subtracted for each occurrence, and `presence` once (0.0: off).
    ///
    /// # Errors
    ///
    /// [`Error::InvalidParameter`] for numbers that are not finite, a `repeat` below 0.000001, a `frequency` or
    /// `presence` beyond a million either way.
    pub fn penalties(self, last_n: u32, repeat: f32, frequency: f32, presence: f32) -> Result<Self, Error> {
        let last_n = check_last_n("penalty_last_n", last_n)?;
        if !repeat.is_finite() || repeat < MIN_TEMPERATURE {
            return Err(Error::parameter("penalty_repeat", repeat, "it must be finite and above 0; 1 turns it off"));
        }
        bias("penalty_freq", frequency)?;
        bias("penalty_present", presence)?;
        let n_vocab = self.vocab.n_tokens() as i32;
        // SAFETY: the numbers satisfy include/llama.h.
        self.add(|error| unsafe { raw::shim_sampler_penalties(n_vocab, last_n, repeat, frequency, presence, error) })
    }

    /// "Don't repeat yourself" (<https://github.com/oobabooga/text-generation-webui/pull/5677>): a token that would
    /// continue a repetition of `n` tokens, with `n` at least `allowed_length`, has `multiplier * base ^ (n -
    /// allowed_length)` subtracted from its logit. Repetitions are searched among the last `last_n` tokens and do not
    /// reach over a sequence breaker. A multiplier of 0.0 or a `last_n` of 0 turns it off.
    ///
    /// Each breaker is compared with every token of the vocabulary here, which takes some milliseconds. There may be 64
    /// different ones (include/llama.h, `LLAMA_DRY_MAX_SEQ_BREAKERS`).
    ///
    /// # Errors
    ///
    /// [`Error::InvalidParameter`] for numbers that are not finite, for a negative multiplier, for a base below 1.0,
    /// which llama.cpp would take as "off", for a breaker that is empty, longer than 40 bytes or contains a NUL, and
    /// for more than 64 different breakers, because llama.cpp would ignore the last ones; [`Error::NoVocabulary`] for
    /// breakers with a model whose tokens have no texts.
    pub fn dry(
        self,
        multiplier: f32,
        base: f32,
        allowed_length: u32,
        last_n: u32,
        breakers: &[impl AsRef<str>],
    ) -> Result<Self, Error> {
        not_negative("dry_multiplier", multiplier)?;
        finite("dry_base", base)?;
        if base < 1.0 {
            return Err(Error::parameter("dry_base", base, "it must be at least 1.0"));
        }
        let allowed_length = int("dry_allowed_length", allowed_length)?;
        let last_n = check_last_n("dry_penalty_last_n", last_n)?;
        let breakers = sequence_breakers(breakers)?;
        if !breakers.is_empty() && !self.vocab.has_tokenizer() {
            return Err(Error::NoVocabulary);
        }
        let mut pointers: Vec<*const c_char> = breakers.iter().map(|breaker| breaker.as_ptr()).collect();
        let vocab = self.vocab.as_ptr();
        self.add(|error| {
            // SAFETY: the texts are NUL-terminated; they and the vocabulary are read only during the call
            // (llama_sampler_init_dry).
            unsafe {
                raw::shim_sampler_dry(
                    vocab,
                    multiplier,
                    base,
                    allowed_length,
                    last_n,
                    pointers.as_mut_ptr(),
                    pointers.len(),
                    error,
                )
            }
        })
    }

    /// Adds to the logits of single tokens. Negative infinity forbids a token as long as another is left.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidParameter`] for a token outside the vocabulary, and for a bias that is NaN or beyond a million
    /// either way; negative infinity is allowed.
    pub fn logit_bias(self, biases: &[(Token, f32)]) -> Result<Self, Error> {
        for &(token, value) in biases {
            self.vocab.check(token)?;
            if value != f32::NEG_INFINITY {
                bias("logit_bias", value)?;
            }
        }
        let list: Vec<raw::llama_logit_bias> =
            biases.iter().map(|&(token, bias)| raw::llama_logit_bias { token, bias }).collect();
        let n_vocab = self.vocab.n_tokens() as i32;
        // SAFETY: the list is copied during the call (llama-sampler.cpp, llama_sampler_init_logit_bias).
        self.add(|error| unsafe { raw::shim_sampler_logit_bias(n_vocab, list.len() as i32, list.as_ptr(), error) })
    }

    /// Allows only tokens that continue a text of the GBNF `grammar` from rule `root`. A chain with a grammar keeps the
    /// model loaded.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidParameter`] for a grammar that is empty or holds a NUL byte; [`Error::Call`] for one
    /// that does not parse.
    pub fn grammar(mut self, grammar: &str, root: &str) -> Result<Self, Error> {
        if grammar.trim().is_empty() {
            // llama.cpp would silently apply no constraint (llama-sampler.cpp, llama_sampler_init_grammar_impl).
            return Err(Error::parameter("grammar", "empty", "a grammar must have a rule"));
        }
        let (grammar, root) = (text("grammar", grammar)?, text("root", root)?);
        let vocab = self.vocab.as_ptr();
        self.has_grammar = true;
        self.add(|error| {
            // SAFETY: both texts are NUL-terminated and copied; the sampler keeps the vocabulary as long as it lives.
            unsafe { raw::shim_sampler_grammar(vocab, grammar.as_ptr(), root.as_ptr(), error) }
        })
    }
}

/// The object that the shim created, or the reason why it created none.
fn made(
    what: &'static str,
    make: impl FnOnce(*mut raw::shim_error) -> *mut raw::llama_sampler,
) -> Result<NonNull<raw::llama_sampler>, Error> {
    call::accepted(make, |sampler| !sampler.is_null())
        .map(|sampler| NonNull::new(sampler).expect("accepted above"))
        .map_err(|failure| Error::Call { what, failure })
}
