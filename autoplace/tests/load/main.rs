//! Plans are compared with llama.cpp's allocations: probes, loads and the load contract, with simulated GPUs and
//! without.

#[macro_use]
extern crate test_support;

// Another test binary of this crate has the same module.
#[path = "../support/mod.rs"]
mod support;

use support::{depth_support, native_support, replace_support, sim_support, speculative_support, text_support};

mod architectures;
mod attention_fused_or_plain;
mod blueprints;
mod chaos;
mod chaos_support;
mod chosen_settings;
mod companion_draft;
mod compute_buffers;
mod conformance;
mod defaults;
mod depth;
mod depth_fleets;
mod embed_memory;
mod flags;
mod fleets;
mod fleets_support;
mod headroom_measured;
mod hub;
mod isolation;
mod isolation_calls;
mod leases;
mod load;
mod load_contract;
mod lora_real_loads;
mod measured_vram;
mod moe_cache;
mod mtp_memory;
mod native_params;
mod plan_replay;
#[cfg(target_os = "linux")]
mod probe_leaves_nothing;
#[cfg(not(feature = "prebuilt-runtime"))]
mod quantised;
mod real_loads;
mod real_loads_support;
mod refused_files;
mod replace;
mod replace_outcomes;
mod rig;
#[cfg(feature = "rpc")]
mod rpc;
mod sentinel;
mod sentinel_replace;
mod simulated_gpu;
mod speculative_memory;
mod tensor_types;
#[cfg(feature = "vulkan")]
mod vulkan;
