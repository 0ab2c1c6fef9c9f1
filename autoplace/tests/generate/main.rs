//! Generations: texts, sessions, engines, samplers, constraints, adapters, drafts, embeddings.

#[macro_use]
#[path = "../../../planner/tests/support/assert_matches/mod.rs"]
mod assert_matches;
#[macro_use]
#[path = "../../../planner/tests/support/own_process/mod.rs"]
mod own_process;
#[path = "../../../chat/tests/support/chat_reply_support/mod.rs"]
mod chat_reply_support;
#[path = "../../../planner/tests/support/counting/mod.rs"]
mod counting;
#[path = "../support/embedding_models/mod.rs"]
mod embedding_models;
#[path = "../../../planner/tests/support/lora_support/mod.rs"]
mod lora_support;
#[path = "../support/native_support/mod.rs"]
mod native_support;
#[path = "../support/random_weights/mod.rs"]
mod random_weights;
#[path = "../support/replace_support/mod.rs"]
mod replace_support;
#[path = "../support/sim_support/mod.rs"]
mod sim_support;
#[path = "../support/speculative_support/mod.rs"]
mod speculative_support;
#[path = "../../../planner/tests/support/synthetic/mod.rs"]
mod synthetic;
#[path = "../support/text_support/mod.rs"]
mod text_support;

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
mod text_bytes;
