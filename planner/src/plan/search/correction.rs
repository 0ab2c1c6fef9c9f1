//! Corrections of the estimate by probes. In: footprints from probes. Out: corrections for the estimates of other
//! paths. Each correction has its slack: the bytes by which the correction may still be wrong.

use std::collections::BTreeMap;

use crate::machine::mib;

use super::Placements;
use super::path::Path;
use super::setting_costs::host_role;

/// A path is probed even if, by the estimate, a GPU lacks up to this many bytes. In the tests of this search, a
/// correction that comes from another role is never wrong by more bytes than this.
pub(super) const MAX_SLACK_BYTES: u64 = mib(128);

/// After each probe of a run, the slack of its kind is divided by this number.
const SLACK_DIVISOR: u64 = 4;

/// The properties of a run of layers on a GPU that determine its compute buffer: the size of the graph, the run's role,
/// whether the graph has copies, and the GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct RunKind {
    setting: usize,
    role: usize,
    is_pipelined: bool,
    gpu: usize,
}

/// The properties of the host's part of a path that determine its compute buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct HostKind {
    setting: usize,
    role: usize,
    is_pipelined: bool,
}

/// The correction of the runs of one kind.
#[derive(Debug, Clone, Copy)]
struct Known {
    /// Bytes that are needed beyond the estimate; negative if fewer bytes than estimated are needed.
    beyond: i64,
    /// A path with another run of this kind is probed even if the run lacks up to this many bytes.
    slack: u64,
}

/// The corrections by kind.
#[derive(Debug, Default)]
pub(super) struct Corrections {
    runs: BTreeMap<RunKind, Known>,
    hosts: BTreeMap<HostKind, i64>,
}

impl Corrections {
    /// Records the bytes that a run takes beyond the estimate.
    pub(super) fn learn_run(&mut self, kind: RunKind, beyond: i64) {
        let slack = self.runs.get(&kind).map_or(MAX_SLACK_BYTES, |known| known.slack) / SLACK_DIVISOR;
        self.runs.insert(kind, Known { beyond, slack });
    }

    /// Records the bytes that the host takes beyond the estimate.
    pub(super) fn learn_host(&mut self, kind: HostKind, beyond: i64) {
        self.hosts.insert(kind, beyond);
    }

    /// Bytes that a run takes beyond the estimate, and the slack of this number. The number comes from a probed run of
    /// the same kind, or from the most similar kind. A positive correction of one GPU is not applied to another GPU.
    pub(super) fn of_run(&self, kind: &RunKind) -> (i64, u64) {
        if let Some(known) = self.runs.get(kind) {
            return (known.beyond, known.slack);
        }
        let similarity = |other: &RunKind| {
            let is_alike = (kind.role == other.role, kind.is_pipelined == other.is_pipelined);
            (kind.setting == other.setting, is_alike, kind.gpu == other.gpu)
        };
        let similar = self.runs.iter().max_by_key(|(other, _)| similarity(other));
        let beyond = |(other, known): (&RunKind, &Known)| {
            if other.gpu == kind.gpu { known.beyond } else { known.beyond.min(0) }
        };
        (similar.map_or(0, beyond), MAX_SLACK_BYTES)
    }

    /// Bytes that the host takes beyond the estimate. The number comes from a probed host of the same kind, or from the
    /// most similar kind.
    pub(super) fn of_host(&self, kind: &HostKind) -> i64 {
        let similarity = |other: &HostKind| {
            (kind.setting == other.setting, kind.role == other.role, kind.is_pipelined == other.is_pipelined)
        };
        self.hosts.iter().max_by_key(|(other, _)| similarity(other)).map_or(0, |(_, beyond)| *beyond)
    }

    /// The lowest corrections of a GPU and of the host under this setting.
    pub(super) fn least(&self, setting: usize) -> (i64, i64) {
        let runs = self.runs.iter().map(|(kind, known)| (kind.setting, known.beyond));
        let hosts = self.hosts.iter().map(|(kind, beyond)| (kind.setting, *beyond));
        (least_of(setting, runs).min(0), least_of(setting, hosts))
    }
}

/// The lowest correction of a setting. If this setting has no correction, the lowest correction of all settings.
fn least_of(setting: usize, all: impl Iterator<Item = (usize, i64)> + Clone) -> i64 {
    let of_setting = all.clone().filter(|(of, _)| *of == setting).map(|(_, beyond)| beyond).min();
    of_setting.or_else(|| all.map(|(_, beyond)| beyond).min()).unwrap_or(0)
}

impl Placements<'_> {
    /// The kinds of a path's runs.
    pub(super) fn run_kinds<'p>(&'p self, path: &'p Path) -> impl Iterator<Item = RunKind> {
        let (setting, is_pipelined) = (path.setting, path.is_pipelined());
        let layers = self.profile.full_offload();
        path.runs().zip(&self.orders[path.order]).map(move |(run, &gpu)| {
            let role = run.role(layers, self.parts.count(run.begin, run.end));
            RunKind { setting, role, is_pipelined, gpu }
        })
    }

    /// The kind of a path's part on the host.
    pub(super) fn host_kind(&self, path: &Path) -> HostKind {
        let role = host_role(path.first, path.kept());
        HostKind { setting: path.setting, role, is_pipelined: path.is_pipelined() }
    }
}

#[cfg(test)]
mod tests {
    use super::{Corrections, HostKind, MAX_SLACK_BYTES, RunKind};
    use crate::machine::mib;

    fn run(setting: usize, role: usize, gpu: usize) -> RunKind {
        RunKind { setting, role, is_pipelined: false, gpu }
    }

    #[test]
    fn a_correction_of_one_kind_applies_to_others_with_the_full_slack() {
        let mut known = Corrections::default();
        assert_eq!((known.of_run(&run(0, 0, 0)), known.least(0)), ((0, MAX_SLACK_BYTES), (0, 0)));
        known.learn_run(run(0, 0, 0), -500);
        known.learn_run(run(0, 4, 1), 70);
        known.learn_run(run(1, 4, 1), 9000);
        assert_eq!(known.of_run(&run(0, 0, 0)), (-500, MAX_SLACK_BYTES / 4));
        // Kinds with the same role are preferred, then kinds with the same GPU. A kind of another setting counts only
        // if no kind of this setting was probed.
        assert_eq!(known.of_run(&run(0, 0, 1)), (-500, MAX_SLACK_BYTES));
        assert_eq!(known.of_run(&run(0, 3, 1)), (70, MAX_SLACK_BYTES));
        assert_eq!(known.of_run(&run(1, 0, 1)), (9000, MAX_SLACK_BYTES));
        assert_eq!(known.of_run(&run(1, 0, 0)), (0, MAX_SLACK_BYTES));
        assert_eq!([0, 1, 2].map(|setting| known.least(setting).0), [-500, 0, -500]);
        // Each probe reduces the slack.
        known.learn_run(run(0, 0, 0), -300);
        assert_eq!(known.of_run(&run(0, 0, 0)), (-300, mib(8)));
    }

    #[test]
    fn the_host_is_corrected_by_its_role() {
        let mut known = Corrections::default();
        let host = |setting, role| HostKind { setting, role, is_pipelined: false };
        assert_eq!(known.of_host(&host(0, 1)), 0);
        known.learn_host(host(0, 1), 5);
        known.learn_host(host(0, 2), -5);
        assert_eq!(
            [0, 1, 2].map(|role| known.of_host(&host(0, role))).iter().filter(|beyond| **beyond == -5).count(),
            2
        );
        assert_eq!((known.of_host(&host(0, 1)), known.of_host(&host(3, 2)), known.least(7).1), (5, -5, -5));
    }
}
