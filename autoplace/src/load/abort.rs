//! A handle that stops a computation from another thread, whether it runs in this process or in a worker.

use std::sync::Arc;

/// Stops a computation from another thread. See for example
/// [`TokenStream::abort_handle`](crate::generate::TokenStream::abort_handle).
#[derive(Clone)]
pub struct AbortHandle(Arc<dyn Fn() + Send + Sync>);

impl AbortHandle {
    /// A handle that calls `abort`, possibly several times.
    pub fn new(abort: impl Fn() + Send + Sync + 'static) -> Self {
        Self(Arc::new(abort))
    }

    /// Aborts the running computation or, if none is running, the next one. An aborted text ends with
    /// [`FinishReason::Aborted`](crate::generate::FinishReason::Aborted); another aborted call fails with
    /// [`llama_sys::Error::Aborted`]. After the end of the text, session or embedder, this does nothing. The CPU stops
    /// at once; a GPU finishes its part of the graph first.
    pub fn abort(&self) {
        (self.0)();
    }
}

impl From<llama_sys::AbortHandle> for AbortHandle {
    fn from(handle: llama_sys::AbortHandle) -> Self {
        Self::new(move || handle.abort())
    }
}

debug_with!(AbortHandle:);
