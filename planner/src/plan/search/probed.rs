//! The search with a probe. The estimate proposes a placement, llama.cpp's answer corrects the estimate, and the search
//! repeats until the probe has confirmed the best placement and rejected the next better one.

use crate::memory::{Footprint, Footprints, Uncertainty};
use crate::plan::probe::with_output;
use crate::plan::{Error, NoRoom, Policy, Probe};

use super::path::Path;
use super::{Found, MAX_SLACK_BYTES, Placements, SearchConstraints, SearchedCache};

/// Maximum number of probes for one setting, with one GPU and with several GPUs. A search over several settings adds up
/// their probes and may use them for any of these settings. Settings with a larger ubatch add no probes.
const MAX_PROBES: (usize, usize) = (6, 12);

/// With more than two GPUs, another probe is made only for a placement whose predicted time is below this share of the
/// best placement's time. On four GPUs, a dozen probes of a 70B model took a second and gained 0.002 %.
const MAX_PROBED_SHARE: f64 = 0.995;

/// The state of a search with a probe.
pub(super) struct Probed<'f, 'a> {
    placements: &'f Placements<'a>,
    probe: &'f dyn Probe,
    pub(super) constraints: SearchConstraints,
    asked: usize,
    /// The names of the GPUs and the error of the first refusal.
    pub(super) refusal: Option<(String, Error)>,
    /// The first refusal of a smaller cache type. It excludes the type, but not the GPUs.
    pub(super) kv_refusal: Option<String>,
    /// The error of the first placement for which there was not enough memory for the probe itself.
    pub(super) no_room: Option<Error>,
    /// Of the placements that do not fit, the placement with the fewest missing bytes.
    pub(super) least_lacking: Option<Found>,
}

impl<'f, 'a> Probed<'f, 'a> {
    pub(super) fn new(placements: &'f Placements<'a>, probe: &'f dyn Probe) -> Self {
        Self {
            placements,
            probe,
            constraints: SearchConstraints::default(),
            asked: 0,
            refusal: None,
            kv_refusal: None,
            no_room: None,
            least_lacking: None,
        }
    }

    /// The cheapest path that fits by the probe and, of the paths that are one step better, the path with the fewest
    /// missing bytes. `None` if no path fits, or if the probes are used up before a path fits.
    pub(super) fn search(&mut self) -> Result<Option<(Found, Option<Found>)>, Error> {
        let n_gpus = self.placements.gpus.len();
        let each = if n_gpus < 2 { MAX_PROBES.0 } else { MAX_PROBES.1 };
        let chosen = self.placements.setting_costs.iter().filter(|costs| costs.doubled == 0).count();
        // The estimate gives the exact difference in bytes between settings with different caches, so such settings
        // share the allowed number of probes.
        let most = if matches!(self.placements.cache, SearchedCache::UpTo(_)) { each } else { each * chosen };
        let by_layers = self.placements.policy == Policy::MostLayers;
        let mut best: Option<Found> = None;
        loop {
            let asks = self.asked < most;
            let fits = self.placements.search(&self.constraints)?;
            let with_slack = if asks && fits.is_none() { self.search_with_slack()? } else { None };
            let better = fits.filter(|_| asks).or(with_slack);
            let nearest = best.as_ref().map(|best| self.placements.nearest(&best.path, &self.constraints));
            let nearest = nearest.transpose()?.flatten();
            // Under [`Policy::MostLayers`], the next better placement is also probed, because models whose memory the
            // estimate does not know are planned under this policy too.
            let close =
                nearest.clone().filter(|near| asks && by_layers && !self.constraints.known.contains(&near.path));
            let mut next = better.or(close);
            if next.is_none() && best.is_none() && asks && by_layers {
                let least = self.placements.least_lacking(&self.constraints)?;
                // At least one probe is made, because the error must state llama.cpp's numbers.
                next = least.filter(|least| self.asked == 0 || least.levels.missing() <= MAX_SLACK_BYTES);
            }
            let Some(next) = next else {
                return Ok(best.map(|best| (best, nearest)));
            };
            let Some(found) = self.ask(next) else {
                continue;
            };
            if found.levels.fit() {
                self.constraints.below =
                    Some(if n_gpus > 2 && !by_layers { found.cost * MAX_PROBED_SHARE } else { found.cost });
                best = Some(found);
            } else {
                let known = self.least_lacking.take();
                self.least_lacking = known.into_iter().chain([found]).min_by_key(|found| found.levels.lack());
            }
        }
    }

    /// The cheapest path that would fit if each GPU needed up to `MAX_SLACK_BYTES` less than the corrected estimate.
    /// Such a path deserves a probe, because the probes of one kind of run tell little about another kind.
    fn search_with_slack(&mut self) -> Result<Option<Found>, Error> {
        self.constraints.has_slack = true;
        let found = self.placements.search(&self.constraints);
        self.constraints.has_slack = false;
        found
    }

    /// Probes a path; `None` if there is no answer.
    fn ask(&mut self, next: Found) -> Option<Found> {
        let Found { path, cost, .. } = next;
        self.asked += 1;
        self.constraints.known.push(path.clone());
        let params = &self.placements.context(&path);
        let split = self.placements.split(&path);
        let room = self.placements.room(&path);
        match self.probe.footprints(&room.gpus, params, &split) {
            Ok(footprints) => {
                let (estimated, _) = self.placements.estimated(&path).ok()?;
                let footprints = with_output(footprints, estimated.output);
                self.correct(&path, &footprints, &estimated);
                let levels = room.levels(&footprints, &Uncertainty::default());
                Some(Found { path, cost, levels })
            }
            // If there is too little memory for the probe, this is not a refusal.
            Err(source) if source.is::<NoRoom>() => {
                self.no_room.get_or_insert(Error::Probe { n_gpu_layers: split.n_gpu_layers, source });
                None
            }
            Err(source) => {
                self.constraints.refused.push(path.clone());
                let error = Error::Probe { n_gpu_layers: split.n_gpu_layers, source };
                let names = room.names();
                if self.placements.setting_costs[path.setting].smaller_kv > 0 {
                    let note = format!("no cache in {} on {names}: {error}", params.type_k);
                    self.kv_refusal.get_or_insert(note);
                } else {
                    self.refusal.get_or_insert((names, error));
                }
                None
            }
        }
    }

    /// Records the excess of llama.cpp's answer over the estimate. The same excess is expected of other runs of the
    /// same kinds.
    fn correct(&mut self, path: &Path, footprints: &Footprints, estimated: &Footprints) {
        let beyond = |theirs: &Footprint, ours: &Footprint| {
            let (theirs, ours) = (i128::from(theirs.total()), i128::from(ours.total()));
            i64::try_from(theirs - ours).unwrap_or_default()
        };
        let gpus = footprints.gpus.iter().zip(&estimated.gpus);
        for (kind, (theirs, ours)) in self.placements.run_kinds(path).zip(gpus) {
            self.constraints.corrections.learn_run(kind, beyond(theirs, ours));
        }
        let host = beyond(&footprints.host, &estimated.host);
        self.constraints.corrections.learn_host(self.placements.host_kind(path), host);
    }
}
