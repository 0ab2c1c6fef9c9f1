//! Tests of the card check on this machine.

#![cfg(target_os = "linux")]

mod cpu;
mod run_sh;
