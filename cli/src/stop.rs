//! Ctrl-C: the first one ends what is being computed, another one, or one while nothing is, the program.

use std::process::exit;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use autoplace::AbortHandle;

/// What Ctrl-C ends.
#[derive(Clone, Default)]
pub(crate) struct Stop(Arc<Mutex<Option<AbortHandle>>>);

impl Stop {
    /// Listens for it from now on.
    pub(crate) fn listen() -> Result<Self, ctrlc::Error> {
        let stop = Self::default();
        let heard = stop.clone();
        ctrlc::set_handler(move || {
            let running = heard.running().take();
            running.map_or_else(|| exit(130), |running| running.abort());
        })?;
        Ok(stop)
    }

    /// Something is being computed.
    pub(crate) fn begin(&self, running: AbortHandle) {
        *self.running() = Some(running);
    }

    /// Something is being done that looks at this.
    pub(crate) fn flag(&self) -> Arc<AtomicBool> {
        let flag = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&flag);
        self.begin(AbortHandle::new(move || stopped.store(true, Relaxed)));
        flag
    }

    /// It has ended. Whether Ctrl-C did it.
    pub(crate) fn end(&self) -> bool {
        self.running().take().is_none()
    }

    fn running(&self) -> MutexGuard<'_, Option<AbortHandle>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
