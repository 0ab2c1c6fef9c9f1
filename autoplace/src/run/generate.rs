//! Runs a single request, as a stream or to its end.

use super::engine::Engine;
use super::local::LocalSession;
use super::progress::Progress;
use super::token_stream::{Source, TokenStream};
use crate::decode::error::Error;
use crate::decode::request::GenerateRequest;

impl GenerateRequest {
    /// Checks the request and returns the stream. The computation starts with the first call of `next`. A model in a
    /// worker starts at once.
    ///
    /// # Errors
    /// [`Error::PromptTooLong`], [`Error::EmptyPrompt`], [`Error::EmptyStop`], [`Error::CannotShift`],
    /// [`Error::NotGenerative`]; [`Error::Constraint`] and [`Error::NoTokenAllowed`]; [`Error::Busy`] while another
    /// stream or session of this model exists; [`Error::Native`] for a sampling parameter out of range,
    /// [`Error::NotOneToken`] and [`Error::TooManyLogprobs`]; [`Error::Worker`] when the model's worker process has
    /// died or cannot be started again.
    pub fn stream(self) -> Result<TokenStream, Error> {
        if self.model.is_in_worker() {
            return Engine::stream_one(self);
        }
        let mut progress = Progress::of_request(&self.spec);
        let mut session = LocalSession::open(&self.model)?;
        let sequence = session.begin_once(self)?;
        progress.statistics = session.statistics(sequence).unwrap_or_default();
        Ok(TokenStream::new(Source::Local(Box::new(session)), progress))
    }

    /// Generates the whole text. If `max_tokens` or a full context has cut the text off, the text may nevertheless look
    /// complete. [`TokenStream::into_text`] also returns why the text ended, and
    /// [`WhenFull::Error`](crate::generate::WhenFull::Error) makes a full context an error.
    ///
    /// # Errors
    ///
    /// The errors of [`stream`](Self::stream), [`Error::Incomplete`], [`Error::ContextFull`], and every error of
    /// llama.cpp during the generation.
    pub fn text(self) -> Result<String, Error> {
        self.stream()?.into_text().map(|(text, _)| text)
    }
}
