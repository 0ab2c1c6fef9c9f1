//! How likely a token was, and which others were.

use llama_sys::Token;
use serde::{Deserialize, Serialize};

use super::error::Error;

/// Tokens that may be asked for beside the chosen one: each is looked for in all logits.
pub(super) const MOST: usize = 128;

/// Log-probabilities of one step: of the model's own distribution over all tokens, before any sampler,
/// bias or constraint.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct TokenLogprobs {
    /// The token that was chosen.
    pub token: Token,
    /// Natural logarithm of its probability. What a model gives no chance at all has [`f32::MIN`].
    pub logprob: f32,
    /// The likeliest tokens with their log-probabilities, the likeliest first; as many as were asked for.
    pub top: Vec<(Token, f32)>,
}

/// Makes log-probabilities of logits.
#[derive(Debug)]
pub(super) struct Logprobs {
    n: usize,
}

impl Logprobs {
    pub(super) fn new(n: usize) -> Result<Self, Error> {
        if n > MOST {
            return Err(Error::TooManyLogprobs {
                asked: n,
                most: MOST,
            });
        }
        Ok(Self { n })
    }

    /// Of a token of these logits.
    pub(super) fn of(&self, logits: &[f32], token: Token) -> TokenLogprobs {
        let log_sum = log_sum(logits);
        // What is infinite, JSON has no word for.
        let logprob = |logit: f32| ((f64::from(logit) - log_sum) as f32).max(f32::MIN);
        let chosen = usize::try_from(token).ok().and_then(|it| logits.get(it));
        let mut top = self.top(logits);
        for (_, logit) in &mut top {
            *logit = logprob(*logit);
        }
        TokenLogprobs {
            token,
            logprob: chosen.map_or(f32::MIN, |logit| logprob(*logit)),
            top,
        }
    }

    /// The highest logits and their tokens, the highest first; of equal ones the lower token.
    fn top(&self, logits: &[f32]) -> Vec<(Token, f32)> {
        // One more, for a moment.
        let mut top: Vec<(Token, f32)> = Vec::with_capacity(self.n.min(logits.len()) + 1);
        for (token, &logit) in logits.iter().enumerate() {
            let is_among = match top.last() {
                Some((_, lowest)) if top.len() == self.n => logit > *lowest,
                _ => self.n > 0,
            };
            if is_among {
                let at = top.partition_point(|(_, higher)| *higher >= logit);
                top.insert(at, (token as Token, logit));
                top.truncate(self.n);
            }
        }
        top
    }
}

/// Natural logarithm of the sum over all tokens of e to the power of their logit.
fn log_sum(logits: &[f32]) -> f64 {
    // Finite, so that infinities make no difference of each other.
    let highest = logits
        .iter()
        .copied()
        .fold(f32::MIN, f32::max)
        .min(f32::MAX);
    let sum: f64 = logits
        .iter()
        .map(|logit| f64::from((logit - highest).exp()))
        .sum();
    f64::from(highest) + sum.ln()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_likeliest_come_first_and_equals_by_their_number() {
        let logits = [1.0, 3.0, f32::NEG_INFINITY, 3.0, 2.0];
        let top = |n| Logprobs::new(n).unwrap().of(&logits, 2);
        let tokens = |n| top(n).top.iter().map(|it| it.0).collect::<Vec<_>>();
        assert_eq!(tokens(0), [0; 0]);
        assert_eq!(tokens(3), [1, 3, 4]);
        assert_eq!(tokens(9), [1, 3, 4, 0, 2]);
        // Without a chance, and a number all the same.
        assert_eq!(top(9).logprob, f32::MIN);
        assert_eq!(top(9).top[4], (2, f32::MIN));
        assert!(matches!(
            Logprobs::new(MOST + 1),
            Err(Error::TooManyLogprobs { most: MOST, .. })
        ));
    }

    proptest! {
        #[test]
        fn they_are_a_distribution(logits in prop::collection::vec(-80.0f32..80.0, 1..100), shift in -1e3f32..1e3) {
            let all = Logprobs::new(MOST).unwrap();
            let told = all.of(&logits, 0);
            prop_assert_eq!(told.top.len(), logits.len());
            let sum: f64 = told.top.iter().map(|it| f64::from(it.1).exp()).sum();
            prop_assert!((sum - 1.0).abs() < 1e-5, "{}", sum);
            prop_assert!(told.top.is_sorted_by(|a, b| a.1 >= b.1));
            prop_assert!(told.top.contains(&(0, told.logprob)));
            // Only differences count.
            let shifted: Vec<f32> = logits.iter().map(|it| it + shift).collect();
            prop_assert!((all.of(&shifted, 0).logprob - told.logprob).abs() < 1e-3);
        }
    }
}
