//! Texts whose beginnings lie in the same cells of the context: forks, and prompts that begin alike (`kv_unified`).

use super::piece::SequenceId;
use super::sequence::Sequence;

impl Sequence {
    /// Tokens at the beginning that it shares with the text `id`.
    fn shared_with(&self, id: SequenceId) -> Option<usize> {
        let (of, tokens) = self.held.shares?;
        (of == id).then_some(tokens)
    }

    /// Cells of the context that it needs and no other text that it shares cells with has been counted for.
    pub(super) fn cells(&self) -> usize {
        self.len() - self.held.shares.map_or(0, |(_, tokens)| tokens)
    }
}

/// Tokens at the beginning of a text that lie in cells which other running texts hold too.
pub(super) fn shared(sequences: &[Sequence], at: usize) -> usize {
    let this = &sequences[at];
    let by_it = this.held.shares.map(|(_, tokens)| tokens);
    let with_it = sequences.iter().filter_map(|it| it.shared_with(this.id));
    with_it.chain(by_it).max().unwrap_or(0)
}

/// Takes note that a text holds its first `keep` tokens only: what others have shared with it beyond, they share
/// with one of them.
pub(super) fn part_after(sequences: &mut [Sequence], at: usize, keep: usize) {
    let id = sequences[at].id;
    sequences[at].held.shares = sequences[at].held.shares.map(|(of, n)| (of, n.min(keep)));
    part(sequences, id, keep, Some((id, keep)));
}

/// Takes a text out of those that run: what others have shared with it, they share with one of them.
pub(super) fn take_out(sequences: &mut Vec<Sequence>, at: usize) -> Sequence {
    let gone = sequences.remove(at);
    part(sequences, gone.id, 0, gone.held.shares);
    gone
}

/// Of the texts that share more than `keep` tokens with the text `id`, the one that shares the most has all that the
/// others have: they share with that one now, and it has as much of `left` as it had of them.
fn part(
    sequences: &mut [Sequence],
    id: SequenceId,
    keep: usize,
    left: Option<(SequenceId, usize)>,
) {
    let more = |it: &Sequence| it.shared_with(id).filter(|tokens| *tokens > keep);
    let heirs = sequences.iter().filter_map(|it| Some((more(it)?, it.id)));
    let Some((most, heir)) = heirs.max() else {
        return;
    };
    for it in sequences {
        if it.id == heir {
            it.held.shares = left.map(|(of, tokens)| (of, tokens.min(most)));
        } else if let Some(tokens) = more(it) {
            it.held.shares = Some((heir, tokens));
        }
    }
}
