//! Measurements with real loads on simulated cards, findings about them, the readiness check, and the stages of a
//! placement.

#[macro_use]
extern crate test_support;

mod doctor;
mod measure;
mod ready;
mod stages;

use autoplace::llama_sys::sim::{Rules, SimGpu};

/// A simulated card with CUDA's rules.
fn card(total: u64) -> SimGpu {
    SimGpu::builder("SIM card").total(total).rules(Rules::Cuda).backend("CUDA").register().unwrap()
}
