//! The host while a placement is tried: the memory that this process can still take, what of it is in swap, and how
//! much its threads had to wait.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use autoplace::machine::{ConditionsWatch, CpuLimit, Host, HostLimit, HostSample, RateConditions};

/// The observations of the host during a trial.
#[derive(Debug, Clone, Default)]
pub(super) struct HostSeen {
    /// The conditions of each run.
    pub(super) each: Vec<RateConditions>,
    /// Percent of the ten seconds before the end of each run in which some thread waited for a core.
    pub(super) pressure: Vec<Option<f32>>,
    /// Bytes that this process could take before the first run, and the least after any.
    pub(super) available: Option<[u64; 2]>,
    /// The limit that decides `available`.
    pub(super) limit: HostLimit,
    /// The limit on the processors' time.
    pub(super) cpu_limit: Option<CpuLimit>,
    /// The most bytes of this process that were in swap.
    pub(super) swapped: Option<u64>,
}

/// Looks at the host that `{root}/proc` and `{root}/sys` describe.
#[derive(Debug)]
pub(super) struct HostWatch {
    root: PathBuf,
    run: ConditionsWatch,
    seen: HostSeen,
}

impl HostWatch {
    pub(super) fn begin(root: &Path) -> Self {
        let mut watch =
            Self { root: root.to_owned(), run: ConditionsWatch::begin_under(root), seen: HostSeen::default() };
        watch.look();
        watch
    }

    /// A run begins.
    pub(super) fn run_begins(&mut self) {
        self.run = ConditionsWatch::begin_under(&self.root);
    }

    /// It has ended, after so much time.
    pub(super) fn run_ends(&mut self, took: Duration) {
        self.seen.each.push(self.run.after(took));
        self.seen.pressure.push(HostSample::read(&self.root.join("proc/pressure")).cpu_pressure);
        self.look();
    }

    pub(super) fn seen(self) -> HostSeen {
        self.seen
    }

    fn look(&mut self) {
        let host = host(&self.root);
        if host.total > 0 {
            let [_, least] = self.seen.available.get_or_insert([host.available; 2]);
            *least = host.available.min(*least);
            if host.available == *least {
                self.seen.limit = host.limit;
            }
        }
        // A quota that changes while it runs: the tightest counts.
        let tighter = |limit: &CpuLimit| self.seen.cpu_limit.as_ref().is_none_or(|known| limit.cpus() < known.cpus());
        if let Some(limit) = host.cpu_limit.filter(tighter) {
            self.seen.cpu_limit = Some(limit);
        }
        self.seen.swapped = self.seen.swapped.max(in_swap(&self.root));
    }
}

fn host(root: &Path) -> Host {
    if cfg!(target_os = "linux") || root != Path::new("/") { Host::detect_under(root).0 } else { Host::detect().0 }
}

/// Bytes of this process that are in swap (proc_pid_status(5): `VmSwap:      12 kB`).
fn in_swap(root: &Path) -> Option<u64> {
    let text = fs::read_to_string(root.join("proc/self/status")).ok()?;
    let kib = text.lines().find_map(|line| line.strip_prefix("VmSwap:")?.trim().strip_suffix("kB"))?;
    Some(kib.trim().parse::<u64>().ok()?.saturating_mul(1024))
}
