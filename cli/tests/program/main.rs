//! The program `autoplace`.

#[path = "../../../autoplace/tests/support/cli_support/mod.rs"]
mod cli_support;
#[path = "../../../hub/tests/http/mod.rs"]
mod http;
#[path = "../../../hub/tests/hub/server.rs"]
#[allow(dead_code, reason = "the hub's own tests use all of it")]
mod hub_server;
#[cfg(target_os = "linux")]
#[path = "../../../openai/tests/openai/llama_server.rs"]
mod llama_server;
#[path = "../../../autoplace/tests/support/llama_source/mod.rs"]
mod llama_source;
#[path = "../../../planner/tests/support/lora_support/mod.rs"]
mod lora_support;
#[path = "../../../autoplace/tests/support/random_weights/mod.rs"]
mod random_weights;
#[path = "../../../autoplace/tests/support/speculative_support/mod.rs"]
mod speculative_support;
#[path = "../../../planner/tests/support/synthetic/mod.rs"]
mod synthetic;

use synthetic::shapes;

mod cli_adapted;
mod cli_devices;
mod cli_doctor;
mod cli_flags;
mod cli_list;
mod cli_measure;
mod cli_outputs;
mod cli_plan;
mod cli_talk;
#[cfg(unix)]
mod cli_terminal;
mod odd_files;
mod serve;
mod serve_client;
mod serve_hostile;
mod server;
// Its processes have other names than their files.
#[cfg(target_os = "linux")]
mod cli_watch;
