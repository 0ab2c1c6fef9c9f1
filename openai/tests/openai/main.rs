//! OpenAI's API: as data, and through an endpoint.

#[path = "../../../autoplace/tests/support/embedding_models/mod.rs"]
mod embedding_models;
#[path = "../../../hub/tests/http/mod.rs"]
mod http;
#[path = "../../../planner/tests/support/lora_support/mod.rs"]
mod lora_support;
#[path = "../../../autoplace/tests/support/native_support/mod.rs"]
mod native_support;
#[path = "../../../examples/tests/program/mod.rs"]
mod program;
#[path = "../../../autoplace/tests/support/random_weights/mod.rs"]
mod random_weights;
#[path = "../../../planner/tests/support/synthetic/mod.rs"]
mod synthetic;

mod adapters;
mod api;
mod called;
mod endpoint;
mod llama_server;
mod messages;
mod parameters;
mod responses;
mod server;
mod surfaces;
mod tools;
mod vocabulary;
