//! Linux's reports on a GPU: its place on the bus, its PCIe link and its memory pools. The machines are folders. This
//! file also tests how a plan uses the pools.

use std::fs;
use std::os::unix::fs::symlink;

use crate::folder::{Fake, device};
use autoplace_planner::machine::{
    GgmlDevice, GpuKind, Machine, PcieLink, PcieRate, Pool, Pools, UnusedReason, gib, mib,
};
use autoplace_planner::plan::{Plan, Planner, Policy, Request};
use test_support::shapes::{LLAMA_8B, LLAMA_70B, Shape};

/// The bus address of each machine's AMD GPU.
const AMD: &str = "0000:c5:00.0";

/// Adds a device to the PCI bus by writing its files in sysfs, with or without a driver: `class=0x030000
/// vendor=0x1002`.
fn on_the_bus(fake: Fake, id: &str, files: &str) -> Fake {
    files.split(' ').fold(fake, |fake, file| {
        let (name, text) = file.split_once('=').expect(file);
        fake.file(&format!("/sys/bus/pci/devices/{id}/{name}"), format!("{text}\n"))
    })
}

/// A card behind bridges. Each item is a device on the path, and the last item is the card. An item's fields are name,
/// current speed, maximum speed, current lanes and maximum lanes.
fn behind(path: &[&str]) -> Fake {
    let mut fake = Fake::new();
    let mut folder = "/sys/devices/pci0000:00".to_owned();
    for device in path {
        let figures: Vec<&str> = device.split(", ").collect();
        folder = format!("{folder}/{}", figures[0]);
        let names = ["current_link_speed", "max_link_speed", "current_link_width", "max_link_width"];
        for (name, figure) in names.iter().zip(&figures[1..]) {
            fake = fake.file(&format!("{folder}/{name}"), format!("{figure}\n"));
        }
    }
    let devices = fake.path("/sys/bus/pci/devices");
    fs::create_dir_all(&devices).unwrap();
    symlink(fake.path(&folder), devices.join("0000:03:00.0")).unwrap();
    fake
}

/// The link of the card at 0000:03:00.0, if the card is a GPU of this kind. Only ggml's Vulkan backend lists the card.
fn link(fake: &Fake, kind: &str) -> Option<PcieLink> {
    detected(fake, &[device(&format!("Vulkan0@0000:03:00.0 {kind} 16 15"))]).gpus[0].pcie
}

#[test]
fn a_link_has_the_lowest_rate_of_the_card_and_its_bridges() {
    let rate = |generation, lanes| PcieRate::new(generation, lanes).unwrap();
    // The card is idle and contains a bridge. Its slot has the third generation and eight lanes.
    let fake = behind(&[
        "0000:00:01.0, 2.5 GT/s PCIe, 8.0 GT/s PCIe, 8, 8",
        "0000:01:00.0, 2.5 GT/s PCIe, 16.0 GT/s PCIe, 8, 16",
        "0000:02:00.0, 16.0 GT/s PCIe, 16.0 GT/s PCIe, 16, 16",
        "0000:03:00.0, 16.0 GT/s PCIe, 16.0 GT/s PCIe, 16, 16",
    ]);
    assert_eq!(link(&fake, "gpu"), Some(PcieLink::new(rate(3, 8)).current(rate(1, 8))));
    // Older kernels write whole numbers.
    let fake = behind(&["0000:03:00.0, 8 GT/s, 8 GT/s, 16, 16"]);
    assert_eq!(link(&fake, "gpu"), Some(PcieLink::new(rate(3, 16)).current(rate(3, 16))));
}

#[test]
fn a_card_without_a_reported_link_has_none_nor_has_an_integrated_gpu() {
    let bridge = "0000:00:01.0, 8.0 GT/s PCIe, 8.0 GT/s PCIe, 16, 16";
    for card in [
        "0000:03:00.0, Unknown, Unknown, 255, 255",
        "0000:03:00.0, 16.0 GT/s PCIe, 16.0 GT/s PCIe, 0, 0",
        "0000:03:00.0, , , , ",
    ] {
        assert_eq!(link(&behind(&[bridge, card]), "gpu"), None, "{card}");
    }
    assert_eq!(link(&Fake::new(), "gpu"), None);
    let fake = behind(&["0000:03:00.0, 16.0 GT/s PCIe, 16.0 GT/s PCIe, 16, 16"]);
    assert_eq!(link(&fake, "igpu"), None);
}

#[test]
fn a_card_whose_driver_does_not_answer_is_distinguished_from_no_card() {
    // In a container that was started without its GPUs, a card is on the bus, but its driver does not answer.
    let fake = on_the_bus(Fake::new(), "0000:03:00.0", "class=0x030200 vendor=0x10de device=0x2330");
    // The card's audio device, a GPU of another maker and a processor's integrated graphics do not count as unused
    // GPUs.
    let fake = on_the_bus(fake, "0000:03:00.1", "class=0x040300 vendor=0x10de device=0x22bc");
    let fake = on_the_bus(fake, "0000:00:02.0", "class=0x030000 vendor=0x8086 device=0x4680");
    let fake = on_the_bus(fake, AMD, "class=0x030000 vendor=0x1002 device=0x1586 mem_info_vram_total=536870912");
    let machine = detected(&fake, &[]);
    let [unused] = machine.unused_gpus.as_slice() else { panic!("{machine}") };
    let library = "libnvidia-ml.so.1".to_owned();
    assert_eq!(unused.reason, UnusedReason::NoDriver { library });
    assert_eq!(unused.gpu.pci_id, Some("0000:03:00.0".parse().unwrap()));
    let text = "NVIDIA GPU 2330 is not used: its driver does not answer here (libnvidia-ml.so.1)";
    assert_eq!(unused.to_string(), text);
    // A card that a backend lists is in use. A listed card without an address may be this card.
    for listed in ["Vulkan0@0000:03:00.0 gpu 16 15", "Vulkan0 gpu 16 15"] {
        assert_eq!(detected(&fake, &[device(listed)]).unused_gpus, []);
    }
    // A remote card is another card. A card that is passed to a virtual machine does not belong to this machine.
    let unused = |fake: &Fake| detected(fake, &[device("RPC0 gpu 16 15")]).unused_gpus.len();
    assert_eq!(unused(&fake), 1);
    let driver = fake.path("/sys/bus/pci/devices/0000:03:00.0/driver");
    symlink("../../../bus/pci/drivers/vfio-pci", driver).unwrap();
    assert_eq!(unused(&fake), 0);
}

#[test]
fn a_large_amd_card_without_a_driver_is_listed() {
    let card = format!("class=0x030000 vendor=0x1002 device=0x744c mem_info_vram_total={}", gib(24));
    let fake = on_the_bus(Fake::new(), AMD, &card);
    let reason = |backends: &[&str]| {
        let machine = fake.detector().backends(backends.iter().copied()).detect_with(&[]);
        machine.unused_gpus[0].reason.clone()
    };
    assert_eq!(reason(&["CUDA"]), UnusedReason::NoBackend);
    assert_eq!(reason(&["Vulkan"]), UnusedReason::NotListed { backend: "Vulkan".to_owned() });
}

/// A machine with an AMD GPU, given by its carve-out, its GTT and Linux's memory, in bytes.
fn amd(carve_out: u64, gtt: u64, mem_total: u64, mem_available: u64) -> Fake {
    let vram = format!("mem_info_vram_total={carve_out} mem_info_vram_used={}", mib(200));
    let gtt = format!("mem_info_gtt_total={gtt} mem_info_gtt_used={}", mib(50));
    on_the_bus(Fake::new().meminfo(mem_total, mem_available), AMD, &format!("{vram} {gtt}"))
}

/// Strix Halo with 128 GiB. The BIOS sets 96 GiB aside. Linux has 31 GiB, and offers half of them to the GPU as GTT.
fn carved_out() -> Fake {
    let (total, available) = (32_490_272 * 1024, 23_144_396 * 1024);
    amd(103_079_215_104, total / 2, total, available)
}

/// The same machine with 512 MiB set aside, and with 112 GiB of GTT that are set by the kernel's parameters.
fn on_demand() -> Fake {
    amd(mib(512), gib(112), gib(125), gib(118))
}

/// The GPU as RADV and HIP describe it to ggml.
fn radeon(backend: &str, total: u64) -> GgmlDevice {
    let device = device(&format!("{backend}0@{AMD} igpu 0 0 Radeon 8060S Graphics (RADV GFX1151)"));
    device.memory(total, total - mib(300))
}

fn detected(fake: &Fake, devices: &[GgmlDevice]) -> Machine {
    fake.detector().detect_with(devices)
}

#[track_caller]
fn plan(machine: &Machine, shape: &Shape) -> Plan {
    let profile = shape.profile();
    Planner::new(&profile, machine).plan().unwrap()
}

#[test]
fn a_carve_out_belongs_to_the_gpu_even_if_the_system_has_little_memory() {
    let gtt = 32_490_272 * 1024 / 2;
    let vulkan = detected(&carved_out(), &[radeon("Vulkan", gib(96) + gtt)]);
    let gpu = &vulkan.gpus[0];
    let own = Pool::new(gib(96), gib(96) - mib(200));
    let shared = Pool::new(gtt, gtt - mib(50));
    assert_eq!(gpu.pools, Some(Pools::new(own, shared)));
    assert_eq!(gpu.free, gib(96) + gtt - mib(300));
    assert_eq!(
        gpu.to_string(),
        "Radeon 8060S Graphics (Vulkan0): 111.2 GiB free of 111.5 GiB, 96.0 GiB set aside for it, the rest shared with the host"
    );
    // The model has 40 GiB of weights, and the system has 22 GiB available.
    let plan = plan(&vulkan, &LLAMA_70B);
    let [on_gpu, host] = &plan.placements[..] else { panic!("{plan}") };
    assert_eq!((on_gpu.layers, on_gpu.of_host), (81, 0), "{plan}");
    assert!(host.footprint.total() < gib(2), "{plan}");
}

#[test]
fn rocm_uses_the_carve_out_or_the_shared_pool_and_never_both() {
    let carved = detected(&carved_out(), &[radeon("ROCm", gib(96))]);
    let gpu = &carved.gpus[0];
    assert_eq!((gpu.free, gpu.shares_host_memory()), (gib(96) - mib(300), false));
    assert_eq!(plan(&carved, &LLAMA_70B).placements[0].of_host, 0);

    let shared = detected(&on_demand(), &[radeon("ROCm", gib(112))]);
    let gpu = &shared.gpus[0];
    assert_eq!((gpu.free, gpu.own_free()), (gib(112) - mib(300), 0));
    let on_gpu = &plan(&shared, &LLAMA_70B).placements[0];
    assert_eq!(on_gpu.of_host, on_gpu.footprint.total());

    // An old kernel limits HIP to the carve-out. The total then equals the carve-out.
    let old = detected(&on_demand(), &[radeon("ROCm", mib(512))]);
    assert_eq!(old.gpus[0].pools.unwrap().shared.total, 0);
}

#[test]
fn bytes_beyond_the_carve_out_come_from_the_host() {
    let machine = detected(&on_demand(), &[radeon("Vulkan", gib(112) + mib(512))]);
    let plan = plan(&machine, &LLAMA_70B);
    let on_gpu = &plan.placements[0];
    let own = mib(512) - mib(200) - on_gpu.headroom.total().min(mib(312));
    assert_eq!(on_gpu.layers, 81, "{plan}");
    assert_eq!(on_gpu.of_host, on_gpu.footprint.total() - own);
    // The GPU gets at most the bytes that the system has available, even if its GTT is larger.
    let busy = amd(mib(512), gib(112), gib(125), gib(30));
    let busy = detected(&busy, &[radeon("Vulkan", gib(112) + mib(512))]);
    assert_eq!(busy.gpus[0].free, gib(30) + mib(312));
    let half = self::plan(&busy, &LLAMA_8B);
    let bytes: u64 = half.gpus().map(|gpu| gpu.of_host).sum();
    let host = half.host().unwrap();
    assert!(bytes + host.footprint.total() <= host.budget, "{half}");
}

#[test]
fn a_backend_with_unknown_pools_gets_no_more_than_the_host_has() {
    let gpu = &detected(&carved_out(), &[radeon("OpenCL", gib(111))]).gpus[0];
    assert_eq!((gpu.pools, gpu.free), (None, 23_144_396 * 1024));
}

#[test]
fn chips_of_intel_apple_and_nvidia_have_only_the_hosts_memory() {
    // Of the host's 64 GiB, 48 are available. Mesa reports a heap of three quarters of the memory, Metal reports a
    // recommended working set, and CUDA reports a figure of its own.
    for (listed, free) in [
        ("Vulkan0@0000:00:02.0 igpu 48 47 Intel(R) Iris(R) Xe Graphics (TGL GT2)", gib(47)),
        ("MTL0 gpu 48 48 Apple M3 Max", gib(48)),
        ("CUDA0@0000:00:02.0 igpu 62 60 Orin", gib(48)),
    ] {
        let machine = detected(&Fake::new(), &[device(listed)]);
        let gpu = &machine.gpus[0];
        assert_eq!((gpu.kind, gpu.pools), (GpuKind::Integrated, None));
        assert_eq!((gpu.free, gpu.own_free()), (free, 0), "{gpu}");
        let plan = plan(&machine, &LLAMA_8B);
        let on_gpu = &plan.placements[0];
        assert_eq!(on_gpu.of_host, on_gpu.footprint.total(), "{plan}");
    }
}

#[test]
fn a_laptops_integrated_gpu_never_displaces_its_card() {
    let laptop = [
        "Vulkan0@0000:00:02.0 igpu 48 47 Intel(R) Iris(R) Xe Graphics (ADL GT2)",
        "Vulkan1@0000:01:00.0 gpu 8 7 RTX 4060 Laptop GPU",
    ];
    let laptop = detected(&Fake::new(), &laptop.map(device));
    assert_eq!(laptop.gpus.len(), 2);
    for policy in [Policy::Fastest, Policy::MostLayers] {
        // The card takes a part of the layers, although the integrated GPU alone could take all of them.
        for shape in [LLAMA_8B, LLAMA_70B] {
            let profile = shape.profile();
            let planner = Planner::new(&profile, &laptop);
            let plan = planner.request(Request::new().policy(policy)).plan().unwrap();
            let gpus: Vec<&str> = plan.gpus().map(|gpu| gpu.name.as_str()).collect();
            assert_eq!(gpus, ["RTX 4060 Laptop GPU"], "{policy:?}: {plan}");
        }
    }
}
