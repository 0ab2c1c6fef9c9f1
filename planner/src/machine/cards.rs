//! NVIDIA's cards as [`Gpu`]s, from the driver's report. If a card has no ggml device, the report gives all fields;
//! otherwise it gives the fields that ggml does not report. In MIG mode a data-centre card is divided into slices, each
//! with its own memory and memory controllers.

use super::bandwidth::Bandwidth;
use super::catalogue;
use super::gpu::{Gpu, GpuKind};
use super::host::Host;
use super::mig::MigSlice;
use super::nvidia::NvidiaGpu;
use super::{Machine, UnusedGpu, UnusedReason};

/// A machine with NVIDIA's cards only, for planning without llama.cpp. The free bytes still include the bytes that
/// CUDA's context will take.
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

/// Sets a GPU's properties other than its memory: from its card, and from the catalogue if no driver reports them.
pub(super) fn describe(gpu: &mut Gpu, card: Option<&Gpu>) {
    let is_discrete = gpu.kind == GpuKind::Discrete;
    if let Some(card) = card {
        gpu.pci_id = gpu.pci_id.or(card.pci_id);
        gpu.processes.clone_from(&card.processes);
        gpu.driver.clone_from(&card.driver);
        gpu.pcie = card.pcie.filter(|_| is_discrete);
    }
    // We have not verified how the driver's clock relates to the host's memory (LPDDR), so the figure of an integrated
    // GPU comes from the data sheet.
    let card = card.filter(|_| is_discrete);
    let peak = card.and_then(|card| card.bandwidth);
    let (sheet, threads) = catalogue::data_sheet(&gpu.description, gpu.total);
    gpu.bandwidth = match gpu.mig {
        Some(_) => peak.zip(card.and_then(|card| card.nvml)).and_then(|(peak, all)| share(peak, gpu.total, all.total)),
        None => peak.or(sheet),
    };
    gpu.resident_threads = threads;
}

/// The bandwidth of a slice that has `total` of the card's `of` bytes. It is in proportion to the slice's memory
/// (NVIDIA Multi-Instance GPU User Guide, "GPU memory slice"). `None` if the card's total is unknown.
fn share(peak: Bandwidth, total: u64, of: u64) -> Option<Bandwidth> {
    let share = u128::from(peak.bytes_per_second) * u128::from(total.min(of));
    let bytes_per_second = u64::try_from(share.checked_div(u128::from(of))?).ok()?;
    Some(Bandwidth { bytes_per_second, ..peak })
}
