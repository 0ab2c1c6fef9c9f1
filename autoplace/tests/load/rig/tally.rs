//! How far the estimate differs from llama.cpp, by architecture and by kind of memory.

use std::collections::BTreeMap;
use std::fmt;

use autoplace::machine::mib;
use autoplace::memory::{Estimate, Footprints};

use super::none_failed;

/// The median of the differences, and the largest of them.
fn median_and_worst(differences: &[i64]) -> (i64, i64) {
    let mut sorted = differences.to_vec();
    sorted.sort_unstable_by_key(|error| error.unsigned_abs());
    (sorted[sorted.len() / 2], sorted[sorted.len() - 1])
}

/// The results for one architecture.
#[derive(Default)]
struct Seen {
    models: usize,
    /// For each device, our bytes minus those of llama.cpp: for weights, for the cache, and for compute buffers.
    differences: [Vec<i64>; 3],
    /// The number of devices on which the total differs by less than 3 % or 32 MiB.
    close: usize,
}

/// All results, and all failures. `Display` writes them as the table in `docs/conformance.md`.
#[derive(Default)]
pub(crate) struct Tally {
    seen: BTreeMap<String, Seen>,
    pub(crate) faults: Vec<String>,
}

impl Tally {
    pub(crate) fn model(&mut self, architecture: &str) {
        self.seen.entry(architecture.to_owned()).or_default().models += 1;
    }

    /// Compares our estimate for a context with llama.cpp's count, on each device. The caches must be equal. The
    /// weights may differ by up to `slack` bytes, in either direction; if the estimate is not exact, by 32 bytes more
    /// for each GiB of weights. The compute buffer must not be larger than the maximum that the estimate states.
    pub(crate) fn hold(
        &mut self,
        arch: &str,
        case: &str,
        estimate: &Estimate,
        layers: u32,
        theirs: &Footprints,
        slack: u64,
    ) {
        let (mut ours, unsure) = estimate.with_uncertainty(&estimate.assignment(layers));
        // llama.cpp's count does not include the buffer for logits.
        ours.host.compute -= ours.output;
        let seen = self.seen.entry(arch.to_owned()).or_default();
        if !estimate.is_known() {
            self.faults.push(format!("{case}: weights of no known place"));
        }
        let gpus = ours.gpus.iter().zip(&theirs.gpus).zip(&unsure.gpus);
        for ((ours, theirs), unsure) in gpus.chain([((&ours.host, &theirs.host), &unsure.host)]) {
            let all = [(ours.weights, theirs.weights), (ours.kv, theirs.kv), (ours.compute, theirs.compute)];
            for (differences, (ours, theirs)) in seen.differences.iter_mut().zip(all) {
                differences.push(ours.cast_signed() - theirs.cast_signed());
            }
            let (total, true_total) = (ours.total(), theirs.total());
            seen.close += usize::from(total.abs_diff(true_total) <= mib(32).max(true_total * 3 / 100));
            // There are several pinned buffers of a GiB each. Their number depends on the order of the tensors.
            let slack = slack + if estimate.is_exact() { 0 } else { 32 * (theirs.weights >> 30) };
            let fault = if ours.weights.abs_diff(theirs.weights) > slack {
                "weights differ"
            } else if ours.kv != theirs.kv {
                "caches differ"
            } else if theirs.compute > ours.compute.saturating_add(*unsure) {
                "the compute buffer is too low"
            } else {
                continue;
            };
            self.faults.push(format!("{case}: {fault}: {ours:?} + {unsure}, llama.cpp: {theirs:?}"));
        }
    }

    /// Whether there was a comparison for this architecture.
    pub(crate) fn has(&self, architecture: &str) -> bool {
        self.seen.get(architecture).is_some_and(|seen| !seen.differences[0].is_empty())
    }

    pub(crate) fn devices(&self) -> usize {
        self.seen.values().map(|seen| seen.differences[0].len()).sum()
    }

    /// Fails if any comparison has failed. Also fails unless the total differs by less than 3 % or 32 MiB on at least
    /// 95 of 100 devices.
    pub(crate) fn check(&self) {
        println!("{self}");
        let (close, devices) = (self.seen.values().map(|seen| seen.close).sum::<usize>(), self.devices());
        none_failed(&self.faults, devices);
        assert!(close * 100 >= devices * 95, "{close} of {devices} are close");
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "| architecture | models | devices | weights, bytes | cache, bytes | compute, MiB \
             | within 3 % or 32 MiB |\n\
             |---|--:|--:|--:|--:|--:|--:|"
        )?;
        let mut all = Seen::default();
        for (architecture, seen) in &self.seen {
            row(f, architecture, seen)?;
            all.models += seen.models;
            all.close += seen.close;
            for (all, one) in all.differences.iter_mut().zip(&seen.differences) {
                all.extend(one);
            }
        }
        row(f, "all", &all)
    }
}

fn row(f: &mut fmt::Formatter<'_>, name: &str, seen: &Seen) -> fmt::Result {
    let (models, devices, close) = (seen.models, seen.differences[0].len(), seen.close);
    if devices == 0 {
        return writeln!(f, "| {name} | {models} | 0 | - | - | - | 0 |");
    }
    let [weights, kv, compute] = seen.differences.each_ref().map(|bytes| median_and_worst(bytes));
    #[allow(clippy::cast_precision_loss)] // a table of MiB
    let mib = |bytes: i64| bytes as f64 / f64::from(1 << 20);
    writeln!(
        f,
        "| {name} | {models} | {devices} | {} / {} | {} / {} | {:+.1} / {:+.1} | {close} |",
        weights.0,
        weights.1,
        kv.0,
        kv.1,
        mib(compute.0),
        mib(compute.1),
    )
}
