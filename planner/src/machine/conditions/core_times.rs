//! The time of the cores, and how much of it other processes used. In: two files of `/proc`. Out: percentages, and a
//! number of free cores.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::machine::tree::{Notes, Tree};

/// The number of ticks of `/proc/stat` in a second (`USER_HZ`, which is 100 on every Linux architecture).
const TICKS_PER_SECOND: u64 = 100;
/// The time of other processes is counted in whole cores. A remainder of at least this percentage counts as a core too.
const MIN_TAKEN: u32 = 80;

/// Running totals, in ticks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct CoreTimes {
    /// The time that all processes used.
    busy: Option<u64>,
    /// The time that the hypervisor gave to other machines.
    steal: Option<u64>,
    /// The time that this process used.
    own: Option<u64>,
    /// The number of logical processors.
    pub(super) cores: u32,
}

impl CoreTimes {
    pub(super) fn read(tree: Tree<'_>) -> Self {
        let text = |file: &str| tree.read(file, &mut Notes::default());
        let stat = text("/proc/stat").unwrap_or_default();
        // proc_stat(5): user nice system idle iowait irq softirq steal. Guest time is included in user time.
        let ticks: Option<Vec<u64>> = stat.lines().next().and_then(|line| {
            let words = line.strip_prefix("cpu ")?.split_whitespace();
            words.map(|word| word.parse().ok()).collect()
        });
        let sum = |of: &[usize]| {
            let ticks = ticks.as_ref()?;
            of.iter().map(|&n| ticks.get(n).copied()).sum::<Option<u64>>()
        };
        let is_core = |line: &&str| line.starts_with("cpu") && line.as_bytes().get(3).is_some_and(u8::is_ascii_digit);
        // proc_pid_stat(5): utime and stime are the 12th and 13th field after the name, which may contain anything.
        let own = text("/proc/self/stat").and_then(|text| {
            let mut fields = text.rsplit_once(')')?.1.split_whitespace().skip(11);
            Some(fields.next()?.parse::<u64>().ok()? + fields.next()?.parse::<u64>().ok()?)
        });
        let cores = u32::try_from(stat.lines().filter(is_core).count()).unwrap_or(u32::MAX);
        Self { busy: sum(&[0, 1, 2, 5, 6]), steal: sum(&[7]), own, cores }
    }

    /// The time that other processes used since `first`, which was read `took` ago: 100 is one core.
    pub(super) fn others_since(self, first: Self, took: Duration) -> Option<u32> {
        let (all, own) = (gone(first.busy, self.busy)?, gone(first.own, self.own)?);
        Some(percentage(micros(all.saturating_sub(own)), took))
    }

    /// The share of the cores' time that the hypervisor gave to other machines since `first`, in percent.
    pub(super) fn steal_since(self, first: Self, took: Duration) -> Option<u32> {
        Some(percentage(micros(gone(first.steal, self.steal)?), took) / self.cores.max(1))
    }
}

/// By how much a counter has grown.
pub(super) fn gone(first: Option<u64>, last: Option<u64>) -> Option<u64> {
    Some(last?.saturating_sub(first?))
}

/// The percentage of the elapsed time.
pub(super) fn percentage(micros: u64, elapsed: Duration) -> u32 {
    let elapsed = u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX).max(1);
    u32::try_from(micros.saturating_mul(100) / elapsed).unwrap_or(u32::MAX)
}

/// Microseconds of so many ticks.
const fn micros(ticks: u64) -> u64 {
    ticks.saturating_mul(1_000_000 / TICKS_PER_SECOND)
}

/// Watches how many cores other processes leave free.
#[derive(Debug)]
pub struct FreeCoresWatch {
    root: PathBuf,
    last: CoreTimes,
}

impl FreeCoresWatch {
    /// Starts watching this computer.
    pub fn begin() -> Self {
        Self::begin_under(Path::new("/"))
    }

    /// Starts watching the computer that `{root}/proc` describes.
    pub fn begin_under(root: &Path) -> Self {
        Self { root: root.to_owned(), last: CoreTimes::read(Tree(root)) }
    }

    /// The number of this computer's logical processors that other processes left free, if `took` passed since the
    /// start or since the last call. The time that other processes used is counted in whole processors; a remainder of
    /// 80 % or more counts as one too. `None` if the system does not report it.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::{fs, time::Duration};
    ///
    /// use autoplace_planner::machine::FreeCoresWatch;
    ///
    /// let root = tempfile::tempdir()?;
    /// fs::create_dir_all(root.path().join("proc/self"))?;
    /// // 100 ticks are a second. The process `7` has used two seconds of two processors.
    /// let write = |busy: u32| fs::write(root.path().join("proc/stat"), format!("cpu {busy} 0 0 0 0 0 0 0\ncpu0\ncpu1\n"));
    /// fs::write(root.path().join("proc/self/stat"), "7 (name) R 0 0 0 0 0 0 0 0 0 0 200 0")?;
    /// write(1000)?;
    /// let mut watch = FreeCoresWatch::begin_under(root.path());
    /// // Another process uses one of them for a second, and then none.
    /// write(1100)?;
    /// assert_eq!(watch.free_cores(Duration::from_secs(1)), Some(1));
    /// assert_eq!(watch.free_cores(Duration::from_secs(1)), Some(2));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn free_cores(&mut self, took: Duration) -> Option<u32> {
        let first = std::mem::replace(&mut self.last, CoreTimes::read(Tree(&self.root)));
        let used = self.last.others_since(first, took)?.saturating_add(100 - MIN_TAKEN) / 100;
        Some(self.last.cores.saturating_sub(used))
    }
}
