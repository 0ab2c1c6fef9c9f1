//! The GPUs of a check: the GPUs of this machine, or simulated cards.
//!
//! In: a description, which can be sent to another process. Out: the devices, open in this process, and their free
//! bytes. Processes share simulated cards like real cards: memory that one process takes is missing for the others.

use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};
use autoplace::llama_sys::sim::{Rules, SimGpu};
use autoplace::machine::Machine;
use autoplace::{WorkerProcess, load};
use autoplace_measure::FreeBytes;
use serde::{Deserialize, Serialize};

/// The variable that contains the simulated cards of the parent process, for a worker.
const CARDS: &str = "GPU_CHECK_CARDS";

/// The GPUs of a check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Rig {
    /// Every GPU that a backend of this program supports.
    Real,
    /// Simulated cards with CUDA's rules.
    Simulated(Vec<SimCard>),
}

/// A simulated card. Sizes are in bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SimCard {
    pub(crate) name: String,
    pub(crate) total: u64,
    /// Memory that the first computation takes in addition to all buffers, like a driver's pools.
    pub(crate) growth: u64,
    /// The file in which all processes count the used memory.
    pub(crate) file: PathBuf,
}

/// A rig in this process. Dropping it removes the simulated cards.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) rig: Rig,
    /// Device names: `CUDA0`, `SIM0`.
    pub(crate) devices: Vec<String>,
    _cards: Vec<SimGpu>,
}

impl Rig {
    /// The free bytes of each card, as NVIDIA's driver reports them without opening a card; empty for simulated cards.
    pub(crate) fn of_driver(&self) -> Vec<Option<u64>> {
        match self {
            Self::Real => Machine::detect().gpus.iter().map(|gpu| FreeBytes::new(gpu).nvml).collect(),
            Self::Simulated(_) => Vec::new(),
        }
    }

    /// Adds the devices to this process. CUDA then opens a context on each card.
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
            "no backend of this program drives a GPU: a backend such as libggml-cuda.so must lie beside it (or be named by GGML_BACKEND_PATH), and find a driver and a card (`--cpu` does without)"
        );
        Ok(Opened { rig: self.clone(), devices, _cards: cards })
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

/// In a worker, adds the simulated cards of the parent process. The cards exist as long as the returned value.
pub(crate) fn cards_of_worker() -> Result<Option<Opened>> {
    let Some(cards) = std::env::var_os(CARDS) else { return Ok(None) };
    let rig: Rig = serde_json::from_str(&cards.to_string_lossy()).context(CARDS)?;
    rig.open().map(Some)
}

impl Opened {
    /// A worker process with these GPUs.
    pub(crate) fn worker(&self) -> Result<WorkerProcess> {
        let worker = WorkerProcess::own_executable();
        Ok(match self.rig {
            Rig::Real => worker,
            Rig::Simulated(_) => worker.env(CARDS, serde_json::to_string(&self.rig)?),
        })
    }

    /// This machine in its current state, with only the rig's GPUs.
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

    /// This [machine](Self::machine) without what earlier programs have measured on it. The process of the checks
    /// itself reads the user's cache, and only its children have a cache of their own.
    pub(crate) fn unmeasured(&self) -> Result<Machine> {
        let mut machine = self.machine()?;
        machine.host.rates = None;
        for gpu in &mut machine.gpus {
            (gpu.learned, gpu.rates) = (None, None);
        }
        Ok(machine)
    }

    /// The current free memory of each GPU.
    pub(crate) fn free(&self) -> Result<Vec<FreeBytes>> {
        Ok(self.machine()?.gpus.iter().map(FreeBytes::new).collect())
    }
}
