//! A limit on processor time.

use std::cmp::Ordering;

use serde::{Deserialize, Serialize};

/// The processor time that all threads of a control group together get (Linux: `cpu.max`, `cpu.cfs_quota_us`).
///
/// When the quota is used up, all threads stop until the period ends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("processor time limited to {} by {file}", Cores(self.cpus()))]
#[non_exhaustive]
pub struct CpuLimit {
    /// The file that contains the limit.
    pub file: String,
    /// Microseconds in each period, over all processors.
    pub quota_us: u64,
    /// Microseconds of a period; at least 1.
    pub period_us: u64,
}

impl CpuLimit {
    /// A limit of `quota_us` microseconds in each period, read from this file. A period of 0 counts as 1.
    pub fn new(file: impl Into<String>, quota_us: u64, period_us: u64) -> Self {
        Self { file: file.into(), quota_us, period_us: period_us.max(1) }
    }

    /// The number of processors that the limit keeps busy: 0.5, 1.5.
    pub fn cpus(&self) -> f64 {
        self.quota_us as f64 / self.period_us.max(1) as f64
    }

    /// The number of threads that the limit keeps busy, at least 1. The last thread may be busy for only a part of the
    /// time.
    pub fn threads(&self) -> u32 {
        u32::try_from(self.quota_us.div_ceil(self.period_us.max(1))).unwrap_or(u32::MAX).max(1)
    }

    /// Whether this limit allows at most as much time as another.
    pub(super) fn is_at_most(&self, other: &Self) -> bool {
        let product = |one: u64, two: u64| u128::from(one) * u128::from(two);
        product(self.quota_us, other.period_us).cmp(&product(other.quota_us, self.period_us)) != Ordering::Greater
    }
}

/// A number of cores, displayed as `0.5 cores` or `1 core`.
struct Cores(f64);

impl std::fmt::Display for Cores {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let text = format!("{:.2}", self.0);
        let text = text.trim_end_matches('0').trim_end_matches('.');
        write!(f, "{text} core{}", if text == "1" { "" } else { "s" })
    }
}

#[cfg(test)]
mod tests {
    use super::CpuLimit;

    #[test]
    fn a_limit_says_how_many_cores_it_leaves_and_keeps_at_least_one_thread_busy() {
        for (quota, period, threads, text) in [
            (50_000, 100_000, 1, "0.5 cores"),
            (150_000, 100_000, 2, "1.5 cores"),
            (100_000, 100_000, 1, "1 core"),
            (200_000, 100_000, 2, "2 cores"),
            (1_000, 1_000_000, 1, "0 cores"),
            (333_333, 100_000, 4, "3.33 cores"),
            (u64::MAX, 1, u32::MAX, "18446744073709551616 cores"),
        ] {
            let limit = CpuLimit::new("cpu.max", quota, period);
            assert_eq!(limit.threads(), threads, "{limit}");
            assert_eq!(limit.to_string(), format!("processor time limited to {text} by cpu.max"));
        }
        assert!(CpuLimit::new("", 5, 10).is_at_most(&CpuLimit::new("", 50, 100)));
        assert!(!CpuLimit::new("", u64::MAX, 1).is_at_most(&CpuLimit::new("", u64::MAX, 2)));
    }
}
