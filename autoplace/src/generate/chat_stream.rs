//! The parts of a chat's answer while it is generated.

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

/// An iterator over the parts of an answer while it is generated. Dropping it ends the answer; the history keeps the
/// part that came. If no text came, the message of [`say`](Chat::say) is removed again.
#[derive(Debug)]
pub struct ChatStream<'a> {
    chat: &'a mut Chat,
    pub(super) text: TokenStream,
    parser: ReplyParser,
    parts: VecDeque<ReplyPart>,
    prompt: Known,
    /// Whether the user message is removed when no answer comes.
    said: bool,
    /// Tokens of the answer so far. The parser may still hold back the text of the last ones.
    tokens: Vec<Token>,
    /// Set when the answer has ended.
    reply: Option<Reply>,
}

impl<'a> ChatStream<'a> {
    pub(super) fn new(chat: &'a mut Chat, (text, asked): (TokenStream, Asked), said: bool) -> Self {
        let Asked { known: prompt, parser, .. } = asked;
        Self { chat, text, parser, parts: VecDeque::new(), prompt, said, tokens: Vec::new(), reply: None }
    }

    /// Runs to the end and returns the whole answer, which has then joined the history.
    ///
    /// # Errors
    ///
    /// The first error of the iterator.
    pub fn finish(mut self) -> Result<(Reply, Statistics), Error> {
        for part in &mut self {
            part?;
        }
        let statistics = self.statistics();
        // Drop calls `end` again, and `reply` tells it that the answer has ended.
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

    /// A handle that ends the answer from another thread. The history keeps the part that came.
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
                    // An end-of-generation token is not part of the text.
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
            // Templates expect user and assistant messages to alternate.
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
