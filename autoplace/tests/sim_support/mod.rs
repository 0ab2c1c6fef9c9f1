//! Simulated GPUs, which all tests of one program share.

#![allow(dead_code, reason = "each test file uses its part")]

use std::sync::{Mutex, MutexGuard, PoisonError};

use autoplace::llama_sys::sim::{Rules, SimGpu};

/// Registered cards are GPUs of the whole process: one test at a time.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A card by CUDA's rules.
pub(crate) fn card(total: u64) -> SimGpu {
    SimGpu::builder("SIM card")
        .total(total)
        .rules(Rules::Cuda)
        .backend("CUDA")
        .register()
        .unwrap()
}
