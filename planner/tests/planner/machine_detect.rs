//! Detection of a machine from ggml's backends and NVIDIA's driver: which entries are the same card, which source's
//! figure counts, and which cards remain unused.

use crate::folder::{Fake, device};
use crate::nvml::{ScriptedNvml, card, rtx_4090};
use autoplace_planner::machine::{Detector, GgmlDevice, GgmlKind, Gpu, GpuKind, Host, Machine, gib, mib};
use autoplace_planner::plan::{GpuLayers, Request};
use proptest::prelude::{Just, Strategy, any, prop, prop_assert, prop_assert_eq, prop_oneof, proptest};
use test_support::table::{parts, rows};

/// The machine that is detected if NVIDIA's driver answers as in `script` and llama.cpp has these devices. Without a
/// script there is no driver, and without devices there is no llama.cpp.
fn detected(detector: Detector, script: &str, devices: &'static str) -> Machine {
    let nvml = (!script.is_empty()).then(|| ScriptedNvml::new(script));
    let detector = match &nvml {
        Some(nvml) => detector.nvml_library(nvml.library()),
        None => detector,
    };
    let devices: Vec<GgmlDevice> = parts(devices).map(device).collect();
    if devices.is_empty() { detector.detect() } else { detector.detect_with(&devices) }
}

/// Parses a card from `RTX 4090@01 24 22`, optionally with ` mig`.
fn card_of(text: &str) -> String {
    let (name, rest) = text.split_once('@').expect(text);
    let words: Vec<&str> = rest.split(' ').collect();
    let size = |word: usize| gib(words[word].parse().unwrap());
    card(&format!("GeForce {name}"), words[0], [size(1), size(2), mib(500)])
        + words.get(3).map_or("", |_| "memory_clock 2619\nbus_width 5120\nmig\n")
}

#[test]
fn each_gpu_is_found_once_with_the_right_figure() {
    for row in rows(include_str!("machine_detect.txt")) {
        let [what, cards, devices, settings, gpus, unused, notes] = row;
        let fake = Fake::new();
        let mut detector = fake.detector().cuda_visible_devices(None, false);
        for setting in settings.split(' ') {
            detector = match setting.split_once('=') {
                Some(("backends", names)) => detector.backends(names.split(',')),
                Some(("visible", ids)) => detector.cuda_visible_devices(Some(ids), false),
                _ => detector,
            };
        }
        let cards: String = parts(cards).map(card_of).collect();
        let machine = detected(detector, &cards, devices);
        let size = |bytes| bytes as f64 / gib(1) as f64;
        let found = machine.gpus.iter().map(|gpu| {
            let (free, total) = (size(gpu.free), size(gpu.total));
            assert_eq!(gpu.shares_host_memory(), gpu.kind == GpuKind::Integrated);
            format!("{} {free}/{total} {:?}", gpu.device.as_deref().unwrap(), gpu.kind)
        });
        assert_eq!(found.collect::<Vec<_>>().join("; "), gpus, "{what}");
        let reasons = machine.unused_gpus.iter().map(|gpu| format!("{:?}", gpu.reason));
        assert_eq!(reasons.collect::<Vec<_>>().join("; "), unused, "{what}");
        let said: Vec<String> = machine.notes.iter().map(ToString::to_string).collect();
        assert_eq!(said.join("; "), notes, "{what}");
    }
}

#[test]
fn without_a_gpu_the_plan_names_the_backends_and_the_detected_cards() {
    let fake = Fake::new();
    let profile = test_support::shapes::LLAMA_1B.profile();
    let card = card_of("RTX 4090@01 24 22");
    let features = "this build has no GPU backend (its features `cuda`, `vulkan`, `metal` and `hip` each add one; ";
    for (backends, script, says, seen) in [
        ("CPU", "", features, "no card was seen)"),
        ("CPU", &*card, features, "RTX 4090)"),
        ("CPU,Vulkan", &card, "there is no usable GPU (the build has Vulkan; seen: ", "RTX 4090)"),
        ("CPU,CUDA,RPC", "", "there is no usable GPU (the build has CUDA; ", "no card was seen)"),
    ] {
        let detector = fake.detector().cuda_visible_devices(None, false).backends(backends.split(','));
        let mut machine = detected(detector, script, "CPU cpu 64 64");
        machine.host = Host::new(gib(64));
        let plan = crate::plan(&profile, &machine, &Request::new()).unwrap();
        assert!(plan.notes[0].contains(says) && plan.notes[0].ends_with(seen), "{}", plan.notes[0]);
        let error = crate::plan(&profile, &machine, &Request::new().n_gpu_layers(GpuLayers::All)).unwrap_err();
        assert!(error.to_string().contains(says) && error.to_string().ends_with(seen), "{error}");
    }
}

/// All known facts about the GPUs in use, and about the unused GPUs with the reasons.
fn known(machine: &Machine) -> String {
    let json = |gpu: &Gpu| serde_json::to_string(gpu).unwrap();
    let mut text = String::new();
    for gpu in &machine.gpus {
        let opened = gpu.free_is_after_opening();
        text += &format!("  {gpu}; opened: {opened}\n   {}\n", json(gpu));
    }
    for unused in &machine.unused_gpus {
        text += &format!("  {unused}\n   {}\n", json(&unused.gpu));
    }
    for note in &machine.notes {
        text += &format!("  {note}\n");
    }
    text
}

/// The script's lines for an H100 in MIG mode on this bus, with these slices.
fn h100_with(bus: &str, slices: &str) -> String {
    let card = card("H100 80GB HBM3", bus, [gib(80), gib(70), 0]);
    format!("{card}memory_clock 2619\nbus_width 5120\nmig\n{slices}")
}

fn slice(place: u32, profile: &str, size: u64) -> String {
    let (total, free) = (gib(size), gib(size) - mib(100));
    format!("slice {place} {total} {free} MIG-{place}{place} NVIDIA H100 80GB HBM3 MIG {profile}\n")
}

#[test]
fn cards_and_slices_have_every_fact_of_the_driver_or_a_data_sheet() {
    let two = slice(0, "1g.10gb", 10) + &slice(3, "3g.40gb", 40);
    let equal = slice(0, "3g.40gb", 40) + &slice(1, "3g.40gb", 40);
    let both = rtx_4090() + &h100_with("02", &slice(0, "1g.10gb", 10));
    let of_40 = "CUDA0@0000:01:00.0 gpu 39 38 NVIDIA H100 80GB HBM3";
    let clocked = rtx_4090() + "memory_clock 11001\nbus_width 384\npcie 4 16 1 16\ncompute 9 5\n";
    let silent = "gpu NVIDIA GB10\npci 0000000F:01:00.0\nmemory_error 3\n";
    let unified = format!("{silent}memory_clock 9\nbus_width 9\npcie 5 4 5 4\n");
    let seen = "CUDA0@0000:01:00.0 gpu 23 21 RTX 4090; CPU cpu 64 64";
    let mut text = String::new();
    for (what, script, devices, visible) in [
        ("A card that both see", rtx_4090(), seen, None),
        ("With its clock, its link and its programs", clocked, seen, None),
        ("Without NVIDIA's driver", String::new(), seen, None),
        ("One that nobody knows", String::new(), "Vulkan0 gpu 8 8", None),
        ("A device is the one slice of its size", h100_with("01", &two), of_40, None),
        ("Of two equal slices it may be either", h100_with("01", &equal), of_40, None),
        ("Without llama.cpp it is the first slice", h100_with("01", &two), "", None),
        ("Unless another is chosen", h100_with("01", &two), "", Some("MIG-33")),
        ("A slice that is chosen hides every card", both.clone(), "", Some("MIG-00")),
        ("One that is not there hides none", both.clone(), "", Some("MIG-99")),
        ("A number of different cards is CUDA's to assign", both, "", Some("1")),
        ("A card without slices", h100_with("01", ""), "", None),
        ("A card that the build cannot drive", rtx_4090(), "CPU cpu 64 64", None),
        ("Memory that the driver will not count", unified, "CUDA0@000f:01:00.0 igpu 120 40 NVIDIA GB10", None),
        ("Without llama.cpp", rtx_4090() + silent, "", None),
    ] {
        let machine = detected(Fake::new().detector().cuda_visible_devices(visible, false), &script, devices);
        text += &format!("{what}:\n{}", known(&machine));
    }
    insta::assert_snapshot!(text);
}

#[test]
fn a_hypothetical_machine_is_displayed_in_a_line() {
    let card = Gpu::new("RTX 4090").total(gib(24)).free(gib(22)).bandwidth(900_000_000_000);
    let machine = Machine::new(Host::new(gib(64)).bandwidth(60_000_000_000)).with_gpu(card);
    assert_eq!(machine.to_string(), "RTX 4090: 22.0 GiB free of 24.0 GiB\nhost: 64.0 GiB free of 64.0 GiB");
    let stated = [machine.gpus[0].bandwidth, machine.host.bandwidth].map(|stated| stated.unwrap().to_string());
    assert_eq!(stated, ["900 GB/s as stated", "60 GB/s as stated"]);
}

fn ggml_device() -> impl Strategy<Value = GgmlDevice> {
    let kind = prop::sample::select(&[GgmlKind::Gpu, GgmlKind::IntegratedGpu, GgmlKind::Cpu]);
    let backend = prop::sample::select(&["CUDA", "Vulkan", "RPC", "Sim"]);
    let id = prop::sample::select(&["", "0000:01:00.0", "0000:01:00.0-v1", "0000:02:00.0", "odd"]);
    let bytes = || prop_oneof![Just(0), 0..gib(200), any::<u64>()];
    (kind, backend, id, bytes(), bytes()).prop_map(|(kind, backend, id, total, free)| {
        let device = GgmlDevice::new("D", backend, kind).memory(total, free);
        if id.is_empty() { device } else { device.device_id(id) }
    })
}

#[test]
fn no_gpu_has_more_free_bytes_than_its_total_or_its_card() {
    let script = rtx_4090() + &card("GeForce RTX 3060", "02", [gib(12), gib(9), 0]);
    let nvml = ScriptedNvml::new(&script);
    let fake = Fake::new();
    let detector = fake.detector().cuda_visible_devices(None, false).nvml_library(nvml.library());
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

#[test]
fn a_gpu_is_found_by_its_device_then_by_its_name_then_by_its_number() {
    let gpu = |name: &str, device: Option<&str>| {
        let mut gpu = Gpu::new(name);
        (gpu.backend, gpu.device) = ("CUDA".to_owned(), device.map(str::to_owned));
        gpu
    };
    let machine = |gpus: [Gpu; 2]| gpus.into_iter().fold(Machine::new(Host::new(0)), Machine::with_gpu);
    // `CUDA0` is not usable, so its name matches no other card.
    let listed = machine([gpu("RTX 4090", Some("CUDA1")), gpu("RTX 3060", Some("CUDA2"))]);
    assert_eq!(listed.gpu_named("cuda1"), Ok(0));
    assert_eq!(listed.gpu_named("rtx 3060"), Ok(1));
    assert_eq!(listed.gpu_named("CUDA0"), Err("there are CUDA1, CUDA2".to_owned()));
    let described = machine([gpu("RTX 4090", None), gpu("CUDA0", None)]);
    assert_eq!((described.gpu_named("CUDA0"), described.gpu_named("CUDA1")), (Ok(1), Ok(1)));
}
