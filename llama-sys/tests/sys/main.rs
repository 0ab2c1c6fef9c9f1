//! Tests of llama.cpp through the safe layer, and of simulated GPUs.

#[macro_use]
extern crate test_support;

mod adapter;
mod blueprint;
mod embeddings;
mod hadamard;
#[cfg(all(feature = "dynamic-backends", not(feature = "prebuilt-runtime"), target_os = "linux"))]
mod libraries;
#[cfg(feature = "media")]
mod media;
mod moe_cache;
mod refusals;
#[cfg(feature = "prebuilt-runtime")]
mod runtime;
mod sampler;
mod sim_memory;
mod sim_registry;
mod sim_rules;
mod sim_shift;
mod state_rows;
mod state_stream;
mod support;
mod threads;
