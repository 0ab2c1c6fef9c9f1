//! Calls that may need more stack than the calling thread has.

use std::io;
use std::panic::resume_unwind;
use std::thread;

const THREAD: &str = "llama-deep-stack";

/// Runs `f` on a new thread with a stack of `bytes` bytes, and waits for the result. Only the used part of the stack
/// takes memory.
///
/// Lines that llama.cpp logs during the call count as lines of the new thread.
pub(crate) fn with_stack<T: Send>(bytes: usize, f: impl FnOnce() -> T + Send) -> Result<T, io::Error> {
    thread::scope(|scope| {
        let builder = thread::Builder::new().name(THREAD.into()).stack_size(bytes);
        let thread = builder.spawn_scoped(scope, f)?;
        Ok(thread.join().unwrap_or_else(|panic| resume_unwind(panic)))
    })
}

#[cfg(test)]
mod tests {
    use super::with_stack;

    /// A recursion in which each level takes some hundred bytes of stack.
    fn deep(n: u32) -> u32 {
        let used = std::hint::black_box([n; 64]);
        match n {
            0 => 0,
            n => deep(n - 1) + used[0] - n + 1,
        }
    }

    #[test]
    fn a_call_deeper_than_the_usual_stack_returns() {
        let n = 200_000;
        assert_eq!(with_stack(1 << 30, || deep(n)).unwrap(), n);
    }
}
