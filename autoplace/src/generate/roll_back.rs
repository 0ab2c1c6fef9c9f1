//! Forgetting the last tokens of a running text, as if they had never been chosen.

use serde::{Deserialize, Serialize};

use super::cache::{Cache, can_go_back};
use super::constraint::Matcher;
use super::context::Lent;
use super::error::Error;
use super::local::SessionHere;
use super::piece::SequenceId;
use super::sequence::{Sequence, part_after};
use super::text::{Released, TextAssembler};
use llama_sys::Vocab;

/// What a text has lost by being [rolled back](super::Session::roll_back).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RolledBack {
    /// Tokens that were forgotten.
    pub tokens: usize,
    /// Bytes at the end of the text handed out so far that came of forgotten tokens: whole characters. What follows
    /// goes on before them.
    pub text: usize,
}

const SAMPLER: &str = "what the sampler goes by depends on the logits of its choices";

impl SessionHere {
    pub(super) fn roll_back(&mut self, sequence: SequenceId, tokens: usize) -> Result<RolledBack, Error> {
        let at = self.position(sequence)?;
        let lent = self.lent.as_mut().ok_or_else(Error::not_loaded)?;
        let sequence = &mut self.sequences[at];
        let possible = sequence.can_roll_back(lent, &self.cache)?;
        if tokens > possible {
            return Err(Error::CannotRollBack { tokens, possible, reason: sequence.why_no_further(lent).into() });
        }
        if sequence.choices_lost(tokens) {
            return Err(Error::CannotRollBack { tokens, possible: 0, reason: SAMPLER.into() });
        }
        let rolled_back = sequence.roll_back(lent, &mut self.cache, tokens)?;
        let left = sequence.held.computed;
        part_after(&mut self.sequences, at, left);
        Ok(rolled_back)
    }

    pub(super) fn can_roll_back(&self, sequence: SequenceId) -> Result<usize, Error> {
        let lent = self.lent.as_ref().ok_or_else(Error::not_loaded)?;
        match self.running(sequence) {
            Some(sequence) => sequence.can_roll_back(lent, &self.cache),
            None => Ok(0),
        }
    }
}

impl Sequence {
    /// Tokens at the beginning that have to stay.
    fn stays(&self) -> usize {
        match self.shifting {
            Some(shifting) if self.statistics.discarded_tokens > 0 => shifting.keep + 1,
            _ => 1,
        }
    }

    /// Choices that are left when the last tokens are forgotten.
    fn choices_before(&self, tokens: usize) -> usize {
        let of_text = tokens.min(self.len() - self.prompt);
        self.statistics.generated_tokens.saturating_sub(of_text)
    }

    /// Whether what its sampler went by before the last tokens is not known.
    fn choices_lost(&self, tokens: usize) -> bool {
        tokens > 0 && self.choices.chooser.depends_on_logits() && self.choices_before(tokens) > 0
    }

    fn can_roll_back(&self, lent: &Lent, cache: &Cache) -> Result<usize, Error> {
        let possible = self.can_go_back(lent, cache)?;
        Ok(if self.choices_lost(possible) { 0 } else { possible })
    }

    /// As far as the memory goes.
    fn can_go_back(&self, lent: &Lent, cache: &Cache) -> Result<usize, Error> {
        let len = self.len();
        let genuine = &self.tokens[..self.held.computed.min(self.held.unshifted)];
        let checkpoint = cache.checkpoints.first_among(genuine, &self.scales);
        let most = len.saturating_sub(self.stays());
        // The last token that stays is computed again, for what comes after it.
        let goes = |tokens: usize| {
            let keep = len - tokens - 1;
            let is_after = |first: usize| keep >= first;
            let goes_back = keep >= self.held.computed || checkpoint.is_some_and(is_after);
            Ok::<_, Error>(goes_back || can_go_back(&lent.context, self.held.seq, keep)?)
        };
        if goes(most)? {
            return Ok(most);
        }
        // A memory that holds a window holds the last tokens of it.
        let (mut possible, mut impossible) = (0, most);
        while possible + 1 < impossible {
            let middle = possible + (impossible - possible) / 2;
            if goes(middle)? {
                possible = middle;
            } else {
                impossible = middle;
            }
        }
        Ok(possible)
    }

    fn why_no_further(&self, lent: &Lent) -> &'static str {
        let model = lent.context.model();
        if model.is_recurrent() || model.is_hybrid() {
            "a recurrent state knows no earlier one"
        } else if self.stays() > 1 {
            "what was before them was forgotten when the context was full"
        } else if model.n_swa() > 0 {
            "the sliding window has passed on"
        } else if self.choices.chooser.depends_on_logits() && self.choices_before(self.len()) > 0 {
            SAMPLER
        } else {
            "one token stays"
        }
    }

    /// Forgets as many tokens as it [can](Self::can_roll_back).
    fn roll_back(&mut self, lent: &mut Lent, cache: &mut Cache, tokens: usize) -> Result<RolledBack, Error> {
        if tokens == 0 {
            return Ok(RolledBack { tokens, text: 0 });
        }
        let left = self.len() - tokens;
        let (before, _) = self.told_after(&lent.vocab, self.len())?;
        let (after, text) = self.told_after(&lent.vocab, left)?;
        let choices = self.choices_before(tokens);
        let mut choosing = self.choices.choosing.clone();
        let model = lent.context.model();
        let mut chooser = self.chooser_after(&mut choosing, left, choices, model)?;
        chooser.take_custom(&self.choices.chooser);
        let matcher = self.matcher_after(left)?;
        let keep = left - 1;
        if self.held.computed > keep {
            let context = &mut lent.context;
            let by_itself = can_go_back(context, self.held.seq, keep)?;
            let known = if by_itself { keep } else { keep.min(self.held.unshifted) };
            let known = &self.tokens[..known];
            let held = cache.go_back(context, self.held.seq, known, &self.scales)?;
            if by_itself {
                self.held.computed = held;
            } else {
                self.computed_to(held);
            }
        }
        (self.choices.choosing, self.choices.chooser, self.matcher) = (choosing, chooser, matcher);
        self.choices.known = self.choices.known.min(left);
        self.tokens.truncate(left);
        self.text = text;
        let statistics = &mut self.statistics;
        statistics.generated_tokens = choices;
        if left < self.prompt {
            let of_prompt = self.prompt - left;
            statistics.prompt_tokens = statistics.prompt_tokens.saturating_sub(of_prompt);
            self.prompt = left;
        }
        statistics.cached_tokens = statistics.cached_tokens.min(self.held.computed);
        // The last one is computed alone, as it was.
        let again = left - self.held.computed;
        self.held.in_batches = self.held.in_batches.min(if again > 1 { left } else { left - 1 });
        Ok(RolledBack { tokens, text: before - after })
    }

    /// What the text is held to after its first `tokens`.
    fn matcher_after(&self, tokens: usize) -> Result<Option<Matcher>, Error> {
        let mut matcher = self.before.matcher.clone();
        if let Some(matcher) = &mut matcher {
            let generated = self.tokens.get(self.prompt..tokens).unwrap_or_default();
            generated.iter().try_for_each(|it| matcher.accept(*it))?;
        }
        Ok(matcher)
    }

    /// The bytes of text that were handed out by the tokens after the prompt, up to this one, and what
    /// is held back then.
    fn told_after(&self, vocab: &Vocab, tokens: usize) -> Result<(usize, TextAssembler), Error> {
        let mut text = self.before.text.clone();
        let mut bytes = 0;
        for &token in self.tokens.get(self.prompt..tokens).unwrap_or_default() {
            vocab.append_piece(token, self.limits.special, text.buffer())?;
            match text.release() {
                Released::Text(piece) | Released::Stopped(piece) => bytes += piece.len(),
            }
        }
        Ok((bytes, text))
    }
}
