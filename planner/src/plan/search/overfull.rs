//! Runs that have turned out too large for their GPU: whatever the others hold, paths with them are not looked at.

use std::collections::BTreeSet;

use super::parts::Parts;
use super::path::Path;
use super::table::Run;

#[derive(Debug)]
pub(super) struct Overfull<'a> {
    parts: &'a Parts<'a>,
    runs: BTreeSet<Key>,
}

/// What a GPU's bytes depend on: the GPU, its run, whether the graph has copies, the largest parts on the host.
type Key = ([usize; 3], Run, bool, [u64; 2]);

impl<'a> Overfull<'a> {
    pub(super) const fn new(parts: &'a Parts<'a>) -> Self {
        Self { parts, runs: BTreeSet::new() }
    }

    /// Remembers that the `n`th GPU of a path has too few bytes for its run.
    pub(super) fn add(&mut self, path: &Path, n: usize) {
        let key = self.keys(path).nth(n);
        self.runs.extend(key);
    }

    /// Which GPU of a path, or of its beginning, is known to have too few.
    pub(super) fn of(&self, path: &Path) -> Option<usize> {
        self.keys(path).position(|key| self.runs.contains(&key))
    }

    /// Whether what the beginning of a path takes of a GPU is the least that any path takes which begins so.
    pub(super) fn is_settled(&self, path: &Path) -> bool {
        path.kept() > 0 || (self.parts.all.is_empty() && (path.first > 0 || path.single_copy))
    }

    fn keys(&self, path: &Path) -> impl Iterator<Item = Key> {
        let (which, copies, largest) =
            ([path.setting, path.order], path.is_pipelined(), self.parts.largest(&path.runs));
        path.runs().enumerate().map(move |(n, run)| ([which[0], which[1], n], run, copies, largest))
    }
}
