//! The methods of a chat that request the next answer.

use super::chat::Chat;
use super::stream::ChatStream;
use crate::chat::Content;
use crate::decode::error::Error;
#[cfg(feature = "async")]
use crate::run::async_stream::AsyncStream;
#[cfg(feature = "schemars")]
use {super::tool_choice::ToolChoice, crate::chat::ReplyFormat, crate::decode::constraint::Constraint};

impl Chat {
    /// Adds a user message and requests an answer. The message is a text, or [`Part`](crate::chat::Part)s with pictures
    /// and sounds, for a model with a [projector](crate::ModelBuilder::mmproj).
    ///
    /// # Errors
    ///
    /// The errors of [`answer`](Self::answer). After an error, or if the answer is empty, the message is removed from
    /// the history again.
    pub fn say(&mut self, content: impl Into<Content>) -> Result<ChatStream<&mut Self>, Error> {
        ChatStream::say(self, content)
    }

    /// Like [`say`](Self::say), but the stream owns the chat, so that a function or task can return the answer.
    /// [`into_chat`](crate::generate::AsyncStream::into_chat) gives the chat back.
    ///
    /// ```no_run
    /// use autoplace::generate::{Engine, Error};
    /// use autoplace::ReplyPart;
    /// use futures_core::Stream;
    ///
    /// /// The events of a response: an HTTP handler sends each part as a server-sent event.
    /// fn answer(engine: &Engine, question: String) -> Result<impl Stream<Item = Result<ReplyPart, Error>> + use<>,
    ///     Error> { engine.chat()?.say_async(question)
    /// }
    /// ```
    ///
    /// For a chat behind a lock, use [`ChatStream::say`]. Its stream keeps the lock.
    ///
    /// # Errors
    /// The errors of [`say`](Self::say), and [`Error::Thread`]. After an error, the chat is lost; keep a clone if you
    /// want to continue the conversation.
    #[cfg(feature = "async")]
    pub fn say_async(self, content: impl Into<Content>) -> Result<AsyncStream<ChatStream<Box<Self>>>, Error> {
        ChatStream::say(Box::new(self), content)?.into_async()
    }

    /// Like [`answer`](Self::answer), but the stream owns the chat: see [`say_async`](Self::say_async).
    ///
    /// # Errors
    ///
    /// The errors of [`say_async`](Self::say_async).
    #[cfg(feature = "async")]
    pub fn answer_async(self) -> Result<AsyncStream<ChatStream<Box<Self>>>, Error> {
        ChatStream::answer(Box::new(self))?.into_async()
    }

    /// Adds a user message and requests an answer as a value of a type: see
    /// [`GenerateRequest::parse`](crate::generate::GenerateRequest::parse). The history keeps the answer as JSON.
    /// Reasoning is turned off in templates that support it (`enable_thinking`).
    ///
    /// # Errors
    /// The errors of [`say`](Self::say) and [`GenerateRequest::parse`](crate::generate::GenerateRequest::parse). After
    /// an error, the message is removed from the history again.
    #[cfg(feature = "schemars")]
    pub fn say_as<T>(&mut self, content: impl Into<Content>) -> Result<T, Error>
    where
        T: serde::de::DeserializeOwned + schemars::JsonSchema,
    {
        let before = self.messages.len();
        let mut asked = self.clone();
        asked.format = Some(ReplyFormat::plain());
        asked.tool_choice = ToolChoice::Auto;
        asked.generate = asked.generate.special(false).constraint(Constraint::of_type::<T>());
        let (reply, _) = asked.say(content)?.finish()?;
        let value = Constraint::value(reply.raw)?;
        self.messages.extend(asked.messages.drain(before..));
        self.window = asked.window;
        self.known = asked.known;
        Ok(value)
    }

    /// Requests an answer to the messages so far. The finished answer is added to the history. If the stream is dropped
    /// earlier, the part that was generated is added.
    ///
    /// # Errors
    ///
    /// [`Error::Template`] when the template refuses the history, and the errors of
    /// [`GenerateRequest::stream`](crate::generate::GenerateRequest::stream).
    pub fn answer(&mut self) -> Result<ChatStream<&mut Self>, Error> {
        ChatStream::answer(self)
    }
}
