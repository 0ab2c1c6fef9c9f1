//! Plans compared with llama.cpp's allocations: probes, loads and the load contract, with and without simulated GPUs.

#[macro_use]
#[path = "../../../planner/tests/support/own_process/mod.rs"]
mod own_process;
#[macro_use]
#[path = "../../../planner/tests/support/assert_matches/mod.rs"]
mod assert_matches;
#[path = "../support/blueprints/mod.rs"]
mod blueprints;
#[path = "../support/chaos_support/mod.rs"]
mod chaos_support;
#[path = "../support/llama_source/defaults.rs"]
mod defaults;
#[path = "../support/embedding_models/mod.rs"]
mod embedding_models;
#[path = "../support/fleets_support/mod.rs"]
mod fleets_support;
#[cfg(feature = "hub")]
#[path = "../../../hub/tests/http/mod.rs"]
mod http;
#[cfg(feature = "hub")]
#[path = "../../../hub/tests/hub/server.rs"]
#[allow(dead_code, reason = "the hub's own tests use all of it")]
mod hub_server;
#[path = "../support/llama_source/mod.rs"]
mod llama_source;
#[path = "../../../planner/tests/support/lora_support/mod.rs"]
mod lora_support;
#[path = "../support/native_params/mod.rs"]
mod native_params;
#[path = "../support/native_support/mod.rs"]
mod native_support;
#[path = "../support/random_weights/mod.rs"]
mod random_weights;
#[path = "../support/real_loads_support/mod.rs"]
mod real_loads_support;
#[path = "../support/replace_support/mod.rs"]
mod replace_support;
#[path = "../support/rig/mod.rs"]
mod rig;
#[path = "../support/sim_support/mod.rs"]
mod sim_support;
#[path = "../support/speculative_support/mod.rs"]
mod speculative_support;
#[path = "../../../planner/tests/support/synthetic/mod.rs"]
mod synthetic;
#[path = "../support/text_support/mod.rs"]
mod text_support;

use synthetic::shapes;

mod architectures;
mod attention_fused_or_plain;
mod chaos;
mod chosen_settings;
mod companion_draft;
mod compute_buffers;
mod conformance;
mod doctor;
mod embed_memory;
mod flags;
mod fleets;
mod headroom_measured;
mod hub;
mod isolation;
mod isolation_calls;
mod leases;
mod load;
mod load_contract;
mod lora_real_loads;
mod measure;
mod measured_vram;
mod mtp_memory;
mod plan_replay;
#[cfg(target_os = "linux")]
mod probe_leaves_nothing;
#[cfg(not(feature = "prebuilt-runtime"))]
mod quantised;
mod ready;
mod real_loads;
mod refused_files;
mod replace;
mod replace_outcomes;
#[cfg(feature = "rpc")]
mod rpc;
mod sentinel;
mod sentinel_replace;
mod simulated_gpu;
mod speculative_memory;
mod tensor_types;
#[cfg(feature = "vulkan")]
mod vulkan;
