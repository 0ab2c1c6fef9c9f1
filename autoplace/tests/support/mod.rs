//! Code that the test binaries of this crate share. Code that other crates share too is in `test-support`.

#![allow(dead_code, reason = "each binary uses its part")]

pub(crate) mod depth_support;
pub(crate) mod native_support;
pub(crate) mod replace_support;
pub(crate) mod sim_support;
pub(crate) mod speculative_support;
pub(crate) mod text_support;
