//! Tests of the program `autoplace`.

#[cfg(target_os = "linux")]
mod attack;
mod beside;
mod cli_adapted;
#[cfg(unix)]
mod cli_cache;
mod cli_devices;
mod cli_doctor;
mod cli_flags;
mod cli_list;
mod cli_measure;
#[cfg(feature = "media")]
mod cli_media;
mod cli_outputs;
mod cli_plan;
#[cfg(unix)]
mod cli_ps;
#[cfg(unix)]
mod cli_runtime;
mod cli_support;
mod cli_talk;
#[cfg(unix)]
mod cli_terminal;
mod cli_variables;
mod odd_files;
mod serve;
mod serve_client;
mod serve_hostile;
mod serve_pool;
#[cfg(target_os = "linux")]
mod serve_pool_long;
mod serve_settings;
mod serve_vectors;
mod server;
// These tests run only on Linux, because they start processes whose names differ from the names of their files.
#[cfg(target_os = "linux")]
mod cli_watch;
