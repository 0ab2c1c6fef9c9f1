//! The answers of a chat as `Stream`s, for tasks of any async runtime.

use std::ops::DerefMut;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_core::Stream;

use super::chat::Chat;
use super::stream::ChatStream;
use crate::chat::ReplyPart;
use crate::decode::error::Error;
use crate::run::async_stream::AsyncStream;

impl<C: DerefMut<Target = Chat>> ChatStream<C> {
    /// Converts the answer into a `Stream` of its parts for a task: see
    /// [`TokenStream::into_async`](crate::generate::TokenStream::into_async).
    ///
    /// # Errors
    ///
    /// [`Error::Thread`] when the thread cannot start.
    pub fn into_async(mut self) -> Result<AsyncStream<Self>, Error> {
        self.text.leave_thread()?;
        Ok(AsyncStream(self))
    }
}

impl<C: DerefMut<Target = Chat>> AsyncStream<ChatStream<C>> {
    /// Ends the answer and returns the chat: see [`ChatStream::into_chat`].
    pub fn into_chat(self) -> C {
        self.0.into_chat()
    }
}

/// Polling computes the answer in the same way as for a [`TokenStream`](crate::generate::TokenStream).
impl<C: DerefMut<Target = Chat> + Unpin> Stream for ChatStream<C> {
    type Item = Result<ReplyPart, Error>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.get_mut().poll_part(context)
    }
}
