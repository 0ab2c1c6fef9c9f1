//! The stored beginning of a text that waits in an engine is restored in parts, between the steps of running texts.
//!
//! The beginning becomes an idle sequence, which the text then takes over like any other. So the text joins only when
//! the sequence is complete, and the running texts wait a few milliseconds for each part.

use llama_sys::{Context, SeqId};

use super::{Cache, Running};
use crate::decode::context::Lent;
use crate::decode::error::Error;
use crate::decode::piece::SequenceId;
use crate::decode::prefix::Prefix;
use crate::decode::stored::{Bringing, MAX_SEARCHES, Restored, Stored};
use crate::load::Remembered;
use crate::store::{Brought, Found};

/// What is done for a waiting text before it joins.
#[derive(Debug)]
pub(super) struct Preparation {
    of: SequenceId,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    /// A thread reads pieces from the folder. This is the search of this number for the text's beginning.
    Bringing(Bringing, usize),
    /// The idle sequence `seq` has its cells, and only a part of its rows.
    Restoring { seq: SeqId, restored: Restored },
    /// The idle sequence is complete, or there is none.
    Ended(Option<(SeqId, Restored)>),
}

impl Cache {
    /// Prepares the text `of`, which waits for its place and would be restored from the prompt store. Returns whether
    /// it may join now. `is_awaited` says whether a running text waits for its next token; if none does, everything
    /// that is left is done at once, or by [`place`](Self::place).
    pub(crate) fn prepare(
        &mut self,
        lent: &mut Lent,
        running: &Running<'_>,
        (of, prompt): (SequenceId, Prefix<'_>),
        is_awaited: bool,
    ) -> Result<bool, Error> {
        if self.stored.is_none() {
            return Ok(true);
        }
        if self.prepares_for().is_some_and(|before| before != of) && self.needs_nothing(lent, running, prompt)? {
            // What is prepared for another text goes on after this text has joined.
            return Ok(true);
        }
        let mut preparation = self.preparation.take();
        if let Some(Preparation { of: before, stage: Stage::Restoring { seq, restored } }) = preparation {
            // Another text's beginning is completed, too, because the text will come.
            if self.restore_part(lent, seq, !is_awaited) {
                self.preparation = Some(Preparation { of: before, stage: Stage::Restoring { seq, restored } });
                return Ok(false);
            }
            let is_there = self.is_idle(seq);
            preparation = Some(Preparation { of: before, stage: Stage::Ended(is_there.then_some((seq, restored))) });
        }
        let stage = match preparation {
            Some(Preparation { of: before, stage: Stage::Ended(ended) }) if before == of => Stage::Ended(ended),
            Some(Preparation { of: before, stage: Stage::Bringing(bringing, searches) }) if before == of => {
                if is_awaited && !bringing.is_finished() {
                    Stage::Bringing(bringing, searches)
                } else {
                    match bringing.end() {
                        Some(brought) => self.begin(lent, running, prompt, brought)?,
                        None if is_awaited => self.first_stage(lent, running, prompt, searches)?,
                        None => Stage::Ended(None),
                    }
                }
            }
            other => {
                if let (Some(stored), Some(Stage::Bringing(bringing, _))) = (&mut self.stored, other.map(|it| it.stage))
                {
                    stored.leave_bringing(bringing);
                }
                if !is_awaited {
                    return Ok(true);
                }
                self.first_stage(lent, running, prompt, 0)?
            }
        };
        let stage = match stage {
            Stage::Restoring { seq, restored } if !is_awaited => {
                self.restore_part(lent, seq, true);
                Stage::Ended(self.is_idle(seq).then_some((seq, restored)))
            }
            stage => stage,
        };
        let is_ready = matches!(stage, Stage::Ended(_));
        self.preparation = Some(Preparation { of, stage });
        Ok(is_ready)
    }

    /// Whether a text gets an empty sequence and nothing from the store.
    fn needs_nothing(&mut self, lent: &mut Lent, running: &Running<'_>, prompt: Prefix<'_>) -> Result<bool, Error> {
        let free = self.free(lent, running)?;
        let held = self.held(lent, running, prompt, free)?;
        let needs = |stored: &mut Stored| stored.find(prompt, held).is_some();
        Ok(!self.is_idle(free) && !self.stored.as_mut().is_some_and(needs))
    }

    /// The number of tokens of a prompt that the context holds, so that a new text can reuse them.
    fn held(&self, lent: &Lent, running: &Running<'_>, prompt: Prefix<'_>, free: SeqId) -> Result<usize, Error> {
        let (donor, _) = self.donor(&lent.context, running, prompt, free, false)?;
        Ok(donor.map_or(0, |donor| donor.shared))
    }

    /// After a damaged piece, another search finds what is left before it. `searches` is the number of earlier
    /// searches.
    fn first_stage(
        &mut self,
        lent: &mut Lent,
        running: &Running<'_>,
        prompt: Prefix<'_>,
        searches: usize,
    ) -> Result<Stage, Error> {
        let free = self.free(lent, running)?;
        let held = self.held(lent, running, prompt, free)?;
        let Some(stored) = &mut self.stored else { return Ok(Stage::Ended(None)) };
        for search in searches + 1..=MAX_SEARCHES {
            let Some(found) = stored.find(prompt, held) else { break };
            if let Some(bringing) = stored.start_bringing(&found) {
                return Ok(Stage::Bringing(bringing, search));
            }
            if let Some(brought) = stored.bring(&found) {
                return self.begin(lent, running, prompt, (found, brought));
            }
        }
        Ok(Stage::Ended(None))
    }

    /// Gives a beginning its cells, in the sequence that a new text would get.
    fn begin(
        &mut self,
        lent: &mut Lent,
        running: &Running<'_>,
        prompt: Prefix<'_>,
        brought: (Found, Brought),
    ) -> Result<Stage, Error> {
        let seq = self.free(lent, running)?;
        let known = prompt.first(brought.0.tokens);
        let Lent { context, room, .. } = lent;
        self.make_room_for(context, *room, running, (seq, known.tokens.len()), false)?;
        let Some(stored) = &mut self.stored else { return Ok(Stage::Ended(None)) };
        self.has_restored = true;
        let Some(restored) = stored.begin_restore(context, seq, brought, known.end()) else {
            return Ok(Stage::Ended(None));
        };
        let (scales, tokens, marks) = (known.scales.clone(), known.tokens.to_vec(), known.marks.clone());
        self.idle.push(Remembered { seq, scales, tokens, marks, is_stored: true });
        Ok(Stage::Restoring { seq, restored })
    }

    /// Writes the next rows of an idle sequence; with `is_last`, all that are left. Returns whether rows are left.
    fn restore_part(&mut self, lent: &mut Lent, seq: SeqId, is_last: bool) -> bool {
        let Some(stored) = &mut self.stored else { return false };
        self.has_restored = true;
        if !is_last && !stored.has_time() {
            return true;
        }
        match stored.restore_part(&mut lent.context, is_last) {
            Some(is_left) => is_left,
            None => {
                self.idle.retain(|idle| idle.seq != seq);
                false
            }
        }
    }

    /// Takes the sequence that was prepared, because its text joins now. If this text is suspended and waits again, it
    /// is prepared again.
    pub(super) fn take_ended(&mut self) -> Option<(SeqId, Restored)> {
        let ended = self.preparation.take_if(|preparation| matches!(preparation.stage, Stage::Ended(_)))?;
        match ended.stage {
            Stage::Ended(prepared) => prepared,
            Stage::Bringing(..) | Stage::Restoring { .. } => None,
        }
    }

    /// Whether a sequence is being restored in parts.
    pub(super) fn is_restoring(&self) -> bool {
        matches!(self.preparation, Some(Preparation { stage: Stage::Restoring { .. }, .. }))
    }

    /// Whether an idle sequence waits for the next text.
    pub(super) fn has_prepared(&self) -> bool {
        matches!(self.preparation, Some(Preparation { stage: Stage::Ended(Some(_)), .. })) || self.is_restoring()
    }

    /// Whether an idle sequence has only a part of its rows.
    pub(crate) fn is_incomplete(&self, seq: SeqId) -> bool {
        matches!(self.preparation, Some(Preparation { stage: Stage::Restoring { seq: of, .. }, .. }) if of == seq)
    }

    /// Records that a sequence is about to be removed.
    pub(super) fn leave_preparation(&mut self, seq: SeqId) {
        let stage = self.preparation.as_ref().map(|preparation| &preparation.stage);
        let (Some(Stage::Restoring { seq: of, .. }) | Some(Stage::Ended(Some((of, _))))) = stage else { return };
        if *of == seq {
            let is_incomplete = self.is_incomplete(seq);
            // The text is prepared anew.
            self.preparation = None;
            if let Some(stored) = self.stored.as_mut().filter(|_| is_incomplete) {
                stored.stop_restoring();
            }
        }
    }

    /// The text for which something was prepared.
    pub(crate) fn prepares_for(&self) -> Option<SequenceId> {
        self.preparation.as_ref().map(|preparation| preparation.of)
    }

    /// Leaves what was prepared for a text that no longer waits. A complete sequence stays, like any idle sequence.
    pub(crate) fn leave_text(&mut self, context: &mut Context) {
        match self.preparation.take() {
            Some(Preparation { stage: Stage::Bringing(bringing, _), .. }) => {
                if let Some(stored) = &mut self.stored {
                    stored.leave_bringing(bringing);
                }
            }
            other => {
                self.preparation = other;
                self.stop_preparing(context);
            }
        }
    }

    /// A step ends. Returns whether a part of a waiting text was restored before it.
    pub(crate) fn has_restored_part(&mut self) -> bool {
        std::mem::take(&mut self.has_restored)
    }

    /// Forgets a sequence that is not complete, because nobody continues to restore it.
    pub(super) fn stop_preparing(&mut self, context: &mut Context) {
        if let Some(Preparation { stage: Stage::Restoring { seq, .. }, .. }) = self.preparation {
            // After a failure, the context no longer works, and its content is not used again.
            let _ = self.forget(context, seq, true);
        }
        self.preparation = None;
    }
}
