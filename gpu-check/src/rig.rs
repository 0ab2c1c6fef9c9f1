//! What a check runs on: the GPUs of this machine, or simulated ones.
//!
//! In: a description that can be handed to another process. Out: the devices, open in this one, and their free bytes.
//! Simulated cards are shared, so that what one process takes no other has, as on a real card.

use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};
use autoplace::llama_sys::sim::{Rules, SimGpu};
use autoplace::load;
use autoplace::machine::{Gpu, Machine};
use serde::{Deserialize, Serialize};

/// The GPUs of a check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Rig {
    /// Every GPU that a backend of this program drives.
    Real,
    /// These, by CUDA's rules.
    Simulated(Vec<SimCard>),
}

/// A simulated card. Sizes in bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SimCard {
    pub(crate) name: String,
    pub(crate) total: u64,
    /// What the first computation takes beside all buffers, as a driver's pools do.
    pub(crate) growth: u64,
    /// Where all processes count what is taken.
    pub(crate) file: PathBuf,
}

/// A rig in this process. Dropping it takes simulated cards away.
#[derive(Debug)]
pub(crate) struct Opened {
    /// Names of the devices: `CUDA0`, `SIM0`.
    pub(crate) devices: Vec<String>,
    _cards: Vec<SimGpu>,
}

/// What a GPU says is free, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Free {
    /// Its backend (`cudaMemGetInfo`).
    pub(crate) ggml: Option<u64>,
    /// NVIDIA's driver, which also sees what this process's own context takes.
    pub(crate) nvml: Option<u64>,
}

impl Free {
    fn of(gpu: &Gpu) -> Self {
        Self { ggml: gpu.ggml.map(|reading| reading.free), nvml: gpu.nvml.map(|reading| reading.free) }
    }
}

impl Rig {
    /// What NVIDIA's driver says is free of each card while no process of ours has opened it; nothing
    /// of simulated ones.
    pub(crate) fn unopened(&self) -> Vec<Free> {
        match self {
            Self::Real => Machine::detect().gpus.iter().map(Free::of).collect(),
            Self::Simulated(_) => Vec::new(),
        }
    }

    /// Makes its devices devices of this process. On CUDA that opens a context on each card.
    pub(crate) fn open(&self) -> Result<Opened> {
        let cards: Vec<SimGpu> = match self {
            Self::Real => Vec::new(),
            Self::Simulated(cards) => cards.iter().map(register).collect::<Result<_>>()?,
        };
        let devices: Vec<String> = match self {
            Self::Real => {
                let gpus = load::detect()?.gpus.into_iter();
                gpus.filter_map(|gpu| gpu.device).collect()
            }
            Self::Simulated(_) => cards.iter().map(|card| card.device().name()).collect(),
        };
        ensure!(
            !devices.is_empty(),
            "no backend of this program drives a GPU: libggml-cuda.so must lie beside it, and find a driver and a card (`--cpu` does without)"
        );
        Ok(Opened { devices, _cards: cards })
    }
}

fn register(card: &SimCard) -> Result<SimGpu> {
    SimGpu::builder(&card.name)
        .backend("CUDA")
        .rules(Rules::Cuda)
        .total(card.total)
        .growth(card.growth)
        .shared(&card.file)
        .register()
        .with_context(|| format!("the simulated card {}", card.name))
}

impl Opened {
    /// This machine as it is now, with the rig's GPUs and no others.
    pub(crate) fn machine(&self) -> Result<Machine> {
        let mut machine = load::detect()?;
        machine.gpus.retain(|gpu| {
            let device = gpu.device.as_ref();
            device.is_some_and(|device| self.devices.contains(device))
        });
        ensure!(
            machine.gpus.len() == self.devices.len(),
            "of {} GPUs {} are left",
            self.devices.len(),
            machine.gpus.len()
        );
        Ok(machine)
    }

    /// What each GPU says is free now.
    pub(crate) fn free(&self) -> Result<Vec<Free>> {
        Ok(self.machine()?.gpus.iter().map(Free::of).collect())
    }
}
