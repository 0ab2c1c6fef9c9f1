//! The progress of a load, reported to a callback that may cancel it.

use std::sync::{Arc, Mutex};

use crate::lock;

/// Receives the progress of a load and may cancel it.
type Callback = Box<dyn FnMut(f32) -> bool + Send>;

#[derive(Clone, Default)]
pub(crate) struct Progress(Option<Arc<Mutex<Callback>>>);

impl Progress {
    pub(crate) fn new(callback: impl FnMut(f32) -> bool + Send + 'static) -> Self {
        Self(Some(Arc::new(Mutex::new(Box::new(callback)))))
    }

    /// A callback for one load of llama.cpp.
    pub(super) fn callback(&self) -> Option<Callback> {
        let shared = self.clone();
        self.is_some().then(|| Box::new(move |done| shared.report(done)) as Callback)
    }

    pub(super) const fn is_some(&self) -> bool {
        self.0.is_some()
    }

    /// Reports the progress. Returns false to cancel the load.
    pub(super) fn report(&self, done: f32) -> bool {
        self.0.as_ref().is_none_or(|shared| (lock(shared))(done))
    }
}

debug_with!(Progress:);
