//! PCIe links as Linux describes them, on machines that are folders.
#![cfg(unix)]

#[path = "support/folder/mod.rs"]
mod folder;

use std::fs;
use std::os::unix::fs::symlink;

use autoplace::machine::{GgmlDevice, GgmlKind, PcieLink, PcieRate, gib};
use folder::Fake;

/// A card behind bridges, each `(name, speed, width)` from the processor on, the card last. The speeds are `current` and `max`.
fn behind(path: &[(&str, [&str; 2], [&str; 2])]) -> Fake {
    let mut fake = Fake::new();
    let mut folder = "/sys/devices/pci0000:00".to_owned();
    for (name, [speed_now, speed], [width_now, width]) in path {
        folder = format!("{folder}/{name}");
        fake = fake
            .file(&format!("{folder}/max_link_speed"), format!("{speed}\n"))
            .file(&format!("{folder}/max_link_width"), format!("{width}\n"))
            .file(
                &format!("{folder}/current_link_speed"),
                format!("{speed_now}\n"),
            )
            .file(
                &format!("{folder}/current_link_width"),
                format!("{width_now}\n"),
            );
    }
    let devices = fake.path("/sys/bus/pci/devices");
    fs::create_dir_all(&devices).unwrap();
    let card = fake.path(&folder);
    symlink(card, devices.join(path.last().unwrap().0)).unwrap();
    fake
}

/// The link of a card that only ggml's Vulkan backend lists, at 0000:03:00.0.
fn link(fake: &Fake) -> Option<PcieLink> {
    let device = GgmlDevice::new("Vulkan0", "Vulkan", GgmlKind::Gpu)
        .device_id("0000:03:00.0")
        .memory(gib(16), gib(15));
    fake.detector().detect_with(&[device]).gpus[0].pcie
}

#[test]
fn a_link_is_as_good_as_the_worst_of_the_bridges_before_the_card() {
    let rate = |generation, lanes| PcieRate::new(generation, lanes).unwrap();
    // A card with a bridge of its own, idle, in a slot of the third generation with eight lanes.
    let fake = behind(&[
        (
            "0000:00:01.0",
            ["2.5 GT/s PCIe", "8.0 GT/s PCIe"],
            ["8", "8"],
        ),
        (
            "0000:01:00.0",
            ["2.5 GT/s PCIe", "16.0 GT/s PCIe"],
            ["8", "16"],
        ),
        (
            "0000:02:00.0",
            ["16.0 GT/s PCIe", "16.0 GT/s PCIe"],
            ["16", "16"],
        ),
        (
            "0000:03:00.0",
            ["16.0 GT/s PCIe", "16.0 GT/s PCIe"],
            ["16", "16"],
        ),
    ]);
    assert_eq!(
        link(&fake),
        Some(PcieLink::new(rate(3, 8)).current(rate(1, 8)))
    );
    // Older kernels write whole numbers.
    let fake = behind(&[("0000:03:00.0", ["8 GT/s", "8 GT/s"], ["16", "16"])]);
    assert_eq!(
        link(&fake),
        Some(PcieLink::new(rate(3, 16)).current(rate(3, 16)))
    );
}

#[test]
fn a_card_that_does_not_tell_its_link_has_none() {
    for (speed, width) in [("Unknown", "255"), ("16.0 GT/s PCIe", "0"), ("", "")] {
        let fake = behind(&[
            ("0000:00:01.0", ["8.0 GT/s PCIe"; 2], ["16", "16"]),
            ("0000:03:00.0", [speed; 2], [width; 2]),
        ]);
        assert_eq!(link(&fake), None, "{speed:?} {width:?}");
    }
    assert_eq!(link(&Fake::new()), None);
}

#[test]
fn a_gpu_in_the_hosts_memory_has_no_link() {
    let fake = behind(&[("0000:03:00.0", ["16.0 GT/s PCIe"; 2], ["16", "16"])]);
    let device = GgmlDevice::new("Vulkan0", "Vulkan", GgmlKind::IntegratedGpu)
        .device_id("0000:03:00.0")
        .memory(gib(16), gib(15));
    assert_eq!(fake.detector().detect_with(&[device]).gpus[0].pcie, None);
}
