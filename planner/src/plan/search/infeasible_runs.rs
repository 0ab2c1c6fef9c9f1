//! Runs of layers that are known to be too large for their GPU. The search skips all paths that contain such a run.

use std::collections::BTreeSet;

use super::parts::Parts;
use super::path::Path;
use super::table::Run;

#[derive(Debug)]
pub(super) struct InfeasibleRuns<'a> {
    parts: &'a Parts<'a>,
    runs: BTreeSet<Key>,
}

/// Everything on which a GPU's bytes depend: setting, order and GPU; the GPU's run; whether the graph has copies; the
/// largest parts on the host.
type Key = ([usize; 3], Run, bool, [u64; 2]);

impl<'a> InfeasibleRuns<'a> {
    pub(super) const fn new(parts: &'a Parts<'a>) -> Self {
        Self { parts, runs: BTreeSet::new() }
    }

    /// Records that the `n`th GPU of a path has too little memory for its run.
    pub(super) fn add(&mut self, path: &Path, n: usize) {
        let key = self.keys(path).nth(n);
        self.runs.extend(key);
    }

    /// The index of the first GPU that is known to have too little memory, in a path or in the beginning of a path.
    pub(super) fn infeasible_gpu(&self, path: &Path) -> Option<usize> {
        self.keys(path).position(|key| self.runs.contains(&key))
    }

    /// Whether no continuation of this beginning of a path takes fewer bytes on any GPU of the beginning.
    pub(super) fn is_settled(&self, path: &Path) -> bool {
        path.kept() > 0 || (self.parts.all.is_empty() && (path.first > 0 || path.single_copy))
    }

    fn keys(&self, path: &Path) -> impl Iterator<Item = Key> {
        let (which, copies, largest) =
            ([path.setting, path.order], path.is_pipelined(), self.parts.largest(&path.runs));
        path.runs().enumerate().map(move |(n, run)| ([which[0], which[1], n], run, copies, largest))
    }
}
