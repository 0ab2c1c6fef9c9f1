//! A sampler chain being put together: every number that llama.cpp would misbehave with is refused here.

use std::ffi::{CString, c_char};
use std::fmt;
use std::ptr::NonNull;

use super::{Candidates, Chain, Sampler};
use crate::error::Error;
use crate::model::Model;
use crate::vocab::{Token, Vocab};
use crate::{raw, shim};

/// More tokens than any context holds today.
const MAX_LAST_N: u32 = 1 << 24;

/// What may be added to a logit. llama.cpp sorts by whole numbers of 6.4 times the logit (llama-sampler.cpp,
/// llama_token_data_array_partial_sort), which have to be far from the end of an `int`.
const MAX_BIAS: f32 = 1e6;

/// Logits divided by less have the same trouble, or are infinite.
const MIN_TEMPERATURE: f32 = 1e-6;

/// The same for what a dynamic temperature may go down to: it is raised to a power before that.
const MIN_DYNAMIC: f32 = 1e-3;

/// Bytes of a sequence breaker, of which llama.cpp silently drops what is beyond (llama_sampler_init_dry).
const MAX_BREAKER: usize = 40;

/// A chain being put together. Samplers apply in the order in which they are added; [`greedy`](Self::greedy), [`dist`](Self::dist),
/// [`mirostat`](Self::mirostat), [`mirostat_v2`](Self::mirostat_v2) or [`adaptive_p`](Self::adaptive_p) completes it.
#[must_use = "a chain chooses nothing until it is completed"]
pub struct SamplerChain {
    chain: Chain,
    vocab: Vocab,
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

/// Numbers of a sampler; each kind reads its own.
const NOTHING: raw::shim_sampler_params = raw::shim_sampler_params {
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
        Ok(Self {
            chain: Chain(chain),
            vocab,
            min_keep: 0,
            seed: None,
            depends_on_logits: false,
            has_grammar: false,
        })
    }

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

    /// Adds a sampler that is made of numbers.
    fn simple(self, params: &raw::shim_sampler_params) -> Result<Self, Error> {
        // SAFETY: valid pointers; no other preconditions.
        self.add(|error| unsafe { raw::shim_sampler_new(params, error) })
    }

    fn of_values<const N: usize>(
        self,
        kind: raw::shim_sampler_kind,
        numbers: [f32; N],
    ) -> Result<Self, Error> {
        let mut values = [0.0; 3];
        values[..N].copy_from_slice(&numbers);
        let min_keep = self.min_keep;
        self.simple(&raw::shim_sampler_params {
            kind,
            min_keep,
            values,
            ..NOTHING
        })
    }

    fn finish(self) -> Sampler {
        Sampler {
            chain: self.chain,
            n_tokens: self.vocab.n_tokens(),
            seed: self.seed,
            depends_on_logits: self.depends_on_logits,
            _vocab: self.has_grammar.then_some(self.vocab),
            allowed: Candidates::default(),
        }
    }

    /// Takes note of a seed, of which the sampler to come draws its numbers.
    fn seeded(mut self, seed: u32) -> Result<Self, Error> {
        if seed == raw::LLAMA_DEFAULT_SEED {
            return Err(Error::parameter(
                "seed",
                seed,
                "0 to 4294967294: llama.cpp would draw a seed of its own",
            ));
        }
        self.seed = Some(seed);
        Ok(self)
    }

    fn depending_on_logits(mut self) -> Self {
        self.depends_on_logits = true;
        self
    }

    /// Has the filters that are added after this, of top-p, min-p, typical and XTC, leave at least `n` tokens. Default: 0, which is one.
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
        self.simple(&raw::shim_sampler_params {
            kind: raw::SHIM_SAMPLER_KIND_TOP_K,
            count,
            ..NOTHING
        })
    }

    /// Keeps the likeliest tokens whose probabilities add up to `p`; 1.0 keeps all.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidParameter`] outside 0.0 to 1.0.
    pub fn top_p(self, p: f32) -> Result<Self, Error> {
        probability("top_p", p)?;
        self.of_values(raw::SHIM_SAMPLER_KIND_TOP_P, [p])
    }

    /// Keeps tokens at least `p` times as likely as the likeliest; 0.0 keeps all.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidParameter`] outside 0.0 to 1.0.
    pub fn min_p(self, p: f32) -> Result<Self, Error> {
        probability("min_p", p)?;
        self.of_values(raw::SHIM_SAMPLER_KIND_MIN_P, [p])
    }

    /// Locally typical sampling (<https://arxiv.org/abs/2202.00666>): keeps the tokens whose surprise is closest to the expected one
    /// and whose probabilities add up to `p`; 1.0 keeps all.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidParameter`] outside 0.0 to 1.0.
    pub fn typical(self, p: f32) -> Result<Self, Error> {
        probability("typical_p", p)?;
        self.of_values(raw::SHIM_SAMPLER_KIND_TYPICAL, [p])
    }

    /// Keeps tokens whose logit is at most `n` standard deviations of all logits below the highest
    /// (<https://arxiv.org/abs/2411.07641>); 0.0 or less keeps all.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidParameter`] for what is not finite.
    pub fn top_n_sigma(self, n: f32) -> Result<Self, Error> {
        finite("top_n_sigma", n)?;
        self.of_values(raw::SHIM_SAMPLER_KIND_TOP_N_SIGMA, [n])
    }

    /// Excludes top choices: with this probability, drops all tokens that are at least `threshold` likely but the least likely of them.
    /// A probability of 0.0 or a threshold above 0.5 drops none. Draws from numbers of its own, by `seed`.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidParameter`] outside 0.0 to 1.0, and for the seed as [`dist`](Self::dist).
    pub fn xtc(self, chance: f32, threshold: f32, seed: u32) -> Result<Self, Error> {
        probability("xtc_probability", chance)?;
        probability("xtc_threshold", threshold)?;
        let is_on = chance > 0.0 && threshold <= 0.5;
        // One that is off draws nothing.
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

    /// Divides the logits by `temperature`; 0.0 keeps the likeliest token alone.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidParameter`] for a temperature that is not finite, is negative, or is so low that logits divided by it may be
    /// infinite: 0.000001 is the lowest besides 0.0.
    pub fn temperature(self, temperature: f32) -> Result<Self, Error> {
        check_temperature(temperature)?;
        self.of_values(raw::SHIM_SAMPLER_KIND_TEMP, [temperature])
    }

    /// Divides the logits by a temperature that depends on their entropy: between `temperature` - `range` where one token is certain and
    /// `temperature` + `range` where all are as likely, as entropy over the greatest possible one, raised to `exponent`, goes from 0 to
    /// 1. With a range of 0.0 it is [`temperature`](Self::temperature). A lowest temperature below 0.001 is taken for 0.001.
    ///
    /// # Errors
    ///
    /// As [`temperature`](Self::temperature); [`Error::InvalidParameter`] for a range or an exponent that is not finite or is negative.
    #[doc(alias = "temp_ext")]
    pub fn dynamic_temperature(
        self,
        temperature: f32,
        range: f32,
        exponent: f32,
    ) -> Result<Self, Error> {
        check_temperature(temperature)?;
        not_negative("dynatemp_range", range)?;
        not_negative("dynatemp_exponent", exponent)?;
        let highest = temperature + range;
        let mut numbers = [temperature, range, exponent];
        if range > 0.0 && temperature - range < MIN_DYNAMIC && highest > MIN_DYNAMIC {
            // The same highest one around another middle.
            let middle = f32::midpoint(highest, MIN_DYNAMIC);
            numbers = [middle, middle - MIN_DYNAMIC, exponent];
        }
        self.of_values(raw::SHIM_SAMPLER_KIND_TEMP_EXT, numbers)
    }

    /// Makes tokens among the last `last_n` less likely: `repeat` divides their logit (1.0: off), `frequency` is subtracted
    /// per occurrence, `presence` once (0.0: off).
    ///
    /// # Errors
    ///
    /// [`Error::InvalidParameter`] for numbers that are not finite, a `repeat` below 0.000001, a `frequency` or `presence` beyond a
    /// million either way.
    pub fn penalties(
        self,
        last_n: u32,
        repeat: f32,
        frequency: f32,
        presence: f32,
    ) -> Result<Self, Error> {
        let last_n = check_last_n("penalty_last_n", last_n)?;
        if !repeat.is_finite() || repeat < MIN_TEMPERATURE {
            return Err(Error::parameter(
                "penalty_repeat",
                repeat,
                "finite and above 0; 1 is off",
            ));
        }
        bias("penalty_freq", frequency)?;
        bias("penalty_present", presence)?;
        let n_vocab = self.vocab.n_tokens() as i32;
        // SAFETY: the numbers are what include/llama.h asks for.
        self.add(|error| unsafe {
            raw::shim_sampler_penalties(n_vocab, last_n, repeat, frequency, presence, error)
        })
    }

    /// "Don't repeat yourself" (<https://github.com/oobabooga/text-generation-webui/pull/5677>): a token that would go on with a
    /// repetition of `n` tokens, with `n` at least `allowed_length`, has `multiplier * base ^ (n - allowed_length)` subtracted from its
    /// logit. Repetitions are looked for among the last `last_n` tokens and do not reach over a sequence breaker. A multiplier of 0.0 or
    /// a `last_n` of 0 is off.
    ///
    /// Every breaker is compared with every token of the vocabulary here: some milliseconds each.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidParameter`] for numbers that are not finite, a negative multiplier, a base below 1.0, which llama.cpp would take
    /// for "off", and a breaker that is empty, has over 40 bytes or a NUL; [`Error::NoVocabulary`] for breakers and a model that knows no texts.
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
            return Err(Error::parameter("dry_base", base, "at least 1.0"));
        }
        let allowed_length = int("dry_allowed_length", allowed_length)?;
        let last_n = check_last_n("dry_penalty_last_n", last_n)?;
        let breakers = breakers
            .iter()
            .map(|breaker| check_breaker(breaker.as_ref()));
        let breakers = breakers.collect::<Result<Vec<CString>, Error>>()?;
        if !breakers.is_empty() && !self.vocab.has_tokenizer() {
            return Err(Error::NoVocabulary);
        }
        let mut pointers: Vec<*const c_char> = breakers.iter().map(|it| it.as_ptr()).collect();
        let vocab = self.vocab.as_ptr();
        self.add(|error| {
            // SAFETY: the texts are NUL-terminated, and read during the call alone, as is the vocabulary (llama_sampler_init_dry).
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

    /// Adds to the logits of single tokens. Negative infinity forbids a token, as long as another is left.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidParameter`] for a token outside the vocabulary or a bias that is not a number or, but for negative infinity,
    /// beyond a million either way.
    pub fn logit_bias(self, biases: &[(Token, f32)]) -> Result<Self, Error> {
        for &(token, value) in biases {
            self.vocab.check(token)?;
            if value != f32::NEG_INFINITY {
                bias("logit_bias", value)?;
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

    /// Allows only tokens that continue a text of the GBNF `grammar` from rule `root`. A chain with a grammar holds the model.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidParameter`] for a grammar that is empty or holds a NUL byte; [`Error::Call`] for one that does not parse.
    pub fn grammar(mut self, grammar: &str, root: &str) -> Result<Self, Error> {
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
        self.has_grammar = true;
        self.add(|error| {
            // SAFETY: both texts are NUL-terminated and copied; the sampler keeps the vocabulary as long as it lives.
            unsafe { raw::shim_sampler_grammar(vocab, grammar.as_ptr(), root.as_ptr(), error) }
        })
    }

    /// Completes the chain: always the likeliest token.
    ///
    /// # Errors
    ///
    /// [`Error::Call`].
    pub fn greedy(self) -> Result<Sampler, Error> {
        self.of_values(raw::SHIM_SAMPLER_KIND_GREEDY, [])
            .map(Self::finish)
    }

    /// Completes the chain: a token by chance, as the probabilities say. The same seed gives the same choices.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidParameter`] for 4294967295, by which llama.cpp means "draw one" (`LLAMA_DEFAULT_SEED`).
    pub fn dist(self, seed: u32) -> Result<Sampler, Error> {
        self.chosen_by(raw::SHIM_SAMPLER_KIND_DIST, [0.0; 3], seed)
    }

    /// Completes the chain: Mirostat (<https://arxiv.org/abs/2007.14966>), which keeps the surprise of the text near `tau` bits per
    /// token, learning at the rate of `eta` from how surprising the tokens were. `m` tokens go into its estimate; llama.cpp's programs
    /// take 100.
    ///
    /// Where the model is so sure that `tau` is out of reach for long, llama.cpp's number of tokens to keep overflows, and with it
    /// what is chosen; [`mirostat_v2`](Self::mirostat_v2) has no such number.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidParameter`] for a `tau` or `eta` that is not finite or is negative, an `m` of 0 or beyond 2147483647, and for the
    /// seed as [`dist`](Self::dist).
    pub fn mirostat(self, tau: f32, eta: f32, m: u32, seed: u32) -> Result<Sampler, Error> {
        not_negative("mirostat_tau", tau)?;
        not_negative("mirostat_eta", eta)?;
        if m == 0 {
            return Err(Error::parameter("mirostat_m", m, "at least 1"));
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

    /// Completes the chain: Mirostat 2.0, which drops the tokens that are more surprising than a bound and moves the bound so that the
    /// surprise of the text stays near `tau` bits per token, at the rate of `eta`.
    ///
    /// # Errors
    ///
    /// As [`mirostat`](Self::mirostat).
    pub fn mirostat_v2(self, tau: f32, eta: f32, seed: u32) -> Result<Sampler, Error> {
        not_negative("mirostat_tau", tau)?;
        not_negative("mirostat_eta", eta)?;
        self.depending_on_logits().chosen_by(
            raw::SHIM_SAMPLER_KIND_MIROSTAT_V2,
            [tau, eta, 0.0],
            seed,
        )
    }

    /// Completes the chain: adaptive-p (<https://github.com/ggml-org/llama.cpp/pull/17927>), which prefers tokens whose probability is
    /// near `target` and moves that so that the mean over the chosen ones, of which each counts `decay` times as much as the next, stays
    /// there. A negative target is [`dist`](Self::dist).
    ///
    /// # Errors
    ///
    /// [`Error::InvalidParameter`] for a target that is above 1.0 or no number, a decay outside 0.0 to 0.99, and for the seed as
    /// [`dist`](Self::dist).
    pub fn adaptive_p(self, target: f32, decay: f32, seed: u32) -> Result<Sampler, Error> {
        if !target.is_finite() || target > 1.0 {
            return Err(Error::parameter(
                "adaptive_target",
                target,
                "0.0 to 1.0; negative is off",
            ));
        }
        if !(0.0..=0.99).contains(&decay) {
            return Err(Error::parameter("adaptive_decay", decay, "0.0 to 0.99"));
        }
        self.depending_on_logits().chosen_by(
            raw::SHIM_SAMPLER_KIND_ADAPTIVE_P,
            [target, decay, 0.0],
            seed,
        )
    }

    /// Completes the chain with a sampler that draws.
    fn chosen_by(
        self,
        kind: raw::shim_sampler_kind,
        values: [f32; 3],
        seed: u32,
    ) -> Result<Sampler, Error> {
        let params = raw::shim_sampler_params {
            kind,
            seed,
            values,
            ..NOTHING
        };
        let chain = self.seeded(seed)?;
        chain.simple(&params).map(Self::finish)
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

fn text(name: &'static str, text: &str) -> Result<CString, Error> {
    CString::new(text).map_err(|_| Error::parameter(name, text, "a text without NUL"))
}

fn int(name: &'static str, value: u32) -> Result<i32, Error> {
    i32::try_from(value).map_err(|_| Error::parameter(name, value, "at most 2147483647"))
}

/// llama.cpp sets aside room for all of them at once.
fn check_last_n(name: &'static str, last_n: u32) -> Result<i32, Error> {
    match i32::try_from(last_n) {
        Ok(tokens) if last_n <= MAX_LAST_N => Ok(tokens),
        _ => Err(Error::parameter(
            name,
            last_n,
            format!("at most {MAX_LAST_N} tokens"),
        )),
    }
}

fn check_breaker(breaker: &str) -> Result<CString, Error> {
    if breaker.is_empty() || breaker.len() > MAX_BREAKER {
        return Err(Error::parameter(
            "dry_sequence_breaker",
            format!("{breaker:?}"),
            format!("1 to {MAX_BREAKER} bytes"),
        ));
    }
    text("dry_sequence_breaker", breaker)
}

fn check_temperature(temperature: f32) -> Result<(), Error> {
    // NaN is in no range.
    if temperature == 0.0 || (MIN_TEMPERATURE..=f32::MAX).contains(&temperature) {
        return Ok(());
    }
    Err(Error::parameter(
        "temp",
        temperature,
        "finite, and 0 or at least 0.000001",
    ))
}

fn probability(name: &'static str, p: f32) -> Result<(), Error> {
    // NaN is in no range.
    if (0.0..=1.0).contains(&p) {
        Ok(())
    } else {
        Err(Error::parameter(name, p, "0.0 to 1.0"))
    }
}

fn finite(name: &'static str, value: f32) -> Result<(), Error> {
    if value.is_finite() {
        Ok(())
    } else {
        Err(Error::parameter(name, value, "a finite number"))
    }
}

fn not_negative(name: &'static str, value: f32) -> Result<(), Error> {
    if value.is_finite() && value >= 0.0 {
        Ok(())
    } else {
        Err(Error::parameter(name, value, "finite and not negative"))
    }
}

fn bias(name: &'static str, value: f32) -> Result<(), Error> {
    // NaN is in no range.
    if (-MAX_BIAS..=MAX_BIAS).contains(&value) {
        Ok(())
    } else {
        Err(Error::parameter(name, value, "-1000000 to 1000000"))
    }
}
