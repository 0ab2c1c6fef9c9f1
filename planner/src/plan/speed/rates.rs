//! How fast the devices of a machine compute, by what is known of them.
//!
//! [Measured](crate::machine::MeasuredRates) rates count as they are. Elsewhere stated ratios stand in, each with its
//! source, and the plan says so.

use serde::{Deserialize, Serialize};

use crate::gguf::TensorType;
use crate::machine::{
    AttentionRate, Bandwidth, BandwidthSource, Gpu, GpuKind, Host, MatrixShape, MeasuredRates, PromptRate, WeightRate,
};
use crate::memory::KvType;

use super::work::{Cache, LayerWork, Matrices};

/// What a GPU reads of its peak while it generates: 83 % was calibrated on an RTX 5060 Ti (docs/speed-model.md).
const GPU_SHARE: f64 = 0.8;
/// The same of a host whose figure is a peak: 65 % of two channels of DDR4-2400 there.
const HOST_SHARE: f64 = 0.65;
/// The assumed bandwidth of an unknown card, in bytes per second: a middling one.
const UNKNOWN_GPU: f64 = 400e9;
/// The same of a host: two channels of DDR4-3200, of which two thirds are read.
const UNKNOWN_HOST: f64 = 34e9;
/// Seconds that a layer takes on a GPU whatever its size: some ten kernels, of one or two microseconds each to launch.
const GPU_LAYER: f64 = 15e-6;
/// The same on the host: some thirty barriers between its threads.
const HOST_LAYER: f64 = 30e-6;
/// Seconds to hand a token's activations from one device to the next: two copies over PCIe and a wait for each.
const CROSSING: f64 = 20e-6;
/// The same to another machine: a round trip of a local network and its software.
const REMOTE_CROSSING: f64 = 500e-6;
/// Bytes per second to another machine: a gigabit per second.
const REMOTE_LINK: f64 = 0.12e9;
/// Bytes per second to a card whose link is not known: PCIe 3.0 x16, of which four fifths are reached from
/// pageable memory.
const UNKNOWN_LINK: f64 = 12e9;
/// The share of a link's peak that is reached.
const LINK_SHARE: f64 = 0.8;
/// Seconds more of a layer with experts on a GPU: 40 us were measured on an H100; with 45 the speeds published of four
/// models come out within 13 % (docs/speed-model.md).
const GPU_ROUTING: f64 = 45e-6;
/// Multiplications of attention per second of one core, keys and values of 16 bits: 0.4 to 6.8 billion were measured on
/// machines with two cores of an EPYC, the least of them beside other work (docs/speed-model.md).
const CORE_ATTENTION: f64 = 3e9;
/// The operations per second of a host's attention in prompts, of those with which it multiplies weights: 0.42 to 0.53
/// were measured (the same machines).
const PROMPT_ATTENTION: f64 = 0.5;
/// The assumed cores of a host that does not report them.
const UNKNOWN_CORES: u32 = 8;
/// Floating-point operations of prompts per byte per second of bandwidth, the geometric mean of six cards. llama.cpp
/// computes 3491 tokens of an 8B model per second on an RTX 3090 (ggml-org/llama.cpp#7860): 60; on an RTX 4090 10359
/// (#7676): 165.
const GPU_FLOPS_PER_BYTE: f64 = 90.0;
/// Floating-point operations of prompts per second and core: 31 to 151 billion were measured with 512 tokens at once on
/// two cores of an EPYC, the least beside other work; 170 are reached by a Ryzen 7950X (docs/speed-model.md).
const CORE_FLOPS: f64 = 80e9;
/// Tokens at which a GPU reaches half of its speed (the same measurements: 5420 tokens per second with 64 at once,
/// 10359 with 512).
const HALF_SPEED: f64 = 64.0;

/// How much more a figure's size of matrix counts than its number of tokens, where neither is the one asked for.
const SIZE_BEFORE_TOKENS: f64 = 4.0;

/// The source of a device's speed, the best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, thiserror::Error, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Basis {
    /// What real use has shown of this kind of model on it.
    #[error("rates of real use")]
    Used,
    /// ggml's own operations, measured on it.
    #[error("measured rates")]
    Measured,
    /// The same, while other work shared the device: they may be too low, and the next quiet load measures again.
    #[error("rates measured beside other work")]
    Disturbed,
    /// Its driver's peak bandwidth; the rest by ratios.
    #[error("the driver's bandwidth")]
    Driver,
    /// Its data sheet's peak bandwidth; the rest by ratios.
    #[error("data sheets")]
    DataSheet,
    /// A stated bandwidth; the rest by ratios.
    #[error("stated bandwidth")]
    Stated,
    /// Nothing: a middling device is assumed.
    #[error("a guess")]
    Guess,
}

/// How fast one device computes.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
#[must_use]
pub struct Rate {
    /// Bytes of weights per second, one token after the other.
    pub bytes_per_second: f64,
    /// Multiplications of attention per second, where arithmetic bounds it; else keys and values pass as
    /// fast as weights.
    pub attention: Option<f64>,
    /// Floating-point operations per second with many tokens at once.
    pub flops: f64,
    /// Tokens at once with which it reaches half of them.
    pub half_speed: f64,
    /// Seconds that a layer takes whatever its size: launches, barriers.
    pub seconds_per_layer: f64,
    /// Seconds more of a layer with experts: to choose them, and to add up their results.
    pub routing: f64,
    /// Bytes per second from the host's memory to it.
    pub upload: f64,
    /// Seconds to hand a token's activations to it or from it.
    pub crossing: f64,
    /// Who says so.
    pub basis: Basis,
    pub(super) measured: Option<MeasuredRates>,
}

/// The rates of a machine's devices that plans are made by.
///
/// ```
/// use autoplace_planner::machine::{Gpu, Host, bytes::gib};
/// use autoplace_planner::plan::speed::{Basis, Rates};
/// let card = Gpu::named("RTX 4090").unwrap();
/// let host = Host::new(gib(64)).bandwidth(60_000_000_000);
/// // Of peaks, what is really read: 80 % and 65 %.
/// let rates = Rates::of(&[&card], &host);
/// assert_eq!(rates.gpus[0].bytes_per_second, 0.8 * 1008e9);
/// assert_eq!(rates.gpus[0].basis, Basis::DataSheet);
/// assert_eq!(rates.host.bytes_per_second, 0.65 * 60e9);
/// ```
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Rates {
    /// Of each GPU.
    pub gpus: Vec<Rate>,
    /// Of the host.
    pub host: Rate,
}

impl Rates {
    /// The rates of these GPUs and of the host.
    pub fn of(gpus: &[&Gpu], host: &Host) -> Self {
        // A GPU in the host's memory reads it at full speed, whatever time the process gets on processors.
        let memory = Rate::of_host(host, |_| 1.0);
        let gpus = gpus.iter().map(|gpu| Rate::of_gpu(gpu, &memory)).collect();
        let host = match &host.cpu_limit {
            None => memory,
            Some(_) => Rate::of_host(host, |threads| host.share_of_time(threads)),
        };
        Self { gpus, host }
    }

    /// Rates that are stated.
    pub const fn new(gpus: Vec<Rate>, host: Rate) -> Self {
        Self { gpus, host }
    }
}

impl Rate {
    /// A device that reads so many bytes per second, weights and keys alike, loses no time between layers and devices,
    /// and computes prompts as cards of that bandwidth do.
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

    /// `share_of_time` is the share of the time that so many threads may compute. Rates of all cores go down with the
    /// processors that are left, which for the memory's is a lower bound: a few cores may read as fast as all.
    fn of_host(host: &Host, share_of_time: impl Fn(u32) -> f64) -> Self {
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
        .by(measured.as_ref())
    }

    fn of_gpu(gpu: &Gpu, host: &Self) -> Self {
        let (unknown, unknown_basis) = match gpu.kind {
            // In the same memory.
            GpuKind::Integrated => (host.bytes_per_second, host.basis),
            // A device of another machine may be a processor.
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
            .by(gpu.rates.as_ref())
    }

    /// With what was measured instead.
    fn by(mut self, measured: Option<&MeasuredRates>) -> Self {
        let Some(measured) = measured else {
            return self;
        };
        let mean = |is_large: bool| {
            let all = measured.weights.iter().filter(|rate| !rate.experts);
            let all = all.filter(|rate| (rate.shape == MatrixShape::default()) == is_large);
            let rates: Vec<f64> = all.map(|rate| rate.rate() as f64).collect();
            (!rates.is_empty()).then(|| rates.iter().sum::<f64>() / rates.len() as f64)
        };
        // For types that were not measured: of large matrices, where any were.
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

    /// Seconds that a layer takes whatever its size.
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

    /// The measured figure for these weights: of their type, of matrices that are most like them.
    pub(super) fn weight_rate(&self, matrices: &Matrices) -> Option<&WeightRate> {
        let of_type = |experts: bool| {
            let all = self.measured.iter().flat_map(|it| &it.weights);
            let of_type = all.filter(|rate| rate.experts == experts && rate.tensor_type == matrices.tensor_type);
            nearest(of_type, |rate| matrices.shape().unlike(rate.shape))
        };
        of_type(matrices.experts.is_some()).or_else(|| of_type(false))
    }

    /// The source of what this device is taken to do with this work: real use where that has shown every rate of its
    /// weights, and beside other work where one of them was measured so.
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

    /// Seconds in which a token attends to a cache.
    pub(super) fn attend(&self, cache: &Cache, depth: u32) -> f64 {
        let measured = |ty: KvType| self.attention_rate(ty.tensor_type(), cache);
        let (k, v) = cache.types;
        let multiplications = cache.multiplications(depth);
        match (measured(k), measured(v)) {
            // Keys and values each count by half.
            (Some(k), Some(v)) => multiplications / 2.0 * (1.0 / k + 1.0 / v),
            _ => match self.attention {
                Some(rate) => multiplications / rate,
                // Fewer bytes are read of small types, but each must be decoded: measured generation is
                // no faster for it.
                None => {
                    let plain = |ty: KvType| if ty.is_quantized() { KvType::F16 } else { ty };
                    let cache = Cache { types: (plain(k), plain(v)), ..*cache };
                    cache.bytes(depth) as f64 / self.bytes_per_second
                }
            },
        }
    }

    /// Multiplications per second of attention like this that was measured. The nearest figure counts: of as many query
    /// heads for each head of keys where keys are read once for all of them, else of as long a head.
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

    /// Seconds that so many tokens at once take in a layer beside its matrices and its attention, where that was
    /// measured.
    pub(super) fn prompt_rest(&self, matrices: &[Matrices], n_tokens: u32) -> f64 {
        let outputs: f64 = matrices.iter().filter(|it| !it.last_token).map(|it| it.outputs).sum();
        match self.measured.as_ref().map(|it| it.activations_per_second) {
            None | Some(0) => 0.0,
            Some(rate) => outputs * f64::from(n_tokens) / rate as f64,
        }
    }

    /// Seconds in which so many tokens at once pass these weights.
    pub(super) fn prompt(&self, matrices: &Matrices, n_tokens: u32) -> f64 {
        let operations = 2.0 * matrices.multiplications * f64::from(n_tokens);
        let flops = self.prompt_flops(matrices, n_tokens).unwrap_or_else(|| self.flops_with(n_tokens));
        (operations / flops).max(matrices.bytes(n_tokens) / self.bytes_per_second)
    }

    /// Operations per second that were measured of these weights and so many tokens.
    fn prompt_flops(&self, matrices: &Matrices, n_tokens: u32) -> Option<f64> {
        self.prompt_rate(matrices, n_tokens).map(|rate| rate.rate().max(1) as f64)
    }

    /// The measured figure of a type for so many tokens: the nearest in size, and of those the nearest in tokens.
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

    /// Seconds in which so many tokens attend to `cells` each.
    pub(super) fn prompt_attend(&self, cache: &Cache, n_tokens: u32, depth: u32) -> f64 {
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

/// The measured figure that is most like the one asked for.
fn nearest<T>(figures: impl Iterator<Item = T>, unlike: impl Fn(&T) -> f64) -> Option<T> {
    figures.min_by(|a, b| unlike(a).total_cmp(&unlike(b)))
}

/// How far two sizes are apart: their ratio's logarithm.
fn unlike(a: u32, b: u32) -> f64 {
    (f64::from(a.max(1)) / f64::from(b.max(1))).ln().abs()
}

impl Cache {
    /// How far attention with these heads is from this one's. Widths beyond [`MatrixShape::LARGE`] do not differ.
    fn unlike(&self, head_size: u32, n_gqa: u32, n_head_kv: u32) -> f64 {
        let width = match n_head_kv {
            0 => MatrixShape::LARGE,
            n_head_kv => n_head_kv.saturating_mul(n_gqa).saturating_mul(head_size).min(MatrixShape::LARGE),
        };
        let own = self.n_head.saturating_mul(self.head.0).min(MatrixShape::LARGE);
        unlike(head_size, self.head.0) + unlike(n_gqa, self.n_gqa) + unlike(width, own)
    }
}

/// Bytes per second that are really read, and who says so: a share of a peak.
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
    fn an_integrated_or_remote_gpu_of_unknown_speed_is_no_card_of_the_middle() {
        let host = Host::new(gib(64)).bandwidth(60_000_000_000);
        for kind in [GpuKind::Integrated, GpuKind::Remote] {
            let rates = Rates::of(&[&Gpu::new("other").kind(kind)], &host);
            assert!(rates.gpus[0].bytes_per_second <= rates.host.bytes_per_second);
            assert!(rates.gpus[0].bytes_per_second < UNKNOWN_GPU / 10.0);
        }
    }

    #[test]
    fn a_measured_rate_of_0_is_no_division_by_it() {
        let mut host = Host::new(gib(64));
        let rates = r#"{"weights": [{"type": "F16", "bytes_per_second": 0}], "layer_ns": 0}"#;
        host.rates = serde_json::from_str(rates).unwrap();
        assert_eq!(Rates::of(&[], &host).host.bytes_per_second, 1.0);
    }
}
