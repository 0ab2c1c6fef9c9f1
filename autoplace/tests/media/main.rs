//! Images and sound: prompts and conversations with pictures, on the demo model beside projectors with random weights.

#[macro_use]
extern crate test_support;

// Shared with the other binaries of this crate's tests.
#[path = "../support/mod.rs"]
mod support;

mod eyes;

mod heard;
mod refused;
mod same_as_llama_cpp;
mod seen_before;
mod stored_pictures;
#[cfg(feature = "vulkan")]
mod vulkan;
mod where_it_is;

use support::{sim_support, text_support};
