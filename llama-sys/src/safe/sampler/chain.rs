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

/// A chain under construction. Samplers are applied in the order in which they are added. The chain is completed by
/// [`greedy`](Self::greedy), [`dist`](Self::dist), [`mirostat`](Self::mirostat), [`mirostat_v2`](Self::mirostat_v2) or
/// [`adaptive_p`](Self::adaptive_p).
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
            // SAFETY: the error slot is valid, and the new chain belongs to us.
            unsafe { raw::shim_sampler_chain(error) }
        })?;
        Ok(Self { chain: Chain(chain), vocab, min_keep: 0, seed: None, depends_on_logits: false, has_grammar: false })
    }

    /// Adds the sampler that `make` returns.
    fn add(self, make: impl FnOnce(*mut raw::shim_error) -> *mut raw::llama_sampler) -> Result<Self, Error> {
        let sampler = made("making a sampler", make)?;
        call::checked(|error| {
            // SAFETY: the sampler was just made. The chain takes ownership of it, or frees it.
            unsafe { raw::shim_sampler_add(self.chain.0.as_ptr(), sampler.as_ptr(), error) }
        })
        .map_err(|failure| Error::Call { what: "adding a sampler", failure })?;
        Ok(self)
    }

    /// Adds a sampler whose parameters are only numbers.
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

    /// Sets a minimum for the filters that are added after this (top-p, min-p, typical and XTC): each leaves at least
    /// `n` tokens. The default is 0, which means one token.
    pub fn min_keep(mut self, n: usize) -> Self {
        self.min_keep = n;
        self
    }

    /// Keeps the `k` likeliest tokens; 0 keeps all.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidParameter`] above 2147483647.
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

    /// Keeps tokens whose logit is at most `n` standard deviations below the highest logit
    /// (<https://arxiv.org/abs/2411.07641>). The standard deviation is that of all logits. 0.0 or less keeps all
    /// tokens.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidParameter`] if `n` is not finite.
    pub fn top_n_sigma(self, n: f32) -> Result<Self, Error> {
        finite("top_n_sigma", n)?;
        self.of_values(raw::SHIM_SAMPLER_KIND_TOP_N_SIGMA, [n, 0.0, 0.0])
    }

    /// Excludes top choices: with probability `chance`, drops the tokens whose probability is at least `threshold`,
    /// except for the least likely of them. A `chance` of 0.0 or a threshold above 0.5 drops none. This sampler has its
    /// own random numbers, which `seed` determines.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidParameter`] outside 0.0 to 1.0, and for the same seed as in [`dist`](Self::dist).
    pub fn xtc(self, chance: f32, threshold: f32, seed: u32) -> Result<Self, Error> {
        probability("xtc_probability", chance)?;
        probability("xtc_threshold", threshold)?;
        let is_on = chance > 0.0 && threshold <= 0.5;
        // If this sampler is off, it draws no random numbers and needs no seed.
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
    /// [`Error::InvalidParameter`] for a temperature that is negative, not finite, or so low that divided logits may be
    /// infinite. The lowest temperature above 0.0 is 0.000001.
    pub fn temperature(self, temperature: f32) -> Result<Self, Error> {
        check_temperature(temperature)?;
        self.of_values(raw::SHIM_SAMPLER_KIND_TEMP, [temperature, 0.0, 0.0])
    }

    /// Divides the logits by a temperature that depends on their entropy: `temperature` - `range` if one token is
    /// certain, `temperature` + `range` if all are equally likely. In between, the temperature rises with the entropy.
    /// To compute it, the entropy is divided by the maximum entropy and raised to the power `exponent`. If the lowest
    /// temperature is below 0.001, 0.001 is used.
    ///
    /// # Errors
    ///
    /// The errors of [`temperature`](Self::temperature); [`Error::InvalidParameter`] for a range or an exponent that is
    /// negative or not finite.
    #[doc(alias = "temp_ext")]
    pub fn dynamic_temperature(self, temperature: f32, range: f32, exponent: f32) -> Result<Self, Error> {
        check_temperature(temperature)?;
        not_negative("dynatemp_range", range)?;
        not_negative("dynatemp_exponent", exponent)?;
        let highest = temperature + range;
        let mut numbers = [temperature, range, exponent];
        if range > 0.0 && temperature - range < MIN_DYNAMIC && highest > MIN_DYNAMIC {
            // The lowest temperature is raised, and the highest is kept.
            let middle = f32::midpoint(highest, MIN_DYNAMIC);
            numbers = [middle, middle - MIN_DYNAMIC, exponent];
        }
        self.of_values(raw::SHIM_SAMPLER_KIND_TEMP_EXT, numbers)
    }

    /// Makes tokens among the last `last_n` less likely. The logit of such a token is divided by `repeat` (1.0: off).
    /// Then `frequency` is subtracted for each time that the token occurs, and `presence` is subtracted once (0.0:
    /// off).
    ///
    /// # Errors
    ///
    /// [`Error::InvalidParameter`] for numbers that are not finite, a `repeat` below 0.000001, and a `frequency` or
    /// `presence` above a million or below minus a million.
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

    /// "Don't repeat yourself" (<https://github.com/oobabooga/text-generation-webui/pull/5677>). If a token would
    /// continue a repetition of `n` tokens, and `n` is at least `allowed_length`, then `multiplier * base ^ (n -
    /// allowed_length)` is subtracted from its logit. Repetitions are searched for among the last `last_n` tokens. A
    /// repetition ends at a sequence breaker. With a multiplier of 0.0 or a `last_n` of 0, this sampler is off.
    ///
    /// This call compares each breaker with every token of the vocabulary, which takes some milliseconds. At most 64
    /// different breakers are allowed (include/llama.h, `LLAMA_DRY_MAX_SEQ_BREAKERS`).
    ///
    /// # Errors
    ///
    /// [`Error::InvalidParameter`] for numbers that are not finite, for a negative multiplier, and for a base below
    /// 1.0, which llama.cpp would read as "off". Also for a breaker that is empty, longer than 40 bytes or contains a
    /// NUL, and for more than 64 different breakers, because llama.cpp would ignore the last ones.
    /// [`Error::NoVocabulary`] for breakers if the model's tokens have no texts.
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

    /// Adds a number to the logit of each listed token. Negative infinity forbids a token, unless no other token is
    /// left.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidParameter`] for a token outside the vocabulary, and for a bias that is NaN, above a million or
    /// below minus a million. Negative infinity is allowed.
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

    /// Allows only tokens with which the text stays a beginning of a text of the GBNF `grammar`, from the rule `root`.
    /// A chain with a grammar keeps the model loaded.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidParameter`] for a grammar that is empty or contains a NUL byte; [`Error::Call`] for a grammar
    /// that cannot be parsed.
    pub fn grammar(mut self, grammar: &str, root: &str) -> Result<Self, Error> {
        if grammar.trim().is_empty() {
            // With an empty grammar, llama.cpp would silently apply no constraint (llama-sampler.cpp,
            // llama_sampler_init_grammar_impl).
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
