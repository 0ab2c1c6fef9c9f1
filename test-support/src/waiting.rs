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

/// Calls `ask` repeatedly until `done` has returned.
pub fn meanwhile(done: impl FnOnce() + Send, mut ask: impl FnMut()) {
    thread::scope(|scope| {
        let done = scope.spawn(done);
        while !done.is_finished() {
            ask();
        }
    });
}
