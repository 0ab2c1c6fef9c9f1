//! Headers that are read and written: what is there comes back, and what is wrong is named.

#[macro_use]
extern crate test_support;

count_allocations!();

mod hostile;
mod memory;
mod roundtrip;
mod split;
