//! An answer of a chat as it comes, in its parts.

use std::collections::VecDeque;
use std::mem;
use std::task::{Context, Poll, ready};

use llama_sys::Token;

use super::channel::block_on;
use super::chat::{Asked, Chat, Known};
use super::error::Error;
use super::piece::FinishReason;
use super::stats::Statistics;
use super::token_stream::TokenStream;
use crate::chat::{Reply, ReplyFormat, ReplyParser, ReplyPart};
use crate::load::AbortHandle;

/// An answer as it comes: an iterator of its parts. Dropping it ends the answer; the history keeps it
/// as far as it came. If nothing came, the message that was [said](Chat::say) is taken back.
#[derive(Debug)]
pub struct ChatStream<'a> {
    chat: &'a mut Chat,
    pub(super) text: TokenStream,
    parser: ReplyParser,
    parts: VecDeque<ReplyPart>,
    prompt: Known,
    /// The question is taken back where no answer comes.
    said: bool,
    /// Of the answer so far. Text of the last ones may still be held back.
    tokens: Vec<Token>,
    /// When it has ended.
    reply: Option<Reply>,
}

impl<'a> ChatStream<'a> {
    pub(super) fn new(chat: &'a mut Chat, (text, asked): (TokenStream, Asked), said: bool) -> Self {
        let Asked { known: prompt, parser, .. } = asked;
        Self { chat, text, parser, parts: VecDeque::new(), prompt, said, tokens: Vec::new(), reply: None }
    }

    /// Runs to the end and returns the whole answer, which is in the history then.
    ///
    /// # Errors
    ///
    /// The first error of the iterator.
    pub fn finish(mut self) -> Result<(Reply, Statistics), Error> {
        for part in &mut self {
            part?;
        }
        let statistics = self.statistics();
        // The stream that is dropped now has to know that it has ended.
        Ok((self.reply.clone().unwrap_or_default(), statistics))
    }

    /// The whole answer, once the iterator has ended.
    pub fn reply(&self) -> Option<&Reply> {
        self.reply.as_ref()
    }

    /// Counts and times so far.
    pub fn statistics(&self) -> Statistics {
        self.text.statistics()
    }

    /// Why the answer ended; `None` while it runs.
    pub fn finish_reason(&self) -> Option<FinishReason> {
        self.text.finish_reason()
    }

    /// Ends the answer that another thread is waiting for. The history keeps it as far as it came.
    pub fn abort_handle(&self) -> AbortHandle {
        self.text.abort_handle()
    }

    pub(super) fn poll_part(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<ReplyPart, Error>>> {
        loop {
            if let Some(part) = self.parts.pop_front() {
                return Poll::Ready(Some(Ok(part)));
            }
            if self.reply.is_some() {
                return Poll::Ready(None);
            }
            match ready!(self.text.poll_piece(context)) {
                Some(Ok(piece)) => {
                    // A token that ends the generation is not one of the text.
                    if self.statistics().generated_tokens > self.tokens.len() {
                        self.tokens.extend(piece.token);
                    }
                    self.parts.extend(self.parser.push(&piece.text));
                }
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => match self.text.take_error() {
                    Some(error) => return Poll::Ready(Some(Err(error))),
                    None => {
                        self.parts.extend(self.parser.end());
                        self.end();
                    }
                },
            }
        }
    }

    fn end(&mut self) {
        if self.reply.is_some() {
            return;
        }
        let reply = mem::replace(&mut self.parser, ReplyParser::new(&ReplyFormat::plain())).finish();
        if self.said && reply.raw.is_empty() {
            // Templates want turns.
            self.chat.messages.pop();
        } else {
            self.chat.remember(mem::take(&mut self.prompt), &reply.raw, &self.tokens);
        }
        if !reply.raw.is_empty() {
            self.chat.messages.push(reply.clone().into_message());
        }
        self.reply = Some(reply);
    }
}

impl Iterator for ChatStream<'_> {
    type Item = Result<ReplyPart, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        block_on(|context| self.poll_part(context))
    }
}

impl Drop for ChatStream<'_> {
    fn drop(&mut self) {
        self.end();
    }
}
