//! The tokens that may come next, with their logits.

use std::fmt;

use crate::raw;
use crate::safe::call::{Error, Failure};
use crate::safe::context::Context;
use crate::safe::model::Token;

/// A token that may come next.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct Candidate(raw::llama_token_data);

impl Candidate {
    /// The token.
    pub fn token(&self) -> Token {
        self.0.id
    }

    /// The candidate's logit, as the samplers so far have changed it.
    pub fn logit(&self) -> f32 {
        self.0.logit
    }

    /// The candidate's probability, as the last sampler computed it; 0 if no sampler has computed it.
    /// [`Candidates::softmax`] computes it.
    pub fn probability(&self) -> f32 {
        self.0.p
    }
}

impl fmt::Debug for Candidate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Candidate")
            .field("token", &self.token())
            .field("logit", &self.logit())
            .field("probability", &self.probability())
            .finish()
    }
}

/// The tokens that may follow one output, with their logits and probabilities. A generation needs only one such list.
/// It is filled again for each token, and allocates memory only for the first.
#[doc(alias = "llama_token_data_array")]
#[derive(Debug, Default, Clone)]
pub struct Candidates {
    list: Vec<Candidate>,
    /// The index of the first remaining entry. Samplers drop entries at both ends of the list.
    start: usize,
    end: usize,
    /// Number of tokens in the vocabulary.
    n_tokens: u32,
    sorted: bool,
    /// The index of the chosen candidate, counted from `start`.
    selected: Option<usize>,
}

impl Candidates {
    /// Fills the list with all tokens, with the logits of token `index` of the last batch (-1: the last output).
    ///
    /// # Errors
    ///
    /// The errors of [`Context::logits`].
    pub fn fill(&mut self, context: &mut Context, index: i32) -> Result<(), Error> {
        self.set(context.logits(index)?, None);
        Ok(())
    }

    /// Fills the list with the tokens that `mask` allows, as in
    /// [`Sampler::sample_masked`](crate::Sampler::sample_masked).
    ///
    /// # Errors
    ///
    /// The errors of [`Context::logits`]; [`Error::NoCandidates`] for a mask that allows no token.
    pub fn fill_masked(&mut self, context: &mut Context, index: i32, mask: &[u32]) -> Result<(), Error> {
        self.set(context.logits(index)?, Some(mask));
        if self.is_empty() {
            return Err(Error::NoCandidates { n_tokens: self.n_tokens });
        }
        Ok(())
    }

    /// Fills the list with all tokens, or with those that a mask allows. `logits` has one entry for each token of the
    /// vocabulary.
    pub fn set(&mut self, logits: &[f32], mask: Option<&[u32]>) {
        self.list.clear();
        // Room for all tokens is reserved here, because the next mask may allow more tokens than this one.
        self.list.reserve(logits.len());
        let candidate =
            |token: usize| Candidate(raw::llama_token_data { id: token as Token, logit: logits[token], p: 0.0 });
        match mask {
            None => self.list.extend((0..logits.len()).map(candidate)),
            Some(mask) => {
                for (word, first) in mask.iter().zip((0..logits.len()).step_by(32)) {
                    let mut left = *word;
                    while left != 0 {
                        let token = first + left.trailing_zeros() as usize;
                        if token >= logits.len() {
                            break;
                        }
                        self.list.push(candidate(token));
                        left &= left - 1;
                    }
                }
            }
        }
        self.start = 0;
        self.end = self.list.len();
        self.n_tokens = u32::try_from(logits.len()).unwrap_or(u32::MAX);
        self.sorted = false;
        self.selected = None;
    }

    /// The remaining candidates, in no particular order.
    pub fn as_slice(&self) -> &[Candidate] {
        &self.list[self.start..self.end]
    }

    /// The remaining candidates, in no particular order.
    pub fn iter(&self) -> std::slice::Iter<'_, Candidate> {
        self.as_slice().iter()
    }

    /// The number of remaining candidates.
    pub fn len(&self) -> usize {
        self.end - self.start
    }

    /// Whether no candidate is left.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of tokens in the vocabulary.
    pub fn n_tokens(&self) -> u32 {
        self.n_tokens
    }

    /// The candidate that a sampler has chosen. `None` if no candidate was chosen yet, or the chosen one was dropped.
    pub fn selected(&self) -> Option<&Candidate> {
        self.as_slice().get(self.selected?)
    }

    /// Whether this token is among the remaining candidates.
    pub fn contains(&self, token: Token) -> bool {
        self.iter().any(|candidate| candidate.token() == token)
    }

    /// Keeps the candidates for which `keep` returns true. Probabilities are not changed.
    pub fn retain(&mut self, mut keep: impl FnMut(&Candidate) -> bool) {
        let mut end = self.start;
        let selected = self.selected.take().map(|selected| self.start + selected);
        for at in self.start..self.end {
            let candidate = self.list[at];
            if keep(&candidate) {
                if selected == Some(at) {
                    self.selected = Some(end - self.start);
                }
                self.list[end] = candidate;
                end += 1;
            }
        }
        self.end = end;
    }

    /// Replaces each candidate's logit by the result of `change` for its token and logit, and clears the choice. A NaN
    /// becomes negative infinity. A token with this logit is chosen only if no other is left.
    pub fn map_logits(&mut self, mut change: impl FnMut(Token, f32) -> f32) {
        for Candidate(data) in &mut self.list[self.start..self.end] {
            let logit = change(data.id, data.logit);
            // With an infinite logit, the softmax would yield NaN.
            data.logit = if logit.is_nan() { f32::NEG_INFINITY } else { logit.min(f32::MAX) };
        }
        self.sorted = false;
        self.selected = None;
    }

    /// Computes the probabilities of the remaining candidates from their logits; they add up to 1.
    pub fn softmax(&mut self) {
        let left = &mut self.list[self.start..self.end];
        // The maximum starts from a finite number. So if all logits are negative infinity, the probabilities are 0 and
        // not NaN.
        let highest = left.iter().map(Candidate::logit).fold(f32::MIN, f32::max);
        let mut sum = 0.0;
        for Candidate(data) in left.iter_mut() {
            data.p = (data.logit - highest).exp();
            sum += f64::from(data.p);
        }
        for Candidate(data) in left {
            data.p = (f64::from(data.p) / sum.max(f64::MIN_POSITIVE)) as f32;
        }
    }

    /// Lends the candidates to llama.cpp, which filters, sorts and selects them in place. Then records the result.
    pub(super) fn lend(
        &mut self,
        call: impl FnOnce(*mut raw::llama_token_data_array) -> Result<bool, Failure>,
    ) -> Result<bool, Failure> {
        let all = self.list.as_mut_ptr().cast::<raw::llama_token_data>();
        let mut array = raw::llama_token_data_array {
            // SAFETY: `start` is within the list, and a `Candidate` has the layout of a `llama_token_data`.
            data: unsafe { all.add(self.start) },
            size: self.len(),
            selected: -1,
            sorted: self.sorted,
        };
        let outcome = call(&raw mut array);
        // SAFETY: samplers move `data` only within the array (llama-sampler.cpp, llama_sample_xtc_apply).
        let moved = unsafe { array.data.offset_from(all) };
        self.start = usize::try_from(moved).unwrap_or(0).min(self.list.len());
        self.end = (self.start + array.size).min(self.list.len());
        self.sorted = array.sorted;
        self.selected = usize::try_from(array.selected).ok().filter(|selected| *selected < self.len());
        outcome
    }
}
