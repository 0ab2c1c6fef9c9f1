//! Decoding: right values of good files, and errors within limits for all others.

test_support::count_allocations!();

mod bombs;
mod damaged;
mod images;
mod jpeg;
mod limits;
mod pictures;
mod sounds;
mod tones;
