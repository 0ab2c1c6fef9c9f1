//! Re-places the model in the middle of texts: saves their state, releases the model, loads it elsewhere, and restores
//! the state.
//!
//! These parts of each sequence are kept: its tokens, its KV cache or recurrent state in llama.cpp's format, its
//! sampler with its whole state, and the text that is held back. The context and the vocabulary refer to the model, so
//! they are created again.

use std::time::{Duration, Instant};

use llama_sys::Context;

use crate::decode::context::{Lent, Room};
use crate::decode::error::Error;
use crate::decode::sequence::Sequence;
use crate::decode::speculative::Drafters;
use crate::decode::stats::{Replaced, Resumed};
use crate::load::{Contents, Replacement, StateCopy};
use crate::plan::Plan;
use crate::run::local::LocalSession;

impl LocalSession {
    pub(crate) fn replace(&mut self, plan: Option<Plan>) -> Result<Replaced, Error> {
        let outcome = self.replace_by(plan, None).map(|(replaced, _)| replaced);
        self.last_replaced = Some(outcome.clone());
        outcome
    }

    pub(crate) fn improve(&mut self, min_gain: f64) -> Result<Option<Replaced>, Error> {
        let plan = match self.plan_with_room() {
            Ok((plan, _)) => plan,
            Err(Error::ContextTooSmall { .. }) => return Ok(None),
            Err(error) => return Err(error),
        };
        let better = self.model.better(plan).filter(|better| better.gain >= min_gain);
        let Some(better) = better else { return Ok(None) };
        let before = self.is_loaded().then(|| Plan::clone(&self.model.placement()));
        let plan = better.plan.for_depth(self.live_tokens());
        let outcome = self.replace_by(Some(plan), before).map(|(replaced, _)| replaced);
        self.last_replaced = Some(outcome.clone());
        outcome.map(Some)
    }

    pub(crate) fn last_replaced(&self) -> Option<&Result<Replaced, Error>> {
        self.last_replaced.as_ref()
    }

    pub(crate) fn is_loaded(&self) -> bool {
        self.lent.is_some()
    }

    /// Carries out a requested re-placement. If the re-placement is refused, nothing changes. If it fails, the model is
    /// left unloaded.
    pub(crate) fn carry_out(&mut self, replacement: Replacement) -> Result<(), Error> {
        let outcome = match replacement {
            Replacement::Replan => self.replace(None).map(drop),
            Replacement::By(plan) => self.replace(Some(*plan)).map(drop),
            Replacement::ForDepth(plan) => self.move_for_depth(*plan),
            Replacement::Better { min_gain } => self.improve(min_gain).map(drop),
        };
        match outcome {
            Err(error) if self.is_loaded() => {
                tracing::warn!(target: "autoplace::generate", "the model stays where it is: {error}");
                Ok(())
            }
            outcome => outcome,
        }
    }

    /// Re-places the model by `plan`. If that plan cannot be loaded, loads `otherwise` and returns the first error.
    /// Also returns how long it took to copy the states.
    pub(super) fn replace_by(
        &mut self,
        plan: Option<Plan>,
        otherwise: Option<Plan>,
    ) -> Result<(Replaced, StateCopy), Error> {
        let before = self.model.placement();
        let tokens = match &plan {
            Some(plan) => {
                self.check_room(Room::new(&plan.context))?;
                // Making a plan checks the file too.
                self.model.check_file()?;
                0
            }
            None => self.plan_with_room()?.1,
        };
        let live = self.live_tokens();
        let model = self.model.clone();
        let _replacing = model.replacing();
        self.check_holders()?;
        // Idle sequences are lost with the context, so they are stored first. The time that this takes is not a part of
        // the move's time, from which later moves are predicted.
        if let Some(lent) = &mut self.lent {
            self.cache.store_all(&mut lent.context);
            self.drafters.store_all();
        }
        let begun = Instant::now();
        let saved = self.release()?;
        let mut reload = |plan| self.resume(model.reload(plan, (tokens, live))?);
        let resumed = reload(plan);
        if resumed.is_err() && otherwise.is_some() {
            // Returns the first error, whether or not the second load succeeds.
            let _ = reload(otherwise);
        }
        let (resumed, restoring) = resumed?;
        let time = begun.elapsed();
        // If the tokens are computed again, no state was restored.
        let bytes = if resumed == Resumed::Restored { saved.bytes } else { 0 };
        let state = StateCopy { bytes, time: saved.time + restoring };
        Ok((Replaced { before, after: model.placement(), saved: saved.bytes, resumed, time }, state))
    }

    /// A plan for the memory that is free once the model is released, with room for the texts. Also returns the context
    /// size that had to be requested so that the texts fit; 0 if they fit without such a request.
    fn plan_with_room(&self) -> Result<(Plan, u32), Error> {
        let plan = self.model.replan()?;
        if self.check_room(Room::new(&plan.context)).is_ok() {
            return Ok((plan, 0));
        }
        let (longest, all) = self.needs();
        let needs = match plan.context.kv_unified {
            true => all,
            false => longest.saturating_mul(plan.context.n_seq_max as usize),
        };
        // Requests one and a half times the needed tokens, because the texts continue, but not more than the present
        // context has.
        let tokens = needs.saturating_add(needs / 2).try_into().unwrap_or(u32::MAX);
        let tokens = tokens.min(self.model.placement().context.n_ctx);
        let plan = self.model.replan_for(tokens)?;
        self.check_room(Room::new(&plan.context))?;
        Ok((plan, tokens))
    }

    /// The numbers of tokens for which the context must have room: the tokens of the longest text, and the tokens of
    /// all texts together.
    fn needs(&self) -> (usize, usize) {
        let needs = || self.sequences.iter().map(Sequence::needs);
        (needs().max().unwrap_or(0), needs().sum())
    }

    fn check_room(&self, room: Room) -> Result<(), Error> {
        if self.sequences.len() > room.sequences {
            return Err(Error::TooFewSequences { running: self.sequences.len(), n_seq_max: room.sequences });
        }
        let (longest, all) = self.needs();
        for (tokens, context) in [(longest, room.each), (all, room.all)] {
            if tokens > context {
                return Err(Error::ContextTooSmall { tokens, context });
            }
        }
        Ok(())
    }

    /// Fails if objects other than this session use the model, so that it cannot be released.
    fn check_holders(&self) -> Result<(), Error> {
        let Some(lent) = &self.lent else { return Ok(()) };
        // The session's own handles of the model are in the slot with its adapters, in the vocabularies of the context
        // and of the session, and in the drafters.
        let ours = self.model.slot()?.holders() + 2 + self.drafters.drafts.holders();
        let holders = lent.context.model().holders().saturating_sub(ours);
        if holders > 0 { Err(Error::NativeHeld { holders }) } else { Ok(()) }
    }

    /// Saves the state of all texts and drops every handle of the model. Returns the saved bytes, and the time to save
    /// them.
    fn release(&mut self) -> Result<StateCopy, Error> {
        let Some(lent) = &mut self.lent else {
            // After a failed re-placement, another part of the application may have loaded the model in the meantime.
            self.model.take_to_release()?;
            let bytes = self.sequences.iter().map(Sequence::saved_bytes).sum();
            return Ok(StateCopy { bytes, ..StateCopy::default() });
        };
        let (context, begun) = (&mut lent.context, Instant::now());
        let saved = self.sequences.iter_mut().map(|sequence| sequence.save(context));
        let saved = match saved.sum::<Result<u64, Error>>() {
            Ok(bytes) => StateCopy { bytes, time: begun.elapsed() },
            Err(error) => {
                self.sequences.iter_mut().for_each(|sequence| sequence.held.saved = None);
                return Err(error);
            }
        };
        self.drafters = Drafters::default();
        self.lent = None;
        Ok(saved)
    }

    /// Continues with a new context, and returns the time to restore the states. After an error, the context is given
    /// back, and all state is kept for another attempt.
    fn resume(&mut self, mut context: Context) -> Result<(Resumed, Duration), Error> {
        let drafts = self.put_back(&mut context).and_then(|resumed| Ok((resumed, self.model.slot()?.take_drafts()?)));
        match drafts {
            Ok((resumed, drafts)) => {
                self.sequences.iter_mut().for_each(|sequence| sequence.held.saved = None);
                self.cache.emptied();
                self.cache.checkpoints.set_limit(self.model.checkpoints());
                self.drafters = Drafters::new(drafts, self.abort.clone(), &self.model);
                if let (Some(stored), Some(of)) = (&mut self.cache.stored, self.model.prompt_store(context.model())) {
                    stored.renew(of);
                }
                self.lent = Some(Lent::new(context, &self.model.placement().context));
                Ok(resumed)
            }
            Err(error) => {
                self.model.slot()?.give_back(context, Contents::Unknown);
                Err(error)
            }
        }
    }

    fn put_back(&mut self, context: &mut Context) -> Result<(Resumed, Duration), Error> {
        let room = Room::new(&self.model.placement().context);
        self.check_room(room)?;
        context.follow_abort_handle(self.abort.clone());
        for sequence in &mut self.sequences {
            // Each text is restored into its own cells, without sharing.
            sequence.held.shares = None;
        }
        let numbered = |seq: i32| usize::try_from(seq).is_ok_and(|seq| seq < room.sequences);
        if !self.sequences.iter().all(|sequence| numbered(sequence.held.seq)) {
            for (seq, sequence) in (0..).zip(&mut self.sequences) {
                sequence.held.seq = seq;
            }
        }
        let begun = Instant::now();
        let restored = self.sequences.iter().all(|sequence| sequence.restore(context));
        let restoring = begun.elapsed();
        let mut again = false;
        if !restored {
            context.kv_clear()?;
            again = self.sequences.iter().any(|sequence| sequence.held.computed > 0);
            for sequence in &mut self.sequences {
                sequence.compute_again();
            }
        }
        // Tokens that an earlier re-placement left to compute are still missing.
        again |= self.sequences.iter().any(Sequence::is_computed_again);
        Ok((if again { Resumed::Recomputed } else { Resumed::Restored }, restoring))
    }
}
