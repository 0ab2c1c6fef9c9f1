//! Decoding: good files give the right values; all others give errors within the limits.

test_support::count_allocations!();

mod bombs;
mod damaged;
mod images;
mod jpeg;
mod limits;
mod pictures;
mod sounds;
mod tones;
