//! The model's own block for multi-token prediction (MTP). In: the tokens of a text and the hidden states that the
//! model computed for them. Out: drafts.
//!
//! The block gets each token together with the hidden state of the token before it (llama.cpp, common/speculative.cpp,
//! `draft-mtp`). The model's context holds those states only until its next batch, so the block follows a text while
//! the model computes the text. If tokens were computed while the block did not follow the text, these tokens are
//! missing in the block's context, and its drafts are worse.

use llama_sys::{Batch, Context, Position, SeqId, Token};

use super::model::likeliest;
use super::stored::StoredDrafter;
use super::{SeqTokens, computed};
use crate::decode::error::Error;
use crate::decode::prefix::{common_prefix, position};
use crate::load::{Followed, Heads};

/// Up to this many tokens wait to be computed with the next draft. If more tokens wait, such as a prompt, they are
/// computed immediately.
const FEW: usize = 64;

impl Heads {
    /// Size of a hidden state, in numbers.
    fn width(&self) -> usize {
        self.context.model().n_embd_out() as usize
    }

    /// Takes the hidden states of the tokens that the model has just computed, beginning with the token `from`. `rows`
    /// are the rows of these tokens in the model's batch. Returns the number of earlier tokens that the block's context
    /// got from the prompt store.
    pub(crate) fn follow(
        &mut self,
        (batch, mut stored): (&mut Batch, Option<&mut StoredDrafter>),
        model: &mut Context,
        SeqTokens { seq, tokens }: SeqTokens<'_>,
        from: usize,
        rows: impl Iterator<Item = i32>,
    ) -> Result<usize, Error> {
        // Forgets tokens that differ from the text, and tokens that were computed again.
        let known = self.known(seq);
        let keep = known.agrees_with(tokens).min((from + 1).saturating_sub(known.first));
        let held = self.cut(seq, keep)?;
        let width = self.width();
        let mut restored = 0;
        if let Some(stored) = &mut stored {
            stored.changed(seq);
            let others =
                (0..).zip(&self.held).filter(|(other, _)| *other != seq).map(|(_, known)| known.computed).sum();
            let known = self.known(seq);
            let goes_on = held && (known.end() == from + 1 || (known.end() == from && known.has_next(width)));
            if !goes_on
                && let Some(text) =
                    stored.restore_followed(&mut self.context, SeqTokens { seq, tokens }, from, (width, others))?
            {
                restored = text.tokens.len();
                *self.known(seq) = text;
            }
        }
        let held = held || restored > 0;
        let known = self.known(seq);
        if known.end() == from && known.has_next(width) {
            known.tokens.extend(tokens.get(from));
        }
        if !held || known.end() != from + 1 {
            self.forget(seq)?;
            self.known(seq).first = from + 1;
        }
        for (position, row) in (from..).zip(rows) {
            let known = self.known(seq);
            // The state belongs to the token that follows. This token is already known, unless the state is that of the
            // last token.
            if position > from {
                known.tokens.extend(tokens.get(position));
            }
            known.hidden.truncate(known.waiting() * width);
            known.hidden.extend_from_slice(model.hidden(row)?);
            if known.waiting() >= self.context.n_batch().max(1) as usize {
                self.catch_up(batch, seq)?;
                if self.known(seq).end() != position + 1 {
                    // The block's context had no room.
                    return Ok(restored);
                }
            }
        }
        if self.known(seq).waiting() > FEW {
            self.catch_up(batch, seq)?;
            self.known(seq).hidden.shrink_to((FEW + 1) * width);
        }
        Ok(restored)
    }

    /// The hidden state for the next token of a sequence that no text uses. The block needs it to continue after the
    /// known tokens. When this returns, the block's context holds all known tokens. `None` if the block has not
    /// followed the text from its second token on, or if its context has no room for the tokens that wait.
    pub(super) fn end(&mut self, batch: &mut Batch, seq: SeqId) -> Result<Option<Vec<u8>>, Error> {
        let width = self.width();
        let known = self.known(seq);
        if known.first != 1 || known.tokens.is_empty() || !known.has_next(width) {
            return Ok(None);
        }
        if !self.catch_up_within_room(batch, seq)? {
            return Ok(None);
        }
        let next = self.known(seq).hidden.get(..width);
        Ok(next.map(|next| next.iter().flat_map(|number| number.to_le_bytes()).collect()))
    }

    /// Drafts up to `most` tokens after `tokens`, while the likeliest token has at least the probability `p_min`.
    /// Drafts nothing unless the block has followed the text up to the token before the last. `batch` and `state` are
    /// scratch buffers.
    pub(super) fn draft(
        &mut self,
        (batch, state): (&mut Batch, &mut Vec<f32>),
        SeqTokens { seq, tokens }: SeqTokens<'_>,
        most: usize,
        p_min: f32,
        drafted: &mut Vec<Token>,
    ) -> Result<(), Error> {
        let width = self.width();
        let most = most.min((self.context.n_ctx_seq() as usize).saturating_sub(tokens.len()) + 1);
        let Some(&last) = tokens.last() else {
            return Ok(());
        };
        let known = self.known(seq);
        let is_there =
            known.end() + 1 == tokens.len() && known.has_next(width) && known.agrees_with(tokens) == known.tokens.len();
        if most == 0 || !is_there {
            return Ok(());
        }
        self.catch_up(batch, seq)?;
        // All waiting tokens are computed now.
        let Some(next) = self.known(seq).hidden.get(..width) else {
            return Ok(());
        };
        state.clear();
        state.extend_from_slice(next);
        let mut token = last;
        for index in tokens.len() - 1.. {
            batch.clear();
            batch.add(token, position(index), seq, true);
            if !self.computed(seq, batch, state)? {
                return Ok(());
            }
            if index + 1 == tokens.len() {
                let known = self.known(seq);
                // This token belongs to the text, and its hidden state comes from the model. Neither is true of draft
                // tokens.
                known.tokens.push(token);
                known.computed += 1;
                known.hidden.clear();
            }
            let (likeliest, probability) = likeliest(self.context.logits(0)?);
            if probability < p_min {
                break;
            }
            drafted.push(likeliest);
            if drafted.len() >= most {
                break;
            }
            state.clear();
            state.extend_from_slice(self.context.hidden(0)?);
            token = likeliest;
        }
        if !self.context.kv_seq_remove(seq, position(tokens.len())..Position::MAX)? {
            self.forget(seq)?;
        }
        Ok(())
    }

    fn known(&mut self, seq: SeqId) -> &mut Followed {
        &mut self.held[seq as usize]
    }

    /// Forgets all known tokens of a sequence except the first `keep`. Returns whether the context could keep these
    /// tokens.
    fn cut(&mut self, seq: SeqId, keep: usize) -> Result<bool, Error> {
        let width = self.width();
        let known = self.known(seq);
        if keep >= known.tokens.len() {
            return Ok(true);
        }
        known.tokens.truncate(keep);
        if keep >= known.computed {
            known.hidden.truncate((known.waiting() + 1) * width);
            return Ok(true);
        }
        known.computed = keep;
        known.hidden.clear();
        let end = position(known.end());
        Ok(self.context.kv_seq_remove(seq, end..Position::MAX)?)
    }

    /// Computes the waiting tokens of a sequence without outputs. If the context has no room for them, it is cleared.
    fn catch_up(&mut self, batch: &mut Batch, seq: SeqId) -> Result<(), Error> {
        while let Some(hidden) = self.next_waiting(batch, seq) {
            if !self.computed(seq, batch, &hidden)? {
                return Ok(());
            }
            self.known(seq).computed += batch.len();
        }
        Ok(())
    }

    /// Like [`catch_up`](Self::catch_up), but if the context has no room, only this sequence is forgotten, because the
    /// other sequences may belong to running texts. Returns whether all tokens are computed.
    fn catch_up_within_room(&mut self, batch: &mut Batch, seq: SeqId) -> Result<bool, Error> {
        while let Some(hidden) = self.next_waiting(batch, seq) {
            match self.context.decode_heads(batch, &hidden) {
                Err(llama_sys::Error::NoKvSlot { .. }) => {
                    self.forget(seq)?;
                    return Ok(false);
                }
                decoded => computed(&mut self.context, &mut self.held, seq, decoded)?,
            };
            self.known(seq).computed += batch.len();
        }
        Ok(true)
    }

    /// Puts the next waiting tokens of a sequence into the batch. Returns their hidden states, which the sequence no
    /// longer has; `None` if no token waits.
    fn next_waiting(&mut self, batch: &mut Batch, seq: SeqId) -> Option<Vec<f32>> {
        let width = self.width();
        let most = self.context.n_batch().max(1) as usize;
        let known = self.known(seq);
        let part = known.waiting().min(most);
        if part == 0 {
            return None;
        }
        batch.clear();
        let tokens = known.tokens[known.computed..].iter().take(part);
        for (index, &token) in (known.first + known.computed..).zip(tokens) {
            batch.add(token, position(index), seq, false);
        }
        let later = known.hidden.split_off(part * width);
        Some(std::mem::replace(&mut known.hidden, later))
    }

    fn computed(&mut self, seq: SeqId, batch: &Batch, hidden: &[f32]) -> Result<bool, Error> {
        let decoded = self.context.decode_heads(batch, hidden);
        computed(&mut self.context, &mut self.held, seq, decoded)
    }

    fn forget(&mut self, seq: SeqId) -> Result<(), Error> {
        *self.known(seq) = Followed::default();
        self.context.kv_seq_remove(seq, 0..Position::MAX)?;
        Ok(())
    }
}

impl Followed {
    /// The position after the last known token.
    fn end(&self) -> usize {
        self.first + self.tokens.len()
    }

    /// Number of known tokens that the context does not hold yet.
    fn waiting(&self) -> usize {
        self.tokens.len() - self.computed
    }

    /// Whether the hidden state for the next token is present.
    fn has_next(&self, width: usize) -> bool {
        self.hidden.len() > self.waiting() * width
    }

    /// Number of known tokens that agree with the text.
    fn agrees_with(&self, tokens: &[Token]) -> usize {
        common_prefix(&self.tokens, tokens.get(self.first..).unwrap_or_default())
    }
}
