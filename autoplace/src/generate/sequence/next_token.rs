//! The next token of a text: how it is chosen, the piece of text that comes of it, and whether the text ends with it.

use std::time::Duration;

use llama_sys::{Context, Vocab};

use super::Sequence;
use crate::generate::choose::Choice;
use crate::generate::constraint::Matcher;
use crate::generate::error::Error;
use crate::generate::piece::{End, FinishReason, Piece};
use crate::generate::text::Released;

impl Sequence {
    /// Its last piece, where no token of it is wanted.
    pub(crate) fn end_at_once(&mut self) -> Option<Piece> {
        (self.limits.max_tokens == 0).then(|| Piece {
            sequence: self.id,
            token: None,
            logprobs: None,
            text: String::new(),
            end: Some(self.end(FinishReason::MaxTokens)),
        })
    }

    /// Chooses the next token, if the batch was computed so far and it is not one of those that an earlier
    /// process has chosen.
    pub(crate) fn choose(&mut self, context: &mut Context) -> Result<Option<Choice>, Error> {
        let Some(output) = self.batch.output else {
            return Ok(None);
        };
        let again = self.tokens.get(self.choices.known).copied();
        self.choices.known += 1;
        if let Some(token) = again {
            let mask = mask_of(&mut self.matcher)?;
            self.choices
                .chooser
                .choose_again(context, output, mask, token)?;
            if let Some(matcher) = &mut self.matcher {
                matcher.accept(token)?;
            }
            return Ok(None);
        }
        // Computed while the device still computes the logits.
        let mask = mask_of(&mut self.matcher)?;
        let choice = self
            .choices
            .chooser
            .choose_masked(context, output, &self.tokens, mask)?;
        Ok(Some(choice))
    }

    /// Takes the token that was chosen, so long after its batch was computed, and makes text of it. `full`: there is no
    /// place for the token to be computed.
    pub(crate) fn take(
        &mut self,
        choice: Choice,
        took: Duration,
        vocab: &Vocab,
        full: bool,
    ) -> Result<Piece, Error> {
        let statistics = &mut self.statistics;
        if statistics.first_token_latency.is_none() {
            statistics.prompt_tokens = self.prompt;
            statistics.first_token_latency = Some(statistics.prompt_time + took);
        } else {
            statistics.generation_time += took;
        }
        let Choice { token, logprobs } = choice;
        let mut piece = Piece {
            sequence: self.id,
            token: Some(token),
            logprobs,
            text: String::new(),
            end: None,
        };
        if vocab.is_eog(token) {
            self.finish(&mut piece, FinishReason::EndOfGeneration);
            return Ok(piece);
        }
        self.tokens.push(token);
        self.statistics.generated_tokens += 1;
        vocab.append_piece(token, self.limits.special, self.text.buffer())?;
        if let Some(matcher) = &mut self.matcher {
            matcher.accept(token)?;
        }
        match self.text.release() {
            Released::Text(text) => piece.text = text,
            Released::Stopped(text) => {
                piece.text = text;
                piece.end = Some(self.end(FinishReason::StopString));
                return Ok(piece);
            }
        }
        if self.matcher.as_ref().is_some_and(Matcher::is_complete) {
            self.finish(&mut piece, FinishReason::EndOfGeneration);
        } else if self.statistics.generated_tokens >= self.limits.max_tokens {
            self.finish(&mut piece, FinishReason::MaxTokens);
        } else if full {
            self.finish(&mut piece, FinishReason::ContextFull);
        }
        Ok(piece)
    }

    /// Ends a piece with the text that was held back.
    pub(crate) fn finish(&mut self, piece: &mut Piece, reason: FinishReason) {
        let (reason, rest) = match self.text.finish() {
            Released::Text(rest) => (reason, rest),
            Released::Stopped(rest) => (FinishReason::StopString, rest),
        };
        piece.text.push_str(&rest);
        piece.end = Some(self.end(reason));
    }

    fn end(&mut self, reason: FinishReason) -> End {
        let meets_constraint = match &mut self.matcher {
            None => true,
            // What it holds of the text that a stop string has cut off cannot be taken back.
            Some(_) if reason == FinishReason::StopString => false,
            Some(matcher) => matcher.may_end(),
        };
        End {
            reason,
            meets_constraint,
            statistics: self.statistics,
        }
    }
}

/// The tokens that a constraint allows next, if there is one.
fn mask_of(matcher: &mut Option<Matcher>) -> Result<Option<&[u32]>, Error> {
    matcher.as_mut().map(Matcher::mask).transpose()
}
