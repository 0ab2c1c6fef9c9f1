//! Cards on the PCI bus that no driver reports. The cause may be a container that was started without its GPUs, or a
//! missing driver. Linux lists them below `/sys/bus/pci/devices`.

use std::fs;

use super::pci::PciId;
use super::tree::{Notes, Tree};
use super::{Gpu, GpuKind, Machine, UnusedGpu, UnusedReason, gib};

const NVIDIA: &str = "0x10de";
const AMD: &str = "0x1002";

/// Smaller cards are ignored, because they may be the graphics of a processor, for which less memory is set aside.
const MIN_CARD_BYTES: u64 = gib(4);

/// Drivers that pass a card through to a virtual machine, or reserve it for such a machine.
const LENT: [&str; 2] = ["vfio-pci", "pci-stub"];

/// Adds the cards that no driver reports to the machine's unused GPUs. `backends` are the backends of this build. If
/// NVIDIA's driver reports any card, it reports all of NVIDIA's cards.
pub(super) fn add(machine: &mut Machine, backends: &[String], nvml_answers: bool, tree: Tree<'_>) {
    let known = machine.gpus.iter().chain(machine.unused_gpus.iter().map(|unused| &unused.gpu));
    let known: Vec<Option<PciId>> = known.filter(|gpu| gpu.kind != GpuKind::Remote).map(|gpu| gpu.pci_id).collect();
    // A known GPU without an address may be any of the cards on the bus.
    if known.contains(&None) {
        return;
    }
    let Ok(entries) = fs::read_dir(tree.locate("/sys/bus/pci/devices")) else {
        return;
    };
    let ids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let mut ids: Vec<PciId> = ids.filter(|&id| !known.contains(&Some(id))).collect();
    // Sorted, so that the order is always the same.
    ids.sort_unstable();
    let cards = ids.into_iter().filter_map(|id| card(tree, backends, nvml_answers, id));
    machine.unused_gpus.extend(cards);
}

fn card(tree: Tree<'_>, backends: &[String], nvml_answers: bool, id: PciId) -> Option<UnusedGpu> {
    let driver = fs::read_link(tree.locate(&format!("/sys/bus/pci/devices/{id}/driver"))).ok();
    let driver = driver.as_ref().and_then(|link| link.file_name()?.to_str());
    if driver.is_some_and(|driver| LENT.contains(&driver)) {
        return None;
    }
    let mut notes = Notes::default();
    let mut read = |file: &str| {
        let text = tree.read(&format!("/sys/bus/pci/devices/{id}/{file}"), &mut notes)?;
        Some(text.trim().to_owned())
    };
    // Display controllers, with or without a screen (PCI code and ID assignment specification, class 03).
    read("class").filter(|class| class.starts_with("0x03"))?;
    let (vendor, device) = (read("vendor")?, read("device")?);
    let named = |maker: &str| {
        let name = format!("{maker} GPU {}", device.trim_start_matches("0x"));
        let mut gpu = Gpu::new(&name);
        // The maker stays in the name, because nothing else is known.
        gpu.name = name;
        gpu
    };
    let (gpu, reason) = match vendor.as_str() {
        NVIDIA if !nvml_answers => {
            let library = "libnvidia-ml.so.1".to_owned();
            (named("NVIDIA"), UnusedReason::NoDriver { library })
        }
        AMD => {
            let total = read("mem_info_vram_total").and_then(|text| text.parse().ok());
            let total = total.filter(|&total: &u64| total >= MIN_CARD_BYTES)?;
            let mut able = backends.iter().filter(|name| *name == "ROCm" || *name == "Vulkan");
            let reason = match able.next() {
                Some(backend) => UnusedReason::NotListed { backend: backend.clone() },
                None => UnusedReason::NoBackend,
            };
            (named("AMD").total(total).backend("ROCm"), reason)
        }
        _ => return None,
    };
    Some(UnusedGpu { gpu: gpu.pci_id(id), reason })
}
