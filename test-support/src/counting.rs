//! Counts the allocations of tests on the Rust side. llama.cpp allocates through malloc, which is not counted.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

/// An allocator that counts every call and passes it to the system's allocator. A test binary that counts begins with
/// [`count_allocations!`](crate::count_allocations).
pub struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// Bytes that this thread has allocated and not yet freed, and the maximum of this number so far.
    static LIVE: Cell<usize> = const { Cell::new(0) };
    static PEAK: Cell<usize> = const { Cell::new(0) };
    /// The sum of the bytes that this thread has allocated so far, and the number of allocations.
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

/// The number of allocations of the process so far, including reallocations.
pub fn allocations() -> usize {
    ALLOCATIONS.load(Ordering::Relaxed)
}

/// Runs `work`. Returns its result, and the bytes by which the peak of this thread's heap exceeds the heap before the
/// work.
pub fn peak<T>(work: impl FnOnce() -> T) -> (T, usize) {
    let before = LIVE.get();
    PEAK.set(before);
    let result = work();
    (result, PEAK.get() - before)
}

/// The heap use of some work on one thread. The use is the same on every machine, so a test can bound the work by it.
#[derive(Debug, Clone, Copy)]
pub struct Work {
    /// Bytes by which the peak of the thread's heap exceeds the heap before the work.
    pub peak: usize,
    /// Bytes of all allocations together.
    pub bytes: usize,
    /// Number of allocations, including reallocations.
    pub allocations: usize,
}

/// Runs `work`. Returns its result, and how it used this thread's heap.
pub fn work<T>(work: impl FnOnce() -> T) -> (T, Work) {
    let before = TAKEN.get();
    let (result, peak) = peak(work);
    let after = TAKEN.get();
    (result, Work { peak, bytes: after.0 - before.0, allocations: after.1 - before.1 })
}

/// Counts an allocation. During a reallocation, the old and the new memory both count.
fn count(taken: usize, given_back: usize) {
    if taken > 0 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        let _ = TAKEN.try_with(|all| all.set((all.get().0 + taken, all.get().1 + 1)));
    }
    let _ = LIVE.try_with(|live| {
        let most = live.get() + taken;
        // A thread may free memory that another thread allocated.
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
