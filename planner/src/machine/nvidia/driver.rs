//! NVIDIA's driver library kept open, for who asks the same cards again and again.
//!
//! Opening the library takes tens of milliseconds, a question to an open one tens of microseconds. No question opens a
//! CUDA context or waits for what the card computes.

use std::fmt;
use std::path::Path;

use nvml_wrapper::bitmasks::device::ThrottleReasons;
use nvml_wrapper::enum_wrappers::device::{Clock, TemperatureSensor};
use nvml_wrapper::{Device, Nvml};
use serde::{Deserialize, Serialize};

use super::{answer, is_divided, memory, others_and_us};
use crate::machine::cards::GpuProcess;
use crate::machine::gpu::Reading;
use crate::machine::pci::PciId;

/// An open driver library.
#[derive(Debug)]
pub struct Driver {
    nvml: Nvml,
    /// NVML's index of each card.
    cards: Vec<(PciId, u32)>,
}

/// How a card is right now. What its driver does not report is `None`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CardState {
    /// Its memory, as NVML counts it.
    pub memory: Option<Reading>,
    /// The temperature of the chip, in degrees Celsius.
    pub temperature: Option<u32>,
    /// The clock of its multiprocessors, in MHz.
    pub clock_mhz: Option<u32>,
    /// What holds its clocks down; empty where nothing does.
    pub throttle: Option<Vec<ThrottleReason>>,
}

/// What holds a GPU's clocks down.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, thiserror::Error, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ThrottleReason {
    /// It draws as much power as it may. Many cards do whenever they are busy: by itself it is no fault.
    #[error("power limit")]
    PowerLimit,
    /// GPU or memory are warmer than they should run (NVML: software thermal slowdown).
    #[error("heat")]
    Heat,
    /// It is too hot, and its clocks are halved or less (NVML: hardware thermal slowdown).
    #[error("overheating")]
    Overheating,
    /// The computer's power supply asked it to slow down (NVML: hardware power brake).
    #[error("power brake")]
    PowerBrake,
    /// Its clocks are halved or less, for heat or power: the driver does not say which (NVML: hardware slowdown).
    #[error("hardware slowdown")]
    Hardware,
}

impl ThrottleReason {
    /// Whether it is worth a word by itself. [`PowerLimit`](Self::PowerLimit) is not: it is how busy cards
    /// find their clocks.
    pub const fn is_fault(self) -> bool {
        !matches!(self, Self::PowerLimit)
    }
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
    /// Opens the library at this path, or that which the system finds under its usual name; `None` where there is none
    /// that works, and no card.
    pub fn open(library: Option<&Path>) -> Option<Self> {
        let log = |error: &dyn fmt::Display| tracing::debug!(%error, "NVML is not watched");
        let nvml = super::open(library)
            .inspect_err(|error| log(&error.as_deref().unwrap_or("no NVIDIA driver library")))
            .ok()?;
        let count = nvml.device_count().inspect_err(|error| log(error)).ok()?;
        let address = |index| {
            let pci = nvml.device_by_index(index).ok()?.pci_info().ok()?;
            Some((pci.bus_id.parse().ok()?, index))
        };
        let cards = (0..count).filter_map(address).collect();
        Some(Self { nvml, cards })
    }

    /// How the card at this address is; all `None` where there is no such card.
    pub fn state(&self, card: PciId) -> CardState {
        let Some(device) = self.device(card) else {
            return CardState::default();
        };
        let temperature = device.temperature(TemperatureSensor::Gpu);
        CardState {
            memory: memory(&device).ok(),
            temperature: answer("temperature", temperature),
            clock_mhz: answer("clock", device.clock_info(Clock::SM)),
            throttle: throttle(&device),
        }
    }

    /// Who has opened the card at this address; `None` where the driver does not report it, and for a card in MIG mode,
    /// whose list is that of all its slices.
    ///
    /// Takes longer than the other questions: each process is asked for its name.
    pub fn processes(&self, card: PciId) -> Option<CardProcesses> {
        let device = self.device(card)?;
        if is_divided(&device) { None } else { others_and_us(&self.nvml, &device) }
    }

    fn device(&self, card: PciId) -> Option<Device<'_>> {
        let (_, index) = self.cards.iter().find(|(address, _)| *address == card)?;
        self.nvml.device_by_index(*index).ok()
    }
}

fn throttle(device: &Device<'_>) -> Option<Vec<ThrottleReason>> {
    use ThrottleReason::{Hardware, Heat, Overheating, PowerBrake, PowerLimit};
    let bits = answer("throttle reasons", device.current_throttle_reasons())?;
    let reasons = [
        (ThrottleReasons::SW_POWER_CAP, PowerLimit),
        (ThrottleReasons::SW_THERMAL_SLOWDOWN, Heat),
        (ThrottleReasons::HW_THERMAL_SLOWDOWN, Overheating),
        (ThrottleReasons::HW_POWER_BRAKE_SLOWDOWN, PowerBrake),
        (ThrottleReasons::HW_SLOWDOWN, Hardware),
    ];
    let held = reasons.into_iter().filter(|(bit, _)| bits.contains(*bit));
    let mut held: Vec<ThrottleReason> = held.map(|(_, reason)| reason).collect();
    // The driver reports the hardware slowdown beside the reason for it.
    if held.contains(&Overheating) || held.contains(&PowerBrake) {
        held.retain(|reason| *reason != Hardware);
    }
    Some(held)
}
