//! Looking at this computer: which witnesses are asked, and where tests put their own.

use std::path::{Path, PathBuf};

use super::Machine;
use super::host::Host;
use super::merge::{self, GgmlDevice};
use super::note::Notes;
use super::nvidia::{self, Nvidia};
use super::visible::CudaVisibility;

/// Looks at this computer. [`Machine::detect`] and [`Machine::detect_with`] are this with nothing changed.
///
/// ```no_run
/// use autoplace::machine::Detector;
/// let machine = Detector::new().nvml_library("/opt/nvidia/lib/libnvidia-ml.so.1").detect();
/// println!("{machine}");
/// ```
#[derive(Debug, Clone, Default)]
pub struct Detector {
    root: Option<PathBuf>,
    nvml: NvmlLibrary,
    backends: Vec<String>,
    /// `None`: as the environment says when the detector looks.
    cuda_visibility: Option<CudaVisibility>,
}

#[derive(Debug, Clone, Default)]
enum NvmlLibrary {
    #[default]
    Usual,
    At(PathBuf),
    None,
}

impl Detector {
    /// A detector that asks this computer the usual way.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Reads the host from `{root}/proc` and `{root}/sys` instead of `/proc` and `/sys`.
    #[must_use]
    pub fn root(mut self, root: impl AsRef<Path>) -> Self {
        self.root = Some(root.as_ref().to_owned());
        self
    }

    /// Asks the NVIDIA driver library at this path instead of the one that the system finds.
    #[must_use]
    pub fn nvml_library(mut self, library: impl AsRef<Path>) -> Self {
        self.nvml = NvmlLibrary::At(library.as_ref().to_owned());
        self
    }

    /// Does not ask NVIDIA's driver.
    #[must_use]
    pub fn without_nvml(mut self) -> Self {
        self.nvml = NvmlLibrary::None;
        self
    }

    /// Says which ggml backends this build has (`CUDA`, `Vulkan`, ...), those without a device too: then a card that none
    /// of them lists gets the right reason.
    #[must_use]
    pub fn backends(mut self, names: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.backends = names.into_iter().map(Into::into).collect();
        self
    }

    /// Takes these for the values of `CUDA_VISIBLE_DEVICES` (`None`: not set, every card shows) and of
    /// `CUDA_DEVICE_ORDER=PCI_BUS_ID`, instead of asking the environment.
    #[must_use]
    pub fn cuda_visible_devices(mut self, list: Option<&str>, pci_order: bool) -> Self {
        self.cuda_visibility = Some(CudaVisibility {
            devices: list.map(str::to_owned),
            pci_order,
        });
        self
    }

    /// The machine as the drivers describe it, for planning without llama.cpp: NVIDIA's cards and the host.
    #[must_use]
    pub fn detect(&self) -> Machine {
        self.with_witnesses(merge::from_cards)
    }

    /// The machine as ggml's devices and the drivers together describe it.
    #[must_use]
    pub fn detect_with(&self, devices: &[GgmlDevice]) -> Machine {
        self.with_witnesses(|cards, host| merge::merge(devices, &self.backends, cards, host))
    }

    fn with_witnesses(
        &self,
        build: impl FnOnce(Vec<nvidia::NvidiaGpu>, Host) -> Machine,
    ) -> Machine {
        let (host, mut notes) = self
            .root
            .as_deref()
            .map_or_else(Host::detect, Host::detect_under);
        let mut nvidia = match &self.nvml {
            NvmlLibrary::Usual => nvidia::detect(),
            NvmlLibrary::At(path) => nvidia::detect_at(path),
            NvmlLibrary::None => Nvidia::default(),
        };
        let mut visibility_notes = Notes::default();
        self.cuda_visibility
            .clone()
            .unwrap_or_else(CudaVisibility::from_environment)
            .apply(&mut nvidia.gpus, &mut visibility_notes);
        let mut machine = build(nvidia.gpus, host);
        notes.append(&mut nvidia.notes);
        notes.append(&mut visibility_notes.into_vec());
        notes.append(&mut machine.notes);
        machine.notes = notes;
        machine
    }
}
