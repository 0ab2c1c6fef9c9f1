//! Converts a path into parameters for llama.cpp, and estimates its memory.

use crate::machine::{Gpu, mib};
use crate::memory::estimate::Assignment;
use crate::memory::{ContextParams, Footprints, NOTHING, Place, Split, TensorOverride, Uncertainty};
use crate::plan::Error;
use crate::plan::fit::{Levels, Room};
use crate::plan::speed::Cached;

use super::parts::with_parts_on_host;
use super::path::Path;
use super::{Placements, SearchConstraints, SearchedCache};

impl<'a> Placements<'a> {
    /// The estimated memory of a path, and its uncertainty.
    pub(super) fn estimated(&self, path: &Path) -> Result<(Footprints, Uncertainty), Error> {
        self.estimates_made.set(self.estimates_made.get() + 1);
        let estimate = self.setting_costs[path.setting].estimate(self, &self.orders[path.order])?;
        let assignment = self.assignment(path);
        Ok(match path.kept() == 0 && !path.single_copy {
            true => estimate.with_uncertainty(&assignment),
            false => {
                let estimate = with_parts_on_host(&estimate, self.parts.kept(&path.runs));
                estimate.with_moe_cache(self.moe_cache_size(path)).with_uncertainty(&assignment)
            }
        })
    }

    /// Bytes of the cache of experts: the stated number, or the setting's share of the experts that the path keeps on
    /// the host. The latter is rounded up to whole MiB, because llama.cpp's own flag is in MiB.
    fn moe_cache_size(&self, path: &Path) -> u64 {
        let costs = &self.setting_costs[path.setting];
        let Some(Cached { share }) = costs.cached else { return costs.params.moe_cache_size };
        let experts = self.parts.kept(&path.runs).map(|part| part.bytes).fold(0, u64::saturating_add);
        ((experts as f64 * share) as u64).div_ceil(mib(1)) * mib(1)
    }

    /// The parameters of a path's context.
    pub(super) fn context(&self, path: &Path) -> ContextParams {
        let params = self.params(path).clone();
        match self.cache {
            SearchedCache::UpTo(_) => ContextParams { moe_cache_size: self.moe_cache_size(path), ..params },
            SearchedCache::None | SearchedCache::Stated => params,
        }
    }

    /// The memory of each device: the estimate, corrected by the probes' answers.
    pub(super) fn levels(&self, path: &Path, constraints: &SearchConstraints) -> Result<Levels, Error> {
        let (mut footprints, unsure) = self.estimated(path)?;
        for (footprint, kind) in footprints.gpus.iter_mut().zip(self.run_kinds(path)) {
            let (beyond, slack) = constraints.corrections.of_run(&kind);
            let beyond = beyond.saturating_sub_unsigned(if constraints.has_slack { slack } else { 0 });
            footprint.compute = footprint.compute.saturating_add_signed(beyond);
        }
        let host = &mut footprints.host.compute;
        *host = host.saturating_add_signed(constraints.corrections.of_host(&self.host_kind(path)));
        let unsure = if self.probe.is_none() { unsure } else { Uncertainty::default() };
        Ok(self.room(path).levels(&footprints, &unsure))
    }

    /// The devices of a path.
    pub(super) fn room(&self, path: &Path) -> Room<'a> {
        let gpus = self.gpus_of(path);
        Room {
            unmapped_if_paging: self.request.unmapped_if_paging(self.profile, &gpus),
            gpus,
            host: &self.machine.host,
            headroom: self.request.headroom,
            wsl: self.machine.wsl,
            prompt_store: self.request.prompt_store,
            peak_sizes: self.setting_costs[path.setting].peak_sizes,
        }
    }

    pub(super) fn params(&self, path: &Path) -> &ContextParams {
        &self.setting_costs[path.setting].params
    }

    pub(super) fn assignment(&self, path: &Path) -> Assignment {
        Assignment::by_counts(self.profile.n_layer(), &path.counts())
    }

    /// The path as llama.cpp's split.
    pub(super) fn split(&self, path: &Path) -> Split {
        let split = Split::by_counts(&path.counts());
        if path.single_copy {
            return split.overrides([TensorOverride::new(NOTHING, Place::Host)]);
        }
        split.overrides(self.parts.overrides(&path.runs))
    }

    /// The number of blocks on GPUs that keep some of their weights on the host.
    pub(super) fn split_blocks(&self, path: &Path) -> u32 {
        let mut blocks: Vec<u32> = self.parts.kept(&path.runs).map(|part| part.block).collect();
        blocks.dedup();
        u32::try_from(blocks.len()).unwrap_or(u32::MAX)
    }

    pub(super) fn gpus_of(&self, path: &Path) -> Vec<&'a Gpu> {
        self.orders[path.order].iter().map(|&gpu| self.gpus[gpu]).collect()
    }
}
