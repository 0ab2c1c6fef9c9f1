//! Detection of this computer, and the sources that detection reads. Tests use sources of their own instead.

use std::path::{Path, PathBuf};

use super::Machine;
use super::cache::MeasurementCache;
use super::cards;
use super::gpu::GpuKind;
use super::host::Host;
use super::merge::{self, GgmlDevice};
use super::nvidia;
use super::pcie::PcieLink;
use super::tree::Tree;
use super::unlisted;
use super::visible::CudaVisibility;

/// Detects this computer. [`Machine::detect`] uses a default detector.
///
/// ```no_run
/// use autoplace_planner::machine::Detector;
/// let machine = Detector::new().nvml_library("/opt/nvidia/lib/libnvidia-ml.so.1").detect();
/// println!("{machine}");
/// ```
#[derive(Debug, Clone, Default)]
#[must_use]
pub struct Detector {
    root: Option<PathBuf>,
    nvml: Option<PathBuf>,
    without_nvml: bool,
    backends: Vec<String>,
    build: Option<String>,
    /// `None` means that the detection reads the variables from the environment.
    cuda_visibility: Option<CudaVisibility>,
    cache: Option<PathBuf>,
}

impl Detector {
    /// A detector with the default sources.
    pub fn new() -> Self {
        Self::default()
    }

    /// Reads the host from `{root}/proc` and `{root}/sys` instead of `/proc` and `/sys`.
    pub fn root(mut self, root: impl AsRef<Path>) -> Self {
        self.root = Some(root.as_ref().to_owned());
        self
    }

    /// Uses the NVIDIA driver library at this path instead of the system's library.
    pub fn nvml_library(mut self, library: impl AsRef<Path>) -> Self {
        self.nvml = Some(library.as_ref().to_owned());
        self.without_nvml = false;
        self
    }

    /// Names the build that will use the GPUs, in words that change with the build. Only measurements of the same build
    /// are used, so without a build no measurements are used.
    pub fn for_build(mut self, build: impl Into<String>) -> Self {
        self.build = Some(build.into());
        self
    }

    /// Uses the measurements cached in this folder instead of the user's cache folder. For a machine under another
    /// [`root`](Self::root), no cache is used by default.
    pub fn cache_folder(mut self, folder: impl AsRef<Path>) -> Self {
        self.cache = Some(folder.as_ref().to_owned());
        self
    }

    /// Names the ggml backends of this build (`CUDA`, `Vulkan`, ...), with or without devices. With these names, the
    /// detection can state why no backend lists a card.
    pub fn backends(mut self, names: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.backends = names.into_iter().map(Into::into).collect();
        self
    }

    /// Uses these values instead of the environment variables: the list of `CUDA_VISIBLE_DEVICES` (`None` means that
    /// the variable is unset, so all cards are visible), and whether `CUDA_DEVICE_ORDER` is `PCI_BUS_ID`.
    pub fn cuda_visible_devices(mut self, list: Option<&str>, pci_order: bool) -> Self {
        self.cuda_visibility = Some(CudaVisibility { devices: list.map(str::to_owned), pci_order });
        self
    }

    /// Skips NVIDIA's driver.
    pub fn without_nvml(mut self) -> Self {
        self.without_nvml = true;
        self
    }

    fn cuda_visibility(&self) -> CudaVisibility {
        self.cuda_visibility.clone().unwrap_or_else(CudaVisibility::from_environment)
    }

    /// The machine as its drivers describe it, for planning without llama.cpp: NVIDIA's cards and the host. Cards
    /// hidden by `CUDA_VISIBLE_DEVICES`, and all slices but one of a card in MIG mode, are unused.
    pub fn detect(&self) -> Machine {
        self.with_witnesses(cards::from_cards)
    }

    /// The machine as ggml's devices describe it, checked against NVIDIA's driver. The detection never fails; see
    /// [`Machine::notes`].
    ///
    /// GPUs come in the order of `devices`. A card without a device is in [`Machine::unused_gpus`].
    pub fn detect_with(&self, devices: &[GgmlDevice]) -> Machine {
        self.with_witnesses(|cards, host| {
            let tree = self.linux_root().map(Tree);
            merge::merge(devices, &self.backends, self.cuda_visibility().devices.is_some(), cards, host, tree)
        })
    }

    fn with_witnesses(&self, build: impl FnOnce(Vec<nvidia::NvidiaGpu>, Host) -> Machine) -> Machine {
        let root = self.root.as_deref();
        let (host, mut notes) = root.map_or_else(Host::detect, Host::detect_under);
        // The user's cache belongs to the real computer, not to a computer that a folder describes.
        let cache = match &self.cache {
            Some(folder) => Some(MeasurementCache::at(folder)),
            None => root.is_none().then(MeasurementCache::user),
        };
        let (mut cards, mut about_cards) =
            if self.without_nvml { Default::default() } else { nvidia::detect(self.nvml.as_deref()) };
        let nvml_answers = !cards.is_empty();
        about_cards.extend(self.cuda_visibility().apply(&mut cards));
        let mut machine = build(cards, host);
        // Linux's own files describe the machine, and the cards whose driver does not answer.
        if let Some(root) = self.linux_root() {
            machine.wsl = Host::is_wsl(root);
            unlisted::add(&mut machine, &self.backends, nvml_answers, Tree(root));
            add_links(&mut machine, Tree(root));
        }
        if let (Some(cache), Some(build)) = (cache, &self.build) {
            for gpu in &mut machine.gpus {
                gpu.learned = cache.headroom(gpu, build);
                gpu.rates = cache.gpu_rates(gpu, build);
            }
            machine.host.rates = cache.host_rates(&machine.host, build);
        }
        notes.append(&mut about_cards);
        notes.append(&mut machine.notes);
        machine.notes = notes;
        machine.backends.clone_from(&self.backends);
        machine
    }

    /// The root of Linux's own files; `None` on another system.
    fn linux_root(&self) -> Option<&Path> {
        let usual = cfg!(target_os = "linux").then_some(Path::new("/"));
        self.root.as_deref().or(usual)
    }
}

/// Adds the PCIe links of the cards whose driver reports no link: the cards of AMD and Intel, and NVIDIA's cards
/// without NVML.
fn add_links(machine: &mut Machine, tree: Tree<'_>) {
    let unused = machine.unused_gpus.iter_mut().map(|unused| &mut unused.gpu);
    for gpu in machine.gpus.iter_mut().chain(unused) {
        if let (GpuKind::Discrete, None, Some(id)) = (gpu.kind, gpu.pcie, gpu.pci_id) {
            gpu.pcie = PcieLink::of_card(tree, id);
        }
    }
}
