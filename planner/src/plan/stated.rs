//! A placement that the request fixes, by weights that are placed apart from their layer (`--override-tensor`,
//! `--n-cpu-moe`) or by proportions in which GPUs share the layers (`--tensor-split`).
//!
//! The planner chooses only the number of layers, if the request leaves it open: the largest number that fits.

use crate::machine::Gpu;
use crate::memory::estimate::Assignment;
use crate::memory::{
    self, ContextParams, Estimate, Footprint, Footprints, PeakSizes, Place, Split, TensorOverride, Uncertainty,
};

use super::fit::{Chosen, Levels, Room};
use super::probe::with_output;
use super::reasons::counted;
use super::{Confidence, Error, NoRoom, Planner, Probe};

/// Maximum number of probes for one stated placement. Each probe that finds too little memory lowers the number of
/// layers.
const MAX_PROBES: usize = 6;

/// A candidate: one number of layers, with the stated proportions and overrides.
struct Stated<'a> {
    room: Room<'a>,
    counts: Vec<u32>,
    split: Split,
    estimate: Estimate,
    assignment: Assignment,
}

impl Planner<'_> {
    /// Whether the request fixes the placement.
    pub(super) fn is_stated(&self) -> bool {
        !self.request.overrides.is_empty() || !self.request.tensor_split.is_empty()
    }

    /// The stated placement with the requested number of layers on GPUs. If the request states no number, the largest
    /// number that fits is used.
    pub(super) fn stated<'s>(&'s self, params: &ContextParams, probe: Option<&dyn Probe>) -> Result<Chosen<'s>, Error> {
        let layers = self.profile.full_offload();
        let range = self.request.gpu_layers.range(layers);
        if *range.start() > 0 && self.machine.gpus.is_empty() {
            return Err(Error::NoGpu { n_gpu_layers: *range.start(), why: self.machine.why_no_gpu() });
        }
        let most = if self.machine.gpus.is_empty() { 0 } else { *range.end() };
        let whole = self.stated_estimate(params)?;
        let (mut asked, mut beyond) = (0, None);
        let mut lacking: Option<(u32, Vec<super::Shortfall>)> = None;
        for n in (*range.start()..=most).rev() {
            let stated = self.stated_with(n, &whole, params)?;
            let levels = stated.levels(probe.is_some(), beyond.as_ref());
            if !(levels.fit() || (probe.is_some() && range.start() == range.end())) {
                lacking = Some((n, stated.room.shortfalls(&levels)));
                continue;
            }
            let Some(probe) = probe else {
                let fitted = stated.estimate.compute_is_fitted();
                let confidence = if fitted { Confidence::Estimated } else { Confidence::Modelled };
                return Ok(self.stated_chosen(stated, levels, params, confidence));
            };
            asked += 1;
            match probe.footprints(&stated.room.gpus, params, &stated.split) {
                Ok(footprints) => {
                    let (estimated, _) = stated.estimate.with_uncertainty(&stated.assignment);
                    let footprints = with_output(footprints, estimated.output);
                    let levels = stated.room.levels(&footprints, &Uncertainty::default());
                    if levels.fit() {
                        return Ok(self.stated_chosen(stated, levels, params, Confidence::Probed));
                    }
                    beyond = Some(excess(&footprints, &estimated));
                    lacking = Some((n, stated.room.shortfalls(&levels)));
                }
                Err(source) if source.is::<NoRoom>() && asked < MAX_PROBES && n > *range.start() => {}
                Err(source) => return Err(Error::Probe { n_gpu_layers: n, source }),
            }
            if asked == MAX_PROBES {
                break;
            }
        }
        let (n_gpu_layers, devices) = lacking.unwrap_or_default();
        let (model, n_ctx) = (self.profile.name.clone(), params.n_ctx);
        Err(Error::DoesNotFit { model, n_gpu_layers, layers, n_ctx, devices, advice: None })
    }

    /// The estimate over all GPUs of the machine, which assigns the layers to the GPUs in the stated proportions.
    fn stated_estimate(&self, params: &ContextParams) -> Result<Estimate, Error> {
        let gpus: Vec<&Gpu> = self.machine.gpus.iter().collect();
        let shares = &self.request.tensor_split;
        if let Some(share) = shares.get(gpus.len()) {
            return Err(Error::Memory(memory::Error::TensorSplit {
                index: gpus.len(),
                value: share.to_string(),
                limit: "the list has more proportions than there are GPUs",
            }));
        }
        Ok(Estimate::new(&self.profile, &gpus, params)?.tensor_split(shares)?)
    }

    /// The placement with `n` layers on GPUs. GPUs without a layer are left out.
    fn stated_with(&self, n: u32, whole: &Estimate, params: &ContextParams) -> Result<Stated<'_>, Error> {
        let mut counts = vec![0_u32; self.machine.gpus.len()];
        for place in whole.assignment(n).layers() {
            if let Place::Gpu(gpu) = place {
                counts[gpu] += 1;
            }
        }
        let used: Vec<usize> = (0..counts.len()).filter(|&gpu| counts[gpu] > 0).collect();
        let gpus: Vec<&Gpu> = used.iter().map(|&gpu| &self.machine.gpus[gpu]).collect();
        let counts: Vec<u32> = used.iter().map(|&gpu| counts[gpu]).collect();
        let mut overrides = Vec::with_capacity(self.request.overrides.len());
        for TensorOverride { pattern, place } in &self.request.overrides {
            let place = match place {
                Place::Host => Place::Host,
                Place::Gpu(gpu) => match used.iter().position(|used| used == gpu) {
                    Some(index) => Place::Gpu(index),
                    None => {
                        let reason = match self.machine.gpus.get(*gpu) {
                            Some(gpu) => format!("{} holds no layer, with {n} on GPUs", gpu.name),
                            None => format!("there is no GPU {gpu}: there are {}", self.machine.gpus.len()),
                        };
                        return Err(Error::Memory(memory::Error::Override { pattern: pattern.clone(), reason }));
                    }
                },
            };
            overrides.push(TensorOverride::new(pattern, place));
        }
        let split = Split::by_counts(&counts).overrides(overrides);
        let estimate = Estimate::new(&self.profile, &gpus, params)?.overrides(&split.overrides)?;
        let assignment = Assignment::by_counts(self.profile.n_layer(), &counts);
        let room = Room {
            unmapped_if_paging: self.request.unmapped_if_paging(&self.profile, &gpus),
            gpus,
            host: &self.machine.host,
            headroom: self.request.headroom,
            peak_sizes: PeakSizes::new(&self.profile, &params.sizes()?),
            wsl: self.machine.wsl,
            prompt_store: self.request.prompt_store,
        };
        Ok(Stated { room, counts, split, estimate, assignment })
    }

    fn stated_chosen<'s>(
        &self,
        stated: Stated<'s>,
        levels: Levels,
        params: &ContextParams,
        confidence: Confidence,
    ) -> Chosen<'s> {
        let Stated { room, counts, split, assignment, .. } = stated;
        let (n, layers) = (split.n_gpu_layers, self.profile.full_offload());
        let split_blocks = self.blocks_with_weights_on_the_host(&split, &assignment);
        let on =
            if n == 0 { "no layer on a GPU".to_owned() } else { format!("{n} of {layers} layers on {}", room.names()) };
        let parts = match split_blocks {
            0 => String::new(),
            blocks => format!(", weights of {} on the host", counted(blocks, "block")),
        };
        let stated = match (self.request.overrides.is_empty(), self.request.tensor_split.is_empty()) {
            (false, false) => "overrides and proportions",
            (false, true) => "overrides",
            _ => "proportions",
        };
        let why = (format!("{on}{parts}: by the requested {stated}"), (n > 0).then_some(';'));
        let params = params.clone();
        let cache = None;
        Chosen {
            room,
            params,
            cache,
            split,
            assignment,
            counts,
            split_blocks,
            levels,
            confidence,
            why,
            notes: Vec::new(),
        }
    }

    /// The number of blocks on GPUs with at least one weight that an override keeps on the host.
    fn blocks_with_weights_on_the_host(&self, split: &Split, assignment: &Assignment) -> u32 {
        let Ok(rules) = memory::OverrideRules::new(&split.overrides, self.machine.gpus.len()) else { return 0 };
        let blocks = self.profile.weights.blocks.iter().zip(&assignment.blocks);
        let on_gpus = blocks.filter(|(_, place)| matches!(place, Place::Gpu(_)));
        let split =
            on_gpus.filter(|(weights, _)| weights.iter().any(|weight| rules.place(&weight.name) == Some(Place::Host)));
        u32::try_from(split.count()).unwrap_or(u32::MAX)
    }
}

impl Stated<'_> {
    /// The memory of each device by the estimate. If `beyond` is given, it is added: these are the bytes by which a
    /// probe with more layers exceeded the estimate. Without a probe, the estimate's uncertainty stays free.
    fn levels(&self, is_probed: bool, beyond: Option<&Footprints>) -> Levels {
        let (mut footprints, mut unsure) = self.estimate.with_uncertainty(&self.assignment);
        if is_probed {
            unsure = Uncertainty::default();
        }
        if let Some(beyond) = beyond {
            for (footprint, more) in footprints.gpus.iter_mut().zip(&beyond.gpus) {
                *footprint += *more;
            }
            footprints.host += beyond.host;
        }
        self.room.levels(&footprints, &unsure)
    }
}

/// Footprints whose field `compute` contains the bytes by which a probe exceeds the estimate of the same placement.
fn excess(probed: &Footprints, estimated: &Footprints) -> Footprints {
    let more = |theirs: &Footprint, ours: &Footprint| Footprint::new(0, 0, theirs.total().saturating_sub(ours.total()));
    let gpus = probed.gpus.iter().zip(&estimated.gpus).map(|(theirs, ours)| more(theirs, ours));
    Footprints::new(gpus.collect(), more(&probed.host, &estimated.host))
}
