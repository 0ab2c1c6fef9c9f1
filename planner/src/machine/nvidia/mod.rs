//! NVIDIA's driver library (NVML): every card with its PCI address and memory, without opening a CUDA context.
//!
//! A library flows in. The cards that it lists flow out, with notes on missing reports. A missing library gives no
//! cards and no note, because most machines have no NVIDIA driver. A library without a driver, or a card that does not
//! answer, gives a note.
//!
//! Values that a card need not report (clock, link, MIG slices, processes) are `None` without a note: virtual machines,
//! WSL and older drivers leave some of them out.
//!
//! Memory is read with NVML's second query (driver 510 and later), which reports the driver's own bytes separately.
//! With an older driver, detection reads the memory once from `nvidia-smi` (`smi.rs`).

use std::cmp::Reverse;
use std::fmt::Display;
use std::path::{Path, PathBuf};

use nvml_wrapper::enum_wrappers::device::Clock;
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};

use super::bandwidth::{Bandwidth, BandwidthSource};
use super::gpu::{Gpu, GpuKind};
use super::gpu_process::GpuProcess;
use super::mig::MigSlice;
use super::pcie::{PcieLink, PcieRate};
use super::reading::Reading;
use super::tree::{Note, Notes};

mod driver;
mod smi;

pub use super::throttle::ThrottleReason;
pub use driver::{CardProcesses, CardState, Driver};

/// `NVML_DEVICE_MIG_ENABLE`.
const MIG_ENABLED: u32 = 1;

/// The longest program name that is requested, in bytes; NVML truncates longer names.
const MAX_NAME_BYTES: usize = 1024;

/// A card as NVIDIA's driver describes it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct NvidiaGpu {
    /// The card, described without ggml. Its memory is NVML's figure or, with a driver before 510, the figure of
    /// `nvidia-smi`. Without either of them, ggml's figure applies. The peak bandwidth follows from clock and bus
    /// width. The link is what card and system together allow. The card is integrated if the driver does not fail but
    /// states that it cannot count the memory, as for chips such as GB10.
    pub gpu: Gpu,
    /// The card's permanent id: `GPU-8932f937-...`.
    pub uuid: Option<String>,
    /// Whether the card is in MIG mode: then CUDA treats its slices as cards.
    pub mig: bool,
    /// The slices in MIG mode; CUDA uses the first one. `None` if the driver does not list them.
    pub slices: Option<Vec<MigSlice>>,
    /// Whether `CUDA_VISIBLE_DEVICES` hides the card from CUDA. The [`Detector`](super::Detector) sets this field; NVML
    /// does not know it.
    pub hidden: bool,
}

/// Queries the NVML library at this path, or else the system's library (`libnvidia-ml.so.1`, or `nvml.dll` in Windows'
/// system folder). Returns the cards in NVML's order, which is by PCI address, and notes on skipped cards and missing
/// figures.
pub fn detect(library: Option<&Path>) -> (Vec<NvidiaGpu>, Vec<Note>) {
    let mut notes = Notes::default();
    let mut gpus = Vec::new();
    match open(library) {
        Ok(nvml) => {
            let driver = nvml.sys_driver_version().ok().map(|version| version.replace(char::is_control, " "));
            let count = nvml.device_count().unwrap_or_else(|error| {
                let problem = format!("does not say how many cards there are: {error}");
                notes.add("NVML", problem);
                0
            });
            gpus.extend((0..count).filter_map(|index| card(&nvml, index, &driver, &mut notes)));
            if !gpus.is_empty() && lacks_memory_query(&nvml) {
                ask_program(&mut gpus, library, &mut notes);
            }
        }
        Err(Some(problem)) => notes.add("NVML", problem),
        Err(None) => tracing::debug!("no NVIDIA driver library"),
    }
    (gpus, notes.0)
}

/// Whether the driver is older than NVML's second memory query.
fn lacks_memory_query(nvml: &Nvml) -> bool {
    nvml.lib().nvmlDeviceGetMemoryInfo_v2.is_err()
}

/// Asks `nvidia-smi` for the memory of the cards. If a library was named, the program in the library's folder is asked,
/// otherwise the system's.
fn ask_program(gpus: &mut [NvidiaGpu], library: Option<&Path>, notes: &mut Notes) {
    let folder = library.and_then(Path::parent).map(Path::to_owned).or_else(system_folder);
    let memory = smi::memory(folder.as_deref());
    let (mut answers, mut missing) = (Vec::new(), Vec::new());
    for NvidiaGpu { gpu, .. } in gpus {
        let reading = gpu.pci_id.and_then(|id| memory.get(&id));
        gpu.nvml = reading.copied();
        match reading {
            Some(&Reading { total, free, .. }) => {
                (gpu.total, gpu.free) = (total, free);
                answers.push(gpu.name.clone());
            }
            None => missing.push(gpu.name.clone()),
        }
    }
    let since = "the driver is older than 510, which has no NVML query that counts its own memory apart";
    if !answers.is_empty() {
        notes.add("NVML", format!("the memory of {} is as nvidia-smi reports it: {since}", answers.join(", ")));
    }
    if !missing.is_empty() {
        notes.add("NVML", format!("nvidia-smi does not report the memory of {}: {since}", missing.join(", ")));
    }
}

/// Windows' own folder. If the library were named without this folder, Windows would also look for it in the program's
/// folder and in the current folder.
fn system_folder() -> Option<PathBuf> {
    let windows = || std::env::var_os("SystemRoot").unwrap_or_else(|| "C:\\Windows".into());
    cfg!(windows).then(|| Path::new(&windows()).join("System32"))
}

/// Opens the library at this path, or else the system's library. The error contains the reason; `Err(None)` means that
/// the system has no library.
fn open(library: Option<&Path>) -> Result<Nvml, Option<String>> {
    let mut builder = Nvml::builder();
    let system = system_folder().map(|folder| folder.join("nvml.dll"));
    if let Some(path) = library.or(system.as_deref()) {
        builder.lib_path(path.as_os_str());
    }
    let nvml = builder.init().map_err(|error| match error {
        NvmlError::LibloadingError(_) if library.is_none() => None,
        error => Some(format!("does not start: {error}")),
    })?;
    if nvml.lib().nvmlShutdown.is_err() {
        // When the handle is dropped, nvml-wrapper shuts NVML down, and panics if this fails. It is better never to
        // shut NVML down.
        std::mem::forget(nvml);
        let problem = "is not a complete NVIDIA driver library: it has no nvmlShutdown";
        return Err(Some(problem.to_owned()));
    }
    Ok(nvml)
}

/// One card; `None` with a note if it does not respond at all.
fn card(nvml: &Nvml, index: u32, driver: &Option<String>, notes: &mut Notes) -> Option<NvidiaGpu> {
    let about = format!("NVIDIA GPU {index}");
    let mut note = |what: &str, error: &dyn Display| notes.add(about.clone(), format!("{what}: {error}"));
    let device = nvml.device_by_index(index).map_err(|error| note("is skipped", &error)).ok()?;
    let name = device.name().map_err(|error| note("does not report its name", &error));
    let pci = device.pci_info().map_err(|error| note("does not report its PCI address", &error));
    let pci_id =
        pci.ok().and_then(|pci| pci.bus_id.parse().map_err(|error| note("has an odd PCI address", &error)).ok());
    let mut gpu = Gpu::new(name.unwrap_or_else(|()| about.clone()));
    match memory(&device) {
        Ok(reading) => {
            gpu.nvml = Some(reading);
            gpu = gpu.total(reading.total.saturating_sub(reading.reserved.unwrap_or(0))).free(reading.free);
        }
        Err(NvmlError::GpuLost) => {
            note("is skipped", &"it fell off the bus");
            return None;
        }
        // The driver is older than the query, so nvidia-smi is asked.
        Err(NvmlError::FailedToLoadSymbol(_)) => {}
        Err(error) => {
            note("does not report its memory", &error);
            if matches!(error, NvmlError::NotSupported) {
                gpu.kind = GpuKind::Integrated;
            }
        }
    }
    gpu.pci_id = pci_id;
    let mig = is_divided(&device);
    gpu.bandwidth = bandwidth(&device).map(|peak| Bandwidth::new(peak, BandwidthSource::Nvml));
    gpu.pcie = pcie(&device);
    gpu.processes = others_and_us(nvml, &device).filter(|_| !mig).map(|on_it| on_it.others);
    gpu.driver.clone_from(driver);
    let slices = if mig { slices(&device) } else { None };
    Some(NvidiaGpu { gpu, uuid: answer("UUID", device.uuid()), mig, slices, hidden: false })
}

/// The memory that `nvmlDeviceGetMemoryInfo_v2` reports.
fn memory(device: &Device<'_>) -> Result<Reading, NvmlError> {
    let memory = device.memory_info()?;
    Ok(Reading::new(memory.total, memory.free).reserved(memory.reserved))
}

/// The peak memory bandwidth in bytes per second, from the clock in MHz and the bus width in bits.
///
/// Every kind of memory counts as two transfers per clock: NVML's clock is half of the data rate per pin, however the
/// memory works internally. This matches the data sheets for GDDR5, 5X, 6, 6X and 7 and for HBM2, 2e, 3 and 3e within 2
/// %. This was checked with the maximum clocks that `nvidia-smi -q` shows for six cards (for an H200, the result is 4.9
/// TB/s, which its data sheet rounds down to 4.8).
fn bandwidth(device: &Device<'_>) -> Option<u64> {
    let clock = answer("memory clock", device.max_clock_info(Clock::Memory))?;
    let width = answer("memory bus width", device.memory_bus_width())?;
    let bits = (u64::from(clock) * u64::from(width)).checked_mul(2_000_000)?;
    Some(bits / 8).filter(|&bytes| bytes > 0)
}

/// The card's PCIe link. Its maximum is "possible with this device and system" (nvml.h,
/// `nvmlDeviceGetMaxPcieLinkGeneration`).
fn pcie(device: &Device<'_>) -> Option<PcieLink> {
    let rate = |generation: Result<u32, NvmlError>, lanes: Result<u32, NvmlError>| {
        let generation = answer("PCIe generation", generation)?;
        let lanes = answer("PCIe lanes", lanes)?;
        PcieRate::new(u8::try_from(generation).ok()?, u8::try_from(lanes).ok()?)
    };
    let max = rate(device.max_pcie_link_gen(), device.max_pcie_link_width())?;
    let (generation, lanes) = (device.current_pcie_link_gen(), device.current_pcie_link_width());
    Some(PcieLink { max, current: rate(generation, lanes) })
}

/// Whether the card is in MIG mode: divided into slices, each with its own memory and memory controllers.
fn is_divided(device: &Device<'_>) -> bool {
    let mode = answer("MIG mode", device.mig_mode());
    mode.is_some_and(|mode| mode.current == MIG_ENABLED)
}

/// The slices of a card in MIG mode; `None` if the driver does not list them.
fn slices(device: &Device<'_>) -> Option<Vec<MigSlice>> {
    // The maximum number of slices. Unused positions return nothing.
    let places = answer("MIG slices", device.mig_device_count())?;
    let slices = (0..places).filter_map(|place| {
        let slice = answer("MIG slice", device.mig_device_by_index(place))?;
        let mut described = MigSlice::new(&answer("MIG slice's name", slice.name())?);
        described.uuid = answer("MIG slice's UUID", slice.uuid());
        described.memory = answer("MIG slice's memory", memory(&slice));
        Some(described)
    });
    Some(slices.collect())
}

/// The other programs that have a compute or graphics context on the card, the program with the most memory first, and
/// whether this program is in the driver's list. `None` if neither list is available.
fn others_and_us(nvml: &Nvml, device: &Device<'_>) -> Option<CardProcesses> {
    let compute = answer("compute processes", device.running_compute_processes());
    let graphics = answer("graphics processes", device.running_graphics_processes());
    if compute.is_none() && graphics.is_none() {
        return None;
    }
    // A program that both computes and draws is in both lists, with the same bytes.
    let mut held: Vec<GpuProcess> = Vec::new();
    for process in compute.into_iter().chain(graphics).flatten() {
        let bytes = match process.used_gpu_memory {
            UsedGpuMemory::Used(bytes) => Some(bytes),
            UsedGpuMemory::Unavailable => None,
        };
        match held.iter_mut().find(|known| known.pid == process.pid) {
            Some(known) => known.bytes = known.bytes.max(bytes),
            None => held.push(GpuProcess { bytes, ..GpuProcess::new(process.pid) }),
        }
    }
    let all = held.len();
    held.retain(|process| process.pid != std::process::id());
    held.sort_by_key(|process| (Reverse(process.bytes), process.pid));
    let knows_us = held.len() < all;
    let others = held.into_iter().map(|process| {
        let name = answer("a process's name", nvml.sys_process_name(process.pid, MAX_NAME_BYTES));
        process.name(&name.unwrap_or_default())
    });
    Some(CardProcesses { knows_us, others: others.collect() })
}

fn answer<T>(what: &str, result: Result<T, NvmlError>) -> Option<T> {
    result.inspect_err(|error| tracing::debug!(%error, "NVML does not report: {what}")).ok()
}
