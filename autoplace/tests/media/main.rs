//! Images and sound: prompts and conversations with pictures, with the demo model and projectors of random weights.

#[macro_use]
extern crate test_support;

// Other test binaries of this crate have the same module.
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
mod windows;

use support::{sim_support, text_support};
