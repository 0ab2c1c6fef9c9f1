//! One machine from what ggml's backends and NVIDIA's driver say: which card is which, whose figure holds, and
//! what is not used.

use std::fs;

use crate::scripted::ScriptedNvml;
use autoplace_planner::machine::{
    BandwidthSource, Bytes, Detector, GgmlDevice, GgmlKind, Gpu, GpuKind, Host, Machine, PciId,
    Reading, UnusedReason, gib, mib,
};
use proptest::prelude::{Just, Strategy, any, prop, prop_assert, prop_assert_eq, proptest};
use tempfile::TempDir;

/// A detector for a host of 64 GiB, 48 GiB available, whatever the environment says about CUDA.
fn detector() -> (TempDir, Detector) {
    let root = tempfile::tempdir().unwrap();
    fs::create_dir(root.path().join("proc")).unwrap();
    let meminfo = format!(
        "MemTotal: {} kB\nMemAvailable: {} kB\n",
        gib(64) / 1024,
        gib(48) / 1024
    );
    fs::write(root.path().join("proc/meminfo"), meminfo).unwrap();
    let detector = Detector::new()
        .root(root.path())
        .cuda_visible_devices(None, false);
    (root, detector)
}

/// The machine of these ggml devices and this driver script.
fn merged(devices: &[GgmlDevice], script: &str) -> Machine {
    let (_root, detector) = detector();
    detector
        .nvml_library(ScriptedNvml::new(script).library())
        .detect_with(devices)
}

/// The machine of these ggml devices, without NVIDIA's driver.
fn from_ggml(devices: &[GgmlDevice]) -> Machine {
    let (_root, detector) = detector();
    detector.without_nvml().detect_with(devices)
}

fn card(name: &str, pci: &str, total: u64, free: u64, reserved: u64) -> String {
    format!("gpu {name}\nuuid GPU-{pci}\npci {pci}\nmemory {total} {free} {reserved}\n")
}

fn rtx_4090() -> String {
    card(
        "NVIDIA GeForce RTX 4090",
        "00000000:01:00.0",
        gib(24),
        gib(22),
        mib(500),
    )
}

fn cuda0(total: u64, free: u64) -> GgmlDevice {
    GgmlDevice::new("CUDA0", "CUDA", GgmlKind::Gpu)
        .description("NVIDIA GeForce RTX 4090")
        .device_id("0000:01:00.0")
        .memory(total, free)
}

fn vulkan0() -> GgmlDevice {
    GgmlDevice::new("Vulkan0", "Vulkan", GgmlKind::Gpu)
        .description("NVIDIA GeForce RTX 4090")
        .memory(gib(24), gib(23))
}

fn cpu() -> GgmlDevice {
    GgmlDevice::new("CPU", "CPU", GgmlKind::Cpu).memory(gib(64), gib(64))
}

fn names(machine: &Machine) -> Vec<&str> {
    machine
        .gpus
        .iter()
        .filter_map(|gpu| gpu.device.as_deref())
        .collect()
}

fn reasons(machine: &Machine) -> Vec<&UnusedReason> {
    machine
        .unused_gpus
        .iter()
        .map(|unused| &unused.reason)
        .collect()
}

#[test]
fn one_card_seen_twice_is_one_card_with_both_figures() {
    let machine = merged(&[cuda0(gib(23), gib(21)), cpu()], &rtx_4090());
    let [gpu] = &machine.gpus[..] else {
        panic!("{machine}")
    };
    assert_eq!(
        (gpu.name.as_str(), gpu.description.as_str()),
        ("RTX 4090", "NVIDIA GeForce RTX 4090")
    );
    assert_eq!(
        (gpu.device.as_deref(), gpu.backend.as_str(), gpu.kind),
        (Some("CUDA0"), "CUDA", GpuKind::Discrete)
    );
    assert_eq!(gpu.pci_id, Some(PciId::new(0, 1, 0, 0)));
    assert_eq!(gpu.ggml, Some(Reading::new(gib(23), gib(21))));
    assert_eq!(
        gpu.nvml,
        Some(Reading::new(gib(24), gib(22)).reserved(mib(500)))
    );
    assert_eq!((gpu.total, gpu.free), (gib(23), gib(21)));
    assert!(gpu.free_is_after_opening());
    assert!(
        machine.unused_gpus.is_empty() && machine.notes.is_empty(),
        "{machine}"
    );
}

#[test]
fn the_smaller_free_figure_holds_whoever_says_it() {
    assert_eq!(
        merged(&[cuda0(gib(24), gib(23))], &rtx_4090()).gpus[0].free,
        gib(22)
    );
    assert_eq!(
        merged(&[cuda0(gib(24), gib(20))], &rtx_4090()).gpus[0].free,
        gib(20)
    );
}

#[test]
fn a_mig_slice_has_its_own_total_and_not_the_cards() {
    let h100 = card("NVIDIA H100", "00000000:01:00.0", gib(80), gib(70), 0);
    let machine = merged(&[cuda0(gib(10), gib(9))], &h100);
    assert_eq!(
        (machine.gpus[0].total, machine.gpus[0].free),
        (gib(10), gib(9))
    );
}

/// An H100 in MIG mode: its lines, and those of its slices.
fn h100_with(slices: &str) -> String {
    let card = card(
        "NVIDIA H100 80GB HBM3",
        "00000000:01:00.0",
        gib(80),
        gib(70),
        0,
    );
    format!("{card}memory_clock 2619\nbus_width 5120\nmig\n{slices}")
}

fn slice(place: u32, profile: &str, size: u64) -> String {
    let (total, free) = (gib(size), gib(size) - mib(100));
    format!("slice {place} {total} {free} MIG-{place}{place} NVIDIA H100 80GB HBM3 MIG {profile}\n")
}

/// GB/s and who says so.
fn speed(gpu: &Gpu) -> Option<(u64, BandwidthSource)> {
    let bandwidth = gpu.bandwidth?;
    Some((bandwidth.bytes_per_second / 1_000_000_000, bandwidth.source))
}

#[test]
fn a_device_on_a_card_in_mig_mode_is_the_one_slice_of_its_size() {
    let slices = slice(0, "1g.10gb", 10) + &slice(3, "3g.40gb", 40);
    let device = || cuda0(gib(40) - mib(400), gib(39));
    let gpu = &merged(&[device()], &h100_with(&slices)).gpus[0];
    let known = gpu.mig.as_ref().unwrap();
    assert_eq!(known.profile.as_deref(), Some("3g.40gb"));
    assert_eq!(gpu.free, gib(39));
    assert_eq!(gpu.nvml, known.memory);
    // Half of the memory has half of its 3352 GB/s, less what the driver keeps.
    assert_eq!(speed(gpu), Some((1659, BandwidthSource::Nvml)));
    // Of two equal slices either may be it.
    let slices = slice(0, "3g.40gb", 40) + &slice(1, "3g.40gb", 40);
    let gpu = &merged(&[device()], &h100_with(&slices)).gpus[0];
    assert_eq!(gpu.mig.as_ref().unwrap().profile, None);
    assert_eq!((gpu.free, gpu.nvml), (gib(39), None));
}

#[test]
fn without_llama_the_first_slice_is_the_gpu_and_the_others_are_unused() {
    let slices = slice(0, "1g.10gb", 10) + &slice(3, "3g.40gb", 40);
    let nvml = ScriptedNvml::new(&h100_with(&slices));
    let (_root, detector) = detector();
    let detector = detector.nvml_library(nvml.library());
    let machine = detector.detect();
    let sizes: Vec<u64> = machine.gpus.iter().map(|gpu| gpu.total).collect();
    assert_eq!(sizes, [gib(10)]);
    assert_eq!(
        machine.gpus[0].to_string(),
        "H100 80GB HBM3 MIG 1g.10gb: 9.9 GiB free of 10.0 GiB"
    );
    assert_eq!(reasons(&machine), [&UnusedReason::OtherSlice]);
    assert_eq!(speed(&machine.gpus[0]), Some((419, BandwidthSource::Nvml)));
    // Unless another is chosen.
    let machine = detector
        .cuda_visible_devices(Some("MIG-33"), false)
        .detect();
    assert_eq!(machine.gpus[0].total, gib(40));
    assert_eq!(machine.notes, []);
}

#[test]
fn a_slice_that_is_chosen_hides_every_other_card() {
    let script = rtx_4090() + &h100_with(&slice(0, "1g.10gb", 10)).replace(":01:", ":02:");
    let nvml = ScriptedNvml::new(&script);
    let (_root, detector) = detector();
    let detector = detector.nvml_library(nvml.library());
    let machine = detector
        .clone()
        .cuda_visible_devices(Some("MIG-00"), false)
        .detect();
    assert_eq!(machine.gpus[0].total, gib(10));
    assert_eq!(reasons(&machine), [&UnusedReason::Hidden]);
    let machine = detector
        .cuda_visible_devices(Some("MIG-99"), false)
        .detect();
    assert_eq!((machine.gpus.len(), machine.notes.len()), (2, 1));
}

#[test]
fn a_card_in_mig_mode_without_slices_is_unused() {
    let nvml = ScriptedNvml::new(&h100_with(""));
    let (_root, detector) = detector();
    let machine = detector.nvml_library(nvml.library()).detect();
    assert!(machine.gpus.is_empty());
    assert_eq!(
        machine.unused_gpus[0].to_string(),
        "H100 80GB HBM3 is not used: it is in MIG mode and has no slices"
    );
}

#[test]
fn a_card_has_the_bandwidth_of_its_driver_and_without_one_of_its_data_sheet() {
    let device = || [cuda0(gib(24), gib(21))];
    let clocked = rtx_4090() + "memory_clock 11001\nbus_width 384\npcie 4 16 1 16\ncompute 9 5\n";
    let gpu = &merged(&device(), &clocked).gpus[0];
    assert_eq!(speed(gpu), Some((1056, BandwidthSource::Nvml)));
    assert_eq!(gpu.pcie.unwrap().max.lanes, 16);
    assert_eq!(gpu.processes.as_ref().map(Vec::len), Some(1));
    let sheet = Some((1008, BandwidthSource::Catalogue));
    assert_eq!(speed(&merged(&device(), &rtx_4090()).gpus[0]), sheet);
    let gpu = &from_ggml(&device()).gpus[0];
    assert_eq!((speed(gpu), &gpu.processes, gpu.pcie), (sheet, &None, None));
    let unknown = GgmlDevice::new("Vulkan0", "Vulkan", GgmlKind::Gpu).memory(gib(8), gib(8));
    assert_eq!(speed(&from_ggml(&[unknown]).gpus[0]), None);
}

#[test]
fn equal_cards_are_told_apart_by_their_address() {
    let script = card(
        "NVIDIA GeForce RTX 3060",
        "00000000:02:00.0",
        gib(12),
        gib(3),
        0,
    ) + &card(
        "NVIDIA GeForce RTX 3060",
        "00000000:01:00.0",
        gib(12),
        gib(9),
        0,
    );
    let device = |name: &str, id: &str| {
        GgmlDevice::new(name, "CUDA", GgmlKind::Gpu)
            .description("NVIDIA GeForce RTX 3060")
            .device_id(id)
            .memory(gib(12), gib(11))
    };
    let machine = merged(
        &[
            device("CUDA0", "0000:01:00.0"),
            device("CUDA1", "0000:02:00.0"),
        ],
        &script,
    );
    let free: Vec<u64> = machine.gpus.iter().map(|gpu| gpu.free).collect();
    assert_eq!(free, [gib(9), gib(3)]);
}

#[test]
fn a_card_that_the_build_cannot_drive_is_listed_as_unused() {
    let machine = merged(&[cpu()], &rtx_4090());
    assert!(machine.gpus.is_empty());
    assert_eq!(
        machine.unused_gpus[0].to_string(),
        "RTX 4090 is not used: this build has no backend for it"
    );
    assert_eq!(machine.unused_gpus[0].gpu.total, gib(24) - mib(500));
}

#[test]
fn a_card_that_cuda_does_not_list_is_told_apart_from_a_build_without_cuda() {
    let (_root, detector) = detector();
    let nvml = ScriptedNvml::new(&rtx_4090());
    let machine = detector
        .nvml_library(nvml.library())
        .backends(["CPU", "CUDA"])
        .detect_with(&[cpu()]);
    assert_eq!(
        reasons(&machine),
        [&UnusedReason::NotListed {
            backend: "CUDA".to_owned()
        }]
    );
}

#[test]
fn a_card_that_the_environment_hides_is_said_to_be_hidden() {
    let (_root, detector) = detector();
    let nvml = ScriptedNvml::new(&rtx_4090());
    let detector = detector
        .nvml_library(nvml.library())
        .backends(["CUDA"])
        .cuda_visible_devices(Some(""), false);
    assert_eq!(
        reasons(&detector.detect_with(&[cpu()])),
        [&UnusedReason::Hidden]
    );
    assert_eq!(reasons(&detector.detect()), [&UnusedReason::Hidden]);
    assert_eq!(
        detector.detect_with(&[vulkan0()]).gpus.len(),
        1,
        "Vulkan knows nothing of that variable"
    );
}

#[test]
fn a_second_backend_on_the_same_card_is_unused() {
    let with_id = vulkan0().device_id("0000:01:00.0");
    for vulkan in [with_id, vulkan0()] {
        let machine = merged(&[cuda0(gib(24), gib(21)), vulkan], &rtx_4090());
        assert_eq!(names(&machine), ["CUDA0"]);
        assert_eq!(
            reasons(&machine),
            [&UnusedReason::SameAs {
                device: "CUDA0".to_owned()
            }]
        );
    }
}

#[test]
fn a_second_view_of_the_integrated_gpu_is_unused() {
    let rocm = GgmlDevice::new("ROCm0", "ROCm", GgmlKind::IntegratedGpu).memory(gib(32), gib(20));
    let vulkan =
        GgmlDevice::new("Vulkan0", "Vulkan", GgmlKind::IntegratedGpu).memory(gib(32), gib(20));
    assert_eq!(names(&from_ggml(&[rocm, vulkan])), ["ROCm0"]);
}

#[test]
fn a_device_without_an_address_is_matched_by_a_name_that_only_one_card_has() {
    let machine = merged(&[vulkan0()], &rtx_4090());
    assert_eq!(
        (machine.gpus[0].free, machine.gpus[0].pci_id),
        (gib(22), Some(PciId::new(0, 1, 0, 0)))
    );
    let two = rtx_4090()
        + &card(
            "NVIDIA GeForce RTX 4090",
            "00000000:02:00.0",
            gib(24),
            gib(1),
            0,
        );
    assert_eq!(merged(&[vulkan0()], &two).gpus[0].free, gib(23));
}

#[test]
fn a_simulated_or_remote_device_is_never_taken_for_a_card_of_this_machine() {
    for backend in ["Sim", "RPC"] {
        let device = GgmlDevice::new("X0", backend, GgmlKind::Gpu)
            .description("NVIDIA GeForce RTX 4090")
            .memory(gib(24), gib(24));
        let machine = merged(&[device], &rtx_4090());
        assert_eq!(
            (machine.gpus[0].free, machine.gpus[0].nvml),
            (gib(24), None),
            "{backend}"
        );
        assert_eq!(machine.unused_gpus.len(), 1, "{backend}");
    }
}

#[test]
fn virtual_devices_share_what_is_free_on_their_card() {
    let half = |place: u32| {
        GgmlDevice::new(format!("CUDA{place}"), "CUDA", GgmlKind::Gpu)
            .device_id(format!("0000:01:00.0-v{place}"))
            .memory(gib(12), gib(12))
    };
    let machine = merged(&[half(0), half(1)], &rtx_4090());
    let free: Vec<u64> = machine.gpus.iter().map(|gpu| gpu.free).collect();
    assert_eq!(free, [gib(11), gib(11)]);
}

#[test]
fn more_free_than_total_is_total_and_is_said() {
    let vulkan = vulkan0().memory(gib(8), gib(9));
    let machine = from_ggml(&[vulkan]);
    assert_eq!(machine.gpus[0].free, gib(8));
    assert_eq!(
        machine.notes[0].to_string(),
        "Vulkan0: says that 9.0 GiB are free of 8.0 GiB: taken as 8.0 GiB"
    );
}

#[test]
fn a_budget_that_is_overdrawn_leaves_nothing() {
    let machine = from_ggml(&[vulkan0().memory(gib(8), 0u64.wrapping_sub(mib(100)))]);
    assert_eq!(machine.gpus[0].free, 0);
    assert_eq!(machine.notes.len(), 1);
}

#[test]
fn a_device_that_answers_zero_bytes_is_unused() {
    let machine = merged(&[cuda0(0, 0)], &rtx_4090());
    assert_eq!(reasons(&machine), [&UnusedReason::NoMemory]);
    assert!(machine.gpus.is_empty());
}

#[test]
fn the_cpu_and_its_helpers_are_no_gpus() {
    let blas = GgmlDevice::new("BLAS", "BLAS", GgmlKind::Accelerator);
    let meta = GgmlDevice::new("Meta", "Meta", GgmlKind::Meta).memory(gib(1), gib(1));
    let machine = from_ggml(&[cpu(), blas, meta]);
    assert!(machine.gpus.is_empty() && machine.unused_gpus.is_empty());
}

#[test]
fn an_integrated_gpu_has_no_more_free_than_the_host() {
    let device =
        GgmlDevice::new("Vulkan0", "Vulkan", GgmlKind::IntegratedGpu).memory(gib(62), gib(62));
    let gpu = &from_ggml(&[device]).gpus[0];
    assert_eq!((gpu.free, gpu.total), (gib(48), gib(62)));
    assert!(gpu.shares_host_memory());
}

#[test]
fn an_apple_chip_shares_the_hosts_memory_though_metal_calls_it_a_card() {
    let device = GgmlDevice::new("MTL0", "MTL", GgmlKind::Gpu)
        .description("Apple M3 Max")
        .memory(gib(48), gib(48));
    assert_eq!(from_ggml(&[device]).gpus[0].kind, GpuKind::Integrated);
}

#[test]
fn a_mac_with_intels_graphics_shares_its_memory_and_one_with_amds_does_not() {
    let mac = |description: &str| {
        let device = GgmlDevice::new("MTL0", "MTL", GgmlKind::Gpu)
            .description(description)
            .memory(gib(8), gib(8));
        from_ggml(&[device]).gpus[0].kind
    };
    assert_eq!(mac("Intel(R) Iris(TM) Plus Graphics"), GpuKind::Integrated);
    assert_eq!(mac("AMD Radeon Pro 5600M"), GpuKind::Discrete);
    // Elsewhere Intel makes cards too, and the backend says which it is.
    let arc = GgmlDevice::new("Vulkan0", "Vulkan", GgmlKind::Gpu)
        .description("Intel(R) Arc(tm) A770 Graphics (DG2)")
        .memory(gib(16), gib(15));
    assert_eq!(from_ggml(&[arc]).gpus[0].kind, GpuKind::Discrete);
}

#[test]
fn unified_memory_that_nvml_will_not_count_is_taken_as_ggml_counts_it() {
    let script = "gpu NVIDIA GB10\npci 0000000F:01:00.0\nv2_error 3\nv1_error 3\nmemory_clock 9\nbus_width 9\npcie 5 4 5 4\n";
    let device = GgmlDevice::new("CUDA0", "CUDA", GgmlKind::IntegratedGpu)
        .description("NVIDIA GB10")
        .device_id("000f:01:00.0")
        .memory(gib(120), gib(40));
    let machine = merged(&[device], script);
    assert_eq!(
        (machine.gpus[0].free, machine.gpus[0].nvml),
        (gib(40), None)
    );
    assert!(machine.unused_gpus.is_empty());
    assert_eq!(machine.notes.len(), 1);
    // The host's memory has neither the card's clock nor its link before it.
    let gpu = &machine.gpus[0];
    assert_eq!(
        (speed(gpu), gpu.pcie),
        (Some((273, BandwidthSource::Catalogue)), None)
    );
}

#[test]
fn without_llama_the_drivers_cards_are_the_gpus() {
    let (_root, detector) = detector();
    let gb10 = "gpu NVIDIA GB10\npci 0000000F:01:00.0\nv2_error 3\nv1_error 3\n";
    let nvml = ScriptedNvml::new(&(rtx_4090() + gb10));
    let machine = detector.nvml_library(nvml.library()).detect();
    let [gpu] = &machine.gpus[..] else {
        panic!("{machine}")
    };
    assert_eq!((gpu.total, gpu.free), (gib(24) - mib(500), gib(22)));
    assert_eq!(
        (gpu.backend.as_str(), gpu.device.as_deref()),
        ("CUDA", None)
    );
    assert!(!gpu.free_is_after_opening(), "no context has been opened");
    assert_eq!(reasons(&machine), [&UnusedReason::UnknownMemory]);
    let gb10 = &machine.unused_gpus[0].gpu;
    assert!(gb10.shares_host_memory(), "its memory cannot be counted");
}

#[test]
fn this_very_machine_is_described_without_fail() {
    let machine = Machine::detect();
    assert!(machine.host.total > 0, "{machine}");
    assert!(
        machine.gpus.iter().all(|gpu| gpu.free <= gpu.total),
        "{machine}"
    );
}

#[test]
fn a_machine_is_the_same_after_a_trip_through_json() {
    let device = cuda0(gib(24), gib(21));
    let machine = merged(&[device, vulkan0().device_id("0000:01:00.0")], &rtx_4090());
    let json = serde_json::to_string(&machine).unwrap();
    assert_eq!(serde_json::from_str::<Machine>(&json).unwrap(), machine);
}

#[test]
fn a_hypothetical_machine_is_written_down_in_a_line() {
    let machine = Machine::new(Host::new(gib(64)))
        .with_gpu(Gpu::new("RTX 4090").total(gib(24)).free(gib(22)));
    assert_eq!(
        machine.to_string(),
        "RTX 4090: 22.0 GiB free of 24.0 GiB\nhost: 64.0 GiB free of 64.0 GiB"
    );
    assert_eq!(Bytes(machine.gpus[0].free).to_string(), "22.0 GiB");
}

fn ggml_device() -> impl Strategy<Value = GgmlDevice> {
    let kind = prop::sample::select(vec![GgmlKind::Gpu, GgmlKind::IntegratedGpu, GgmlKind::Cpu]);
    let backend = prop::sample::select(vec!["CUDA", "Vulkan", "RPC", "Sim"]);
    let id = prop::sample::select(vec![
        None,
        Some("0000:01:00.0"),
        Some("0000:01:00.0-v1"),
        Some("0000:02:00.0"),
        Some("odd"),
    ]);
    let bytes = || {
        prop::strategy::Union::new([Just(0).boxed(), (0..gib(200)).boxed(), any::<u64>().boxed()])
    };
    (kind, backend, id, bytes(), bytes()).prop_map(|(kind, backend, id, total, free)| {
        let device = GgmlDevice::new("D", backend, kind).memory(total, free);
        id.map_or(device.clone(), |id| device.device_id(id))
    })
}

#[test]
fn no_gpu_has_more_free_than_it_has_or_than_its_card() {
    let script = rtx_4090()
        + &card(
            "NVIDIA GeForce RTX 3060",
            "00000000:02:00.0",
            gib(12),
            gib(9),
            0,
        );
    let nvml = ScriptedNvml::new(&script);
    let (_root, detector) = detector();
    let detector = detector.nvml_library(nvml.library());
    proptest!(|(mut devices in prop::collection::vec(ggml_device(), 0..6))| {
        for (place, device) in devices.iter_mut().enumerate() {
            device.name = format!("{}{place}", device.backend);
        }
        let machine = detector.detect_with(&devices);
        for gpu in &machine.gpus {
            prop_assert!(gpu.free <= gpu.total);
            prop_assert!(gpu.total > 0);
            if let (GpuKind::Discrete, Some(card)) = (gpu.kind, gpu.nvml) {
                prop_assert!(gpu.free <= card.free);
            }
        }
        let gpus = devices.iter().filter(|device| device.kind != GgmlKind::Cpu).count();
        let listed = machine.gpus.iter().chain(machine.unused_gpus.iter().map(|unused| &unused.gpu));
        prop_assert_eq!(listed.filter(|gpu| gpu.device.is_some()).count(), gpus, "no device is lost");
    });
}
