//! NVIDIA's driver library, which stays open for repeated queries of the same cards.
//!
//! Opening the library takes tens of milliseconds; a query takes tens of microseconds. No query opens a CUDA context or
//! waits for the card's computations.

use std::fmt;
use std::path::Path;

use nvml_wrapper::bitmasks::device::ThrottleReasons;
use nvml_wrapper::enum_wrappers::device::{Clock, TemperatureSensor};
use nvml_wrapper::{Device, Nvml};

use super::{answer, is_divided, memory, others_and_us};
use crate::machine::gpu_process::GpuProcess;
use crate::machine::pci::PciId;
use crate::machine::reading::Reading;
use crate::machine::throttle::ThrottleReason;

/// An open driver library.
#[derive(Debug)]
pub struct Driver {
    nvml: Nvml,
    /// NVML's index of each card.
    cards: Vec<(PciId, u32)>,
}

/// The current state of a card. `None` means that the driver does not report the value.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CardState {
    /// Memory, as NVML counts it.
    pub memory: Option<Reading>,
    /// Temperature of the chip, in degrees Celsius.
    pub temperature: Option<u32>,
    /// Clock of the multiprocessors, in MHz.
    pub clock_mhz: Option<u32>,
    /// The reasons that hold the clocks down; empty if there are none.
    pub throttle: Option<Vec<ThrottleReason>>,
}

/// The programs that have opened a card.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CardProcesses {
    /// Whether this process is among them. In a container the driver may list this process under an id that the process
    /// does not know.
    pub knows_us: bool,
    /// The other programs; the program with the most memory comes first.
    pub others: Vec<GpuProcess>,
}

impl Driver {
    /// Opens the library at this path, or else the system's library; `None` if there is no working library.
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

    /// The state of the card at this address. All fields are `None` if there is no such card.
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

    /// The programs that have opened the card at this address. `None` if the driver does not report them. `None` also
    /// for a card in MIG mode, because its list covers all slices.
    ///
    /// This query takes longer than the other queries, because it asks for the name of each process.
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
    // The driver reports a hardware slowdown in addition to its cause.
    if held.contains(&Overheating) || held.contains(&PowerBrake) {
        held.retain(|reason| *reason != Hardware);
    }
    Some(held)
}
