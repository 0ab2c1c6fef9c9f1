//! Adding cards to ggml's registry and removing them.
//!
//! The registry is two vectors without a lock (ggml-backend-reg.cpp, `ggml_backend_registry`). llama.cpp reads them
//! while it loads a model and makes a context (llama-model.cpp, `make_cpu_buft_list`; llama-context.cpp, the
//! constructor). So those calls, and calls that list devices, hold a [`Reading`]; changes wait until there is none.
//! Readers never wait for each other, not even behind a waiting change, so that a progress callback may list devices.

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use super::backend;
use super::card::Card;
use super::slot::{self, MAX_CARDS, Slot};
use crate::backend::Backend;
use crate::error::Error;
use crate::raw;

pub(crate) struct State {
    /// The number of [`Reading`]s that are held.
    readings: usize,
    /// Which slots ggml lists.
    listed: [bool; MAX_CARDS],
    /// Slots whose card was dropped while somebody was reading.
    leaving: [bool; MAX_CARDS],
}

static STATE: Mutex<State> = Mutex::new(State { readings: 0, listed: [false; MAX_CARDS], leaving: [false; MAX_CARDS] });
static NOBODY_READS: Condvar = Condvar::new();

thread_local! {
    /// The readings of this thread, which cannot wait for itself.
    static HERE: Cell<usize> = const { Cell::new(0) };
}

fn lock() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// While a reading is held, ggml's registry does not change. It stays on its thread.
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

/// While it is held, only this thread may change ggml's registry, and nobody may read it.
#[must_use]
pub(crate) struct Changing(MutexGuard<'static, State>);

/// Waits until nobody reads. The holder of the result must not ask for a [`Reading`].
///
/// # Errors
///
/// [`Error::InvalidParameter`] on a thread that holds a reading, because it would wait for itself.
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

/// Puts `card` into a free slot and lists it.
pub(super) fn register(card: &Arc<Card>) -> Result<&'static Slot, Error> {
    Backend::init()?;
    let Changing(mut state) = changing()?;
    if backend::cpu_device().is_null() {
        return Err(Error::parameter(
            "device",
            "CPU",
            "simulated GPUs compute with the CPU's backend, and none is loaded",
        ));
    }
    let free = slot::all().iter().enumerate().find(|(index, slot)| !state.listed[*index] && slot.occupy(card));
    let Some((index, slot)) = free else {
        return Err(Error::parameter(
            "simulated GPUs",
            MAX_CARDS + 1,
            format!(
                "at most {MAX_CARDS} are registered at once; one makes room when its SimGpu and the models and contexts on \
                 it are dropped"
            ),
        ));
    };
    // SAFETY: the entry lives until the process ends, nobody reads the registry, and the lock keeps others from
    // changing it. The callbacks that run meanwhile take no lock of this file (device.rs).
    unsafe { raw::ggml_backend_register(slot.reg) };
    state.listed[index] = true;
    Ok(slot)
}

/// Removes a slot from the list: now, or when the last reading ends. Never waits.
pub(super) fn unregister(slot: &'static Slot) {
    let mut state = lock();
    if let Some(index) = slot::all().iter().position(|other| std::ptr::eq(other, slot)) {
        state.leaving[index] = true;
    }
    if state.readings == 0 {
        state.sweep();
    }
}

impl State {
    /// Removes the slots that are about to leave. Called only while nobody reads.
    fn sweep(&mut self) {
        for (index, slot) in slot::all().iter().enumerate() {
            if std::mem::take(&mut self.leaving[index]) && std::mem::take(&mut self.listed[index]) {
                // SAFETY: as for registering. A static entry has no library to close (ggml-backend-reg.cpp,
                // `unload_backend`), so this only removes the entry and its device from the vectors.
                unsafe { raw::ggml_backend_unload(slot.reg) };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::sim::SimGpu;

    use super::*;

    fn is_listed(gpu: &SimGpu) -> bool {
        lock().listed[slot::all().iter().position(|slot| std::ptr::eq(slot, gpu.slot)).unwrap()]
    }

    #[test]
    fn a_card_dropped_while_somebody_reads_leaves_when_the_last_one_is_done() {
        let gpu = SimGpu::builder("SIM reader").register().unwrap();
        let slot = gpu.slot;
        let index = slot::all().iter().position(|other| std::ptr::eq(other, slot)).unwrap();
        assert!(is_listed(&gpu));
        let (first, second) = (reading(), reading());
        drop(gpu);
        assert!(lock().listed[index]);
        drop(first);
        assert!(lock().listed[index]);
        drop(second);
        // Unless another test has taken the slot meanwhile.
        assert!(!lock().leaving[index]);
    }

    #[test]
    fn a_thread_that_reads_cannot_register_and_others_wait_for_it() {
        let here = reading();
        assert!(SimGpu::builder("SIM here").register().is_err());
        let elsewhere = std::thread::spawn(|| SimGpu::builder("SIM elsewhere").register().unwrap());
        std::thread::sleep(std::time::Duration::from_millis(20));
        assert!(!elsewhere.is_finished());
        drop(here);
        assert!(is_listed(&elsewhere.join().unwrap()));
    }
}
