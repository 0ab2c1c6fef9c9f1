//! Stops a computation from another thread, wherever it runs.

use std::sync::Arc;

/// Stops a computation from another thread. See for example
/// [`TokenStream::abort_handle`](crate::generate::TokenStream::abort_handle).
#[derive(Clone)]
pub struct AbortHandle(Arc<dyn Fn() + Send + Sync>);

impl AbortHandle {
    /// A handle that calls `abort`, possibly more than once.
    pub fn new(abort: impl Fn() + Send + Sync + 'static) -> Self {
        Self(Arc::new(abort))
    }

    /// Aborts the running computation, or the next one. Does nothing after the end of the computation. A text then ends
    /// with [`FinishReason::Aborted`](crate::generate::FinishReason::Aborted), and a call fails with
    /// [`llama_sys::Error::Aborted`]. The CPU stops at once; a GPU finishes its part of the graph first.
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
