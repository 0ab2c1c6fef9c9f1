//! One machine from what ggml's backends and NVIDIA's driver say: which card is which, whose figure holds, and
//! what is not used.

use crate::folder::Fake;
use crate::scripted::{ScriptedNvml, card, rtx_4090};
use crate::table::{parts, rows};
use autoplace_planner::machine::{
    Bytes, Detector, GgmlDevice, GgmlKind, Gpu, GpuKind, Host, Machine, UnusedReason, gib, mib,
};
use proptest::prelude::{Just, Strategy, any, prop, prop_assert, prop_assert_eq, proptest};

/// A detector for a host of 64 GiB, 48 GiB available, whatever the environment says about CUDA.
fn detector() -> (Fake, Detector) {
    let fake = Fake::new();
    let detector = fake.detector().cuda_visible_devices(None);
    (fake, detector)
}

fn cuda0(total: u64, free: u64) -> GgmlDevice {
    GgmlDevice::new("CUDA0", "CUDA", GgmlKind::Gpu)
        .description("NVIDIA GeForce RTX 4090")
        .device_id("0000:01:00.0")
        .memory(total, free)
}

fn cpu() -> GgmlDevice {
    GgmlDevice::new("CPU", "CPU", GgmlKind::Cpu).memory(gib(64), gib(64))
}

fn reasons(machine: &Machine) -> Vec<&UnusedReason> {
    machine.unused_gpus.iter().map(|unused| &unused.reason).collect()
}

/// `Vulkan0@0000:01:00.0 gpu 24 23 RTX 4090`.
fn device(text: &str) -> GgmlDevice {
    let words: Vec<&str> = text.splitn(5, ' ').collect();
    let (name, id) = words[0].split_once('@').unwrap_or((words[0], ""));
    let kind = match words[1] {
        "gpu" => GgmlKind::Gpu,
        "igpu" => GgmlKind::IntegratedGpu,
        "cpu" => GgmlKind::Cpu,
        "accelerator" => GgmlKind::Accelerator,
        "meta" => GgmlKind::Meta,
        other => panic!("{other}"),
    };
    // What is overdrawn is below 0.
    let size = |text: &str| (text.parse::<i64>().unwrap() << 30) as u64;
    let backend = name.trim_end_matches(char::is_numeric);
    let device = GgmlDevice::new(name, backend, kind).memory(size(words[2]), size(words[3]));
    let description = words.get(4).unwrap_or(&"").replace("RTX", "NVIDIA GeForce RTX");
    match id {
        "" => device.description(description),
        id => device.description(description).device_id(id),
    }
}

/// `RTX 4090@01 24 22`.
fn card_of(text: &str) -> String {
    let (name, rest) = text.split_once('@').expect(text);
    let words: Vec<&str> = rest.split(' ').collect();
    let size = |word: usize| gib(words[word].parse().unwrap());
    card(&format!("GeForce {name}"), words[0], [size(1), size(2), mib(500)])
}

#[test]
fn each_gpu_is_found_once_with_the_figure_that_holds() {
    for row in rows(include_str!("machine_detect.txt")) {
        let [what, cards, devices, settings, gpus, unused, notes] = row;
        let (_root, mut detector) = detector();
        for setting in settings.split(' ') {
            detector = match setting.split_once('=') {
                Some(("backends", names)) => detector.backends(names.split(',')),
                Some(("visible", ids)) => detector.cuda_visible_devices(Some(ids)),
                _ => detector,
            };
        }
        let nvml = match cards {
            "-" => None,
            _ => Some(ScriptedNvml::new(&parts(cards).map(card_of).collect::<String>())),
        };
        if let Some(nvml) = &nvml {
            detector = detector.nvml_library(nvml.library());
        }
        let devices: Vec<GgmlDevice> = parts(devices).map(device).collect();
        let machine = match devices.is_empty() {
            true => detector.detect(),
            false => detector.detect_with(&devices),
        };
        let size = |bytes| bytes as f64 / gib(1) as f64;
        let found = machine.gpus.iter().map(|gpu| {
            let (free, total) = (size(gpu.free), size(gpu.total));
            assert_eq!(gpu.shares_host_memory(), gpu.kind == GpuKind::Integrated);
            format!("{} {free}/{total} {:?}", gpu.device.as_deref().unwrap(), gpu.kind)
        });
        assert_eq!(found.collect::<Vec<_>>().join("; "), gpus, "{what}");
        let reasons = reasons(&machine).into_iter();
        let reasons: Vec<String> = reasons.map(|reason| format!("{reason:?}")).collect();
        assert_eq!(reasons.join("; "), unused, "{what}");
        let said: Vec<String> = machine.notes.iter().map(ToString::to_string).collect();
        assert_eq!(said.join("; "), notes, "{what}");
    }
}

/// An H100 in MIG mode.
fn divided() -> String {
    let card = card("H100 80GB HBM3", "01", [gib(80), gib(70), 0]);
    format!("{card}memory_clock 2619\nbus_width 5120\nmig\n")
}

/// Everything that is known of the GPUs that are found, of those that are not used, and why.
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

#[test]
fn of_cards_everything_is_known_that_the_driver_or_a_data_sheet_says() {
    let both = rtx_4090() + &divided().replace(":01:", ":02:");
    let clocked = rtx_4090() + "memory_clock 11001\nbus_width 384\npcie 4 16 1 16\ncompute 9 5\n";
    let silent = "gpu NVIDIA GB10\npci 0000000F:01:00.0\nmemory_error 3\n";
    let unified = format!("{silent}memory_clock 9\nbus_width 9\npcie 5 4 5 4\n");
    let gb10 = GgmlDevice::new("CUDA0", "CUDA", GgmlKind::IntegratedGpu)
        .description("NVIDIA GB10")
        .device_id("000f:01:00.0")
        .memory(gib(120), gib(40));
    let unknown = GgmlDevice::new("Vulkan0", "Vulkan", GgmlKind::Gpu).memory(gib(8), gib(8));
    let of_40 = || vec![cuda0(gib(40) - mib(400), gib(39))];
    let seen = || vec![cuda0(gib(23), gib(21)), cpu()];
    let none = Vec::new;
    let mut text = String::new();
    for (what, script, devices, visible) in [
        ("A card that both see", rtx_4090(), seen(), None),
        ("With its clock, its link and its programs", clocked, seen(), None),
        ("Without NVIDIA's driver", String::new(), seen(), None),
        ("One that nobody knows", String::new(), vec![unknown], None),
        ("A slice of a card", divided(), of_40(), None),
        ("Without llama.cpp nobody tells the slices, nor what is hidden", both, none(), Some("1")),
        ("A card that the build cannot drive", rtx_4090(), vec![cpu()], None),
        ("Memory that the driver will not count", unified, vec![gb10], None),
        ("Without llama.cpp", rtx_4090() + silent, none(), None),
    ] {
        let (_root, detector) = detector();
        let nvml = ScriptedNvml::new(&script);
        let detector = if script.is_empty() { detector } else { detector.nvml_library(nvml.library()) };
        let detector = detector.cuda_visible_devices(visible);
        let machine = match devices.is_empty() {
            true => detector.detect(),
            false => detector.detect_with(&devices),
        };
        text += &format!("{what}:\n{}", known(&machine));
    }
    insta::assert_snapshot!(text);
}

#[test]
fn a_card_of_which_cuda_lists_no_slice_is_told() {
    let nvml = ScriptedNvml::new(&divided());
    let (_root, detector) = detector();
    let machine = detector.backends(["CUDA"]).nvml_library(nvml.library()).detect_with(&[cpu()]);
    assert_eq!(reasons(&machine), [&UnusedReason::Mig]);
}

#[test]
fn a_hypothetical_machine_is_written_down_in_a_line() {
    let machine = Machine::new(Host::new(gib(64))).with_gpu(Gpu::new("RTX 4090").total(gib(24)).free(gib(22)));
    assert_eq!(machine.to_string(), "RTX 4090: 22.0 GiB free of 24.0 GiB\nhost: 64.0 GiB free of 64.0 GiB");
    assert_eq!(Bytes(machine.gpus[0].free).to_string(), "22.0 GiB");
    let stated = Gpu::new("card").bandwidth(900_000_000_000).bandwidth;
    assert_eq!(stated.unwrap().to_string(), "900 GB/s as stated");
    let stated = Host::new(gib(64)).bandwidth(60_000_000_000).bandwidth;
    assert_eq!(stated.unwrap().to_string(), "60 GB/s as stated");
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
    let bytes = || prop::strategy::Union::new([Just(0).boxed(), (0..gib(200)).boxed(), any::<u64>().boxed()]);
    (kind, backend, id, bytes(), bytes()).prop_map(|(kind, backend, id, total, free)| {
        let device = GgmlDevice::new("D", backend, kind).memory(total, free);
        id.map_or(device.clone(), |id| device.device_id(id))
    })
}

#[test]
fn no_gpu_has_more_free_than_it_has_or_than_its_card() {
    let script = rtx_4090() + &card("GeForce RTX 3060", "02", [gib(12), gib(9), 0]);
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
