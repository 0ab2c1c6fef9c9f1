//! The search with a probe: the estimate says where to look, llama.cpp's answer corrects it, and the search is made
//! again, until the best placement is one that has been probed and the one before it has been found not to fit.

use crate::machine::mib;
use crate::memory::{Footprint, Footprints, Uncertainty};
use crate::plan::probe::with_output;
use crate::plan::{Error, NoRoom, Policy, Probe};

use super::path::Path;
use super::{Found, Given, Placements};

/// Probes for one GPU, and for more, with each type of the cache that may be chosen.
const MOST_PROBES: (usize, usize) = (6, 12);

/// Of the time of a placement that fits, on more than two GPUs, what another must take at most to be probed: on four, a
/// dozen probes of a 70B model took a second and made it 0.002 % faster.
const WORTH_A_PROBE: f64 = 0.995;

/// Bytes that a GPU may lack by the estimate where a probe is asked all the same: what compute buffers of another role
/// were off by in the tests of this search is less. Half as many after each probe that finds them lacking.
const HOPE: u64 = mib(128);

/// What is known so far.
pub(super) struct Probed<'f, 'a> {
    placements: &'f Placements<'a>,
    probe: &'f dyn Probe,
    pub(super) given: Given,
    /// What is left of [`HOPE`].
    hope: u64,
    asked: usize,
    /// Which GPUs were refused first, and why.
    pub(super) refusal: Option<(String, Error)>,
    /// The first refusal of a smaller type of the cache: the type is left out then, and not the GPUs.
    pub(super) kv_refusal: Option<String>,
    /// The buffer that there was no room for, in the first placement that could not even be probed.
    pub(super) no_room: Option<Error>,
    /// Of the placements that do not fit, the one that lacks the least.
    pub(super) least_lacking: Option<Found>,
}

impl<'f, 'a> Probed<'f, 'a> {
    pub(super) fn new(placements: &'f Placements<'a>, probe: &'f dyn Probe) -> Self {
        Self {
            placements,
            probe,
            given: Given::default(),
            hope: HOPE,
            asked: 0,
            refusal: None,
            kv_refusal: None,
            no_room: None,
            least_lacking: None,
        }
    }

    /// The cheapest path that fits by the probe, and what is one step better and lacks the least. A search that ends
    /// without a path has used up its probes, or there is none.
    pub(super) fn search(&mut self) -> Result<Option<(Found, Option<Found>)>, Error> {
        let n_gpus = self.placements.gpus.len();
        let each = if n_gpus < 2 { MOST_PROBES.0 } else { MOST_PROBES.1 };
        let smallest_kv = self.placements.grounds.iter().map(|ground| ground.smaller_kv as usize).max();
        let most = each * (1 + smallest_kv.unwrap_or(0));
        let by_layers = self.placements.policy == Policy::MostLayers;
        let mut best: Option<Found> = None;
        loop {
            let asks = self.asked < most;
            let fits = self.placements.search(&self.given)?;
            let hoped = if asks && fits.is_none() { self.hoped_for()? } else { None };
            let is_hope = hoped.is_some();
            let better = fits.filter(|_| asks).or(hoped);
            let nearest = best.as_ref().map(|best| self.placements.nearest(&best.path, &self.given));
            let nearest = nearest.transpose()?.flatten();
            // By layers, what is one step better is always asked about: such plans are made of models too that no law
            // is known of.
            let close = nearest.clone().filter(|near| asks && by_layers && !self.given.known.contains(&near.path));
            let mut next = better.or(close);
            if next.is_none() && best.is_none() && asks && by_layers {
                let least = self.placements.least_lacking(&self.given)?;
                // The error is to be about llama.cpp's numbers.
                next = least.filter(|least| self.asked == 0 || least.levels.missing() <= HOPE);
            }
            let Some(next) = next else {
                return Ok(best.map(|best| (best, nearest)));
            };
            let Some(found) = self.ask(next) else {
                continue;
            };
            // What four copies of the graph lack says nothing of a single one.
            if is_hope && !found.levels.fit() && !found.path.is_pipelined() {
                self.hope /= 2;
            }
            if found.levels.fit() {
                self.given.below = Some(if n_gpus > 2 && !by_layers { found.cost * WORTH_A_PROBE } else { found.cost });
                best = Some(found);
            } else {
                let known = self.least_lacking.take();
                self.least_lacking = known.into_iter().chain([found]).min_by_key(|found| found.levels.lack());
            }
        }
    }

    /// The cheapest path that fits if a probe finds less than the estimate, which knows no other role by this one.
    fn hoped_for(&mut self) -> Result<Option<Found>, Error> {
        self.given.hope = self.hope;
        let found = self.placements.search(&self.given);
        self.given.hope = 0;
        found
    }

    /// What llama.cpp says of a path; `None` where it refuses it.
    fn ask(&mut self, next: Found) -> Option<Found> {
        let Found { path, cost, .. } = next;
        self.asked += 1;
        self.given.known.push(path.clone());
        let params = self.placements.params(&path);
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
            // It does not fit, which is no refusal.
            Err(source) if source.is::<NoRoom>() => {
                self.no_room.get_or_insert(Error::Probe { n_gpu_layers: split.n_gpu_layers, source });
                None
            }
            Err(source) => {
                self.given.refused.push(path.clone());
                let error = Error::Probe { n_gpu_layers: split.n_gpu_layers, source };
                let names = room.names();
                if self.placements.grounds[path.setting].smaller_kv > 0 {
                    let note = format!("no cache in {} on {names}: {error}", params.type_k);
                    self.kv_refusal.get_or_insert(note);
                } else {
                    self.refusal.get_or_insert((names, error));
                }
                None
            }
        }
    }

    /// Assumes that llama.cpp's answer exceeds the estimate by as much elsewhere too.
    fn correct(&mut self, path: &Path, footprints: &Footprints, estimated: &Footprints) {
        let beyond = |theirs: &Footprint, ours: &Footprint| {
            let (theirs, ours) = (i128::from(theirs.total()), i128::from(ours.total()));
            i64::try_from(theirs - ours).unwrap_or_default()
        };
        let gpus = footprints.gpus.iter().zip(&estimated.gpus);
        let correction = self.given.corrections.entry(path.setting).or_default();
        correction.gpus.resize(self.placements.gpus.len(), 0);
        for ((theirs, ours), &gpu) in gpus.zip(&self.placements.orders[path.order]) {
            correction.gpus[gpu] = beyond(theirs, ours);
        }
        correction.host = beyond(&footprints.host, &estimated.host);
    }
}
