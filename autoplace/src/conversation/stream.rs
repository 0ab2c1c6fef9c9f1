//! The parts of a chat's answer while it is generated.

use std::collections::VecDeque;
use std::mem;
use std::ops::DerefMut;
use std::task::{Context, Poll, ready};

use llama_sys::Token;

use super::chat::{Asked, Chat, Known};
use crate::chat::FinishReason;
use crate::chat::{Content, Message, Reply, ReplyFormat, ReplyParser, ReplyPart};
use crate::decode::error::Error;
use crate::decode::stats::Statistics;
use crate::load::AbortHandle;
use crate::run::thread::block_on;
use crate::run::token_stream::TokenStream;

/// An iterator over the parts of an answer while it is generated. When the iterator is dropped, the answer ends, and
/// the history keeps the part that was generated. If that part has no text, the message of [`say`](Chat::say) is
/// removed again.
///
/// `C` gives access to the chat: `&mut Chat` for [`Chat::say`], `Box<Chat>` for `Chat::say_async`, or the guard of a
/// lock.
#[derive(Debug)]
pub struct ChatStream<C: DerefMut<Target = Chat>> {
    /// `None` only after [`into_chat`](Self::into_chat).
    chat: Option<C>,
    pub(crate) text: TokenStream,
    parser: ReplyParser,
    parts: VecDeque<ReplyPart>,
    prompt: Known,
    /// Whether the user message is removed if the answer has no text.
    said: bool,
    /// Tokens of the answer so far. The parser may still hold back the text of the last tokens.
    tokens: Vec<Token>,
    /// Set when the answer has ended.
    reply: Option<Reply>,
}

impl<C: DerefMut<Target = Chat>> ChatStream<C> {
    /// Adds a user message to a chat and requests an answer. This is [`Chat::say`] for a chat in a `Box`, or for a chat
    /// that a lock protects. The lock is kept until the stream is dropped:
    ///
    /// ```no_run
    /// # use autoplace::generate::{Chat, ChatStream, Error};
    /// # use std::sync::{Mutex, PoisonError};
    /// fn answer(chat: &Mutex<Chat>, question: &str) -> Result<String, Error> {
    ///     let guard = chat.lock().unwrap_or_else(PoisonError::into_inner);
    ///     ChatStream::say(guard, question)?.text()
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`Chat::say`].
    pub fn say(mut chat: C, content: impl Into<Content>) -> Result<Self, Error> {
        chat.push(Message::user(content));
        match chat.begin() {
            Ok(begun) => Ok(Self::new(chat, begun, true)),
            Err(error) => {
                chat.messages.pop();
                Err(error)
            }
        }
    }

    /// Requests an answer to the messages of a chat. This is [`Chat::answer`] for a chat in a `Box`, or for a chat that
    /// a lock protects.
    ///
    /// # Errors
    ///
    /// The errors of [`Chat::answer`].
    pub fn answer(mut chat: C) -> Result<Self, Error> {
        let begun = chat.begin()?;
        Ok(Self::new(chat, begun, false))
    }

    fn new(chat: C, (text, asked): (TokenStream, Asked), said: bool) -> Self {
        let Asked { known: prompt, parser, .. } = asked;
        Self { chat: Some(chat), text, parser, parts: VecDeque::new(), prompt, said, tokens: Vec::new(), reply: None }
    }

    /// Runs to the end and returns the content of the answer, without reasoning and tool calls.
    /// [`finish`](Self::finish) also returns the reasoning, the tool calls and the statistics, and whether a limit has
    /// cut the answer off.
    ///
    /// # Errors
    ///
    /// The first error of the iterator.
    pub fn text(self) -> Result<String, Error> {
        Ok(self.finish()?.0.content)
    }

    /// Ends the answer and returns the chat, in the `Box` or the guard in which it was passed. The history keeps the
    /// part that was generated.
    pub fn into_chat(mut self) -> C {
        self.end();
        match self.chat.take() {
            Some(chat) => chat,
            None => unreachable!("only this method takes the chat, and it consumes the stream"),
        }
    }

    /// Runs to the end, adds the answer to the history and returns it. [`Reply::finish_reason`] tells whether a limit
    /// has cut the answer off.
    ///
    /// # Errors
    ///
    /// The first error of the iterator.
    pub fn finish(mut self) -> Result<(Reply, Statistics), Error> {
        for part in &mut self {
            part?;
        }
        let statistics = self.statistics();
        // `drop` calls `end` again, which does nothing once `reply` is set.
        Ok((self.reply.clone().unwrap_or_default(), statistics))
    }

    /// The whole answer, once the iterator has ended.
    pub fn reply(&self) -> Option<&Reply> {
        self.reply.as_ref()
    }

    /// The counts and times of the answer so far.
    pub fn statistics(&self) -> Statistics {
        self.text.statistics()
    }

    /// Why the answer ended; `None` while it runs.
    pub fn finish_reason(&self) -> Option<FinishReason> {
        self.text.finish_reason()
    }

    /// A handle that ends the answer from another thread. The history keeps the part that was generated.
    pub fn abort_handle(&self) -> AbortHandle {
        self.text.abort_handle()
    }

    pub(crate) fn poll_part(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<ReplyPart, Error>>> {
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
        let mut reply = mem::replace(&mut self.parser, ReplyParser::new(&ReplyFormat::plain())).finish();
        reply.finish_reason = Some(self.finish_reason().unwrap_or(FinishReason::Aborted));
        if let Some(chat) = &mut self.chat {
            if self.said && reply.raw.is_empty() {
                // Templates expect user and assistant messages to alternate.
                chat.messages.pop();
            } else {
                chat.remember(mem::take(&mut self.prompt), &reply.raw, &self.tokens);
            }
            if !reply.raw.is_empty() {
                chat.messages.push(reply.clone().into_message());
            }
        }
        self.reply = Some(reply);
    }
}

impl<C: DerefMut<Target = Chat>> Iterator for ChatStream<C> {
    type Item = Result<ReplyPart, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        block_on(|context| self.poll_part(context))
    }
}

impl<C: DerefMut<Target = Chat>> Drop for ChatStream<C> {
    fn drop(&mut self) {
        self.end();
    }
}
