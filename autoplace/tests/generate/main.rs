//! Tests of generation: texts, sessions, engines, samplers, constraints, adapters, drafts, embeddings.

#[macro_use]
extern crate test_support;

// Another test binary of this crate has the same module.
#[path = "../support/mod.rs"]
mod support;

use support::{native_support, replace_support, sim_support, speculative_support, text_support};

count_allocations!();

mod allocations;
#[cfg(feature = "async")]
mod async_streams;
mod cancelled_prompts;
mod chat;
mod chat_edges;
mod chat_long;
mod constrained_json;
mod constrained_limits;
mod constrained_text;
#[cfg(feature = "schemars")]
mod constrained_types;
mod embed_rerank;
mod embed_vectors;
mod engine_memories;
mod engine_replace;
mod engine_requests;
mod engine_steps;
mod engine_texts;
mod engine_worker;
mod front_ends;
mod generate;
mod leaves_nothing;
mod long_prompts;
mod lora_texts;
mod prefix_reuse;
mod sampling_chain;
mod sampling_custom;
mod sampling_raw;
mod session_edits;
mod session_memories;
mod session_random;
mod session_shift;
mod session_worker;
#[cfg(target_os = "linux")]
mod soak;
mod speculative;
mod speculative_text;
#[cfg(target_os = "linux")]
mod stored_damage;
mod stored_texts;
mod stored_waiting;
mod text_bytes;
