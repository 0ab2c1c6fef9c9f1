//! One text that another thread computes, as its reader sees it.

use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::{fmt, iter};

use llama_sys::Token;

use super::channel::{Receiver, block_on};
use super::error::Error;
use super::piece::{FinishReason, Message, Piece, Progress};
use super::stats::Statistics;
use crate::load::AbortHandle;

/// What computes a text.
pub(super) trait Writer: fmt::Debug + Send + Sync {
    /// The text is not wanted any more; `has_begun`: a piece of it has been read.
    fn cancel(&self, has_begun: bool);

    /// Why the text has no end.
    fn lost(&self) -> Error;

    /// A piece was read.
    fn has_read(&self) {}
}

/// A text of an [`Engine`](super::Engine): an iterator of whole characters, and with the feature `async` a `Stream`.
/// Dropping it cancels the text within one token, or takes it out of the queue.
///
/// After the end or an error it stays at `None`; [`finish_reason`](Self::finish_reason) tells which end it was.
#[derive(Debug)]
pub struct Answer {
    receiver: Receiver<Message>,
    progress: Progress,
    /// Read so far, for who wants them: they are an allocation now and then.
    tokens: Option<Vec<Token>>,
    writer: Arc<dyn Writer>,
}

impl Answer {
    pub(super) fn new(receiver: Receiver<Message>, progress: Progress, writer: impl Writer + 'static) -> Self {
        Self { receiver, progress, tokens: None, writer: Arc::new(writer) }
    }

    /// Counts and times so far, as of the last piece that was read.
    pub fn statistics(&self) -> Statistics {
        self.progress.statistics
    }

    /// Why the text ended; `None` while it is not read to its end.
    pub fn finish_reason(&self) -> Option<FinishReason> {
        self.progress.finished
    }

    /// The text token by token, instead of as text alone. The last piece has its [`end`](Piece::end), unless the text
    /// ends with an error.
    pub fn pieces(&mut self) -> impl Iterator<Item = Result<Piece, Error>> {
        iter::from_fn(|| block_on(|context| self.poll_piece(context)))
    }

    /// Reads to the end and returns the whole text.
    ///
    /// # Errors
    ///
    /// The first error of the iterator.
    pub fn into_text(mut self) -> Result<(String, Statistics), Error> {
        let text = self.by_ref().collect::<Result<String, Error>>()?;
        Ok((text, self.statistics()))
    }

    /// Ends the text after the token that is being computed, or takes it out of the queue. The pieces that there are
    /// can still be read.
    pub fn cancel(&mut self) {
        self.receiver.cancel();
        if self.progress.finished.is_none() {
            let has_begun = self.progress.statistics.first_token_latency.is_some();
            self.writer.cancel(has_begun);
        }
    }

    /// Cancels the text from another thread or task.
    pub fn abort_handle(&self) -> AbortHandle {
        let (cancel, writer) = (self.receiver.canceller(), Arc::clone(&self.writer));
        AbortHandle::new(move || {
            cancel();
            writer.cancel(false);
        })
    }

    pub(super) fn keep_tokens(mut self) -> Self {
        self.tokens = Some(Vec::new());
        self
    }

    /// The tokens of the text that was read, if they are kept.
    pub(super) fn tokens(&self) -> &[Token] {
        self.tokens.as_deref().unwrap_or_default()
    }

    /// The next piece, which may be without text; `None` after the end. What [`pieces`](Self::pieces) asks for, for
    /// tasks without the feature `async`: the task is woken when there is more.
    pub fn poll_piece(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Piece, Error>>> {
        let piece = ready!(self.poll_unread(context));
        if piece.is_some() {
            self.has_read(1);
        }
        Poll::Ready(piece)
    }

    /// The same for a reader in another process, which has not [read](Self::has_read) the piece yet.
    pub(super) fn poll_unread(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Piece, Error>>> {
        let message = match ready!(self.receiver.poll_unread(context)) {
            Some(message) => message,
            None if self.receiver.is_cancelled() || self.progress.finished.is_some() => {
                self.progress.abort();
                return Poll::Ready(None);
            }
            None => Err(self.writer.lost()),
        };
        let piece = self.progress.read(message);
        // A token that ends the generation is not one of the text.
        if let (Some(Ok(piece)), Some(tokens)) = (&piece, &mut self.tokens)
            && self.progress.statistics.generated_tokens > tokens.len()
        {
            tokens.extend(piece.token);
        }
        Poll::Ready(piece)
    }

    /// So many pieces are read.
    pub(super) fn has_read(&self, pieces: usize) {
        self.receiver.has_read(pieces);
        self.writer.has_read();
    }

    /// The next piece with text; `None` after the end.
    pub(super) fn poll_text(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<String, Error>>> {
        loop {
            match ready!(self.poll_piece(context)) {
                Some(Ok(piece)) if piece.text.is_empty() => {}
                None => return Poll::Ready(self.progress.take_error().map(Err)),
                piece => return Poll::Ready(piece.map(|piece| piece.map(|piece| piece.text))),
            }
        }
    }
}

impl Iterator for Answer {
    type Item = Result<String, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        block_on(|context| self.poll_text(context))
    }
}

impl iter::FusedIterator for Answer {}

impl Drop for Answer {
    fn drop(&mut self) {
        self.cancel();
    }
}
