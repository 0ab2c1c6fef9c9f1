//! Generated texts as `Stream`s, for tasks of any async runtime.

use std::mem;
use std::ops::{Deref, DerefMut};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use futures_core::Stream;

use super::channel::channel;
use super::thread::{Notify, spawn};
use super::token_stream::{Source, TokenStream};
use crate::decode::error::Error;
use crate::load::AbortHandle;

/// Maximum number of pieces that the separate thread computes ahead of its reader.
const AHEAD: usize = 64;

/// A [`TokenStream`] or [`ChatStream`](crate::generate::ChatStream) as a `Stream` instead of an iterator, with the same
/// methods otherwise. It is created by `into_async` of these two types.
#[derive(Debug)]
pub struct AsyncStream<S>(pub(crate) S);

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
    /// Converts the stream into a `Stream` of text for a task. If neither an engine nor a worker computes the text, its
    /// computation moves to a separate thread, which computes at most 64 pieces ahead of the reader. The model's
    /// context is free as soon as the stream has returned `None`, or soon after the stream is dropped.
    ///
    /// # Errors
    ///
    /// [`Error::Thread`] when the thread cannot start.
    pub fn into_async(mut self) -> Result<AsyncStream<Self>, Error> {
        self.leave_thread()?;
        Ok(AsyncStream(self))
    }

    /// Moves the computation to a separate thread, unless an engine or a worker computes the text.
    pub(crate) fn leave_thread(&mut self) -> Result<(), Error> {
        if matches!(self.source, Source::Channel(_)) {
            return Ok(());
        }
        let (handle, has_begun, notify) =
            (self.abort_handle(), Arc::new(AtomicBool::new(false)), Arc::<Notify>::default());
        let (begun, waker) = (Arc::clone(&has_begun), Arc::clone(&notify));
        // The computation of a prompt may be aborted, but never the computation of a token. An abort leaves the context
        // in an unknown state, and computing the prompt again would cost more than one token.
        let (sender, pieces) = channel(
            AHEAD,
            AbortHandle::new(move || {
                if !begun.load(Ordering::Relaxed) {
                    handle.abort();
                }
                waker.notify();
            }),
        );
        let Source::Local(mut session) = mem::replace(&mut self.source, Source::Channel(pieces)) else {
            return Ok(());
        };
        let work = move || {
            let last = loop {
                if sender.is_abandoned() {
                    break None;
                }
                if sender.is_full() {
                    notify.wait();
                    continue;
                }
                let message = session.next_message();
                has_begun.store(true, Ordering::Relaxed);
                match message {
                    Ok((piece, statistics)) if piece.end.is_none() => sender.send(Ok((piece, statistics))),
                    last => break Some(last),
                }
            };
            // Frees the context before the reader sees the end.
            drop(session);
            last.into_iter().for_each(|last| sender.send(last));
        };
        spawn("autoplace-stream", work).map(drop)
    }
}

/// The task that polls computes the text, unless an engine, a worker or a separate thread does so.
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
