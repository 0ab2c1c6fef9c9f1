//! A text as it is computed.

use llama_sys::{Token, Vocab};

use super::Error;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Text {
    pub(super) tokens: Vec<Token>,
    pub(super) truncated: bool,
}

/// The most tokens of a text, and whether longer ones are cut.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limit {
    pub(super) tokens: usize,
    pub(super) truncate: bool,
}

impl Text {
    /// The text of this number, with the tokens that the model adds. Control tokens written in it are text.
    ///
    /// # Errors
    ///
    /// [`Error::TooLong`], [`Error::Empty`]; [`Error::Native`] for a model without a vocabulary.
    pub(super) fn of(vocab: &Vocab, index: usize, text: &str, limit: Limit) -> Result<Self, Error> {
        let mut tokens = vocab.tokenize(text, true, false)?;
        if tokens.is_empty() {
            return Err(Error::Empty { index });
        }
        let truncated = tokens.len() > limit.tokens;
        if truncated {
            let count = tokens.len();
            if !limit.truncate {
                return Err(Error::too_long(index, count, limit));
            }
            // Only the model has put a control token there: what it adds at the end stays.
            let end = tokens.pop().filter(|last| vocab.is_control(*last));
            tokens.truncate(limit.tokens - usize::from(end.is_some()));
            tokens.extend(end);
        }
        Ok(Self { tokens, truncated })
    }

    pub(super) fn len(&self) -> usize {
        self.tokens.len()
    }
}

impl Error {
    pub(super) fn too_long(index: usize, tokens: usize, limit: Limit) -> Self {
        Self::TooLong {
            index,
            tokens,
            limit: limit.tokens,
        }
    }
}
