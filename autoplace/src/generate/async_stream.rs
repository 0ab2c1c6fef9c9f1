//! Texts and answers for tasks: `Stream`s, for any runtime.

use std::mem;
use std::ops::{Deref, DerefMut};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use futures_core::Stream;

use super::channel::{Bell, channel, spawn};
use super::chat_stream::ChatStream;
use super::error::Error;
use super::token_stream::{Source, TokenStream};
use crate::chat::ReplyPart;
use crate::load::AbortHandle;

/// Pieces that the thread computes ahead of its reader.
const AHEAD: usize = 64;

/// A [`TokenStream`] or [`ChatStream`] as a `Stream` and not as an iterator: made by their `into_async`. It has their
/// other methods.
#[derive(Debug)]
pub struct AsyncStream<S>(S);

impl<S> Deref for AsyncStream<S> {
    type Target = S;

    fn deref(&self) -> &S {
        &self.0
    }
}

impl<S> DerefMut for AsyncStream<S> {
    fn deref_mut(&mut self) -> &mut S {
        &mut self.0
    }
}

impl TokenStream {
    /// Turns it into a `Stream` of text, for a task. A text that no engine or worker computes is computed on a thread
    /// of its own from now on, 64 pieces ahead of the reader at most. The model's context is free again when the stream
    /// has returned `None`, or soon after it is dropped before that.
    ///
    /// # Errors
    ///
    /// [`Error::Thread`] where no thread can be started.
    pub fn into_async(mut self) -> Result<AsyncStream<Self>, Error> {
        self.leave_thread()?;
        Ok(AsyncStream(self))
    }

    fn leave_thread(&mut self) -> Result<(), Error> {
        if matches!(self.source, Source::Elsewhere(_)) {
            return Ok(());
        }
        let (handle, has_begun, bell) = (self.abort_handle(), Arc::new(AtomicBool::new(false)), Arc::<Bell>::default());
        let (begun, rings) = (Arc::clone(&has_begun), Arc::clone(&bell));
        // A prompt may take long, and is aborted. What that has left in the context is not known, which costs later
        // prompts more than a token does.
        let (sender, pieces) = channel(
            AHEAD,
            AbortHandle::new(move || {
                if !begun.load(Ordering::Relaxed) {
                    handle.abort();
                }
                rings.ring();
            }),
        );
        let Source::Here(mut session) = mem::replace(&mut self.source, Source::Elsewhere(pieces)) else {
            return Ok(());
        };
        let work = move || {
            let last = loop {
                if sender.is_abandoned() {
                    break None;
                }
                if sender.is_full() {
                    bell.wait();
                    continue;
                }
                let message = session.next_message();
                has_begun.store(true, Ordering::Relaxed);
                match message {
                    Ok((piece, statistics)) if piece.end.is_none() => sender.send(Ok((piece, statistics))),
                    last => break Some(last),
                }
            };
            // The context is free before the reader hears of the end.
            drop(session);
            last.into_iter().for_each(|last| sender.send(last));
        };
        spawn("autoplace-stream", work).map(drop)
    }
}

/// A text that no engine, worker or thread of its own computes is computed by the task that polls it.
impl Stream for TokenStream {
    type Item = Result<String, Error>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.get_mut().poll_text(context)
    }
}

impl<S: Stream + Unpin> Stream for AsyncStream<S> {
    type Item = S::Item;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        Pin::new(&mut self.get_mut().0).poll_next(context)
    }
}

impl ChatStream<'_> {
    /// A `Stream` of its parts, for a task: see [`TokenStream::into_async`].
    ///
    /// # Errors
    ///
    /// [`Error::Thread`] where no thread can be started.
    pub fn into_async(mut self) -> Result<AsyncStream<Self>, Error> {
        self.text.leave_thread()?;
        Ok(AsyncStream(self))
    }
}

/// As a [`TokenStream`].
impl Stream for ChatStream<'_> {
    type Item = Result<ReplyPart, Error>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.get_mut().poll_part(context)
    }
}
