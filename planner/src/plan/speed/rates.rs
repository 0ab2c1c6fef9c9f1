//! The rates of a machine's devices.
//!
//! [Measured](crate::machine::MeasuredRates) rates are used as they are. Constants replace missing rates. Each constant
//! has its source here, and the plan states the basis of its rates.

use serde::{Deserialize, Serialize};

use crate::gguf::TensorType;
use crate::machine::{
    AttentionRate, Bandwidth, BandwidthSource, Generation, Gpu, GpuKind, Host, MatrixShape, MeasuredRates, PromptRate,
    WeightRate, multiprocessors,
};
use crate::memory::KvType;

use super::depths::Depths;
use super::work::{Cache, LayerWork, Matrices};

/// The share of its peak bandwidth that a GPU reads during generation: 83 % on an RTX 5060 Ti (docs/speed-model.md).
/// For the cards that a row of the ledger calibrates, with builds since 2025, the share is 79 to 87 %.
const GPU_SHARE: f64 = 0.83;
/// The share of its peak bandwidth that a host reads: 65 % of two channels of DDR4-2400 (docs/speed-model.md).
const HOST_SHARE: f64 = 0.65;
/// Bytes of weights per second that one core of a host decodes. This is a limit because a few cores of a laptop decode
/// fewer bytes than the memory delivers. The constant is the median of published figures for Llama 3.1 8B in Q4_K_M:
/// 5.1, 5.6, 6.5 and 7.9 billion on an i7-8550U, a Ryzen 7 8840U, an i7-7820HQ and an i5-1135G7 (brand-o/normiebench);
/// 7.8 billion on an i5-12400F (unslothai/unsloth, `offload_cost_model.py`: 138.4 ms per GiB, divided by the threads).
const CORE_READ: f64 = 6.5e9;
/// The assumed bandwidth of an unknown card, in bytes per second: a mid-range card.
const UNKNOWN_GPU: f64 = 400e9;
/// The assumed bandwidth of an unknown host, in bytes per second: two thirds of two channels of DDR4-3200.
const UNKNOWN_HOST: f64 = 34e9;
/// Fixed seconds of a layer on a GPU: about ten to fifteen kernels, each with a launch. CUDA launches them as one
/// graph. In the ledger, the time beyond 83 % of the peak is 25 to 46 us on an RTX 3070, 4080 and 3080.
const GPU_LAYER: f64 = 25e-6;
/// Fixed seconds of a layer on NVIDIA's cards before Ampere: 43 to 57 us on an RTX 2080 with four models of 1B to 4B.
/// llama.cpp makes no CUDA graphs before Volta, and builds of 2025 made none before Ampere
/// (`ggml_cuda_graph_set_enabled`).
const LAYER_BEFORE_AMPERE: f64 = 45e-6;
/// Fixed seconds of a layer with Vulkan: 22 us on an RTX 4090 and 46 us on an RTX 2080 Ti with TinyLlama.
const VULKAN_LAYER: f64 = 30e-6;
/// Fixed seconds of a layer with ROCm: 111 us on an RX 7900 XTX with an 8B model in 2026.
const ROCM_LAYER: f64 = 100e-6;
/// Fixed seconds of a layer with Metal, which has no graphs: 136 us on an M1 Ultra with TinyLlama, 43 us on an M2 Pro
/// with an 8B model.
const METAL_LAYER: f64 = 100e-6;
/// Fixed seconds of a layer on the host: about thirty barriers between its threads.
const HOST_LAYER: f64 = 30e-6;
/// Seconds to pass a token's activations to the next device: two copies over PCIe, each with a wait.
const CROSSING: f64 = 20e-6;
/// Seconds to pass a token's activations to the next device with Vulkan, where each wait is a submission and a fence.
/// On an RX 6700 XT under Windows, a block with experts on the host takes 0.2 to 0.3 ms longer than it needs to read
/// its bytes (the ledger). Its activations are transferred twice.
const VULKAN_CROSSING: f64 = 100e-6;
/// Seconds to pass a token's activations to another machine: a round trip in a local network, including the software.
const REMOTE_CROSSING: f64 = 500e-6;
/// Bytes per second to another machine: one gigabit per second.
const REMOTE_LINK: f64 = 0.12e9;
/// Bytes per second to a card with an unknown link: PCIe 3.0 x16. Transfers from pageable memory reach four fifths of
/// its peak.
const UNKNOWN_LINK: f64 = 12e9;
/// The share of a link's peak that transfers reach.
const LINK_SHARE: f64 = 0.8;
/// Extra seconds of a layer with experts on a GPU, with every backend. An H100 was measured at 40 us. With 45 us, three
/// of four published speeds are predicted within 12 % (docs/speed-model.md).
const GPU_ROUTING: f64 = 45e-6;
/// Multiplications of attention per second and core, with keys and values of 16 bits. Published: 1.4 billion on an
/// i5-12400F with whole layers on the host, at 2,300 to 29,500 tokens (docs/ledger/speeds.csv, unslothai/unsloth#9872).
/// Measured: 0.4 to 6.8 billion at 4,096 tokens on machines with two cores of an EPYC; the lowest figure was measured
/// during other work (docs/speed-model.md).
const CORE_ATTENTION: f64 = 1.4e9;
/// Speed of a host's attention in prompts, as a share of the speed at which the host multiplies weights. Measured on
/// machines with two cores of an EPYC: 0.42 to 0.53.
const PROMPT_ATTENTION: f64 = 0.5;
/// The assumed cores of a host that does not report them.
const UNKNOWN_CORES: u32 = 8;
/// Extra seconds of a layer with a recurrent state on a GPU: the convolution, the gates and the update of the state are
/// many small kernels. Published for Qwen3.5 35B A3B with all layers on the card: 214 tokens per second on an RTX 5090
/// (zenn.dev/toki_mwc), 111 on an RTX 3090 (smeltcore.com). From these figures follow 20 and 100 us for each of the
/// model's 30 recurrent layers.
const GPU_RECURRENCE: f64 = 60e-6;
/// Floating-point operations of prompts per byte of bandwidth, for a card of which only the bandwidth is known. The
/// constant is the geometric mean of six cards. On an 8B model an RTX 3090 computes 3491 tokens per second
/// (ggml-org/llama.cpp#7860), which gives 60; an RTX 4090 computes 10359 (#7676), which gives 165.
const GPU_FLOPS_PER_BYTE: f64 = 90.0;
/// Floating-point operations of prompts per byte of bandwidth on Apple's chips: 26 on an M2 Ultra (#3648), 18 on an M2
/// Max (#2959).
const METAL_FLOPS_PER_BYTE: f64 = 25.0;
/// Floating-point operations of prompts per second, for each multiprocessor of NVIDIA's cards from Ampere on. Published
/// on 8B models with 512 tokens at once: 0.73 and 0.78 trillion on an RTX 3090 and 3070, 1.07 on a 4080, 0.84 on a 4090
/// in 2024 (the ledger) and 1.45 in 2026 (ggml-org/llama.cpp#24127).
const AMPERE_FLOPS: f64 = 1.05e12;
/// Floating-point operations of prompts per second, for each multiprocessor of Turing: 0.42 trillion on an RTX 2080 Ti
/// with Vulkan; an RTX 2070 SUPER with CUDA has at least 0.65 (the ledger).
const TURING_FLOPS: f64 = 0.7e12;
/// Floating-point operations of prompts per second, for each multiprocessor before Turing: 0.46 trillion on a P40
/// (#4766), 0.62 on a V100 (#24127).
const PASCAL_FLOPS: f64 = 0.5e12;
/// Floating-point operations of prompts per second, for each compute unit of AMD's GPUs with RDNA 4: 1.58 trillion on
/// an RX 9070 XT with Vulkan (the ledger).
const RDNA_4_FLOPS: f64 = 1.58e12;
/// Floating-point operations of prompts per second, for each compute unit with RDNA 3, and with CDNA, which also has
/// matrix cores: 0.62 trillion on an RX 7900 XTX with ROCm, 0.59 and 0.69 on a Radeon 8060S with Vulkan and ROCm (the
/// ledger).
const RDNA_3_FLOPS: f64 = 0.62e12;
/// Floating-point operations of prompts per second, for each compute unit of AMD's GPUs without matrix cores: 0.25
/// trillion on an RX 6800 XT with ROCm (#2059).
const RDNA_2_FLOPS: f64 = 0.25e12;
/// Bytes that a GPU reads and writes for each element of a matrix's output in a prompt. The result, in 32 bits, is
/// written and then read by the next operation. The result of the next operation is also written and read.
const BYTES_PER_OUTPUT: f64 = 16.0;
/// Floating-point operations of prompts per second and core. Measured with 512 tokens at once: 31 to 151 billion on two
/// cores of an EPYC; the lowest figure was measured during other work. A Ryzen 7950X reaches 170 billion
/// (docs/speed-model.md).
const CORE_FLOPS: f64 = 80e9;
/// The ubatch with which a GPU reaches half of its speed. On an 8B model, an RTX 4090 computes 5420 tokens per second
/// with 64 tokens at once, and 10359 with 512 (#7676).
const HALF_SPEED: f64 = 64.0;

/// The weight of the matrix size, as a multiple of the weight of the number of tokens, when the nearest measured figure
/// is chosen.
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
    /// Measurements of ggml's operations while other work shared the device. The rates may be too low, and the next
    /// quiet load measures again.
    #[error("rates measured beside other work")]
    Disturbed,
    /// The peak bandwidth that the driver reports. The other rates are computed from it with fixed ratios.
    #[error("the driver's bandwidth")]
    Driver,
    /// The peak bandwidth in the data sheet. The other rates are computed from it with fixed ratios.
    #[error("data sheets")]
    DataSheet,
    /// A stated bandwidth. The other rates are computed from it with fixed ratios.
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
    /// Floating-point operations per second in a computation of many tokens.
    pub flops: f64,
    /// The ubatch with which the device reaches half of `flops`.
    pub half_speed: f64,
    /// Fixed seconds of a layer: kernel launches, barriers.
    pub seconds_per_layer: f64,
    /// Extra seconds of a layer with experts: for choosing them and adding up their results.
    pub routing: f64,
    /// Extra seconds of a layer with a recurrent state.
    pub recurrence: f64,
    /// Seconds to start on weights that are placed apart from their block: the host's threads wake up and wait for each
    /// other.
    pub wake_up: f64,
    /// The speed of a prompt's operations other than matrix products, in output elements of matrices per second. `None`
    /// if these operations take no time.
    pub activations: Option<f64>,
    /// Bytes per second from the host's memory to the device.
    pub upload: f64,
    /// Seconds to pass a token's activations to or from the device.
    pub crossing: f64,
    /// The source of these rates.
    pub basis: Basis,
    pub(super) measured: Option<MeasuredRates>,
}

/// The rates of a machine's devices, from which the planner predicts speeds.
///
/// ```
/// use autoplace_planner::machine::{Gpu, Host, bytes::gib};
/// use autoplace_planner::plan::speed::{Basis, Rates};
/// let card = Gpu::named("RTX 4090").unwrap();
/// let host = Host::new(gib(64)).bandwidth(60_000_000_000);
/// // Real reads reach 83 % and 65 % of the peaks.
/// let rates = Rates::for_devices(&[&card], &host);
/// assert_eq!(rates.gpus[0].bytes_per_second, 0.83 * 1008e9);
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
        // An integrated GPU reads the host's memory at full speed: it is slowed down neither by a CPU limit of the
        // process nor by the number of cores.
        let memory = Rate::for_host(host, f64::INFINITY, |_| 1.0);
        let gpus = gpus.iter().map(|gpu| Rate::for_gpu(gpu, &memory)).collect();
        let host = Rate::for_host(host, CORE_READ, |threads| host.share_of_time(threads));
        Self { gpus, host }
    }

    /// Rates from any source.
    pub const fn new(gpus: Vec<Rate>, host: Rate) -> Self {
        Self { gpus, host }
    }
}

impl Rate {
    /// A device that reads `bytes_per_second` of weights, keys and values. Layers and transfers take no fixed time, and
    /// prompts are as fast as on cards with this bandwidth.
    pub const fn new(bytes_per_second: f64) -> Self {
        Self {
            bytes_per_second,
            attention: None,
            flops: bytes_per_second * GPU_FLOPS_PER_BYTE,
            half_speed: HALF_SPEED,
            seconds_per_layer: 0.0,
            routing: 0.0,
            recurrence: 0.0,
            wake_up: 0.0,
            activations: None,
            upload: UNKNOWN_LINK,
            crossing: 0.0,
            basis: Basis::Stated,
            measured: None,
        }
    }

    /// The rates of a host. `core_read` is the most that one core reads per second. `share_of_time` returns the share
    /// of the time that a number of threads may compute. All rates are multiplied by this share. For reads from memory,
    /// the result is a lower bound, because a few cores may read as fast as all cores.
    fn for_host(host: &Host, core_read: f64, share_of_time: impl Fn(u32) -> f64) -> Self {
        let (memory, basis) = read_rate(host.bandwidth, HOST_SHARE, UNKNOWN_HOST);
        let known_cores = host.usable_cores.or(host.physical_cores);
        let bytes_per_second = known_cores.map_or(memory, |cores| memory.min(core_read * f64::from(cores.max(1))));
        let cores = known_cores.unwrap_or(UNKNOWN_CORES).max(1);
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
            wake_up: HOST_LAYER / share,
            ..Self::new(bytes_per_second * share)
        }
        .with_measured(measured.as_ref())
    }

    fn for_gpu(gpu: &Gpu, host: &Self) -> Self {
        let (unknown, unknown_basis) = match gpu.kind {
            // The GPU reads the host's memory.
            GpuKind::Integrated => (host.bytes_per_second, host.basis),
            // A device of another machine may be a CPU.
            GpuKind::Remote => (UNKNOWN_HOST, Basis::Guess),
            GpuKind::Discrete => (UNKNOWN_GPU, Basis::Guess),
        };
        let (bytes_per_second, basis) = read_rate(gpu.bandwidth, GPU_SHARE, unknown);
        let basis = if basis == Basis::Guess { unknown_basis } else { basis };
        let copies = if gpu.backend == "Vulkan" { VULKAN_CROSSING } else { CROSSING };
        let (upload, crossing) = match gpu.kind {
            GpuKind::Integrated => (bytes_per_second, copies),
            GpuKind::Remote => (REMOTE_LINK, REMOTE_CROSSING),
            GpuKind::Discrete => {
                let peak = gpu.pcie.map(|link| link.max.bytes_per_second());
                (peak.map_or(UNKNOWN_LINK, |peak| peak as f64 * LINK_SHARE), copies)
            }
        };
        let seconds_per_layer = layer_on(gpu);
        Self {
            upload,
            crossing,
            basis,
            seconds_per_layer,
            routing: GPU_ROUTING,
            // The kernels of a recurrent state take as long to launch as other kernels, so their time scales with a
            // layer's fixed time.
            recurrence: GPU_RECURRENCE * seconds_per_layer / GPU_LAYER,
            flops: prompt_flops_of(gpu, bytes_per_second),
            activations: Some(bytes_per_second / BYTES_PER_OUTPUT),
            ..Self::new(bytes_per_second)
        }
        .with_measured(gpu.rates.as_ref())
    }

    /// The same rates, with measured rates in place of constants.
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
        // Types that were not measured get the mean rate of the large matrices or, if no large matrix was measured, of
        // all matrices.
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
        if measured.activations_per_second > 0 {
            self.activations = Some(measured.activations_per_second as f64);
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
        let has_experts = work.matrices.iter().any(|matrix| matrix.experts.is_some());
        let routing = if has_experts { self.routing } else { 0.0 };
        let recurrence = if work.state > 0 { self.recurrence } else { 0.0 };
        self.seconds_per_layer + routing + recurrence
    }

    /// Seconds of one token with these weights.
    pub(super) fn token(&self, matrices: &Matrices) -> f64 {
        let bytes = matrices.token_bytes() as f64;
        let rate = self.weight_rate(matrices).map(|rate| rate.rate().max(1) as f64);
        bytes / rate.unwrap_or(self.bytes_per_second)
    }

    /// The measured rate for these weights: the rate of the same type and of the most similar matrices.
    pub(super) fn weight_rate(&self, matrices: &Matrices) -> Option<&WeightRate> {
        let of_type = |experts: bool| {
            let all = self.measured.iter().flat_map(|measured| &measured.weights);
            let of_type = all.filter(|rate| rate.experts == experts && rate.tensor_type == matrices.tensor_type);
            nearest(of_type, |rate| matrices.shape().unlike(rate.shape))
        };
        of_type(matrices.experts.is_some()).or_else(|| of_type(false))
    }

    /// The source of the device's rates for this work. It is `Used` if real use covers all of the weights, and
    /// `Disturbed` if any rate was measured during other work.
    pub(super) fn basis_of<'w>(&self, work: impl Iterator<Item = &'w LayerWork>) -> Basis {
        if self.basis != Basis::Measured {
            return self.basis;
        }
        let rates = work.flat_map(|layer| &layer.matrices).filter_map(|matrix| self.weight_rate(matrix));
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
            // Keys and values each account for half of the multiplications.
            (Some(k), Some(v)) => multiplications / 2.0 * (1.0 / k + 1.0 / v),
            _ => match self.attention {
                Some(rate) => multiplications / rate,
                // A small type has fewer bytes to read, but its elements must be decoded, so measured generation is not
                // faster.
                None => {
                    let plain = |ty: KvType| if ty.is_quantized() { KvType::F16 } else { ty };
                    let cache = Cache { types: (plain(k), plain(v)), ..*cache };
                    cache.bytes(depths) / self.bytes_per_second
                }
            },
        }
    }

    /// Multiplications of attention per second, from the measurement with the most similar heads.
    fn attention_rate(&self, kv_type: TensorType, cache: &Cache) -> Option<f64> {
        let nearest = self.nearest_attention(kv_type, cache)?;
        let row = kv_type.row_bytes(u64::from(nearest.head_size)).max(1);
        let elements = nearest.rate() as f64 * f64::from(nearest.head_size) / row as f64;
        Some((elements * f64::from(nearest.n_gqa)).max(1.0))
    }

    pub(super) fn nearest_attention(&self, kv_type: TensorType, cache: &Cache) -> Option<&AttentionRate> {
        let all = self.measured.iter().flat_map(|measured| &measured.attention);
        nearest(all.filter(|rate| rate.kv_type == kv_type), |rate| {
            cache.unlike(rate.head_size, rate.n_gqa, rate.n_head_kv)
        })
    }

    /// Seconds of a layer with `n_tokens` tokens at once, without its matrices and its attention.
    pub(super) fn prompt_rest(&self, matrices: &[Matrices], n_tokens: u32) -> f64 {
        let outputs: f64 = matrices.iter().filter(|matrix| !matrix.last_token).map(|matrix| matrix.outputs).sum();
        self.activations.map_or(0.0, |rate| outputs * f64::from(n_tokens) / rate)
    }

    /// Seconds of `n_tokens` tokens at once with these weights.
    pub(super) fn prompt(&self, matrices: &Matrices, n_tokens: u32) -> f64 {
        let operations = 2.0 * matrices.multiplications * f64::from(n_tokens);
        // Each expert computes with only the tokens that chose it.
        let at_once = matrices.tokens_at_once(n_tokens);
        let flops = self.prompt_flops(matrices, n_tokens).unwrap_or_else(|| self.flops_with(at_once));
        (operations / flops).max(matrices.bytes(n_tokens) / self.bytes_per_second)
    }

    /// The measured operations per second for these weights and this number of tokens.
    fn prompt_flops(&self, matrices: &Matrices, n_tokens: u32) -> Option<f64> {
        self.prompt_rate(matrices, n_tokens).map(|rate| rate.rate().max(1) as f64)
    }

    /// The measured prompt rate for the type of the weights. The nearest matrix size decides first, then the nearest
    /// number of tokens.
    pub(super) fn prompt_rate(&self, matrices: &Matrices, n_tokens: u32) -> Option<&PromptRate> {
        let experts = matrices.experts.is_some();
        let of = |tensor_type: Option<TensorType>, experts: bool| {
            let all = self.measured.iter().flat_map(|measured| &measured.prompts);
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

    /// Seconds of attention of `n_tokens` tokens over a cache at this depth.
    pub(super) fn prompt_attend(&self, cache: &Cache, n_tokens: u32, depth: Depths) -> f64 {
        let operations = 2.0 * cache.multiplications(depth) * f64::from(n_tokens);
        let all = self.measured.iter().flat_map(|measured| &measured.prompt_attention);
        let of_type = all.filter(|rate| rate.kv_type == cache.types.0.tensor_type());
        let nearest = nearest(of_type, |rate| cache.unlike(rate.head_size, rate.n_gqa, rate.n_head_kv));
        let flops = match (nearest, self.attention) {
            (Some(rate), _) => rate.flops.max(1) as f64,
            (None, Some(_)) => self.flops * PROMPT_ATTENTION,
            (None, None) => self.flops_with(f64::from(n_tokens)),
        };
        operations / flops
    }

    fn flops_with(&self, tokens: f64) -> f64 {
        self.flops * tokens / (tokens + self.half_speed)
    }
}

/// Fixed seconds of a layer on this GPU, which depend on how its backend launches kernels.
fn layer_on(gpu: &Gpu) -> f64 {
    let is_before_ampere =
        || multiprocessors(gpu).is_some_and(|processors| matches!(processors.generation, Generation::Cuda(0..8, _)));
    match gpu.backend.as_str() {
        "CUDA" if is_before_ampere() => LAYER_BEFORE_AMPERE,
        "Vulkan" => VULKAN_LAYER,
        "ROCm" => ROCM_LAYER,
        "MTL" => METAL_LAYER,
        _ => GPU_LAYER,
    }
}

/// Operations per second of prompts on this GPU. They follow from its multiprocessors if the catalogue knows them,
/// otherwise from its bandwidth.
fn prompt_flops_of(gpu: &Gpu, bytes_per_second: f64) -> f64 {
    let Some(processors) = multiprocessors(gpu) else {
        let per_byte = if gpu.backend == "MTL" { METAL_FLOPS_PER_BYTE } else { GPU_FLOPS_PER_BYTE };
        return per_byte * bytes_per_second;
    };
    let each = match processors.generation {
        Generation::Cuda(8.., _) => AMPERE_FLOPS,
        Generation::Cuda(7, 5) => TURING_FLOPS,
        Generation::Cuda(..) => PASCAL_FLOPS,
        Generation::Amd("RDNA 4") => RDNA_4_FLOPS,
        Generation::Amd(name) if name.starts_with("RDNA 3") || name.starts_with("CDNA") => RDNA_3_FLOPS,
        Generation::Amd(_) => RDNA_2_FLOPS,
    };
    f64::from(processors.count) * each
}

/// The figure with the smallest distance by `unlike`.
fn nearest<T>(figures: impl Iterator<Item = T>, unlike: impl Fn(&T) -> f64) -> Option<T> {
    figures.min_by(|a, b| unlike(a).total_cmp(&unlike(b)))
}

/// The distance of two sizes: the logarithm of their ratio.
fn unlike(a: u32, b: u32) -> f64 {
    (f64::from(a.max(1)) / f64::from(b.max(1))).ln().abs()
}

impl Cache {
    /// The distance between attention with these heads and attention over this cache. Widths larger than
    /// [`MatrixShape::LARGE`] count as equal.
    fn unlike(&self, head_size: u32, n_gqa: u32, n_head_kv: u32) -> f64 {
        let width = match n_head_kv {
            0 => MatrixShape::LARGE,
            n_head_kv => n_head_kv.saturating_mul(n_gqa).saturating_mul(head_size).min(MatrixShape::LARGE),
        };
        let own = self.n_head.saturating_mul(self.head.0).min(MatrixShape::LARGE);
        unlike(head_size, self.head.0) + unlike(n_gqa, self.n_gqa) + unlike(width, own)
    }
}

/// Bytes per second that the device really reads (a share of its peak), and the source of the figure.
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
    use super::{AMPERE_FLOPS, CORE_READ, Rates, UNKNOWN_GPU};
    use crate::machine::{Gpu, GpuKind, Host, gib};

    /// The rates of a card of the catalogue.
    fn rate(name: &str) -> super::Rate {
        Rates::for_devices(&[&Gpu::named(name).unwrap()], &Host::new(gib(64))).gpus.remove(0)
    }

    #[test]
    fn few_cores_read_less_than_the_memory_delivers_and_an_integrated_gpu_reads_all() {
        let host = |cores| Host::new(gib(16)).bandwidth(80_000_000_000).physical_cores(cores);
        let gpu = Gpu::new("other").kind(GpuKind::Integrated);
        for (cores, read) in [(4, 4.0 * CORE_READ), (32, 0.65 * 80e9)] {
            let rates = Rates::for_devices(&[&gpu], &host(cores));
            assert_eq!((rates.host.bytes_per_second, rates.gpus[0].bytes_per_second), (read, 0.65 * 80e9));
        }
    }

    #[test]
    fn a_layer_takes_longer_if_kernels_are_launched_one_by_one() {
        let in_one_graph = rate("RTX 4090");
        for name in ["RTX 2080", "GTX 1070", "RX 7900 XTX", "M2 Ultra 64GB"] {
            let others = rate(name);
            assert!(others.seconds_per_layer > in_one_graph.seconds_per_layer, "{name}");
            assert!(others.recurrence > in_one_graph.recurrence, "{name}");
        }
        let vulkan = Gpu::named("RTX 4090").unwrap().backend("Vulkan");
        let vulkan = Rates::for_devices(&[&vulkan], &Host::new(gib(64))).gpus.remove(0);
        assert!(vulkan.crossing > 2.0 * in_one_graph.crossing);
    }

    #[test]
    fn multiprocessors_and_not_memory_limit_a_prompt() {
        let [wide, fast] = ["RTX 4090", "RTX 3090"].map(rate);
        assert_eq!((wide.flops, fast.flops), (128.0 * AMPERE_FLOPS, 82.0 * AMPERE_FLOPS));
        // Older multiprocessors multiply fewer numbers at once, and so do AMD's compute units before RDNA 4.
        let each = |name: &str, count: f64| rate(name).flops / count;
        let ascending = [
            [("Tesla P40", 30.0), ("RTX 2080", 46.0), ("RTX 3090", 82.0)],
            [("RX 6900 XT", 80.0), ("RX 7900 XTX", 96.0), ("RX 9070 XT", 64.0)],
        ];
        for cards in ascending {
            assert!(cards.windows(2).all(|pair| each(pair[0].0, pair[0].1) < each(pair[1].0, pair[1].1)), "{cards:?}");
        }
    }

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
