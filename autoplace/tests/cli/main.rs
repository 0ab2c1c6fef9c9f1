//! The program `autoplace`.

#![cfg(feature = "cli")]

#[path = "../support/cli_support/mod.rs"]
mod cli_support;
#[path = "../support/lora_support/mod.rs"]
mod lora_support;
#[path = "../support/random_weights/mod.rs"]
mod random_weights;
#[path = "../support/shapes/mod.rs"]
mod shapes;
#[path = "../support/speculative_support/mod.rs"]
mod speculative_support;
#[path = "../support/synthetic/mod.rs"]
mod synthetic;

mod cli_devices;
mod cli_lora;
mod cli_mtp;
mod cli_outputs;
mod cli_plan;
#[cfg(feature = "svg")]
mod plan_picture;
