//! How fast a placement generates, predicted: every token reads its layers from the memory that holds them, one device after the
//! other.
//!
//! That is Amdahl's law over two bandwidths, and the reason for the cliff: while any layer is on the host, its bytes pass at a
//! tenth of the GPU's speed, and no layer more on the GPU makes that part shorter. `docs/speed-model.md` holds it against a
//! published sweep.

mod rates;
mod traffic;

use serde::{Deserialize, Serialize};

use crate::memory::estimate::{Assignment, split_points};
use crate::memory::{ContextParams, Error, KvType, OverrideRules, Place, Split, TensorOverride};
use crate::profile::{ModelProfile, Weight};

pub use rates::{CROSSING, Rates};
pub use traffic::Traffic;
pub(super) use traffic::used_bytes;

/// How fast a plan generates, predicted. Speeds in tokens per second of one sequence.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Speed {
    /// Of the plan itself.
    pub tokens_per_second: f64,
    /// The tokens before the one that is generated.
    pub depth: u32,
    /// The same with every layer on the host.
    pub all_on_host: f64,
    /// The same with every layer on the plan's GPUs, as if they had room; `None` without GPUs.
    pub all_on_gpus: Option<f64>,
    /// Of whole layers by `n_gpu_layers`, from 0 to all, on the plan's GPUs, whether or not they fit; empty without GPUs.
    pub curve: Vec<f64>,
    /// Bytes per second that each of the plan's GPUs is taken to read while it generates.
    pub gpu_rates: Vec<f64>,
    /// The same of the host.
    pub host_rate: f64,
    /// Whether every rate in it was measured, rather than read off a data sheet.
    pub measured: bool,
}

impl Speed {
    /// Of a placement of this model; `None` where nothing says how fast one of its devices reads.
    pub(super) fn of(
        profile: &ModelProfile,
        params: &ContextParams,
        depth: u32,
        assignment: &Assignment,
        split: &Split,
        rates: Rates,
    ) -> Result<Option<Self>, Error> {
        if !rates.known {
            return Ok(None);
        }
        let measured = rates.measured;
        let n_gpus = rates.gpus.len();
        let read = |rate: &Rate| rate.bytes_per_second.round();
        let (gpu_rates, host_rate) = (rates.gpus.iter().map(read).collect(), read(&rates.host));
        let traffic = Traffic::of(profile, &counted(params), depth);
        let plain = SpeedModel::new(traffic, rates.gpus, rates.host)
            .per_crossing(CROSSING)
            .kv_on_host(!params.offload_kqv);
        let on_gpus = |n| {
            // By the plan's own shares.
            let points = split_points(&split.tensor_split[..]);
            let points = points.unwrap_or_default();
            let points = if points.is_empty() { vec![1.0] } else { points };
            rounded(plain.tokens_per_second(&Assignment::new(profile.n_layer(), n, &points)))
        };
        let curve: Vec<f64> = match n_gpus {
            0 => Vec::new(),
            _ => (0..=profile.full_offload()).map(on_gpus).collect(),
        };
        let host = Assignment::new(profile.n_layer(), 0, &[]);
        Ok(Some(Self {
            depth,
            all_on_host: rounded(plain.tokens_per_second(&host)),
            all_on_gpus: curve.last().copied(),
            tokens_per_second: rounded(
                plain
                    .clone()
                    .overrides(profile, &split.overrides)?
                    .tokens_per_second(assignment),
            ),
            curve,
            gpu_rates,
            host_rate,
            measured,
        }))
    }
}

/// How fast a device gets through its layers.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Rate {
    /// Bytes per second that it really reads while it computes, which is less than its data sheet says.
    pub bytes_per_second: f64,
    /// Seconds that a layer takes whatever its size: launches, barriers.
    pub seconds_per_layer: f64,
}

impl Rate {
    /// A device that reads so many bytes per second and loses no time between layers.
    #[must_use]
    pub const fn new(bytes_per_second: f64) -> Self {
        Self {
            bytes_per_second,
            seconds_per_layer: 0.0,
        }
    }

    /// Sets the seconds that a layer takes whatever its size.
    #[must_use]
    pub const fn per_layer(mut self, seconds: f64) -> Self {
        self.seconds_per_layer = seconds;
        self
    }
}

/// Predicts the tokens per second of one sequence, given the rates of the devices.
#[derive(Debug, Clone, PartialEq)]
pub struct SpeedModel {
    traffic: Traffic,
    gpus: Vec<Rate>,
    host: Rate,
    seconds_per_crossing: f64,
    kv_on_host: bool,
    /// Of each layer, what a token reads elsewhere: bytes per place.
    moved: Vec<Vec<(Place, u64)>>,
}

impl SpeedModel {
    /// A model of this traffic over these devices.
    #[must_use]
    pub const fn new(traffic: Traffic, gpus: Vec<Rate>, host: Rate) -> Self {
        Self {
            traffic,
            gpus,
            host,
            seconds_per_crossing: 0.0,
            kv_on_host: false,
            moved: Vec::new(),
        }
    }

    /// Sets the seconds that it takes to hand a token's activations from one device to the next.
    #[must_use]
    pub const fn per_crossing(mut self, seconds: f64) -> Self {
        self.seconds_per_crossing = seconds;
        self
    }

    /// Sets whether keys and values stay on the host (`offload_kqv` off).
    #[must_use]
    pub const fn kv_on_host(mut self, on_host: bool) -> Self {
        self.kv_on_host = on_host;
        self
    }

    /// Puts weights of this model elsewhere than their layer. Only those of blocks count: what else there is moves as a whole.
    ///
    /// # Errors
    ///
    /// [`Error::Override`] for a pattern that is none, and for a GPU that is not there.
    pub fn overrides(
        mut self,
        profile: &ModelProfile,
        overrides: &[TensorOverride],
    ) -> Result<Self, Error> {
        let rules = OverrideRules::new(overrides, self.gpus.len())?;
        let of_block = |weights: &[Weight]| {
            let mut moved: Vec<(Place, u64)> = Vec::new();
            for weight in weights {
                let Some(place) = rules.place(&weight.name) else {
                    continue;
                };
                let bytes = used_bytes(profile, weight);
                match moved.iter_mut().find(|(known, _)| *known == place) {
                    Some((_, sum)) => *sum = sum.saturating_add(bytes),
                    None => moved.push((place, bytes)),
                }
            }
            moved
        };
        let blocks = profile.weights.blocks.iter();
        self.moved = blocks.map(|block| of_block(&block.weights)).collect();
        Ok(self)
    }

    /// A model of one GPU whose two rates follow from two measured speeds: all on the host, and all on the GPU. `None` where a
    /// speed is not above 0.
    #[must_use]
    pub fn calibrated(traffic: Traffic, all_on_host: f64, all_on_gpu: f64) -> Option<Self> {
        let speeds = [all_on_host, all_on_gpu];
        if !speeds.iter().all(|speed| speed.is_finite() && *speed > 0.0) {
            return None;
        }
        let bytes = as_float(traffic.total());
        let [host, gpu] = speeds.map(|speed| Rate::new(bytes * speed));
        Some(Self::new(traffic, vec![gpu], host))
    }

    /// Seconds per generated token.
    #[must_use]
    pub fn seconds(&self, assignment: &Assignment) -> f64 {
        // The embedding of the token comes from the host.
        let mut at = Place::Host;
        let mut seconds = 0.0;
        for (layer, place) in assignment.layers().enumerate() {
            let rate = self.rate(place);
            let bytes = |of: &[u64]| of.get(layer).copied().unwrap_or(0);
            let mut weights = bytes(&self.traffic.weights);
            let moved = self.moved.get(layer).map_or(&[][..], Vec::as_slice);
            for &(other, bytes) in moved.iter().filter(|(other, _)| *other != place) {
                weights = weights.saturating_sub(bytes);
                seconds += as_float(bytes) / self.rate(other).bytes_per_second;
                // There and back.
                seconds += 2.0 * self.seconds_per_crossing;
            }
            let kv = bytes(&self.traffic.kv);
            seconds += as_float(weights) / rate.bytes_per_second;
            if self.kv_on_host && place != Place::Host && kv > 0 {
                seconds += as_float(kv) / self.host.bytes_per_second;
                seconds += 2.0 * self.seconds_per_crossing;
            } else {
                seconds += as_float(kv) / rate.bytes_per_second;
            }
            seconds += rate.seconds_per_layer;
            if place != at {
                seconds += self.seconds_per_crossing;
                at = place;
            }
        }
        seconds
    }

    /// Generated tokens per second.
    #[must_use]
    pub fn tokens_per_second(&self, assignment: &Assignment) -> f64 {
        1.0 / self.seconds(assignment)
    }

    fn rate(&self, place: Place) -> &Rate {
        match place {
            Place::Gpu(gpu) => self.gpus.get(gpu).unwrap_or(&self.host),
            Place::Host => &self.host,
        }
    }
}

/// Parameters by which a plan's traffic is counted: keys and values of small types as if they were of 16 bits. Fewer bytes are read, but
/// each must be decoded, and measured generation is no faster for it.
pub(crate) fn counted(params: &ContextParams) -> ContextParams {
    let plain = |ty: KvType| if ty.is_quantized() { KvType::F16 } else { ty };
    ContextParams {
        type_k: plain(params.type_k),
        type_v: plain(params.type_v),
        ..params.clone()
    }
}

/// With four decimals: more is no prediction, and so few are read back from text as they were.
fn rounded(speed: f64) -> f64 {
    (speed * 1e4).round() / 1e4
}

#[allow(clippy::cast_precision_loss)] // bytes of a model: to a millionth of a millionth
const fn as_float(bytes: u64) -> f64 {
    bytes as f64
}
