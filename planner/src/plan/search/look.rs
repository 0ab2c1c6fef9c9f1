//! What the estimate says of a path, corrected by what probes have shown, and what that tells of paths like it.

use std::collections::HashSet;
use std::rc::Rc;

use crate::memory::{Estimate, Footprints, Place, Uncertainty};
use crate::plan::Error;
use crate::plan::fit::Levels;

use super::path::Path;
use super::table::Run;
use super::{Given, Placements};

/// What compute buffers depend on, but for details: the setting and the order of GPUs, which of them it is, whether it
/// holds the output layer alone, whether the host holds layers, whether it holds parts of blocks, and whether of this
/// GPU's blocks some or all.
pub(super) type Likeness = (usize, usize, usize, bool, bool, bool, [bool; 2]);

/// What the host's compute buffer depends on, but for details: the setting, the number of GPUs, whether the host holds
/// layers, and whether it holds parts of blocks.
pub(super) type HostLikeness = (usize, usize, bool, bool);

/// As many looks that never saw a smaller one are believed that there is none: it mostly is the same for all
/// placements, and a device that lacks a little of it would have all of them looked at.
const TRUSTED: usize = 32;

/// The smallest compute buffer of a device among placements that are alike, and the bytes that it may at least be
/// larger by.
#[derive(Debug, Clone, Copy)]
pub(super) struct Least {
    bytes: u64,
    unsure: u64,
    looks: usize,
}

impl Least {
    const NONE: Self = Self { bytes: u64::MAX, unsure: u64::MAX, looks: 0 };

    fn see(&mut self, bytes: u64, unsure: u64) {
        let is_smaller = bytes < self.bytes || unsure < self.unsure;
        self.looks = if is_smaller { 1 } else { self.looks + 1 };
        self.bytes = bytes.min(self.bytes);
        self.unsure = unsure.min(self.unsure);
    }

    /// Bytes that another one needs at least, `careful` with what it may be larger by; a quarter of them where that is
    /// not believed.
    fn at_least(&self, careful: bool, believe: bool) -> u64 {
        let unsure = if careful { self.unsure } else { 0 };
        let bytes = self.bytes.saturating_add(unsure);
        if believe && self.looks >= TRUSTED { bytes } else { bytes / 4 }
    }
}

/// What the estimate says of a path.
#[derive(Clone)]
pub(super) struct Look {
    pub(super) footprints: Footprints,
    pub(super) unsure: Uncertainty,
}

impl Placements<'_> {
    /// Whether the `n`th run of a path has room for a compute buffer like those that were seen.
    pub(super) fn may_fit(&self, path: &Path, n: usize, given: &Given) -> bool {
        let Some(run) = path.runs().nth(n) else {
            return true;
        };
        let Some(&least) = self.seen.borrow().get(&self.likeness(path, n, run)) else {
            return true;
        };
        let ground = &self.grounds[path.setting];
        let gpu = self.orders[path.order][n];
        let correction = given.correction(path.setting);
        let more = correction.gpus.get(&gpu).copied().unwrap_or(0);
        let careful = given.careful && self.request.headroom.adds_uncertainty();
        let compute = least.at_least(careful, given.hasty).saturating_add_signed(more);
        let bytes = ground.table.bytes(gpu, run, &self.parts);
        bytes.saturating_add(compute) <= ground.budgets[gpu]
    }

    /// Bytes of the host that a path's compute buffer takes at least, by those that were seen.
    pub(super) fn least_host_compute(&self, path: &Path, given: &Given) -> u64 {
        let Some(&least) = self.seen_on_host.borrow().get(&on_host(path)) else {
            return 0;
        };
        let bytes = least.at_least(given.careful, true);
        bytes.saturating_add_signed(given.correction(path.setting).host)
    }

    fn likeness(&self, path: &Path, n: usize, run: Run) -> Likeness {
        let output_alone = run.begin + 1 >= self.profile.full_offload();
        let (setting, order) = (path.setting, path.order);
        (
            setting,
            order,
            n,
            output_alone,
            path.first > 0,
            parted(path),
            [run.kept > 0, run.kept == self.parts.count(run.begin, run.end)],
        )
    }

    /// What a path takes by the estimate, corrected, and what is left.
    pub(super) fn levels(&self, path: &Path, given: &Given) -> Result<Levels, Error> {
        let look = self.look(path)?;
        let order = &self.orders[path.order];
        let correction = given.correction(path.setting);
        let mut footprints = look.footprints;
        for (footprint, gpu) in footprints.gpus.iter_mut().zip(order) {
            let more = correction.gpus.get(gpu).copied().unwrap_or(0);
            footprint.compute = footprint.compute.saturating_add_signed(more);
        }
        let host = &mut footprints.host.compute;
        *host = host.saturating_add_signed(correction.host);
        let unsure = match given.careful {
            true => look.unsure,
            false => Uncertainty::default(),
        };
        Ok(self.room(path).levels(&footprints, &unsure))
    }

    /// The same of what llama.cpp says.
    pub(super) fn levels_of(&self, path: &Path, footprints: &Footprints) -> Levels {
        self.room(path).levels(footprints, &Uncertainty::default())
    }

    /// What a path takes by the estimate.
    pub(super) fn look(&self, path: &Path) -> Result<Look, Error> {
        if let Some(look) = self.looked_at.borrow().get(path) {
            return Ok(look.clone());
        }
        let assignment = self.assignment(path);
        let estimate = self.estimate(path)?;
        let look = |estimate: &Estimate| {
            let (footprints, unsure) = estimate.with_uncertainty(&assignment);
            Look { footprints, unsure }
        };
        let kept: HashSet<&str> = self.kept_names(path).collect();
        let look = if kept.is_empty() && !path.single_copy {
            look(&estimate)
        } else {
            look(&Estimate::clone(&estimate).placing(|name| kept.contains(name).then_some(Place::Host)))
        };
        let mut seen = self.seen.borrow_mut();
        let gpus = look.footprints.gpus.iter().zip(&look.unsure.gpus);
        for ((n, run), (footprint, &unsure)) in path.runs().enumerate().zip(gpus) {
            let least = seen.entry(self.likeness(path, n, run));
            least.or_insert(Least::NONE).see(footprint.compute, unsure);
        }
        let mut on_host = self.seen_on_host.borrow_mut();
        let least = on_host.entry(self::on_host(path)).or_insert(Least::NONE);
        least.see(look.footprints.host.compute, look.unsure.host);
        let mut all = self.looked_at.borrow_mut();
        all.insert(path.clone(), look.clone());
        Ok(look)
    }

    /// The estimate for a path's setting and GPUs, nothing of it elsewhere.
    pub(super) fn estimate(&self, path: &Path) -> Result<Rc<Estimate>, Error> {
        let key = (path.setting, path.order);
        if let Some(known) = self.estimates.borrow().get(&key) {
            return Ok(Rc::clone(known));
        }
        let alone = &self.grounds[path.setting].alone;
        let estimate = match self.orders[path.order][..] {
            [gpu] if alone.contains_key(&gpu) => Rc::clone(&alone[&gpu]),
            _ => Rc::new(Estimate::new(self.profile, &self.gpus_of(path), self.params(path))?),
        };
        self.estimates.borrow_mut().insert(key, Rc::clone(&estimate));
        Ok(estimate)
    }

    /// Bytes of a path by the estimate.
    pub(super) fn estimated(&self, path: &Path) -> Result<Footprints, Error> {
        Ok(self.look(path)?.footprints)
    }

    /// Bytes of the buffer of logits by the estimate.
    pub(super) fn output_bytes(&self, path: &Path) -> u64 {
        self.look(path).map_or(0, |look| look.footprints.output)
    }
}

fn on_host(path: &Path) -> HostLikeness {
    (path.setting, path.runs.len(), path.first > 0, parted(path))
}

fn parted(path: &Path) -> bool {
    path.kept() > 0 || path.single_copy
}
