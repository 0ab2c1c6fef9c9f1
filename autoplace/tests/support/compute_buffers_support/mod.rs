//! What the tests of compute buffers ask llama.cpp: loads that allocate nothing, on any simulated cards,
//! in any placement.

#![allow(dead_code, reason = "each test file uses its part")]

use std::path::Path;

use autoplace::llama_sys::sim::{Rules, SimGpu};
use autoplace::llama_sys::{self, Context, Device, LoadMode, Model, ModelParams};
use autoplace::machine::{Gpu, gib};
use autoplace::memory::{ContextParams, FlashAttention, KvType, Place, TensorOverride};
use autoplace::profile::ModelProfile;

use crate::native_params;

/// Numbers that look random and are the same in every run (Knuth's MMIX constants).
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A number below `n`.
    pub(crate) fn roll(&mut self, n: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap() % n
    }

    pub(crate) fn coin(&mut self) -> bool {
        self.roll(2) == 0
    }

    fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.roll(of.len())]
    }

    /// Weights that go elsewhere than their layer, half of the time: experts, or parts of every second block.
    pub(crate) fn overrides(&mut self, cards: usize) -> Vec<TensorOverride> {
        let patterns = [
            "_exps",
            r"blk\.[0-9]*[02468]\.ffn",
            r"blk\.[0-3]\.attn_k",
            "nothing",
        ];
        let pattern = self.pick(&patterns);
        let place = match self.roll(4) {
            0 if cards > 0 => Place::Gpu(self.roll(cards)),
            _ => Place::Host,
        };
        let count = usize::from(self.coin());
        vec![TensorOverride::new(pattern, place); count]
    }

    /// Parameters of a context that llama.cpp takes for this model.
    pub(crate) fn params(&mut self, profile: &ModelProfile, kind: Kind) -> ContextParams {
        let mut params = ContextParams::default();
        params.n_ctx = match kind {
            Kind::Probe => self.pick(&[300, 512, 2048, 4096, 5000, 8192, 32768, 131_072]),
            Kind::Real => self.pick(&[300, 512, 1024]),
        };
        params.n_ubatch = self.pick(&[4, 16, 31, 32, 128, 512, 512, 1024]);
        params.n_seq_max = self.pick(&[1, 1, 2, 3, 4]);
        params.kv_unified = self.coin();
        params.n_outputs_max = self.pick(&[0, params.n_seq_max, 40]);
        let half = KvType::F16;
        params.type_k = self.pick(&[half, half, KvType::Q8_0, KvType::Q4_0, KvType::BF16]);
        // Compressed keys and values are of one type.
        let types = [half, params.type_k];
        let latent = profile.architecture == "deepseek2";
        params.type_v = types[usize::from(latent || self.coin())];
        params.flash_attn = self.pick(&[
            FlashAttention::Auto,
            FlashAttention::Auto,
            FlashAttention::On,
            FlashAttention::Off,
        ]);
        if params.type_v.is_quantized() && params.flash_attn == FlashAttention::Off {
            params.flash_attn = FlashAttention::On;
        }
        params.offload_kqv = self.roll(4) > 0;
        params.op_offload = self.roll(4) > 0;
        params.swa_full = self.coin();
        params
    }
}

/// A simulated card, and the same as the planner sees it.
pub(crate) struct Card {
    sim: SimGpu,
    pub(crate) gpu: Gpu,
}

impl Card {
    /// As asynchronous as the real ones.
    pub(crate) fn new(rules: Rules, backend: &str) -> Self {
        let sim = SimGpu::builder(format!("SIM {backend}"))
            .total(gib(400))
            .rules(rules)
            .backend(backend)
            .asynchronous(true)
            .register()
            .unwrap();
        let device = sim.device().name();
        let gpu = Gpu::new(backend)
            .device(device)
            .total(gib(400))
            .backend(backend);
        let gpu = match rules {
            Rules::Vulkan { alignment, .. } => gpu.alignment(alignment),
            _ => gpu,
        };
        Self { sim, gpu }
    }

    pub(crate) fn cuda() -> Self {
        Self::new(Rules::Cuda, "CUDA")
    }

    pub(crate) fn vulkan() -> Self {
        let rules = Rules::Vulkan {
            alignment: 256,
            max_alloc: 1 << 40,
        };
        Self::new(rules, "Vulkan")
    }

    pub(crate) fn metal() -> Self {
        Self::new(Rules::Metal, "MTL")
    }
}

/// What a load does.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// It allocates everything.
    Real,
    /// It allocates nothing (`no_alloc`).
    Probe,
}

/// A load.
pub(crate) struct Loaded {
    model: Model,
    devices: Vec<Device>,
}

impl Loaded {
    pub(crate) fn new(
        path: &Path,
        cards: &[&Card],
        n_gpu_layers: u32,
        repack: bool,
        overrides: &[TensorOverride],
        kind: Kind,
    ) -> Result<Self, llama_sys::Error> {
        let devices: Vec<Device> = cards.iter().map(|card| card.sim.device()).collect();
        let model = Model::load(
            path,
            ModelParams {
                n_gpu_layers: i32::try_from(n_gpu_layers).unwrap(),
                devices: Some(devices.clone()),
                load_mode: LoadMode::None,
                no_alloc: kind == Kind::Probe,
                use_extra_bufts: repack,
                overrides: native_params::overrides(overrides, &devices),
                ..ModelParams::default()
            },
        )?;
        Ok(Self { model, devices })
    }

    /// Bytes of the compute buffers that llama.cpp makes for a context of these parameters: on each card,
    /// and on the host.
    pub(crate) fn compute(&self, params: &ContextParams) -> Result<Vec<u64>, llama_sys::Error> {
        let context = Context::new(&self.model, native_params::context(params))?;
        let breakdown = context.memory_breakdown()?;
        let on = |device| breakdown.on(device).map(|row| row.compute).sum();
        let on_host = breakdown.on_host().map(|row| row.compute).sum();
        Ok(self.devices.iter().map(on).chain([on_host]).collect())
    }
}
