//! Several texts at once on the thread of their owner, wherever the model is.

use std::collections::VecDeque;

use llama_sys::Token;

use super::checkpoints::CheckpointUse;
use super::error::Error;
use super::fork::Fork;
use super::local::SessionHere;
use super::piece::{Piece, SequenceId};
use super::remote::SessionThere;
use super::request::Generate;
use super::roll_back::RolledBack;
use super::stats::{Replaced, Statistics};
use crate::load::{AbortHandle, Model};
use crate::plan::Plan;

/// The model's one context, on which as many texts are generated at once as the plan has sequences
/// ([`Request::n_seq_max`](crate::plan::Request::n_seq_max)). Dropping it gives the context back.
///
/// Texts with [different adapters](Generate::lora) take turns: a step computes the texts of one set, for some steps in
/// a row, while the others wait.
///
/// With a model in a [worker process](crate::Isolation::Process) it is the same. Where the worker dies, the texts have
/// ended, and the call returns [`Error::Worker`]; the model's next session starts another worker. An own
/// [sampler](Generate::sampler) or [drafts](Generate::draft_with) cannot go there.
///
/// ```no_run
/// use autoplace::Model;
/// let model = Model::builder("model.gguf").parallel(2, 2048).load()?;
/// let mut session = model.session()?;
/// for prompt in ["Once upon a time", "In the beginning"] {
///     session.begin(model.generate(prompt).max_tokens(64))?;
/// }
/// while !session.is_empty() {
///     for piece in session.step()? {
///         println!("{:?}: {}", piece.sequence, piece.text);
///     }
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Session {
    at: At,
    /// Those of the last step.
    pieces: VecDeque<Piece>,
}

#[derive(Debug)]
enum At {
    Here(Box<SessionHere>),
    There(Box<SessionThere>),
}

impl Session {
    pub(super) fn open(model: &Model) -> Result<Self, Error> {
        let at = match model.is_elsewhere() {
            true => At::There(Box::new(SessionThere::open(model)?)),
            false => At::Here(Box::new(SessionHere::open(model)?)),
        };
        Ok(Self { at, pieces: VecDeque::new() })
    }

    /// Begins a text beside those that run. Nothing is computed before the next [`step`](Self::step).
    ///
    /// # Errors
    ///
    /// [`Error::OtherModel`], [`Error::SequencesBusy`], [`Error::PromptTooLong`], [`Error::EmptyPrompt`],
    /// [`Error::EmptyStop`], [`Error::CannotShift`]; [`Error::Constraint`] and [`Error::NoTokenAllowed`];
    /// [`Error::Native`] for a sampling parameter out of range; [`Error::Load`] after a re-placement that failed,
    /// and for an adapter that the model was loaded without; [`Error::Worker`] for what cannot go to a worker, or where
    /// it has died.
    pub fn begin(&mut self, generate: Generate) -> Result<SequenceId, Error> {
        match &mut self.at {
            At::Here(session) => session.begin(generate),
            At::There(session) => session.begin(generate),
        }
    }

    /// Begins a text that goes on from where another one is, beside it. What the context holds of that one is not
    /// computed again, where the memory allows it: a window or a recurrent state is copied as it is now, or goes back
    /// to a [checkpoint](crate::ModelBuilder::checkpoints); what is missing is computed by the next steps. Greedily,
    /// the tokens are those that a fresh text with the same tokens gives.
    ///
    /// # Errors
    ///
    /// [`Error::NotRunning`]; [`Error::SequencesBusy`] and [`Error::PromptTooLong`] where there is no room;
    /// [`Error::ChoicesLost`] where the new sampling goes by the logits of the choices so far (mirostat, adaptive-p,
    /// XTC), which are not kept: [`Fork::from_prompt`] needs none; [`Error::ShiftedOut`] for a text that has lost its
    /// oldest tokens; else as [`begin`](Self::begin).
    pub fn fork(&mut self, sequence: SequenceId, fork: Fork) -> Result<SequenceId, Error> {
        match &mut self.at {
            At::Here(session) => session.fork(sequence, fork),
            At::There(session) => session.fork(sequence, fork),
        }
    }

    /// Forgets the last tokens of a running text, generated ones or ones of its prompt, which is shorter then. The text
    /// goes on as if they had never been there: sampler, constraint, stop strings and random numbers are as they were
    /// before them. Greedily, the tokens after that are those that a fresh text with the same tokens gives. What an
    /// [own sampler](Generate::sampler) remembers by itself stays.
    ///
    /// # Errors
    ///
    /// [`Error::NotRunning`]; [`Error::CannotRollBack`] for more tokens than [`can_roll_back`](Self::can_roll_back)
    /// says; [`Error::ShiftedOut`] for a text that has lost its oldest tokens; [`Error::Load`] after a re-placement
    /// that failed. Nothing has changed then.
    pub fn roll_back(&mut self, sequence: SequenceId, tokens: usize) -> Result<RolledBack, Error> {
        match &mut self.at {
            At::Here(session) => session.roll_back(sequence, tokens),
            At::There(session) => session.roll_back(sequence, tokens),
        }
    }

    /// How many of its last tokens a text can be [rolled back](Self::roll_back) by: all but one where the memory can go
    /// anywhere (attention); else as far as a window is still held, or to the first of its
    /// [checkpoints](crate::ModelBuilder::checkpoints), after which the tokens are computed again. A prompt of fewer
    /// than 64 tokens, which has no checkpoint, is computed again.
    ///
    /// # Errors
    ///
    /// [`Error::NotRunning`]; [`Error::ShiftedOut`] for a text that has lost its oldest tokens; [`Error::Load`] after a
    /// re-placement that failed.
    pub fn can_roll_back(&self, sequence: SequenceId) -> Result<usize, Error> {
        match &self.at {
            At::Here(session) => session.can_roll_back(sequence),
            At::There(session) => session.can_roll_back(sequence),
        }
    }

    /// Computes one batch and returns what it adds to the texts: a piece for each that runs, but for those whose prompt
    /// is not done, and one more for each [draft token](Generate::speculate) that was chosen. Of long prompts, a batch
    /// holds as many tokens as the other texts leave of `n_batch`, shared out evenly.
    ///
    /// Texts end by themselves: the last piece says so, and the text is no longer in the session.
    ///
    /// # Errors
    ///
    /// Whatever llama.cpp fails on, [`llama_sys::Error::Aborted`] included: all texts have ended then. After a
    /// re-placement that failed,
    /// [`Error::Load`]: no text has ended, and after one that succeeds they go on.
    ///
    /// Where the next token of one text cannot be chosen ([`Error::NoTokenAllowed`], [`Error::NotAllowed`], a token of
    /// an [own sampler](Generate::sampler) that is none), that text has ended and no other: [`failed`](Self::failed)
    /// says which. What the step gives to the others comes with the next one.
    pub fn step(&mut self) -> Result<impl ExactSizeIterator<Item = Piece>, Error> {
        self.pieces.clear();
        match &mut self.at {
            At::Here(session) => self.pieces.extend(session.step()?),
            At::There(session) => self.pieces.extend(session.step()?),
        }
        Ok(self.pieces.drain(..))
    }

    /// The text that the last error of [`step`](Self::step) has ended, where it has ended one and no other.
    pub fn failed(&self) -> Option<SequenceId> {
        match &self.at {
            At::Here(session) => session.failed(),
            At::There(session) => session.view().failed,
        }
    }

    /// Ends a text. Returns what it took, or `None` if it had ended.
    pub fn end(&mut self, sequence: SequenceId) -> Option<Statistics> {
        match &mut self.at {
            At::Here(session) => session.end(sequence),
            At::There(session) => session.end(sequence),
        }
    }

    /// Counts and times of a text so far; `None` if it has ended.
    pub fn statistics(&self, sequence: SequenceId) -> Option<Statistics> {
        match &self.at {
            At::Here(session) => session.statistics(sequence),
            At::There(session) => session.view().statistics(sequence),
        }
    }

    /// The tokens of a running text, prompt and all, but those that were [shifted out](super::WhenFull::Shift); `None`
    /// if it has ended.
    pub fn tokens(&self, sequence: SequenceId) -> Option<Vec<Token>> {
        match &self.at {
            At::Here(session) => session.tokens(sequence),
            At::There(session) => session.tokens(sequence),
        }
    }

    /// What checkpoints take, which [`ModelBuilder::checkpoints`](crate::ModelBuilder::checkpoints) limits.
    pub fn checkpoints(&self) -> CheckpointUse {
        match &self.at {
            At::Here(session) => session.checkpoints(),
            At::There(session) => session.view().checkpoints,
        }
    }

    /// Texts that run.
    pub fn len(&self) -> usize {
        match &self.at {
            At::Here(session) => session.len(),
            At::There(session) => session.view().texts.len(),
        }
    }

    /// Whether no text runs, and all that the last step gave was returned.
    pub fn is_empty(&self) -> bool {
        match &self.at {
            At::Here(session) => session.is_empty(),
            At::There(session) => session.view().is_empty,
        }
    }

    /// Texts that can run at once.
    pub fn n_seq_max(&self) -> usize {
        match &self.at {
            At::Here(session) => session.n_seq_max(),
            At::There(session) => session.view().n_seq_max,
        }
    }

    /// Stops a step that another thread is waiting for, which then returns an error. The handle stays valid when the
    /// model is re-placed, and does nothing once the session has ended.
    pub fn abort_handle(&self) -> AbortHandle {
        match &self.at {
            At::Here(session) => session.abort_handle(),
            At::There(session) => session.abort_handle(),
        }
    }

    /// Re-places the model between two tokens: by this plan or, without one, by a plan for what is free once the
    /// model is released. The texts go on with the same tokens as if nothing had happened, and all clones of the
    /// [`Model`](crate::Model) follow.
    ///
    /// # Errors
    ///
    /// Before anything is released, so that the session goes on as it was: [`Error::ContextTooSmall`] and
    /// [`Error::TooFewSequences`] for a plan that has no room for the texts, [`Error::NativeHeld`] while somebody holds
    /// the model underneath, [`Error::Load`] where there is no plan, [`Error::Native`] when a state cannot be saved.
    ///
    /// After that: as [`ModelBuilder::load`](crate::ModelBuilder::load). The model is not loaded then,
    /// [`is_loaded`](Self::is_loaded) says so, and the texts wait: they go on after a re-placement that succeeds.
    pub fn replace(&mut self, plan: Option<Plan>) -> Result<Replaced, Error> {
        match &mut self.at {
            At::Here(session) => session.replace(plan),
            At::There(session) => session.replace(plan),
        }
    }

    /// Re-places the model if that makes it better by this [gain](crate::load::BetterPlan::gain) at least; `None` if
    /// it would not. To be called when memory has become free.
    ///
    /// # Errors
    ///
    /// As [`replace`](Self::replace). Where the better plan cannot be loaded after all, the one before is loaded again
    /// if it can be: then the texts go on all the same.
    pub fn improve(&mut self, min_gain: f64) -> Result<Option<Replaced>, Error> {
        match &mut self.at {
            At::Here(session) => session.improve(min_gain),
            At::There(session) => session.improve(min_gain),
        }
    }

    /// The outcome of the last re-placement, including those that others requested
    /// ([`Model::request_replace`](crate::Model::request_replace)).
    pub fn last_replaced(&self) -> Option<&Result<Replaced, Error>> {
        match &self.at {
            At::Here(session) => session.last_replaced(),
            At::There(session) => session.last_replaced(),
        }
    }

    /// False after a re-placement that failed: the texts are kept, and wait for one that succeeds.
    pub fn is_loaded(&self) -> bool {
        match &self.at {
            At::Here(session) => session.is_loaded(),
            At::There(session) => session.view().is_loaded,
        }
    }
}
