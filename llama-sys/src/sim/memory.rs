//! The host memory in which a simulated buffer lies.

use std::io;

use memmap2::{MmapOptions, MmapRaw};

/// Zeroed pages that take no memory until they are written. They are an anonymous mapping for which no swap is
/// reserved, so a buffer of 400 GB fits on any host. Some systems count the reservation anyway (Windows,
/// `vm.overcommit_memory` 2), and may refuse the mapping.
pub(super) struct Memory {
    map: MmapRaw,
}

impl Memory {
    pub(super) fn reserve(bytes: usize) -> io::Result<Self> {
        let map = MmapOptions::new().len(bytes).no_reserve_swap().map_anon()?;
        Ok(Self { map: map.into() })
    }

    pub(super) fn base(&self) -> *mut u8 {
        self.map.as_mut_ptr()
    }

    /// Makes every byte zero by returning the pages to the system. No page is touched in this way. That matters because
    /// llama.cpp clears a whole KV cache at once.
    ///
    /// # Safety
    ///
    /// Nobody may read or write the memory meanwhile.
    pub(super) unsafe fn zero(&self) {
        #[cfg(target_os = "linux")]
        // SAFETY: madvise(2): MADV_DONTNEED turns the pages of a private anonymous mapping into zeros; the caller
        // promises that nobody accesses them.
        if unsafe { self.map.unchecked_advise(memmap2::UncheckedAdvice::DontNeed) }.is_ok() {
            return;
        }
        // SAFETY: the mapping is writable over its whole length.
        unsafe { self.base().write_bytes(0, self.map.len()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_zero_writable_and_zero_again() {
        let memory = Memory::reserve(10_000).unwrap();
        // SAFETY: within the mapping, which only this test uses.
        unsafe {
            assert_eq!(memory.base().add(9_999).read(), 0);
            memory.base().write_bytes(7, 10_000);
            memory.zero();
            assert_eq!(memory.base().add(9_999).read(), 0);
        }
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn terabytes_are_given_and_cleared_without_being_touched() {
        // Under `vm.overcommit_memory` 2 this is refused. The test accepts that too.
        if let Ok(memory) = Memory::reserve(4 << 40) {
            // SAFETY: only this test uses the mapping.
            unsafe { memory.zero() };
        }
    }
}
