//! What NVIDIA's driver says of a card, as a [`Gpu`]: all of it for a card that no ggml device stands for, and for the
//! others what ggml does not report.

use serde::{Deserialize, Serialize};

use super::bytes::Bytes;
use super::catalogue;
use super::gpu::{Gpu, GpuKind};
use super::host::Host;
use super::nvidia::NvidiaGpu;
use super::{Machine, UnusedGpu, UnusedReason};

/// A program that has opened a GPU, and what it holds of its memory.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[error("{} (process {pid}) holds {}", name.as_deref().unwrap_or("a program"), held(*bytes))]
#[non_exhaustive]
#[must_use]
pub struct GpuProcess {
    /// Its process id. Seen from inside a container it may be that of the host.
    pub pid: u32,
    /// Its program, without the folder: `ollama`. `None` where the driver does not report it, as for another user's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Bytes that it holds. `None` where the driver does not count by process: on Windows its memory belongs to
    /// the system (WDDM).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
}

impl GpuProcess {
    /// A program of which only its process id is known.
    pub const fn new(pid: u32) -> Self {
        Self { pid, name: None, bytes: None }
    }

    /// Sets its name. Of a path, as drivers give it, the last part is kept, without control characters.
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

/// A machine with NVIDIA's cards alone, for a planner without llama.cpp. CUDA's context is still to come out
/// of what is free.
pub(super) fn from_cards(cards: Vec<NvidiaGpu>, host: Host) -> Machine {
    let mut machine = Machine::new(host);
    for card in &cards {
        let gpu = card_alone(card);
        let reason = match gpu.total {
            _ if card.mig => UnusedReason::Mig,
            0 => UnusedReason::UnknownMemory,
            _ => {
                machine.gpus.push(gpu);
                continue;
            }
        };
        machine.unused_gpus.push(UnusedGpu { gpu, reason });
    }
    machine
}

/// A card that only NVML describes.
pub(super) fn card_alone(card: &NvidiaGpu) -> Gpu {
    let mut gpu = card.gpu.clone();
    describe(&mut gpu, Some(&card.gpu));
    gpu
}

/// Adds what is known of a GPU beside its memory: from its card, and from the catalogue what no driver reports.
pub(super) fn describe(gpu: &mut Gpu, card: Option<&Gpu>) {
    let is_discrete = gpu.kind == GpuKind::Discrete;
    if let Some(card) = card {
        gpu.pci_id = gpu.pci_id.or(card.pci_id);
        gpu.processes.clone_from(&card.processes);
        gpu.driver.clone_from(&card.driver);
        gpu.pcie = card.pcie.filter(|_| is_discrete);
    }
    // What the driver's clock means for the host's memory (LPDDR) has not been seen: there the data sheet speaks.
    let card = card.filter(|_| is_discrete);
    let peak = card.and_then(|card| card.bandwidth);
    let (sheet, threads) = catalogue::data_sheet(&gpu.description, gpu.total);
    gpu.bandwidth = peak.or(sheet);
    gpu.resident_threads = threads;
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
