//! Code that the test binaries of this crate have in common. Code that other crates need too is in `test-support`.

#![allow(dead_code, reason = "each binary uses its part")]

pub(crate) mod depth_support;
pub(crate) mod native_support;
pub(crate) mod replace_support;
pub(crate) mod sim_support;
pub(crate) mod speculative_support;
pub(crate) mod text_support;
