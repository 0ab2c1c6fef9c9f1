//! NVIDIA's driver library kept open, for who asks the same cards again and again.
//!
//! Opening the library takes tens of milliseconds, a question to an open one tens of microseconds. No question opens a
//! CUDA context or waits for what the card computes.

use std::collections::HashMap;
use std::path::Path;

use nvml_wrapper::bitmasks::device::ThrottleReasons;
use nvml_wrapper::enum_wrappers::device::TemperatureSensor;
use nvml_wrapper::{Device, Nvml};

use super::{Library, figures, first_query, second_query};
use crate::machine::gpu::Reading;
use crate::machine::pci::PciId;
use crate::machine::process::GpuProcess;
use crate::machine::throttle::ThrottleReason;

/// An open driver library.
#[derive(Debug)]
pub struct Driver {
    nvml: Nvml,
    /// NVML's index of each card.
    cards: HashMap<PciId, u32>,
}

/// How a card is right now. What its driver does not tell is `None`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CardState {
    /// Its memory, as [`NvidiaGpu::memory`](super::NvidiaGpu::memory).
    pub memory: Option<Reading>,
    /// The temperature of the chip, in degrees Celsius.
    pub temperature: Option<u32>,
    /// What holds its clocks down; empty where nothing does.
    pub throttle: Option<Vec<ThrottleReason>>,
}

/// Who has opened a card.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CardProcesses {
    /// Whether this process is among them. In a container it may be there under a number that it does
    /// not know itself by.
    pub knows_us: bool,
    /// The others, the largest holder first.
    pub others: Vec<GpuProcess>,
}

impl Driver {
    /// Opens the library that the system finds under its usual name; `None` where there is none that
    /// works, and no card.
    #[must_use]
    pub fn open() -> Option<Self> {
        Self::of(&Library { path: None })
    }

    /// Opens the library at a path.
    #[must_use]
    pub fn open_at(library: &Path) -> Option<Self> {
        Self::of(&Library {
            path: Some(library.as_os_str()),
        })
    }

    fn of(library: &Library<'_>) -> Option<Self> {
        let told = |error: &dyn std::fmt::Display| tracing::debug!(%error, "NVML is not watched");
        let nvml = library.open().inspect_err(|error| told(error)).ok()?;
        if nvml.lib().nvmlShutdown.is_err() {
            // As in `Library::detect`.
            std::mem::forget(nvml);
            return None;
        }
        let count = nvml.device_count().inspect_err(|error| told(error)).ok()?;
        let address = |index| {
            let pci = nvml.device_by_index(index).ok()?.pci_info().ok()?;
            Some((pci.bus_id.parse().ok()?, index))
        };
        let cards: HashMap<PciId, u32> = (0..count).filter_map(address).collect();
        Some(Self { nvml, cards })
    }

    /// How the card at this address is; all `None` where there is no such card.
    #[must_use]
    pub fn state(&self, card: PciId) -> CardState {
        let Some(&index) = self.cards.get(&card) else {
            return CardState::default();
        };
        let Ok(device) = self.nvml.device_by_index(index) else {
            return CardState::default();
        };
        let temperature = device.temperature(TemperatureSensor::Gpu);
        CardState {
            memory: second_query(&device)
                .or_else(|_| first_query(&self.nvml, &device))
                .ok(),
            temperature: figures::answer("temperature", temperature),
            throttle: throttle(&device),
        }
    }

    /// Who has opened the card at this address; `None` where the driver does not tell, and of a card in MIG mode, whose
    /// list is that of all its slices.
    ///
    /// Takes longer than the other questions: each process is asked for its name.
    #[must_use]
    pub fn processes(&self, card: PciId) -> Option<CardProcesses> {
        let device = self.nvml.device_by_index(*self.cards.get(&card)?).ok()?;
        if figures::slices(&device).is_some() {
            return None;
        }
        let (others, knows_us) = figures::others_and_us(&self.nvml, &device)?;
        Some(CardProcesses { knows_us, others })
    }
}

fn throttle(device: &Device<'_>) -> Option<Vec<ThrottleReason>> {
    let bits = figures::answer("throttle reasons", device.current_throttle_reasons())?;
    let reasons = [
        (ThrottleReasons::SW_POWER_CAP, ThrottleReason::PowerLimit),
        (ThrottleReasons::SW_THERMAL_SLOWDOWN, ThrottleReason::Heat),
        (
            ThrottleReasons::HW_THERMAL_SLOWDOWN,
            ThrottleReason::Overheating,
        ),
        (
            ThrottleReasons::HW_POWER_BRAKE_SLOWDOWN,
            ThrottleReason::PowerBrake,
        ),
        (ThrottleReasons::HW_SLOWDOWN, ThrottleReason::Hardware),
    ];
    let held = reasons
        .into_iter()
        .filter(|(bit, _)| bits.contains(*bit))
        .map(|(_, reason)| reason);
    let mut held: Vec<ThrottleReason> = held.collect();
    // The hardware's slowdown is told beside the reason for it.
    let explained = [ThrottleReason::Overheating, ThrottleReason::PowerBrake];
    if explained.iter().any(|reason| held.contains(reason)) {
        held.retain(|reason| *reason != ThrottleReason::Hardware);
    }
    Some(held)
}
