//! A session generates several texts at once on its owner's thread. The model runs in this process or in a worker.

use std::collections::VecDeque;

use llama_sys::Token;

use super::local::LocalSession;
use super::remote::WorkerSession;
use crate::decode::checkpoints::CheckpointUse;
use crate::decode::error::Error;
use crate::decode::piece::{Piece, SequenceId};
use crate::decode::request::GenerateRequest;
use crate::decode::stats::{Replaced, Statistics};
use crate::load::{AbortHandle, Model};
use crate::plan::Plan;
use crate::run::local::fork::Fork;
use crate::run::local::roll_back::RolledBack;

/// A session uses the model's only context and generates several texts at once, one per sequence of the plan
/// ([`Request::n_seq_max`](crate::plan::Request::n_seq_max)). When the session is dropped, the context is free again.
///
/// Texts with [different adapters](GenerateRequest::lora) take turns: the session computes the texts of one set for
/// some steps in a row while the other texts wait.
///
/// With a model in a [worker process](crate::Isolation::Process), a session works in the same way. When the worker
/// dies, all texts end and the call returns [`Error::Worker`]; the model's next session starts another worker. A
/// [sampler](GenerateRequest::sampler) or [drafter](GenerateRequest::draft_with) closure cannot be sent to a worker.
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
    runner: Runner,
    /// Pieces of the last step.
    pieces: VecDeque<Piece>,
}

/// Where the session runs: in this process or in a worker. Both variants have the same methods.
#[derive(Debug)]
enum Runner {
    Local(Box<LocalSession>),
    Worker(Box<WorkerSession>),
}

impl Model {
    /// Takes the model's only context to generate several texts at once. [`generate`](Self::generate) is enough for a
    /// single text.
    ///
    /// # Errors
    ///
    /// [`Error::NotGenerative`]; [`Error::Busy`] while a stream or another session of this model exists;
    /// [`Error::Load`] for a model that is not loaded; [`Error::Worker`] when the model's worker process has died or
    /// cannot be started again.
    pub fn session(&self) -> Result<Session, Error> {
        Session::open(self)
    }
}

impl Session {
    pub(crate) fn open(model: &Model) -> Result<Self, Error> {
        let runner = match model.is_in_worker() {
            true => Runner::Worker(Box::new(WorkerSession::open(model)?)),
            false => Runner::Local(Box::new(LocalSession::open(model)?)),
        };
        Ok(Self { runner, pieces: VecDeque::new() })
    }

    /// Begins a text. The next [`step`](Self::step) computes the first token.
    ///
    /// # Errors
    ///
    /// [`Error::OtherModel`], [`Error::SequencesBusy`], [`Error::PromptTooLong`], [`Error::EmptyPrompt`],
    /// [`Error::EmptyStop`], [`Error::CannotShift`]; [`Error::Constraint`] and [`Error::NoTokenAllowed`];
    /// [`Error::Native`] for a sampling parameter out of range; [`Error::Load`] after a re-placement that failed, and
    /// for an adapter that the model was loaded without; [`Error::Worker`] for a closure, which cannot be sent to a
    /// worker, and if the worker has died.
    pub fn begin(&mut self, generate: GenerateRequest) -> Result<SequenceId, Error> {
        match &mut self.runner {
            Runner::Local(session) => session.begin(generate),
            Runner::Worker(session) => session.begin(generate),
        }
    }

    /// Begins a text that continues from the present end of a running text. The new text reuses the cells of the
    /// running text if the model's memory allows this. Windows and recurrent states are copied as they are at present,
    /// or restored from a [checkpoint](crate::ModelBuilder::checkpoints). The next steps compute the tokens that are
    /// then missing. With greedy sampling, the tokens are the same as in a fresh text with the same history.
    ///
    /// # Errors
    ///
    /// [`Error::NotRunning`]; [`Error::SequencesBusy`] and [`Error::PromptTooLong`] when there is no room;
    /// [`Error::ChoicesLost`] when the new sampling depends on the logits of earlier choices (mirostat, adaptive-p,
    /// XTC), which are not kept ([`Fork::from_prompt`] does not need them); [`Error::ShiftedOut`] for a text whose
    /// oldest tokens were discarded; otherwise the errors of [`begin`](Self::begin).
    pub fn fork(&mut self, sequence: SequenceId, fork: Fork) -> Result<SequenceId, Error> {
        match &mut self.runner {
            Runner::Local(session) => session.fork(sequence, fork),
            Runner::Worker(session) => session.fork(sequence, fork),
        }
    }

    /// Discards the last `tokens` tokens of a running text, which may reach into its prompt. The text continues as if
    /// those tokens had never existed: the sampler, the constraint, the stop strings and the random numbers return to
    /// their earlier state. With greedy sampling, the tokens are the same as in a fresh text with the same history. A
    /// [sampler closure](GenerateRequest::sampler) keeps its own state.
    ///
    /// # Errors
    ///
    /// After an error, the text is unchanged. [`Error::NotRunning`]; [`Error::CannotRollBack`] for more tokens than
    /// [`can_roll_back`](Self::can_roll_back) returns; [`Error::ShiftedOut`] for a text whose oldest tokens were
    /// discarded; [`Error::Load`] after a re-placement that failed.
    pub fn roll_back(&mut self, sequence: SequenceId, tokens: usize) -> Result<RolledBack, Error> {
        match &mut self.runner {
            Runner::Local(session) => session.roll_back(sequence, tokens),
            Runner::Worker(session) => session.roll_back(sequence, tokens),
        }
    }

    /// Returns the largest number of tokens that [`roll_back`](Self::roll_back) can discard. If the model has only full
    /// attention, all tokens but one can be discarded. If it has sliding windows, the text can go back as far as the
    /// memory still holds the whole window. With every memory, the text can go back to its first
    /// [checkpoint](crate::ModelBuilder::checkpoints), and the later tokens are computed again. A prompt of fewer than
    /// 64 tokens has no checkpoint; it is computed again instead.
    ///
    /// # Errors
    ///
    /// [`Error::NotRunning`]; [`Error::ShiftedOut`] for a text whose oldest tokens were discarded; [`Error::Load`]
    /// after a re-placement that failed.
    pub fn can_roll_back(&self, sequence: SequenceId) -> Result<usize, Error> {
        match &self.runner {
            Runner::Local(session) => session.can_roll_back(sequence),
            Runner::Worker(session) => session.can_roll_back(sequence),
        }
    }

    /// Computes one batch and returns the new pieces. Each running text gets one piece, except a text whose prompt is
    /// still being computed. A text gets one more piece for each accepted [draft token](GenerateRequest::speculate).
    /// Prompts get the room that is left in `n_batch`.
    ///
    /// The last piece of a text carries its end, and the text has then left the session.
    ///
    /// # Errors
    ///
    /// An error of llama.cpp, including [`llama_sys::Error::Aborted`], ends all texts. After a failed re-placement, the
    /// error is [`Error::Load`]; the texts then stay, and continue after a successful re-placement.
    ///
    /// If the next token of one text cannot be chosen, only that text ends: [`Error::NoTokenAllowed`],
    /// [`Error::NotAllowed`], or a [sampler closure](GenerateRequest::sampler) that returned an invalid token.
    /// [`failed`](Self::failed) names the text. The next step returns the pieces of the other texts.
    pub fn step(&mut self) -> Result<impl ExactSizeIterator<Item = Piece>, Error> {
        self.pieces.clear();
        match &mut self.runner {
            Runner::Local(session) => self.pieces.extend(session.step()?),
            Runner::Worker(session) => self.pieces.extend(session.step()?),
        }
        Ok(self.pieces.drain(..))
    }

    /// The one text that the last error of [`step`](Self::step) ended; `None` for an error that ended all texts.
    pub fn failed(&self) -> Option<SequenceId> {
        match &self.runner {
            Runner::Local(session) => session.failed(),
            Runner::Worker(session) => session.view().failed,
        }
    }

    /// Ends a text. Returns its statistics, or `None` for a text that had already ended.
    pub fn end(&mut self, sequence: SequenceId) -> Option<Statistics> {
        match &mut self.runner {
            Runner::Local(session) => session.end(sequence),
            Runner::Worker(session) => session.end(sequence),
        }
    }

    /// Counts and times of a text so far; `None` for a text that has ended.
    pub fn statistics(&self, sequence: SequenceId) -> Option<Statistics> {
        match &self.runner {
            Runner::Local(session) => session.statistics(sequence),
            Runner::Worker(session) => session.view().statistics(sequence),
        }
    }

    /// The tokens of a running text and of its prompt, without the tokens that were
    /// [discarded](crate::generate::WhenFull::Shift); `None` for a text that has ended. Each row of a picture or a
    /// sound is a negative number.
    pub fn tokens(&self, sequence: SequenceId) -> Option<Vec<Token>> {
        match &self.runner {
            Runner::Local(session) => session.tokens(sequence),
            Runner::Worker(session) => session.tokens(sequence),
        }
    }

    /// Memory that checkpoints take. [`ModelBuilder::checkpoints`](crate::ModelBuilder::checkpoints) limits it.
    pub fn checkpoints(&self) -> CheckpointUse {
        match &self.runner {
            Runner::Local(session) => session.checkpoints(),
            Runner::Worker(session) => session.view().checkpoints,
        }
    }

    /// Number of running texts.
    pub fn len(&self) -> usize {
        match &self.runner {
            Runner::Local(session) => session.len(),
            Runner::Worker(session) => session.view().texts.len(),
        }
    }

    /// Whether no text runs and all pieces of the last step were returned.
    pub fn is_empty(&self) -> bool {
        match &self.runner {
            Runner::Local(session) => session.is_empty(),
            Runner::Worker(session) => session.view().is_empty,
        }
    }

    /// Maximum number of texts that run at once.
    pub fn n_seq_max(&self) -> usize {
        match &self.runner {
            Runner::Local(session) => session.n_seq_max(),
            Runner::Worker(session) => session.view().n_seq_max,
        }
    }

    /// A handle that another thread can use to stop the running step, which then returns an error. The handle stays
    /// valid when the model is re-placed, and does nothing after the session has ended.
    pub fn abort_handle(&self) -> AbortHandle {
        match &self.runner {
            Runner::Local(session) => session.abort_handle(),
            Runner::Worker(session) => session.abort_handle(),
        }
    }

    /// Re-places the model between two tokens. Without a plan, the model is released and a plan is made for the memory
    /// that is free after that. The texts continue with the same tokens, and all clones of the [`Model`](crate::Model)
    /// refer to the new placement.
    ///
    /// # Errors
    ///
    /// The following errors come before the model is released, so the session continues unchanged:
    /// [`Error::ContextTooSmall`] and [`Error::TooFewSequences`] if the plan has no room for the texts,
    /// [`Error::NativeHeld`] while another part of the application uses the native model, [`Error::Load`] when no plan
    /// fits or when the model's file is gone, damaged or of another length
    /// ([`gguf::Error::Changed`](crate::gguf::Error::Changed)), [`Error::Native`] when a state cannot be saved.
    ///
    /// Later errors are those of [`ModelBuilder::load`](crate::ModelBuilder::load). After them, the model is unloaded
    /// ([`is_loaded`](Self::is_loaded) is false), and the texts wait for a successful re-placement.
    pub fn replace(&mut self, plan: Option<Plan>) -> Result<Replaced, Error> {
        match &mut self.runner {
            Runner::Local(session) => session.replace(plan),
            Runner::Worker(session) => session.replace(plan),
        }
    }

    /// Re-places the model if the best plan improves it by at least `min_gain`
    /// ([`BetterPlan::gain`](crate::load::BetterPlan::gain)). Returns `None` if no plan does so. This is useful after
    /// memory has become free.
    ///
    /// # Errors
    ///
    /// The errors of [`replace`](Self::replace). When the better plan cannot be loaded, the earlier plan is loaded
    /// again if possible, and the texts continue.
    pub fn improve(&mut self, min_gain: f64) -> Result<Option<Replaced>, Error> {
        match &mut self.runner {
            Runner::Local(session) => session.improve(min_gain),
            Runner::Worker(session) => session.improve(min_gain),
        }
    }

    /// The outcome of the last re-placement, including one that another part of the application requested
    /// ([`Model::request_replace`](crate::Model::request_replace)).
    pub fn last_replaced(&self) -> Option<&Result<Replaced, Error>> {
        match &self.runner {
            Runner::Local(session) => session.last_replaced(),
            Runner::Worker(session) => session.last_replaced(),
        }
    }

    /// Whether the model is loaded. False after a failed re-placement; the texts are kept until a re-placement
    /// succeeds.
    pub fn is_loaded(&self) -> bool {
        match &self.runner {
            Runner::Local(session) => session.is_loaded(),
            Runner::Worker(session) => session.view().is_loaded,
        }
    }
}
