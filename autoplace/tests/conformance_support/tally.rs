//! How far estimates are from llama.cpp's answers, by architecture.

use std::collections::BTreeMap;
use std::fmt;

use autoplace::memory::{Estimate, Footprint};

const MIB: u64 = 1 << 20;

/// One device of one placement: what we say it takes, and what llama.cpp says.
pub(crate) struct Pair {
    pub(crate) ours: Footprint,
    pub(crate) theirs: Footprint,
    /// Whether a GPU may compute with weights that the host keeps.
    pub(crate) borrows: bool,
    /// Whether the estimate says that its compute buffers are close here.
    pub(crate) claimed: bool,
}

impl Pair {
    fn exact(&self) -> bool {
        (self.ours.weights, self.ours.kv) == (self.theirs.weights, self.theirs.kv)
    }

    /// Whether the totals are within 1 % or 16 MiB.
    fn close(&self) -> bool {
        let bar = (16 * MIB).max(self.theirs.total() / 100);
        self.ours.total().abs_diff(self.theirs.total()) <= bar
    }

    /// By how many MiB our compute buffer is too large.
    fn excess(&self) -> f64 {
        #[allow(clippy::cast_precision_loss)] // a table of MiB
        let mib = |bytes: u64| bytes as f64 / MIB as f64;
        mib(self.ours.compute) - mib(self.theirs.compute)
    }

    /// What is wrong with our numbers, by what the estimate claims.
    pub(crate) fn fault(&self, estimate: &Estimate, n_gpu_layers: u32) -> Option<&'static str> {
        if !estimate.is_known() {
            return None;
        }
        if self.ours.weights != self.theirs.weights {
            return Some("weights differ");
        }
        if self.ours.kv != self.theirs.kv {
            return Some("caches differ");
        }
        // The planner keeps the uncertainty free.
        let unsure = estimate.uncertainty(n_gpu_layers, &self.ours);
        let bar = (8 * MIB).max(self.theirs.compute / 20);
        if self.ours.compute + unsure + bar < self.theirs.compute {
            return Some("the compute buffer is too small");
        }
        (self.claimed && !self.close()).then_some("the totals differ")
    }
}

/// What was seen of one architecture.
#[derive(Default)]
pub(crate) struct Seen {
    models: u32,
    known: bool,
    wrong: usize,
    all: usize,
    close: usize,
    claimed: Vec<f64>,
    whole: Vec<f64>,
    borrowed: Vec<f64>,
}

impl Seen {
    pub(crate) fn model(&mut self, known: bool) {
        self.models += 1;
        self.known |= known;
    }

    pub(crate) fn add(&mut self, pair: &Pair) {
        self.all += 1;
        self.wrong += usize::from(!pair.exact());
        self.close += usize::from(pair.close());
        let excess = match (pair.claimed, pair.borrows) {
            (true, _) => &mut self.claimed,
            (false, true) => &mut self.borrowed,
            (false, false) => &mut self.whole,
        };
        excess.push(pair.excess());
    }
}

/// All of them; prints as the table of `docs/conformance.md`.
#[derive(Default)]
pub(crate) struct Tally(pub(crate) BTreeMap<String, Seen>);

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "| architecture | models | devices | weights or cache differ | compute, claimed close | compute, not borrowing | \
             compute, borrowing | totals close |\n|---|--:|--:|--:|--:|--:|--:|--:|"
        )?;
        for (architecture, seen) in &self.0 {
            let law = if seen.known { "" } else { " (unknown)" };
            writeln!(
                f,
                "| {architecture}{law} | {} | {} | {} | {} | {} | {} | {} % |",
                seen.models,
                seen.all,
                seen.wrong,
                spread(&seen.claimed),
                spread(&seen.whole),
                spread(&seen.borrowed),
                100 * seen.close / seen.all.max(1),
            )?;
        }
        Ok(())
    }
}

/// The lowest, the median and the highest.
fn spread(excess: &[f64]) -> String {
    if excess.is_empty() {
        return "-".to_owned();
    }
    let mut sorted = excess.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let at = |index: usize| sorted.get(index).copied().unwrap_or(f64::NAN);
    let last = sorted.len().saturating_sub(1);
    format!("{:+.1} / {:+.1} / {:+.1}", at(0), at(last / 2), at(last))
}
