//! How many tokens of each prompt a step computes: the same number of each, or the rest of a shorter one.

/// A prompt that asks for its part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Asking {
    /// Tokens that are not computed yet.
    pub(super) wanted: usize,
    /// Tokens that it gets in this step.
    pub(super) given: usize,
}

impl Asking {
    pub(super) fn new(wanted: usize) -> Self {
        Self { wanted, given: 0 }
    }

    fn is_open(&self) -> bool {
        self.given < self.wanted
    }
}

/// Gives every prompt the same number of tokens, and what shorter ones leave to the others. If there are fewer tokens
/// left than prompts, the prompts take turns from step to step.
pub(super) fn share(asking: &mut [Asking], tokens: usize, step: usize) {
    let mut left = tokens;
    loop {
        let open = asking.iter().filter(|it| it.is_open()).count();
        if open == 0 {
            return;
        }
        let each = left / open;
        if each == 0 {
            let first = step % open;
            for (at, it) in asking.iter_mut().filter(|it| it.is_open()).enumerate() {
                it.given += usize::from((at + open - first) % open < left);
            }
            return;
        }
        for it in &mut *asking {
            let more = each.min(it.wanted - it.given);
            it.given += more;
            left -= more;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_single_token_goes_round() {
        for (step, expected) in (0..).zip([0, 1, 2, 0, 1, 2]) {
            let mut asking = [Asking::new(50); 3];
            share(&mut asking, 1, step);
            assert_eq!(asking.iter().position(|it| it.given == 1), Some(expected));
        }
    }

    proptest! {
        #[test]
        fn all_is_given_and_nobody_gets_more_than_another_who_wants_more(
            wanted in prop::collection::vec(2usize..400, 0..20),
            tokens in 0usize..600,
            step in 0usize..100,
        ) {
            let mut asking: Vec<_> = wanted.iter().map(|&wanted| Asking::new(wanted)).collect();
            share(&mut asking, tokens, step);
            let all: usize = wanted.iter().sum();
            prop_assert_eq!(asking.iter().map(|it| it.given).sum::<usize>(), all.min(tokens));
            let most = asking.iter().map(|it| it.given).max().unwrap_or(0);
            for it in &asking {
                prop_assert!(it.given == it.wanted || it.given + 1 >= most, "{asking:?}");
                prop_assert!(it.given <= it.wanted);
            }
        }
    }
}
