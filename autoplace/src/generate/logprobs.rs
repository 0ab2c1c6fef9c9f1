//! How likely a token was, and which others were.

use llama_sys::Token;

use super::error::Error;
use super::piece::TokenLogprobs;

/// Tokens that may be asked for beside the chosen one: each is looked for in all logits.
pub(super) const MOST: usize = 128;

pub(super) fn check(n: usize) -> Result<(), Error> {
    if n > MOST {
        return Err(Error::TooManyLogprobs {
            asked: n,
            most: MOST,
        });
    }
    Ok(())
}

/// Log-probabilities of a token of these logits, and of the `n` likeliest.
pub(super) fn logprobs_of(logits: &[f32], token: Token, n: usize) -> TokenLogprobs {
    let log_sum = log_sum(logits);
    // What is infinite, JSON has no word for.
    let logprob = |logit: f32| ((f64::from(logit) - log_sum) as f32).max(f32::MIN);
    let chosen = usize::try_from(token).ok().and_then(|it| logits.get(it));
    let mut top = highest(logits, n);
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
fn highest(logits: &[f32], n: usize) -> Vec<(Token, f32)> {
    // One more, for a moment.
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
        let top = |n| logprobs_of(&logits, 2, n);
        let tokens = |n| top(n).top.iter().map(|it| it.0).collect::<Vec<_>>();
        assert_eq!(tokens(0), [0; 0]);
        assert_eq!(tokens(3), [1, 3, 4]);
        assert_eq!(tokens(9), [1, 3, 4, 0, 2]);
        // Without a chance, and a number all the same.
        assert_eq!(top(9).logprob, f32::MIN);
        assert_eq!(top(9).top[4], (2, f32::MIN));
        assert!(matches!(
            check(MOST + 1),
            Err(Error::TooManyLogprobs { most: MOST, .. })
        ));
    }

    proptest! {
        #[test]
        fn they_are_a_distribution(logits in prop::collection::vec(-80.0f32..80.0, 1..100), shift in -1e3f32..1e3) {
            let told = logprobs_of(&logits, 0, MOST);
            prop_assert_eq!(told.top.len(), logits.len());
            let sum: f64 = told.top.iter().map(|it| f64::from(it.1).exp()).sum();
            prop_assert!((sum - 1.0).abs() < 1e-5, "{}", sum);
            prop_assert!(told.top.is_sorted_by(|a, b| a.1 >= b.1));
            prop_assert!(told.top.contains(&(0, told.logprob)));
            // Only differences count.
            let shifted: Vec<f32> = logits.iter().map(|it| it + shift).collect();
            prop_assert!((logprobs_of(&shifted, 0, MOST).logprob - told.logprob).abs() < 1e-3);
        }
    }
}
