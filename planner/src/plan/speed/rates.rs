//! The rates of a machine's devices.
//!
//! [Measured](crate::machine::MeasuredRates) rates are used as they are. Where there are none, stated ratios replace
//! them; each has its source below, and the plan names the basis.

use serde::{Deserialize, Serialize};

use crate::gguf::TensorType;
use crate::machine::{
    AttentionRate, Bandwidth, BandwidthSource, Gpu, GpuKind, Host, MatrixShape, MeasuredRates, PromptRate, WeightRate,
};
use crate::memory::KvType;

use super::depths::Depths;
use super::work::{Cache, LayerWork, Matrices};

/// The share of its peak bandwidth that a GPU reads during generation: 83 % on an RTX 5060 Ti (docs/speed-model.md).
const GPU_SHARE: f64 = 0.8;
/// The share of a peak that a host reads: 65 % of two channels of DDR4-2400 (docs/speed-model.md).
const HOST_SHARE: f64 = 0.65;
/// The assumed bandwidth of an unknown card, in bytes per second: a mid-range card.
const UNKNOWN_GPU: f64 = 400e9;
/// The assumed bandwidth of an unknown host, in bytes per second: two thirds of two channels of DDR4-3200.
const UNKNOWN_HOST: f64 = 34e9;
/// Fixed seconds of a layer on a GPU: about ten kernels, each with a launch of one or two microseconds.
const GPU_LAYER: f64 = 15e-6;
/// Fixed seconds of a layer on the host: about thirty barriers between its threads.
const HOST_LAYER: f64 = 30e-6;
/// Seconds to pass a token's activations to the next device: two copies over PCIe, each with a wait.
const CROSSING: f64 = 20e-6;
/// Seconds to pass a token's activations to another machine: a round trip in a local network, with its software.
const REMOTE_CROSSING: f64 = 500e-6;
/// Bytes per second to another machine: one gigabit per second.
const REMOTE_LINK: f64 = 0.12e9;
/// Bytes per second to a card with an unknown link: PCIe 3.0 x16, of which transfers from pageable memory reach four
/// fifths.
const UNKNOWN_LINK: f64 = 12e9;
/// The share of a link's peak that transfers reach.
const LINK_SHARE: f64 = 0.8;
/// Extra seconds of a layer with experts on a GPU. Measured: 40 us on an H100. With 45 us the published speeds of four
/// models are predicted within 13 % (docs/speed-model.md).
const GPU_ROUTING: f64 = 45e-6;
/// Multiplications of attention per second and core, with keys and values of 16 bits. Published: 1.4 billion on an
/// i5-12400F with whole layers on the host, at 2,300 to 29,500 tokens (docs/ledger/speeds.csv, unslothai/unsloth#9872).
/// Measured: 0.4 to 6.8 billion at 4,096 tokens on machines with two cores of an EPYC, the lowest of them measured
/// beside other work (docs/speed-model.md).
const CORE_ATTENTION: f64 = 1.4e9;
/// Speed of a host's attention in prompts, as a share of its speed of multiplying weights. Measured: 0.42 to 0.53 (the
/// same machines).
const PROMPT_ATTENTION: f64 = 0.5;
/// The assumed cores of a host that does not report them.
const UNKNOWN_CORES: u32 = 8;
/// Floating-point operations of prompts per byte of bandwidth: the geometric mean of six cards. On an 8B model an RTX
/// 3090 computes 3491 tokens per second (ggml-org/llama.cpp#7860), which is 60; an RTX 4090 computes 10359 (#7676),
/// which is 165.
const GPU_FLOPS_PER_BYTE: f64 = 90.0;
/// Floating-point operations of prompts per second and core. Measured with 512 tokens at once: 31 to 151 billion on two
/// cores of an EPYC, the lowest measured beside other work; a Ryzen 7950X reaches 170 billion (docs/speed-model.md).
const CORE_FLOPS: f64 = 80e9;
/// Ubatch at which a GPU reaches half of its speed (the same measurements: 5420 tokens per second with 64 tokens at
/// once, 10359 with 512).
const HALF_SPEED: f64 = 64.0;

/// Weight of the matrix size against the number of tokens, in the choice of the nearest measured figure.
const SIZE_BEFORE_TOKENS: f64 = 4.0;

/// The source of a device's rates, the most reliable first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, thiserror::Error, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Basis {
    /// Real use of this kind of model on the device.
    #[error("rates of real use")]
    Used,
    /// Measurements of ggml's operations on the device.
    #[error("measured rates")]
    Measured,
    /// Measurements of ggml's operations while other work shared the device. They may be too low; the next quiet load
    /// repeats them.
    #[error("rates measured beside other work")]
    Disturbed,
    /// The driver's peak bandwidth; ratios give the other rates.
    #[error("the driver's bandwidth")]
    Driver,
    /// The data sheet's peak bandwidth; ratios give the other rates.
    #[error("data sheets")]
    DataSheet,
    /// A stated bandwidth; ratios give the other rates.
    #[error("stated bandwidth")]
    Stated,
    /// No source: a mid-range device is assumed.
    #[error("a guess")]
    Guess,
}

/// The rates of one device.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
#[must_use]
pub struct Rate {
    /// Bytes of weights read per second during generation.
    pub bytes_per_second: f64,
    /// Multiplications of attention per second, if arithmetic limits attention; `None` if the device reads keys and
    /// values as fast as weights.
    pub attention: Option<f64>,
    /// Floating-point operations per second with many tokens at once.
    pub flops: f64,
    /// Ubatch at which the device reaches half of `flops`.
    pub half_speed: f64,
    /// Fixed seconds of a layer: kernel launches, barriers.
    pub seconds_per_layer: f64,
    /// Extra seconds of a layer with experts: for choosing them and adding up their results.
    pub routing: f64,
    /// Bytes per second from the host's memory to the device.
    pub upload: f64,
    /// Seconds to pass a token's activations to or from the device.
    pub crossing: f64,
    /// The source of these rates.
    pub basis: Basis,
    pub(super) measured: Option<MeasuredRates>,
}

/// The rates of a machine's devices, by which the planner predicts speeds.
///
/// ```
/// use autoplace_planner::machine::{Gpu, Host, bytes::gib};
/// use autoplace_planner::plan::speed::{Basis, Rates};
/// let card = Gpu::named("RTX 4090").unwrap();
/// let host = Host::new(gib(64)).bandwidth(60_000_000_000);
/// // Real reads reach 80 % and 65 % of the peaks.
/// let rates = Rates::for_devices(&[&card], &host);
/// assert_eq!(rates.gpus[0].bytes_per_second, 0.8 * 1008e9);
/// assert_eq!(rates.gpus[0].basis, Basis::DataSheet);
/// assert_eq!(rates.host.bytes_per_second, 0.65 * 60e9);
/// ```
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Rates {
    /// Each GPU's rates.
    pub gpus: Vec<Rate>,
    /// The host's rates.
    pub host: Rate,
}

impl Rates {
    /// The rates of these GPUs and of the host.
    pub fn for_devices(gpus: &[&Gpu], host: &Host) -> Self {
        // An integrated GPU reads the host's memory at full speed; a CPU limit of the process does not slow it.
        let memory = Rate::for_host(host, |_| 1.0);
        let gpus = gpus.iter().map(|gpu| Rate::for_gpu(gpu, &memory)).collect();
        let host = match &host.cpu_limit {
            None => memory,
            Some(_) => Rate::for_host(host, |threads| host.share_of_time(threads)),
        };
        Self { gpus, host }
    }

    /// Rates from other sources.
    pub const fn new(gpus: Vec<Rate>, host: Rate) -> Self {
        Self { gpus, host }
    }
}

impl Rate {
    /// A device that reads `bytes_per_second` of weights, keys and values, passes from layer to layer and device to
    /// device in no time, and computes prompts like cards of that bandwidth.
    pub const fn new(bytes_per_second: f64) -> Self {
        Self {
            bytes_per_second,
            attention: None,
            flops: bytes_per_second * GPU_FLOPS_PER_BYTE,
            half_speed: HALF_SPEED,
            seconds_per_layer: 0.0,
            routing: 0.0,
            upload: UNKNOWN_LINK,
            crossing: 0.0,
            basis: Basis::Stated,
            measured: None,
        }
    }

    /// `share_of_time` returns the share of the time that a number of threads may compute. All rates shrink with it.
    /// For memory reads that is a lower bound: a few cores may read as fast as all.
    fn for_host(host: &Host, share_of_time: impl Fn(u32) -> f64) -> Self {
        let (bytes_per_second, basis) = read_rate(host.bandwidth, HOST_SHARE, UNKNOWN_HOST);
        let cores = host.usable_cores.or(host.physical_cores).unwrap_or(UNKNOWN_CORES).max(1);
        let (share, cores) = (share_of_time(cores), f64::from(cores));
        let measured = host.rates.as_ref().map(|rates| {
            let threads = rates.threads.or(host.compute_threads()).unwrap_or(UNKNOWN_CORES);
            rates.for_share_of_time(share_of_time(threads))
        });
        Self {
            attention: Some(cores * share * CORE_ATTENTION),
            flops: cores * share * CORE_FLOPS,
            half_speed: 0.0,
            basis,
            seconds_per_layer: HOST_LAYER / share,
            ..Self::new(bytes_per_second * share)
        }
        .with_measured(measured.as_ref())
    }

    fn for_gpu(gpu: &Gpu, host: &Self) -> Self {
        let (unknown, unknown_basis) = match gpu.kind {
            // It reads the host's memory.
            GpuKind::Integrated => (host.bytes_per_second, host.basis),
            // A device of another machine may be a CPU.
            GpuKind::Remote => (UNKNOWN_HOST, Basis::Guess),
            GpuKind::Discrete => (UNKNOWN_GPU, Basis::Guess),
        };
        let (bytes_per_second, basis) = read_rate(gpu.bandwidth, GPU_SHARE, unknown);
        let basis = if basis == Basis::Guess { unknown_basis } else { basis };
        let (upload, crossing) = match gpu.kind {
            GpuKind::Integrated => (bytes_per_second, CROSSING),
            GpuKind::Remote => (REMOTE_LINK, REMOTE_CROSSING),
            GpuKind::Discrete => {
                let peak = gpu.pcie.map(|link| link.max.bytes_per_second());
                (peak.map_or(UNKNOWN_LINK, |peak| peak as f64 * LINK_SHARE), CROSSING)
            }
        };
        let (seconds_per_layer, routing) = (GPU_LAYER, GPU_ROUTING);
        Self { upload, crossing, basis, seconds_per_layer, routing, ..Self::new(bytes_per_second) }
            .with_measured(gpu.rates.as_ref())
    }

    /// The same rates, replaced by measured ones where there are any.
    fn with_measured(mut self, measured: Option<&MeasuredRates>) -> Self {
        let Some(measured) = measured else {
            return self;
        };
        let mean = |is_large: bool| {
            let all = measured.weights.iter().filter(|rate| !rate.experts);
            let all = all.filter(|rate| (rate.shape == MatrixShape::default()) == is_large);
            let rates: Vec<f64> = all.map(|rate| rate.rate() as f64).collect();
            (!rates.is_empty()).then(|| rates.iter().sum::<f64>() / rates.len() as f64)
        };
        // For types that were not measured: the mean of large matrices, or else of all.
        if let Some(mean) = mean(true).or_else(|| mean(false)) {
            self.bytes_per_second = mean.max(1.0);
            self.basis = Basis::Measured;
        }
        if measured.layer_ns > 0 {
            self.seconds_per_layer = measured.layer_ns as f64 * 1e-9;
        }
        if measured.routing_ns > 0 {
            self.routing = measured.routing_ns as f64 * 1e-9;
        }
        if let Some(link) = measured.link {
            self.upload = link.upload.max(1) as f64;
            self.crossing = link.crossing_ns as f64 * 1e-9;
        }
        self.measured = Some(measured.clone());
        self
    }

    /// Fixed seconds of a layer.
    pub(super) fn constant(&self, work: &LayerWork) -> f64 {
        let has_experts = work.matrices.iter().any(|it| it.experts.is_some());
        self.seconds_per_layer + if has_experts { self.routing } else { 0.0 }
    }

    /// Seconds in which a token passes these weights.
    pub(super) fn token(&self, matrices: &Matrices) -> f64 {
        let bytes = matrices.token_bytes() as f64;
        let rate = self.weight_rate(matrices).map(|rate| rate.rate().max(1) as f64);
        bytes / rate.unwrap_or(self.bytes_per_second)
    }

    /// The measured rate for these weights: the same type, and the most similar matrices.
    pub(super) fn weight_rate(&self, matrices: &Matrices) -> Option<&WeightRate> {
        let of_type = |experts: bool| {
            let all = self.measured.iter().flat_map(|it| &it.weights);
            let of_type = all.filter(|rate| rate.experts == experts && rate.tensor_type == matrices.tensor_type);
            nearest(of_type, |rate| matrices.shape().unlike(rate.shape))
        };
        of_type(matrices.experts.is_some()).or_else(|| of_type(false))
    }

    /// The source of the device's rates for this work: real use if it covers all of its weights; disturbed if any rate
    /// was measured beside other work.
    pub(super) fn basis_of<'w>(&self, work: impl Iterator<Item = &'w LayerWork>) -> Basis {
        if self.basis != Basis::Measured {
            return self.basis;
        }
        let rates = work.flat_map(|layer| &layer.matrices).filter_map(|it| self.weight_rate(it));
        let basis_of = |rate: &WeightRate| match (&rate.used, &rate.conditions) {
            (Some(_), _) => Basis::Used,
            (None, Some(conditions)) if !conditions.is_quiet() => Basis::Disturbed,
            (None, _) => Basis::Measured,
        };
        rates.map(basis_of).max().unwrap_or(Basis::Measured)
    }

    /// Mean seconds of a token's attention over a cache at these depths.
    pub(super) fn attend(&self, cache: &Cache, depths: Depths) -> f64 {
        let measured = |ty: KvType| self.attention_rate(ty.tensor_type(), cache);
        let (k, v) = cache.types;
        let multiplications = cache.multiplications(depths);
        match (measured(k), measured(v)) {
            // Keys and values count by half each.
            (Some(k), Some(v)) => multiplications / 2.0 * (1.0 / k + 1.0 / v),
            _ => match self.attention {
                Some(rate) => multiplications / rate,
                // A small type has fewer bytes to read, but each must be decoded: measured generation is not faster.
                None => {
                    let plain = |ty: KvType| if ty.is_quantized() { KvType::F16 } else { ty };
                    let cache = Cache { types: (plain(k), plain(v)), ..*cache };
                    cache.bytes(depths) / self.bytes_per_second
                }
            },
        }
    }

    /// Multiplications per second of attention, from the nearest measurement: one with as many query heads for each key
    /// head if the keys are read once for all of them, or else one with the nearest head size.
    fn attention_rate(&self, kv_type: TensorType, cache: &Cache) -> Option<f64> {
        let nearest = self.nearest_attention(kv_type, cache)?;
        let row = kv_type.row_bytes(u64::from(nearest.head_size)).max(1);
        let elements = nearest.rate() as f64 * f64::from(nearest.head_size) / row as f64;
        Some((elements * f64::from(nearest.n_gqa)).max(1.0))
    }

    pub(super) fn nearest_attention(&self, kv_type: TensorType, cache: &Cache) -> Option<&AttentionRate> {
        let all = self.measured.iter().flat_map(|it| &it.attention);
        nearest(all.filter(|rate| rate.kv_type == kv_type), |rate| {
            cache.unlike(rate.head_size, rate.n_gqa, rate.n_head_kv)
        })
    }

    /// Seconds of a layer with `n_tokens` tokens at once beside its matrices and its attention, if measured; otherwise
    /// 0.
    pub(super) fn prompt_rest(&self, matrices: &[Matrices], n_tokens: u32) -> f64 {
        let outputs: f64 = matrices.iter().filter(|it| !it.last_token).map(|it| it.outputs).sum();
        match self.measured.as_ref().map(|it| it.activations_per_second) {
            None | Some(0) => 0.0,
            Some(rate) => outputs * f64::from(n_tokens) / rate as f64,
        }
    }

    /// Seconds in which `n_tokens` tokens at once pass these weights.
    pub(super) fn prompt(&self, matrices: &Matrices, n_tokens: u32) -> f64 {
        let operations = 2.0 * matrices.multiplications * f64::from(n_tokens);
        let flops = self.prompt_flops(matrices, n_tokens).unwrap_or_else(|| self.flops_with(n_tokens));
        (operations / flops).max(matrices.bytes(n_tokens) / self.bytes_per_second)
    }

    /// Measured operations per second for these weights and this number of tokens.
    fn prompt_flops(&self, matrices: &Matrices, n_tokens: u32) -> Option<f64> {
        self.prompt_rate(matrices, n_tokens).map(|rate| rate.rate().max(1) as f64)
    }

    /// The measured prompt rate of the type: the nearest matrix size, then the nearest number of tokens.
    pub(super) fn prompt_rate(&self, matrices: &Matrices, n_tokens: u32) -> Option<&PromptRate> {
        let experts = matrices.experts.is_some();
        let of = |tensor_type: Option<TensorType>, experts: bool| {
            let all = self.measured.iter().flat_map(|it| &it.prompts);
            let of_type =
                all.filter(|rate| tensor_type.is_none_or(|ty| rate.tensor_type == ty) && rate.experts == experts);
            let apart = |rate: &&PromptRate| {
                SIZE_BEFORE_TOKENS * matrices.shape().unlike(rate.shape) + unlike(rate.n_tokens, n_tokens)
            };
            nearest(of_type, apart)
        };
        let ty = Some(matrices.tensor_type);
        of(ty, experts).or_else(|| of(ty, false)).or_else(|| of(None, false))
    }

    /// Seconds in which `n_tokens` tokens attend to a cache at this depth.
    pub(super) fn prompt_attend(&self, cache: &Cache, n_tokens: u32, depth: Depths) -> f64 {
        let operations = 2.0 * cache.multiplications(depth) * f64::from(n_tokens);
        let all = self.measured.iter().flat_map(|it| &it.prompt_attention);
        let of_type = all.filter(|rate| rate.kv_type == cache.types.0.tensor_type());
        let nearest = nearest(of_type, |rate| cache.unlike(rate.head_size, rate.n_gqa, rate.n_head_kv));
        let flops = match (nearest, self.attention) {
            (Some(rate), _) => rate.flops.max(1) as f64,
            (None, Some(_)) => self.flops * PROMPT_ATTENTION,
            (None, None) => self.flops_with(n_tokens),
        };
        operations / flops
    }

    fn flops_with(&self, n_tokens: u32) -> f64 {
        let tokens = f64::from(n_tokens);
        self.flops * tokens / (tokens + self.half_speed)
    }
}

/// The figure that `unlike` rates as the most similar.
fn nearest<T>(figures: impl Iterator<Item = T>, unlike: impl Fn(&T) -> f64) -> Option<T> {
    figures.min_by(|a, b| unlike(a).total_cmp(&unlike(b)))
}

/// The distance of two sizes: the logarithm of their ratio.
fn unlike(a: u32, b: u32) -> f64 {
    (f64::from(a.max(1)) / f64::from(b.max(1))).ln().abs()
}

impl Cache {
    /// The distance between attention with these heads and this cache's. Widths beyond [`MatrixShape::LARGE`] count as
    /// equal.
    fn unlike(&self, head_size: u32, n_gqa: u32, n_head_kv: u32) -> f64 {
        let width = match n_head_kv {
            0 => MatrixShape::LARGE,
            n_head_kv => n_head_kv.saturating_mul(n_gqa).saturating_mul(head_size).min(MatrixShape::LARGE),
        };
        let own = self.n_head.saturating_mul(self.head.0).min(MatrixShape::LARGE);
        unlike(head_size, self.head.0) + unlike(n_gqa, self.n_gqa) + unlike(width, own)
    }
}

/// Bytes per second that the device really reads (a share of its peak), and their source.
fn read_rate(figure: Option<Bandwidth>, share: f64, unknown: f64) -> (f64, Basis) {
    let Some(figure) = figure.filter(|figure| figure.bytes_per_second > 0) else {
        return (unknown, Basis::Guess);
    };
    let (share, basis) = match figure.source {
        BandwidthSource::Nvml => (share, Basis::Driver),
        BandwidthSource::Catalogue => (share, Basis::DataSheet),
        BandwidthSource::Stated => (share, Basis::Stated),
    };
    (figure.bytes_per_second as f64 * share, basis)
}

#[cfg(test)]
mod tests {
    use super::{Rates, UNKNOWN_GPU};
    use crate::machine::{Gpu, GpuKind, Host, gib};

    #[test]
    fn an_integrated_or_remote_gpu_of_unknown_speed_is_not_rated_as_a_mid_range_card() {
        let host = Host::new(gib(64)).bandwidth(60_000_000_000);
        for kind in [GpuKind::Integrated, GpuKind::Remote] {
            let rates = Rates::for_devices(&[&Gpu::new("other").kind(kind)], &host);
            assert!(rates.gpus[0].bytes_per_second <= rates.host.bytes_per_second);
            assert!(rates.gpus[0].bytes_per_second < UNKNOWN_GPU / 10.0);
        }
    }

    #[test]
    fn a_measured_rate_of_0_causes_no_division_by_zero() {
        let mut host = Host::new(gib(64));
        let rates = r#"{"weights": [{"type": "F16", "bytes_per_second": 0}], "layer_ns": 0}"#;
        host.rates = serde_json::from_str(rates).unwrap();
        assert_eq!(Rates::for_devices(&[], &host).host.bytes_per_second, 1.0);
    }
}
