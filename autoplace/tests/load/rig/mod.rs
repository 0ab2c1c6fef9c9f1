//! Simulated cards. On them, the estimate for a model is compared with llama.cpp.
pub(crate) mod grid;
pub(crate) mod tally;

use std::path::Path;

use autoplace::llama_sys::sim::{Rules, SimGpu};
use autoplace::llama_sys::{self, Context, Device, LoadMode, Model, ModelParams};
use autoplace::machine::{Gpu, gib};
use autoplace::memory::{self, ContextParams, Estimate, Footprints, Split};
use autoplace::profile::ModelProfile;

use crate::native_params;

/// The rules of a card, and whether it computes asynchronously. Real cards do.
pub(crate) type CardKind = (Rules, bool);

pub(crate) const fn vulkan(alignment: u64, max_alloc: u64) -> Rules {
    Rules::Vulkan { alignment, max_alloc }
}

/// The name that ggml gives to the backend of such a card.
pub(crate) fn backend(rules: Rules) -> &'static str {
    match rules {
        Rules::Metal => "MTL",
        Rules::Vulkan { .. } => "Vulkan",
        _ => "CUDA",
    }
}

/// A simulated card, and the description of it that the planner gets.
pub(crate) struct Card {
    pub(crate) sim: SimGpu,
    pub(crate) gpu: Gpu,
}

impl Card {
    /// A card that has room for everything.
    pub(crate) fn new(kind: CardKind) -> Self {
        Self::with_memory(kind, gib(400))
    }

    /// A card that has `total` bytes.
    pub(crate) fn with_memory((rules, asynchronous): CardKind, total: u64) -> Self {
        let backend = backend(rules);
        let sim = SimGpu::builder(format!("SIM {backend}")).total(total).rules(rules).backend(backend);
        let sim = sim.asynchronous(asynchronous).register().unwrap();
        let mut gpu = Gpu::new(backend).device(sim.device().name()).total(total).backend(backend);
        if let Rules::Vulkan { alignment, .. } = rules {
            gpu.alignment = Some(alignment);
        }
        Self { sim, gpu }
    }
}

/// Our estimate for a context on these cards.
pub(crate) fn estimate(
    profile: &ModelProfile,
    cards: &[&Card],
    split: &Split,
    params: &ContextParams,
) -> Result<Estimate, memory::Error> {
    Estimate::new(profile, &gpus(cards), params)?.tensor_split(&split.tensor_split)?.overrides(&split.overrides)
}

pub(crate) fn gpus<'a>(cards: &[&'a Card]) -> Vec<&'a Gpu> {
    cards.iter().map(|card| &card.gpu).collect()
}

/// How a load allocates.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// It allocates everything.
    Real,
    /// It allocates nothing (`no_alloc`).
    Probe,
}

/// A model that llama.cpp has loaded onto cards.
pub(crate) struct Loaded {
    pub(crate) model: Model,
    devices: Vec<Device>,
}

impl Loaded {
    /// Loads the model. The file is mapped if the load of a plan would map it.
    pub(crate) fn new(
        path: &Path,
        cards: &[&Card],
        split: &Split,
        params: &ContextParams,
        kind: Kind,
    ) -> Result<Self, llama_sys::Error> {
        let devices: Vec<Device> = cards.iter().map(|card| card.sim.device()).collect();
        let metal = cards.iter().any(|card| card.gpu.backend == "MTL");
        let model = Model::load(
            path,
            ModelParams {
                n_gpu_layers: i32::try_from(split.n_gpu_layers).unwrap(),
                tensor_split: split.tensor_split.clone(),
                overrides: native_params::overrides(&split.overrides, &devices),
                load_mode: if kind == Kind::Real && params.mmap && !metal { LoadMode::Auto } else { LoadMode::None },
                no_alloc: kind == Kind::Probe,
                use_extra_bufts: params.repack,
                load_mtp: params.mtp,
                devices: Some(devices.clone()),
                ..ModelParams::default()
            },
        )?;
        Ok(Self { model, devices })
    }

    pub(crate) fn context(&self, params: &ContextParams) -> Result<Context, llama_sys::Error> {
        Context::new(&self.model, native_params::context(params))
    }

    /// The bytes that llama.cpp allocates, or would allocate, for a context with these parameters.
    pub(crate) fn footprints(&self, params: &ContextParams) -> Result<Footprints, llama_sys::Error> {
        Ok(native_params::footprints(&self.context(params)?.memory_breakdown()?, &self.devices))
    }
}

/// If some of the `cases` cases have failed, fails and shows the first of them.
#[track_caller]
pub(crate) fn none_failed(failures: &[String], cases: usize) {
    println!("{cases} cases");
    let shown: Vec<_> = failures.iter().take(12).map(String::as_str).collect();
    assert!(failures.is_empty(), "{} faults in {cases} cases:\n{}", failures.len(), shown.join("\n"));
}

/// After a load, checks that these cards are empty.
pub(crate) fn nothing_left<'a>(after: &str, cards: impl Iterator<Item = &'a SimGpu>) -> Result<(), String> {
    for sim in cards {
        let (name, used, buffers) = (sim.device().name(), sim.used(), sim.buffers());
        if (used, buffers) != (0, 0) {
            return Err(format!("{name} still counts {used} bytes in {buffers} buffers after {after}"));
        }
    }
    Ok(())
}
