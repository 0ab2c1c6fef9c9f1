//! Good files are decoded to the right values. All others lead to errors within the limits.

test_support::count_allocations!();

mod bombs;
mod damaged;
mod images;
mod jpeg;
mod limits;
mod pictures;
mod sounds;
mod tones;
