//! What NVIDIA's driver says of a card, as a [`Gpu`]: of one that no ggml device stands for all of it, of the others
//! what ggml does not tell.

use super::Machine;
use super::bandwidth::{Bandwidth, BandwidthSource};
use super::catalogue;
use super::gpu::{Gpu, GpuKind, Reading};
use super::host::Host;
use super::mig::{self, MigSlice};
use super::nvidia::NvidiaGpu;
use super::unused::{UnusedGpu, UnusedReason};

/// A machine with NVIDIA's cards alone, for a planner without llama.cpp. CUDA's context is still to come out
/// of what is free.
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
        match card.mig.as_deref() {
            _ if card.hidden => add(card_alone(card), Some(UnusedReason::Hidden)),
            None => add(card_alone(card), None),
            Some([]) => add(card_alone(card), Some(UnusedReason::NoSlice)),
            Some(slices) => {
                for (place, slice) in slices.iter().enumerate() {
                    let other = (place > 0).then_some(UnusedReason::OtherSlice);
                    add(slice_alone(card, slice), other);
                }
            }
        }
    }
    machine
}

/// A card that only NVML describes.
pub(super) fn card_alone(card: &NvidiaGpu) -> Gpu {
    let mut gpu = Gpu::new(&card.name);
    if card.unified {
        gpu.kind = GpuKind::Integrated;
    }
    gpu = with_reading(gpu, card.memory);
    describe(&mut gpu, Some(card));
    gpu
}

/// A slice of a card that only NVML describes.
fn slice_alone(card: &NvidiaGpu, slice: &MigSlice) -> Gpu {
    let mut gpu = with_reading(Gpu::new(&card.name), slice.memory);
    gpu.mig = Some(slice.clone());
    describe(&mut gpu, Some(card));
    gpu
}

/// What the driver keeps for itself is not part of the total.
fn with_reading(mut gpu: Gpu, reading: Option<Reading>) -> Gpu {
    gpu.nvml = reading;
    let Some(memory) = reading else {
        return gpu;
    };
    gpu.total(memory.total.saturating_sub(memory.reserved.unwrap_or(0)))
        .free(memory.free)
}

/// Adds what is known of a GPU beside its memory: its card's, and the catalogue's where no driver tells.
pub(super) fn describe(gpu: &mut Gpu, card: Option<&NvidiaGpu>) {
    if let Some(card) = card {
        gpu.pci_id = gpu.pci_id.or(card.pci_id);
        gpu.processes.clone_from(&card.processes);
        gpu.driver.clone_from(&card.driver);
        if gpu.kind == GpuKind::Discrete {
            gpu.pcie = card.pcie;
        }
    }
    // What the driver's clock means for the host's memory (LPDDR) has not been seen: there the data sheet speaks.
    let card = card.filter(|_| gpu.kind == GpuKind::Discrete);
    let peak = card.and_then(|card| match (card.bandwidth, card.memory) {
        (Some(peak), Some(memory)) if gpu.mig.is_some() => {
            mig::share(peak, gpu.total, memory.total)
        }
        (peak, _) => peak.filter(|_| gpu.mig.is_none()),
    });
    gpu.bandwidth = match peak {
        Some(peak) => Some(Bandwidth::new(peak, BandwidthSource::Nvml)),
        None if gpu.mig.is_some() => None,
        None => catalogue::bandwidth(&gpu.description, gpu.total),
    };
    gpu.resident_threads = catalogue::resident_threads(&gpu.description, gpu.total);
}

/// The slice of which a device has the bytes; one of which nothing is known where none or several have them.
pub(super) fn slice_of(slices: &[MigSlice], total: u64) -> MigSlice {
    let mut likely = slices.iter().filter(|slice| slice.may_have(total));
    match (likely.next(), likely.next()) {
        (Some(slice), None) => slice.clone(),
        _ => MigSlice::new(""),
    }
}
