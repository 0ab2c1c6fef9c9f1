//! One text in the making: its tokens, what of them is computed, and what the next one is chosen by.

mod next_token;

use std::time::Duration;

use llama_sys::{Batch, Context, Model, SeqId, State, Token, Vocab};

use super::cache::can_go_back;
use super::checkpoints::Stops;
use super::choose::{Chooser, Choosing};
use super::constraint::Matcher;
use super::error::Error;
use super::session::SequenceId;
use super::shift::Shifting;
use super::speculative::{Drafters, DraftsOff, Speculator};
use super::stats::Statistics;
use super::text::TextAssembler;
use super::{Limits, Spec};
use crate::load::Scales;

/// A sequence of a session. What of it is tied to the loaded model can be let go of, and made anew.
#[derive(Debug)]
pub(super) struct Sequence {
    pub(super) id: SequenceId,
    /// Its number in the context.
    pub(super) seq: SeqId,
    /// The prompt, and what was generated.
    pub(super) tokens: Vec<Token>,
    /// Tokens of the prompt.
    pub(super) prompt: usize,
    /// Tokens at the beginning that are computed as many at a time as a batch takes; the others one by
    /// one, as they came.
    pub(super) in_batches: usize,
    /// Tokens at the beginning that the KV cache holds.
    pub(super) computed: usize,
    /// Where the prompt is interrupted for checkpoints.
    pub(super) stops: Stops,
    /// Tokens after those that the batch holds.
    queued: usize,
    /// Nothing of it is computed while it waits for its reader.
    is_paused: bool,
    /// The step that gave it a token more than other prompts.
    pub(super) favoured: u64,
    /// Where in the batch the token is that the next one is chosen after.
    output: Option<i32>,
    /// The adapters that it is computed with.
    pub(super) scales: Scales,
    /// Turns of other adapters since its own.
    turns_waited: u32,
    /// What the chooser is made of.
    pub(super) choosing: Choosing,
    pub(super) chooser: Chooser,
    /// Tokens that the chooser knows of; those after them have been chosen by an earlier process.
    pub(super) chosen: usize,
    /// What the text is held to.
    pub(super) matcher: Option<Matcher>,
    /// The same before the tokens after the prompt.
    pub(super) matcher_before: Option<Matcher>,
    /// The KV cache of the tokens that are computed, while the model is not loaded.
    pub(super) saved: Option<State>,
    /// What happens when the context is full.
    pub(super) shifting: Option<Shifting>,
    /// Tokens at the beginning of which the context holds just what they give: what a shift in place has moved has
    /// seen others too.
    pub(super) genuine: usize,
    /// Tokens that shifts took out, the last of them: a sampler has been told of them.
    pub(super) forgotten: Vec<Token>,
    /// The text that is running whose cells hold the beginning of this one, and how many of its tokens.
    pub(super) shares: Option<(SequenceId, usize)>,
    /// The text before the tokens after the prompt: more than nothing where a shift took some out.
    pub(super) told: TextAssembler,
    pub(super) text: TextAssembler,
    pub(super) limits: Limits,
    /// Guesses the tokens after the last one, if that was asked for.
    pub(super) speculator: Option<Speculator>,
    /// Where in the batch its tokens begin, and how many there are.
    batch_at: i32,
    in_batch: usize,
    /// Where in the batch its guess begins.
    draft_at: i32,
    pub(super) statistics: Statistics,
}

impl Sequence {
    /// A sequence that has no [place](Self::put) yet. `capacity`: tokens that the context holds of it.
    pub(super) fn new(
        id: SequenceId,
        spec: Spec,
        mut tokens: Vec<Token>,
        scales: Scales,
        model: &Model,
        capacity: usize,
    ) -> Result<Self, Error> {
        let prompt = tokens.len();
        let shifting = Shifting::of(&spec.when_full, &tokens, capacity, &model.vocab())?;
        let text = TextAssembler::new(spec.stops);
        tokens.reserve(spec.limits.max_tokens.min(capacity.saturating_sub(prompt)));
        let mut choosing = Choosing {
            sampling: spec.sampling,
            logprobs: spec.logprobs,
            custom: spec.custom,
        };
        let mut chooser = choosing.begin(model)?;
        for &token in &tokens {
            chooser.accept(token)?;
        }
        let statistics = Statistics {
            seed: chooser.seed(),
            ..Statistics::default()
        };
        Ok(Self {
            id,
            seq: 0,
            tokens,
            prompt,
            in_batches: prompt,
            computed: 0,
            stops: Stops::default(),
            queued: 0,
            is_paused: false,
            favoured: 0,
            output: None,
            scales,
            turns_waited: 0,
            choosing,
            chooser,
            chosen: prompt,
            matcher: None,
            matcher_before: None,
            saved: None,
            shifting,
            genuine: usize::MAX,
            forgotten: Vec::new(),
            shares: None,
            told: text.clone(),
            text,
            limits: spec.limits,
            speculator: Speculator::new(spec.speculation, spec.drafter, capacity),
            batch_at: 0,
            in_batch: 0,
            draft_at: 0,
            statistics,
        })
    }

    /// Holds its text to a constraint, if there is one, from the beginning.
    pub(super) fn hold_to(&mut self, matcher: Option<Matcher>) {
        self.matcher_before.clone_from(&matcher);
        self.matcher = matcher;
    }

    /// Puts tokens behind the prompt that an earlier process has generated. Their text has been told, but for what is
    /// held back. What has no place in `capacity` tokens was forgotten there too.
    pub(super) fn go_on_after(
        &mut self,
        so_far: &[Token],
        vocab: &Vocab,
        capacity: usize,
    ) -> Result<(), Error> {
        if so_far.is_empty() {
            return Ok(());
        }
        for &token in so_far {
            vocab.append_piece(token, self.limits.special, self.text.buffer())?;
            self.text.release();
            self.tokens.push(token);
            if self.tokens.len() > capacity {
                self.forget_oldest(vocab, capacity, 0)?;
            }
        }
        self.in_batches = self.in_batches.min(self.prompt);
        self.statistics.generated_tokens = so_far.len();
        let is_known = self.chooser.has_chosen(so_far)?;
        if is_known {
            if let Some(matcher) = &mut self.matcher {
                so_far.iter().try_for_each(|token| matcher.accept(*token))?;
            }
            self.chosen = self.tokens.len();
        } else if self.statistics.discarded_tokens > 0 {
            // To be made again, they would need what was forgotten.
            return Err(Error::ChoicesLost {
                choices: so_far.len(),
            });
        }
        Ok(())
    }

    /// The same text again, without a place, with another chooser and what that is made of, and without what is
    /// kept of the memory.
    pub(super) fn twin(&self, choosing: Choosing, chooser: Chooser) -> Self {
        let mut tokens = Vec::with_capacity(self.tokens.capacity());
        tokens.extend_from_slice(&self.tokens);
        Self {
            id: self.id,
            seq: self.seq,
            tokens,
            prompt: self.prompt,
            in_batches: self.in_batches,
            computed: self.computed,
            stops: Stops::default(),
            queued: 0,
            is_paused: self.is_paused,
            favoured: self.favoured,
            output: None,
            scales: self.scales.clone(),
            turns_waited: self.turns_waited,
            choosing,
            chooser,
            chosen: self.chosen,
            matcher: self.matcher.clone(),
            matcher_before: self.matcher_before.clone(),
            saved: None,
            shifting: self.shifting,
            genuine: self.genuine,
            forgotten: self.forgotten.clone(),
            shares: None,
            told: self.told.clone(),
            text: self.text.clone(),
            limits: self.limits,
            speculator: self.speculator.clone(),
            batch_at: 0,
            in_batch: 0,
            draft_at: 0,
            statistics: self.statistics,
        }
    }

    /// A chooser as it would be had it chosen the tokens after the prompt, up to the first `tokens`, of which
    /// `choices` were generated.
    ///
    /// # Errors
    ///
    /// [`Error::ChoicesLost`] where what choices leave behind cannot be known without their logits.
    pub(super) fn chooser_after(
        &self,
        choosing: &mut Choosing,
        tokens: usize,
        choices: usize,
        model: &Model,
    ) -> Result<Chooser, Error> {
        let mut chooser = choosing.begin(model)?;
        // What was forgotten came after what is kept.
        let keep = self.shifting.map_or(0, |shifting| shifting.keep);
        let tokens = &self.tokens[..tokens];
        let (kept, others) = tokens.split_at(keep.min(tokens.len()));
        for &token in kept.iter().chain(&self.forgotten).chain(others) {
            chooser.accept(token)?;
        }
        if !chooser.skip(choices)? {
            return Err(Error::ChoicesLost { choices });
        }
        Ok(chooser)
    }

    /// The adapters that it is computed with.
    pub(super) fn scales(&self) -> &Scales {
        &self.scales
    }

    /// Turns of other adapters since its own.
    pub(super) fn turns_waited(&self) -> u32 {
        self.turns_waited
    }

    /// Takes note that it is the turn of these adapters.
    pub(super) fn told_whose_turn(&mut self, scales: &Scales) {
        self.turns_waited = if self.scales == *scales {
            0
        } else {
            self.turns_waited.saturating_add(1)
        };
    }

    /// Whether a part of the batch is its own.
    pub(super) fn is_queued(&self) -> bool {
        self.queued > 0
    }

    /// The prompt, and what was generated.
    pub(super) fn tokens(&self) -> &[Token] {
        &self.tokens
    }

    /// Tokens that it has places for or needs them: those computed, and those to be.
    pub(super) fn len(&self) -> usize {
        self.tokens.len()
    }

    pub(super) fn statistics(&self) -> Statistics {
        self.statistics
    }

    /// Adds time in which it waited for its turn.
    pub(super) fn waited(&mut self, time: Duration) {
        self.statistics.queue_time += time;
    }

    /// Whether nothing of it is computed.
    pub(super) fn pause(&mut self, pause: bool) {
        self.is_paused = pause;
    }

    /// Tokens that the context must hold for it to go on.
    pub(super) fn needs(&self) -> usize {
        // An answer to a prompt has one token at least; a token that was chosen may be the last.
        self.len() + usize::from(self.statistics.generated_tokens == 0)
    }

    /// Goes on with the vocabulary of the model as it is loaded now.
    pub(super) fn take_up(&mut self, vocab: &Vocab) {
        if let Some(matcher) = &mut self.matcher {
            matcher.take_up(vocab);
        }
    }

    /// Tokens that can be computed together next: what is left of a prompt, or the one that was chosen. None
    /// while it is paused.
    pub(super) fn wanted(&self) -> usize {
        if self.is_paused {
            return 0;
        }
        let end = self.stops.next(self.computed).unwrap_or(usize::MAX);
        let end = end.min(self.in_batches);
        end.saturating_sub(self.computed).max(1)
    }

    /// Adds its next tokens to a batch, as many as [wanted](Self::wanted) at most.
    pub(super) fn queue(&mut self, batch: &mut Batch, tokens: usize) {
        self.queued = tokens;
        (self.batch_at, self.in_batch) = (batch.len() as i32, tokens);
        self.output = None;
        let end = self.computed + self.queued;
        for position in self.computed..end {
            let last = position + 1 == self.chosen;
            if last {
                self.output = Some(batch.len() as i32);
            }
            batch.add(self.tokens[position], position as i32, self.seq, last);
        }
    }

    /// Whether its next tokens are guessed.
    pub(super) fn speculates(&self) -> bool {
        self.speculator.is_some()
    }

    /// Whether the batch computes no more of it than the last token of an answer.
    pub(super) fn is_steady(&self) -> bool {
        self.queued <= 1 && !self.ends_prompt()
    }

    /// Adds a guess of the tokens after its last one to the batch, of `most` tokens at most. `off`: why
    /// there can be none.
    pub(super) fn queue_draft(
        &mut self,
        batch: &mut Batch,
        most: usize,
        off: Option<DraftsOff>,
        n_vocab: u32,
        drafters: &mut Drafters,
    ) -> Result<usize, Error> {
        let Some(speculator) = &mut self.speculator else {
            return Ok(0);
        };
        self.statistics.drafts_off = off.or(speculator.off(drafters));
        // The last token of an answer is not computed, and each guess is followed by a token that is no guess.
        let generated = self.statistics.generated_tokens;
        let left = self.limits.max_tokens.saturating_sub(generated);
        let most = most.min(left.saturating_sub(1));
        // Those that an earlier process has chosen are no guesses.
        let is_ahead = self.chosen == self.tokens.len();
        if off.is_some() || self.output.is_none() || !is_ahead {
            speculator.forget();
            return Ok(0);
        }
        let draft = speculator.guess(self.seq, &self.tokens, most, n_vocab, drafters)?;
        self.draft_at = batch.len() as i32;
        self.statistics.drafted_tokens += draft.len();
        for (position, &token) in (self.tokens.len()..).zip(draft) {
            batch.add(token, position as i32, self.seq, true);
        }
        Ok(draft.len())
    }

    /// Whether the batch computes the last token of the prompt.
    pub(super) fn ends_prompt(&self) -> bool {
        self.output.is_some() && self.statistics.first_token_latency.is_none()
    }

    /// Says that its tokens in the batch are computed, and how long that took.
    pub(super) fn computed(&mut self, took: Duration) {
        if self.is_paused {
            return;
        }
        self.computed += self.queued;
        self.queued = 0;
        if self.statistics.first_token_latency.is_none() {
            self.statistics.prompt_time += took;
        } else {
            self.statistics.generation_time += took;
        }
    }

    /// Whether the token that was chosen is the one that was guessed: then the next one can be chosen from what the
    /// batch has computed.
    pub(super) fn accepts(&mut self, token: Token) -> bool {
        let Some(speculator) = &mut self.speculator else {
            return false;
        };
        let is_guessed = speculator.accepts(token);
        if is_guessed {
            self.computed += 1;
            // What the guessed token gives.
            self.output = Some(self.draft_at + speculator.accepted() as i32 - 1);
            self.statistics.accepted_tokens += 1;
        }
        is_guessed
    }

    /// Has what drafts for it follow the tokens `from` on, which the batch has computed: those of the text, and those
    /// of the guess that came true.
    pub(super) fn followed(
        &self,
        drafters: &mut Drafters,
        context: &mut Context,
        from: usize,
    ) -> Result<(), Error> {
        let is_followed = |speculator: &Speculator| speculator.is_followed();
        if self.computed <= from || !self.speculator.as_ref().is_some_and(is_followed) {
            return Ok(());
        }
        let row = |index: usize| match index.checked_sub(self.in_batch) {
            None => self.batch_at + index as i32,
            Some(guessed) => self.draft_at + guessed as i32,
        };
        let rows = (0..self.computed - from).map(row);
        drafters.follow(context, self.seq, &self.tokens, from, rows)
    }

    /// Has the context forget what was guessed wrongly. Doing it again, as after a shift before which it was done,
    /// changes nothing: the memory ends where the text is computed to.
    pub(super) fn forget_draft(&mut self, context: &mut Context) -> Result<(), Error> {
        let Some(speculator) = &self.speculator else {
            return Ok(());
        };
        let (drafted, accepted) = (speculator.drafted(), speculator.accepted());
        if drafted == accepted {
            return Ok(());
        }
        let keep = self.computed as i32;
        // A recurrent state goes back within the tokens of the last batch, as far as the context was planned for that.
        let by_states = drafted - accepted <= context.n_rs_seq() as usize;
        let goes_back = by_states || can_go_back(context, self.seq, self.computed)?;
        let went_back = goes_back && context.kv_seq_remove(self.seq, keep..i32::MAX)?;
        if !went_back {
            context.kv_seq_remove(self.seq, 0..i32::MAX)?;
            self.compute_again();
        }
        Ok(())
    }

    /// Takes note of the time of a step in which only generated tokens were computed, this many of its own.
    pub(super) fn step_took(&mut self, took: Duration, tokens: usize) {
        if let Some(speculator) = &mut self.speculator {
            speculator.took(took, tokens);
        }
    }
}
