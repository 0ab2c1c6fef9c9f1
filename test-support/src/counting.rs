//! Counts the allocations of tests on the Rust side. llama.cpp's own go through malloc and are not counted.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The system's allocator, which also counts. A test binary that counts begins with
/// [`count_allocations!`](crate::count_allocations).
pub struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// Bytes that this thread holds, and their maximum so far.
    static LIVE: Cell<usize> = const { Cell::new(0) };
    static PEAK: Cell<usize> = const { Cell::new(0) };
    /// Bytes that this thread has allocated so far, and how often.
    static TAKEN: Cell<(usize, usize)> = const { Cell::new((0, 0)) };
}

/// Counts the allocations of the test binary that contains this line. Without it, the functions of
/// [`counting`](crate::counting) return 0.
#[macro_export]
macro_rules! count_allocations {
    () => {
        #[global_allocator]
        static ALLOCATOR: $crate::counting::Counting = $crate::counting::Counting;
    };
}

/// Allocations of the process so far, including reallocations.
pub fn allocations() -> usize {
    ALLOCATIONS.load(Ordering::Relaxed)
}

/// Runs `work`. Returns its result, and the peak of this thread's heap above its level before, in bytes.
pub fn peak<T>(work: impl FnOnce() -> T) -> (T, usize) {
    let before = LIVE.get();
    PEAK.set(before);
    let result = work();
    (result, PEAK.get() - before)
}

/// What a thread's work took of the heap. It is the same on every machine, so a test can bound by it how much is done.
#[derive(Debug, Clone, Copy)]
pub struct Work {
    /// The peak of the thread's heap above its level before, in bytes.
    pub peak: usize,
    /// Bytes of all allocations together.
    pub bytes: usize,
    /// Number of allocations, including reallocations.
    pub allocations: usize,
}

/// Runs `work`. Returns its result, and what it took of this thread's heap.
pub fn work<T>(work: impl FnOnce() -> T) -> (T, Work) {
    let before = TAKEN.get();
    let (result, peak) = peak(work);
    let after = TAKEN.get();
    (result, Work { peak, bytes: after.0 - before.0, allocations: after.1 - before.1 })
}

/// Counts an allocation. During a reallocation both places count.
fn count(taken: usize, given_back: usize) {
    if taken > 0 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        let _ = TAKEN.try_with(|all| all.set((all.get().0 + taken, all.get().1 + 1)));
    }
    let _ = LIVE.try_with(|live| {
        let most = live.get() + taken;
        // A thread may free memory that another allocated.
        live.set(most.saturating_sub(given_back));
        let _ = PEAK.try_with(|peak| peak.set(peak.get().max(most)));
    });
}

// SAFETY: every call is passed on to `System` unchanged; counting neither allocates nor unwinds.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 0);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(0, layout.size());
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size, layout.size());
        // SAFETY: the caller's promise.
        unsafe { System.realloc(pointer, layout, size) }
    }
}
