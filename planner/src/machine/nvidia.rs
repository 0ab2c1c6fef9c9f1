//! NVIDIA's driver library (NVML): every card, its PCI address and its memory, without opening a CUDA context on it.
//!
//! In flows a library; out flow the cards it lists and notes on what it would not say. No library means no cards and no
//! note: most machines have none. A library without a driver, or a card that does not answer, is worth a note.
//!
//! What a card may lawfully not tell (its clock, its link, its MIG slices, who uses it) is `None` and no note: virtual
//! machines, WSL and older drivers leave some of it out.
//!
//! NVML has two memory queries. The second (driver 510 and later) tells the bytes that the driver keeps for itself
//! apart. Where it is missing or refused the first is asked.

use std::ffi::OsStr;
use std::fmt::Display;
use std::mem::MaybeUninit;
use std::path::Path;

use nvml_wrapper::error::{NvmlError, nvml_sym, nvml_try};
use nvml_wrapper::{Device, Nvml};

use super::gpu::Reading;
use super::mig::MigSlice;
use super::note::{Note, Notes};
use super::pci::PciId;
use super::pcie::PcieLink;
use super::process::GpuProcess;

mod driver;
mod figures;

pub use driver::{CardProcesses, CardState, Driver};

/// What NVIDIA's driver says about its cards.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Nvidia {
    /// The cards that answered, in NVML's order: by PCI address.
    pub gpus: Vec<NvidiaGpu>,
    /// The driver's version, such as `550.54.14`.
    pub driver: Option<String>,
    /// Cards that were skipped and figures that are missing.
    pub notes: Vec<Note>,
}

/// One card as NVIDIA's driver describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct NvidiaGpu {
    /// Its index in NVML, which is not CUDA's unless `CUDA_DEVICE_ORDER=PCI_BUS_ID`.
    pub index: u32,
    /// Its full name: `NVIDIA GeForce RTX 4090`.
    pub name: String,
    /// Its identity across machines and reboots: `GPU-8932f937-...`.
    pub uuid: Option<String>,
    /// Its PCI address.
    pub pci_id: Option<PciId>,
    /// Its memory in bytes; `None` where the driver says "not available", as on unified memory (GB10).
    pub memory: Option<Reading>,
    /// Whether the driver says that its memory cannot be counted, rather than failing to count it: so it answers for
    /// chips that use the host's memory (GB10).
    pub unified: bool,
    /// The peak at which its memory is read, in bytes per second: memory clock, twice per clock, times bus width.
    pub bandwidth: Option<u64>,
    /// Its PCIe link. NVML's maximum is that of card and system together.
    pub pcie: Option<PcieLink>,
    /// Its slices, where it is in MIG mode: the one that CUDA takes first.
    pub mig: Option<Vec<MigSlice>>,
    /// The other programs that have opened it, the largest holder first.
    pub processes: Option<Vec<GpuProcess>>,
    /// The version of the driver, as in [`Nvidia::driver`].
    pub driver: Option<String>,
    /// Whether `CUDA_VISIBLE_DEVICES` hides it from CUDA. Set by the [`Detector`](super::Detector); NVML
    /// knows nothing of it.
    pub hidden: bool,
}

impl NvidiaGpu {
    /// A card by its index and full name, of which nothing else is known.
    pub fn new(index: u32, name: impl Into<String>) -> Self {
        Self {
            index,
            name: name.into(),
            uuid: None,
            pci_id: None,
            memory: None,
            unified: false,
            bandwidth: None,
            pcie: None,
            mig: None,
            processes: None,
            driver: None,
            hidden: false,
        }
    }
}

/// Asks the NVML that the system finds under its usual name (`libnvidia-ml.so.1`, `nvml.dll`).
#[must_use]
pub fn detect() -> Nvidia {
    Library { path: None }.detect()
}

/// Asks the NVML at a path: a driver outside the usual places, or a test's own.
#[must_use]
pub fn detect_at(library: &Path) -> Nvidia {
    Library {
        path: Some(library.as_os_str()),
    }
    .detect()
}

struct Library<'a> {
    path: Option<&'a OsStr>,
}

impl Library<'_> {
    fn detect(&self) -> Nvidia {
        let mut notes = Notes::default();
        let nvml = match self.open() {
            Ok(nvml) => nvml,
            Err(NvmlError::LibloadingError(error)) if self.path.is_none() => {
                tracing::debug!(%error, "no NVIDIA driver library");
                return Nvidia::default();
            }
            Err(error) => {
                notes.add("NVML", format!("does not start: {error}"));
                return Nvidia {
                    notes: notes.into_vec(),
                    ..Nvidia::default()
                };
            }
        };
        if nvml.lib().nvmlShutdown.is_err() {
            // nvml-wrapper ends NVML when it is dropped and panics where it cannot. Better never ended than that.
            std::mem::forget(nvml);
            notes.add(
                "NVML",
                "is no whole NVIDIA driver library: it has no nvmlShutdown",
            );
            return Nvidia {
                notes: notes.into_vec(),
                ..Nvidia::default()
            };
        }
        let mut gpus = self.gpus(&nvml, &mut notes);
        let driver = nvml.sys_driver_version().ok();
        for gpu in &mut gpus {
            gpu.driver.clone_from(&driver);
        }
        Nvidia {
            gpus,
            driver,
            notes: notes.into_vec(),
        }
    }

    fn open(&self) -> Result<Nvml, NvmlError> {
        let mut builder = Nvml::builder();
        if let Some(path) = self.path {
            builder.lib_path(path);
        }
        builder.init()
    }

    fn gpus(&self, nvml: &Nvml, notes: &mut Notes) -> Vec<NvidiaGpu> {
        let count = match nvml.device_count() {
            Ok(count) => count,
            Err(error) => {
                notes.add(
                    "NVML",
                    format!("does not say how many cards there are: {error}"),
                );
                return Vec::new();
            }
        };
        (0..count)
            .filter_map(|index| gpu(nvml, index, notes))
            .collect()
    }
}

/// One card, or nothing and a note where it does not even give itself out.
fn gpu(nvml: &Nvml, index: u32, notes: &mut Notes) -> Option<NvidiaGpu> {
    let about = format!("NVIDIA GPU {index}");
    let device = match nvml.device_by_index(index) {
        Ok(device) => device,
        Err(error) => {
            notes.add(about, format!("is skipped: {error}"));
            return None;
        }
    };
    let mut told =
        |what: &str, error: &dyn Display| notes.add(about.clone(), format!("{what}: {error}"));
    let name = device
        .name()
        .map_err(|error| told("does not tell its name", &error))
        .unwrap_or_else(|()| about.clone());
    let pci_id = device
        .pci_info()
        .map_err(|error| told("does not tell its PCI address", &error))
        .ok()
        .and_then(|pci| {
            pci.bus_id
                .parse()
                .map_err(|error| told("has an odd PCI address", &error))
                .ok()
        });
    let mut unified = false;
    let memory = match second_query(&device) {
        Ok(reading) => Some(reading),
        Err(NvmlError::GpuLost) => {
            notes.add(about, "is skipped: it fell off the bus");
            return None;
        }
        Err(second) => match first_query(nvml, &device) {
            Ok(reading) => {
                told(
                    "answers only NVML's first memory query, the second says",
                    &second,
                );
                Some(reading)
            }
            Err(first) => {
                told("does not tell its memory", &first);
                unified = matches!(second, NvmlError::NotSupported);
                None
            }
        },
    };
    Some(NvidiaGpu {
        uuid: device.uuid().ok(),
        pci_id,
        memory,
        unified,
        bandwidth: figures::bandwidth(&device),
        pcie: figures::pcie(&device),
        mig: figures::slices(&device),
        processes: figures::processes(nvml, &device),
        ..NvidiaGpu::new(index, name)
    })
}

/// `nvmlDeviceGetMemoryInfo_v2`.
fn second_query(device: &Device<'_>) -> Result<Reading, NvmlError> {
    let memory = device.memory_info()?;
    Ok(Reading::new(memory.total, memory.free).reserved(memory.reserved))
}

/// `nvmlDeviceGetMemoryInfo`, which `nvml-wrapper` loads and has no function for.
#[allow(
    unsafe_code,
    reason = "the one call of NVML's that its wrapper leaves to its users"
)]
fn first_query(nvml: &Nvml, device: &Device<'_>) -> Result<Reading, NvmlError> {
    let query = nvml_sym(nvml.lib().nvmlDeviceGetMemoryInfo.as_ref())?;
    let mut memory = MaybeUninit::zeroed();
    // SAFETY: the symbol has the type that nvml.h declares, the handle is of a device of this NVML, which is
    // initialised as long as it is borrowed, and all of the struct that is written to is ours.
    nvml_try(unsafe { query(device.handle(), memory.as_mut_ptr()) })?;
    // SAFETY: three integers, of which zeros are valid ones.
    let memory = unsafe { memory.assume_init() };
    Ok(Reading::new(memory.total, memory.free))
}
