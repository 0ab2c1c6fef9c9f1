//! How far estimates are from llama.cpp's answers, by architecture and by what the bytes are for.

use std::collections::BTreeMap;
use std::fmt;

use autoplace::memory::Footprint;

const MIB: u64 = 1 << 20;

/// One device of one placement: what we say it takes, and what llama.cpp says.
pub(crate) struct Pair {
    pub(crate) ours: Footprint,
    pub(crate) theirs: Footprint,
    /// Bytes by which the weights may differ.
    pub(crate) slack: u64,
    /// Bytes by which the estimate says that its compute buffer may be too low.
    pub(crate) uncertainty: u64,
}

impl Pair {
    /// What is wrong with our numbers, where the law is known: weights and cache are equal to the byte, and the compute
    /// buffer is no larger than the estimate says that it is at most.
    pub(crate) fn fault(&self) -> Option<&'static str> {
        let (ours, theirs) = (&self.ours, &self.theirs);
        if ours.weights.abs_diff(theirs.weights) > self.slack {
            return Some("weights differ");
        }
        if ours.kv != theirs.kv {
            return Some("caches differ");
        }
        let most = ours.compute.saturating_add(self.uncertainty);
        (theirs.compute > most).then_some("the compute buffer is too low")
    }

    /// Whether the total is within 3 % or 32 MiB.
    fn is_close(&self) -> bool {
        let (ours, theirs) = (self.ours.total(), self.theirs.total());
        ours.abs_diff(theirs) <= (32 * MIB).max(theirs * 3 / 100)
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
    compute: Errors,
    /// Devices whose total is within 3 % or 32 MiB.
    close: usize,
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
        seen.compute.add(ours.compute, theirs.compute);
        seen.close += usize::from(pair.is_close());
    }

    /// Totals are within 3 % or 32 MiB in 95 of 100 devices.
    pub(crate) fn check(&self) {
        let sum = |of: fn(&Seen) -> usize| self.0.values().map(of).sum::<usize>();
        let (close, devices) = (sum(|seen| seen.close), sum(|seen| seen.devices as usize));
        assert!(
            close * 100 >= devices * 95,
            "{close} of {devices} are close"
        );
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "| architecture | models | devices | weights, bytes | cache, bytes | compute, MiB | within 3 % or 32 MiB |\n\
             |---|--:|--:|--:|--:|--:|--:|"
        )?;
        let mut all = Seen::default();
        for (architecture, seen) in &self.0 {
            row(f, architecture, seen)?;
            all.models += seen.models;
            all.devices += seen.devices;
            all.close += seen.close;
            for (all, one) in [
                (&mut all.weights, &seen.weights),
                (&mut all.kv, &seen.kv),
                (&mut all.compute, &seen.compute),
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
        "| {name} | {} | {} | {} | {} | {} | {} |",
        seen.models,
        seen.devices,
        Shown(&seen.weights, true),
        Shown(&seen.kv, true),
        Shown(&seen.compute, false),
        seen.close,
    )
}
