//! Several texts at once on the thread of their owner, wherever the model is.

use std::collections::vec_deque::Drain;
use std::path::Path;

use llama_sys::Token;

use super::checkpoints::CheckpointUse;
use super::error::Error;
use super::fork::Fork;
use super::local::SessionHere;
use super::piece::{Piece, SequenceId};
use super::remote::{SessionCall as Call, SessionThere, absolute};
use super::request::Generate;
use super::roll_back::RolledBack;
use super::saved::SavedCache;
use super::stats::{Replaced, Statistics};
use crate::load::{AbortHandle, Model};
use crate::plan::Plan;

/// The model's one context, on which as many texts are generated at once as the plan has sequences
/// ([`Request::n_seq_max`](crate::plan::Request::n_seq_max)). Dropping it gives the context back.
///
/// A model in a [worker process](crate::Isolation::Process) is asked call by call. Where the worker dies, the call says
/// so and all texts have ended; another session has another worker, where
/// [`OnDeath::Resume`](crate::OnDeath::Resume) says so.
///
/// Texts with [other adapters](Generate::lora) take turns: a step computes those of one set, for some tokens, while
/// the others wait.
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
pub struct Session(At);

#[derive(Debug)]
enum At {
    Here(Box<SessionHere>),
    There(Box<SessionThere>),
}

impl Session {
    pub(super) fn open(model: &Model) -> Result<Self, Error> {
        Ok(Self(if model.is_elsewhere() {
            At::There(Box::new(SessionThere::open(model)?))
        } else {
            At::Here(Box::new(SessionHere::open(model)?))
        }))
    }

    /// Begins a text beside those that run. Nothing is computed before the next [`step`](Self::step).
    ///
    /// # Errors
    ///
    /// [`Error::OtherModel`], [`Error::SequencesBusy`], [`Error::PromptTooLong`], [`Error::EmptyPrompt`],
    /// [`Error::EmptyStop`]; [`Error::Constraint`] and [`Error::NoTokenAllowed`]; [`Error::Native`] for a sampling
    /// parameter out of range; [`Error::Load`] after a re-placement that failed, and for an adapter that the model was
    /// not loaded with.
    pub fn begin(&mut self, generate: Generate) -> Result<SequenceId, Error> {
        match &mut self.0 {
            At::Here(it) => it.begin(generate),
            At::There(it) => it.begin(generate),
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
    pub fn step(&mut self) -> Result<Drain<'_, Piece>, Error> {
        match &mut self.0 {
            At::Here(it) => it.step(),
            At::There(it) => it.step(),
        }
    }

    /// The text that the last error of [`step`](Self::step) has ended, where it has ended one and no other.
    pub fn failed(&self) -> Option<SequenceId> {
        match &self.0 {
            At::Here(it) => it.failed(),
            At::There(it) => it.view().failed,
        }
    }

    /// Ends a text. Returns what it took, or `None` if it had ended.
    pub fn end(&mut self, sequence: SequenceId) -> Option<Statistics> {
        match &mut self.0 {
            At::Here(it) => it.end(sequence),
            At::There(it) => it.ask(Call::End(sequence)).ok()?,
        }
    }

    /// Makes a second text of a running one. Both have the same tokens so far, and what the context holds of them is
    /// not computed again: with `kv_unified` they share its cells, otherwise they are copied. Sampler, stop strings,
    /// text that is held back and statistics are those of the first, but for what [`Fork`] says; so are adapters and
    /// constraint. An [own sampler](super::Generate::sampler) is copied with all that it remembers, and for a
    /// [`Fork::from_prompt`] as it was before its first choice.
    ///
    /// A memory that cannot go back to the end of the prompt (recurrent; a window that has passed on) goes back to the
    /// last [checkpoint](crate::ModelBuilder::checkpoints) before it, and computes the rest of the prompt again for a
    /// [`Fork::from_prompt`]: [`Statistics::cached_tokens`] tells from where, 0 without one.
    ///
    /// # Errors
    ///
    /// [`Error::NotRunning`]; [`Error::SequencesBusy`]; [`Error::ContextTooSmall`] where all texts share one cache that
    /// has no place for the fork's next token; [`Error::CannotRollBack`] for a [`Fork::from_prompt`] whose prompt was
    /// forgotten in part by a shift; [`Error::ChoicesLost`] for a sampler that would have to have made choices which
    /// depend on their logits (mirostat, adaptive-p, XTC), unless nothing has been chosen: another answer to the prompt
    /// is always possible; [`Error::Native`] for a sampling parameter out of range; [`Error::Load`] after a
    /// re-placement that failed.
    pub fn fork(&mut self, sequence: SequenceId, fork: Fork) -> Result<SequenceId, Error> {
        match &mut self.0 {
            At::Here(it) => it.fork(sequence, fork),
            At::There(it) => it.ask(Call::Fork(sequence, Box::new(fork))),
        }
    }

    /// Forgets the last `tokens` of a running text, as if they had never been chosen or, where that reaches into the
    /// prompt, never been in it. At least one token stays. With the next [`step`](Self::step) the text goes on: as it
    /// did before where the likeliest token is always taken, and otherwise by the same random numbers, since those are
    /// counted by tokens as well. A text that is to go another way is [forked](Self::fork) with another seed, or given
    /// other [sampling](super::Fork::sampling).
    ///
    /// The sampler forgets the tokens too, for penalties and whatever else looks back, and so does a constraint. An
    /// application's [own sampler](super::Generate::sampler) keeps what it remembers by itself. What was handed out
    /// stays handed out: [`RolledBack::text`] says how much of it to take away.
    ///
    /// What some samplers go by depends on the logits of their choices (mirostat, adaptive-p, XTC), and cannot be taken
    /// back: with those, a text goes back to the end of its prompt and further, but to no place between.
    ///
    /// # Errors
    ///
    /// [`Error::CannotRollBack`], and nothing has changed: more than [`can_roll_back`](Self::can_roll_back) says.
    /// [`Error::NotRunning`]; [`Error::Load`] after a re-placement that failed; [`Error::Native`].
    pub fn roll_back(&mut self, sequence: SequenceId, tokens: usize) -> Result<RolledBack, Error> {
        match &mut self.0 {
            At::Here(it) => it.roll_back(sequence, tokens),
            At::There(it) => it.ask(Call::RollBack(sequence, tokens)),
        }
    }

    /// How many tokens of a running text can be rolled back: all but the first, where the memory holds every token by
    /// itself. A recurrent state knows no earlier one, and with a sliding window (`swa_full` off), what was in the
    /// window then must still be held: those go back as far as to the first
    /// [checkpoint](crate::ModelBuilder::checkpoints) that is kept, and what is between it and the place to go back to
    /// is computed again. A text that was shifted keeps what the shift kept and one token more. 0 for a text that does
    /// not run, and where a sampler would have to go back to a place [between](Self::roll_back).
    ///
    /// # Errors
    ///
    /// [`Error::Load`] after a re-placement that failed; [`Error::Native`].
    pub fn can_roll_back(&self, sequence: SequenceId) -> Result<usize, Error> {
        match &self.0 {
            At::Here(it) => it.can_roll_back(sequence),
            At::There(it) => it.look(Call::CanRollBack(sequence)),
        }
    }

    /// Saves what the context holds of a running text, which goes on. The file holds its tokens and with them what was
    /// said: it is readable for its owner alone. It is written beside its place first, so that a file that was there
    /// stays until the new one is whole.
    ///
    /// # Errors
    ///
    /// [`Error::Saved`] when there is nothing to save or the file cannot be written; [`Error::NotRunning`];
    /// [`Error::Load`] after a re-placement that failed, or when the model file cannot be read any more;
    /// [`Error::Native`].
    pub fn save(&mut self, sequence: SequenceId, path: impl AsRef<Path>) -> Result<SavedCache, Error> {
        match &mut self.0 {
            At::Here(it) => it.save(sequence, path),
            At::There(it) => it.ask(Call::Save(sequence, absolute(path))),
        }
    }

    /// Saves what the text that ended last has left in the context, likewise.
    ///
    /// # Errors
    ///
    /// As [`save`](Self::save).
    pub fn save_last(&mut self, path: impl AsRef<Path>) -> Result<SavedCache, Error> {
        match &mut self.0 {
            At::Here(it) => it.save_last(path),
            At::There(it) => it.ask(Call::SaveLast(absolute(path))),
        }
    }

    /// Restores a saved text beside those that run, as if it had just ended: the next prompt that begins with its
    /// tokens and is asked to ([`cache_prompt`](super::Generate::cache_prompt)) computes only the rest. Where no
    /// sequence is empty, what was used least recently makes room.
    ///
    /// The whole file is read and its checksum compared before llama.cpp sees any of it. The placement need not be
    /// the one that it was saved with: only the types of the cache (`type_k`, `type_v`), fused attention, and
    /// whether sequences share one cache. The adapters and control vectors that it was computed with must be the
    /// model's, told apart by what their files hold, and prompts go on from it that are computed with the same ones
    /// at the same scales.
    ///
    /// # Errors
    ///
    /// [`Error::Saved`] for a file that is damaged, foreign or too long; [`Error::SequencesBusy`]; otherwise as
    /// [`save`](Self::save). The texts that run go on: computed again where llama.cpp itself refused a file whose
    /// checksum was right.
    pub fn restore(&mut self, path: impl AsRef<Path>) -> Result<SavedCache, Error> {
        match &mut self.0 {
            At::Here(it) => it.restore(path),
            At::There(it) => it.ask(Call::Restore(absolute(path))),
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
        match &mut self.0 {
            At::Here(it) => it.replace(plan),
            At::There(it) => it.ask(Call::Replace(plan.map(Box::new))),
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
        match &mut self.0 {
            At::Here(it) => it.improve(min_gain),
            At::There(it) => it.improve(min_gain),
        }
    }

    /// The outcome of the last re-placement, of those too that others asked for
    /// ([`Model::request_replace`](crate::Model::request_replace)).
    pub fn last_replaced(&self) -> Option<Result<Replaced, Error>> {
        match &self.0 {
            At::Here(it) => it.last_replaced().cloned(),
            At::There(it) => it.last_replaced(),
        }
    }

    /// False after a re-placement that failed: the texts are kept, and wait for one that succeeds.
    pub fn is_loaded(&self) -> bool {
        match &self.0 {
            At::Here(it) => it.is_loaded(),
            At::There(it) => it.view().is_loaded,
        }
    }

    /// Counts and times of a text so far; `None` if it has ended.
    pub fn statistics(&self, sequence: SequenceId) -> Option<Statistics> {
        match &self.0 {
            At::Here(it) => it.statistics(sequence),
            At::There(it) => it.statistics(sequence),
        }
    }

    /// The tokens of a running text, prompt and all, without what was forgotten by a shift; `None` if it has ended.
    pub fn tokens(&self, sequence: SequenceId) -> Option<Vec<Token>> {
        match &self.0 {
            At::Here(it) => it.tokens(sequence).map(<[Token]>::to_vec),
            At::There(it) => it.look(Call::Tokens(sequence)).ok()?,
        }
    }

    /// What checkpoints take, which [`ModelBuilder::checkpoints`](crate::ModelBuilder::checkpoints) limits.
    pub fn checkpoints(&self) -> CheckpointUse {
        match &self.0 {
            At::Here(it) => it.checkpoints(),
            At::There(it) => it.view().checkpoints,
        }
    }

    /// Texts that run.
    pub fn len(&self) -> usize {
        match &self.0 {
            At::Here(it) => it.len(),
            At::There(it) => it.view().texts.len(),
        }
    }

    /// Whether no text runs, and all that the last step gave was told.
    pub fn is_empty(&self) -> bool {
        match &self.0 {
            At::Here(it) => it.is_empty(),
            At::There(it) => it.view().is_empty(),
        }
    }

    /// Texts that can run at once.
    pub fn n_seq_max(&self) -> usize {
        match &self.0 {
            At::Here(it) => it.n_seq_max(),
            At::There(it) => it.view().n_seq_max,
        }
    }

    /// Stops a step that another thread is waiting for, which then returns an error. It stays good when the model is
    /// re-placed, and stops nothing any more when the session has ended.
    pub fn abort_handle(&self) -> AbortHandle {
        match &self.0 {
            At::Here(it) => it.abort_handle().into(),
            At::There(it) => it.abort_handle(),
        }
    }
}
