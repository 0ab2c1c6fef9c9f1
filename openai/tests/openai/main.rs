//! OpenAI's API: as data, and by the example `serve` as clients meet it.

#[path = "../../../hub/tests/http/mod.rs"]
mod http;
#[path = "../../../autoplace/tests/support/native_support/mod.rs"]
mod native_support;
#[path = "../../../examples/tests/program/mod.rs"]
mod program;

mod api;
mod endpoint;
mod hostile;
mod llama_server;
mod serve;
mod serve_client;
mod server;
