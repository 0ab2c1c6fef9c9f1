//! The stored beginning of a text that waits in an engine is restored in parts, between the steps of running texts.
//!
//! The beginning becomes an idle sequence, which the text then takes over like any other. So the text joins only when
//! the sequence is complete, and the running texts wait a few milliseconds for each part. One text is prepared at a
//! time. Its sequence is displaced last.

use std::time::Duration;

use llama_sys::{Context, SeqId};

use super::{Cache, Running};
use crate::decode::context::Lent;
use crate::decode::error::Error;
use crate::decode::piece::SequenceId;
use crate::decode::prefix::Prefix;
use crate::decode::stored::{Bringing, MAX_SEARCHES, Read, Restored, Stored};
use crate::load::Remembered;
use crate::store::{Brought, Found};

/// If no text is running, an engine waits this long for pieces from the folder, before it looks whether there is
/// something else to do.
const WAIT: Duration = Duration::from_millis(20);

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
}

/// A text may join: the store has been searched for its beginning.
#[derive(Debug, Default)]
pub(crate) struct Prepared {
    /// The idle sequence into which the beginning was restored, if one was found.
    pub(super) sequence: Option<(SeqId, Restored)>,
}

impl Cache {
    /// Prepares the text `of`, which waits for its place, and searches the prompt store for its beginning. `None` if
    /// the text must wait. `is_awaited` says whether a running text waits for its next token; if none does, everything
    /// is restored at once.
    pub(crate) fn prepare(
        &mut self,
        lent: &mut Lent,
        running: &Running<'_>,
        (of, prompt): (SequenceId, Prefix<'_>),
        is_awaited: bool,
    ) -> Result<Option<Prepared>, Error> {
        if self.stored.is_none() {
            return Ok(Some(Prepared::default()));
        }
        let stage = match self.preparation.take_if(|preparation| preparation.of == of) {
            Some(Preparation { stage: Stage::Bringing(mut bringing, searches), .. }) => {
                let wait = if running.is_empty() { WAIT } else { Duration::ZERO };
                match bringing.wait(wait) {
                    Read::NotYet => Some(Stage::Bringing(bringing, searches)),
                    Read::All(found, brought) => self.begin(lent, running, prompt, (found, brought))?,
                    Read::Damaged => self.first_stage(lent, running, prompt, searches)?,
                    Read::TooLate => {
                        if let Some(stored) = &mut self.stored {
                            stored.leave_bringing(bringing);
                        }
                        None
                    }
                }
            }
            Some(Preparation { stage: Stage::Restoring { seq, restored }, .. }) => {
                if !self.restore_part(lent, seq, !is_awaited) {
                    return Ok(Some(self.prepared(seq, restored)));
                }
                Some(Stage::Restoring { seq, restored })
            }
            // Another text is being prepared. If this one needs nothing from the store, it overtakes the other.
            None if self.preparation.is_some() => {
                return Ok((!self.is_in_store(lent, running, prompt)?).then(Prepared::default));
            }
            None => self.first_stage(lent, running, prompt, 0)?,
        };
        match stage {
            None => Ok(Some(Prepared::default())),
            Some(Stage::Restoring { seq, restored }) if !is_awaited => {
                self.restore_part(lent, seq, true);
                Ok(Some(self.prepared(seq, restored)))
            }
            Some(stage) => {
                self.preparation = Some(Preparation { of, stage });
                Ok(None)
            }
        }
    }

    /// The sequence that was prepared, if it is still there.
    fn prepared(&self, seq: SeqId, restored: Restored) -> Prepared {
        Prepared { sequence: self.is_idle(seq).then_some((seq, restored)) }
    }

    /// Whether a beginning of a prompt would be restored from the store.
    fn is_in_store(&mut self, lent: &mut Lent, running: &Running<'_>, prompt: Prefix<'_>) -> Result<bool, Error> {
        let free = self.free(lent, running)?;
        let held = self.held(lent, running, prompt, free)?;
        Ok(self.stored.as_mut().is_some_and(|stored| stored.find(prompt, held).is_some()))
    }

    /// The number of tokens of a prompt that the context holds, so that a new text can reuse them.
    fn held(&self, lent: &Lent, running: &Running<'_>, prompt: Prefix<'_>, free: SeqId) -> Result<usize, Error> {
        let (donor, _) = self.donor(&lent.context, running, prompt, free, false)?;
        Ok(donor.map_or(0, |donor| donor.shared))
    }

    /// Searches for a beginning, and begins to bring or to restore it. `None` if there is none. After a damaged piece,
    /// another search finds what is left before it. `searches` is the number of earlier searches.
    fn first_stage(
        &mut self,
        lent: &mut Lent,
        running: &Running<'_>,
        prompt: Prefix<'_>,
        searches: usize,
    ) -> Result<Option<Stage>, Error> {
        let free = self.free(lent, running)?;
        let held = self.held(lent, running, prompt, free)?;
        let Some(stored) = &mut self.stored else { return Ok(None) };
        for search in searches + 1..=MAX_SEARCHES {
            let Some(found) = stored.find(prompt, held) else { break };
            if found.is_in_folder() {
                return Ok(stored.start_bringing(found).map(|bringing| Stage::Bringing(bringing, search)));
            }
            if let Some(brought) = stored.in_memory(&found) {
                return self.begin(lent, running, prompt, (found, brought));
            }
        }
        Ok(None)
    }

    /// Gives a beginning its cells, in the sequence that a new text would get. `None` if the context refuses it.
    fn begin(
        &mut self,
        lent: &mut Lent,
        running: &Running<'_>,
        prompt: Prefix<'_>,
        brought: (Found, Brought),
    ) -> Result<Option<Stage>, Error> {
        let seq = self.free(lent, running)?;
        let known = prompt.first(brought.0.tokens);
        let Lent { context, room, .. } = lent;
        self.make_room_for(context, *room, running, (seq, known.tokens.len()), running.is_empty())?;
        self.has_restored = true;
        let begin = |stored: &mut Stored| stored.begin_restore(context, seq, brought, known.end());
        let Some(restored) = self.stored.as_mut().and_then(begin) else { return Ok(None) };
        let (scales, tokens, marks) = (known.scales.clone(), known.tokens.to_vec(), known.marks.clone());
        self.idle.push(Remembered { seq, scales, tokens, marks, is_stored: true });
        Ok(Some(Stage::Restoring { seq, restored }))
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

    /// The text that is being prepared.
    pub(crate) fn prepares_for(&self) -> Option<SequenceId> {
        self.preparation.as_ref().map(|preparation| preparation.of)
    }

    /// The idle sequence that has only a part of its rows.
    pub(crate) fn incomplete(&self) -> Option<SeqId> {
        match self.preparation {
            Some(Preparation { stage: Stage::Restoring { seq, .. }, .. }) => Some(seq),
            _ => None,
        }
    }

    /// Whether this text, which has not joined yet, has a sequence.
    pub(crate) fn keeps_place_for(&self, text: SequenceId) -> bool {
        self.incomplete().is_some() && self.prepares_for() == Some(text)
    }

    /// Whether another text, which has not joined yet, has a sequence.
    pub(crate) fn keeps_place_for_another(&self, text: SequenceId) -> bool {
        self.incomplete().is_some() && self.prepares_for() != Some(text)
    }

    /// Records that a sequence is about to be removed. If it was prepared for a text, the text is prepared anew.
    pub(super) fn leave_preparation(&mut self, seq: SeqId) {
        if self.incomplete() == Some(seq) {
            self.preparation = None;
            self.stored.iter_mut().for_each(Stored::stop_restoring);
        }
    }

    /// Called at the end of a step. Returns whether a part of a waiting text was restored before the step.
    pub(crate) fn take_restored_part(&mut self) -> bool {
        std::mem::take(&mut self.has_restored)
    }

    /// Leaves what was prepared, because the text no longer waits, or the context is about to end.
    pub(crate) fn stop_preparing(&mut self, context: &mut Context) {
        match self.preparation.take() {
            Some(Preparation { stage: Stage::Bringing(bringing, _), .. }) => {
                if let Some(stored) = &mut self.stored {
                    stored.leave_bringing(bringing);
                }
            }
            Some(Preparation { stage: Stage::Restoring { seq, .. }, .. }) => {
                self.stored.iter_mut().for_each(Stored::stop_restoring);
                // After a failure, the context no longer works, and its content is not used again.
                let _ = self.forget(context, seq, true);
            }
            None => {}
        }
    }
}
