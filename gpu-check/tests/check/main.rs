//! The check of a card, on this machine.

#![cfg(target_os = "linux")]

mod cpu;
mod run_sh;
