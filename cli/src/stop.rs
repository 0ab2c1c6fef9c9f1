//! Ctrl-C ends the running computation. The next Ctrl-C ends the program, and so does the first one if nothing is being
//! computed.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use autoplace::AbortHandle;
use autoplace::llama_sys::exit_at_once;

/// The computation that the next Ctrl-C ends.
#[derive(Clone, Default)]
pub(crate) struct Stop(Arc<Mutex<Option<AbortHandle>>>);

impl Stop {
    /// Installs the handler.
    pub(crate) fn listen() -> Result<Self, ctrlc::Error> {
        let stop = Self::default();
        let heard = stop.clone();
        ctrlc::set_handler(move || heard.interrupt())?;
        Ok(stop)
    }

    /// Installs the handler. On systems with SIGHUP it also installs `hung_up`, which is called when the terminal or a
    /// service manager sends that signal. After [`listen`](Self::listen) alone, SIGHUP ends the program.
    ///
    /// `hung_up` runs in a thread of its own, so that Ctrl-C is heard while it reads files. All signals that come
    /// during a call cause one more call together.
    #[cfg(unix)]
    pub(crate) fn listen_and_on_hangup(hung_up: impl Fn() + Send + 'static) -> std::io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};

        let stop = Self::default();
        let heard = stop.clone();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
        let entered = runtime.enter();
        let [mut interrupts, mut terminations, mut hangups] =
            [signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?, signal(SignalKind::hangup())?];
        drop(entered);
        let (ask, asked) = std::sync::mpsc::sync_channel(1);
        std::thread::Builder::new().name("autoplace-hangup".to_owned()).spawn(move || {
            for () in asked {
                hung_up();
            }
        })?;
        std::thread::Builder::new().name("autoplace-signals".to_owned()).spawn(move || {
            runtime.block_on(async {
                loop {
                    tokio::select! {
                        Some(()) = interrupts.recv() => heard.interrupt(),
                        Some(()) = terminations.recv() => heard.interrupt(),
                        Some(()) = hangups.recv() => drop(ask.try_send(())),
                        else => break,
                    }
                }
            });
        })?;
        Ok(stop)
    }

    #[cfg(not(unix))]
    pub(crate) fn listen_and_on_hangup(_: impl Fn() + Send + 'static) -> std::io::Result<Self> {
        Self::listen().map_err(std::io::Error::other)
    }

    fn interrupt(&self) {
        let running = self.running().take();
        running.map_or_else(|| exit_at_once(130), |running| running.abort());
    }

    /// Sets the computation that the next Ctrl-C ends.
    pub(crate) fn begin(&self, running: AbortHandle) {
        *self.running() = Some(running);
    }

    /// A flag that the next Ctrl-C sets, for work that checks it from time to time.
    pub(crate) fn flag(&self) -> Arc<AtomicBool> {
        let flag = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&flag);
        self.begin(AbortHandle::new(move || stopped.store(true, Relaxed)));
        flag
    }

    /// Must be called when the computation has ended. Returns whether Ctrl-C ended it.
    pub(crate) fn end(&self) -> bool {
        self.running().take().is_none()
    }

    fn running(&self) -> MutexGuard<'_, Option<AbortHandle>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
