//! Merges the two descriptions of a machine: ggml's backends list the usable devices, and NVIDIA's driver lists whole
//! cards.
//!
//! ggml's devices (as plain data), NVIDIA's cards and the host flow in. A [`Machine`] flows out. These rules apply:
//!
//! - PCI addresses, in any notation, identify cards. If a second backend lists the same hardware, it is not used, as in
//!   llama.cpp (src/llama.cpp, `llama_prepare_model_devices`).
//! - `total` is ggml's. NVML includes bytes that CUDA cannot use (638 MiB on one card, Ollama #18201), and counts the
//!   whole card even if ggml's device is only a MIG slice of it.
//! - `free` is the smaller of ggml's and NVML's values. CUDA's value is read while its context (107 to 555 MiB) is
//!   open; NVML's value covers every process.
//! - `free` above `total` becomes `total`, and a wrapped negative number becomes 0: Vulkan subtracts its use from its
//!   budget without a check (ggml-vulkan.cpp, `ggml_backend_vk_get_device_memory`), and a budget may exceed its heap
//!   (#29277).
//! - An integrated GPU has no more free bytes than the host, apart from bytes that were set aside for the GPU
//!   (`pools.rs`). For example, a carve-out of 96 GiB leaves 32 of 128 GiB to Linux, but all 96 GiB belong to the GPU.
//! - A card that no backend lists is reported in another way than a missing card.
//! - In MIG mode a device is a slice of a card. CUDA reports the slice's bytes, which identify the slice if no other
//!   slice has as many.
//! - ggml's backend decides whether memory is the host's (CUDA's `integrated`, ggml-cuda.cu,
//!   `ggml_backend_cuda_device_get_type`); without ggml, NVML does.

use super::bytes::Bytes;
use super::cards::{card_alone, describe};
use super::gpu::{Gpu, GpuKind};
use super::host::{Host, HostLimit};
use super::mig::slice_of;
use super::nvidia::NvidiaGpu;
use super::pci::PciId;
use super::pools::Pools;
use super::reading::Reading;
use super::tree::{Notes, Tree};
use super::{Machine, UnusedGpu, UnusedReason};

/// A device as ggml's registry describes it (`ggml_backend_dev_props`). It is plain data, because this crate calls no
/// native code.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
#[must_use]
pub struct GgmlDevice {
    /// `ggml_backend_dev_name`: `CUDA0`.
    pub name: String,
    /// `ggml_backend_dev_description`: `NVIDIA GeForce RTX 4090`.
    pub description: String,
    /// The name of the device's registry, `ggml_backend_reg_name`: `CUDA`, `Vulkan`, `MTL`, `ROCm`, `RPC`, `CPU`.
    pub backend: String,
    /// `ggml_backend_dev_type`.
    pub kind: GgmlKind,
    /// The `device_id`: a PCI address in lower case, if the backend knows one: `0000:01:00.0`.
    pub device_id: Option<String>,
    /// Total bytes, as the backend reports them.
    pub total: u64,
    /// Free bytes, as the backend reports them.
    pub free: u64,
}

/// The kind of a ggml device: `ggml_backend_dev_type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum GgmlKind {
    /// The CPU backend. Its memory is the host's, which is detected separately (ggml reports all of the host's memory
    /// as free).
    Cpu,
    /// A GPU with its own memory. Devices of other machines (RPC) and Apple's GPUs report this kind too.
    Gpu,
    /// A GPU that uses the host's memory.
    IntegratedGpu,
    /// A helper of the CPU backend, such as BLAS.
    Accelerator,
    /// Several devices wrapped as one.
    Meta,
}

impl GgmlDevice {
    /// A device of a backend, whose memory is not set yet. Until a description is set, the name serves as description.
    pub fn new(name: impl Into<String>, backend: impl Into<String>, kind: GgmlKind) -> Self {
        let name = name.into();
        Self { description: name.clone(), name, backend: backend.into(), kind, device_id: None, total: 0, free: 0 }
    }

    /// Sets the description, the full name of the hardware.
    pub fn description(mut self, description: impl Into<String>) -> Self {
        self.description = description.into();
        self
    }

    /// Sets the `device_id`.
    pub fn device_id(mut self, id: impl Into<String>) -> Self {
        self.device_id = Some(id.into());
        self
    }

    /// Sets the reported total and free bytes.
    pub fn memory(mut self, total: u64, free: u64) -> Self {
        self.total = total;
        self.free = free;
        self
    }

    fn pci_id(&self) -> Option<PciId> {
        self.device_id.as_deref()?.parse().ok()
    }

    /// The kind of GPU; `None` for other devices.
    fn gpu_kind(&self) -> Option<GpuKind> {
        // Metal always reports a GPU (ggml-metal.cpp, `ggml_backend_metal_device_get_type`), but Apple's chips share
        // the host's memory, as the Intel GPUs of Macs do.
        let in_mac = self.backend == "MTL" && self.description.starts_with("Intel");
        match self.kind {
            GgmlKind::Gpu if self.backend == "RPC" => Some(GpuKind::Remote),
            GgmlKind::Gpu if in_mac || self.description.starts_with("Apple ") => Some(GpuKind::Integrated),
            GgmlKind::Gpu => Some(GpuKind::Discrete),
            GgmlKind::IntegratedGpu => Some(GpuKind::Integrated),
            GgmlKind::Cpu | GgmlKind::Accelerator | GgmlKind::Meta => None,
        }
    }
}

/// The machine with ggml's devices as usable GPUs; all other GPUs are listed as unused. `backends` are the backends of
/// this build, with or without devices. `chosen` is true if `CUDA_VISIBLE_DEVICES` selects cards. `tree` contains the
/// system's files.
pub(super) fn merge(
    devices: &[GgmlDevice],
    backends: &[String],
    chosen: bool,
    cards: Vec<NvidiaGpu>,
    host: Host,
    tree: Option<Tree<'_>>,
) -> Machine {
    let mut merge = Merge {
        devices,
        claimed: vec![false; cards.len()],
        cards,
        notes: Notes::default(),
        tree,
        machine: Machine::new(host),
    };
    for device in devices {
        if let Some(kind) = device.gpu_kind() {
            merge.add(device, kind);
        }
    }
    merge.finish(backends, chosen)
}

struct Merge<'a> {
    devices: &'a [GgmlDevice],
    cards: Vec<NvidiaGpu>,
    /// For each card, whether a ggml device represents it.
    claimed: Vec<bool>,
    notes: Notes,
    tree: Option<Tree<'a>>,
    machine: Machine,
}

impl Merge<'_> {
    fn add(&mut self, device: &GgmlDevice, kind: GpuKind) {
        let mut gpu = Gpu::new(&device.description).kind(kind).backend(&device.backend).device(&device.name);
        gpu.pci_id = device.pci_id();
        gpu.ggml = Some(Reading::new(device.total, device.free));
        let place = self.card(device, kind);
        if let Some(place) = place {
            self.claimed[place] = true;
            let card = &self.cards[place];
            gpu.pci_id = gpu.pci_id.or(card.gpu.pci_id);
            if card.mig {
                gpu.mig = Some(slice_of(card.slices.as_deref().unwrap_or_default(), device.total));
            }
            gpu.nvml = gpu.mig.as_ref().map_or(card.gpu.nvml, |slice| slice.memory);
        }
        let twin = self.twin(device, &gpu).map(|device| UnusedReason::SameAs { device });
        let empty = (device.total == 0).then_some(UnusedReason::NoMemory);
        if let Some(reason) = twin.or(empty) {
            self.machine.unused_gpus.push(UnusedGpu { gpu, reason });
            return;
        }
        if let (GpuKind::Integrated, Some(id), Some(tree)) = (kind, gpu.pci_id, self.tree) {
            let (backend, notes) = (&device.backend, &mut self.notes);
            gpu.pools = Pools::of_amdgpu(tree, id, backend, device.total, notes);
        }
        let free = self.free(device, &gpu);
        let mut gpu = gpu.total(device.total).free(free);
        describe(&mut gpu, place.map(|place| &self.cards[place].gpu));
        self.machine.gpus.push(gpu);
    }

    /// The NVIDIA card of a device.
    fn card(&self, device: &GgmlDevice, kind: GpuKind) -> Option<usize> {
        if kind == GpuKind::Remote {
            return None;
        }
        if let Some(id) = device.pci_id() {
            return self.cards.iter().position(|card| card.gpu.pci_id == Some(id));
        }
        // Some Vulkan drivers report no PCI address. The card with the device's name is then taken, if only one card
        // has the name. Devices of other backends, for example simulated ones, may have the name of a card that they do
        // not use.
        if device.backend != "CUDA" && device.backend != "Vulkan" {
            return None;
        }
        let is_it = |&place: &usize| self.cards[place].gpu.description == device.description;
        let mut places = (0..self.cards.len()).filter(is_it);
        places.next().filter(|_| places.next().is_none())
    }

    /// The ggml name of a device in use that is the same hardware as `device`. The two have the same `device_id`. Or
    /// they belong to different backends, and are on the same card or are both the integrated GPU (often without an
    /// id). Virtual CUDA devices on one card count as separate devices.
    fn twin(&self, device: &GgmlDevice, gpu: &Gpu) -> Option<String> {
        let has_same_id = |used: &Gpu| {
            let is_it = |other: &GgmlDevice| used.device.as_ref() == Some(&other.name);
            let mut others = self.devices.iter().filter(|other| is_it(other));
            device.device_id.is_some() && others.any(|other| other.device_id == device.device_id)
        };
        let is_twin = |used: &&Gpu| {
            let same_card = gpu.pci_id.is_some() && used.pci_id == gpu.pci_id;
            let is_integrated = |gpu: &Gpu| gpu.kind == GpuKind::Integrated;
            let both_integrated = is_integrated(used) && is_integrated(gpu);
            let by_another = used.backend != gpu.backend && (same_card || both_integrated);
            used.kind != GpuKind::Remote && (has_same_id(used) || by_another)
        };
        if gpu.kind == GpuKind::Remote {
            return None;
        }
        self.machine.gpus.iter().find(is_twin)?.device.clone()
    }

    /// The free bytes of a device, corrected by the rules above.
    fn free(&mut self, device: &GgmlDevice, gpu: &Gpu) -> u64 {
        let mut free = device.free;
        if free > i64::MAX as u64 {
            let text = "reports a negative number of free bytes (more in use than its budget): taken as 0";
            self.notes.add(&device.name, text);
            free = 0;
        } else if free > device.total {
            let total = Bytes(device.total);
            self.notes.add(&device.name, format!("reports {} free of {total}: taken as {total}", Bytes(free)));
            free = device.total;
        }
        let host = &self.machine.host;
        match (gpu.kind, gpu.nvml) {
            (GpuKind::Discrete, Some(card)) if card.total > 0 => free.min(card.free / self.sharers(device)),
            (GpuKind::Integrated, _) if host.limit != HostLimit::Unknown => {
                let shared = gpu.pools.map_or(u64::MAX, |pools| pools.shared.free);
                let own = gpu.pools.map_or(0, |pools| pools.own.free);
                free.min(own.saturating_add(shared.min(host.system_available)))
            }
            _ => free,
        }
    }

    /// How many devices of one backend share the card. ggml's virtual CUDA devices on a card divide its free bytes
    /// among themselves (ggml-cuda.cu, `ggml_backend_cuda_device_get_memory`).
    fn sharers(&self, device: &GgmlDevice) -> u64 {
        let Some(id) = device.pci_id() else { return 1 };
        let shares = |other: &&GgmlDevice| other.backend == device.backend && other.pci_id() == Some(id);
        let count = self.devices.iter().filter(shares).count();
        u64::try_from(count).unwrap_or(u64::MAX).max(1)
    }

    fn finish(mut self, backends: &[String], chosen: bool) -> Machine {
        let built = |name: &str| {
            backends.iter().any(|backend| backend == name) || self.devices.iter().any(|device| device.backend == name)
        };
        let backend = ["CUDA", "Vulkan"].into_iter().find(|name| built(name));
        let cards = self.cards.iter().zip(&self.claimed);
        for (card, _) in cards.filter(|(_, claimed)| !**claimed) {
            let reason = match backend {
                Some("CUDA") if card.hidden => UnusedReason::Hidden,
                Some("CUDA") if card.slices.as_ref().is_some_and(Vec::is_empty) => UnusedReason::NoSlice,
                Some("CUDA") if chosen => UnusedReason::PerhapsHidden,
                Some("CUDA") if card.mig => UnusedReason::Mig,
                Some(name) => UnusedReason::NotListed { backend: name.to_owned() },
                None => UnusedReason::NoBackend,
            };
            self.machine.unused_gpus.push(UnusedGpu { gpu: card_alone(card), reason });
        }
        self.machine.notes = self.notes.0;
        self.machine
    }
}
