//! Scratch.
#![allow(missing_docs)]
use std::sync::atomic::{AtomicU64, Ordering};
static K: [AtomicU64; 16] = [const { AtomicU64::new(u64::MAX) }; 16];
pub fn set(index: usize, value: Option<f64>) {
    K[index].store(value.map_or(u64::MAX, f64::to_bits), Ordering::Relaxed);
}
pub(crate) fn get(index: usize, default: f64) -> f64 {
    match K[index].load(Ordering::Relaxed) {
        u64::MAX => default,
        bits => f64::from_bits(bits),
    }
}
