//! A path in the words of others: of llama.cpp, of the estimate, of the plan.

use crate::machine::Gpu;
use crate::memory::estimate::Assignment;
use crate::memory::{ContextParams, NOTHING, Place, Split, TensorOverride};
use crate::plan::fit::Room;

use super::Placements;
use super::path::Path;

impl<'a> Placements<'a> {
    /// The GPUs of a path, as indices.
    pub(super) fn order_of(&self, path: &Path) -> &[usize] {
        &self.orders[path.order]
    }

    /// The devices of a path.
    pub(super) fn room(&self, path: &Path) -> Room<'a> {
        Room {
            gpus: self.gpus_of(path),
            host: &self.machine.host,
            headroom: self.request.headroom,
            wsl: self.machine.wsl,
            paging: self.request.pages(self.profile),
            workload: self.grounds[path.setting].workload,
        }
    }

    /// The parameters of a path's context.
    pub(super) fn params(&self, path: &Path) -> &ContextParams {
        &self.grounds[path.setting].setting.params
    }

    pub(super) fn assignment(&self, path: &Path) -> Assignment {
        Assignment::by_counts(self.profile.n_layer(), &path.counts())
    }

    /// What llama.cpp is told of a path.
    pub(super) fn split(&self, path: &Path) -> Split {
        let split = Split::by_counts(&path.counts());
        if path.single_copy {
            return split.overrides([TensorOverride::new(NOTHING, Place::Host)]);
        }
        let kept: Vec<(u32, u32)> = path.runs().map(|run| (run.end, run.kept)).collect();
        split.overrides(self.parts.overrides(&kept))
    }

    /// Blocks on GPUs of which a part stays on the host.
    pub(super) fn parted_blocks(&self, path: &Path) -> u32 {
        let table = &self.grounds[path.setting].table;
        let blocks = path.runs().map(|run| table.kept_blocks(run, &self.parts));
        blocks.sum()
    }

    pub(super) fn kept_names(&self, path: &Path) -> impl Iterator<Item = &str> {
        let kept: Vec<(u32, u32)> = path.runs().map(|run| (run.end, run.kept)).collect();
        let parts: Vec<_> = self.parts.kept(&kept).collect();
        parts.into_iter().flat_map(|part| part.weights.iter().map(|weight| weight.name.as_str()))
    }

    pub(super) fn gpus_of(&self, path: &Path) -> Vec<&'a Gpu> {
        let order = self.orders[path.order].iter();
        order.map(|&gpu| self.gpus[gpu]).collect()
    }
}
