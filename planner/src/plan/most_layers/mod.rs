//! The most layers: the largest safe number of whole layers on GPUs, on as few of them as take so many, evenly filled.

mod candidate;
mod reasons;
mod search;
mod spread;

use std::cmp::Reverse;

use crate::machine::{Gpu, GpuKind, Machine};
use crate::memory::estimate::Assignment;
use crate::memory::{ContextParams, Estimate, Split, Workload};
use crate::profile::ModelProfile;

use super::chosen::Chosen;
use super::fit::{Levels, Room};
use super::{Confidence, Error, GpuLayers, Probe, Request};

use self::candidate::{Asked, Candidate, Choice};

pub use self::search::{largest_fitting, refine};

/// Bytes of weights and caches that no error of an estimate makes up for.
const HOPELESS: u64 = 1 << 30;

/// The most GPUs that llama.cpp schedules beside the CPU (ggml-backend.cpp, `GGML_SCHED_MAX_BACKENDS`).
pub(super) const MOST_GPUS: usize = 15;

/// All that placements of whole layers are made of.
pub(super) struct MostLayers<'a> {
    profile: &'a ModelProfile,
    machine: &'a Machine,
    request: &'a Request,
    params: ContextParams,
}

impl<'a> MostLayers<'a> {
    /// `params` are the request's, every default resolved.
    pub(super) const fn new(
        profile: &'a ModelProfile,
        machine: &'a Machine,
        request: &'a Request,
        params: ContextParams,
    ) -> Self {
        Self {
            profile,
            machine,
            request,
            params,
        }
    }

    /// By the estimate: of single GPUs the one with the largest budget, then the first.
    ///
    /// # Errors
    ///
    /// [`Error::DoesNotFit`] where it fits nowhere.
    pub(super) fn choose(&self) -> Result<Chosen<'a>, Error> {
        let candidates = self.candidates()?;
        let max = self.max_layers();
        let (gpus, host) = candidates.split_at(candidates.len() - 1);
        let mut best: Option<(&Candidate<'_>, Choice)> = None;
        for candidate in gpus {
            // From few GPUs to many: more of them are worth it for more layers only.
            let enough = |(known, choice): &(&Candidate<'_>, Choice)| {
                choice.n_gpu_layers == max && known.room.gpus.len() < candidate.room.gpus.len()
            };
            if best.as_ref().is_some_and(enough) {
                break;
            }
            let choice = match self.request.gpu_layers {
                GpuLayers::Exactly(_) if max > 0 => candidate
                    .holds(max)
                    .then(|| Choice::of(candidate, max, None)),
                _ => self.largest(candidate, max),
            };
            let Some(choice) = choice else { continue };
            let key = |candidate: &Candidate<'_>, choice: &Choice| {
                let few = Reverse(candidate.room.gpus.len());
                (choice.n_gpu_layers, few, choice.levels.budget())
            };
            let better =
                |(known, old): &(&Candidate<'_>, Choice)| key(candidate, &choice) > key(known, old);
            if best.as_ref().is_none_or(better) {
                best = Some((candidate, choice));
            }
        }
        if best.is_none() && self.host_alone_is_asked_for(max) {
            let choice = Choice::of(&host[0], 0, None);
            best = choice.levels.fit().then_some((&host[0], choice));
        }
        let Some((candidate, choice)) = best else {
            return Err(self.does_not_fit(self.all_estimated(&candidates, max)));
        };
        let confidence = if candidate.estimate.compute_is_fitted() {
            Confidence::Estimated
        } else {
            Confidence::Modelled
        };
        Ok(self.chosen(candidate, &candidates, &choice, confidence))
    }

    /// By llama.cpp's own numbers: the estimate says where to look, the probe decides. The accepted placement has been
    /// probed, and so has the one with a layer more, unless that does not exist.
    ///
    /// # Errors
    ///
    /// As [`choose`](Self::choose); [`Error::Probe`] where the probe fails on a GPU and no other one will do.
    pub(super) fn choose_probed(&self, probe: &dyn Probe) -> Result<Chosen<'a>, Error> {
        let candidates = self.candidates()?;
        let max = self.max_layers();
        let (gpus, host) = candidates.split_at(candidates.len() - 1);
        let mut ranked: Vec<(&Candidate<'_>, u32)> = gpus
            .iter()
            .map(|candidate| {
                let largest = self.largest(candidate, max);
                (candidate, largest.map_or(0, |choice| choice.n_gpu_layers))
            })
            .collect();
        // Stable: equals stay in the machine's order.
        ranked.sort_by_key(|&(candidate, n)| {
            let few = Reverse(candidate.room.gpus.len());
            Reverse((n, few, candidate.estimated(n.max(1)).budget()))
        });
        let mut seen = Vec::new();
        let mut best: Option<(&Candidate<'_>, Choice)> = None;
        let mut failed: Option<(&Candidate<'_>, Error)> = None;
        let mut no_room: Option<Error> = None;
        for (candidate, start) in ranked.into_iter().filter(|_| max > 0) {
            let hopeful = self.hopeful(candidate, start, max);
            // As many layers as the probe might still find room for here.
            let reach = hopeful.first().map_or(start, |&most| most.max(start));
            if best
                .as_ref()
                .is_some_and(|(_, best)| best.n_gpu_layers >= reach)
            {
                continue;
            }
            let asked = Asked::new(probe, candidate);
            let found = self.probe_one(&asked, start, max, &hopeful);
            let answers = asked.into_answers();
            no_room = no_room.or(answers.no_room);
            match found {
                Ok(Some(choice)) => {
                    let more = |(_, best): &(_, Choice)| choice.n_gpu_layers > best.n_gpu_layers;
                    if best.as_ref().is_none_or(more) {
                        best = Some((candidate, choice));
                    }
                }
                // What one device refuses another may take.
                Ok(None) => failed = failed.or(answers.refusal.map(|error| (candidate, error))),
                Err(error) => failed = failed.or(Some((candidate, error))),
            }
            let answers = answers.placed.into_iter().rev();
            seen.extend(
                answers.map(|(n, answer)| (n, candidate, candidate.probed(&answer.footprints))),
            );
        }
        if let Some((candidate, choice)) = best {
            let mut chosen = self.chosen(candidate, &candidates, &choice, Confidence::Probed);
            if let Some((failing, error)) = failed {
                let names = failing.room.names();
                chosen.notes.push(format!("{names} was left out: {error}"));
            }
            return Ok(chosen);
        }
        // Falling back to the host would hide the reason behind a slow model.
        if let Some((_, error)) = failed {
            return Err(error);
        }
        if self.host_alone_is_asked_for(max) {
            let candidate = &host[0];
            let placed = Asked::new(probe, candidate).look(0)?;
            let choice = Choice {
                n_gpu_layers: 0,
                counts: placed.counts,
                levels: candidate.probed(&placed.footprints),
                above: None,
            };
            if choice.levels.fit() {
                return Ok(self.chosen(candidate, &candidates, &choice, Confidence::Probed));
            }
            seen.push((0, candidate, choice.levels));
        }
        match no_room {
            Some(error) if seen.is_empty() => Err(error),
            _ => Err(self.does_not_fit(seen)),
        }
    }

    /// The most layers that fit these GPUs by the probe.
    fn probe_one(
        &self,
        asked: &Asked<'_, '_>,
        start: u32,
        max: u32,
        hopeful: &[u32],
    ) -> Result<Option<Choice>, Error> {
        let candidate = asked.candidate;
        let exactly = self.request.gpu_layers != GpuLayers::Auto;
        let found = if exactly {
            asked.holds(max)?.then_some(max)
        } else {
            refine(start, max, hopeful, |n| asked.holds(n))?
        };
        let Some(n_gpu_layers) = found else {
            return Ok(None);
        };
        let levels = |n| -> Result<_, Error> {
            let placed = asked.placed(n)?;
            Ok(placed.map(|placed| (candidate.probed(&placed.footprints), placed.counts)))
        };
        let above = if exactly || n_gpu_layers == max {
            None
        } else {
            levels(n_gpu_layers + 1)?.map(|(above, _)| above)
        };
        Ok(levels(n_gpu_layers)?.map(|(levels, counts)| Choice {
            n_gpu_layers,
            counts,
            levels,
            above,
        }))
    }

    /// Each GPU with free memory, then sets of two, of three, ..., and the host alone as the last.
    fn candidates(&self) -> Result<Vec<Candidate<'a>>, Error> {
        if let GpuLayers::Exactly(n @ 1..) = self.request.gpu_layers
            && self.machine.gpus.iter().all(|gpu| gpu.free == 0)
        {
            return Err(Error::NoGpu { n_gpu_layers: n });
        }
        let params = &self.params;
        let usable = self.machine.gpus.iter().filter(|gpu| gpu.free > 0);
        // One in the host's memory reads no faster than the host: it never stands in for a card, and llama.cpp leaves
        // it out beside one too (src/llama.cpp, `llama_prepare_model_devices`). Where so many layers are asked for, it
        // may be what holds them.
        let (mut shared, own): (Vec<&Gpu>, Vec<&Gpu>) =
            usable.partition(|gpu| gpu.kind == GpuKind::Integrated);
        if self.request.gpu_layers == GpuLayers::Auto && !own.is_empty() {
            shared.clear();
        }
        let alone: Vec<Vec<&Gpu>> = own.iter().chain(&shared).map(|&gpu| vec![gpu]).collect();
        alone
            .into_iter()
            .chain(together(own))
            .chain([Vec::new()])
            .map(|gpus| {
                let estimate = Estimate::new(self.profile, &gpus, params)?;
                let room = Room {
                    gpus,
                    host: &self.machine.host,
                    headroom: self.request.headroom,
                    wsl: self.machine.wsl,
                    paging: self.request.pages(self.profile),
                    workload: Workload::of(self.profile, estimate.sizes()),
                };
                let n_layer = self.profile.n_layer();
                Ok(Candidate::new(room, estimate, params.clone(), n_layer))
            })
            .collect()
    }

    /// The most layers that may be placed on a GPU: all, or those asked for.
    fn max_layers(&self) -> u32 {
        match self.request.gpu_layers {
            GpuLayers::Auto => self.profile.full_offload(),
            GpuLayers::Exactly(n) => n.min(self.profile.full_offload()),
        }
    }

    fn host_alone_is_asked_for(&self, max: u32) -> bool {
        self.request.gpu_layers == GpuLayers::Auto || max == 0
    }

    /// The largest number of layers that fits by the estimate.
    fn largest(&self, candidate: &Candidate<'_>, max: u32) -> Option<Choice> {
        largest_fitting(max, |n| candidate.holds(n)).map(|n| {
            let above = (n < max).then(|| candidate.estimated(n + 1));
            Choice::of(candidate, n, above)
        })
    }

    /// Numbers of layers above the estimate's answer that lack so little that the probe may find them to fit:
    /// within the estimate's own bar of error. Full offload among them is where the hump of borrowed weights ends.
    /// Where nothing fits, the number that lacks the least is among them: if the probe finds no room either, the
    /// error is about that one.
    fn hopeful(&self, candidate: &Candidate<'_>, start: u32, max: u32) -> Vec<u32> {
        let mut hopeful: Vec<u32> = (start + 1..=max)
            .rev()
            .filter(|&n| {
                // Weights and caches are mostly what is missing, and they are exact and known in no time.
                if candidate.missing_at_least(n) > HOPELESS {
                    return false;
                }
                let levels = candidate.estimated(n);
                let assignment = candidate.estimate.assignment(n);
                let unsure = candidate.estimate.uncertainty(&assignment).of_gpus();
                levels.missing() <= levels.bar().saturating_add(unsure.saturating_mul(2))
            })
            .take(2)
            .collect();
        if start == 0 {
            let lack = |&n: &u32| candidate.estimated(n).lack();
            hopeful.extend((1..=max).min_by_key(lack));
            hopeful.sort_unstable_by(|a, b| b.cmp(a));
            hopeful.dedup();
        }
        hopeful
    }

    /// Every placement that was asked for, by the estimate: those with most layers on a GPU first, the host alone last.
    fn all_estimated<'c>(
        &self,
        candidates: &'c [Candidate<'a>],
        max: u32,
    ) -> Vec<(u32, &'c Candidate<'a>, Levels)> {
        let mut all = Vec::new();
        for candidate in candidates {
            let numbers = match (candidate.room.gpus.len(), self.request.gpu_layers) {
                (1.., GpuLayers::Auto) => 1..=max,
                (1.., GpuLayers::Exactly(_)) if max > 0 => max..=max,
                (0, _) if self.host_alone_is_asked_for(max) => 0..=0,
                _ => continue,
            };
            all.extend(
                numbers
                    .rev()
                    .map(|n| (n, candidate, candidate.estimated(n))),
            );
        }
        all
    }

    /// The error for a model that fits nowhere. Of the placements that were looked at it shows the one that
    /// lacks the least, of those that lack it on one device only if there are any: what is missing here could
    /// always be missing there.
    fn does_not_fit(&self, seen: Vec<(u32, &Candidate<'_>, Levels)>) -> Error {
        let least = seen.into_iter().min_by_key(|(_, _, levels)| levels.lack());
        let (n_gpu_layers, devices) = least.map_or_else(
            || (self.max_layers(), Vec::new()),
            |(n, candidate, levels)| (n, candidate.room.shortfalls(&levels)),
        );
        Error::DoesNotFit {
            model: self.profile.name.clone(),
            n_gpu_layers,
            layers: self.profile.full_offload(),
            n_ctx: self.params.n_ctx,
            devices,
        }
    }

    fn chosen(
        &self,
        candidate: &Candidate<'a>,
        all: &[Candidate<'a>],
        choice: &Choice,
        confidence: Confidence,
    ) -> Chosen<'a> {
        let layers = self.profile.full_offload();
        let notes = reasons::unused(candidate, all);
        Chosen {
            room: candidate.room.clone(),
            params: candidate.params.clone(),
            split: Split::by_counts(&choice.counts),
            assignment: Assignment::by_counts(self.profile.n_layer(), &choice.counts),
            counts: choice.counts.clone(),
            parted_blocks: 0,
            levels: choice.levels.clone(),
            confidence,
            why: reasons::why(layers, self.request, candidate, all, choice),
            notes: notes.into_iter().collect(),
        }
    }
}

/// As many GPUs as every set of them is looked at.
const ALL_SETS: usize = 4;

/// Of several GPUs every set of two, of three, and so on, each in the machine's order. Of more than four the two with
/// most free memory, the three, and so on.
fn together(gpus: Vec<&Gpu>) -> Box<dyn Iterator<Item = Vec<&Gpu>> + '_> {
    if gpus.len() <= ALL_SETS {
        let mut sets: Vec<u32> = (0..1 << gpus.len())
            .filter(|set: &u32| set.count_ones() > 1)
            .collect();
        sets.sort_by_key(|set| set.count_ones());
        let members = move |set: u32| {
            let each = gpus.iter().enumerate();
            let members = each.filter(|(index, _)| set & (1 << index) != 0);
            members.map(|(_, &gpu)| gpu).collect()
        };
        return Box::new(sets.into_iter().map(members));
    }
    let mut by_free: Vec<usize> = (0..gpus.len()).collect();
    by_free.sort_by_key(|&index| Reverse(gpus[index].free));
    let sets = (2..=gpus.len().min(MOST_GPUS)).map(move |n| {
        let mut best = by_free[..n].to_vec();
        best.sort_unstable();
        best.into_iter().map(|index| gpus[index]).collect()
    });
    Box::new(sets)
}
