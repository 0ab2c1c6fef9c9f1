//! What a card tells beside its memory. Each is `None` where the driver does not answer.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use nvml_wrapper::enum_wrappers::device::Clock;
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::struct_wrappers::device::ProcessInfo;
use nvml_wrapper::{Device, Nvml};

use crate::machine::gpu::Reading;
use crate::machine::mig::MigSlice;
use crate::machine::pcie::{PcieLink, PcieRate};
use crate::machine::process::GpuProcess;

/// `NVML_DEVICE_MIG_ENABLE`.
const MIG_ENABLED: u32 = 1;

/// The longest name of a program that is asked for; NVML cuts off what is beyond.
const NAME_LENGTH: usize = 1024;

/// The peak at which the card's memory is read, in bytes per second.
pub(super) fn bandwidth(device: &Device<'_>) -> Option<u64> {
    let clock = answer("memory clock", device.max_clock_info(Clock::Memory))?;
    let width = answer("memory bus width", device.memory_bus_width())?;
    peak(clock, width)
}

/// The peak of a memory in bytes per second, from NVML's memory clock in MHz and its bus width in bits.
///
/// All kinds of memory count as moving data twice per clock: NVML's clock is half of the rate per pin, whatever
/// the memory does within. That gives the data sheet's number for GDDR5, 5X, 6, 6X and 7 and for HBM2, 2e, 3 and
/// 3e; see the test.
fn peak(clock: u32, width: u32) -> Option<u64> {
    let bits = u64::from(clock)
        .checked_mul(u64::from(width))?
        .checked_mul(2_000_000)?;
    Some(bits / 8).filter(|&bytes| bytes > 0)
}

/// The card's PCIe link. Its maximum is "possible with this device and system" (nvml.h,
/// `nvmlDeviceGetMaxPcieLinkGeneration`).
pub(super) fn pcie(device: &Device<'_>) -> Option<PcieLink> {
    let rate = |generation: Result<u32, NvmlError>, lanes: Result<u32, NvmlError>| {
        let generation = answer("PCIe generation", generation)?;
        let lanes = answer("PCIe lanes", lanes)?;
        PcieRate::new(u8::try_from(generation).ok()?, u8::try_from(lanes).ok()?)
    };
    let max = rate(device.max_pcie_link_gen(), device.max_pcie_link_width())?;
    let now = rate(
        device.current_pcie_link_gen(),
        device.current_pcie_link_width(),
    );
    let link = PcieLink::new(max);
    Some(now.map_or(link, |now| link.current(now)))
}

/// The card's MIG slices; `None` where it is not in MIG mode.
pub(super) fn slices(device: &Device<'_>) -> Option<Vec<MigSlice>> {
    let mode = answer("MIG mode", device.mig_mode())?;
    if mode.current != MIG_ENABLED {
        return None;
    }
    // So many it may have; the places between those that it has are empty.
    let places = answer("MIG slices", device.mig_device_count()).unwrap_or(0);
    let slices = (0..places).filter_map(|place| {
        let slice = answer("MIG slice", device.mig_device_by_index(place))?;
        let mut described = MigSlice::new(&answer("MIG slice's name", slice.name())?);
        described.uuid = answer("MIG slice's UUID", slice.uuid());
        described.memory = answer("MIG slice's memory", slice.memory_info())
            .map(|memory| Reading::new(memory.total, memory.free).reserved(memory.reserved));
        Some(described)
    });
    Some(slices.collect())
}

/// The other programs on the card, those with a compute and those with a graphics context, the largest holder first.
/// `None` where neither list is to be had.
pub(super) fn processes(nvml: &Nvml, device: &Device<'_>) -> Option<Vec<GpuProcess>> {
    others_and_us(nvml, device).map(|(others, _)| others)
}

/// The other programs on the card, and whether this one is there too.
pub(super) fn others_and_us(nvml: &Nvml, device: &Device<'_>) -> Option<(Vec<GpuProcess>, bool)> {
    let compute = answer("compute processes", device.running_compute_processes());
    let graphics = answer("graphics processes", device.running_graphics_processes());
    if compute.is_none() && graphics.is_none() {
        return None;
    }
    // One that computes and draws is in both lists, with the same bytes.
    let mut held: BTreeMap<u32, Option<u64>> = BTreeMap::new();
    for process in compute.into_iter().chain(graphics).flatten() {
        let bytes = held.entry(process.pid).or_default();
        *bytes = (*bytes).max(bytes_of(&process));
    }
    let knows_us = held.remove(&std::process::id()).is_some();
    let mut processes: Vec<GpuProcess> = held
        .into_iter()
        .map(|(pid, bytes)| {
            let name = answer("a process's name", nvml.sys_process_name(pid, NAME_LENGTH));
            let process = GpuProcess::new(pid).name(&name.unwrap_or_default());
            GpuProcess { bytes, ..process }
        })
        .collect();
    processes.sort_by_key(|process| Reverse(process.bytes));
    Some((processes, knows_us))
}

fn bytes_of(process: &ProcessInfo) -> Option<u64> {
    match process.used_gpu_memory {
        UsedGpuMemory::Used(bytes) => Some(bytes),
        UsedGpuMemory::Unavailable => None,
    }
}

pub(super) fn answer<T>(what: &str, result: Result<T, NvmlError>) -> Option<T> {
    result
        .inspect_err(|error| tracing::debug!(%error, "NVML does not tell: {what}"))
        .ok()
}

#[cfg(test)]
mod tests {
    use super::peak;

    /// The clock that `nvidia-smi -q` shows as the memory's maximum, the bus width in bits, and NVIDIA's
    /// data sheet in GB/s.
    const CARDS: [(&str, u32, u32, u64); 13] = [
        ("GTX 1070, GDDR5", 4_004, 256, 256),
        ("GTX 1080 Ti, GDDR5X", 5_505, 352, 484),
        ("Tesla T4, GDDR6", 5_001, 256, 320),
        ("RTX 3060, GDDR6", 7_501, 192, 360),
        ("RTX 3090, GDDR6X", 9_751, 384, 936),
        ("RTX 4090, GDDR6X", 10_501, 384, 1_008),
        ("RTX 5090, GDDR7", 14_001, 512, 1_792),
        ("Tesla V100, HBM2", 877, 4_096, 900),
        ("A100 40GB, HBM2", 1_215, 5_120, 1_555),
        ("A100 80GB SXM, HBM2e", 1_593, 5_120, 2_039),
        ("H100 SXM, HBM3", 2_619, 5_120, 3_350),
        ("H200, HBM3e", 3_201, 6_144, 4_800),
        ("L40S, GDDR6", 9_001, 384, 864),
    ];

    #[test]
    fn clock_and_width_make_the_data_sheets_number_for_every_kind_of_memory() {
        for (card, clock, width, gigabytes) in CARDS {
            let found = peak(clock, width).unwrap();
            let expected = gigabytes * 1_000_000_000;
            // NVIDIA rounds the H200's 4.9 TB/s down to 4.8.
            assert!(found.abs_diff(expected) <= expected / 40, "{card}: {found}");
        }
    }

    #[test]
    fn a_clock_or_width_of_nothing_is_no_figure_and_none_overflows() {
        assert_eq!(peak(0, 384), None);
        assert_eq!(peak(10_501, 0), None);
        assert_eq!(peak(u32::MAX, u32::MAX), None);
    }
}
