//! Generates several texts at once with the model's only context, in this process. Sessions, streams and engines use
//! this.

mod depth;
pub(crate) mod fork;
mod replace;
pub(crate) mod roll_back;

use std::time::Instant;

use llama_sys::{Context, Token};

use crate::decode::cache::Cache;
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
        self.join(sequence, reuse, false)?;
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
    pub(crate) fn join(&mut self, mut sequence: Sequence, reuse: bool, again: bool) -> Result<(), Error> {
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
        let place = self.cache.place(lent, &running, sequence.all(), reuse || again)?;
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
    /// for tokens. Returns whether the text may join now.
    pub(crate) fn prepare(&mut self, sequence: &Sequence) -> bool {
        let is_awaited = self.is_awaited();
        let Some(lent) = &mut self.lent else { return true };
        let running = held(&self.sequences);
        let prepared = self.cache.prepare(lent, &running, (sequence.id, sequence.all()), is_awaited);
        // The same error ends the text when it joins.
        prepared.unwrap_or(true)
    }

    /// Leaves what was [prepared](Self::prepare) for a text, unless this text still waits.
    pub(crate) fn leave_unless(&mut self, waits: impl FnOnce(SequenceId) -> bool) {
        if let Some(lent) = &mut self.lent
            && self.cache.prepares_for().is_some_and(|text| !waits(text))
        {
            self.cache.leave_text(&mut lent.context);
        }
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
        if let Some(replacement) = self.model.requests().take().or_else(|| self.follow_depth()) {
            self.last_failed = None;
            self.carry_out(replacement)?;
        }
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
        if !self.cache.has_restored_part() {
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

    /// Stores the sequence that the next text would displace, or as much of it as the running texts can wait for.
    pub(crate) fn store_next(&mut self) {
        let is_awaited = self.is_awaited();
        let Some(lent) = &mut self.lent else { return };
        self.cache.store_next(&mut lent.context, lent.room, self.sequences.len(), is_awaited);
    }

    /// Ends all texts and discards the cache, because the content of the context is unknown.
    pub(crate) fn spoil(&mut self) {
        self.sequences.clear();
        self.work.pieces.clear();
        self.work.failed.clear();
        self.is_owed = false;
        self.cache.spoil();
    }

    /// Whether a waiting text would displace the sequence that the steps are storing.
    pub(crate) fn is_storing_next(&self) -> bool {
        self.cache.is_storing_next(self.room(), self.sequences.len())
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
        slot.give_back(lent.context, cache.into_contents());
    }
}

#[cfg(test)]
mod tests {
    use llama_sys::Token;

    use super::LocalSession;
    use crate::Model;
    use crate::decode::piece::SequenceId;
    use crate::decode::request::GenerateRequest;
    use crate::decode::sequence::Sequence;
    use crate::plan::Request;
    use crate::store::PromptStore;

    #[test]
    fn a_sequence_is_stored_at_once_for_the_next_text_while_nobody_waits_for_a_token() {
        let request = Request::new().n_ctx(1024).n_seq_max(2);
        let builder = Model::builder(test_support::demo_path()).request(request).n_threads(1).without_learning();
        let model = builder.prompt_store(PromptStore::new(64 << 20)).load().unwrap();
        let mut session = LocalSession::open(&model).unwrap();
        let begin = |session: &mut LocalSession, seed: Token| {
            let words: Vec<Token> = (0..100).map(|at| 259 + (at * 7 + seed) % 200).collect();
            session.begin_once(model.generate(&words[..]).temp(0.0).ignore_eos().max_tokens(2)).unwrap();
        };
        begin(&mut session, 1);
        begin(&mut session, 2);
        while !session.is_empty() {
            session.step().unwrap().for_each(drop);
        }
        // The first of the two sequences is stored and displaced. The engine would not admit a further text until it
        // has stored the second one, between steps.
        begin(&mut session, 3);
        assert!(session.is_storing_next());
        session.store_next();
        assert!(!session.is_storing_next());
    }
    fn words(seed: Token, n: Token) -> Vec<Token> {
        (0..n).map(|at| 259 + (at * 7 + seed) % 200).collect()
    }

    /// A session of two sequences, in which an earlier text of 400 tokens is stored and displaced, and another text
    /// waits for its next token. Also the earlier text with further tokens, which waits to join.
    fn waiting(store: &PromptStore, kv_unified: bool) -> (LocalSession, Sequence) {
        waiting_among(2, store, kv_unified)
    }

    /// As [`waiting`], in a session of more sequences.
    fn waiting_among(sequences: u32, store: &PromptStore, kv_unified: bool) -> (LocalSession, Sequence) {
        let mut request = Request::new().n_ctx(1024 * sequences).n_seq_max(sequences);
        request.params.kv_unified = kv_unified;
        request.params.flash_attn = crate::memory::FlashAttention::Off;
        let builder = Model::builder(test_support::demo_path()).request(request).n_threads(1).without_learning();
        let model = builder.prompt_store(store.clone()).load().unwrap();
        let mut session = LocalSession::open(&model).unwrap();
        let begin = |session: &mut LocalSession, prompt: &[Token], n: usize| {
            let generate = model.generate(prompt).temp(0.0).ignore_eos().max_tokens(n).cache_prompt(true);
            session.begin_once(generate).unwrap();
        };
        begin(&mut session, &words(1, 400), 2);
        session.run_all();
        begin(&mut session, &words(2, 100), 2);
        begin(&mut session, &words(3, 100), 2);
        session.run_all();
        begin(&mut session, &words(4, 50), 200);
        session.advance().unwrap();
        let text = session.text_of(&[words(1, 400), words(5, 20)].concat());
        (session, text)
    }

    impl LocalSession {
        fn text_of(&mut self, prompt: &[Token]) -> Sequence {
            let GenerateRequest { spec, .. } = self.model.generate(prompt).temp(0.0).ignore_eos().max_tokens(20);
            let (id, vocab) = (self.next_id(), &self.lent.as_ref().unwrap().vocab);
            Sequence::new(id, spec, &[], &self.model, vocab, 1024).unwrap()
        }

        /// Generates all texts to their ends. Returns the tokens of each.
        fn run_all(&mut self) -> std::collections::BTreeMap<SequenceId, Vec<Token>> {
            let mut texts: std::collections::BTreeMap<_, Vec<Token>> = Default::default();
            while !self.is_empty() {
                for piece in self.step().unwrap() {
                    texts.entry(piece.sequence).or_default().extend(piece.token);
                }
            }
            texts
        }
    }

    #[test]
    fn a_waiting_text_is_restored_in_parts_between_the_steps_of_a_running_text() {
        for kv_unified in [false, true] {
            let store = PromptStore::new(64 << 20);
            let (mut session, text) = waiting(&store, kv_unified);
            let id = text.id;
            let mut parts = 0;
            while !session.prepare(&text) {
                parts += 1;
                session.advance().unwrap();
            }
            // The bytes of a part are those of `UNIT` in tests.
            assert!(parts > 3, "{kv_unified}: {parts}");
            session.join(text, true, false).unwrap();
            let statistics = session.statistics(id).unwrap();
            assert_eq!((statistics.restored_tokens, statistics.cached_tokens), (400, 400), "{kv_unified}");
            let prepared = session.run_all();
            // Nobody waits for a token, so the beginning is restored at once.
            let (mut session, text) = waiting(&PromptStore::new(64 << 20), kv_unified);
            let first = session.run_all();
            assert!(session.prepare(&text));
            session.join(text, true, false).unwrap();
            assert_eq!(session.statistics(id).unwrap().restored_tokens, 400, "{kv_unified}");
            let alone = session.run_all();
            assert_eq!(prepared[&id], alone[&id], "{kv_unified}");
            let (running, other) = (prepared.keys().find(|other| **other != id), first.keys().next());
            let (running, other) = (&prepared[running.unwrap()], &first[other.unwrap()]);
            assert_eq!(running[running.len() - 100..], other[other.len() - 100..], "{kv_unified}");
        }
    }

    #[test]
    fn nothing_is_left_of_a_waiting_text_that_is_cancelled_while_it_is_restored() {
        for kv_unified in [false, true] {
            let store = PromptStore::new(64 << 20);
            let (mut session, text) = waiting(&store, kv_unified);
            assert!(!session.prepare(&text));
            session.advance().unwrap();
            assert!(!session.prepare(&text));
            let incomplete = |session: &LocalSession| (0..2).filter(|seq| session.cache.is_incomplete(*seq)).count();
            session.leave_unless(|_| true);
            assert_eq!((incomplete(&session), session.cache.prepares_for()), (1, Some(text.id)));
            session.leave_unless(|id| id != text.id);
            assert_eq!((incomplete(&session), session.cache.prepares_for()), (0, None));
            assert_eq!(session.cache.len(), 0, "the cells are free");
            assert!(!session.cache.stored.as_ref().unwrap().is_restoring(), "the pieces are free");
            session.run_all();
        }
    }

    #[test]
    fn a_text_that_waits_again_is_prepared_again() {
        for kv_unified in [false, true] {
            let store = PromptStore::new(64 << 20);
            let (mut session, _) = waiting(&store, kv_unified);
            let text = session.text_of(&words(8, 300));
            let id = text.id;
            assert!(session.prepare(&text), "nothing of it is stored");
            session.join(text, true, false).unwrap();
            session.advance().unwrap();
            let text = session.suspend(id).unwrap();
            // The text is stored between the steps, and then another text takes its cells.
            (0..120).for_each(|_| session.advance().unwrap());
            let other = words(6, 300);
            let generate = session.model.generate(&other[..]).temp(0.0).ignore_eos().max_tokens(2);
            let other = session.begin_once(generate.cache_prompt(true)).unwrap();
            session.advance().unwrap();
            session.end(other);
            let mut parts = 0;
            while !session.prepare(&text) {
                parts += 1;
                session.advance().unwrap();
            }
            assert!(parts > 3, "{kv_unified}: {parts}");
        }
    }

    #[test]
    fn a_text_that_needs_nothing_joins_while_another_text_is_restored() {
        let store = PromptStore::new(64 << 20);
        let (mut session, text) = waiting_among(3, &store, false);
        let id = text.id;
        assert!(!session.prepare(&text));
        // One sequence becomes empty.
        let lent = session.lent.as_mut().unwrap();
        session.cache.make_room(&mut lent.context, 400, true).unwrap();
        let short = session.text_of(&words(9, 30));
        assert!(session.prepare(&short));
        session.join(short, true, false).unwrap();
        let mut parts = 0;
        while !session.prepare(&text) {
            parts += 1;
            session.advance().unwrap();
        }
        assert!(parts > 3, "{parts}");
        session.join(text, true, false).unwrap();
        assert_eq!(session.statistics(id).unwrap().restored_tokens, 400);
        session.run_all();
    }

    #[test]
    fn storing_goes_on_while_a_half_restored_text_is_not_admitted() {
        let store = PromptStore::new(64 << 20);
        let (mut session, text) = waiting_among(3, &store, false);
        assert!(!session.prepare(&text));
        // This text ends while the other is half restored. No further part of the other is restored meanwhile.
        let prompt = words(7, 200);
        let generate = session.model.generate(&prompt[..]).temp(0.0).ignore_eos().max_tokens(2);
        session.begin_once(generate.cache_prompt(true)).unwrap();
        let pieces = store.usage().pieces;
        for _ in 0..40 {
            session.advance().unwrap();
        }
        assert!(store.usage().pieces > pieces, "{:?}", store.usage());
    }

    #[test]
    fn a_sequence_that_is_only_partly_restored_is_taken_by_another_text_or_forgotten() {
        for (kv_unified, drops) in [(false, false), (true, false), (false, true), (true, true)] {
            let store = PromptStore::new(64 << 20);
            let (mut session, text) = waiting(&store, kv_unified);
            assert!(!session.prepare(&text));
            session.advance().unwrap();
            assert!(!session.prepare(&text));
            if drops {
                // The next session finds nothing of the sequence.
                let model = session.model.clone();
                drop(session);
                session = LocalSession::open(&model).unwrap();
            } else {
                let other = words(6, 300);
                let generate = session.model.generate(&other[..]).temp(0.0).ignore_eos().max_tokens(2);
                session.begin_once(generate.cache_prompt(true)).unwrap();
                session.run_all();
            }
            let id = text.id;
            session.join(text, true, false).unwrap();
            assert_eq!(session.statistics(id).unwrap().restored_tokens, 400, "{kv_unified}, {drops}");
            assert_eq!(session.run_all()[&id].len(), 20, "{kv_unified}, {drops}");
        }
    }
}
