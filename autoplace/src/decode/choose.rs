//! The choice of the next token: the sampler chain, the application's own sampler, and the log-probabilities.
//!
//! In: an output of the context, and a mask of the allowed tokens. Out: a token that the chain has accepted. A chooser
//! is independent of the loaded model and keeps working after the model was re-placed.

use std::collections::BTreeMap;

use llama_sys::{Candidates, Context, Model, Sampler, Token, Vocab};

use super::custom::CustomSampler;
use super::error::Error;
use super::piece::TokenLogprobs;
use super::sampling::Sampling;

#[derive(Debug)]
pub(crate) struct Chooser {
    sampler: Sampler,
    /// The biases that are added to the logits before the sampler chain.
    biases: BTreeMap<Token, f32>,
    custom: Option<CustomSampler>,
    /// Tokens that end a text, sorted. Empty for a text without a minimum length.
    ends: Vec<Token>,
    /// The number of likeliest tokens to report in addition to the chosen token.
    logprobs: Option<usize>,
    /// Buffer for the candidates of each choice.
    candidates: Candidates,
}

#[derive(Debug)]
pub(crate) struct Choice {
    pub(crate) token: Token,
    pub(crate) logprobs: Option<TokenLogprobs>,
}

impl Chooser {
    /// Builds the sampler chain. `logprobs` is the number of likeliest tokens to report in addition to the chosen
    /// token; `custom` is the application's own sampler.
    pub(crate) fn new(
        sampling: &Sampling,
        logprobs: Option<usize>,
        custom: Option<CustomSampler>,
        model: &Model,
    ) -> Result<Self, Error> {
        if let Some(asked) = logprobs.filter(|asked| *asked > MAX_LOGPROBS) {
            return Err(Error::TooManyLogprobs { asked, most: MAX_LOGPROBS });
        }
        Ok(Self {
            logprobs,
            sampler: sampling.sampler(model)?,
            biases: sampling.biases(model)?,
            custom,
            ends: Vec::new(),
            candidates: Candidates::default(),
        })
    }

    /// Records the tokens that end a text: the model's own end tokens and `others`.
    pub(crate) fn know_ends(&mut self, vocab: &Vocab, others: &[Token]) {
        let own = (0..vocab.n_tokens() as Token).filter(|token| vocab.is_eog(*token));
        self.ends = own.chain(others.iter().copied()).collect();
        self.ends.sort_unstable();
    }

    /// The seed in use; `None` when no sampler is random.
    pub(crate) fn seed(&self) -> Option<u32> {
        self.sampler.seed()
    }

    /// Whether the state of the sampler depends on the logits of its earlier choices, and not only on the tokens.
    pub(crate) fn depends_on_logits(&self) -> bool {
        self.sampler.depends_on_logits()
    }

    /// A copy of the application's own sampler in its present state.
    pub(crate) fn custom(&self) -> Option<CustomSampler> {
        self.custom.clone()
    }

    /// Accepts a token of the prompt, which the sampler did not choose.
    pub(crate) fn accept(&mut self, token: Token) -> Result<(), Error> {
        Ok(self.sampler.accept(token)?)
    }

    /// Continues after tokens that an earlier process chose, by drawing one random number per token. Samplers whose
    /// state depends on the lost logits (mirostat, adaptive-p, XTC) start over.
    pub(crate) fn go_on_after(&mut self, chosen: &[Token]) -> Result<(), Error> {
        if !self.sampler.depends_on_logits() {
            self.sampler.skip(chosen.len())?;
        }
        chosen.iter().try_for_each(|token| self.accept(*token))
    }

    /// Chooses a token from an output of the last batch. In `mask`, bit `t % 32` of word `t / 32` allows token `t`.
    /// `so_far` are the tokens of the prompt and of the answer so far. `is_early` forbids tokens that end the text,
    /// unless the mask allows no other tokens.
    pub(crate) fn choose(
        &mut self,
        context: &mut Context,
        output: i32,
        so_far: &[Token],
        mask: Option<&[u32]>,
        is_early: bool,
    ) -> Result<Choice, Error> {
        let is_early = is_early && mask.is_none_or(|mask| self.goes_on(mask));
        let token = if self.custom.is_none() && self.biases.is_empty() && mask.is_none() && !is_early {
            self.sampler.sample(context, output)?
        } else {
            self.fill(context, output, mask)?;
            if is_early {
                let ends = &self.ends;
                self.candidates.map_logits(|token, logit| match ends.binary_search(&token) {
                    Ok(_) => f32::NEG_INFINITY,
                    Err(_) => logit,
                });
            }
            let mut token = self.sampler.apply(&mut self.candidates)?;
            if let Some(custom) = &mut self.custom {
                token = custom.choose(&mut self.candidates, so_far);
                if mask.is_some_and(|mask| !allows(mask, token)) {
                    return Err(Error::NotAllowed { token });
                }
            }
            self.sampler.accept(token)?;
            token
        };
        let logprobs = match self.logprobs {
            Some(n) => Some(logprobs_of(context.logits(output)?, token, n)),
            None => None,
        };
        Ok(Choice { token, logprobs })
    }

    /// Whether a mask allows a token that does not end the text.
    fn goes_on(&self, mask: &[u32]) -> bool {
        let allowed: u32 = mask.iter().map(|word| word.count_ones()).sum();
        let ends = self.ends.iter().filter(|token| allows(mask, **token)).count();
        allowed as usize > ends
    }

    /// Fills the candidates with the tokens that the mask allows, or with all tokens, and adds the biases to their
    /// logits.
    fn fill(&mut self, context: &mut Context, output: i32, mask: Option<&[u32]>) -> Result<(), llama_sys::Error> {
        match mask {
            Some(mask) => self.candidates.fill_masked(context, output, mask)?,
            None => self.candidates.fill(context, output)?,
        }
        if self.biases.is_empty() {
            return Ok(());
        }
        // The biases and the candidates are both sorted by token.
        let mut biases = self.biases.iter().peekable();
        self.candidates.map_logits(|token, logit| {
            while biases.next_if(|(biased, _)| **biased < token).is_some() {}
            let bias = biases.next_if(|(biased, _)| **biased == token);
            bias.map_or(logit, |(_, bias)| logit + bias)
        });
        Ok(())
    }
}

/// Whether a mask allows a token.
pub(crate) fn allows(mask: &[u32], token: Token) -> bool {
    usize::try_from(token).is_ok_and(|token| {
        let word = mask.get(token / 32).copied().unwrap_or(0);
        word >> (token % 32) & 1 == 1
    })
}

/// Maximum number of likeliest tokens per report. The search costs one pass over all logits.
const MAX_LOGPROBS: usize = 128;

/// Log-probability of a token under these logits, and the `n` likeliest tokens.
fn logprobs_of(logits: &[f32], token: Token, n: usize) -> TokenLogprobs {
    let log_sum = log_sum(logits);
    // JSON cannot represent infinity.
    let logprob = |logit: f32| ((f64::from(logit) - log_sum) as f32).max(f32::MIN);
    let chosen = usize::try_from(token).ok().and_then(|index| logits.get(index));
    let mut top = highest(logits, n);
    for (_, logit) in &mut top {
        *logit = logprob(*logit);
    }
    TokenLogprobs { token, logprob: chosen.map_or(f32::MIN, |logit| logprob(*logit)), top }
}

/// The `n` highest logits with their tokens, in descending order. Among tokens with equal logits, the token with the
/// lower number comes first.
fn highest(logits: &[f32], n: usize) -> Vec<(Token, f32)> {
    // An insertion holds one more entry before it truncates.
    let mut top: Vec<(Token, f32)> = Vec::with_capacity(n.min(logits.len()) + 1);
    for (token, &logit) in logits.iter().enumerate() {
        let is_among = match top.last() {
            Some((_, lowest)) if top.len() == n => logit > *lowest,
            _ => n > 0,
        };
        if is_among {
            let at = top.partition_point(|(_, higher)| *higher >= logit);
            top.insert(at, (token as Token, logit));
            top.truncate(n);
        }
    }
    top
}

/// Natural logarithm of the sum of exp(logit) over all tokens.
fn log_sum(logits: &[f32]) -> f64 {
    // The highest logit must be finite, because infinity minus infinity is not a number.
    let highest = logits.iter().copied().fold(f32::MIN, f32::max).min(f32::MAX);
    let sum: f64 = logits.iter().map(|logit| f64::from((logit - highest).exp())).sum();
    f64::from(highest) + sum.ln()
}

#[cfg(test)]
mod tests {
    use super::*;
    use llama_sys::{Batch, Candidate, ContextParams, ModelParams};

    const DEMO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/model/autoplace-demo-q8_0.gguf");

    /// A context that has computed one token.
    fn context() -> Context {
        let params = ModelParams { devices: Some(Vec::new()), ..ModelParams::default() };
        let model = Model::load(DEMO, params).unwrap();
        let params = ContextParams { n_threads: Some(1), n_threads_batch: Some(1), ..ContextParams::default() };
        let mut context = Context::new(&model, params).unwrap();
        let mut batch = Batch::default();
        batch.add(9, 0, 0, true);
        context.decode(&batch).unwrap();
        context
    }

    #[test]
    fn a_mask_binds_the_applications_own_sampler_too() {
        let mut context = context();
        let mask = [0b1110_0000];
        let last = |candidates: &mut Candidates, so_far: &[Token]| {
            assert!(candidates.iter().all(|candidate| (5..8).contains(&candidate.token())));
            let last = candidates.iter().map(Candidate::token).max();
            last.unwrap() + so_far.len() as Token
        };
        let custom = CustomSampler::new(Box::new(last));
        let sampling = Sampling::default();
        let model = context.model().clone();
        let mut chooser = Chooser::new(&sampling, Some(1), Some(custom), &model).unwrap();
        let mut choose = |so_far: &[Token]| chooser.choose(&mut context, -1, so_far, Some(&mask), false);
        let choice = choose(&[]).unwrap();
        assert!((5..8).contains(&choice.token));
        assert_eq!(choice.logprobs.unwrap().token, choice.token);
        assert!(matches!(choose(&[9, 9, 9]), Err(Error::NotAllowed { token: 8.. })));
    }

    #[test]
    fn biases_equal_llama_cpps_without_its_searches() {
        let mut context = context();
        let model = context.model().clone();
        let mask: Vec<u32> = (0..32).map(|word| 0x9249_2492 >> (word % 3)).collect();
        let every_other = (0..1024).step_by(2);
        let mut sampling = Sampling { seed: Some(3), ..Sampling::default() };
        sampling.logit_bias = every_other.map(|token| (token, (token % 7) as f32 - 3.0)).collect();
        sampling.logit_bias.reverse();
        for mask in [None, Some(&mask[..])] {
            let mut chooser = Chooser::new(&sampling, None, None, &model).unwrap();
            assert!(!format!("{:?}", chooser.sampler).contains("logit-bias"));
            let chain = Sampler::chain(&model).unwrap().logit_bias(&sampling.logit_bias);
            let chain = chain.unwrap().top_k(40).unwrap().top_p(0.95).unwrap();
            let mut native = chain.min_p(0.05).unwrap().temperature(0.8).unwrap().dist(3).unwrap();
            for _ in 0..20 {
                let own = chooser.choose(&mut context, -1, &[], mask, false).unwrap().token;
                let native = match mask {
                    Some(mask) => native.sample_masked(&mut context, -1, mask),
                    None => native.sample(&mut context, -1),
                };
                assert_eq!(own, native.unwrap());
            }
        }
        sampling.logit_bias.push((8, 1.0));
        let twice = Chooser::new(&sampling, None, None, &model).unwrap_err();
        assert!(twice.to_string().contains("logit_bias"), "{twice}");
    }

    #[test]
    fn the_likeliest_tokens_come_first_and_equal_ones_by_number() {
        let logits = [1.0, 3.0, f32::NEG_INFINITY, 3.0, 2.0];
        let top = |n| logprobs_of(&logits, 2, n);
        let tokens = |n| top(n).top.iter().map(|(token, _)| *token).collect::<Vec<_>>();
        assert_eq!(tokens(0), [0; 0]);
        assert_eq!(tokens(3), [1, 3, 4]);
        assert_eq!(tokens(9), [1, 3, 4, 0, 2]);
        // The logarithm of a zero probability is finite.
        assert_eq!(top(9).logprob, f32::MIN);
        assert_eq!(top(9).top[4], (2, f32::MIN));
    }
}
