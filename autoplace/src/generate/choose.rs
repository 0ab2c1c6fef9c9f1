//! The choice of the next token: the sampler chain, what the application puts in its place, and how likely it was.
//!
//! In: an output of the context, and which tokens are allowed there. Out: a token that the chain was told of. Nothing of it is tied to the
//! loaded model: it goes on after the model was placed anew.

use llama_sys::{Candidates, Context, Model, Sampler, Token};

use super::Spec;
use super::custom::Custom;
use super::error::Error;
use super::logprobs::{Logprobs, TokenLogprobs};

/// Chooses the tokens of one text.
#[derive(Debug)]
pub(super) struct Chooser {
    sampler: Sampler,
    custom: Option<Custom>,
    logprobs: Option<Logprobs>,
    /// Room for what the application's own sampler sees.
    candidates: Candidates,
}

/// A token that was chosen.
#[derive(Debug)]
pub(super) struct Choice {
    pub(super) token: Token,
    /// If they were asked for.
    pub(super) logprobs: Option<TokenLogprobs>,
}

impl Chooser {
    /// As the description of a generation has it.
    pub(super) fn new(spec: &Spec, model: &Model) -> Result<Self, Error> {
        Ok(Self {
            logprobs: spec.logprobs.map(Logprobs::new).transpose()?,
            sampler: spec.sampling.sampler(model)?,
            custom: spec.custom.clone(),
            candidates: Candidates::default(),
        })
    }

    /// The seed in use; `None` where nothing is left to chance.
    pub(super) fn seed(&self) -> Option<u32> {
        self.sampler.seed()
    }

    /// Tells it of a token that was not its choice: the prompt's.
    pub(super) fn accept(&mut self, token: Token) -> Result<(), Error> {
        Ok(self.sampler.accept(token)?)
    }

    /// Brings it to where it would be had it chosen these tokens after the prompt, if that can be known without their logits: else they
    /// are to be [chosen again](Self::choose_again), and nothing is done.
    pub(super) fn has_chosen(&mut self, tokens: &[Token]) -> Result<bool, Error> {
        if self.sampler.depends_on_logits() {
            return Ok(false);
        }
        for &token in tokens {
            self.sampler.accept(token)?;
        }
        self.sampler.skip(tokens.len())?;
        Ok(true)
    }

    /// Chooses a token after this output of the last batch: of those that a mask allows, if there is one (bit `t % 32` of word `t / 32`
    /// is token `t`). `so_far`: prompt and answer.
    pub(super) fn choose_masked(
        &mut self,
        context: &mut Context,
        output: i32,
        so_far: &[Token],
        mask: Option<&[u32]>,
    ) -> Result<Choice, Error> {
        let token = match (&mut self.custom, mask) {
            (None, None) => self.sampler.sample(context, output)?,
            (None, Some(mask)) => self.sampler.sample_masked(context, output, mask)?,
            (Some(custom), mask) => {
                fill(&mut self.candidates, context, output, mask)?;
                self.sampler.apply(&mut self.candidates)?;
                let token = custom.choose(&mut self.candidates, so_far);
                if mask.is_some_and(|mask| !allows(mask, token)) {
                    return Err(Error::NotAllowed { token });
                }
                self.sampler.accept(token)?;
                token
            }
        };
        let logprobs = match &self.logprobs {
            Some(logprobs) => Some(logprobs.of(context.logits(output)?, token)),
            None => None,
        };
        Ok(Choice { token, logprobs })
    }

    /// Goes through a choice that an earlier process has made, so that the next one is as it would have been there.
    pub(super) fn choose_again(
        &mut self,
        context: &mut Context,
        output: i32,
        mask: Option<&[u32]>,
        chosen: Token,
    ) -> Result<(), Error> {
        fill(&mut self.candidates, context, output, mask)?;
        self.sampler.apply(&mut self.candidates)?;
        Ok(self.sampler.accept(chosen)?)
    }
}

fn fill(
    candidates: &mut Candidates,
    context: &mut Context,
    output: i32,
    mask: Option<&[u32]>,
) -> Result<(), llama_sys::Error> {
    match mask {
        Some(mask) => candidates.fill_masked(context, output, mask),
        None => candidates.fill(context, output),
    }
}

fn allows(mask: &[u32], token: Token) -> bool {
    usize::try_from(token).is_ok_and(|token| {
        let word = mask.get(token / 32).copied().unwrap_or(0);
        word >> (token % 32) & 1 == 1
    })
}

#[cfg(test)]
mod tests {
    use super::allows;

    #[test]
    fn a_mask_allows_the_tokens_whose_bits_are_set() {
        let mask = [1 << 31, 0, 0b10];
        let allowed: Vec<i32> = (-1..200).filter(|token| allows(&mask, *token)).collect();
        assert_eq!(allowed, [31, 65]);
    }
}
