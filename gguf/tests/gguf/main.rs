//! Headers that are written and read back, and errors that name the fault of a bad header.

#[macro_use]
extern crate test_support;

count_allocations!();

mod hostile;
mod memory;
mod roundtrip;
mod split;
