//! NVIDIA's cards as [`Gpu`]s, from the driver's report: all fields of a card without a ggml device, and for other
//! cards the fields that ggml does not report. In MIG mode a data-centre card is divided into slices, each with its own
//! memory and memory controllers.

use serde::{Deserialize, Serialize};

use super::bandwidth::Bandwidth;
use super::bytes::Bytes;
use super::catalogue;
use super::gpu::{Gpu, GpuKind, Reading};
use super::host::Host;
use super::nvidia::NvidiaGpu;
use super::{Machine, UnusedGpu, UnusedReason};

/// A slice of a card in MIG mode. CUDA treats a slice as a card, and a process gets only the first of the visible
/// slices (NVIDIA Multi-Instance GPU User Guide, device enumeration).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct MigSlice {
    /// The profile, which names slices of compute and bytes of memory: `1g.10gb`. `None` if several slices may be the
    /// one in use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<String>,
    /// The slice's UUID, which `CUDA_VISIBLE_DEVICES` accepts: `MIG-...`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uuid: Option<String>,
    /// The slice's memory as the driver counts it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<Reading>,
}

impl MigSlice {
    /// A slice by the driver's name, `NVIDIA A100-SXM4-40GB MIG 1g.5gb`. The profile follows `MIG`.
    pub fn new(name: &str) -> Self {
        let profile = name.rsplit_once("MIG ").map(|(_, profile)| profile.trim().replace(char::is_control, " "));
        Self { profile: profile.filter(|profile| !profile.is_empty()), ..Self::default() }
    }

    /// Whether a device with `total` bytes can be this slice: ggml's total is the part that CUDA can use, some percent
    /// below the driver's.
    fn may_have(&self, total: u64) -> bool {
        self.memory.is_some_and(|memory| total <= memory.total && total >= memory.total / 10 * 9)
    }
}

/// The slice with this total, or an unknown slice if no slice or several have it.
pub(super) fn slice_of(slices: &[MigSlice], total: u64) -> MigSlice {
    let mut likely = slices.iter().filter(|slice| slice.may_have(total));
    match (likely.next(), likely.next()) {
        (Some(slice), None) => slice.clone(),
        _ => MigSlice::default(),
    }
}

/// A program that has opened a GPU, and the memory that it holds there.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[error("{} (process {pid}) holds {}", name.as_deref().unwrap_or("a program"), held(*bytes))]
#[non_exhaustive]
#[must_use]
pub struct GpuProcess {
    /// The process id. Inside a container it may be the host's id.
    pub pid: u32,
    /// The program's name without its folder: `ollama`. `None` if the driver does not report it, for example for
    /// another user's process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Bytes held. `None` if the driver does not count by process: on Windows the system owns the memory (WDDM).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
}

impl GpuProcess {
    /// A program with only its process id known.
    pub const fn new(pid: u32) -> Self {
        Self { pid, name: None, bytes: None }
    }

    /// Sets the name: the last part of a path such as drivers report, without control characters.
    pub fn name(mut self, name: &str) -> Self {
        let last = name.trim().rsplit(['/', '\\']).next().unwrap_or_default();
        self.name = (!last.is_empty()).then(|| last.replace(char::is_control, " "));
        self
    }

    /// Sets the bytes that it holds.
    pub const fn bytes(mut self, bytes: u64) -> Self {
        self.bytes = Some(bytes);
        self
    }
}

fn held(bytes: Option<u64>) -> String {
    bytes.map_or_else(|| "what the driver does not report".to_owned(), |bytes| Bytes(bytes).to_string())
}

/// A machine with NVIDIA's cards only, for planning without llama.cpp. CUDA's context will still reduce the free bytes.
pub(super) fn from_cards(cards: Vec<NvidiaGpu>, host: Host) -> Machine {
    let mut machine = Machine::new(host);
    let mut add = |gpu: Gpu, reason: Option<UnusedReason>| {
        let unknown = (gpu.total == 0).then_some(UnusedReason::UnknownMemory);
        match reason.or(unknown) {
            Some(reason) => machine.unused_gpus.push(UnusedGpu { gpu, reason }),
            None => machine.gpus.push(gpu),
        }
    };
    for card in &cards {
        match card.slices.as_deref() {
            _ if card.hidden => add(card_alone(card), Some(UnusedReason::Hidden)),
            None => add(card_alone(card), card.mig.then_some(UnusedReason::Mig)),
            Some([]) => add(card_alone(card), Some(UnusedReason::NoSlice)),
            Some(slices) => {
                for (place, slice) in slices.iter().enumerate() {
                    let other = (place > 0).then(|| UnusedReason::OtherSlice { uuid: slice.uuid.clone() });
                    add(slice_alone(card, slice), other);
                }
            }
        }
    }
    machine
}

/// The GPU for a slice that only NVML describes.
fn slice_alone(card: &NvidiaGpu, slice: &MigSlice) -> Gpu {
    let mut gpu = Gpu::new(&card.gpu.description);
    if let Some(memory) = slice.memory {
        gpu = gpu.total(memory.total.saturating_sub(memory.reserved.unwrap_or(0))).free(memory.free);
    }
    (gpu.nvml, gpu.mig) = (slice.memory, Some(slice.clone()));
    describe(&mut gpu, Some(&card.gpu));
    gpu
}

/// The GPU for a card that only NVML describes.
pub(super) fn card_alone(card: &NvidiaGpu) -> Gpu {
    let mut gpu = card.gpu.clone();
    describe(&mut gpu, Some(&card.gpu));
    gpu
}

/// Adds the properties of a GPU apart from its memory: from its card, and from the catalogue if no driver reports them.
pub(super) fn describe(gpu: &mut Gpu, card: Option<&Gpu>) {
    let is_discrete = gpu.kind == GpuKind::Discrete;
    if let Some(card) = card {
        gpu.pci_id = gpu.pci_id.or(card.pci_id);
        gpu.processes.clone_from(&card.processes);
        gpu.driver.clone_from(&card.driver);
        gpu.pcie = card.pcie.filter(|_| is_discrete);
    }
    // How the driver's clock relates to the host's memory (LPDDR) is unverified, so an integrated GPU uses the data
    // sheet.
    let card = card.filter(|_| is_discrete);
    let peak = card.and_then(|card| card.bandwidth);
    let (sheet, threads) = catalogue::data_sheet(&gpu.description, gpu.total);
    gpu.bandwidth = match gpu.mig {
        Some(_) => peak.zip(card.and_then(|card| card.nvml)).and_then(|(peak, all)| share(peak, gpu.total, all.total)),
        None => peak.or(sheet),
    };
    gpu.resident_threads = threads;
}

/// The share of a card's bandwidth that belongs to `total` of its `of` bytes: a slice of memory has its share of the
/// bandwidth (NVIDIA Multi-Instance GPU User Guide, "GPU memory slice"). `None` if the card's total is unknown.
fn share(peak: Bandwidth, total: u64, of: u64) -> Option<Bandwidth> {
    let share = u128::from(peak.bytes_per_second) * u128::from(total.min(of));
    let bytes_per_second = u64::try_from(share.checked_div(u128::from(of))?).ok()?;
    Some(Bandwidth { bytes_per_second, ..peak })
}

#[cfg(test)]
mod tests {
    use super::GpuProcess;

    #[test]
    fn a_name_is_the_last_part_of_a_path_of_either_kind() {
        for (path, name) in [
            ("/usr/bin/python3.12", Some("python3.12")),
            ("C:\\Program Files\\LM Studio\\lms.exe", Some("lms.exe")),
            ("ollama", Some("ollama")),
            ("/tmp/\u{1b}[2J", Some(" [2J")),
            ("", None),
            (" ", None),
            ("/", None),
        ] {
            assert_eq!(GpuProcess::new(1).name(path).name.as_deref(), name);
        }
    }
}
