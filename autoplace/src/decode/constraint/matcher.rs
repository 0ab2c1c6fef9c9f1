//! The state of one text under a constraint.

use std::sync::Arc;

use llama_sys::{Token, Vocab};

use super::compile;
use super::kind::Constraint;
use super::limits::{MAX_KEPT, on_large_stack};
use super::messages::said;
use crate::decode::choose::allows;
use crate::decode::error::Error;
use crate::load::Model;
use crate::load::vocabulary::{Unreadable, Vocabulary};

/// Bytes that llguidance may keep per unit of its lexer's fuel (the measured maximum), and per item.
const BYTES: (u64, u64) = (6, 8);

const NOTHING_GOES_ON: &str = "no token of the vocabulary can continue the text";

/// Tracks which tokens may come next. Before each token, the caller asks for the [mask](Self::mask) while the device
/// computes; afterwards, it passes the token to [`accept`](Self::accept). A matcher is independent of the loaded model.
#[derive(Clone)]
pub(crate) struct Matcher {
    rules: Box<llguidance::Matcher>,
    vocabulary: Arc<Vocabulary>,
    constraint: &'static str,
    /// The mask of the next token. It is valid while `is_asked` is true.
    mask: Vec<u32>,
    is_asked: bool,
    /// Whether tokens that end a generation are left out while another token is allowed.
    ignores_ends: bool,
    accepted: usize,
    kept: u64,
}

debug_with!(Matcher: constraint, accepted);

impl Constraint {
    /// Begins a text under this constraint.
    pub(crate) fn begin(&self, model: &Model, vocab: &Vocab) -> Result<Matcher, Error> {
        let vocabulary = model.vocabulary(|| on_large_stack(|| Vocabulary::new(vocab)))?;
        match self.has_marks() {
            true => Matcher::new(self, &on_large_stack(|| vocabulary.with_marks(vocab))?),
            false => Matcher::new(self, &vocabulary),
        }
    }
}

impl From<Unreadable> for Error {
    fn from(unreadable: Unreadable) -> Self {
        match unreadable {
            Unreadable::Native(error) => error.into(),
            Unreadable::Refused(reason) => {
                Self::Constraint { constraint: "vocabulary".to_owned(), place: String::new(), reason }
            }
        }
    }
}

impl Matcher {
    /// Compiles a constraint for a model and begins a text. The error is [`Error::Constraint`] if the constraint cannot
    /// be enforced, or if no text can meet it.
    pub(super) fn new(constraint: &Constraint, vocabulary: &Arc<Vocabulary>) -> Result<Self, Error> {
        let mut matcher = Self {
            rules: Box::new(compile::matcher(constraint, vocabulary)?),
            vocabulary: Arc::clone(vocabulary),
            constraint: constraint.name(),
            mask: Vec::new(),
            is_asked: false,
            ignores_ends: false,
            accepted: 0,
            kept: 0,
        };
        // Refuses a constraint under which no token can come first.
        match matcher.mask() {
            Err(Error::NoTokenAllowed { reason, .. }) => Err(constraint.refused(reason.into())),
            Err(error) => Err(error),
            Ok(_) => Ok(matcher),
        }
    }

    /// The mask of the next token: bit t % 32 of word t / 32 allows token t. If the text may end here, the mask
    /// includes the tokens that end a generation. The error is [`Error::NoTokenAllowed`] if no token is allowed.
    pub(crate) fn mask(&mut self) -> Result<&[u32], Error> {
        if !self.is_asked {
            self.ask()?;
            self.is_asked = true;
        }
        Ok(&self.mask)
    }

    fn ask(&mut self) -> Result<(), Error> {
        self.mask.clear();
        if self.is_complete() {
            self.mask.extend_from_slice(&self.vocabulary.ends);
        } else {
            let mask = self.rules.compute_mask().map_err(|error| self.refusal(reason(&error.to_string())))?;
            self.mask.extend_from_slice(mask.as_slice());
            if let Ok(step) = self.rules.last_step_stats() {
                self.kept += BYTES.0 * step.lexer_cost + BYTES.1 * step.all_items as u64;
            }
            if self.kept > MAX_KEPT {
                let most = MAX_KEPT >> 20;
                return Err(self.refusal(format!("its parser would keep more than {most} MiB")));
            }
            if !self.rules.is_accepting().unwrap_or(false) {
                // A Lark grammar can name any token by its number.
                self.leave_out_ends();
            }
        }
        self.mask.resize(self.vocabulary.allowed.len(), 0);
        for (word, allowed) in self.mask.iter_mut().zip(&self.vocabulary.allowed) {
            *word &= allowed;
        }
        if self.mask.iter().all(|word| *word == 0) && !self.is_complete() {
            return Err(self.refusal(NOTHING_GOES_ON.to_owned()));
        }
        if self.ignores_ends {
            self.ignore_ends();
        }
        Ok(())
    }

    /// From now on, leaves the tokens that end a generation out of every mask that also allows another token.
    pub(crate) fn ignore_ends(&mut self) {
        self.ignores_ends = true;
        if self.mask.iter().zip(&self.vocabulary.ends).any(|(word, ends)| word & !ends != 0) {
            self.leave_out_ends();
        }
    }

    fn leave_out_ends(&mut self) {
        for (word, ends) in self.mask.iter_mut().zip(&self.vocabulary.ends) {
            *word &= !ends;
        }
    }

    /// Accepts a token of the mask. If the token ends a generation, nothing changes.
    pub(crate) fn accept(&mut self, token: Token) -> Result<(), Error> {
        if allows(&self.vocabulary.ends, token) {
            return Ok(());
        }
        self.is_asked = false;
        let went_on = self.rules.consume_token(u32::try_from(token).unwrap_or(u32::MAX));
        went_on.map_err(|error| self.refusal(reason(&error.to_string())))?;
        self.accepted += 1;
        Ok(())
    }

    /// Whether the text meets the constraint and no token may follow, so that the text ends by itself.
    pub(crate) fn is_complete(&self) -> bool {
        self.rules.is_stopped() && self.rules.stop_reason().is_ok()
    }

    /// Whether the text meets the constraint and may end here.
    pub(crate) fn may_end(&mut self) -> bool {
        self.is_complete() || self.rules.is_accepting().unwrap_or(false)
    }

    fn refusal(&self, reason: String) -> Error {
        Error::NoTokenAllowed { constraint: self.constraint.to_owned(), tokens: self.accepted, reason }
    }
}

/// The reason for a failure from llguidance's message. Some of these messages consist only of the name of a
/// `StopReason`.
fn reason(message: &str) -> String {
    match said(message).as_str() {
        "NoExtension" | "NoExtensionBias" => NOTHING_GOES_ON.to_owned(),
        "LexerTooComplex" | "ParserTooComplex" => "one step exceeds llguidance's limits".to_owned(),
        message => message.to_owned(),
    }
}
