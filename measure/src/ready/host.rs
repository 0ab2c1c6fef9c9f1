//! The host during a trial: the memory that this process can take, its bytes in swap, and the waiting time of its
//! threads.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use autoplace::machine::{ConditionsWatch, CpuLimit, Host, HostLimit, HostSample, RateConditions};

/// The observations of the host during a trial.
#[derive(Debug, Clone, Default)]
pub(super) struct HostSeen {
    /// The conditions of each run.
    pub(super) each: Vec<RateConditions>,
    /// For each run, the percentage of the ten seconds before its end in which some thread waited for a core.
    pub(super) pressure: Vec<Option<f32>>,
    /// Bytes that this process could take before the first run, and the minimum of these bytes after the runs.
    pub(super) available: Option<[u64; 2]>,
    /// The limit that determines `available`.
    pub(super) limit: HostLimit,
    /// The limit on processor time.
    pub(super) cpu_limit: Option<CpuLimit>,
    /// The largest number of bytes of this process in swap.
    pub(super) swapped: Option<u64>,
}

/// Watches the host that `{root}/proc` and `{root}/sys` describe.
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

    /// Records the start of a run.
    pub(super) fn run_begins(&mut self) {
        self.run = ConditionsWatch::begin_under(&self.root);
    }

    /// Records the end of a run that lasted `took`.
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
        // If a quota changes during the trial, the tightest value counts.
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

/// Bytes of this process in swap (proc_pid_status(5): `VmSwap:      12 kB`).
fn in_swap(root: &Path) -> Option<u64> {
    let text = fs::read_to_string(root.join("proc/self/status")).ok()?;
    let kib = text.lines().find_map(|line| line.strip_prefix("VmSwap:")?.trim().strip_suffix("kB"))?;
    Some(kib.trim().parse::<u64>().ok()?.saturating_mul(1024))
}
