//! Plans the placement of a local model on the GPUs of a machine, and explains it. The crate is pure Rust, and needs no
//! GPU, no C++ and no llama.cpp.
//!
//! ```no_run
//! use autoplace_planner::{Planner, gguf::Header, machine::Machine, profile::ModelProfile};
//!
//! let profile = ModelProfile::from_header(&Header::open("model.gguf")?)?;
//! println!("{}", Planner::new(&profile, &Machine::detect()).plan()?);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Data moves one way: the crate [`gguf`] reads a file's header, [`profile`] interprets it, [`machine`] finds the
//! devices and their free memory, [`memory`] computes the bytes of a placement, and [`plan`] chooses the best one. The
//! crate `autoplace` loads the model as planned, after llama.cpp has confirmed it through a [`plan::Probe`].

#![forbid(unsafe_code)]

#[cfg(test)]
extern crate self as autoplace_planner;

/// Returns the problem as an error unless the condition holds.
macro_rules! ensure {
    ($holds:expr, $($problem:tt)+) => {
        if !$holds {
            return Err(format!($($problem)+));
        }
    };
}

mod json;
pub mod machine;
pub mod memory;
pub mod plan;
pub mod profile;

#[doc(no_inline)]
pub use autoplace_gguf as gguf;
pub use plan::{Plan, Planner};

// The example of the README must compile.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
