//! The order in which waiting prompts are computed.
//!
//! If all prompts shared the time evenly, they would all be late together. If the shortest prompt came first, the mean
//! time to the first token would be the shortest, but long prompts might wait for ever. The order of this file avoids
//! both. The prompts are ordered as an even sharing would complete them, and the first prompt gets all the time. So no
//! prompt is complete later than it would be with even sharing. With even sharing, a prompt takes its own time
//! multiplied by the number of prompts that wait at the same time. The order of this file is the fair sojourn protocol
//! of Friedman and Henderson, "Fairness and efficiency in web server protocols" (SIGMETRICS 2003).

use std::cmp::Ordering;

use super::piece::SequenceId;

/// A prompt with fewer remaining tokens than this is complete; the remainder is a rounding error.
const ROUNDING: f64 = 1e-6;

/// The waiting prompts, each with the tokens that even sharing would have left to compute.
#[derive(Debug, Default)]
pub(crate) struct PromptOrder {
    /// The prompts in the order of their identifiers.
    prompts: Vec<Prompt>,
    /// The number of prompts that even sharing would have completed by now.
    completed: u64,
}

#[derive(Debug)]
struct Prompt {
    id: SequenceId,
    /// The number of tokens that would still be left to compute if all prompts shared the time evenly. It has a
    /// fraction, so that equal prompts stay equal. With whole numbers, they would overtake each other at every step.
    left: f64,
    /// The prompt's place in the order in which even sharing completed the prompts.
    completed: u64,
    /// Whether the prompt is really waiting.
    waits: bool,
}

/// The place of a prompt in the order. The prompt with the smallest rank is computed first.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Rank {
    left: f64,
    number: u64,
}

impl Rank {
    pub(crate) fn compare(&self, other: &Self) -> Ordering {
        self.left.total_cmp(&other.left).then(self.number.cmp(&other.number))
    }
}

/// A prompt that waits for tokens in a step.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Asking {
    rank: Rank,
    /// The number of tokens of the prompt that are not computed yet; at least one.
    wanted: usize,
    /// The number of tokens of the prompt that this step computes.
    pub(crate) given: usize,
}

impl Asking {
    pub(crate) fn new(rank: Rank, wanted: usize) -> Self {
        Self { rank, wanted, given: 0 }
    }
}

impl PromptOrder {
    /// Marks a prompt as waiting. The caller marks every waiting prompt before each step. `tokens` is the number of
    /// tokens to compute. It is ignored if the prompt is already known.
    pub(crate) fn waits(&mut self, id: SequenceId, tokens: usize) {
        match self.find(id) {
            Ok(at) => self.prompts[at].waits = true,
            Err(at) => self.prompts.insert(at, Prompt { id, left: tokens as f64, completed: 0, waits: true }),
        }
    }

    /// Reduces the number of tokens that a waiting prompt still has to compute, because the cache holds the other
    /// tokens.
    pub(crate) fn shorten(&mut self, id: SequenceId, tokens: usize) {
        if let Ok(at) = self.find(id) {
            let prompt = &mut self.prompts[at];
            prompt.left = prompt.left.min(tokens as f64);
        }
    }

    fn find(&self, id: SequenceId) -> Result<usize, usize> {
        self.prompts.binary_search_by_key(&id, |prompt| prompt.id)
    }

    /// The place of a waiting prompt. Prompts that the even sharing has completed come first.
    pub(crate) fn rank(&self, id: SequenceId) -> Rank {
        match self.find(id).ok().map(|at| &self.prompts[at]) {
            Some(prompt) if prompt.left <= 0.0 => Rank { left: 0.0, number: prompt.completed },
            Some(prompt) => Rank { left: prompt.left, number: id.0 },
            None => Rank { left: f64::INFINITY, number: id.0 },
        }
    }

    /// Shares the tokens that a step computes evenly among the prompts. A prompt that is already computed keeps its
    /// share until even sharing would have completed it too. Otherwise prompts that arrive later would overtake prompts
    /// that wait.
    pub(crate) fn computed(&mut self, tokens: usize) {
        let Self { prompts, completed } = self;
        if !prompts.iter().any(|prompt| prompt.waits) {
            prompts.clear();
            return;
        }
        let mut tokens = tokens as f64;
        loop {
            let open = prompts.iter().filter(|prompt| prompt.left > 0.0);
            let (n, shortest) = open.fold((0.0, f64::INFINITY), |(n, left), prompt| (n + 1.0, prompt.left.min(left)));
            // With some numbers of prompts, such as 49, each division leaves a remainder that never becomes zero.
            if n == 0.0 || tokens < ROUNDING {
                break;
            }
            let each = shortest.min(tokens / n);
            tokens -= each * n;
            for prompt in prompts.iter_mut().filter(|prompt| prompt.left > 0.0) {
                prompt.left -= each;
                // The remainder of a complete prompt is a rounding error.
                if prompt.left < ROUNDING {
                    (prompt.left, prompt.completed) = (0.0, *completed);
                    *completed += 1;
                }
            }
        }
        prompts.retain(|prompt| prompt.left > 0.0 || prompt.waits);
        for prompt in prompts {
            prompt.waits = false;
        }
    }
}

/// Distributes the tokens of a step over the prompts, in their order. A prompt gets all of its tokens before the next
/// prompt gets any.
pub(crate) fn in_order(asking: &mut [Asking], tokens: usize) {
    let mut left = tokens;
    while left > 0 {
        let others = asking.iter_mut().filter(|prompt| prompt.given == 0);
        let Some(first) = others.min_by(|a, b| a.rank.compare(&b.rank)) else { return };
        first.given = first.wanted.min(left);
        left -= first.given;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Shares the tokens evenly: every prompt gets the same number of tokens. Tokens that shorter prompts do not need
    /// go to the longer ones. When there are fewer tokens than prompts, the prompts take turns from step to step.
    fn share(asking: &mut [Asking], tokens: usize, step: usize) {
        let mut left = tokens;
        loop {
            let open = asking.iter().filter(|prompt| prompt.given < prompt.wanted).count();
            if open == 0 {
                return;
            }
            let each = left / open;
            if each == 0 {
                let first = step % open;
                for (at, prompt) in asking.iter_mut().filter(|prompt| prompt.given < prompt.wanted).enumerate() {
                    prompt.given += usize::from((at + open - first) % open < left);
                }
                return;
            }
            for prompt in &mut *asking {
                let more = each.min(prompt.wanted - prompt.given);
                prompt.given += more;
                left -= more;
            }
        }
    }

    /// A prompt of the simulations: the step in which it arrives, and its number of tokens.
    type Arrival = (usize, usize);

    /// The step in which each prompt is complete, by the order of this file.
    fn ordered(arrivals: &[Arrival], chunk: usize) -> Vec<usize> {
        let mut order = PromptOrder::default();
        simulate(arrivals, |_, left, asking| {
            for (at, tokens) in left {
                order.waits(SequenceId(*at as u64), *tokens);
            }
            for (asking, (at, _)) in asking.iter_mut().zip(left) {
                asking.rank = order.rank(SequenceId(*at as u64));
            }
            in_order(asking, chunk);
            order.computed(asking.iter().map(|prompt| prompt.given).sum());
        })
    }

    /// The step in which each prompt is complete by even sharing.
    fn shared(arrivals: &[Arrival], chunk: usize) -> Vec<usize> {
        simulate(arrivals, |step, _, asking| share(asking, chunk, step))
    }

    fn simulate(arrivals: &[Arrival], mut give: impl FnMut(usize, &[(usize, usize)], &mut [Asking])) -> Vec<usize> {
        let mut complete = vec![usize::MAX; arrivals.len()];
        let mut left: Vec<(usize, usize)> = Vec::new();
        let mut step = 0;
        while complete.contains(&usize::MAX) {
            left.extend(
                arrivals
                    .iter()
                    .enumerate()
                    .filter(|(_, arrival)| arrival.0 == step)
                    .map(|(at, arrival)| (at, arrival.1)),
            );
            let unranked = Rank { left: 0.0, number: 0 };
            let mut asking: Vec<Asking> = left.iter().map(|(_, tokens)| Asking::new(unranked, *tokens)).collect();
            give(step, &left, &mut asking);
            for ((at, left), asking) in left.iter_mut().zip(&asking) {
                *left -= asking.given;
                if *left == 0 {
                    complete[*at] = step;
                }
            }
            left.retain(|(_, left)| *left > 0);
            step += 1;
        }
        complete
    }

    fn mean(steps: &[usize]) -> f64 {
        steps.iter().sum::<usize>() as f64 / steps.len() as f64
    }

    #[test]
    fn equal_prompts_are_complete_one_after_another_and_not_all_at_the_end() {
        let arrivals = [(0, 700); 8];
        assert_eq!(ordered(&arrivals, 100), [6, 13, 20, 27, 34, 41, 48, 55]);
        assert!(shared(&arrivals, 100).iter().all(|step| *step > 48));
    }

    #[test]
    fn a_long_prompt_does_not_wait_for_ever_for_short_ones() {
        // The short prompts alone would take all of the time.
        let mut arrivals = vec![(0, 1000)];
        arrivals.extend((0..200).map(|step| (step, 100)));
        let complete = ordered(&arrivals, 100);
        assert!(complete[0] <= shared(&arrivals, 100)[0] && complete[0] < 200, "{complete:?}");
    }

    #[test]
    fn any_number_of_prompts_shares_a_step() {
        for n in 1..=200 {
            let mut order = PromptOrder::default();
            (0..n).for_each(|id| order.waits(SequenceId(id), 1000));
            order.computed(1);
            order.computed(512);
            assert!(order.prompts.iter().all(|prompt| prompt.left > 0.0 && prompt.left < 1000.0));
        }
    }

    proptest! {
        #[test]
        fn a_step_gives_all_its_tokens_to_the_first_prompts(
            wanted in prop::collection::vec(2usize..400, 0..20),
            tokens in 0usize..600,
        ) {
            let mut order = PromptOrder::default();
            for (id, wanted) in (0..).zip(&wanted) {
                order.waits(SequenceId(id), *wanted);
            }
            let ranked = (0..).zip(&wanted).map(|(id, wanted)| Asking::new(order.rank(SequenceId(id)), *wanted));
            let mut asking: Vec<Asking> = ranked.collect();
            in_order(&mut asking, tokens);
            let all: usize = wanted.iter().sum();
            prop_assert_eq!(asking.iter().map(|prompt| prompt.given).sum::<usize>(), all.min(tokens));
            let begun = asking.iter().filter(|prompt| prompt.given > 0 && prompt.given < prompt.wanted).count();
            prop_assert!(begun <= 1, "{asking:?}");
            let longest = asking.iter().filter(|prompt| prompt.given == prompt.wanted).map(|prompt| prompt.wanted).max().unwrap_or(0);
            prop_assert!(asking.iter().all(|prompt| prompt.given == prompt.wanted || prompt.wanted >= longest), "{asking:?}");
        }

        #[test]
        fn no_prompt_is_complete_later_than_by_even_sharing(
            arrivals in prop::collection::vec((0usize..60, 1usize..400), 1..24),
            chunk in 24usize..200,
        ) {
            let (ordered, shared) = (ordered(&arrivals, chunk), shared(&arrivals, chunk));
            for (ordered, shared) in ordered.iter().zip(&shared) {
                // `share` distributes whole tokens, so it may complete a prompt one step earlier.
                prop_assert!(*ordered <= shared + 1, "{ordered:?} {shared:?}");
            }
            prop_assert!(mean(&ordered) <= mean(&shared) + 1.0);
        }
    }
}
