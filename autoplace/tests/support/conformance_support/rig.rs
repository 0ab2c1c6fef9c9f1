//! Simulated cards, the machines that they make up, and llama.cpp's answers on them.

use std::path::Path;

use autoplace::llama_sys::sim::{Rules, SimGpu};
use autoplace::llama_sys::{self, Context, Device, LoadMode, Model, ModelParams};
use autoplace::machine::{Gpu, gib};
use autoplace::memory::{ContextParams, Footprints, Split};

use crate::native_params;

/// A simulated card, and the same as the planner sees it.
pub(crate) struct Card {
    sim: SimGpu,
    pub(crate) gpu: Gpu,
}

impl Card {
    /// A card of this size in GiB by the rules of its backend, as asynchronous as the real ones.
    pub(crate) fn new(rules: Rules, size: u64) -> Self {
        Self::with(rules, size, true)
    }

    fn with(rules: Rules, size: u64, asynchronous: bool) -> Self {
        let (backend, alignment) = match rules {
            Rules::Cuda => ("CUDA", None),
            Rules::Vulkan { alignment, .. } => ("Vulkan", Some(alignment)),
            Rules::Metal => ("MTL", None),
            other => panic!("no backend is {other:?}"),
        };
        let sim = SimGpu::builder(format!("SIM {backend}"))
            .total(gib(size))
            .rules(rules)
            .backend(backend)
            .asynchronous(asynchronous)
            .register()
            .unwrap();
        let mut gpu = Gpu::new(backend).total(gib(size)).backend(backend);
        gpu.alignment = alignment;
        Self { sim, gpu }
    }

    pub(crate) fn device(&self) -> Device {
        self.sim.device()
    }
}

/// A list of GPUs, as a load is given it.
pub(crate) struct Machine<'a> {
    pub(crate) name: &'static str,
    pub(crate) cards: Vec<&'a Card>,
}

fn machine<'a>(name: &'static str, cards: &[&'a Card]) -> Machine<'a> {
    Machine {
        name,
        cards: cards.to_vec(),
    }
}

impl Machine<'_> {
    pub(crate) fn gpus(&self) -> Vec<&Gpu> {
        self.cards.iter().map(|card| &card.gpu).collect()
    }
}

/// The cards of the suite: unequal ones under each backend's rules.
pub(crate) struct Rig([Card; 6]);

impl Rig {
    pub(crate) fn new() -> Self {
        let vulkan = |alignment| Rules::Vulkan {
            alignment,
            max_alloc: gib(4),
        };
        Self([
            Card::new(Rules::Cuda, 400),
            Card::new(Rules::Cuda, 150),
            Card::with(Rules::Cuda, 230, false),
            Card::new(vulkan(256), 270),
            Card::new(vulkan(64), 90),
            Card::new(Rules::Metal, 200),
        ])
    }

    /// None to three of them.
    pub(crate) fn machines(&self) -> Vec<Machine<'_>> {
        let [large, small, slow, vulkan, fine, metal] = &self.0;
        vec![
            machine("the host", &[]),
            machine("CUDA", &[large]),
            machine("Vulkan", &[fine]),
            machine("Metal", &[metal]),
            machine("CUDA and CUDA", &[small, large]),
            machine("CUDA and a CUDA that waits", &[large, slow]),
            machine("Metal and CUDA", &[metal, large]),
            machine("Vulkan, Metal and CUDA", &[vulkan, metal, small]),
        ]
    }
}

/// A load that allocates nothing.
pub(crate) struct Probed {
    model: Model,
    devices: Vec<Device>,
}

impl Probed {
    pub(crate) fn load(
        path: &Path,
        cards: &[&Card],
        split: &Split,
        repack: bool,
    ) -> Result<Self, llama_sys::Error> {
        let devices: Vec<Device> = cards.iter().map(|card| card.device()).collect();
        let model = Model::load(
            path,
            ModelParams {
                n_gpu_layers: i32::try_from(split.n_gpu_layers).unwrap(),
                overrides: native_params::overrides(&split.overrides, &devices),
                tensor_split: split.tensor_split.clone(),
                devices: Some(devices.clone()),
                load_mode: LoadMode::None,
                no_alloc: true,
                use_extra_bufts: repack,
                ..ModelParams::default()
            },
        )?;
        Ok(Self { model, devices })
    }

    /// What llama.cpp would allocate for a context of these parameters.
    pub(crate) fn footprints(
        &self,
        params: &ContextParams,
    ) -> Result<Footprints, llama_sys::Error> {
        let context = Context::new(&self.model, native_params::context(params))?;
        Ok(native_params::footprints(
            &context.memory_breakdown()?,
            &self.devices,
        ))
    }
}
