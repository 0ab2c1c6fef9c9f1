//! The generation loop allocates nothing per token beyond the piece of text that it returns.

#![cfg(feature = "llama")]

mod native_support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use native_support::load_demo;

/// Counts allocations of the Rust side. llama.cpp's own are malloc's and not counted.
struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is the system allocator's; counting has no effect on memory.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn a_token_costs_one_allocation_at_most() {
    let model = load_demo();
    let mut stream = model
        .generate("And it came to pass")
        .seed(1)
        .stream()
        .unwrap();
    // The first tokens may still grow buffers.
    for _ in 0..8 {
        stream.next().unwrap().unwrap();
    }
    let tokens_before = stream.statistics().generated_tokens;
    let allocations_before = ALLOCATIONS.load(Ordering::Relaxed);
    let mut pieces = 0;
    for piece in stream.by_ref().take(64) {
        drop(piece.unwrap());
        pieces += 1;
    }
    let allocations = ALLOCATIONS.load(Ordering::Relaxed) - allocations_before;
    let tokens = stream.statistics().generated_tokens - tokens_before;
    assert!(pieces >= 16, "the demo model ended after {pieces} pieces");
    assert!(
        allocations <= pieces,
        "{allocations} allocations for {pieces} pieces of {tokens} tokens"
    );
}
