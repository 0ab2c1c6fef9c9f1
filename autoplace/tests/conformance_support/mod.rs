//! What the conformance suite asks llama.cpp, and over which settings.

pub(crate) mod tally;

use std::path::Path;

use autoplace::llama_sys::sim::{Rules, SimGpu};
use autoplace::llama_sys::{self, Context, Device, LoadMode, Model, ModelParams};
use autoplace::machine::{Gpu, gib};
use autoplace::memory::{ContextParams, FlashAttention, Footprint, Footprints, KvType};

/// Twenty-four settings in which any two of eight choices meet in all four combinations, six times each: the design of Plackett
/// and Burman, and its mirror image. The lengths of context take turns, the mirror's being no multiples of anything.
pub(crate) fn settings() -> Vec<ContextParams> {
    const FIRST: [bool; 11] = [
        true, true, false, true, true, true, false, false, false, true, false,
    ];
    (0..24)
        .map(|row| {
            let (row, mirrored) = (row % 12, row >= 12);
            let choice = |factor: usize| (row < 11 && FIRST[(factor + row) % 11]) != mirrored;
            let (lengths, sequences) = if mirrored {
                ([300, 5000, 8192], 3)
            } else {
                ([512, 4096, 8192], 4)
            };
            let mut params = ContextParams::default();
            params.n_ctx = lengths[row % 3];
            params.type_k = if choice(0) { KvType::Q8_0 } else { KvType::F16 };
            params.type_v = params.type_k;
            params.n_ubatch = if choice(1) { 128 } else { 512 };
            params.n_seq_max = if choice(2) { sequences } else { 1 };
            params.kv_unified = choice(3);
            params.offload_kqv = !choice(4);
            params.swa_full = !choice(5);
            params.n_outputs_max = if choice(6) { 0 } else { params.n_seq_max };
            if choice(7) {
                // Quantised values need flash attention.
                params.flash_attn = FlashAttention::Off;
                params.type_v = KvType::F16;
            }
            params
        })
        .collect()
}

/// A simulated card, and the same as the planner sees it.
pub(crate) struct Card {
    sim: SimGpu,
    pub(crate) gpu: Gpu,
}

impl Card {
    pub(crate) fn new(rules: Rules, backend: &str) -> Self {
        let sim = SimGpu::builder(format!("SIM {backend}"))
            .total(gib(400))
            .rules(rules)
            .backend(backend)
            .register()
            .unwrap();
        let gpu = Gpu::new(backend).total(gib(400)).backend(backend);
        Self { sim, gpu }
    }

    pub(crate) fn device(&self) -> Device {
        self.sim.device()
    }
}

/// A load that allocates nothing, on at most one card.
pub(crate) struct Probed {
    model: Model,
    device: Option<Device>,
}

impl Probed {
    pub(crate) fn load(
        path: &Path,
        card: Option<&Card>,
        n_gpu_layers: u32,
    ) -> Result<Self, llama_sys::Error> {
        let device = card.map(Card::device);
        let model = Model::load(
            path,
            ModelParams {
                n_gpu_layers: i32::try_from(n_gpu_layers).unwrap(),
                devices: Some(device.iter().cloned().collect()),
                load_mode: LoadMode::None,
                no_alloc: true,
                ..ModelParams::default()
            },
        )?;
        Ok(Self { model, device })
    }

    /// What llama.cpp would allocate for a context of these parameters.
    pub(crate) fn footprints(
        &self,
        params: &ContextParams,
    ) -> Result<Footprints, llama_sys::Error> {
        let native = |ty: KvType| match ty {
            KvType::Q8_0 => llama_sys::KvType::Q8_0,
            _ => llama_sys::KvType::F16,
        };
        let context = Context::new(
            &self.model,
            llama_sys::ContextParams {
                n_ctx: params.n_ctx,
                n_batch: params.n_batch,
                n_ubatch: params.n_ubatch,
                n_seq_max: params.n_seq_max,
                n_outputs_max: params.n_outputs_max,
                n_threads: Some(1),
                n_threads_batch: Some(1),
                flash_attention: match params.flash_attn {
                    FlashAttention::Off => llama_sys::FlashAttention::Disabled,
                    _ => llama_sys::FlashAttention::Auto,
                },
                type_k: native(params.type_k),
                type_v: native(params.type_v),
                offload_kqv: params.offload_kqv,
                op_offload: params.op_offload,
                swa_full: params.swa_full,
                kv_unified: params.kv_unified,
                ..llama_sys::ContextParams::default()
            },
        )?;
        let breakdown = context.memory_breakdown()?;
        let mut host = Footprint::default();
        for row in breakdown.on_host() {
            host += Footprint::new(row.model, row.context, row.compute);
        }
        let gpus = self.device.iter().map(|device| {
            let mut gpu = Footprint::default();
            for row in breakdown.on(device) {
                gpu += Footprint::new(row.model, row.context, row.compute);
            }
            gpu
        });
        Ok(Footprints::new(gpus.collect(), host))
    }
}
