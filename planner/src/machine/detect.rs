//! Looking at this computer: which witnesses are asked, and where tests put their own.

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

/// Looks at this computer. [`Machine::detect`] is this with nothing changed.
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
    /// `None`: as the environment says when the detector looks.
    cuda_visibility: Option<CudaVisibility>,
    cache: Option<PathBuf>,
}

impl Detector {
    /// A detector that asks this computer the usual way.
    pub fn new() -> Self {
        Self::default()
    }

    setters! {
        /// Reads the host from `{root}/proc` and `{root}/sys` instead of `/proc` and `/sys`.
        root(root: impl AsRef<Path>) root = Some(root.as_ref().to_owned());
        /// Asks the NVIDIA driver library at this path instead of the one that the system finds.
        nvml_library(library: impl AsRef<Path>) nvml = Some(library.as_ref().to_owned()), without_nvml = false;
        /// Says which build will use the GPUs, in words that change when the build does: what was learned of a GPU with
        /// another build is not believed. Without a build nothing that was learned is looked for.
        for_build(build: impl Into<String>) build = Some(build.into());
        /// Looks in this folder for what was measured instead of in the user's cache folder. A machine under another
        /// [`root`](Self::root) has no other.
        cache_folder(folder: impl AsRef<Path>) cache = Some(folder.as_ref().to_owned());
        /// Says which ggml backends this build has (`CUDA`, `Vulkan`, ...), those without a device too: then a card
        /// that none of them lists gets the right reason.
        backends(names: impl IntoIterator<Item = impl Into<String>>)
            backends = names.into_iter().map(Into::into).collect();
        /// Takes these for the values of `CUDA_VISIBLE_DEVICES` (`None`: not set, every card shows) and of
        /// `CUDA_DEVICE_ORDER=PCI_BUS_ID`, instead of asking the environment.
        cuda_visible_devices(list: Option<&str>, pci_order: bool)
            cuda_visibility = Some(CudaVisibility { devices: list.map(str::to_owned), pci_order });
        /// Does not ask NVIDIA's driver.
        without_nvml() without_nvml = true;
    }

    fn cuda_visibility(&self) -> CudaVisibility {
        self.cuda_visibility.clone().unwrap_or_else(CudaVisibility::from_environment)
    }

    /// The machine as the drivers describe it, for planning without llama.cpp: NVIDIA's cards and the host. Cards that
    /// `CUDA_VISIBLE_DEVICES` hides are not used, nor are more than one slice of a card in MIG mode.
    pub fn detect(&self) -> Machine {
        self.with_witnesses(cards::from_cards)
    }

    /// The machine as ggml's devices describe it, checked against NVIDIA's driver. Never fails; see [`Machine::notes`].
    ///
    /// GPUs come in the order of `devices`; a card that no device stands for is in [`Machine::unused_gpus`].
    pub fn detect_with(&self, devices: &[GgmlDevice]) -> Machine {
        self.with_witnesses(|cards, host| {
            let tree = self.linux_root().map(Tree);
            merge::merge(devices, &self.backends, self.cuda_visibility().devices.is_some(), cards, host, tree)
        })
    }

    fn with_witnesses(&self, build: impl FnOnce(Vec<nvidia::NvidiaGpu>, Host) -> Machine) -> Machine {
        let root = self.root.as_deref();
        let (host, mut notes) = root.map_or_else(Host::detect, Host::detect_under);
        // The user's own is of the computer itself: what a folder describes is another one.
        let cache = match &self.cache {
            Some(folder) => Some(MeasurementCache::at(folder)),
            None => root.is_none().then(MeasurementCache::user),
        };
        let (mut cards, mut about_cards) =
            if self.without_nvml { Default::default() } else { nvidia::detect(self.nvml.as_deref()) };
        let nvml_answers = !cards.is_empty();
        about_cards.extend(self.cuda_visibility().apply(&mut cards));
        let mut machine = build(cards, host);
        // What the system itself reports: of the machine, and of cards whose driver does not answer.
        if let Some(root) = self.linux_root() {
            machine.wsl = Host::is_wsl(root);
            unlisted::add(&mut machine, &self.backends, nvml_answers, Tree(root));
            add_links(&mut machine, Tree(root));
        }
        // What was learned and measured with this build.
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
        machine
    }

    /// Where Linux describes itself; `None` on another system.
    fn linux_root(&self) -> Option<&Path> {
        let usual = cfg!(target_os = "linux").then_some(Path::new("/"));
        self.root.as_deref().or(usual)
    }
}

/// The PCIe links of cards whose driver reports none: AMD's, Intel's, and NVIDIA's without NVML.
fn add_links(machine: &mut Machine, tree: Tree<'_>) {
    let unused = machine.unused_gpus.iter_mut().map(|unused| &mut unused.gpu);
    for gpu in machine.gpus.iter_mut().chain(unused) {
        if let (GpuKind::Discrete, None, Some(id)) = (gpu.kind, gpu.pcie, gpu.pci_id) {
            gpu.pcie = PcieLink::of_card(tree, id);
        }
    }
}
