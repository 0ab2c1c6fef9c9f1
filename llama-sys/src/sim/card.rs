//! The state of a simulated card: what it is, and who holds how much of it.

use std::ffi::CStr;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use super::callback::log_error;
use super::rules::Rules;
use super::shared::Shared;

/// What a card is; fixed once it is registered.
#[derive(Debug)]
pub(super) struct Settings {
    pub(super) description: &'static CStr,
    pub(super) backend: &'static CStr,
    pub(super) pci_id: Option<&'static CStr>,
    pub(super) total: u64,
    pub(super) rules: Rules,
    pub(super) asynchronous: bool,
    pub(super) flash_attention: bool,
    pub(super) host_buffer: bool,
    /// Tokens from which on the card computes with the host's weights.
    pub(super) offload_from: i64,
    /// Bytes that computing takes beside the buffers.
    pub(super) growth: u64,
}

/// A card. The [`SimGpu`](super::SimGpu), its slot, and every buffer and stream on it hold one `Arc` each.
#[derive(Debug)]
pub(super) struct Card {
    pub(super) settings: Settings,
    /// Where the card is one of several processes: what each of them has, and this one.
    shared: Option<Shared>,
    taken: AtomicU64,
    used: AtomicU64,
    /// What computing has taken beside the buffers.
    grown: AtomicU64,
    peak: AtomicU64,
    buffers: AtomicU64,
    allocations: AtomicU64,
    graphs: AtomicU64,
    /// 0: never; n: the n-th from now.
    failing_allocation: AtomicU64,
    failing_graph: AtomicU64,
}

impl Card {
    pub(super) fn new(settings: Settings, shared: Option<Shared>) -> Self {
        Self {
            settings,
            shared,
            taken: AtomicU64::new(0),
            used: AtomicU64::new(0),
            grown: AtomicU64::new(0),
            peak: AtomicU64::new(0),
            buffers: AtomicU64::new(0),
            allocations: AtomicU64::new(0),
            graphs: AtomicU64::new(0),
            failing_allocation: AtomicU64::new(0),
            failing_graph: AtomicU64::new(0),
        }
    }

    /// Total less what others pretend to take.
    fn limit(&self) -> u64 {
        self.settings.total.saturating_sub(self.taken())
    }

    pub(super) fn grown(&self) -> u64 {
        self.grown.load(Ordering::Acquire)
    }

    pub(super) fn free(&self) -> u64 {
        let held = self.shared_used().unwrap_or_else(|| self.used().saturating_add(self.grown()));
        self.limit().saturating_sub(held)
    }

    /// What all processes have of a card that they share; all there is where that cannot be read.
    pub(super) fn shared_used(&self) -> Option<u64> {
        let shared = self.shared.as_ref()?;
        Some(told(shared.used()).unwrap_or(u64::MAX))
    }

    /// The most that all processes had at once; 0 where that cannot be read.
    pub(super) fn shared_peak(&self) -> Option<u64> {
        let shared = self.shared.as_ref()?;
        Some(told(shared.peak()).unwrap_or_default())
    }

    pub(super) fn used(&self) -> u64 {
        self.used.load(Ordering::Acquire)
    }

    pub(super) fn peak(&self) -> u64 {
        self.peak.load(Ordering::Acquire)
    }

    pub(super) fn taken(&self) -> u64 {
        self.taken.load(Ordering::Acquire)
    }

    pub(super) fn set_taken(&self, bytes: u64) {
        self.taken.store(bytes, Ordering::Release);
    }

    pub(super) fn buffers(&self) -> u64 {
        self.buffers.load(Ordering::Acquire)
    }

    pub(super) fn allocations(&self) -> u64 {
        self.allocations.load(Ordering::Acquire)
    }

    pub(super) fn graphs(&self) -> u64 {
        self.graphs.load(Ordering::Acquire)
    }

    pub(super) fn fail_allocation(&self, n: u64) {
        self.failing_allocation.store(n, Ordering::Release);
    }

    pub(super) fn fail_graph(&self, n: u64) {
        self.failing_graph.store(n, Ordering::Release);
    }

    /// Takes `bytes` for a buffer. False when they do not fit, or when this allocation was told to fail.
    pub(super) fn take(&self, bytes: u64) -> bool {
        self.allocations.fetch_add(1, Ordering::AcqRel);
        if reached(&self.failing_allocation) || bytes > self.settings.rules.largest_buffer() {
            return false;
        }
        if !self.share(bytes) {
            return false;
        }
        let capacity = self.limit().saturating_sub(self.grown());
        let before = self.used.fetch_update(Ordering::AcqRel, Ordering::Acquire, |used| {
            used.checked_add(bytes).filter(|sum| *sum <= capacity)
        });
        let Ok(before) = before else {
            self.unshare(bytes);
            return false;
        };
        self.peak.fetch_max(before + bytes, Ordering::AcqRel);
        self.buffers.fetch_add(1, Ordering::AcqRel);
        true
    }

    /// Gives a buffer's bytes back.
    pub(super) fn give_back(&self, bytes: u64) {
        self.used.fetch_sub(bytes, Ordering::AcqRel);
        self.buffers.fetch_sub(1, Ordering::AcqRel);
        self.unshare(bytes);
    }

    /// Takes `bytes` of what all processes share, if they do. False when they do not fit there, or that cannot be told.
    fn share(&self, bytes: u64) -> bool {
        let limit = self.limit();
        let taken = |shared: &Shared| told(shared.take(bytes, limit)) == Some(true);
        self.shared.as_ref().is_none_or(taken)
    }

    fn unshare(&self, bytes: u64) {
        if let Some(shared) = &self.shared {
            let _ = told(shared.give_back(bytes));
        }
    }

    /// Counts a computation. True when it was told to fail, or finds no room for what computing takes.
    pub(super) fn graph_fails(&self) -> bool {
        self.graphs.fetch_add(1, Ordering::AcqRel);
        reached(&self.failing_graph) || !self.grow()
    }

    /// Takes what computing takes, unless it has that. False when it does not fit.
    fn grow(&self) -> bool {
        let missing = self.settings.growth.saturating_sub(self.grown());
        if missing == 0 {
            return true;
        }
        let fits = match &self.shared {
            Some(_) => self.share(missing),
            None => missing <= self.free(),
        };
        if fits {
            self.grown.store(self.settings.growth, Ordering::Release);
        }
        fits
    }
}

/// The answer, or why there is none in the log.
fn told<T>(answer: io::Result<T>) -> Option<T> {
    answer.inspect_err(|error| log_error(&format!("ggml_backend_sim: the shared file: {error}"))).ok()
}

/// Counts down; true for the one that was waited for.
fn reached(countdown: &AtomicU64) -> bool {
    countdown.fetch_update(Ordering::AcqRel, Ordering::Acquire, |n| n.checked_sub(1)) == Ok(1)
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
            host_buffer: false,
            offload_from: 32,
            growth: 30,
        };
        Card::new(settings, shared)
    }

    #[test]
    fn what_does_not_fit_is_refused_and_what_is_given_back_fits_again() {
        let card = card(100);
        assert!(card.take(60));
        assert!(!card.take(41));
        assert!(card.take(40));
        card.give_back(60);
        assert_eq!((card.used(), card.peak(), card.free()), (40, 100, 60));
        assert_eq!((card.buffers(), card.allocations()), (1, 3));
    }

    #[test]
    fn the_first_computation_takes_what_computing_takes_and_keeps_it() {
        let card = card(100);
        assert!(card.take(60));
        assert!(!card.graph_fails() && !card.graph_fails());
        assert_eq!((card.grown(), card.used(), card.free()), (30, 60, 10));
        assert!(!card.take(11));
        let full = self::card(80);
        assert!(full.take(60));
        assert!(full.graph_fails());
        assert_eq!((full.grown(), full.free()), (0, 20));
    }

    #[test]
    fn cards_of_one_file_have_one_memory() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("card");
        let [one, two] = [(); 2].map(|()| sharing(100, Some(Shared::join(&path).unwrap())));
        assert!(one.take(60));
        assert_eq!((one.used(), two.used()), (60, 0));
        assert_eq!((one.free(), two.free()), (40, 40));
        assert!(!two.take(41) && two.take(5));
        // Computing needs 30, ballast leaves 25.
        two.set_taken(10);
        assert!(two.graph_fails());
        two.set_taken(0);
        assert!(!two.graph_fails());
        assert!(one.graph_fails());
        assert_eq!((one.shared_used(), one.free()), (Some(95), 5));
        one.give_back(60);
        assert_eq!((two.shared_used(), two.shared_peak()), (Some(35), Some(95)));
        drop(two);
        assert_eq!(one.shared_used(), Some(0));
    }

    #[test]
    fn ballast_over_what_is_free_leaves_nothing_and_takes_nothing_away() {
        let card = card(100);
        assert!(card.take(60));
        card.set_taken(u64::MAX);
        assert_eq!((card.used(), card.free()), (60, 0));
        assert!(!card.take(1));
        card.set_taken(0);
        assert!(card.take(40));
    }

    #[test]
    fn the_allocation_told_to_fail_is_the_only_one() {
        let card = card(100);
        card.fail_allocation(2);
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
