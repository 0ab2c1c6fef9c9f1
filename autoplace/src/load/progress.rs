//! The progress of a load, reported to a callback that may cancel it.

use std::sync::{Arc, Mutex};

use serde::{Deserialize, Serialize};

use super::error::Stage;
use crate::sync::lock;

/// How far a load has come, as [`ModelBuilder::progress`](crate::ModelBuilder::progress) reports it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct LoadProgress {
    /// The stage of the load. The first stage is [`Stage::Plan`], which may take seconds while a driver starts.
    pub stage: Stage,
    /// The share of the weights that is loaded, 0.0 to 1.0. In [`Stage::Draft`], it is the share of the draft's
    /// weights. llama.cpp reports after each tensor, so the share of a small model rises in leaps. While the load waits
    /// for another load, the callback is called repeatedly with a share of 0.0. During the warm-up, the share is 1.0.
    pub done: f32,
}

type Callback = Box<dyn FnMut(LoadProgress) -> bool + Send>;

#[derive(Clone, Default)]
pub(crate) struct Progress(Option<Arc<Mutex<Callback>>>);

impl Progress {
    pub(crate) fn new(callback: impl FnMut(LoadProgress) -> bool + Send + 'static) -> Self {
        Self(Some(Arc::new(Mutex::new(Box::new(callback)))))
    }

    /// A callback with which llama.cpp reports the weights of this stage.
    pub(super) fn of_weights(&self, stage: Stage) -> Option<Box<dyn FnMut(f32) -> bool + Send>> {
        let shared = self.clone();
        self.is_some().then(|| Box::new(move |done| shared.report(LoadProgress { stage, done })) as Box<_>)
    }

    pub(super) const fn is_some(&self) -> bool {
        self.0.is_some()
    }

    /// Reports the progress. Returns false to cancel the load.
    pub(super) fn report(&self, progress: LoadProgress) -> bool {
        self.0.as_ref().is_none_or(|shared| (lock(shared))(progress))
    }
}

debug_with!(Progress:);
