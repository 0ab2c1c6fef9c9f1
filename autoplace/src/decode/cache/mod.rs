//! The cache of finished texts: a new prompt reuses the beginning that it has in common with a finished text.

mod prepare;

use llama_sys::{Context, Position, SeqId, Token};

use self::prepare::Preparation;
pub(crate) use self::prepare::Prepared;
use super::checkpoints::{Checkpoints, Stops};
use super::context::{Lent, Room};
use super::error::Error;
use super::media::NO_SPANS;
use super::prefix::{Prefix, common_prefix, position};
use super::stored::{Progress, Restored, Stored};
use crate::load::{Contents, Remembered};

/// Shortest prefix, in tokens, that is worth a copy. If each sequence has its own cache, llama.cpp copies the whole
/// cache of the sequence, however short the prefix is.
pub(crate) const WORTH_A_COPY: usize = 64;

/// The idle sequences of a context, which have no running text.
#[derive(Debug, Default)]
pub(crate) struct Cache {
    /// The idle sequences, the least recently used first. Empty sequences are not in the list.
    idle: Vec<Remembered>,
    /// Saved earlier states, for memories that cannot return to an earlier state by themselves.
    pub(crate) checkpoints: Checkpoints,
    /// The prompt store, in which idle sequences are also kept outside of the context.
    pub(crate) stored: Option<Stored>,
    /// Whether the last step stored a part of an idle sequence and further parts remain to be stored.
    is_storing: bool,
    /// What is done for a text before it joins.
    preparation: Option<Preparation>,
    /// Whether a part of a waiting text was restored since the last step.
    has_restored: bool,
    /// Whether the content of the context is unknown.
    stale: bool,
}

impl Remembered {
    /// The tokens of the sequence, for a comparison with a text. The prefix has no spans, because only the spans of
    /// that text are used.
    fn prefix(&self) -> Prefix<'_> {
        Prefix { tokens: &self.tokens, spans: &NO_SPANS, marks: &self.marks, scales: &self.scales }
    }
}

/// The sequences with running texts, and their reusable prefixes.
pub(crate) type Running<'a> = [(SeqId, Prefix<'a>)];

/// The sequence that a new text gets.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    pub(crate) seq: SeqId,
    /// The number of tokens at the beginning of the prompt that the sequence already holds.
    pub(crate) cached: usize,
    /// The cached tokens that came from the prompt store.
    pub(crate) restored: Restored,
    /// The sequence of a running text with which this text shares the cells of its cached tokens.
    pub(crate) shares: Option<SeqId>,
    /// The positions at which the computation of the prompt is interrupted for checkpoints.
    pub(crate) stops: Stops,
}

impl Place {
    fn of_its_own(seq: SeqId, cached: usize) -> Self {
        Self { seq, cached, restored: Restored::default(), shares: None, stops: Stops::default() }
    }
}

/// A sequence that holds the beginning of a prompt.
#[derive(Debug, Clone, Copy)]
struct Donor {
    seq: SeqId,
    /// The number of shared tokens. The sequence's memory can return to the end of these tokens.
    shared: usize,
    /// Whether the sequence has no running text.
    is_idle: bool,
    /// Whether the new text takes over this sequence instead of getting a copy of it. It does so if the sequence is
    /// idle and one of these is true: the copy would have to go into this same sequence; few tokens follow the shared
    /// tokens; a copy would displace another text, and at least half of the sequence's tokens are shared.
    yields: bool,
}

impl Cache {
    /// `checkpoints` is the maximum number of bytes of the checkpoints.
    pub(crate) fn new(contents: Contents, checkpoints: u64, stored: Option<Stored>) -> Self {
        let (idle, kept, stale) = match contents {
            Contents::Unknown => (Vec::new(), Vec::new(), true),
            Contents::Idle(idle, kept) => (idle, kept, false),
        };
        let checkpoints = Checkpoints { limit: checkpoints, kept };
        Self { idle, checkpoints, stored, is_storing: false, preparation: None, has_restored: false, stale }
    }

    pub(crate) fn into_contents(self) -> Contents {
        if self.stale { Contents::Unknown } else { Contents::Idle(self.idle, self.checkpoints.kept) }
    }

    /// Discards everything after a failed computation, because the content of the context is unknown.
    pub(crate) fn spoil(&mut self) {
        self.emptied();
        self.checkpoints.kept.clear();
        self.stale = true;
    }

    /// Records that the context holds only running texts. The checkpoints stay valid: they are in host memory, and a
    /// context refuses a checkpoint that does not match it.
    pub(crate) fn emptied(&mut self) {
        self.idle.clear();
        self.preparation = None;
        if let Some(stored) = &mut self.stored {
            stored.stop_restoring();
        }
        self.stale = false;
    }

    /// Keeps the computed tokens of an ended text as an idle sequence.
    pub(crate) fn remember(&mut self, seq: SeqId, held: Prefix<'_>) {
        if let Some(stored) = &mut self.stored {
            stored.changed(seq);
        }
        if !held.tokens.is_empty() {
            let (scales, tokens, marks) = (held.scales.clone(), held.tokens.to_vec(), held.marks.clone());
            self.idle.push(Remembered { seq, scales, tokens, marks, is_stored: false });
        }
    }

    /// Finds a sequence for a prompt. On return, the sequence holds the beginning of the prompt, or nothing.
    ///
    /// Sequences that were computed with other adapters are not reused. Without `reuse`, the sequence is empty, and the
    /// text is computed like the first text of a context. Unless the text was [prepared](Self::prepare), its stored
    /// beginning is restored here, at once.
    pub(crate) fn place(
        &mut self,
        lent: &mut Lent,
        running: &Running<'_>,
        prompt: Prefix<'_>,
        reuse: bool,
        prepared: Option<Prepared>,
    ) -> Result<Place, Error> {
        let free = self.free(lent, running)?;
        let Lent { context, room, .. } = lent;
        let is_alone = running.is_empty();
        let (donor, common) = if reuse {
            let taken =
                running.iter().map(|(_, held)| held.tokens.len()).sum::<usize>() + self.len() + prompt.tokens.len();
            let has_room = !self.is_idle(free) && (!context.kv_unified() || taken <= room.all);
            self.donor(context, running, prompt, free, has_room)?
        } else {
            if running.is_empty() && context.kv_unified() {
                // In an empty cache, the text gets the same cells as the first text of a context.
                self.make_room(context, 0, is_alone)?;
            }
            (None, 0)
        };
        let shared = donor.map_or(0, |donor| donor.shared);
        let restored = match reuse && prepared.is_none() {
            true => self.restore(context, *room, running, free, prompt, shared)?,
            false => None,
        };
        // Idle sequences may have been displaced to make room for a stored beginning, which the context may then have
        // refused. The donor may be one of these sequences.
        let donor = donor.filter(|donor| !donor.is_idle || self.is_idle(donor.seq));
        let mut place = match (restored, donor) {
            (Some(restored), _) => Place { restored, ..Place::of_its_own(free, restored.tokens) },
            (None, Some(donor)) => {
                let prepared = prepared.and_then(|prepared| prepared.sequence);
                let prepared = prepared.filter(|(seq, _)| *seq == donor.seq).map(|(_, restored)| restored);
                self.take_over(context, free, (donor, prepared), prompt, is_alone)?
            }
            (None, None) => {
                self.forget(context, free, is_alone)?;
                Place::of_its_own(free, 0)
            }
        };
        if self.checkpoints.limit > 0 && context.has_partial_state() {
            place.stops = Stops::new(prompt.tokens.len(), prompt.spans, place.cached, common);
        }
        Ok(place)
    }

    /// Copies the prompt's beginning from the donor into the free sequence, or takes over the donor itself. The donor
    /// may be a sequence that was prepared for this text.
    fn take_over(
        &mut self,
        context: &mut Context,
        free: SeqId,
        (donor, prepared): (Donor, Option<Restored>),
        prompt: Prefix<'_>,
        is_alone: bool,
    ) -> Result<Place, Error> {
        let Donor { seq, shared, is_idle, yields } = donor;
        let known = prompt.first(shared);
        if yields {
            // The tokens after the shared tokens are about to be forgotten.
            if self.idle.iter().any(|idle| idle.seq == seq && idle.tokens.len() > shared) {
                self.keep(context, seq, is_alone);
            }
            self.idle.retain(|idle| idle.seq != seq);
            let mut place = Place::of_its_own(seq, self.go_back(context, seq, known)?);
            if let Some(prepared) = prepared.filter(|prepared| prepared.tokens == place.cached) {
                place.restored = prepared;
            }
            return Ok(place);
        }
        self.forget(context, free, is_alone)?;
        let mut cached = 0;
        if context.kv_unified() || shared >= WORTH_A_COPY {
            context.kv_seq_copy(seq, free, 0..Position::MAX)?;
            cached = self.go_back(context, free, known)?;
        }
        let mut place = Place::of_its_own(free, cached);
        place.shares = (context.kv_unified() && !is_idle).then_some(seq);
        Ok(place)
    }

    /// An empty sequence without a text, or the idle sequence that is displaced first. A context of unknown content is
    /// cleared first.
    fn free(&mut self, Lent { context, room, .. }: &mut Lent, running: &Running<'_>) -> Result<SeqId, Error> {
        if self.stale {
            context.kv_clear()?;
            self.emptied();
        }
        let mut free = (0..room.sequences as SeqId).filter(|seq| !running.iter().any(|(running, _)| running == seq));
        let empty = free.find(|seq| !self.is_idle(*seq));
        let free = empty.or_else(|| self.displaced_next().map(|idle| idle.seq));
        free.ok_or(Error::SequencesBusy { n_seq_max: room.sequences })
    }

    /// The idle sequence that is displaced first: the least recently used one. A sequence that is being restored for a
    /// waiting text is the last.
    fn displaced_next(&self) -> Option<&Remembered> {
        let incomplete = self.incomplete();
        self.idle.iter().find(|idle| Some(idle.seq) != incomplete).or(self.idle.first())
    }

    fn is_idle(&self, seq: SeqId) -> bool {
        self.idle.iter().any(|idle| idle.seq == seq)
    }

    /// Finds the sequence that can reuse the most tokens of a prompt. Also returns the longest common prefix with any
    /// sequence. `free` is the sequence that would get a copy. `has_room` is true if a copy needs no cell of another
    /// text.
    fn donor(
        &self,
        context: &Context,
        running: &Running<'_>,
        prompt: Prefix<'_>,
        free: SeqId,
        has_room: bool,
    ) -> Result<(Option<Donor>, usize), Error> {
        let incomplete = self.incomplete();
        let complete = self.idle.iter().filter(|sequence| Some(sequence.seq) != incomplete);
        let idle = complete.map(|sequence| (sequence.seq, sequence.prefix(), true));
        let others = running.iter().map(|&(seq, held)| (seq, held, false));
        let of_set = idle.chain(others).filter(|(_, held, _)| held.scales == prompt.scales);
        let mut best: Option<Donor> = None;
        let mut common = 0;
        for (seq, Prefix { tokens: held, marks, .. }, is_idle) in of_set {
            // The last token is always computed, because its logits choose the next token. A picture is reused as a
            // whole.
            let shared = prompt.common(held, marks).min(prompt.tokens.len().saturating_sub(1));
            let shared = prompt.spans.floor(shared);
            common = common.max(shared);
            let shared = self.reach(context, seq, prompt.first(shared))?;
            if shared == 0 {
                continue;
            }
            // Of two equal donors, the more recently used one wins.
            if best.is_none_or(|best| shared >= best.shared) {
                // If less than half of a sequence's tokens are shared, it is probably another conversation with the
                // same beginning.
                let is_other = has_room || shared * 2 < held.len();
                let yields = is_idle && (seq == free || held.len() - shared < WORTH_A_COPY || !is_other);
                best = Some(Donor { seq, shared, is_idle, yields });
            }
        }
        Ok((best, common))
    }

    /// The number of tokens of `known` that the sequence can keep: all tokens of `known`, or the tokens up to the last
    /// checkpoint.
    pub(crate) fn reach(&self, context: &Context, seq: SeqId, known: Prefix<'_>) -> Result<usize, Error> {
        let tokens = known.tokens.len();
        Ok(if can_go_back(context, seq, known.end())? {
            tokens
        } else {
            self.checkpoints.last_among(known).unwrap_or(0)
        })
    }

    /// Cuts a sequence back to as many tokens of `known` as its memory [can keep](Self::reach). Returns the number of
    /// tokens that it then holds.
    pub(crate) fn go_back(&mut self, context: &mut Context, seq: SeqId, known: Prefix<'_>) -> Result<usize, Error> {
        let tokens = known.tokens.len();
        let held = if !can_go_back(context, seq, known.end())? {
            self.checkpoints.restore(context, seq, known)
        } else if context.kv_seq_remove(seq, position(known.end())..Position::MAX)? {
            tokens
        } else {
            0
        };
        if held == 0 {
            context.kv_seq_remove(seq, 0..Position::MAX)?;
        }
        Ok(held)
    }

    /// Forgets idle sequences that share more than `keep` of these tokens, because a shift is about to move the shared
    /// cells.
    pub(crate) fn part_from(&mut self, context: &mut Context, tokens: &[Token], keep: usize) -> Result<(), Error> {
        let shares = |idle: &mut Remembered| common_prefix(&idle.tokens, tokens) > keep;
        let parting: Vec<SeqId> = self.idle.iter_mut().filter_map(|idle| shares(idle).then_some(idle.seq)).collect();
        parting.into_iter().try_for_each(|seq| self.forget(context, seq, false))
    }

    /// Saves a checkpoint of a running text whose sequence holds exactly these tokens.
    pub(crate) fn checkpoint(&mut self, context: &mut Context, seq: SeqId, held: Prefix<'_>, running: &Running<'_>) {
        let Self { idle, checkpoints, .. } = self;
        // Drops each checkpoint that matches the beginning of no remaining sequence.
        checkpoints.kept.retain(|kept| {
            let begins = |held: Prefix<'_>| held.begins_with(kept);
            running.iter().any(|(_, held)| begins(*held)) || idle.iter().any(|sequence| begins(sequence.prefix()))
        });
        checkpoints.take(context, seq, held);
    }

    /// Forgets idle sequences, least recently used first, until all idle sequences together hold at most `tokens`
    /// tokens. `is_alone` is true if no text waits for its next token meanwhile.
    pub(crate) fn make_room(&mut self, context: &mut Context, tokens: usize, is_alone: bool) -> Result<(), Error> {
        while self.len() > tokens
            && let Some(idle) = self.displaced_next()
        {
            self.forget(context, idle.seq, is_alone)?;
        }
        Ok(())
    }

    /// Number of tokens in idle sequences.
    pub(crate) fn len(&self) -> usize {
        self.idle.iter().map(|idle| idle.tokens.len()).sum()
    }

    /// Restores the longest stored beginning of a prompt into the sequence `free`, if this saves enough in addition to
    /// the `shared` tokens that the context holds anyway. Nothing is displaced before all pieces of the beginning are
    /// in memory. If the result is `None`, nothing has changed, or `free` is empty because the context refused the
    /// pieces.
    fn restore(
        &mut self,
        context: &mut Context,
        room: Room,
        running: &Running<'_>,
        free: SeqId,
        prompt: Prefix<'_>,
        shared: usize,
    ) -> Result<Option<Restored>, Error> {
        let Some((found, brought)) = self.stored.as_mut().and_then(|stored| stored.bring_longest(prompt, shared))
        else {
            return Ok(None);
        };
        let tokens = found.tokens;
        self.make_room_for(context, room, running, (free, tokens), running.is_empty())?;
        let end = prompt.first(tokens).end();
        let restore = |stored: &mut Stored| stored.restore(context, free, (found, brought), end);
        Ok(self.stored.as_mut().and_then(restore))
    }

    /// Empties the sequence `free`, and makes room for this many restored tokens in it.
    fn make_room_for(
        &mut self,
        context: &mut Context,
        room: Room,
        running: &Running<'_>,
        (free, tokens): (SeqId, usize),
        is_alone: bool,
    ) -> Result<(), Error> {
        self.forget(context, free, is_alone)?;
        if context.kv_unified() {
            let others: usize = running.iter().map(|(_, held)| held.tokens.len()).sum();
            self.make_room(context, room.all.saturating_sub(others + tokens), is_alone)?;
        }
        Ok(())
    }

    /// Stores the next pieces of the idle sequence that will be displaced first. Returns whether more pieces are left.
    pub(crate) fn store_part(&mut self, context: &mut Context) -> bool {
        let Self { idle, checkpoints, stored: Some(stored), .. } = self else { return false };
        let Some(next) = idle.iter_mut().find(|idle| !idle.is_stored) else { return false };
        let progress = stored.store_part(context, next, &checkpoints.kept);
        next.is_stored |= progress == Progress::Done;
        // The steps never wait for the thread that writes the folder, which may be slower than the steps.
        self.is_storing = progress != Progress::Later && idle.iter().any(|idle| !idle.is_stored);
        self.is_storing
    }

    /// Whether the next text would displace a sequence that is still being stored. The sequence is stored between the
    /// steps of the `running` running texts.
    pub(crate) fn is_storing_next(&self, room: Room, running: usize) -> bool {
        let is_displaced = running > 0 && running + self.idle.len() >= room.sequences;
        self.is_storing && is_displaced && self.displaced_next().is_some_and(|idle| !idle.is_stored)
    }

    /// Stores the sequence that the next text will displace. If a running text waits for its next token, only as much
    /// is stored as the text can wait for; otherwise the whole sequence.
    pub(crate) fn store_next(&mut self, context: &mut Context, room: Room, running: usize, is_awaited: bool) {
        let has_time = |stored: &Option<Stored>| !is_awaited || stored.as_ref().is_some_and(Stored::has_time);
        while self.is_storing_next(room, running) && has_time(&self.stored) {
            self.store_part(context);
        }
    }

    /// Stores all idle sequences.
    pub(crate) fn store_all(&mut self, context: &mut Context) {
        self.stop_preparing(context);
        if self.stored.is_some() {
            let all: Vec<SeqId> = self.idle.iter().map(|idle| idle.seq).collect();
            all.into_iter().for_each(|seq| self.keep(context, seq, true));
        }
    }

    /// Stores the rows of an idle sequence that is about to be displaced and that are not in the store yet. If a text
    /// waits for its next token, only as many rows are stored as the text can wait for; otherwise all.
    fn keep(&mut self, context: &mut Context, seq: SeqId, is_alone: bool) {
        let Self { idle, checkpoints, stored: Some(stored), .. } = self else { return };
        let Some(idle) = idle.iter_mut().find(|idle| idle.seq == seq && !idle.is_stored) else { return };
        let mut has_waited = false;
        loop {
            match stored.store_part(context, idle, &checkpoints.kept) {
                Progress::Done => break,
                Progress::More if is_alone || stored.has_time() => has_waited = false,
                Progress::Later if is_alone && !has_waited => {
                    stored.wait();
                    has_waited = true;
                }
                Progress::More | Progress::Later => return,
            }
        }
        idle.is_stored = true;
    }

    /// Forgets an idle sequence. Before that, the rows that are not in the prompt store yet are added to the store.
    fn forget(&mut self, context: &mut Context, seq: SeqId, is_alone: bool) -> Result<(), Error> {
        self.keep(context, seq, is_alone);
        self.leave_preparation(seq);
        self.idle.retain(|idle| idle.seq != seq);
        context.kv_seq_remove(seq, 0..Position::MAX)?;
        Ok(())
    }
}

/// Whether the memory of a sequence can drop all tokens from position `keep` on.
///
/// A recurrent state exists only after its last token. A sliding window must still hold the tokens to which the first
/// token after `keep` attends.
pub(crate) fn can_go_back(context: &Context, seq: SeqId, keep: usize) -> Result<bool, Error> {
    let Some(end) = context.kv_seq_end(seq)? else {
        return Ok(keep == 0);
    };
    if usize::try_from(end).is_ok_and(|end| end == keep) {
        return Ok(true);
    }
    let model = context.model();
    if model.is_recurrent() || model.is_hybrid() {
        return Ok(false);
    }
    let Some(first) = context.kv_seq_start(seq)? else {
        return Ok(false);
    };
    let first = usize::try_from(first).unwrap_or(usize::MAX);
    Ok(first == 0 || first.saturating_add(model.n_swa() as usize) <= keep)
}
