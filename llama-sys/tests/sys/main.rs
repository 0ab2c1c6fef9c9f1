//! llama.cpp through its safe layer, and simulated GPUs.

#[macro_use]
#[path = "../../../planner/tests/support/own_process/mod.rs"]
mod own_process;
#[macro_use]
#[path = "../../../planner/tests/support/assert_matches/mod.rs"]
mod assert_matches;
#[path = "../../../planner/tests/support/lora_support/mod.rs"]
mod lora_support;
#[path = "../support/mod.rs"]
mod support;

mod adapter;
mod blueprint;
mod embeddings;
mod refusals;
#[cfg(feature = "prebuilt-runtime")]
mod runtime;
mod sampler;
mod sim_memory;
mod sim_registry;
mod sim_rules;
mod sim_shift;
mod state_stream;
mod threads;
