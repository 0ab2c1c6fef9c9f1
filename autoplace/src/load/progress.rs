//! The progress of a load, reported to a callback that may cancel it.

use std::sync::{Arc, Mutex};

use crate::lock;

/// What is called with the progress of a load, and may cancel it.
type Callback = Box<dyn FnMut(f32) -> bool + Send>;

#[derive(Clone, Default)]
pub(crate) struct Progress(Option<Arc<Mutex<Callback>>>);

impl Progress {
    pub(crate) fn new(callback: impl FnMut(f32) -> bool + Send + 'static) -> Self {
        Self(Some(Arc::new(Mutex::new(Box::new(callback)))))
    }

    /// One for a load of llama.cpp's.
    pub(super) fn callback(&self) -> Option<Callback> {
        let shared = self.clone();
        self.is_some().then(|| Box::new(move |done| shared.report(done)) as Callback)
    }

    pub(super) const fn is_some(&self) -> bool {
        self.0.is_some()
    }

    /// Reports how much is done. Returns whether to go on.
    pub(super) fn report(&self, done: f32) -> bool {
        self.0.as_ref().is_none_or(|shared| (lock(shared))(done))
    }
}

debug_with!(Progress:);
