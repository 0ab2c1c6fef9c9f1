//! CPU threads that compute graphs. The threads of a pool sleep while there is no graph to compute (`native/wait.h`).
//!
//! A build with OpenMP has no pools: OpenMP's runtime keeps the threads, and decides how they wait.

use std::ptr::NonNull;

use crate::raw;
use crate::safe::build::has_openmp;
use crate::safe::call::{self, Error, Failure};

/// How the threads of a graph wait for each other. They do so after every operation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum ThreadWait {
    /// A thread spins for 20 µs before it sleeps. Nearly all waits of a quiet computer are shorter than that, and a
    /// sleeping thread takes longer to start again.
    #[default]
    Spin,
    /// A thread sleeps after one look, which takes a microsecond (on Linux; elsewhere it yields). This is faster if
    /// there are more threads than cores without other work: the system prefers threads that have slept, and a thread
    /// that spins takes time from the thread it waits for.
    Sleep,
}

/// A pool of threads. It computes one graph at a time.
pub(crate) struct Threadpool {
    raw: NonNull<raw::ggml_threadpool>,
    n_threads: u32,
    wait: ThreadWait,
}

// SAFETY: a pool belongs to no thread: the thread that computes a graph acts as the pool's first thread meanwhile
// (ggml-cpu.c, `ggml_graph_compute`).
unsafe impl Send for Threadpool {}

impl Threadpool {
    /// Starts `n_threads - 1` threads. The thread that asks for a computation takes part in it too.
    pub(crate) fn new(n_threads: u32, wait: ThreadWait) -> Result<Self, Failure> {
        let spins = wait == ThreadWait::Spin;
        let raw = call::accepted(
            // SAFETY: plain numbers; callers have compared `n_threads` with ggml's limit.
            |error| unsafe { raw::shim_threadpool_new(n_threads as i32, spins, error) },
            |pool| !pool.is_null(),
        )?;
        Ok(Self { raw: NonNull::new(raw).expect("accepted above"), n_threads, wait })
    }

    pub(crate) fn as_ptr(&self) -> raw::ggml_threadpool_t {
        self.raw.as_ptr()
    }
}

/// Attaches a pool of `n_threads` threads, as llama.cpp's own programs do, to a `llama_context` that no
/// [`Context`](crate::Context) owns. Benchmarks use it to compare a bare loop over llama.cpp with a
/// [`Context`](crate::Context). The pool lives until the process ends.
///
/// # Errors
///
/// [`Error::Call`] if the system cannot start more threads.
///
/// # Safety
///
/// The context must live and not be computing. It must compute with at most `n_threads` threads.
pub unsafe fn attach_threads(context: *mut raw::llama_context, n_threads: u32) -> Result<(), Error> {
    let mut pools = Threadpools::default();
    let pool =
        pools.get(n_threads, ThreadWait::Spin).map_err(|failure| Error::Call { what: "starting threads", failure })?;
    std::mem::forget(pools);
    if !pool.is_null() {
        // SAFETY: the caller's promise; the pool is never freed.
        unsafe { raw::llama_attach_threadpool(context, pool, pool) };
    }
    Ok(())
}

impl Drop for Threadpool {
    fn drop(&mut self) {
        // SAFETY: created by `new` and freed once. If a backend uses a pool, the backend is freed before the pool, or
        // gets another pool first.
        unsafe { raw::shim_threadpool_free(self.raw.as_ptr()) };
    }
}

/// The pools of one context or backend: one for each number of threads, and way to wait, that was set so far. The
/// threads of unused pools sleep. A backend may refer to its pool, so no pool is freed before the backend.
#[derive(Default)]
pub(crate) struct Threadpools(Vec<Threadpool>);

impl Threadpools {
    /// The pool of `n_threads` threads, which is started if there is none yet; NULL if OpenMP runs the threads.
    pub(crate) fn get(&mut self, n_threads: u32, wait: ThreadWait) -> Result<raw::ggml_threadpool_t, Failure> {
        if has_openmp() {
            return Ok(std::ptr::null_mut());
        }
        if let Some(pool) = self.0.iter().find(|pool| (pool.n_threads, pool.wait) == (n_threads, wait)) {
            return Ok(pool.as_ptr());
        }
        self.0.push(Threadpool::new(n_threads, wait)?);
        Ok(self.0[self.0.len() - 1].as_ptr())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_a_pool_for_each_number_of_threads_and_way_to_wait() {
        crate::Backend::init().unwrap();
        if has_openmp() {
            return;
        }
        let mut pools = Threadpools::default();
        let mut get = |n_threads, wait| pools.get(n_threads, wait).unwrap();
        let all = [(1, ThreadWait::Spin), (2, ThreadWait::Spin), (2, ThreadWait::Sleep)];
        let first = all.map(|(n_threads, wait)| get(n_threads, wait));
        assert_eq!(all.map(|(n_threads, wait)| get(n_threads, wait)), first);
        assert!(first[0] != first[1] && first[1] != first[2] && first[0] != first[2]);
    }
}
