//! Some GPUs (or none), what placements on them cost by the estimate, and the same asked of a probe.

use std::cell::RefCell;
use std::collections::BTreeMap;

use crate::memory::estimate::Assignment;
use crate::memory::{ContextParams, Estimate, Footprints, Split, Uncertainty};

use crate::plan::fit::{Levels, Room};
use crate::plan::probe::with_output;
use crate::plan::{Error, NoRoom, Probe};

use super::spread::Spread;

/// Some GPUs with their estimate; the host alone where there are none.
pub(super) struct Candidate<'a> {
    pub(super) room: Room<'a>,
    pub(super) estimate: Estimate,
    pub(super) params: ContextParams,
    n_layer: u32,
    /// How several GPUs share layers.
    spread: Option<Spread>,
    /// The placements looked at so far, by their number of layers.
    placed: RefCell<BTreeMap<u32, Placed>>,
}

/// A number of layers, shared out.
#[derive(Debug, Clone)]
pub(super) struct Placed {
    /// Layers on each GPU.
    pub(super) counts: Vec<u32>,
    pub(super) footprints: Footprints,
    pub(super) unsure: Uncertainty,
}

/// A number of layers that fits a candidate.
pub(super) struct Choice {
    pub(super) n_gpu_layers: u32,
    /// Layers on each GPU.
    pub(super) counts: Vec<u32>,
    pub(super) levels: Levels,
    /// Of the number above, if there is one that was looked at: what it lacks.
    pub(super) above: Option<Levels>,
}

impl Placed {
    /// Whether every GPU holds a layer. One that holds none is left out, and that is another candidate.
    pub(super) fn uses_all(&self) -> bool {
        self.counts.len() < 2 || !self.counts.contains(&0)
    }
}

impl Choice {
    /// So many layers, by the estimate.
    pub(super) fn of(candidate: &Candidate<'_>, n_gpu_layers: u32, above: Option<Levels>) -> Self {
        let placed = candidate.placed(n_gpu_layers);
        Self {
            n_gpu_layers,
            levels: candidate.levels(&placed),
            counts: placed.counts,
            above,
        }
    }
}

impl<'a> Candidate<'a> {
    pub(super) fn new(
        room: Room<'a>,
        estimate: Estimate,
        params: ContextParams,
        n_layer: u32,
    ) -> Self {
        let n_gpus = room.gpus.len();
        let spread = (n_gpus > 1)
            .then(|| Spread::new(n_gpus, n_layer + 1, |gpu, il| estimate.layer_bytes(gpu, il)));
        Self {
            room,
            estimate,
            params,
            n_layer,
            spread,
            placed: RefCell::default(),
        }
    }

    /// So many layers, shared out as the estimate thinks best.
    pub(super) fn placed(&self, n_gpu_layers: u32) -> Placed {
        if let Some(known) = self.placed.borrow().get(&n_gpu_layers) {
            return known.clone();
        }
        let placed = self.shared_out(n_gpu_layers, &[]);
        let mut all = self.placed.borrow_mut();
        all.insert(n_gpu_layers, placed.clone());
        placed
    }

    /// So many layers, where each GPU takes some bytes more than the estimate says.
    fn shared_out(&self, n_gpu_layers: u32, more: &[u64]) -> Placed {
        let at = |counts: Vec<u32>| {
            let assignment = Assignment::by_counts(self.n_layer, &counts);
            let (footprints, unsure) = self.estimate.with_uncertainty(&assignment);
            Placed {
                counts,
                footprints,
                unsure,
            }
        };
        let Some(spread) = &self.spread else {
            // One GPU takes them all; the host alone has no counts.
            return at(self.room.gpus.iter().map(|_| n_gpu_layers).collect());
        };
        let mut room: Vec<u64> = self.room.gpus.iter().map(|gpu| gpu.free).collect();
        let mut best: Option<(u64, Placed)> = None;
        // What a GPU needs beside its layers depends on which layers it has, and these on that. It settles at once, or
        // swings between two answers, of which the better is taken.
        for _ in 0..4 {
            let placed = at(spread.counts(n_gpu_layers, &room));
            let levels = self.levels(&placed);
            let held = spread.held(&placed.counts);
            for (gpu, room) in room.iter_mut().enumerate() {
                let level = &levels.gpus[gpu];
                let beside = level.needed.saturating_sub(held[gpu]);
                let more = more.get(gpu).copied().unwrap_or_default();
                *room = level.budget.saturating_sub(beside.saturating_add(more));
            }
            let missing = levels.missing();
            match &best {
                Some((_, known)) if known.counts == placed.counts => break,
                Some((least, _)) if missing >= *least && more.is_empty() => {}
                _ => best = Some((missing, placed)),
            }
        }
        let Some((mut least, mut placed)) = best else {
            return at(vec![0; self.room.gpus.len()]);
        };
        // What a GPU needs beside its layers may jump with a single one: neighbours try to give each other one as
        // long as that helps.
        while least > 0 && more.is_empty() {
            let tries = neighbours(&placed.counts).into_iter().map(|counts| {
                let placed = at(counts);
                let missing = self.levels(&placed).missing();
                (missing, placed)
            });
            let Some(better) = tries.min_by_key(|(missing, _)| *missing) else {
                break;
            };
            if better.0 >= least {
                break;
            }
            (least, placed) = better;
        }
        if (least > 0 || !placed.uses_all()) && more.is_empty() {
            // Where there are few ways, all are tried. One that leaves a GPU without layers may fit, and is none.
            let all = ways(n_gpu_layers, self.room.gpus.len()).unwrap_or_default();
            let fitting = all
                .into_iter()
                .map(at)
                .find(|placed| placed.uses_all() && self.levels(placed).fit());
            return fitting.unwrap_or(placed);
        }
        placed
    }

    pub(super) fn estimated(&self, n_gpu_layers: u32) -> Levels {
        self.levels(&self.placed(n_gpu_layers))
    }

    /// What so many layers lack at least: without compute buffers, which take the most time to know.
    pub(super) fn missing_at_least(&self, n_gpu_layers: u32) -> u64 {
        if self.spread.is_some() {
            // Shared out otherwise than by all their bytes they might lack less.
            return 0;
        }
        let counts: Vec<u32> = self.room.gpus.iter().map(|_| n_gpu_layers).collect();
        let assignment = Assignment::by_counts(self.n_layer, &counts);
        self.probed(&self.estimate.stored(&assignment)).missing()
    }

    /// Whether so many layers fit by the estimate, some on every GPU.
    pub(super) fn holds(&self, n_gpu_layers: u32) -> bool {
        if self.missing_at_least(n_gpu_layers) > 0 {
            return false;
        }
        let placed = self.placed(n_gpu_layers);
        placed.uses_all() && self.levels(&placed).fit()
    }

    pub(super) fn levels(&self, placed: &Placed) -> Levels {
        self.room.levels(&placed.footprints, &placed.unsure)
    }

    pub(super) fn probed(&self, footprints: &Footprints) -> Levels {
        self.room.levels(footprints, &Uncertainty::default())
    }
}

/// As many ways to share layers are tried one by one.
const FEW: usize = 128;

/// Every way to share so many layers; `None` where there are more than a few.
fn ways(layers: u32, gpus: usize) -> Option<Vec<Vec<u32>>> {
    let mut all = vec![Vec::new()];
    for gpu in 0..gpus {
        let mut longer = Vec::new();
        for counts in all {
            let rest = layers - counts.iter().sum::<u32>();
            // The last takes what is left.
            let least = if gpu + 1 == gpus { rest } else { 0 };
            longer.extend((least..=rest).map(|count| [&counts[..], &[count]].concat()));
        }
        if longer.len() > FEW {
            return None;
        }
        all = longer;
    }
    Some(all)
}

/// The same layers with one of them at the GPU before or behind.
fn neighbours(counts: &[u32]) -> Vec<Vec<u32>> {
    let moved = |from: usize, to: usize| {
        let mut moved = counts.to_vec();
        moved[from] = moved[from].checked_sub(1)?;
        moved[to] += 1;
        Some(moved)
    };
    let pairs = (1..counts.len()).flat_map(|gpu| [(gpu - 1, gpu), (gpu, gpu - 1)]);
    pairs.filter_map(|(from, to)| moved(from, to)).collect()
}

/// A probe of one candidate. It asks nothing twice.
pub(super) struct Asked<'a, 'b> {
    probe: &'a dyn Probe,
    pub(super) candidate: &'a Candidate<'b>,
    /// The answers; `None` where llama.cpp refuses the placement.
    known: RefCell<BTreeMap<u32, Option<Placed>>>,
    /// Why it refused the first.
    refusal: RefCell<Option<Error>>,
    /// What there was no room for, in the first placement that could not even be asked about.
    no_room: RefCell<Option<Error>>,
}

/// What a candidate's probe came to.
pub(super) struct Answers {
    /// By number of layers.
    pub(super) placed: BTreeMap<u32, Placed>,
    pub(super) refusal: Option<Error>,
    pub(super) no_room: Option<Error>,
}

impl<'a, 'b> Asked<'a, 'b> {
    pub(super) fn new(probe: &'a dyn Probe, candidate: &'a Candidate<'b>) -> Self {
        Self {
            probe,
            candidate,
            known: RefCell::default(),
            refusal: RefCell::default(),
            no_room: RefCell::default(),
        }
    }

    /// All that was answered, and why the rest was not.
    pub(super) fn into_answers(self) -> Answers {
        let answers = self.known.into_inner().into_iter();
        let placed = answers.filter_map(|(n, placed)| Some((n, placed?)));
        Answers {
            placed: placed.collect(),
            refusal: self.refusal.into_inner(),
            no_room: self.no_room.into_inner(),
        }
    }

    /// So many layers, with llama.cpp's own numbers; `None` where it refuses them, or has not even the
    /// room to find out.
    ///
    /// It may refuse one placement and take the next: a device whose only blocks keep no cache fails a load
    /// (llama-kv-cache.cpp, the constructor). Two refusals and no answer are the device's fault, or the model's.
    ///
    /// # Errors
    ///
    /// The first refusal.
    pub(super) fn placed(&self, n_gpu_layers: u32) -> Result<Option<Placed>, Error> {
        if let Some(known) = self.known.borrow().get(&n_gpu_layers) {
            return Ok(known.clone());
        }
        let answer = self.look(n_gpu_layers);
        let mut known = self.known.borrow_mut();
        let mut refusal = self.refusal.borrow_mut();
        let placed = match answer {
            Ok(placed) => Some(placed),
            Err(error) if NoRoom::is(&error) => {
                self.no_room.borrow_mut().get_or_insert(error);
                None
            }
            Err(error) => match refusal.take() {
                Some(first) if known.values().all(Option::is_none) => return Err(first),
                first => {
                    *refusal = first.or(Some(error));
                    None
                }
            },
        };
        known.insert(n_gpu_layers, placed.clone());
        Ok(placed)
    }

    /// So many layers, with llama.cpp's own numbers, which it may refuse.
    pub(super) fn look(&self, n_gpu_layers: u32) -> Result<Placed, Error> {
        let candidate = self.candidate;
        let estimated = candidate.placed(n_gpu_layers);
        let mut placed = self.ask(&estimated)?;
        let levels = candidate.probed(&placed.footprints);
        if !levels.fit() && candidate.spread.is_some() {
            // Shared out otherwise it may still fit: where the estimate was too low, there go fewer.
            let gpus = placed
                .footprints
                .gpus
                .iter()
                .zip(&estimated.footprints.gpus);
            let more: Vec<u64> = gpus
                .map(|(theirs, ours)| theirs.total().saturating_sub(ours.total()))
                .collect();
            let other = candidate.shared_out(n_gpu_layers, &more);
            if other.counts != placed.counts {
                let other = self.ask(&other)?;
                if candidate.probed(&other.footprints).missing() < levels.missing() {
                    placed = other;
                }
            }
        }
        Ok(placed)
    }

    /// llama.cpp's numbers for this placement.
    fn ask(&self, estimated: &Placed) -> Result<Placed, Error> {
        let candidate = self.candidate;
        let split = Split::by_counts(&estimated.counts);
        let footprints = self
            .probe
            .footprints(&candidate.room.gpus, &candidate.params, &split)
            .map_err(|source| Error::Probe {
                n_gpu_layers: split.n_gpu_layers,
                source,
            })?;
        let footprints = with_output(footprints, estimated.footprints.output);
        Ok(Placed {
            counts: estimated.counts.clone(),
            footprints,
            unsure: Uncertainty::default(),
        })
    }

    /// Whether so many layers fit by llama.cpp's numbers, some on every GPU.
    ///
    /// # Errors
    ///
    /// As [`placed`](Self::placed).
    pub(super) fn holds(&self, n_gpu_layers: u32) -> Result<bool, Error> {
        let placed = self.placed(n_gpu_layers)?;
        let fits = |placed: &Placed| self.candidate.probed(&placed.footprints).fit();
        Ok(placed.is_some_and(|placed| placed.uses_all() && fits(&placed)))
    }
}
