//! Guards of ggml's registry: for reading it, and for changing it while no thread reads it.
//!
//! The registry is two vectors without a lock (ggml-backend-reg.cpp, `ggml_backend_registry`). llama.cpp reads them
//! while it loads a model and makes a context (llama-model.cpp, `make_cpu_buft_list`; llama-context.cpp, the
//! constructor). So those calls, and calls that list devices, hold a [`Reading`]; a change waits until no reading is
//! held. Readers never wait for each other, not even behind a waiting change, so that a progress callback may list
//! devices.

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use crate::raw;
use crate::safe::call::Error;

/// An entry that this crate has added and may remove.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Entry(raw::ggml_backend_reg_t);

// SAFETY: an entry lives until the process ends (`Changing::add`), and only its address is used here.
unsafe impl Send for Entry {}

struct State {
    /// The number of [`Reading`]s that are held.
    readings: usize,
    /// The added entries that ggml lists.
    listed: Vec<Entry>,
    /// Entries to remove as soon as no reading is held.
    leaving: Vec<Entry>,
}

static STATE: Mutex<State> = Mutex::new(State { readings: 0, listed: Vec::new(), leaving: Vec::new() });
static NOBODY_READS: Condvar = Condvar::new();

thread_local! {
    /// The number of readings that this thread holds. A thread cannot wait for its own readings to end.
    static HERE: Cell<usize> = const { Cell::new(0) };
}

fn lock() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// While a reading is held, ggml's registry does not change. A reading cannot move to another thread.
#[must_use]
pub(crate) struct Reading(PhantomData<*const ()>);

/// Keeps the registry unchanged until the result is dropped.
pub(crate) fn reading() -> Reading {
    lock().readings += 1;
    HERE.set(HERE.get() + 1);
    Reading(PhantomData)
}

impl Drop for Reading {
    fn drop(&mut self) {
        HERE.set(HERE.get() - 1);
        let mut state = lock();
        state.readings -= 1;
        if state.readings == 0 {
            state.sweep();
            NOBODY_READS.notify_all();
        }
    }
}

/// While this guard is held, only its thread may change ggml's registry, and nobody may read it.
#[must_use]
pub(crate) struct Changing(MutexGuard<'static, State>);

/// Waits until no reading is held. The holder of the result must not take a [`Reading`].
///
/// # Errors
///
/// [`Error::InvalidParameter`] on a thread that holds a reading, because the thread would wait for itself.
pub(crate) fn changing() -> Result<Changing, Error> {
    if HERE.get() > 0 {
        return Err(Error::parameter(
            "register",
            "a call from a progress callback",
            "ggml's registry cannot change while this thread loads a model",
        ));
    }
    let mut state = lock();
    while state.readings > 0 {
        state = NOBODY_READS.wait(state).unwrap_or_else(PoisonError::into_inner);
    }
    state.sweep();
    Ok(Changing(state))
}

impl Changing {
    /// Adds an entry, which [`remove`] removes again.
    ///
    /// # Safety
    ///
    /// The entry lives until the process ends, is listed at most once, and its callbacks take no lock of this file.
    pub(crate) unsafe fn add(&mut self, entry: raw::ggml_backend_reg_t) {
        // SAFETY: the caller promises that the entry is valid. Nobody reads the registry, and the lock keeps others
        // from changing it.
        unsafe { raw::ggml_backend_register(entry) };
        self.0.listed.push(Entry(entry));
    }

    /// Whether an added entry is still listed.
    pub(crate) fn lists(&self, entry: raw::ggml_backend_reg_t) -> bool {
        self.0.listed.contains(&Entry(entry))
    }
}

/// Removes an entry that [`Changing::add`] added: now, or when the last reading ends. Never waits.
pub(crate) fn remove(entry: raw::ggml_backend_reg_t) {
    let mut state = lock();
    state.leaving.push(Entry(entry));
    if state.readings == 0 {
        state.sweep();
    }
}

impl State {
    /// Removes the entries of `leaving`. Called only while no reading is held.
    fn sweep(&mut self) {
        for entry in std::mem::take(&mut self.leaving) {
            let Some(index) = self.listed.iter().position(|listed| *listed == entry) else { continue };
            self.listed.swap_remove(index);
            // SAFETY: as in `add`, nobody reads the registry or changes it meanwhile. An entry of this crate has no
            // library to close (ggml-backend-reg.cpp, `unload_backend`), so this only removes the entry and its devices
            // from the vectors.
            unsafe { raw::ggml_backend_unload(entry.0) };
        }
    }
}

/// Whether an added entry is listed. Does not wait for readers.
#[cfg(test)]
pub(crate) fn is_listed(entry: raw::ggml_backend_reg_t) -> bool {
    lock().listed.contains(&Entry(entry))
}

/// Whether an entry waits to be removed.
#[cfg(test)]
pub(crate) fn is_leaving(entry: raw::ggml_backend_reg_t) -> bool {
    lock().leaving.contains(&Entry(entry))
}
