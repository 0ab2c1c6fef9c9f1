//! How far estimates are from llama.cpp's answers, by architecture and by what the bytes are for.

use std::collections::BTreeMap;
use std::fmt;

use autoplace::memory::Footprint;

const MIB: u64 = 1 << 20;

/// One device of one placement: what we say it takes, and what llama.cpp says.
pub(crate) struct Pair {
    pub(crate) ours: Footprint,
    pub(crate) theirs: Footprint,
    /// Whether the estimate says that its compute buffers are close here.
    pub(crate) claimed: bool,
    /// Bytes by which the weights may differ.
    pub(crate) slack: u64,
    /// Bytes by which the estimate says that its compute buffer may be too low.
    pub(crate) uncertainty: u64,
}

impl Pair {
    /// What is wrong with our numbers, where the law is known: weights and cache are equal to the byte. Where the compute
    /// buffer is claimed to be close, it is within 5 % or 8 MiB, and the total within 1 % or 16 MiB.
    pub(crate) fn fault(&self) -> Option<&'static str> {
        let within = |ours: u64, theirs: u64, share: u64, floor: u64| {
            ours.abs_diff(theirs) <= floor.max(theirs / share)
        };
        let (ours, theirs) = (&self.ours, &self.theirs);
        if ours.weights.abs_diff(theirs.weights) > self.slack {
            return Some("weights differ");
        }
        if ours.kv != theirs.kv {
            return Some("caches differ");
        }
        if !self.claimed {
            return None;
        }
        if !within(ours.compute, theirs.compute, 20, 8 * MIB) {
            return Some("compute buffers differ");
        }
        (!within(ours.total(), theirs.total(), 100, 16 * MIB)).then_some("totals differ")
    }
}

/// Differences of one quantity: ours less theirs, in bytes.
#[derive(Default)]
struct Errors(Vec<i64>);

impl Errors {
    fn add(&mut self, ours: u64, theirs: u64) {
        let difference = i64::try_from(i128::from(ours) - i128::from(theirs));
        self.0.push(difference.unwrap());
    }
}

/// The median and the worst, by size: bytes where it is to be exact, else MiB.
struct Shown<'a>(&'a Errors, bool);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(errors, in_bytes) = *self;
        let mut sorted = errors.0.clone();
        sorted.sort_unstable_by_key(|error| error.unsigned_abs());
        let (Some(median), Some(worst)) = (sorted.get(sorted.len() / 2), sorted.last()) else {
            return f.write_str("-");
        };
        if in_bytes {
            return write!(f, "{median} / {worst}");
        }
        #[allow(clippy::cast_precision_loss)] // a table of MiB
        let mib = |bytes: i64| bytes as f64 / MIB as f64;
        write!(f, "{:+.1} / {:+.1}", mib(*median), mib(*worst))
    }
}

/// What was seen of one architecture.
#[derive(Default)]
struct Seen {
    models: u32,
    devices: u32,
    weights: Errors,
    kv: Errors,
    claimed: Errors,
    other: Errors,
    /// Compute buffers that are larger than what the estimate says of them at most.
    above: usize,
    totals: Errors,
}

/// All of them; prints as the table of `docs/conformance.md`.
#[derive(Default)]
pub(crate) struct Tally(BTreeMap<String, Seen>);

impl Tally {
    pub(crate) fn model(&mut self, architecture: &str) {
        self.0.entry(architecture.to_owned()).or_default().models += 1;
    }

    pub(crate) fn add(&mut self, architecture: &str, pair: &Pair) {
        let seen = self.0.entry(architecture.to_owned()).or_default();
        let (ours, theirs) = (&pair.ours, &pair.theirs);
        seen.devices += 1;
        seen.weights.add(ours.weights, theirs.weights);
        seen.kv.add(ours.kv, theirs.kv);
        if pair.claimed {
            seen.claimed.add(ours.compute, theirs.compute);
            seen.totals.add(ours.total(), theirs.total());
        } else {
            seen.other.add(ours.compute, theirs.compute);
            let most = ours.compute.saturating_add(pair.uncertainty);
            seen.above += usize::from(theirs.compute > most);
        }
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "| architecture | models | devices | weights, bytes | cache, bytes | claimed | their compute, MiB | \
             their totals, MiB | other compute, MiB | of these, above our most |\n|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|"
        )?;
        let mut all = Seen::default();
        for (architecture, seen) in &self.0 {
            row(f, architecture, seen)?;
            all.models += seen.models;
            all.devices += seen.devices;
            all.above += seen.above;
            for (all, one) in [
                (&mut all.weights, &seen.weights),
                (&mut all.kv, &seen.kv),
                (&mut all.claimed, &seen.claimed),
                (&mut all.totals, &seen.totals),
                (&mut all.other, &seen.other),
            ] {
                all.0.extend(&one.0);
            }
        }
        row(f, "all", &all)
    }
}

fn row(f: &mut fmt::Formatter<'_>, name: &str, seen: &Seen) -> fmt::Result {
    writeln!(
        f,
        "| {name} | {} | {} | {} | {} | {} | {} | {} | {} | {} |",
        seen.models,
        seen.devices,
        Shown(&seen.weights, true),
        Shown(&seen.kv, true),
        seen.claimed.0.len(),
        Shown(&seen.claimed, false),
        Shown(&seen.totals, false),
        Shown(&seen.other, false),
        seen.above,
    )
}
