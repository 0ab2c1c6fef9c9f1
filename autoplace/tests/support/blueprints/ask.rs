//! What llama.cpp is asked: which settings, on which card, and its answer.

use std::path::Path;

use autoplace::llama_sys::sim::{Rules, SimGpu};
use autoplace::llama_sys::{self, Context, Device, LoadMode, Model, ModelParams};
use autoplace::machine::{Gpu, gib};
use autoplace::memory::{ContextParams, FlashAttention, Footprint, KvType};

use crate::native_params;

/// Eight settings in which any two of seven choices meet in all four combinations: the design of Plackett and Burman.
/// The lengths of context take turns.
pub(crate) fn settings() -> Vec<ContextParams> {
    const FIRST: [bool; 7] = [true, true, true, false, true, false, false];
    (0..8)
        .map(|row| {
            let choice = |factor: usize| row < 7 && FIRST[(factor + row) % 7];
            let mut params = ContextParams::default();
            params.n_ctx = [256, 1000, 12_288][row % 3];
            params.n_seq_max = if choice(0) { 3 } else { 1 };
            params.n_outputs_max = params.n_seq_max;
            params.kv_unified = choice(1);
            params.swa_full = !choice(2);
            params.offload_kqv = !choice(3);
            params.type_k = if choice(4) { KvType::Q8_0 } else { KvType::F16 };
            params.type_v = params.type_k;
            if choice(5) {
                params.flash_attn = FlashAttention::Off;
                // Quantised values need flash attention.
                params.type_v = KvType::F16;
            }
            params.repack = false;
            params.n_ubatch = if choice(6) { 64 } else { 512 };
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
    pub(crate) fn new() -> Self {
        let sim = SimGpu::builder("SIM CUDA")
            .total(gib(400))
            .rules(Rules::Cuda)
            .backend("CUDA")
            .register()
            .unwrap();
        let gpu = Gpu::new("CUDA").total(gib(400)).backend("CUDA");
        Self { sim, gpu }
    }
}

/// A load that allocates nothing, on at most one card.
pub(crate) struct Probed<'a> {
    model: Model,
    card: Option<&'a Card>,
}

impl<'a> Probed<'a> {
    pub(crate) fn load(
        path: &Path,
        card: Option<&'a Card>,
        n_gpu_layers: u32,
    ) -> Result<Self, llama_sys::Error> {
        let model = Model::load(
            path,
            ModelParams {
                n_gpu_layers: i32::try_from(n_gpu_layers).unwrap(),
                devices: Some(card.iter().map(|card| card.sim.device()).collect()),
                load_mode: LoadMode::None,
                no_alloc: true,
                // So that nothing is uncertain of what the CPU computes with.
                use_extra_bufts: false,
                ..ModelParams::default()
            },
        )?;
        Ok(Self { model, card })
    }

    /// What llama.cpp would allocate for a context of these parameters: on the card, if there is one, and on the host.
    pub(crate) fn footprints(
        &self,
        params: &ContextParams,
    ) -> Result<Vec<Footprint>, llama_sys::Error> {
        let context = Context::new(&self.model, native_params::context(params))?;
        let devices: Vec<Device> = self.card.iter().map(|card| card.sim.device()).collect();
        let footprints = native_params::footprints(&context.memory_breakdown()?, &devices);
        Ok(footprints
            .gpus
            .into_iter()
            .chain([footprints.host])
            .collect())
    }
}
