//! Ctrl-C: the first ends the running computation. The next one, or one without a computation, ends the program.

use std::process::exit;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use autoplace::AbortHandle;

/// The computation that Ctrl-C ends.
#[derive(Clone, Default)]
pub(crate) struct Stop(Arc<Mutex<Option<AbortHandle>>>);

impl Stop {
    /// Installs the handler.
    pub(crate) fn listen() -> Result<Self, ctrlc::Error> {
        let stop = Self::default();
        let heard = stop.clone();
        ctrlc::set_handler(move || {
            let running = heard.running().take();
            running.map_or_else(|| exit(130), |running| running.abort());
        })?;
        Ok(stop)
    }

    /// Registers a running computation.
    pub(crate) fn begin(&self, running: AbortHandle) {
        *self.running() = Some(running);
    }

    /// Registers work that polls the returned flag.
    pub(crate) fn flag(&self) -> Arc<AtomicBool> {
        let flag = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&flag);
        self.begin(AbortHandle::new(move || stopped.store(true, Relaxed)));
        flag
    }

    /// The computation has ended. Returns whether Ctrl-C ended it.
    pub(crate) fn end(&self) -> bool {
        self.running().take().is_none()
    }

    fn running(&self) -> MutexGuard<'_, Option<AbortHandle>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
