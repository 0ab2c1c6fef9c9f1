//! The sequence numbers of texts in the context.
//!
//! With a cache for each sequence, llama.cpp computes the next tokens of texts together if their numbers are
//! consecutive, and in separate graphs otherwise (llama-batch.cpp, `split_equal`). Each graph reads all weights. So
//! prompts get their numbers in the order in which they are computed. The texts that generate then have consecutive
//! numbers, while other prompts still wait, and also while texts end, because the oldest ends first.

use llama_sys::SeqId;

use super::Sequence;
use crate::decode::prompt_order::PromptOrder;

/// Exchanges sequence numbers among the texts that have nothing in the context yet, so that the numbers follow the
/// order of the prompts. Keeps the texts in the order of their numbers.
pub(crate) fn number_in_order(sequences: &mut [Sequence], prompts: &PromptOrder) {
    let mut waiting: Vec<usize> = (0..sequences.len()).filter(|at| sequences[*at].holds_nothing()).collect();
    if waiting.len() < 2 {
        return;
    }
    let begun: Vec<SeqId> =
        sequences.iter().filter(|sequence| !sequence.holds_nothing()).map(|sequence| sequence.held.seq).collect();
    let mut numbers: Vec<SeqId> = waiting.iter().map(|at| sequences[*at].held.seq).collect();
    begin_beside(&mut numbers, &begun);
    waiting.sort_by(|a, b| prompts.rank(sequences[*a].id).compare(&prompts.rank(sequences[*b].id)));
    for (at, number) in waiting.into_iter().zip(numbers) {
        sequences[at].held.seq = number;
    }
    sequences.sort_by_key(|sequence| sequence.held.seq);
}

/// Rotates ascending numbers so that the first number directly follows the number of a text that has begun. Changes
/// nothing if no number directly follows such a number.
fn begin_beside(numbers: &mut [SeqId], begun: &[SeqId]) {
    let beside = numbers.iter().position(|number| begun.contains(&(number - 1)));
    numbers.rotate_left(beside.unwrap_or(0));
}

impl Sequence {
    /// Whether the context holds nothing of this text. Such a text can move to any other empty sequence.
    fn holds_nothing(&self) -> bool {
        self.held.computed == 0 && self.held.saved.is_none() && self.held.shares.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::piece::SequenceId;
    use crate::decode::prompt_order::{Asking, in_order};

    const N_UBATCH: usize = 512;
    const ANSWER: usize = 64;

    #[test]
    fn numbers_begin_after_those_of_texts_that_have_begun() {
        let after = |mut numbers: Vec<SeqId>, begun: &[SeqId]| {
            begin_beside(&mut numbers, begun);
            numbers
        };
        assert_eq!(after(vec![0, 1, 2], &[]), [0, 1, 2]);
        assert_eq!(after(vec![0, 1, 4, 7], &[2, 3, 5, 6]), [4, 7, 0, 1]);
        assert_eq!(after(vec![0, 1, 2], &[3]), [0, 1, 2], "no number follows");
    }

    /// A text of the simulation.
    struct Text {
        id: SequenceId,
        number: SeqId,
        prompt: usize,
        computed: usize,
    }

    /// The number of graphs that llama.cpp computes for a batch (`split_equal` with `sequential`). The batch is a list
    /// of sequence numbers, each with its number of tokens.
    fn graphs(batch: &mut [(SeqId, usize)]) -> usize {
        let mut graphs = 0;
        loop {
            let (mut members, mut last): (Vec<usize>, Option<SeqId>) = (Vec::new(), None);
            for (at, (number, left)) in batch.iter().enumerate() {
                if *left > 0 && last.is_none_or(|last| *number == last + 1) {
                    members.push(at);
                    last = Some(*number);
                }
            }
            let Some(each) = members.iter().map(|at| batch[*at].1).min() else { return graphs };
            let each = each.min((N_UBATCH / members.len()).max(1));
            members.iter().for_each(|at| batch[*at].1 -= each);
            graphs += 1;
        }
    }

    /// Number of graphs for prompts of these lengths and their answers, with one sequence for each prompt.
    fn simulate(prompts: &[usize], renumbers: bool) -> usize {
        let text = |(at, prompt): (usize, &usize)| Text {
            id: SequenceId(at as u64),
            number: at as SeqId,
            prompt: *prompt,
            computed: 0,
        };
        let mut texts: Vec<Text> = prompts.iter().enumerate().map(text).collect();
        let mut order = PromptOrder::default();
        let mut all = 0;
        while !texts.is_empty() {
            let waits = |text: &Text| text.computed < text.prompt;
            texts.iter().filter(|text| waits(text)).for_each(|text| order.waits(text.id, text.prompt - text.computed));
            if renumbers {
                let (mut waiting, begun): (Vec<_>, Vec<_>) = texts.iter_mut().partition(|text| text.computed == 0);
                let begun: Vec<SeqId> = begun.iter().map(|text| text.number).collect();
                let mut numbers: Vec<SeqId> = waiting.iter().map(|text| text.number).collect();
                begin_beside(&mut numbers, &begun);
                waiting.sort_by(|a, b| order.rank(a.id).compare(&order.rank(b.id)));
                waiting.into_iter().zip(numbers).for_each(|(text, number)| text.number = number);
                texts.sort_by_key(|text| text.number);
            }
            let running = texts.iter().filter(|text| !waits(text)).count();
            let ask = |text: &Text| Asking::new(order.rank(text.id), text.prompt - text.computed);
            let mut asking: Vec<Asking> = texts.iter().filter(|text| waits(text)).map(ask).collect();
            in_order(&mut asking, N_UBATCH - running);
            order.computed(asking.iter().map(|prompt| prompt.given).sum());
            let mut shares = asking.iter();
            let mut batch = Vec::new();
            for text in &mut texts {
                let tokens = if waits(text) { shares.next().map_or(0, |prompt| prompt.given) } else { 1 };
                batch.push((text.number, tokens));
                text.computed += tokens;
            }
            all += graphs(&mut batch);
            texts.retain(|text| text.computed < text.prompt + ANSWER - 1);
        }
        all
    }

    #[test]
    fn prompts_of_mixed_length_take_few_graphs_in_any_order() {
        // The prompts have 7,868 tokens, which fill 16 graphs. Each of these steps needs a second graph for the running
        // texts. The longest prompt is complete last, and its answer takes 63 more graphs.
        for first in 0..8 {
            let prompt = |at: usize| 130 + (100.0 * (30_f64.powf((at * 5 % 8) as f64 / 7.0) - 1.0)) as usize;
            let prompts: Vec<usize> = (first..first + 8).map(prompt).collect();
            let (before, after) = (simulate(&prompts, false), simulate(&prompts, true));
            assert!(after <= 104 && before >= after + 15, "{before} {after}: {prompts:?}");
        }
    }
}
