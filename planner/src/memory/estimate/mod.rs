//! The estimate: what a placement takes, by arithmetic over the header; microseconds per placement.
//!
//! | part | how good |
//! |---|---|
//! | weights | exact to the byte for any list of GPUs, `tensor_split` and overrides, see [`Estimate::is_exact`] |
//! | keys and values, recurrent state | the same for [`StateLaw::Known`](crate::profile::StateLaw), an upper bound for
//! most others |
//! | compute | a formula, within 3 % or 32 MiB of a device's total in 95 % of cases: [`Estimate::with_uncertainty`] |

pub mod assignment;
mod buffers;
mod cost;
mod host_memory;
mod kv;
mod weights;

use std::sync::Arc;

use crate::machine::Gpu;
use crate::profile::{ModelProfile, StateLaw, Weight};

use self::buffers::Buffers;
use self::cost::{Cost, Share};
use self::host_memory::Pinned;
use self::kv::KvTable;
use self::weights::WeightTable;
use super::backend::{BackendRules, Family};
use super::pattern::OverrideRules;
use super::{ContextParams, ContextSizes, Error, FileFacts, FlashAttention, Footprints, TensorOverride};

pub use assignment::{Assignment, Place, split_points};
pub(crate) use kv::full_windows;

/// Bytes by which the compute buffers of a placement may be larger than estimated, by device. None by default.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Uncertainty {
    /// One per GPU, in the order in which the GPUs were given.
    pub gpus: Vec<u64>,
    /// The host.
    pub host: u64,
}

/// What placements of one model on given GPUs take, for one set of parameters.
#[derive(Debug, Clone)]
#[must_use]
pub struct Estimate {
    n_layer: u32,
    n_gpus: usize,
    points: Vec<f32>,
    weights: WeightTable,
    kv: Arc<KvTable>,
    compute: Buffers,
    output: u64,
    sizes: ContextSizes,
    known: bool,
    exact: bool,
}

impl Estimate {
    /// Prepares the estimate: sums up each layer once. The GPUs' free bytes are the proportions of the split, as in
    /// llama.cpp.
    ///
    /// # Errors
    ///
    /// [`Error`] where llama.cpp would refuse the parameters or end the process.
    pub fn new(profile: &ModelProfile, gpus: &[&Gpu], params: &ContextParams) -> Result<Self, Error> {
        Self::over(profile, gpus, params, None)
    }

    /// The same weights, in the same places, in a context with other parameters, which map and rearrange them alike.
    pub(crate) fn with_params(
        &self,
        profile: &ModelProfile,
        gpus: &[&Gpu],
        params: &ContextParams,
    ) -> Result<Self, Error> {
        let mut estimate = Self::over(profile, gpus, params, Some(self.weights.clone()))?;
        estimate.compute.overridden = self.compute.overridden;
        Ok(estimate)
    }

    fn over(
        profile: &ModelProfile,
        gpus: &[&Gpu],
        params: &ContextParams,
        weights: Option<WeightTable>,
    ) -> Result<Self, Error> {
        let mut params = params.clone().mapped_for(FileFacts::of(profile), gpus);
        if profile.architecture == "grok" {
            // llama.cpp fuses none of its attention (llama-context.cpp, `llama_init_from_model`).
            params.flash_attn = FlashAttention::Off;
        }
        let params = &params;
        let sizes = params.sizes()?;
        params.check_kv_types(&profile.hparams)?;
        let (type_k, type_v) = (params.type_k, params.type_v);
        if type_k != type_v && profile.state.is_compressed() {
            return Err(Error::KvTypesDiffer { type_k, type_v });
        }
        let (rules, exactly): (Vec<BackendRules>, Vec<bool>) = gpus.iter().map(|gpu| BackendRules::of_gpu(gpu)).unzip();
        let free: Vec<f32> = gpus.iter().map(|gpu| gpu.free as f32).collect();
        let pinned = Pinned::by(gpus);
        let kv = Arc::new(KvTable::new(profile, &rules, params, &sizes));
        let known = matches!(profile.state, StateLaw::Known { .. }) && profile.weights.unplaced.is_empty();
        let known_host = match pinned {
            // How many buffers it makes depends on the order of the weights.
            Pinned::Yes(Family::Vulkan) => params.mmap,
            pinned => pinned != Pinned::Perhaps,
        };
        let cells = (kv.window_cells, matches!(pinned, Pinned::Yes(_)));
        Ok(Self {
            n_layer: profile.n_layer(),
            n_gpus: gpus.len(),
            points: split_points(&free)?,
            weights: weights.unwrap_or_else(|| WeightTable::new(profile, &rules, pinned, params)),
            compute: Buffers::new(profile, gpus, params, &sizes, cells),
            kv,
            output: params.output_bytes(profile, &sizes),
            sizes,
            known,
            exact: known && known_host && !exactly.contains(&false),
        })
    }

    /// Splits the layers by these proportions instead of by the GPUs' free bytes, as llama.cpp does with
    /// `tensor_split`: where all of them are 0, or none is given, by the free bytes after all.
    ///
    /// # Errors
    ///
    /// [`Error::TensorSplit`] for what cannot be a proportion.
    pub fn tensor_split(mut self, tensor_split: &[f32]) -> Result<Self, Error> {
        if let Some(parts) = assignment::proportions(tensor_split, self.n_gpus)? {
            self.points = split_points(&parts)?;
        }
        Ok(self)
    }

    /// Puts weights elsewhere than their layer: for each weight the first pattern found in its name decides. Caches
    /// stay with the layers.
    ///
    /// # Errors
    ///
    /// [`Error::Override`] for a pattern that is no regular expression and for a place that does not exist.
    pub fn overrides(self, overrides: &[TensorOverride]) -> Result<Self, Error> {
        if overrides.is_empty() {
            return Ok(self);
        }
        let rules = OverrideRules::new(overrides, self.n_gpus)?;
        Ok(self.placing(&|name| rules.place(name)))
    }

    /// Puts weights elsewhere than their layer, by name. Also where nothing is moved llama.cpp keeps no copies of a
    /// graph in flight (llama-context.cpp, the constructor).
    pub(crate) fn placing(mut self, place: &dyn Fn(&str) -> Option<Place>) -> Self {
        self.weights = self.weights.overridden(place);
        self.compute.overridden = true;
        self
    }

    /// Where each layer goes with so many layers on the GPUs.
    pub fn assignment(&self, n_gpu_layers: u32) -> Assignment {
        Assignment::new(self.n_layer, n_gpu_layers, &self.points)
    }

    /// Bytes per device with so many layers on the GPUs.
    pub fn footprints(&self, n_gpu_layers: u32) -> Footprints {
        self.with_uncertainty(&self.assignment(n_gpu_layers)).0
    }

    /// Weights and caches alone, without `compute`: what is exact, and cheap enough to rule out hopeless placements.
    pub fn stored(&self, assignment: &Assignment) -> Footprints {
        self.cost(assignment).footprints()
    }

    fn cost(&self, assignment: &Assignment) -> Cost {
        let mut cost = Cost { gpus: vec![Share::default(); self.n_gpus], ..Cost::default() };
        self.weights.add_to(&mut cost, assignment);
        self.kv.add_to(&mut cost, assignment);
        cost
    }

    /// Bytes that a layer adds to a device, to the host about: its weights, and its cache where that lies with it. The
    /// output layer is number `n_layer`.
    pub(crate) fn layer_bytes(&self, place: Place, il: u32) -> u64 {
        self.weights.layer_bytes(place, il as usize).saturating_add(self.kv.block_bytes(place, il as usize))
    }

    /// Bytes that a weight takes on a GPU by the rules of its backend.
    pub fn weight_bytes(&self, gpu: usize, weight: &Weight) -> u64 {
        self.weights.weight_bytes(gpu, weight)
    }

    /// Bytes per device with the layers where the assignment puts them, and those by which the compute buffers may be
    /// larger: an eighth of them and of the logits, at least 8 MiB, and more for what the formula cannot see.
    ///
    /// The assignment is one of this model's, on these GPUs: a layer on a GPU that the estimate was not given counts as
    /// the host's.
    pub fn with_uncertainty(&self, assignment: &Assignment) -> (Footprints, Uncertainty) {
        let cost = self.cost(assignment);
        let (gpus, host) = self.compute.bytes(assignment, &cost);
        let mut footprints = cost.footprints();
        for (footprint, compute) in footprints.gpus.iter_mut().zip(&gpus) {
            footprint.compute = compute.bytes;
        }
        footprints.host.compute = host.bytes.saturating_add(self.output);
        footprints.output = self.output;
        let uncertainty = Uncertainty { gpus: gpus.iter().map(|buffer| buffer.unsure).collect(), host: host.unsure };
        (footprints, uncertainty)
    }

    /// The sizes that llama.cpp makes of the parameters.
    pub const fn sizes(&self) -> &ContextSizes {
        &self.sizes
    }

    /// Whether the compute buffers come from a formula that was fitted on models of this kind: attention over
    /// everything, over windows, or over compressed keys.
    pub const fn compute_is_fitted(&self) -> bool {
        self.compute.fitted
    }

    /// Whether weights and cache follow laws that we know.
    pub const fn is_known(&self) -> bool {
        self.known
    }

    /// Whether weights and cache are llama.cpp's to the byte: their laws are known, and so are the rules by which each
    /// GPU lays them out. Otherwise they may be more than it takes, and where Vulkan pins the host's memory some 32
    /// bytes per GiB more or less.
    pub const fn is_exact(&self) -> bool {
        self.exact
    }
}
