//! Guards for ggml's registry: one for reading it, and one for changing it while no thread reads it.
//!
//! The registry consists of two vectors without a lock (ggml-backend-reg.cpp, `ggml_backend_registry`). llama.cpp reads
//! them while it loads a model and while it makes a context (llama-model.cpp, `make_cpu_buft_list`; llama-context.cpp,
//! the constructor). So these calls, and calls that list devices, keep a [`Reading`]. A change waits until no `Reading`
//! exists. A reader waits for no other reader, even if a change is waiting. So a progress callback may list devices.

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
    /// The number of [`Reading`]s that exist.
    readings: usize,
    /// The added entries that ggml lists.
    listed: Vec<Entry>,
    /// Entries that are removed as soon as no [`Reading`] exists.
    leaving: Vec<Entry>,
}

static STATE: Mutex<State> = Mutex::new(State { readings: 0, listed: Vec::new(), leaving: Vec::new() });
static NOBODY_READS: Condvar = Condvar::new();

thread_local! {
    /// The number of [`Reading`]s of this thread. A thread must not wait for its own readings to end, because it would
    /// wait for ever.
    static HERE: Cell<usize> = const { Cell::new(0) };
}

fn lock() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// While such a value exists, ggml's registry does not change. It cannot move to another thread.
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

/// While such a guard exists, only its thread may change ggml's registry, and nobody may read the registry.
#[must_use]
pub(crate) struct Changing(MutexGuard<'static, State>);

/// Waits until no [`Reading`] exists. A thread with the returned guard must not make a [`Reading`].
///
/// # Errors
///
/// [`Error::InvalidParameter`] on a thread that has a [`Reading`], because the thread would wait for itself.
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
    /// Adds an entry. [`remove`] removes it again.
    ///
    /// # Safety
    ///
    /// The entry must live until the process ends and may be listed at most once. Its callbacks must take no lock of
    /// this file.
    pub(crate) unsafe fn add(&mut self, entry: raw::ggml_backend_reg_t) {
        // SAFETY: the caller promises that the entry is valid. Nobody reads the registry, and the lock keeps others
        // from changing it.
        unsafe { raw::ggml_backend_register(entry) };
        self.0.listed.push(Entry(entry));
    }

    /// Whether an entry of this crate is listed.
    pub(crate) fn lists(&self, entry: raw::ggml_backend_reg_t) -> bool {
        self.0.listed.contains(&Entry(entry))
    }
}

/// Removes an entry that [`Changing::add`] added. If [`Reading`]s exist, the entry is removed later, when the last of
/// them is dropped. This call never waits.
pub(crate) fn remove(entry: raw::ggml_backend_reg_t) {
    let mut state = lock();
    state.leaving.push(Entry(entry));
    if state.readings == 0 {
        state.sweep();
    }
}

impl State {
    /// Removes the entries of `leaving`. May only be called while no [`Reading`] exists.
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

/// Whether an entry of this crate is listed. Does not wait for readers.
#[cfg(test)]
pub(crate) fn is_listed(entry: raw::ggml_backend_reg_t) -> bool {
    lock().listed.contains(&Entry(entry))
}

/// Whether an entry waits to be removed.
#[cfg(test)]
pub(crate) fn is_leaving(entry: raw::ggml_backend_reg_t) -> bool {
    lock().leaving.contains(&Entry(entry))
}
