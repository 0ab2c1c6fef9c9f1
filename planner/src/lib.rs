//! Where a local model goes on the GPUs of a machine, and why. Pure Rust: no GPU, no C++ and no llama.cpp is needed.
//!
//! ```no_run
//! use autoplace_planner::{Planner, gguf::Header, machine::Machine, profile::ModelProfile};
//!
//! let profile = ModelProfile::from_header(&Header::open("model.gguf")?)?;
//! println!("{}", Planner::new(&profile, &Machine::detect()).plan()?);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Data moves one way: [`gguf`] reads a file's header, [`profile`] says what its tensors are for, [`machine`] what the
//! devices have free, [`memory`] what a placement costs, [`plan`] which placement is best. The crate `autoplace` loads
//! what was planned, and lets llama.cpp itself confirm it first: a [`plan::Probe`].

#![forbid(unsafe_code)]

#[cfg(test)]
extern crate self as autoplace_planner;

/// `name(argument: type, ...) field = value, ...`: setters that are called so.
macro_rules! setters {
    ($($(#[$doc:meta])* $name:ident($($argument:ident: $ty:ty),*) $($($field:ident).+ = $value:expr),+;)*) => {
        $($(#[$doc])* pub fn $name(mut self, $($argument: $ty),*) -> Self {
            $(self.$($field).+ = $value;)+
            self
        })*
    };
}

/// Returns what is wrong, unless this holds.
macro_rules! ensure {
    ($holds:expr, $($problem:tt)+) => {
        if !$holds {
            return Err(format!($($problem)+));
        }
    };
}

pub mod gguf;
mod json;
pub mod machine;
pub mod memory;
pub mod plan;
pub mod profile;

pub use plan::{Plan, Planner};
