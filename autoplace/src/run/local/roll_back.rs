//! Rolls a running text back: forgets its last tokens, as if they had never been chosen.

use serde::{Deserialize, Serialize};

use crate::decode::cache::{Cache, can_go_back};
use crate::decode::checkpoints::{MIN_PROMPT, Stops};
use crate::decode::context::Lent;
use crate::decode::error::Error;
use crate::decode::piece::SequenceId;
use crate::decode::sequence::{Held, Sequence, part_after};
use crate::run::local::LocalSession;

/// The effect of [rolling back](crate::generate::Session::roll_back) a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RolledBack {
    /// Number of forgotten tokens.
    pub tokens: usize,
    /// Number of bytes at the end of the returned text that came from forgotten tokens, counted in whole characters.
    /// The next piece replaces them.
    pub text: usize,
}

const SAMPLER: &str =
    "its sampler depends on the logits of its choices, which are not kept (mirostat, adaptive-p, XTC)";

impl LocalSession {
    pub(crate) fn roll_back(&mut self, sequence: SequenceId, tokens: usize) -> Result<RolledBack, Error> {
        let possible = self.can_roll_back(sequence)?;
        let at = self.position(sequence).ok_or(Error::NotRunning { sequence })?;
        let lent = self.lent.as_mut().ok_or_else(Error::not_loaded)?;
        let source = &self.sequences[at];
        let refused = |reason: &str| Err(Error::CannotRollBack { tokens, possible, reason: reason.to_owned() });
        if self.work.pieces.iter().any(|(piece, _)| piece.sequence == sequence) {
            return refused("its pieces of the last step have not been read yet");
        }
        if tokens > possible {
            return refused(source.why_no_further(lent));
        }
        if tokens == 0 {
            return Ok(RolledBack { tokens, text: 0 });
        }
        let left = source.len() - tokens;
        let prompt = source.prompt.min(left);
        let mut spec = source.spec_after(prompt)?;
        spec.custom = source.chooser.custom();
        let asked = Box::new(spec.without_prompt());
        let generated = &source.tokens[prompt..left];
        let mut rolled_back =
            Sequence::new(source.id, spec, generated, &self.model, &lent.vocab, lent.room.each.max(left + 1))?;
        rolled_back.asked = Some(asked);
        if !generated.is_empty() && rolled_back.chooser.depends_on_logits() {
            return refused(SAMPLER);
        }
        let text = source.given.saturating_sub(rolled_back.given);
        rolled_back.take_place_of(source, lent, &mut self.cache)?;
        let computed = rolled_back.held.computed;
        self.sequences[at] = rolled_back;
        part_after(&mut self.sequences, at, computed);
        Ok(RolledBack { tokens, text })
    }

    pub(crate) fn can_roll_back(&self, sequence: SequenceId) -> Result<usize, Error> {
        let lent = self.lent.as_ref().ok_or_else(Error::not_loaded)?;
        let at = self.position(sequence).ok_or(Error::NotRunning { sequence })?;
        self.sequences[at].can_roll_back(lent, &self.cache)
    }
}

impl Sequence {
    fn can_roll_back(&self, lent: &Lent, cache: &Cache) -> Result<usize, Error> {
        if self.statistics.discarded_tokens > 0 {
            return Err(Error::ShiftedOut { tokens: self.statistics.discarded_tokens });
        }
        let len = self.len();
        let computed = self.all().first(self.held.computed);
        let checkpoint = cache.checkpoints.first_among(computed);
        // The last remaining token is computed again, because the next token is chosen from its logits.
        let goes = |tokens: usize| {
            let keep = len - tokens - 1;
            let is_held = keep >= self.held.computed || checkpoint.is_some_and(|after| keep >= after);
            Ok::<_, Error>(
                is_held
                    || self.prompt < MIN_PROMPT
                    || can_go_back(&lent.context, self.held.seq, self.spans.position(keep))?,
            )
        };
        // A picture is kept as a whole, with one token after it.
        let most = len.saturating_sub(self.spans.end() + 1);
        let (mut possible, mut impossible) = (0, most + 1);
        while possible + 1 < impossible {
            let middle = possible + (impossible - possible) / 2;
            if goes(middle)? {
                possible = middle;
            } else {
                impossible = middle;
            }
        }
        // A sampler that depends on logits can restart at the end of the prompt, but not after it.
        let is_lost = self.chooser.depends_on_logits() && possible < len - self.prompt;
        Ok(if is_lost { 0 } else { possible })
    }

    fn why_no_further(&self, lent: &Lent) -> &'static str {
        let model = lent.context.model();
        if self.chooser.depends_on_logits() && self.len() > self.prompt {
            SAMPLER
        } else if model.is_recurrent() || model.is_hybrid() {
            "a recurrent state cannot go back, and there is no earlier checkpoint"
        } else if model.n_swa() > 0 {
            "the sliding window has moved on, and there is no earlier checkpoint"
        } else if !self.spans.is_empty() {
            "an image or a sound of the prompt stays, with one token after it"
        } else {
            "one token has to stay"
        }
    }

    /// Takes over the sequence of a longer text that begins with the same tokens.
    fn take_place_of(&mut self, longer: &Self, lent: &mut Lent, cache: &mut Cache) -> Result<(), Error> {
        let (context, seq) = (&mut lent.context, longer.held.seq);
        let keep = longer.held.computed.min(self.len() - 1);
        let computed = match keep == longer.held.computed {
            true => keep,
            false => cache.go_back(context, seq, self.all().first(keep))?,
        };
        let stops = match cache.checkpoints.limit > 0 && context.has_partial_state() {
            true => Stops::new(self.prompt, &self.spans, computed, 0),
            false => Stops::default(),
        };
        let shares = longer.held.shares.map(|(of, tokens)| (of, tokens.min(computed)));
        self.held = Held { seq, computed, stops, shares, in_batches: self.held.in_batches, ..Held::default() };
        let generated_tokens = self.statistics.generated_tokens;
        self.statistics = longer.statistics;
        self.statistics.generated_tokens = generated_tokens;
        self.statistics.prompt_tokens = self.prompt;
        self.statistics.cached_tokens = self.statistics.cached_tokens.min(computed);
        if generated_tokens == 0 {
            self.statistics.first_token_latency = None;
        }
        Ok(())
    }
}
