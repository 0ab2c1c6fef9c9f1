//! The part of a text in a batch: its next tokens and their draft.

use std::time::Duration;

use llama_sys::{Batch, Context, Token, Vocab};

use super::Sequence;
use super::in_batch::InBatch;
use crate::chat::FinishReason;
use crate::decode::cache::can_go_back;
use crate::decode::choose::Choice;
use crate::decode::constraint::Matcher;
use crate::decode::error::Error;
use crate::decode::media::Span;
use crate::decode::piece::{End, Piece};
use crate::decode::speculative::{Drafters, SeqTokens, Speculator};
use crate::decode::stats::DraftingPaused;

impl Sequence {
    /// Number of tokens that can be computed next. In a prompt, these are the tokens up to the next checkpoint or
    /// picture. After the prompt, this is only the token that was generated last. Directly before the rows of a
    /// picture, the number is 0.
    pub(crate) fn wanted(&self) -> usize {
        if self.next_media().is_some() {
            return 0;
        }
        let end = self.held.stops.next(self.held.computed).unwrap_or(usize::MAX).min(self.held.in_batches);
        let end = self.spans.next(self.held.computed).unwrap_or(usize::MAX).min(end);
        end.saturating_sub(self.held.computed).max(1)
    }

    /// The rows of a picture or a sound, if they must be computed before any token.
    pub(crate) fn next_media(&self) -> Option<&Span> {
        self.spans.at(self.held.computed)
    }

    /// Records that the rows of the next picture or sound are computed.
    pub(crate) fn media_computed(&mut self) {
        if let Some(end) = self.next_media().map(Span::end) {
            self.held.computed = end;
        }
    }

    /// Number of tokens that must be computed before the next token can be chosen.
    pub(crate) fn to_compute(&self) -> usize {
        self.held.in_batches.saturating_sub(self.held.computed).max(1)
    }

    /// Adds the next `tokens` tokens to a batch; at most [`wanted`](Self::wanted).
    pub(crate) fn queue(&mut self, batch: &mut Batch, tokens: usize) {
        self.batch = InBatch { at: batch.len() as i32, tokens, queued: tokens, ..InBatch::default() };
        let from = self.held.computed;
        // There is no picture among the queued tokens.
        let first = self.spans.position(from);
        for (index, position) in (from..from + tokens).zip(first..) {
            let last = index + 1 == self.tokens.len();
            if last {
                self.batch.output = Some(batch.len() as i32);
            }
            batch.add(self.tokens[index], position as i32, self.held.seq, last);
        }
    }

    pub(crate) fn is_queued(&self) -> bool {
        self.batch.queued > 0
    }

    /// Whether the batch contains at most one token of this text, and this is a generated token.
    pub(crate) fn is_steady(&self) -> bool {
        self.batch.queued <= 1 && !self.ends_prompt()
    }

    /// Adds a draft of at most `most` tokens to the batch. `off` is the reason why the context allows no draft.
    pub(crate) fn queue_draft(
        &mut self,
        batch: &mut Batch,
        most: usize,
        off: Option<DraftingPaused>,
        n_vocab: u32,
        drafters: &mut Drafters,
    ) -> Result<usize, Error> {
        let Some(speculator) = &mut self.speculator else {
            return Ok(0);
        };
        self.statistics.drafts_off = off.or(speculator.off(drafters));
        // The last token of an answer is never computed. After each draft the sampler chooses one more token.
        let left = self.limits.max_tokens.saturating_sub(self.statistics.generated_tokens);
        let most = most.min(left.saturating_sub(1));
        if off.is_some() || self.batch.output.is_none() {
            speculator.forget();
            return Ok(0);
        }
        let text = SeqTokens { seq: self.held.seq, tokens: &self.tokens };
        let draft = speculator.draft(text, most, n_vocab, drafters)?;
        self.batch.draft_at = batch.len() as i32;
        self.statistics.drafted_tokens += draft.len();
        self.statistics.restored_draft_tokens += std::mem::take(&mut drafters.restored);
        for (position, &token) in (self.tokens.len()..).zip(draft) {
            batch.add(token, position as i32, self.held.seq, true);
        }
        Ok(draft.len())
    }

    /// Whether the batch computes the last token of the prompt.
    pub(crate) fn ends_prompt(&self) -> bool {
        self.batch.output.is_some() && self.statistics.first_token_latency.is_none()
    }

    /// Records that the batch was computed in the time `took`.
    pub(crate) fn computed(&mut self, took: Duration) {
        self.held.computed += self.batch.queued;
        self.batch.queued = 0;
        if self.statistics.first_token_latency.is_none() {
            self.statistics.prompt_time += took;
        } else {
            self.statistics.generation_time += took;
        }
    }

    /// Accepts the chosen token if it is the next token of the draft. Returns whether it was accepted. If so, the batch
    /// already holds the logits for the next choice.
    pub(crate) fn accepts(&mut self, token: Token) -> bool {
        let Some(speculator) = &mut self.speculator else {
            return false;
        };
        let is_accepted = speculator.accepts(token);
        if is_accepted {
            self.held.computed += 1;
            // The logits after the accepted draft token.
            self.batch.output = Some(self.batch.draft_at + speculator.accepted as i32 - 1);
            self.statistics.accepted_tokens += 1;
        }
        is_accepted
    }

    /// Passes the computed tokens after `from` to the drafter: the text's own tokens and the accepted draft tokens.
    pub(crate) fn followed(
        &mut self,
        drafters: &mut Drafters,
        context: &mut Context,
        from: usize,
    ) -> Result<(), Error> {
        if self.held.computed <= from || !self.speculator.as_ref().is_some_and(Speculator::is_followed) {
            return Ok(());
        }
        let row = |index: usize| match index.checked_sub(self.batch.tokens) {
            None => self.batch.at + index as i32,
            Some(drafted) => self.batch.draft_at + drafted as i32,
        };
        let rows = (0..self.held.computed - from).map(row);
        let text = SeqTokens { seq: self.held.seq, tokens: &self.tokens };
        let Drafters { drafts, stored_heads, batch, .. } = drafters;
        if let Some(heads) = &mut drafts.heads {
            let restored = heads.follow((batch, stored_heads.as_mut()), context, text, from, rows)?;
            self.statistics.restored_draft_tokens += restored;
        }
        Ok(())
    }

    /// Removes rejected draft tokens from the context.
    pub(crate) fn forget_draft(&mut self, context: &mut Context) -> Result<(), Error> {
        let Some(speculator) = &self.speculator else {
            return Ok(());
        };
        let (drafted, accepted) = (speculator.draft.len(), speculator.accepted);
        if drafted == accepted {
            return Ok(());
        }
        let keep = self.held.computed as i32;
        // A recurrent state can go back within the last batch, by up to `n_rs_seq` tokens.
        let by_states = drafted - accepted <= context.n_rs_seq() as usize;
        let goes_back = by_states || can_go_back(context, self.held.seq, self.held.computed)?;
        let went_back = goes_back && context.kv_seq_remove(self.held.seq, keep..i32::MAX)?;
        if !went_back {
            context.kv_seq_remove(self.held.seq, 0..i32::MAX)?;
            self.compute_again();
        }
        Ok(())
    }
}

impl Sequence {
    /// The last piece of a text whose request asks for no tokens (`max_tokens` of 0).
    pub(crate) fn end_at_once(&mut self) -> Option<Piece> {
        (self.limits.max_tokens == 0)
            .then(|| Piece { end: Some(self.end(FinishReason::MaxTokens)), ..Piece::new(self.id, None) })
    }

    /// Chooses the next token if the batch has an output of this text.
    pub(crate) fn choose(&mut self, context: &mut Context) -> Result<Option<Choice>, Error> {
        let Some(output) = self.batch.output else {
            return Ok(None);
        };
        // The mask is computed here while the device still computes the logits.
        let mask = self.matcher.as_mut().map(Matcher::mask).transpose()?;
        let is_early = self.statistics.generated_tokens < self.limits.min_tokens;
        Ok(Some(self.chooser.choose(context, output, &self.tokens, mask, is_early)?))
    }

    /// Takes the chosen token and turns it into text. `took` is the time since the batch was computed. `full` is true
    /// if the context has no cell for the token.
    pub(crate) fn take(&mut self, choice: Choice, took: Duration, vocab: &Vocab, full: bool) -> Result<Piece, Error> {
        let statistics = &mut self.statistics;
        if statistics.first_token_latency.is_none() {
            statistics.first_token_latency = Some(statistics.prompt_time + took);
        } else {
            statistics.generation_time += took;
        }
        let Choice { token, logprobs } = choice;
        let mut piece = Piece { logprobs, ..Piece::new(self.id, Some(token)) };
        // Under a constraint, an ignored end token can only be chosen if no other token may follow.
        if vocab.is_eog(token) && (!self.limits.ignore_eos || self.matcher.is_some()) {
            self.finish(&mut piece, FinishReason::EndOfGeneration);
            return Ok(piece);
        }
        if self.stop_tokens.contains(&token) {
            self.finish(&mut piece, FinishReason::StopString);
            return Ok(piece);
        }
        self.tokens.push(token);
        self.statistics.generated_tokens += 1;
        vocab.append_piece(token, self.limits.special, self.text.buffer())?;
        if let Some(matcher) = &mut self.matcher {
            matcher.accept(token)?;
        }
        let is_stopped;
        (piece.text, is_stopped) = self.text.release();
        if is_stopped {
            piece.end = Some(self.end(FinishReason::StopString));
            return Ok(piece);
        }
        if self.matcher.as_ref().is_some_and(Matcher::is_complete) {
            self.finish(&mut piece, FinishReason::EndOfGeneration);
        } else if self.statistics.generated_tokens >= self.limits.max_tokens {
            self.finish(&mut piece, FinishReason::MaxTokens);
        } else if full {
            self.finish(&mut piece, FinishReason::ContextFull);
        }
        Ok(piece)
    }

    /// Ends the text. Adds the characters that were held back to the last piece.
    pub(crate) fn finish(&mut self, piece: &mut Piece, reason: FinishReason) {
        let (rest, is_stopped) = self.text.finish();
        piece.text.push_str(&rest);
        piece.end = Some(self.end(if is_stopped { FinishReason::StopString } else { reason }));
    }

    fn end(&mut self, reason: FinishReason) -> End {
        let meets_constraint = match &mut self.matcher {
            None => true,
            // The matcher has accepted text that the stop string then cut off, and cannot undo this.
            Some(_) if reason == FinishReason::StopString => false,
            Some(matcher) => matcher.may_end(),
        };
        self.statistics.finish_reason = Some(reason);
        let stop_string = self.text.stopped_by();
        End { reason, meets_constraint, stop_string, statistics: self.statistics }
    }
}
