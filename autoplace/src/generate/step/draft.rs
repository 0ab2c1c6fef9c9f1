//! The drafts of one step, over all texts: how many tokens of them there is room for.

use llama_sys::{Batch, Context};

use crate::generate::context::Lent;
use crate::generate::error::Error;
use crate::generate::sequence::Sequence;
use crate::generate::speculative::Drafters;
use crate::generate::stats::DraftsOff;

/// Adds drafts to a batch that holds the next tokens of every text. Returns whether it is a step to learn from: one
/// that computes no prompt, beside which a draft would say little of what drafts take. Others have no drafts.
pub(super) fn draft(
    lent: &Lent,
    drafters: &mut Drafters,
    sequences: &mut [Sequence],
    batch: &mut Batch,
) -> Result<bool, Error> {
    let Lent {
        context,
        vocab,
        room,
        ..
    } = lent;
    if sequences
        .iter()
        .all(|sequence| sequence.speculator.is_none())
    {
        return Ok(false);
    }
    let is_steady = sequences.iter().all(Sequence::is_steady);
    let off = off(context);
    let used: usize = sequences.iter().map(Sequence::len).sum();
    // Within one graph, so that a sliding window loses nothing that is needed after a wrong draft.
    let of_graph = context.n_ubatch().min(context.n_batch()) as usize;
    let outputs = (context.n_outputs_max() as usize).saturating_sub(sequences.len());
    // Further than that, a recurrent state does not go back.
    let back = match context.n_rs_seq() {
        0 => usize::MAX,
        tokens => tokens as usize,
    };
    let mut left = of_graph
        .saturating_sub(batch.len())
        .min(outputs)
        .min(room.all.saturating_sub(used));
    let mut sharing = sequences
        .iter()
        .filter(|it| it.speculator.is_some())
        .count();
    for sequence in sequences.iter_mut().filter(|it| it.speculator.is_some()) {
        let share = if is_steady { left / sharing } else { 0 };
        sharing -= 1;
        let most = share
            .min(back)
            .min(room.each.saturating_sub(sequence.len()));
        left -= sequence.queue_draft(batch, most, off, vocab.n_tokens(), drafters)?;
    }
    Ok(is_steady)
}

/// Why nothing can be drafted with this context, if nothing can.
fn off(context: &Context) -> Option<DraftsOff> {
    let model = context.model();
    if (model.is_recurrent() || model.is_hybrid()) && context.n_rs_seq() == 0 {
        Some(DraftsOff::Memory)
    } else if context.n_outputs_max() <= context.n_seq_max() {
        Some(DraftsOff::NoRoom)
    } else {
        None
    }
}
