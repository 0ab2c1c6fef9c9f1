//! The state of a simulated card: its settings, and the memory that is taken.

use std::ffi::CStr;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use super::callback::log_error;
use super::rules::Rules;
use super::shared::Shared;

/// A card's settings, which cannot change after it is registered.
#[derive(Debug)]
pub(super) struct Settings {
    pub(super) description: &'static CStr,
    pub(super) backend: &'static CStr,
    pub(super) pci_id: Option<&'static CStr>,
    pub(super) total: u64,
    pub(super) rules: Rules,
    pub(super) asynchronous: bool,
    pub(super) flash_attention: bool,
    /// The card computes with weights on the host if there are at least this many tokens.
    pub(super) offload_from: i64,
    /// Bytes that the first computation takes in addition to the buffers.
    pub(super) growth: u64,
}

/// A card. The [`SimGpu`](super::SimGpu), its slot, and every buffer and stream on it hold one `Arc` each.
#[derive(Debug)]
pub(super) struct Card {
    pub(super) settings: Settings,
    /// The file that counts the bytes of all processes, if several share the card.
    shared: Option<Shared>,
    pub(super) taken: Number,
    pub(super) used: Number,
    /// Bytes that computations have taken in addition to the buffers.
    pub(super) grown: Number,
    pub(super) peak: Number,
    pub(super) buffers: Number,
    pub(super) allocations: Number,
    pub(super) graphs: Number,
    /// Which allocation will fail: 0 means none, and n means the n-th from now on.
    pub(super) failing_allocation: Number,
    pub(super) failing_graph: Number,
}

/// A number that all threads may read and change.
#[derive(Debug, Default)]
pub(super) struct Number(AtomicU64);

impl Number {
    pub(super) fn get(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    pub(super) fn set(&self, number: u64) {
        self.0.store(number, Ordering::Release);
    }

    fn count(&self) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }

    /// Changes the number unless `change` returns `None`. Returns the former number.
    fn change(&self, change: impl Fn(u64) -> Option<u64>) -> Option<u64> {
        self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, change).ok()
    }
}

impl Card {
    pub(super) fn new(settings: Settings, shared: Option<Shared>) -> Self {
        Self {
            settings,
            shared,
            taken: Number::default(),
            used: Number::default(),
            grown: Number::default(),
            peak: Number::default(),
            buffers: Number::default(),
            allocations: Number::default(),
            graphs: Number::default(),
            failing_allocation: Number::default(),
            failing_graph: Number::default(),
        }
    }

    /// The total, minus the bytes that count as taken by other processes.
    fn limit(&self) -> u64 {
        self.settings.total.saturating_sub(self.taken.get())
    }

    pub(super) fn free(&self) -> u64 {
        let held = self.shared_used().unwrap_or_else(|| self.used.get().saturating_add(self.grown.get()));
        self.limit().saturating_sub(held)
    }

    /// Bytes of a shared card that all processes have taken. If the shared file cannot be read, the whole card counts
    /// as taken.
    pub(super) fn shared_used(&self) -> Option<u64> {
        let shared = self.shared.as_ref()?;
        Some(or_log(shared.used()).unwrap_or(u64::MAX))
    }

    /// The maximum of the bytes that all processes had taken at once; 0 if it cannot be read.
    pub(super) fn shared_peak(&self) -> Option<u64> {
        let shared = self.shared.as_ref()?;
        Some(or_log(shared.peak()).unwrap_or_default())
    }

    /// Takes `bytes` for a buffer. Returns false if they do not fit, or if this allocation is the one that must fail.
    pub(super) fn take(&self, bytes: u64) -> bool {
        self.allocations.count();
        if reached(&self.failing_allocation) || bytes > self.settings.rules.largest_buffer() {
            return false;
        }
        if !self.share(bytes) {
            return false;
        }
        let capacity = self.limit().saturating_sub(self.grown.get());
        let fits = |used: u64| used.checked_add(bytes).filter(|sum| *sum <= capacity);
        let Some(before) = self.used.change(fits) else {
            self.unshare(bytes);
            return false;
        };
        self.peak.change(|peak| Some(peak.max(before + bytes)));
        self.buffers.count();
        true
    }

    /// Returns a buffer's bytes to the card.
    pub(super) fn give_back(&self, bytes: u64) {
        self.used.change(|used| Some(used - bytes));
        self.buffers.change(|buffers| Some(buffers - 1));
        self.unshare(bytes);
    }

    /// Takes `bytes` of a card that processes share. Returns false if they do not fit, or the shared file fails.
    fn share(&self, bytes: u64) -> bool {
        let limit = self.limit();
        let taken = |shared: &Shared| or_log(shared.take(bytes, limit)) == Some(true);
        self.shared.as_ref().is_none_or(taken)
    }

    fn unshare(&self, bytes: u64) {
        if let Some(shared) = &self.shared {
            let _ = or_log(shared.give_back(bytes));
        }
    }

    /// Counts a computation. Returns true if this computation is the one that must fail, or if its additional memory
    /// does not fit.
    pub(super) fn graph_fails(&self) -> bool {
        self.graphs.count();
        reached(&self.failing_graph) || !self.grow()
    }

    /// Takes the additional memory for computations, unless it is taken already. Returns false if it does not fit.
    fn grow(&self) -> bool {
        let missing = self.settings.growth.saturating_sub(self.grown.get());
        if missing == 0 {
            return true;
        }
        let fits = match &self.shared {
            Some(_) => self.share(missing),
            None => missing <= self.free(),
        };
        if fits {
            self.grown.set(self.settings.growth);
        }
        fits
    }
}

/// The value of a result. If it is an error, logs that and returns `None`.
fn or_log<T>(answer: io::Result<T>) -> Option<T> {
    answer.inspect_err(|error| log_error(&format!("ggml_backend_sim: the shared file: {error}"))).ok()
}

/// Counts down, and returns true when 0 is reached.
fn reached(countdown: &Number) -> bool {
    countdown.change(|n| n.checked_sub(1)) == Some(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn card(total: u64) -> Card {
        sharing(total, None)
    }

    fn sharing(total: u64, shared: Option<Shared>) -> Card {
        let settings = Settings {
            description: c"test",
            backend: c"SIM",
            pci_id: None,
            total,
            rules: Rules::Plain,
            asynchronous: false,
            flash_attention: true,
            offload_from: 32,
            growth: 30,
        };
        Card::new(settings, shared)
    }

    #[test]
    fn buffers_that_do_not_fit_are_refused_and_freed_bytes_are_usable_again() {
        let card = card(100);
        assert!(card.take(60));
        assert!(!card.take(41));
        assert!(card.take(40));
        card.give_back(60);
        assert_eq!((card.used.get(), card.peak.get(), card.free()), (40, 100, 60));
        assert_eq!((card.buffers.get(), card.allocations.get()), (1, 3));
    }

    #[test]
    fn the_first_computation_takes_its_additional_memory_and_keeps_it() {
        let card = card(100);
        assert!(card.take(60));
        assert!(!card.graph_fails() && !card.graph_fails());
        assert_eq!((card.grown.get(), card.used.get(), card.free()), (30, 60, 10));
        assert!(!card.take(11));
        let full = self::card(80);
        assert!(full.take(60));
        assert!(full.graph_fails());
        assert_eq!((full.grown.get(), full.free()), (0, 20));
    }

    #[test]
    fn cards_of_one_file_have_one_memory() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("card");
        let [one, two] = [(); 2].map(|()| sharing(100, Some(Shared::join(&path).unwrap())));
        assert!(one.take(60));
        assert_eq!((one.used.get(), two.used.get()), (60, 0));
        assert_eq!((one.free(), two.free()), (40, 40));
        assert!(!two.take(41) && two.take(5));
        // Computing needs 30 bytes, but with this ballast only 25 are free.
        two.taken.set(10);
        assert!(two.graph_fails());
        two.taken.set(0);
        assert!(!two.graph_fails());
        assert!(one.graph_fails());
        assert_eq!((one.shared_used(), one.free()), (Some(95), 5));
        one.give_back(60);
        assert_eq!((two.shared_used(), two.shared_peak()), (Some(35), Some(95)));
        drop(two);
        assert_eq!(one.shared_used(), Some(0));
    }

    #[test]
    fn ballast_above_the_free_bytes_takes_no_memory_in_use() {
        let card = card(100);
        assert!(card.take(60));
        card.taken.set(u64::MAX);
        assert_eq!((card.used.get(), card.free()), (60, 0));
        assert!(!card.take(1));
        card.taken.set(0);
        assert!(card.take(40));
    }

    #[test]
    fn the_allocation_set_to_fail_is_the_only_one() {
        let card = card(100);
        card.failing_allocation.set(2);
        assert_eq!([(); 4].map(|()| card.take(1)), [true, false, true, true]);
    }

    #[test]
    fn sizes_near_the_largest_number_do_not_wrap() {
        let card = card(u64::MAX);
        assert!(card.take(u64::MAX - 1));
        assert!(!card.take(2));
        assert!(card.take(1));
    }
}
