//! Simulated GPUs, which all tests of one program share.

#![allow(dead_code, reason = "each test file uses its part")]

use autoplace::llama_sys::sim::{Rules, SimGpu};

/// A card by CUDA's rules.
pub(crate) fn card(total: u64) -> SimGpu {
    SimGpu::builder("SIM card").total(total).rules(Rules::Cuda).backend("CUDA").register().unwrap()
}
