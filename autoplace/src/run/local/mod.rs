//! Generates several texts at once with the model's only context, in this process. Sessions, streams and engines use
//! this.

mod depth;
pub(crate) mod fork;
mod replace;
pub(crate) mod roll_back;
#[cfg(test)]
mod tests;

use std::time::Instant;

use llama_sys::{Context, Token};

use crate::decode::cache::{Cache, Prepared};
use crate::decode::checkpoints::CheckpointUse;
use crate::decode::context::{Lent, Room};
use crate::decode::error::Error;
use crate::decode::piece::{Piece, SequenceId};
use crate::decode::request::GenerateRequest;
use crate::decode::sequence::{Sequence, cells, held, take_out};
use crate::decode::speculative::Drafters;
use crate::decode::stats::{Replaced, Statistics};
use crate::decode::step::{Step, Work};
use crate::decode::stored::Stored;
use crate::load::{AbortHandle, Drafts, Model, Purpose};
use crate::run::progress::Message;

/// See [`Session`](crate::generate::Session).
#[derive(Debug)]
pub(crate) struct LocalSession {
    pub(crate) model: Model,
    /// `None` after a re-placement that failed.
    pub(crate) lent: Option<Lent>,
    /// The running texts, ordered by their sequence numbers in the context.
    pub(crate) sequences: Vec<Sequence>,
    pub(crate) cache: Cache,
    pub(crate) drafters: Drafters,
    pub(crate) abort: llama_sys::AbortHandle,
    pub(crate) last_replaced: Option<Result<Replaced, Error>>,
    pub(crate) work: Work,
    /// The text that ended with the last error of a step.
    last_failed: Option<SequenceId>,
    /// Whether the next call returns the pieces of the last step, because the last call returned an error of that step.
    is_owed: bool,
    begun: u64,
}

impl LocalSession {
    pub(crate) fn open(model: &Model) -> Result<Self, Error> {
        let not_generative = || Error::NotGenerative { architecture: model.placement().model.architecture.clone() };
        // Encoders (BERT), encoder-decoders (T5) and diffusion models (LLaDA) do not predict a next token.
        let is_generative = model.with_native(|native| {
            native.has_decoder() && !native.has_encoder() && native.shape().causal && !native.is_diffusion()
        })?;
        if !is_generative {
            return Err(not_generative());
        }
        let (mut context, contents) = model.take_context(Purpose::Text)?.ok_or(Error::Busy)?;
        let slot = model.slot()?;
        let drafts = match context.has_memory() {
            true => slot.take_drafts().map_err(Error::from),
            false => Err(not_generative()),
        };
        let drafts = match drafts {
            Ok(drafts) => drafts,
            Err(error) => {
                slot.give_back(context, contents);
                return Err(error);
            }
        };
        // Each session has a handle of its own, so that a handle of an earlier session cannot stop this one.
        let abort = llama_sys::AbortHandle::default();
        let stored = model.prompt_store(context.model()).map(Stored::new);
        context.follow_abort_handle(abort.clone());
        Ok(Self {
            model: model.clone(),
            drafters: Drafters::new(drafts, abort.clone(), model),
            abort,
            lent: Some(Lent::new(context, &model.placement().context)),
            sequences: Vec::new(),
            cache: Cache::new(contents, model.checkpoints(), stored),
            last_replaced: None,
            work: Work::default(),
            last_failed: None,
            is_owed: false,
            begun: 0,
        })
    }

    /// Begins a text that can be forked and rolled back.
    pub(crate) fn begin(&mut self, generate: GenerateRequest) -> Result<SequenceId, Error> {
        let asked = Box::new(generate.spec.without_prompt());
        let id = self.begin_once(generate)?;
        if let Some(at) = self.position(id) {
            let sequence = &mut self.sequences[at];
            sequence.asked = Some(asked);
            sequence.keep_seed();
        }
        Ok(id)
    }

    /// Begins a text that can be neither forked nor rolled back.
    pub(crate) fn begin_once(&mut self, generate: GenerateRequest) -> Result<SequenceId, Error> {
        let GenerateRequest { model, spec } = generate;
        if !model.is(&self.model) {
            return Err(Error::OtherModel);
        }
        let (room, free) = self.room_for_another()?;
        let capacity = room.each.min(free);
        let reuse = spec.cache_prompt.unwrap_or(false);
        let id = self.next_id();
        let lent = self.lent.as_ref().ok_or_else(Error::not_loaded)?;
        let sequence = Sequence::new(id, spec, &[], &self.model, &lent.vocab, capacity)?;
        self.join(sequence, reuse, false, None)?;
        Ok(id)
    }

    /// The capacity of the context, and the number of cells that the running texts leave free.
    ///
    /// # Errors
    ///
    /// [`Error::SequencesBusy`] when every sequence of the context runs a text; [`Error::Load`] when the model is not
    /// loaded.
    pub(crate) fn room_for_another(&self) -> Result<(Room, usize), Error> {
        let room = self.lent.as_ref().ok_or_else(Error::not_loaded)?.room;
        if self.sequences.len() >= room.sequences {
            return Err(Error::SequencesBusy { n_seq_max: room.sequences });
        }
        Ok((room, room.all.saturating_sub(cells(&self.sequences))))
    }

    pub(crate) fn next_id(&mut self) -> SequenceId {
        self.begun += 1;
        SequenceId(self.begun - 1)
    }

    /// Adds a text to the running texts. With `reuse`, the text uses matching tokens that the context already holds.
    /// `again` resumes a [suspended](Self::suspend) text; only the tokens that the context has lost are computed again.
    /// Unless the text was [prepared](Self::prepare), its stored beginning is restored at once.
    pub(crate) fn join(
        &mut self,
        mut sequence: Sequence,
        reuse: bool,
        again: bool,
        prepared: Option<Prepared>,
    ) -> Result<(), Error> {
        let is_awaited = self.is_awaited();
        let lent = self.lent.as_mut().ok_or_else(Error::not_loaded)?;
        if sequence.shifting.is_some() {
            lent.check_shift()?;
        }
        if let Some(stored) = &mut self.cache.stored
            && !is_awaited
        {
            // Copies that were made while no text waited for a token do not count as a pause of the text that joins
            // now.
            stored.step_begins(false);
        }
        let running = held(&self.sequences);
        let place = self.cache.place(lent, &running, sequence.all(), reuse || again, prepared)?;
        let of = self.sequences.iter().find(|sequence| Some(sequence.held.seq) == place.shares);
        sequence.held.shares = of.map(|of| (of.id, place.cached));
        sequence.put(place, again);
        self.work.prompts.shorten(sequence.id, sequence.to_compute());
        // If each sequence has its own cache, llama.cpp computes sequences with consecutive numbers in one graph, and
        // other sequences in separate graphs (llama-batch.cpp, split_equal).
        let at = self.sequences.partition_point(|other| other.held.seq < sequence.held.seq);
        self.sequences.insert(at, sequence);
        Ok(())
    }

    /// Prepares a text that waits to [join](Self::join): restores its stored beginning in parts, if running texts wait
    /// for tokens. `None` if the text must wait.
    pub(crate) fn prepare(&mut self, sequence: &Sequence) -> Option<Prepared> {
        let is_awaited = self.is_awaited();
        let Some(lent) = &mut self.lent else { return Some(Prepared::default()) };
        let running = held(&self.sequences);
        let prepared = self.cache.prepare(lent, &running, (sequence.id, sequence.all()), is_awaited);
        // The same error ends the text when it joins.
        prepared.unwrap_or_else(|_| Some(Prepared::default()))
    }

    /// Leaves what was [prepared](Self::prepare) for a text, unless this text still waits.
    pub(crate) fn leave_unless(&mut self, waits: impl FnOnce(SequenceId) -> bool) {
        if let Some(lent) = &mut self.lent
            && self.cache.prepares_for().is_some_and(|text| !waits(text))
        {
            self.cache.stop_preparing(&mut lent.context);
        }
    }

    /// Whether a waiting text may have a sequence, besides the running texts and another text that is being restored.
    pub(crate) fn has_sequence_for(&self, text: SequenceId) -> bool {
        let taken = self.sequences.len() + usize::from(self.cache.keeps_place_for_another(text));
        taken < self.n_seq_max()
    }

    /// Suspends a text. The tokens stay in the context until another text needs the cells.
    pub(crate) fn suspend(&mut self, sequence: SequenceId) -> Option<Sequence> {
        let at = self.position(sequence)?;
        self.lent.as_ref()?;
        let mut suspended = take_out(&mut self.sequences, at);
        suspended.suspend(&mut self.cache, &mut self.drafters);
        Some(suspended)
    }

    /// Takes a step and returns its pieces.
    pub(crate) fn step(&mut self) -> Result<impl ExactSizeIterator<Item = Piece>, Error> {
        self.advance()?;
        Ok(self.work.pieces.drain(..).map(|(piece, _)| piece))
    }

    /// The next piece of any text. Takes several steps if needed, because a step within a long prompt yields no piece.
    pub(crate) fn next_message(&mut self) -> Message {
        loop {
            if let Some(next) = self.work.pieces.pop_front() {
                return Ok(next);
            }
            self.advance()?;
        }
    }

    /// Carries out a re-placement that was requested, or that the depth of the texts requires. Then takes a step.
    pub(crate) fn advance(&mut self) -> Result<(), Error> {
        // A request is carried out first, because under memory pressure there may be no room for a move.
        let (requested, under_way) = self.model.requests().take().unzip();
        if let Some(replacement) = requested.or_else(|| self.follow_depth()) {
            self.last_failed = None;
            self.carry_out(replacement)?;
        }
        drop(under_way);
        self.advance_in_place()
    }

    /// Takes a step without re-placing the model.
    pub(crate) fn advance_in_place(&mut self) -> Result<(), Error> {
        self.last_failed = None;
        if !std::mem::take(&mut self.is_owed) {
            self.compute()?;
        }
        if let Some((sequence, error)) = self.work.failed.pop() {
            self.last_failed = Some(sequence);
            self.is_owed = true;
            return Err(error);
        }
        Ok(())
    }

    fn compute(&mut self) -> Result<(), Error> {
        self.work.pieces.clear();
        if self.sequences.is_empty() {
            return Ok(());
        }
        let is_awaited = self.is_awaited();
        if let Some(stored) = &mut self.cache.stored {
            stored.step_begins(is_awaited);
        }
        let begun = self.step_begins();
        let step = Step {
            lent: self.lent.as_mut().ok_or_else(Error::not_loaded)?,
            sequences: &mut self.sequences,
            cache: &mut self.cache,
            drafters: &mut self.drafters,
            work: &mut self.work,
            model: &self.model,
        };
        let computing = self.model.counters().computing();
        let since = Instant::now();
        let computed = step.run();
        drop(computing);
        if let Some(stored) = &mut self.cache.stored {
            stored.computed(self.work.batch_tokens(), since.elapsed());
        }
        if let Some(begun) = &begun {
            self.step_ended(begun);
        }
        computed.inspect_err(|_| self.spoil())?;
        if let Some(stored) = &mut self.cache.stored {
            stored.step_ended();
        }
        // If the running texts have just waited while a part of a waiting text was restored, nothing is stored, so that
        // they do not wait longer.
        if !self.cache.take_restored_part() {
            self.store_part();
        }
        Ok(())
    }

    /// Copies some megabytes of idle sequences into the prompt store, first from the model's context and then from its
    /// drafters'. Returns whether more is left.
    pub(crate) fn store_part(&mut self) -> bool {
        let Some(lent) = &mut self.lent else { return false };
        let is_running = |seq| self.sequences.iter().any(|other| other.held.seq == seq);
        self.cache.store_part(&mut lent.context) || self.drafters.store_part(is_running)
    }

    /// Whether a running text waits for its next token, and not for its first token.
    fn is_awaited(&self) -> bool {
        self.sequences.iter().any(|sequence| sequence.statistics.first_token_latency.is_some())
    }

    /// Stores the sequence that a waiting text would displace, or as much of it as the running texts can wait for.
    /// Returns whether the text may take the sequence now.
    pub(crate) fn store_next(&mut self, text: SequenceId) -> bool {
        let is_awaited = self.is_awaited();
        let Some(lent) = &mut self.lent else { return true };
        if self.cache.keeps_place_for(text) {
            return true;
        }
        self.cache.store_next(&mut lent.context, lent.room, self.sequences.len(), is_awaited);
        !self.cache.is_storing_next(lent.room, self.sequences.len())
    }

    /// Ends all texts and discards the cache, because the content of the context is unknown.
    pub(crate) fn spoil(&mut self) {
        self.sequences.clear();
        self.work.pieces.clear();
        self.work.failed.clear();
        self.is_owed = false;
        self.cache.spoil();
    }

    pub(crate) fn failed(&self) -> Option<SequenceId> {
        self.last_failed
    }

    pub(crate) fn end(&mut self, sequence: SequenceId) -> Option<Statistics> {
        let at = self.position(sequence)?;
        let ended = take_out(&mut self.sequences, at);
        let statistics = ended.statistics;
        if self.lent.is_some() {
            ended.leave(&mut self.cache, &mut self.drafters);
        }
        Some(statistics)
    }

    pub(crate) fn position(&self, sequence: SequenceId) -> Option<usize> {
        self.sequences.iter().position(|other| other.id == sequence)
    }

    pub(crate) fn statistics(&self, sequence: SequenceId) -> Option<Statistics> {
        self.position(sequence).map(|at| self.sequences[at].statistics)
    }

    pub(crate) fn tokens(&self, sequence: SequenceId) -> Option<Vec<Token>> {
        self.position(sequence).map(|at| self.sequences[at].tokens.clone())
    }

    pub(crate) fn checkpoints(&self) -> CheckpointUse {
        self.cache.checkpoints.usage()
    }

    pub(crate) fn len(&self) -> usize {
        self.sequences.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        let Work { failed, pieces, .. } = &self.work;
        self.sequences.is_empty() && failed.is_empty() && (pieces.is_empty() || !self.is_owed)
    }

    pub(crate) fn n_seq_max(&self) -> usize {
        self.room().sequences
    }

    pub(crate) fn abort_handle(&self) -> AbortHandle {
        self.abort.clone().into()
    }

    pub(crate) fn room(&self) -> Room {
        match &self.lent {
            Some(lent) => lent.room,
            None => Room::new(&self.model.placement().context),
        }
    }

    /// Whether the contexts can still compute. When false, the session needs a new context.
    pub(crate) fn is_usable(&self) -> bool {
        let Drafts { model, heads } = &self.drafters.drafts;
        let drafting = model.iter().map(|draft| &draft.context).chain(heads.iter().map(|head| &head.context));
        self.lent.as_ref().is_some_and(|lent| drafting.chain([&lent.context]).all(Context::is_usable))
    }
}

impl Drop for LocalSession {
    fn drop(&mut self) {
        let Some(mut lent) = self.lent.take() else {
            return;
        };
        let mut cache = std::mem::take(&mut self.cache);
        for sequence in self.sequences.drain(..) {
            sequence.leave(&mut cache, &mut self.drafters);
        }
        cache.store_all(&mut lent.context);
        self.drafters.store_all();
        let Ok(slot) = self.model.slot() else {
            return;
        };
        slot.give_back_drafts(std::mem::take(&mut self.drafters.drafts));
        let contents = cache.into_contents();
        let Lent { context, vocab, .. } = lent;
        // As soon as the context is back, a re-placement counts what still uses the native model.
        drop(vocab);
        slot.give_back(context, contents);
    }
}
