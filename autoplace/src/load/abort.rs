//! What stops a computation from another thread, wherever it runs.

use std::sync::Arc;

/// Stops a computation from another thread; made by [`TokenStream`](crate::generate::TokenStream::abort_handle) and
/// others.
#[derive(Clone)]
pub struct AbortHandle(Arc<dyn Fn() + Send + Sync>);

impl AbortHandle {
    /// One that does this, once or more often.
    pub fn new(abort: impl Fn() + Send + Sync + 'static) -> Self {
        Self(Arc::new(abort))
    }

    /// Ends what is computed in the middle, or the next computation; nothing once it has ended. A text then ends with
    /// [`FinishReason::Aborted`](crate::generate::FinishReason::Aborted), and a call with
    /// [`llama_sys::Error::Aborted`]. Works while the CPU computes; a GPU finishes its part of the graph first.
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
