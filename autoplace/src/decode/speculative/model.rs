//! A draft model. In: the tokens of a text. Out: the likeliest next tokens.
//!
//! The draft model's context holds the tokens of each sequence as of the last draft. Before the model drafts, it
//! removes the tokens that differ from the text and computes the missing tokens. So it can follow a text that grows or
//! is rolled back.

use std::time::Instant;

use llama_sys::{Batch, Position, SeqId, Token};

use super::stored::{FromStore, StoredDrafter};
use super::{SeqTokens, computed};
use crate::decode::error::Error;
use crate::decode::prefix::{common_prefix, position};
use crate::decode::stored::MIN_BATCH;
use crate::load::Draft;

/// Tokens whose logits are this far below the highest are ignored. All of them together have less than a hundredth of
/// the likeliest token's probability.
const NEGLIGIBLE: f32 = 16.0;

impl Draft {
    /// Drafts up to `most` tokens after `tokens`, while the likeliest token has at least the probability `p_min`.
    ///
    /// Returns the number of tokens that the context got from the prompt store before it drafted.
    pub(crate) fn draft(
        &mut self,
        batch: &mut Batch,
        stored: Option<&mut StoredDrafter>,
        SeqTokens { seq, tokens }: SeqTokens<'_>,
        most: usize,
        p_min: f32,
        drafted: &mut Vec<Token>,
    ) -> Result<usize, Error> {
        // All draft tokens except the last need cells too.
        let n_ctx = self.context.n_ctx_seq() as usize;
        let most = most.min(n_ctx.saturating_sub(tokens.len()) + 1);
        if most == 0 || tokens.len() > n_ctx {
            return Ok(0);
        }
        let Some(restored) = self.catch_up(batch, stored, SeqTokens { seq, tokens })? else { return Ok(0) };
        loop {
            let last = i32::try_from(batch.len()).unwrap_or(i32::MAX) - 1;
            let (likeliest, probability) = likeliest(self.context.logits(last)?);
            if probability < p_min {
                return Ok(restored);
            }
            drafted.push(likeliest);
            if drafted.len() >= most || !self.compute(batch, seq, &[likeliest])? {
                return Ok(restored);
            }
        }
    }

    /// Makes the context hold exactly these tokens, with the logits of the last token. Returns the number of tokens
    /// that came from the prompt store; `None` if there is no room, or if the stored state of the text is still read.
    fn catch_up(
        &mut self,
        batch: &mut Batch,
        mut stored: Option<&mut StoredDrafter>,
        text: SeqTokens<'_>,
    ) -> Result<Option<usize>, Error> {
        let SeqTokens { seq, tokens } = text;
        let held = &mut self.held[seq as usize];
        // The last token is always computed, because its logits are needed.
        let mut keep = common_prefix(held, tokens).min(tokens.len().saturating_sub(1));
        if keep < held.len() && !self.context.kv_seq_remove(seq, position(keep)..Position::MAX)? {
            self.context.kv_seq_remove(seq, 0..Position::MAX)?;
            keep = 0;
        }
        held.truncate(keep);
        let mut restored = 0;
        if let Some(stored) = &mut stored {
            stored.changed(seq);
            let others: usize = self.held.iter().map(Vec::len).sum::<usize>() - keep;
            match stored.restore(&mut self.context, text, keep, others)? {
                FromStore::Tokens(now) => {
                    self.held[seq as usize] = tokens[..now].to_vec();
                    (keep, restored) = (now, now);
                }
                FromStore::Later => return Ok(None),
                FromStore::Nothing => {}
            }
        }
        let n_batch = self.context.n_batch().max(1) as usize;
        for part in tokens[keep..].chunks(n_batch) {
            let begun = Instant::now();
            if !self.compute(batch, seq, part)? {
                return Ok(None);
            }
            if let Some(stored) = stored.as_mut().filter(|_| part.len() >= MIN_BATCH) {
                self.context.synchronize()?;
                stored.computed(part.len(), begun.elapsed());
            }
        }
        Ok(Some(restored))
    }

    /// Computes tokens after those that the context holds, with the logits of the last token. Returns false if there is
    /// no room.
    fn compute(&mut self, batch: &mut Batch, seq: SeqId, tokens: &[Token]) -> Result<bool, Error> {
        let held = &self.held[seq as usize];
        batch.clear();
        for (index, &token) in tokens.iter().enumerate() {
            batch.add(token, position(held.len() + index), seq, index + 1 == tokens.len());
        }
        let decoded = self.context.decode(batch);
        let is_computed = computed(&mut self.context, &mut self.held, seq, decoded)?;
        if is_computed {
            self.held[seq as usize].extend_from_slice(tokens);
        }
        Ok(is_computed)
    }
}

/// The token with the highest logit, and its probability.
pub(crate) fn likeliest(logits: &[f32]) -> (Token, f32) {
    let (mut best, mut highest) = (0, f32::NEG_INFINITY);
    for (token, &logit) in logits.iter().enumerate() {
        if logit > highest {
            (best, highest) = (token, logit);
        }
    }
    let counted = logits.iter().filter(|logit| **logit > highest - NEGLIGIBLE);
    let sum: f32 = counted.map(|logit| (logit - highest).exp()).sum();
    (best as Token, sum.recip())
}

#[cfg(test)]
mod tests {
    use test_support::demo_path;

    use super::likeliest;
    use crate::Model;
    use crate::decode::speculative::Speculation;
    use crate::load::Threads;

    #[test]
    fn a_draft_model_computes_with_the_threads_of_the_text() {
        let model = Model::builder(demo_path()).draft(demo_path()).n_ctx(512).draft_max(4).n_threads(3).load().unwrap();
        let chosen = Threads { generation: 1, prompt: 2, ..model.report().threads.clone() };
        model.counters().paced_by(&chosen);
        let drafts = Speculation::DraftModel { draft_max: 4, p_min: 0.0 };
        let generate = model.generate("Once upon a time").max_tokens(8).speculate(drafts);
        let statistics = generate.stream().unwrap().into_text().unwrap().1;
        assert!(statistics.drafted_tokens > 0, "{statistics}");
        let drafts = model.slot().unwrap().take_drafts().unwrap();
        assert_eq!(drafts.model.unwrap().context.threads(), (1, 2));
    }

    #[test]
    fn the_likeliest_token_has_its_share_of_the_probability() {
        assert_eq!(likeliest(&[0.0, 0.0, -50.0, 0.0, 0.0]), (0, 0.25));
        let (token, probability) = likeliest(&[1.0, 3.0, 2.0]);
        assert_eq!(token, 1);
        assert!((probability - 0.665_24).abs() < 1e-4, "{probability}");
    }
}
