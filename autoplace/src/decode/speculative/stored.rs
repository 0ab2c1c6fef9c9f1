//! The prompt store of the drafters: the states of a text in the drafters' contexts are stored in addition to the state
//! in the model's context.
//!
//! In: a drafter's context, and the tokens that it holds of each sequence. Out: the beginning of a text, restored into
//! that context, so that the first draft of a restored text does not wait for the whole prompt. A draft model can
//! continue from any place; if it has windows or recurrent states, only from a place where a text has ended. A block
//! for multi-token prediction can also continue only there, because it needs the model's hidden state of the last
//! token, which is stored only at the end of a text.

use std::time::Duration;

use llama_sys::{Batch, Context, Position, SeqId, Token};

use super::SeqTokens;
use crate::decode::cache::can_go_back;
use crate::decode::error::Error;
use crate::decode::media::NO_SPANS;
use crate::decode::prefix::{Prefix, common_prefix, position};
use crate::decode::stored::{Bringing, Idle, MAX_SEARCHES, Progress, Read, Stored, WORTH_RESTORING};
use crate::load::{Draft, Followed, Heads, ModelStore, NO_MARKS, Scales};
use crate::store::{Brought, Found, Text};

/// The store of one drafter.
#[derive(Debug)]
pub(crate) struct StoredDrafter {
    stored: Stored,
    /// Always empty, because adapters change the model and not its drafters.
    scales: Scales,
    /// Whether the context's state belongs to all of its tokens together. If so, the state is stored when the text has
    /// ended.
    needs_rest: bool,
    /// For each sequence, whether everything that the context holds of it is stored, or no more of it can be stored.
    is_stored: Vec<bool>,
    /// States that threads read from the folder. Their texts go on without drafts meanwhile.
    pending: Vec<Pending>,
}

/// A state that a thread reads from the folder.
#[derive(Debug)]
struct Pending {
    seq: SeqId,
    /// The tokens to which the state belongs: the beginning of a text.
    tokens: Vec<Token>,
    bringing: Bringing,
}

/// The stored state of a text.
enum Sought {
    InMemory(Found, Brought),
    /// A thread reads it. Until then, the text goes on without drafts.
    Later,
    /// There is none, or the folder does not answer.
    Nowhere,
}

/// What a draft model's context got from the prompt store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FromStore {
    /// The context holds this many tokens of the text now, and nothing else.
    Tokens(usize),
    /// The context will get tokens at a later draft.
    Later,
    Nothing,
}

/// A step waits at most this long for a drafter's state that is only in the folder, because all running texts wait with
/// it. It does not wait at all while the folder is late with another state.
const WAIT_IN_STEP: Duration = Duration::from_millis(500);

/// Maximum number of states that are read at the same time.
const MAX_PENDING: usize = 4;

impl StoredDrafter {
    /// The link to the store for a draft model whose context has this number of sequences.
    pub(super) fn of_draft(of: ModelStore, sequences: usize) -> Self {
        let needs_rest = of.needs_rest;
        let is_stored = vec![needs_rest; sequences];
        Self { stored: Stored::new(of), scales: Scales::default(), needs_rest, is_stored, pending: Vec::new() }
    }

    /// The link to the store for a block for multi-token prediction. The block's first token is the second token of a
    /// text.
    pub(super) fn of_heads(of: ModelStore, sequences: usize) -> Self {
        let stored = Stored::with_ends(of, 1);
        let is_stored = vec![false; sequences];
        Self { stored, scales: Scales::default(), needs_rest: false, is_stored, pending: Vec::new() }
    }

    /// Records that the drafter's context is about to compute this sequence.
    pub(super) fn changed(&mut self, seq: SeqId) {
        self.stored.changed(seq);
        self.is_stored[seq as usize] = self.needs_rest;
    }

    /// Records that a text has ended. Removes draft tokens that are not in the text from the draft model's context, if
    /// this context can go back that far. The tokens that it then holds can be stored.
    pub(super) fn ended(&mut self, draft: &mut Draft, SeqTokens { seq, tokens }: SeqTokens<'_>) -> Result<(), Error> {
        if let Some(pending) = self.take_pending(seq) {
            self.stored.leave_bringing(pending.bringing);
        }
        let Some(held) = draft.held.get_mut(seq as usize) else { return Ok(()) };
        let keep = common_prefix(held, tokens);
        if keep < held.len() {
            let end = position(keep);
            if !can_go_back(&draft.context, seq, keep)? || !draft.context.kv_seq_remove(seq, end..Position::MAX)? {
                return Ok(());
            }
            held.truncate(keep);
            self.stored.changed(seq);
        }
        self.is_stored[seq as usize] = false;
        Ok(())
    }

    /// Learns from a batch how long the draft model takes for a prompt.
    pub(super) fn computed(&mut self, tokens: usize, took: Duration) {
        self.stored.computed(tokens, took);
    }

    fn take_pending(&mut self, seq: SeqId) -> Option<Pending> {
        let at = self.pending.iter().position(|pending| pending.seq == seq)?;
        Some(self.pending.swap_remove(at))
    }

    /// The longest stored beginning of a text, if restoring it pays although `held` tokens are in the context already.
    /// If pieces are only in the folder, a thread reads them, and the step waits only shortly. If the text `may_wait`,
    /// its later drafts ask again; otherwise nothing is restored.
    fn seek(&mut self, SeqTokens { seq, tokens }: SeqTokens<'_>, held: usize, may_wait: bool) -> Sought {
        let is_late = self.stored.has_left() || !self.pending.is_empty();
        let mut pending = self.take_pending(seq);
        if let Some(of_another) = pending.take_if(|pending| !tokens.starts_with(&pending.tokens)) {
            self.stored.leave_bringing(of_another.bringing);
        }
        for _ in 0..MAX_SEARCHES {
            let mut next = match pending.take() {
                Some(pending) => pending,
                None => {
                    let prefix = Prefix { tokens, spans: &NO_SPANS, marks: &NO_MARKS, scales: &self.scales };
                    let Some(found) = self.stored.find(prefix, held) else { return Sought::Nowhere };
                    if !found.is_in_folder() {
                        match self.stored.in_memory(&found) {
                            Some(brought) => return Sought::InMemory(found, brought),
                            None => continue,
                        }
                    }
                    let tokens = tokens[..found.tokens].to_vec();
                    let is_read = self.pending.len() < MAX_PENDING;
                    let bringing = if is_read { self.stored.start_bringing(found) } else { None };
                    let Some(bringing) = bringing else { return self.late() };
                    Pending { seq, tokens, bringing }
                }
            };
            match next.bringing.wait(if is_late { Duration::ZERO } else { WAIT_IN_STEP }) {
                Read::All(found, brought) => return Sought::InMemory(found, brought),
                Read::Damaged => {}
                Read::NotYet if may_wait => {
                    self.pending.push(next);
                    return Sought::Later;
                }
                Read::NotYet | Read::TooLate => {
                    self.stored.leave_bringing(next.bringing);
                    return self.late();
                }
            }
        }
        Sought::Nowhere
    }

    /// The state is computed anew, because the folder is late.
    fn late(&self) -> Sought {
        let folder = self.stored.folder();
        tracing::warn!(
            target: "autoplace::store",
            "{folder}: the folder does not answer; a drafter continues without its stored state of a text"
        );
        Sought::Nowhere
    }

    /// Restores the longest stored beginning of a text into the context of a draft model, if this is worthwhile
    /// although the context already holds the first `keep` tokens. `others` is the number of tokens of other sequences
    /// in this context.
    pub(super) fn restore(
        &mut self,
        context: &mut Context,
        text: SeqTokens<'_>,
        keep: usize,
        others: usize,
    ) -> Result<FromStore, Error> {
        if !has_room(context, others, text.tokens.len()) {
            return Ok(FromStore::Nothing);
        }
        let (found, brought) = match self.seek(text, keep, true) {
            Sought::InMemory(found, brought) => (found, brought),
            Sought::Later => return Ok(FromStore::Later),
            Sought::Nowhere => return Ok(FromStore::Nothing),
        };
        context.kv_seq_remove(text.seq, 0..Position::MAX)?;
        let end = found.tokens;
        let restored = self.stored.restore(context, text.seq, (found, brought), end);
        Ok(FromStore::Tokens(restored.map_or(0, |restored| restored.tokens)))
    }

    /// Restores what the block for multi-token prediction held of an earlier text that ended just before the token
    /// `from`. `width` is the size of a hidden state, and `others` the number of tokens of other sequences. If the
    /// result is `None`, the block's record is unchanged, but its context may be empty.
    pub(super) fn restore_followed(
        &mut self,
        context: &mut Context,
        SeqTokens { seq, tokens }: SeqTokens<'_>,
        from: usize,
        (width, others): (usize, usize),
    ) -> Result<Option<Followed>, Error> {
        if !has_room(context, others, from) {
            return Ok(None);
        }
        // The last token is included because the search always leaves one token to be computed.
        let Some(tokens) = tokens.get(1..=from).filter(|tokens| tokens.len() > WORTH_RESTORING) else {
            return Ok(None);
        };
        let known = &tokens[..from - 1];
        // A shorter beginning is of no use, because the hidden states of the tokens after such a beginning are no
        // longer known.
        let wanted = known.len() - WORTH_RESTORING;
        // The block cannot get the state later, because it follows the text from here on.
        let Sought::InMemory(found, brought) = self.seek(SeqTokens { seq, tokens }, wanted, false) else {
            return Ok(None);
        };
        let end = brought.rest.as_deref().map_or(&[][..], |end| end.as_chunks::<4>().0);
        if end.len() != width {
            self.stored.forget(&found);
        }
        if found.tokens != known.len() || end.len() != width {
            return Ok(None);
        }
        let hidden = end.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
        context.kv_seq_remove(seq, 0..Position::MAX)?;
        let restored = self.stored.restore(context, seq, (found, brought), from);
        let followed = Followed { first: 1, tokens: known.to_vec(), computed: known.len(), hidden };
        Ok(restored.map(|_| followed))
    }

    /// The sequences that may not be stored completely yet.
    fn unstored(&self) -> impl Iterator<Item = SeqId> + '_ {
        (0..).zip(&self.is_stored).filter(|(_, is_stored)| !**is_stored).map(|(seq, _)| seq)
    }

    /// Stores the next pieces of a sequence.
    fn part(&mut self, context: &mut Context, seq: SeqId, tokens: &[Token], end: Option<&[u8]>) -> Progress {
        let idle = Idle { seq, scales: &self.scales, text: Text::plain(tokens), marks: &NO_MARKS, end };
        let progress = self.stored.store_part_of(context, idle, &[]);
        self.is_stored[seq as usize] = progress == Progress::Done;
        progress
    }

    /// Stores a whole sequence.
    fn all(&mut self, context: &mut Context, seq: SeqId, tokens: &[Token], end: Option<&[u8]>) {
        let mut has_waited = false;
        loop {
            match self.part(context, seq, tokens, end) {
                Progress::Done => return,
                Progress::Later if has_waited => return,
                Progress::Later => {
                    self.stored.wait();
                    has_waited = true;
                }
                Progress::More => has_waited = false,
            }
        }
    }

    /// Stores the next pieces of a draft model's sequence that no text uses. Returns whether more pieces are left.
    pub(super) fn store_part(&mut self, draft: &mut Draft, is_running: impl Fn(SeqId) -> bool) -> bool {
        let has_tokens = |seq: &SeqId| draft.held.get(*seq as usize).is_some_and(|held| !held.is_empty());
        let Some(seq) = self.unstored().find(|seq| has_tokens(seq) && !is_running(*seq)) else { return false };
        // The steps never wait for the thread that writes the folder, which may be slower than the steps.
        self.part(&mut draft.context, seq, &draft.held[seq as usize], None) != Progress::Later
    }

    /// Stores all sequences of a draft model's context.
    pub(super) fn store_all(&mut self, draft: &mut Draft) {
        let unstored: Vec<SeqId> = self.unstored().collect();
        for seq in unstored {
            self.all(&mut draft.context, seq, &draft.held[seq as usize], None);
        }
    }

    /// Like [`store_part`](Self::store_part), for a block for multi-token prediction.
    pub(super) fn store_followed_part(
        &mut self,
        (heads, batch): (&mut Heads, &mut Batch),
        is_running: impl Fn(SeqId) -> bool,
    ) -> Result<bool, Error> {
        let Some(seq) = self.unstored().find(|seq| !is_running(*seq)) else { return Ok(false) };
        let Some(end) = heads.end(batch, seq)? else {
            self.is_stored[seq as usize] = true;
            return Ok(true);
        };
        let tokens = &heads.held[seq as usize].tokens;
        Ok(self.part(&mut heads.context, seq, tokens, Some(&end)) != Progress::Later)
    }

    /// Like [`store_all`](Self::store_all), for a block for multi-token prediction.
    pub(super) fn store_all_followed(&mut self, heads: &mut Heads, batch: &mut Batch) -> Result<(), Error> {
        let unstored: Vec<SeqId> = self.unstored().collect();
        for seq in unstored {
            if let Some(end) = heads.end(batch, seq)? {
                self.all(&mut heads.context, seq, &heads.held[seq as usize].tokens, Some(&end));
            }
        }
        Ok(())
    }
}

/// Whether a drafter's context has room for a text of this many tokens beside `others` tokens of other sequences. The
/// sequences of ended texts keep their cells until a draft needs them, and only a batch that finds no room clears them.
/// If pieces were restored before that, the context would refuse them, and the store would forget them.
fn has_room(context: &Context, others: usize, tokens: usize) -> bool {
    !context.kv_unified() || others + tokens <= context.n_ctx() as usize
}
