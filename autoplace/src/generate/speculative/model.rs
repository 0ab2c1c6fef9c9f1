//! A draft model at work: the tokens of a text flow in, those that the draft takes for the likeliest flow out.
//!
//! Its context holds the tokens of each sequence that it was last asked about. Before it drafts it catches up: it
//! forgets what differs, and computes what is missing. So it follows a text wherever that goes, back and forth.

use llama_sys::{AbortHandle, Batch, Context, Position, SeqId, Token};

use crate::generate::cache::common_prefix;
use crate::generate::error::Error;
use crate::load::Draft;

/// Logits this much below the highest do not count: all the others of a vocabulary together would have less than a
/// hundredth of its chance.
const NEGLIGIBLE: f32 = 16.0;

#[derive(Debug)]
pub(crate) struct DraftModel {
    draft: Draft,
    batch: Batch,
}

impl DraftModel {
    /// Which stops when the main model does.
    pub(crate) fn new(mut draft: Draft, abort: AbortHandle) -> Self {
        draft.context.follow_abort_handle(abort);
        Self { draft, batch: Batch::default() }
    }

    pub(crate) fn into_inner(self) -> Draft {
        self.draft
    }

    /// Drafts up to `most` tokens of a sequence after `tokens`, as long as the likeliest has the probability
    /// `p_min` at least.
    pub(super) fn draft(
        &mut self,
        seq: SeqId,
        tokens: &[Token],
        most: usize,
        p_min: f32,
        drafted: &mut Vec<Token>,
    ) -> Result<(), Error> {
        let Draft { context, held, .. } = &mut self.draft;
        let held = &mut held[seq as usize];
        // The draft itself takes places too, all but the last token of it.
        let places = (context.n_ctx_seq() as usize).saturating_sub(tokens.len());
        let most = most.min(places + 1);
        if most == 0 || tokens.len() > context.n_ctx_seq() as usize {
            return Ok(());
        }
        catch_up(context, &mut self.batch, seq, held, tokens)?;
        loop {
            let last = i32::try_from(self.batch.len()).unwrap_or(i32::MAX) - 1;
            let (likeliest, probability) = likeliest(context.logits(last)?);
            if probability < p_min {
                return Ok(());
            }
            drafted.push(likeliest);
            if drafted.len() >= most {
                return Ok(());
            }
            compute(context, &mut self.batch, seq, held, &[likeliest])?;
        }
    }
}

/// Has a context hold these tokens of a sequence, and the logits after the last of them.
fn catch_up(
    context: &mut Context,
    batch: &mut Batch,
    seq: SeqId,
    held: &mut Vec<Token>,
    tokens: &[Token],
) -> Result<(), Error> {
    // The last one is computed in any case, for its logits.
    let shared = common_prefix(held, tokens).min(tokens.len().saturating_sub(1));
    let keep = if shared == held.len() || remove(context, seq, shared)? {
        shared
    } else {
        remove(context, seq, 0)?;
        0
    };
    held.truncate(keep);
    let n_batch = context.n_batch().max(1) as usize;
    for part in tokens[keep..].chunks(n_batch) {
        compute(context, batch, seq, held, part)?;
    }
    Ok(())
}

/// Forgets what a context holds of a sequence after its first tokens. Returns whether it can.
fn remove(context: &mut Context, seq: SeqId, keep: usize) -> Result<bool, Error> {
    let keep = Position::try_from(keep).unwrap_or(Position::MAX);
    Ok(context.kv_seq_remove(seq, keep..Position::MAX)?)
}

/// Computes tokens after those that are held, with the logits of the last one.
fn compute(
    context: &mut Context,
    batch: &mut Batch,
    seq: SeqId,
    held: &mut Vec<Token>,
    tokens: &[Token],
) -> Result<(), Error> {
    batch.clear();
    for (index, &token) in tokens.iter().enumerate() {
        let position = Position::try_from(held.len() + index).unwrap_or(Position::MAX);
        batch.add(token, position, seq, index + 1 == tokens.len());
    }
    if let Err(error) = context.decode(batch) {
        // Nobody knows what of them is there.
        held.clear();
        context.kv_seq_remove(seq, 0..Position::MAX)?;
        return Err(error.into());
    }
    held.extend_from_slice(tokens);
    Ok(())
}

/// The token with the highest logit, and its probability.
pub(super) fn likeliest(logits: &[f32]) -> (Token, f32) {
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
    use super::likeliest;

    #[test]
    fn the_likeliest_has_its_share_of_all() {
        assert_eq!(likeliest(&[0.0, 0.0, -50.0, 0.0, 0.0]), (0, 0.25));
        let (token, probability) = likeliest(&[1.0, 3.0, 2.0]);
        assert_eq!(token, 1);
        assert!((probability - 0.665_24).abs() < 1e-4, "{probability}");
    }
}
