//! One step of a session: computes a batch with the next tokens of its texts, and chooses the token that follows in
//! each text.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use llama_sys::{Batch, ComputeBuffers, Context, MoeCacheUses, Rows};
use serde::{Deserialize, Serialize};

use super::cache::Cache;
use super::context::Lent;
use super::error::Error;
use super::media::first_position;
use super::piece::{Piece, SequenceId};
use super::prompt_order::{Asking, PromptOrder, in_order};
use super::schedule::AdapterTurns;
use super::sequence::{Sequence, cells, held, number_in_order, part_after, shared, take_out};
use super::speculative::Drafters;
use super::stats::{DraftingPaused, Statistics};
use crate::chat::FinishReason;
use crate::load::{ExpertUses, Model, Pacer};

/// Maximum number of prompt tokens per step, over all texts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) enum PromptChunk {
    /// As many as still fit in a batch (`n_batch`).
    #[default]
    Batch,
    /// As many as still fit in a graph (`n_ubatch`).
    Graph,
    Tokens(usize),
}

impl PromptChunk {
    /// The number of prompt tokens in a batch that has `others` tokens of other texts; at least one if the batch has
    /// room.
    fn tokens(self, context: &Context, others: usize) -> usize {
        let left = (context.n_batch() as usize).saturating_sub(others);
        let wanted = match self {
            Self::Batch => left,
            Self::Graph => (context.n_ubatch() as usize).saturating_sub(others),
            Self::Tokens(tokens) => tokens,
        };
        wanted.max(1).min(left)
    }
}

/// Buffers and results of a step, kept so that the next step need not allocate memory.
#[derive(Debug, Default)]
pub(crate) struct Work {
    pub(crate) prompt_chunk: PromptChunk,
    /// New pieces, each with the statistics of its text so far.
    pub(crate) pieces: VecDeque<(Piece, Statistics)>,
    /// Texts whose next token could not be chosen, and their errors.
    pub(crate) failed: Vec<(SequenceId, Error)>,
    batch: Batch,
    asking: Vec<Asking>,
    pub(crate) prompts: PromptOrder,
    turns: AdapterTurns,
    /// The text whose picture or sound this step computed, and how long this computation took.
    media: Option<(SequenceId, Duration)>,
}

impl Work {
    /// Number of tokens in the last batch; 0 after a step with a picture, whose time tells nothing about tokens.
    pub(crate) fn batch_tokens(&self) -> usize {
        if self.media.is_some() { 0 } else { self.batch.len() }
    }
}

pub(crate) struct Step<'a> {
    pub(crate) lent: &'a mut Lent,
    pub(crate) sequences: &'a mut Vec<Sequence>,
    pub(crate) cache: &'a mut Cache,
    pub(crate) drafters: &'a mut Drafters,
    pub(crate) work: &'a mut Work,
    pub(crate) model: &'a Model,
}

#[derive(Debug, Default)]
struct Computed {
    /// Whether the time of this step is used to judge whether drafts are worthwhile.
    is_steady: bool,
    /// Whether the batch has no tokens of prompts.
    generates: bool,
    /// Number of tokens in the batch, if all of them are generated tokens and nothing else was computed.
    generated: Option<usize>,
}

impl Step<'_> {
    pub(crate) fn run(mut self) -> Result<(), Error> {
        // Ends texts that request no token.
        for sequence in self.sequences.iter_mut() {
            if let Some(piece) = sequence.end_at_once() {
                self.work.pieces.push_back((piece, sequence.statistics));
            }
        }
        self.let_ended_go();
        if self.sequences.is_empty() {
            return Ok(());
        }
        let begins = self.begins_prompt();
        let begun = Instant::now();
        self.compute_media()?;
        let Computed { is_steady, generates, generated } = self.compute()?;
        let computed = begun.elapsed();
        let alone = self.alone();
        self.choose(begun, computed)?;
        let took = begun.elapsed();
        if is_steady {
            self.learn(took);
        }
        self.pace(generates, generated, took, begun + took);
        if let (Some((depth, before)), [only]) = (alone, &**self.sequences) {
            let took = only.statistics.generation_time.saturating_sub(before);
            self.model.counters().token(took, depth);
            let threads = only.statistics.threads;
            let refuted = self.model.counters().meter().as_mut().and_then(|meter| meter.token(took, depth, threads));
            if let Some(refuted) = refuted {
                self.model.refute(refuted);
            }
        }
        self.meter_prompt(begins);
        self.let_ended_go();
        Ok(())
    }

    /// Whether the only text is still computing its prompt.
    fn begins_prompt(&self) -> bool {
        let counters = self.model.counters();
        match (&**self.sequences, &mut *counters.meter()) {
            (_, None) => false,
            ([only], Some(meter)) if only.spans.is_empty() => {
                let Statistics { first_token_latency, prompt_time, .. } = only.statistics;
                if first_token_latency.is_none() && prompt_time.is_zero() {
                    meter.prompt_begins();
                }
                first_token_latency.is_none()
            }
            (_, Some(meter)) => {
                meter.has_company();
                false
            }
        }
    }

    /// Measures the speed of a prompt that this step completed.
    fn meter_prompt(&self, began: bool) {
        let ([only], true) = (&**self.sequences, began) else { return };
        let Statistics { prompt_tokens, cached_tokens, prompt_time, first_token_latency, .. } = only.statistics;
        if let (Some(_), Some(meter)) = (first_token_latency, &mut *self.model.counters().meter()) {
            meter.prompt(cached_tokens, prompt_tokens.saturating_sub(cached_tokens), prompt_time);
        }
    }

    /// The depth and the generation time so far, if the batch consists of one generated token of the only text. Batches
    /// with prompts or several texts have another speed.
    fn alone(&self) -> Option<(usize, Duration)> {
        match &**self.sequences {
            [only] if self.work.batch.len() == 1 => {
                let Statistics { first_token_latency, generation_time, .. } = only.statistics;
                first_token_latency.map(|_| (only.len(), generation_time))
            }
            _ => None,
        }
    }

    /// Fills the batch with the next tokens of the texts of one adapter set: one token of each generating text, and a
    /// chunk of the prompts, in the order of `prompts`.
    fn fill(&mut self) -> Result<(), Error> {
        let Work { batch, asking, prompts, turns, prompt_chunk, .. } = &mut *self.work;
        let scales = turns.next(self.sequences);
        self.model.slot()?.adapt(&mut self.lent.context, scales)?;
        batch.clear();
        asking.clear();
        for sequence in self.sequences.iter().filter(|sequence| sequence.to_compute() > 1) {
            prompts.waits(sequence.id, sequence.to_compute());
        }
        if !self.lent.context.kv_unified() {
            number_in_order(self.sequences, prompts);
        }
        let wanted = |sequence: &Sequence| if sequence.scales == *scales { sequence.wanted() } else { 0 };
        let mut others = 0;
        for sequence in self.sequences.iter() {
            match wanted(sequence) {
                wanted @ 0..=1 => others += wanted,
                wanted => asking.push(Asking::new(prompts.rank(sequence.id), wanted)),
            }
        }
        let context = &self.lent.context;
        in_order(asking, prompt_chunk.tokens(context, others));
        prompts.computed(asking.iter().map(|prompt| prompt.given).sum());
        let mut shares = asking.iter();
        let mut free = context.n_batch() as usize;
        for sequence in self.sequences.iter_mut() {
            let tokens = match wanted(sequence) {
                wanted @ 0..=1 => wanted.min(free),
                _ => shares.next().map_or(0, |share| share.given),
            };
            free = free.saturating_sub(tokens);
            sequence.queue(batch, tokens);
        }
        Ok(())
    }

    /// Computes the rows of one picture or sound, if a text has reached one. If several texts have reached one, the
    /// oldest text has its turn. The other texts wait meanwhile, but get their tokens in the same step.
    fn compute_media(&mut self) -> Result<(), Error> {
        self.work.media = None;
        let waiting = self.sequences.iter().enumerate().filter(|(_, sequence)| sequence.next_media().is_some());
        let Some((at, _)) = waiting.min_by_key(|(_, sequence)| sequence.id) else { return Ok(()) };
        let begun = Instant::now();
        let Some(span) = self.sequences[at].next_media().cloned() else { return Ok(()) };
        let at_place = |error: Error| error.at_media(self.sequences[at].spans.index_of_media(&span));
        let (values, is_encoded) = match self.model.encode_media(&span).map_err(at_place) {
            Ok(encoded) => encoded,
            Err(error) => {
                self.work.failed.push((self.sequences[at].id, error));
                self.let_ended_go();
                return Ok(());
            }
        };
        let encoding = begun.elapsed();
        let (rows, seq) = (span.rows(), self.sequences[at].held.seq);
        let spans = &self.sequences[at].spans;
        let positions = rows.positions(first_position(spans.position(span.from)), spans.index_of_media(&span));
        self.model.slot()?.adapt(&mut self.lent.context, &self.sequences[at].scales)?;
        self.set_threads(false, None)?;
        if self.lent.context.kv_unified() {
            let wanted = cells(self.sequences);
            self.cache.make_room(&mut self.lent.context, self.lent.room.all.saturating_sub(wanted), false)?;
        }
        // Rows that attend to each other must be computed in one call. The context has room for them.
        let at_once = if rows.is_non_causal { rows.len } else { self.lent.context.n_batch() as usize };
        let (width, sections) = (values.len() / rows.len.max(1), positions.len() / rows.len.max(1));
        let parts = values.chunks(at_once * width).zip(positions.chunks(at_once * sections));
        let is_non_causal = rows.is_non_causal;
        let buffers = self.lent.context.compute_buffers();
        for (values, positions) in parts {
            let rows = Rows { values, positions, seq, is_non_causal, output_last: false };
            self.decode_with_room(|context| context.decode_rows(&rows))?;
        }
        self.lent.context.synchronize()?;
        let grown = self.lent.context.compute_buffers().since(&buffers);
        let sequence = &mut self.sequences[at];
        sequence.media_computed();
        sequence.statistics.buffer_growth += grown.bytes;
        sequence.statistics.reallocations += grown.reallocations();
        sequence.statistics.encoded_media += usize::from(is_encoded);
        if is_encoded {
            sequence.statistics.encoding_time += encoding;
        }
        let (id, is_due) = (sequence.id, sequence.held.stops.is_due(sequence.held.computed));
        if is_due {
            self.checkpoint(at);
        }
        self.work.media = Some((id, begun.elapsed()));
        Ok(())
    }

    /// Decodes the batch. If the cache has no room, forgets idle texts and decodes once more.
    fn decode_with_room(&mut self, decode: impl Fn(&mut Context) -> Result<(), llama_sys::Error>) -> Result<(), Error> {
        let context = &mut self.lent.context;
        match decode(context) {
            Err(llama_sys::Error::NoKvSlot { .. }) => {
                self.cache.make_room(context, 0, false)?;
                for sequence in self.sequences.iter() {
                    context.kv_leave_window(sequence.held.seq)?;
                }
                decode(context)?;
            }
            decoded => decoded?,
        }
        Ok(())
    }

    fn compute(&mut self) -> Result<Computed, Error> {
        self.fill()?;
        if self.work.batch.is_empty() {
            return Ok(Computed::default());
        }
        let queued = self.work.batch.len();
        self.set_draft_threads()?;
        let is_steady = draft(self.lent, self.drafters, self.sequences, &mut self.work.batch)?;
        let generates = self.sequences.iter().all(Sequence::is_steady);
        let is_alone = self.work.media.is_none();
        let generated = (is_alone && generates && self.work.batch.len() == queued).then_some(queued);
        self.set_threads(generates, generated)?;
        let context = &mut self.lent.context;
        let buffers = context.compute_buffers();
        let experts = context.moe_cache_uses();
        if context.kv_unified() {
            // Idle texts occupy cells of the same cache.
            let drafted = self.work.batch.len() - queued;
            let wanted = cells(self.sequences) + drafted;
            self.cache.make_room(context, self.lent.room.all.saturating_sub(wanted), false)?;
        }
        let batch = std::mem::take(&mut self.work.batch);
        let decoded = self.decode_with_room(|context| context.decode(&batch));
        self.work.batch = batch;
        decoded?;
        self.note_growth(&buffers);
        self.note_experts(experts, generates);
        let context = &mut self.lent.context;
        // Waits for the device, so that the time of the prompt is separated from the time of choosing.
        if self.sequences.iter().any(Sequence::ends_prompt) {
            context.synchronize()?;
        }
        Ok(Computed { is_steady: is_steady && is_alone, generates, generated })
    }

    /// Adds the growth of the compute buffers since `before` to the statistics of the batch's texts.
    fn note_growth(&mut self, before: &ComputeBuffers) {
        let grown = self.lent.context.compute_buffers().since(before);
        if grown == ComputeBuffers::default() {
            return;
        }
        if grown.bytes > 0 {
            tracing::info!(target: "autoplace::generate", "compute buffers grew by {} bytes", grown.bytes);
        }
        for sequence in self.sequences.iter_mut().filter(|sequence| sequence.is_queued()) {
            sequence.statistics.buffer_growth += grown.bytes;
            sequence.statistics.reallocations += grown.reallocations();
        }
    }

    /// Adds the uses of the cache of experts since `before` to the statistics of the batch's texts. The model's own
    /// statistics count only batches of generated tokens, because a prompt uses experts in another way.
    fn note_experts(&mut self, before: Option<MoeCacheUses>, generates: bool) {
        let Some((before, now)) = before.zip(self.lent.context.moe_cache_uses()) else { return };
        let of = |uses: MoeCacheUses| ExpertUses { hits: uses.hits, misses: uses.misses };
        let uses = of(now).since(&of(before));
        if uses.total() == 0 {
            return;
        }
        if generates {
            self.model.counters().used_experts(uses);
        }
        for sequence in self.sequences.iter_mut().filter(|sequence| sequence.is_queued()) {
            sequence.statistics.expert_hits += uses.hits;
            sequence.statistics.expert_misses += uses.misses;
        }
    }

    /// Sets the threads for the batch. `generates` is true if the batch has no prompt tokens. `generated` is the number
    /// of its tokens if its time will be measured.
    fn set_threads(&mut self, generates: bool, generated: Option<usize>) -> Result<(), Error> {
        let Some(threads) = self.model.counters().batch_threads(generates, generated) else {
            return Ok(());
        };
        threads.set(&mut self.lent.context)?;
        for sequence in self.sequences.iter_mut() {
            sequence.statistics.threads = if generates { threads.one } else { threads.several };
        }
        Ok(())
    }

    /// Sets the threads of the drafters. Beside other work, a draft with all threads would slow the text down.
    fn set_draft_threads(&mut self) -> Result<(), Error> {
        let drafts = &mut self.drafters.drafts;
        let Some(threads) = self.model.counters().pacer().as_ref().map(Pacer::draft) else {
            return Ok(());
        };
        if let Some(model) = &mut drafts.model {
            model.set_threads(threads)?;
        }
        if let Some(heads) = &mut drafts.heads {
            heads.set_threads(threads)?;
        }
        Ok(())
    }

    /// Records a step that ended `now`, and its time if it `generates`, that is, has no prompt tokens. `tokens` is the
    /// number of its tokens if its time can be compared with other steps. The pacer may then change the threads.
    fn pace(&self, generates: bool, tokens: Option<usize>, took: Duration, now: Instant) {
        let mut pacer = self.model.counters().pacer();
        let change = pacer.as_mut().and_then(|pacer| {
            pacer.ends(now);
            generates.then(|| pacer.step(tokens, took, now))?
        });
        drop(pacer);
        if let Some(change) = change {
            tracing::info!(target: "autoplace::generate", "{change}");
        }
    }

    /// Chooses the next token of every text whose queued tokens are computed, and further tokens while the draft
    /// agrees. `computed` is the time from `begun` to the end of the computation.
    fn choose(&mut self, begun: Instant, computed: Duration) -> Result<(), Error> {
        let mut used = cells(self.sequences);
        for at in 0..self.sequences.len() {
            let sequence = &mut self.sequences[at];
            if !sequence.is_queued() {
                if let Some((id, took)) = self.work.media
                    && id == sequence.id
                {
                    sequence.statistics.prompt_time += took;
                }
                continue;
            }
            let (from, discarded) = (sequence.held.computed, sequence.statistics.discarded_tokens);
            sequence.computed(computed);
            if sequence.held.stops.is_due(sequence.held.computed) {
                self.checkpoint(at);
            }
            match self.choose_of(at, &mut used, begun, computed) {
                Err(error) if error.is_of_one_text() => {
                    self.work.failed.push((self.sequences[at].id, error));
                }
                chosen => chosen?,
            }
            let sequence = &mut self.sequences[at];
            let context = &mut self.lent.context;
            // After a shift, the tokens are no longer at their places in the batch.
            if sequence.statistics.discarded_tokens == discarded {
                sequence.followed(self.drafters, context, from)?;
            }
            sequence.forget_draft(context)?;
        }
        Ok(())
    }

    fn checkpoint(&mut self, at: usize) {
        let running = held(self.sequences);
        let (seq, held) = running[at];
        self.cache.checkpoint(&mut self.lent.context, seq, held, &running);
    }

    fn choose_of(&mut self, at: usize, used: &mut usize, begun: Instant, computed: Duration) -> Result<(), Error> {
        let room = self.lent.room;
        let mut previous = computed;
        while let Some(choice) = self.sequences[at].choose(&mut self.lent.context)? {
            let sequence = &mut self.sequences[at];
            let token = choice.token;
            let now = begun.elapsed();
            let took = now.saturating_sub(previous);
            previous = now;
            let full = sequence.len() >= room.each || *used >= room.all;
            let shifts = full && sequence.shifting.is_some();
            let mut piece = sequence.take(choice, took, &self.lent.vocab, full && !shifts)?;
            if shifts && piece.end.is_none() {
                self.shift(at, used, &mut piece)?;
            }
            let sequence = &mut self.sequences[at];
            sequence.given += piece.text.len();
            let goes_on = piece.end.is_none();
            *used += usize::from(goes_on);
            self.work.pieces.push_back((piece, sequence.statistics));
            if !goes_on || shifts || !sequence.accepts(token) {
                break;
            }
        }
        Ok(())
    }

    /// Discards the oldest tokens of a text whose token was just chosen. The text ends if this makes no room.
    fn shift(&mut self, at: usize, used: &mut usize, piece: &mut Piece) -> Result<(), Error> {
        // The draft is after the tokens that will be moved, and has no room after the new token.
        self.sequences[at].forget_draft(&mut self.lent.context)?;
        let before = cells(self.sequences);
        let shared = shared(self.sequences, at);
        if self.lent.context.kv_unified()
            && let Some(end) = self.sequences[at].shift_end(shared)
        {
            self.cache.part_from(&mut self.lent.context, &self.sequences[at].tokens, end)?;
        }
        if let Some(keep) = self.sequences[at].shift(self.lent, shared)? {
            part_after(self.sequences, at, keep);
        }
        *used = (*used + cells(self.sequences)).saturating_sub(before);
        let room = self.lent.room;
        if self.sequences[at].len() > room.each || *used >= room.all {
            self.sequences[at].finish(piece, FinishReason::ContextFull);
        }
        Ok(())
    }

    /// Reports the step's time and tokens to the speculator of every text.
    fn learn(&mut self, took: Duration) {
        for sequence in self.sequences.iter_mut() {
            let tokens = self.work.pieces.iter().filter(|(piece, _)| piece.sequence == sequence.id).count();
            // A text without new tokens had no part in the step.
            if tokens > 0
                && let Some(speculator) = &mut sequence.speculator
            {
                speculator.took(took, tokens);
            }
        }
    }

    /// Removes ended texts from the session. Their tokens stay in the cache.
    fn let_ended_go(&mut self) {
        let ended = self.work.pieces.iter().filter(|(piece, _)| piece.end.is_some()).map(|(piece, _)| piece.sequence);
        let ended = ended.chain(self.work.failed.iter().map(|failed| failed.0));
        if ended.clone().next().is_none() {
            return;
        }
        let has_ended = |sequence: &Sequence| ended.clone().any(|id| id == sequence.id);
        while let Some(at) = self.sequences.iter().position(has_ended) {
            take_out(self.sequences, at).leave(self.cache, self.drafters);
        }
        self.model.counters().say_speed(true);
    }
}

/// Adds drafts to a batch that holds the next tokens of every text. Returns whether the step's time is used to judge
/// whether drafts are worthwhile. If a step computes a prompt, it gets no drafts, and its time is not used.
fn draft(lent: &Lent, drafters: &mut Drafters, sequences: &mut [Sequence], batch: &mut Batch) -> Result<bool, Error> {
    let Lent { context, vocab, room, .. } = lent;
    if sequences.iter().all(|sequence| sequence.speculator.is_none()) {
        return Ok(false);
    }
    let is_steady = sequences.iter().all(Sequence::is_steady);
    let off = drafts_off(context);
    let used: usize = sequences.iter().map(Sequence::len).sum();
    // If all draft tokens are in the same graph, they do not displace cells of a sliding window that are needed again
    // after a rejected draft.
    let of_graph = context.n_ubatch().min(context.n_batch()) as usize;
    let outputs = (context.n_outputs_max() as usize).saturating_sub(sequences.len());
    // A recurrent state can go back by at most `n_rs_seq` tokens.
    let back = match context.n_rs_seq() {
        0 => usize::MAX,
        tokens => tokens as usize,
    };
    // Each text also needs a cell for its own token.
    let places = room.all.saturating_sub(used + sequences.len());
    let mut left = of_graph.saturating_sub(batch.len()).min(outputs).min(places);
    let mut sharing = sequences.iter().filter(|sequence| sequence.speculator.is_some()).count();
    for sequence in sequences.iter_mut().filter(|sequence| sequence.speculator.is_some()) {
        let share = if is_steady { left / sharing } else { 0 };
        sharing -= 1;
        let most = share.min(back).min(room.each.saturating_sub(sequence.len()));
        left -= sequence.queue_draft(batch, most, off, vocab.n_tokens(), drafters)?;
    }
    Ok(is_steady)
}

/// The reason why this context allows no drafts; `None` if it allows them.
fn drafts_off(context: &Context) -> Option<DraftingPaused> {
    let model = context.model();
    if (model.is_recurrent() || model.is_hybrid()) && context.n_rs_seq() == 0 {
        Some(DraftingPaused::Memory)
    } else if context.n_outputs_max() <= context.n_seq_max() {
        Some(DraftingPaused::NoRoom)
    } else {
        None
    }
}
