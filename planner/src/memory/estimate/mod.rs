//! The estimate: arithmetic over the header that gives a placement's memory in microseconds.
//!
//! - Weights are exact to the byte for any list of GPUs, `tensor_split` and overrides: [`Estimate::is_exact`].
//! - Keys, values and recurrent states are exact for [`KvLayout::Known`](crate::profile::KvLayout). For most other
//!   models they are an upper bound.
//! - Compute buffers come from a formula. In 95 % of cases its error is at most 3 % of the device's total, or at most
//!   32 MiB: [`Estimate::with_uncertainty`].

pub mod assignment;
mod buffers;
mod cost;
mod experts;
mod host_memory;
mod kv;
mod weights;

use std::sync::Arc;

use crate::machine::Gpu;
use crate::profile::{KvLayout, ModelProfile, Weight};

use self::buffers::Buffers;
use self::cost::{Cost, Share};
use self::host_memory::Pinned;
use self::kv::KvTable;
use self::weights::WeightTable;
use super::backend::{BackendRules, Family};
use super::pattern::OverrideRules;
use super::{ContextParams, ContextSizes, Error, FileFacts, FlashAttention, Footprints, TensorOverride};

pub use assignment::{Assignment, Place, split_points};
pub use experts::ExpertCache;
pub(crate) use kv::full_windows;

/// Bytes by which a placement's compute buffers may exceed the estimate, by device. The default is 0.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Uncertainty {
    /// One entry per GPU, in the caller's order of GPUs.
    pub gpus: Vec<u64>,
    /// The host's entry.
    pub host: u64,
}

/// The memory of all placements of one model on given GPUs, for one set of parameters.
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
    /// Bytes of the cache of experts over all GPUs.
    moe_cache_size: u64,
    /// The largest number of experts that a token uses in a layer.
    n_expert_used: u32,
}

impl Estimate {
    /// Prepares the estimate by summing up each layer once. Layers are split in proportion to the GPUs' free bytes, as
    /// in llama.cpp.
    ///
    /// # Errors
    ///
    /// [`Error`] if llama.cpp would reject the parameters or abort the process.
    pub fn new(profile: &ModelProfile, gpus: &[&Gpu], params: &ContextParams) -> Result<Self, Error> {
        Self::over(profile, gpus, params, None)
    }

    /// The estimate for another context, with the same weights in the same places. Both contexts must have the same
    /// parameters for mapping and rearranging weights.
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
        let mut params = params.clone().mapped_for(FileFacts::from_profile(profile), gpus);
        if profile.architecture == "grok" {
            // llama.cpp never fuses Grok's attention (llama-context.cpp, `llama_init_from_model`).
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
        let pinned = Pinned::from_gpus(gpus);
        let kv = Arc::new(KvTable::new(profile, &rules, params, &sizes));
        let known = matches!(profile.state, KvLayout::Known { .. })
            && profile.weights.unplaced.is_empty()
            && !profile.transforms_inputs;
        let known_host = match pinned {
            // The number of buffers depends on the order of the weights.
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
            moe_cache_size: params.moe_cache_size,
            n_expert_used: profile.hparams.experts.map_or(0, |experts| experts.used),
            exact: known && known_host && !exactly.contains(&false),
        })
    }

    /// Splits the layers by these proportions instead of the GPUs' free bytes, as llama.cpp's `tensor_split` does. If
    /// all proportions are 0 or there are none, the free bytes still decide.
    ///
    /// # Errors
    ///
    /// [`Error::TensorSplit`] for an invalid proportion.
    pub fn tensor_split(mut self, tensor_split: &[f32]) -> Result<Self, Error> {
        if let Some(parts) = assignment::proportions(tensor_split, self.n_gpus)? {
            self.points = split_points(&parts)?;
        }
        Ok(self)
    }

    /// Places weights apart from their layer. The first pattern that matches a weight's name decides. The caches stay
    /// with their layers.
    ///
    /// # Errors
    ///
    /// [`Error::Override`] for an invalid regular expression and for a GPU that does not exist.
    pub fn overrides(self, overrides: &[TensorOverride]) -> Result<Self, Error> {
        if overrides.is_empty() {
            return Ok(self);
        }
        let rules = OverrideRules::new(overrides, self.n_gpus)?;
        Ok(self.placing(&|name| rules.place(name)))
    }

    /// Places weights apart from their layer, by name. Even if no weight moves, overrides make llama.cpp keep a single
    /// copy of the graph (llama-context.cpp, the constructor).
    pub(crate) fn placing(mut self, place: &dyn Fn(&str) -> Option<Place>) -> Self {
        self.weights = self.weights.overridden(place);
        self.compute.overridden = true;
        self
    }

    /// The same estimate with a cache of experts of this many bytes over all GPUs; 0 for none.
    pub(crate) const fn with_moe_cache(mut self, bytes: u64) -> Self {
        self.moe_cache_size = bytes;
        self
    }

    /// The cache of experts under this assignment, exact to the byte.
    pub fn expert_cache(&self, assignment: &Assignment) -> ExpertCache {
        ExpertCache::new(&self.weights, self.n_expert_used, self.moe_cache_size, assignment, self.n_gpus)
    }

    /// The place of each layer with `n_gpu_layers` layers on GPUs.
    pub fn assignment(&self, n_gpu_layers: u32) -> Assignment {
        Assignment::new(self.n_layer, n_gpu_layers, &self.points)
    }

    /// Bytes per device with `n_gpu_layers` layers on GPUs.
    pub fn footprints(&self, n_gpu_layers: u32) -> Footprints {
        self.with_uncertainty(&self.assignment(n_gpu_layers)).0
    }

    /// Bytes of weights and caches, without `compute`.
    pub fn stored(&self, assignment: &Assignment) -> Footprints {
        self.cost(assignment).footprints()
    }

    fn cost(&self, assignment: &Assignment) -> Cost {
        let mut cost = Cost { gpus: vec![Share::default(); self.n_gpus], ..Cost::default() };
        self.weights.add_to(&mut cost, assignment);
        self.kv.add_to(&mut cost, assignment);
        cost
    }

    /// Bytes that a layer adds to a device: its weights, and its cache if the cache is on the same device. On the host,
    /// the bytes are approximate. For the output layer, `il` is `n_layer`.
    pub(crate) fn layer_bytes(&self, place: Place, il: u32) -> u64 {
        self.weights.layer_bytes(place, il as usize).saturating_add(self.kv.block_bytes(place, il as usize))
    }

    /// Bytes that a weight takes on a GPU by the rules of its backend.
    pub fn weight_bytes(&self, gpu: usize, weight: &Weight) -> u64 {
        self.weights.weight_bytes(gpu, weight)
    }

    /// Bytes per device under this assignment, and the bytes by which the compute buffers may exceed them: an eighth of
    /// the buffers and of the logits, at least 8 MiB, and more if there are details that the formula does not cover.
    ///
    /// The assignment must belong to this model and these GPUs. A layer on a GPU that is not in the estimate counts as
    /// a layer of the host.
    pub fn with_uncertainty(&self, assignment: &Assignment) -> (Footprints, Uncertainty) {
        let cost = self.cost(assignment);
        let (gpus, host) = self.compute.bytes(assignment, &cost);
        let mut footprints = cost.footprints();
        for (footprint, compute) in footprints.gpus.iter_mut().zip(&gpus) {
            footprint.compute = compute.bytes;
        }
        footprints.host.compute = host.bytes.saturating_add(self.output);
        footprints.output = self.output;
        if self.moe_cache_size > 0 {
            let cache = self.expert_cache(assignment);
            for (footprint, &bytes) in footprints.gpus.iter_mut().zip(&cache.gpus) {
                footprint.experts = bytes;
            }
            footprints.host.experts = cache.host;
        }
        let uncertainty = Uncertainty { gpus: gpus.iter().map(|buffer| buffer.unsure).collect(), host: host.unsure };
        (footprints, uncertainty)
    }

    /// The sizes that llama.cpp derives from the parameters.
    pub const fn sizes(&self) -> &ContextSizes {
        &self.sizes
    }

    /// Whether the formula for compute buffers was fitted on this kind of model: attention over everything, over
    /// windows, or over compressed keys.
    pub const fn compute_is_fitted(&self) -> bool {
        self.compute.fitted
    }

    /// Whether the layouts of weights and cache are known.
    pub const fn is_known(&self) -> bool {
        self.known
    }

    /// Whether weights and cache match llama.cpp to the byte. They do if their layouts and the layout rules of each GPU
    /// are known. Otherwise the estimate may exceed llama.cpp's bytes; if Vulkan pins the host's memory, the estimate
    /// may differ by about 32 bytes per GiB in either direction.
    pub const fn is_exact(&self) -> bool {
        self.exact
    }
}
