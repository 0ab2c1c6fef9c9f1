//! Waits for the effects of another thread.

use std::thread;
use std::time::{Duration, Instant};

/// Waits until `holds` returns true, with enough time for a very busy machine.
#[track_caller]
pub fn wait(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed().as_secs() < 60, "it never {what}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// The value of `read` once it has stayed the same for a tenth of a second. A thread that writes a small file has
/// another open file meanwhile, and Linux counts a thread for a moment after it was joined.
#[track_caller]
pub fn settled<T: PartialEq>(mut read: impl FnMut() -> T) -> T {
    let (mut value, mut since) = (read(), Instant::now());
    wait("stays the same", || {
        let now = read();
        if now != value {
            (value, since) = (now, Instant::now());
        }
        since.elapsed() >= Duration::from_millis(100)
    });
    value
}

/// Calls `ask` repeatedly until `done` has returned.
pub fn meanwhile(done: impl FnOnce() + Send, mut ask: impl FnMut()) {
    thread::scope(|scope| {
        let done = scope.spawn(done);
        while !done.is_finished() {
            ask();
        }
    });
}
