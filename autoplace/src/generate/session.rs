//! The generation loop: several texts at once on the model's one context.

use llama_sys::{AbortHandle, Batch, Context, Token, Vocab};
use serde::{Deserialize, Serialize};

use super::Generate;
use super::cache::Cache;
use super::checkpoints::CheckpointUse;
use super::error::Error;
use super::fork::take_out;
use super::logprobs::TokenLogprobs;
use super::replace::Replaced;
use super::sequence::Sequence;
use super::share::Asking;
use super::speculative::Drafters;
use super::stats::Statistics;
use super::turn::{PromptChunk, Turn};
use super::turns::Turns;
use crate::load::Model;
use crate::memory::{ContextParams, KvType};

/// Why a text ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum FinishReason {
    /// The model chose a token that ends the text or turn.
    EndOfGeneration,
    /// A stop string came.
    StopString,
    /// `max_tokens` were generated.
    MaxTokens,
    /// The context is full.
    ContextFull,
    /// An error, which the iterator returned.
    Error,
}

/// One of the texts of a [`Session`]. No two of a session are the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SequenceId(pub(super) u64);

/// What a [step](Session::step) adds to one text.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Piece {
    /// The text that it belongs to.
    pub sequence: SequenceId,
    /// The token that was chosen; `None` where a text ends without one.
    pub token: Option<Token>,
    /// How likely the token was, and which others were, if that was [asked for](Generate::logprobs).
    pub logprobs: Option<TokenLogprobs>,
    /// Whole characters; empty while a character or a stop string is incomplete.
    pub text: String,
    /// Set in the last piece of its text.
    pub end: Option<End>,
}

/// How a text ended.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct End {
    /// Why.
    pub reason: FinishReason,
    /// Whether the text is what its constraint has it be; true without one. Where it is false, the reason is the limit
    /// that has cut it short.
    pub meets_constraint: bool,
    /// What it took.
    pub statistics: Statistics,
}

/// The model's one context, on which as many texts are generated at once as the plan has sequences
/// ([`Request::n_seq_max`](crate::plan::Request::n_seq_max)). Dropping it gives the context back.
///
/// Texts with [other adapters](Generate::lora) take turns: a step computes those of one set, for some tokens, while
/// the others wait.
///
/// ```no_run
/// use autoplace::{Model, plan::Request};
/// let model = Model::builder("model.gguf").request(Request::new().n_seq_max(2)).load()?;
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
    pub(super) model: Model,
    /// `None` after a re-placement that failed.
    pub(super) lent: Option<Lent>,
    /// Those that run, in the order of their numbers in the context.
    pub(super) sequences: Vec<Sequence>,
    /// What the context holds besides.
    pub(super) cache: Cache,
    /// What drafts for the model, as far as it is loaded.
    pub(super) drafters: Drafters,
    pub(super) abort: AbortHandle,
    pub(super) last_replaced: Option<Result<Replaced, Error>>,
    /// How much of prompts a step computes.
    pub(super) prompt_chunk: PromptChunk,
    batch: Batch,
    asking: Vec<Asking>,
    pieces: Vec<Piece>,
    /// Texts that a step has ended with an error, which is not told yet.
    failed: Vec<(SequenceId, Error)>,
    /// The one whose error was told last.
    last_failed: Option<SequenceId>,
    /// The pieces are those of a step that told of an error first.
    is_owed: bool,
    turns: Turns,
    begun: u64,
    pub(super) steps: u64,
}

/// The context while the session has it.
#[derive(Debug)]
pub(super) struct Lent {
    pub(super) context: Context,
    pub(super) vocab: Vocab,
    pub(super) room: Room,
    /// The type of the keys.
    pub(super) type_k: KvType,
    /// The type of the values.
    pub(super) type_v: KvType,
}

/// Tokens that a context has places for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Room {
    /// For each sequence.
    pub(super) each: usize,
    /// For all together.
    pub(super) all: usize,
    /// Sequences.
    pub(super) sequences: usize,
}

impl Room {
    /// llama.cpp rounds a context up to a multiple of 256 per sequence; what was asked for, and planned, is what holds.
    pub(super) fn of(params: &ContextParams) -> Self {
        let (all, sequences) = (params.n_ctx as usize, params.n_seq_max.max(1) as usize);
        let each = if params.kv_unified {
            all
        } else {
            all / sequences
        };
        Self {
            each,
            all,
            sequences,
        }
    }
}

impl Lent {
    pub(super) fn new(context: Context, params: &ContextParams) -> Self {
        let mut room = Room::of(params);
        room.each = room.each.min(context.n_ctx_seq() as usize);
        Self {
            vocab: context.model().vocab(),
            context,
            room,
            type_k: params.type_k,
            type_v: params.type_v,
        }
    }
}

impl Model {
    /// Takes the model's one context, to generate several texts at once. For a single text,
    /// [`generate`](Self::generate) does it.
    ///
    /// # Errors
    ///
    /// [`Error::NotGenerative`]; [`Error::Busy`] while a stream or another session of this model lives; [`Error::Load`]
    /// for a model that is not loaded.
    pub fn session(&self) -> Result<Session, Error> {
        let not_generative = || Error::NotGenerative {
            architecture: self.placement().model.architecture.clone(),
        };
        let native = self.native()?;
        // Encoders (BERT), encoder-decoders (T5) and diffusion models (LLaDA) have no next token.
        let causal = native.has_decoder() && !native.has_encoder() && native.shape().causal;
        if !causal || native.is_diffusion() {
            return Err(not_generative());
        }
        drop(native);
        let slot = self.slot();
        let (mut context, contents) = slot.take()?.ok_or(Error::Busy)?;
        if !context.has_memory() {
            slot.give_back(context, contents);
            return Err(not_generative());
        }
        let drafts = match slot.take_drafts() {
            Ok(drafts) => drafts,
            Err(error) => {
                slot.give_back(context, contents);
                return Err(error.into());
            }
        };
        // A session's own: who still holds one of an earlier session stops nothing of this one.
        let abort = AbortHandle::default();
        context.follow_abort_handle(abort.clone());
        Ok(Session {
            model: self.clone(),
            drafters: Drafters::new(drafts, abort.clone()),
            abort,
            lent: Some(Lent::new(context, &self.placement().context)),
            sequences: Vec::new(),
            cache: Cache::of(contents, self.checkpoints()),
            last_replaced: None,
            prompt_chunk: PromptChunk::Batch,
            batch: Batch::default(),
            asking: Vec::new(),
            pieces: Vec::new(),
            failed: Vec::new(),
            last_failed: None,
            is_owed: false,
            turns: Turns::default(),
            begun: 0,
            steps: 0,
        })
    }
}

impl Session {
    /// Begins a text beside those that run. Nothing is computed before the next [`step`](Self::step).
    ///
    /// # Errors
    ///
    /// [`Error::OtherModel`], [`Error::SequencesBusy`], [`Error::PromptTooLong`], [`Error::EmptyPrompt`],
    /// [`Error::EmptyStop`]; [`Error::Constraint`] and [`Error::NoTokenAllowed`]; [`Error::Native`] for a sampling
    /// parameter out of range; [`Error::Load`] after a re-placement that failed, and for an adapter that the model was
    /// not loaded with.
    pub fn begin(&mut self, generate: Generate) -> Result<SequenceId, Error> {
        self.begin_after(generate, Vec::new())
    }

    /// The same, after the tokens that an earlier process has generated and told: they are computed again one after the
    /// other, as they were there, since another shape of batch would round otherwise.
    pub(super) fn begin_after(
        &mut self,
        generate: Generate,
        so_far: Vec<Token>,
    ) -> Result<SequenceId, Error> {
        let (model, spec) = generate.into_parts();
        if !model.is(&self.model) {
            return Err(Error::OtherModel);
        }
        let used = self.used();
        let lent = self.lent.as_mut().ok_or_else(Error::not_loaded)?;
        let room = lent.room;
        if self.sequences.len() >= room.sequences {
            return Err(Error::SequencesBusy {
                n_seq_max: room.sequences,
            });
        }
        let capacity = room.each.min(room.all.saturating_sub(used));
        let id = SequenceId(self.begun);
        let scales = self.model.scales(spec.lora.as_deref())?;
        let reuse = spec.cache_prompt.unwrap_or(false) && so_far.is_empty();
        let matcher = spec.matcher(&self.model, &lent.vocab)?;
        let sequence = Sequence::checked(id, spec, so_far, scales, matcher, &lent.vocab, capacity)?;
        self.join(sequence, reuse)?;
        self.begun += 1;
        Ok(id)
    }

    /// Computes one batch and returns what it adds to the texts: a piece for each that runs, but for those whose prompt
    /// is not done, and one more for each [guess](Generate::speculate) that came true. Of long prompts, a batch holds
    /// as many tokens as the other texts leave of `n_batch`, shared out evenly.
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
    pub fn step(&mut self) -> Result<std::vec::Drain<'_, Piece>, Error> {
        self.last_failed = None;
        if let Some(replacement) = self.model.requested() {
            self.carry_out(replacement)?;
        }
        self.step_here()
    }

    /// The same, with the model where it is.
    pub(super) fn step_here(&mut self) -> Result<std::vec::Drain<'_, Piece>, Error> {
        self.last_failed = None;
        if !std::mem::take(&mut self.is_owed) {
            self.compute()?;
        }
        if let Some((sequence, error)) = self.failed.pop() {
            self.last_failed = Some(sequence);
            self.is_owed = true;
            return Err(error);
        }
        Ok(self.pieces.drain(..))
    }

    fn compute(&mut self) -> Result<(), Error> {
        self.pieces.clear();
        self.steps = self.steps.wrapping_add(1);
        if !self.sequences.is_empty() {
            let lent = self.lent.as_mut().ok_or_else(Error::not_loaded)?;
            let turn = Turn {
                lent,
                sequences: &mut self.sequences,
                cache: &mut self.cache,
                drafters: &mut self.drafters,
                prompt_chunk: self.prompt_chunk,
                batch: &mut self.batch,
                asking: &mut self.asking,
                pieces: &mut self.pieces,
                failed: &mut self.failed,
                turns: &mut self.turns,
                slot: self.model.slot(),
                pulse: self.model.pulse(),
                step: self.steps,
            };
            if let Err(error) = turn.run() {
                self.spoil();
                return Err(error);
            }
        }
        Ok(())
    }

    /// Says nothing more of single texts: all have ended.
    pub(super) fn forget_failures(&mut self) {
        self.pieces.clear();
        self.failed.clear();
        self.is_owed = false;
    }

    /// The text that the last error of [`step`](Self::step) has ended, where it has ended one and no other.
    pub fn failed(&self) -> Option<SequenceId> {
        self.last_failed
    }

    /// Ends a text. Returns what it took, or `None` if it had ended.
    pub fn end(&mut self, sequence: SequenceId) -> Option<Statistics> {
        let at = self.sequences.iter().position(|it| it.id == sequence)?;
        let ended = take_out(&mut self.sequences, at);
        let statistics = ended.statistics();
        if let Some(lent) = &mut self.lent
            && ended.leave(&mut self.cache, &mut lent.context).is_err()
            && self.sequences.is_empty()
        {
            self.cache.spoil();
        }
        Some(statistics)
    }

    /// Where a text is among those that run.
    pub(super) fn position(&self, sequence: SequenceId) -> Result<usize, Error> {
        let mut sequences = self.sequences.iter();
        let at = sequences.position(|it| it.id == sequence);
        at.ok_or(Error::NotRunning)
    }

    /// A number that no text of the session has had.
    pub(super) fn next_id(&mut self) -> SequenceId {
        let id = SequenceId(self.begun);
        self.begun += 1;
        id
    }

    /// Counts and times of a text so far; `None` if it has ended.
    pub fn statistics(&self, sequence: SequenceId) -> Option<Statistics> {
        let mut sequences = self.sequences.iter();
        let sequence = sequences.find(|it| it.id == sequence)?;
        Some(sequence.statistics())
    }

    /// What checkpoints take, which [`ModelBuilder::checkpoints`](crate::ModelBuilder::checkpoints) limits.
    pub fn checkpoints(&self) -> CheckpointUse {
        self.cache.checkpoints.usage()
    }

    /// Texts that run.
    pub fn len(&self) -> usize {
        self.sequences.len()
    }

    /// Whether no text runs, and all that the last step gave was told.
    pub fn is_empty(&self) -> bool {
        self.sequences.is_empty() && (self.pieces.is_empty() || !self.is_owed)
    }

    /// Texts that can run at once.
    pub fn n_seq_max(&self) -> usize {
        self.room().sequences
    }

    /// Stops a step that another thread is waiting for, which then returns an error. It stays good when the model is
    /// placed anew, and stops nothing any more when the session has ended.
    pub fn abort_handle(&self) -> AbortHandle {
        self.abort.clone()
    }

    /// Tokens that the running texts have places for.
    pub(super) fn used(&self) -> usize {
        self.sequences.iter().map(Sequence::cells).sum()
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let Some(mut lent) = self.lent.take() else {
            return;
        };
        let mut cache = std::mem::take(&mut self.cache);
        for sequence in self.sequences.drain(..) {
            if sequence.leave(&mut cache, &mut lent.context).is_err() {
                cache.spoil();
                break;
            }
        }
        let slot = self.model.slot();
        let drafters = std::mem::take(&mut self.drafters);
        slot.give_back_drafts(drafters.into_inner());
        slot.give_back(lent.context, cache.into_contents());
    }
}

#[cfg(test)]
mod tests {
    use super::Room;
    use crate::memory::ContextParams;

    #[test]
    fn sequences_share_the_context_out_unless_it_is_unified() {
        let mut params = ContextParams::default();
        (params.n_ctx, params.n_seq_max) = (1000, 3);
        let room = |each| Room {
            each,
            all: 1000,
            sequences: 3,
        };
        assert_eq!(Room::of(&params), room(333));
        params.kv_unified = true;
        assert_eq!(Room::of(&params), room(1000));
    }
}
