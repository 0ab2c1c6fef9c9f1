//! The facts from NVIDIA's driver, with every kind of answer, in a single query and in repeated queries. The tests need
//! no card: the driver library is a script (`nvml/nvml.c`) that is opened by its path.

#[cfg(unix)]
use std::fs;
use std::path::Path;

use crate::nvml::{ScriptedNvml, card, rtx_4090};
use autoplace_planner::machine::nvidia::{self, CardState, Driver, NvidiaGpu};
use autoplace_planner::machine::{GpuKind, GpuProcess, Note, PciId, Reading, ThrottleReason, gib, mib};
use test_support::table::{parts, rows};

const CARD: PciId = PciId::new(0, 1, 0, 0);

fn texts(notes: &[Note]) -> Vec<String> {
    notes.iter().map(ToString::to_string).collect()
}

/// The known values of a card, in the notation of `machine_nvidia.txt`.
fn known(card: &NvidiaGpu) -> String {
    let gpu = &card.gpu;
    let name = gpu.description.trim_start_matches("NVIDIA GeForce ");
    let address = gpu.pci_id.map_or("-".to_owned(), |id| id.to_string());
    let memory = gpu.nvml.map_or("-".to_owned(), |memory| {
        let reserved = memory.reserved.map(|bytes| (bytes >> 20).to_string());
        format!("{}/{}/{}", memory.total >> 20, memory.free >> 20, reserved.as_deref().unwrap_or("-"))
    });
    let shared = (gpu.kind == GpuKind::Integrated).then_some("shared with the host".to_owned());
    let peak = gpu.bandwidth.map(|peak| format!("{} B/s, {peak}", peak.bytes_per_second));
    let mig = card.mig.then(|| {
        let slices = card.slices.iter().flatten().map(|slice| {
            let memory = slice.memory.map_or(0, |memory| memory.total >> 20);
            let text = |text: &Option<String>| text.clone().unwrap_or_default();
            format!(" {} {} {memory}", text(&slice.profile), text(&slice.uuid))
        });
        format!("in MIG mode:{}", slices.collect::<Vec<_>>().join(" and"))
    });
    let more = [shared, peak, gpu.pcie.map(|link| link.to_string()), mig];
    let processes = match &gpu.processes {
        Some(held) => held.iter().map(ToString::to_string).collect(),
        None => vec!["nobody knows who is on it".to_owned()],
    };
    let more = more.into_iter().flatten().chain(processes);
    more.fold(format!("{name} {address} {memory}"), |text, part| text + ", " + &part)
}

#[test]
fn every_answer_of_a_driver_becomes_a_card_or_a_note() {
    for [what, lacks, script, cards, said] in rows(include_str!("machine_nvidia.txt")) {
        let rtx_3060 = card("GeForce RTX 3060", "C1", [gib(12), gib(10), 0]);
        let script = script.replace(';', "\n") + "\n";
        let script = script.replace("$4090\n", &rtx_4090()).replace("$3060\n", &rtx_3060);
        let script = script.replace("$us", &std::process::id().to_string());
        let lacks = format!("-DNVML_NO_{lacks}");
        let (found, notes) = nvidia::detect(Some(&ScriptedNvml::without(&[&lacks], &script).library()));
        let listed = found.iter().map(known);
        assert_eq!(listed.collect::<Vec<_>>().join("; "), cards, "{what}");
        let begin: Vec<&str> = parts(said).collect();
        let notes = texts(&notes);
        let mut pairs = notes.iter().zip(&begin);
        let begins = pairs.all(|(note, begin)| note.starts_with(begin));
        assert!(begins && notes.len() == begin.len(), "{what}: {notes:?}");
    }
}

/// Writes a program that answers as `nvidia-smi` does into the library's folder.
#[cfg(unix)]
fn with_program(nvml: &ScriptedNvml, answer: &str) {
    use std::os::unix::fs::PermissionsExt;
    let program = nvml.library().with_file_name("nvidia-smi");
    let asked = "--query-gpu=pci.bus_id,memory.total,memory.free --format=csv,noheader,nounits";
    fs::write(&program, format!("#!/bin/sh\n[ \"$*\" = '{asked}' ] && cat <<'END'\n{answer}END\n")).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
}

#[cfg(unix)]
#[test]
fn for_a_driver_before_510_nvidia_smi_reports_the_free_bytes() {
    let rtx_3060 = card("GeForce RTX 3060", "C1", [gib(12), gib(10), 0]);
    let old = |answer: &str| {
        let nvml = ScriptedNvml::without(&["-DNVML_NO_MEMORY_V2"], &(rtx_4090() + &rtx_3060));
        with_program(&nvml, answer);
        let (cards, notes) = nvidia::detect(Some(&nvml.library()));
        (cards.iter().map(known).collect::<Vec<_>>(), texts(&notes))
    };
    let (cards, notes) = old("00000000:01:00.0, 24576, 22528\n00000000:C1:00.0, 12288, 10240\n");
    assert_eq!(cards, ["RTX 4090 0000:01:00.0 24576/22528/-", "RTX 3060 0000:c1:00.0 12288/10240/-"]);
    let both = "NVML: the memory of RTX 4090, RTX 3060 is as nvidia-smi reports it: the driver is older";
    assert!(notes.len() == 1 && notes[0].starts_with(both), "{notes:?}");
    let (cards, notes) = old("00000000:01:00.0, [N/A], [N/A]\n00000000:C1:00.0, 12288, 10240\n");
    assert_eq!(cards, ["RTX 4090 0000:01:00.0 -", "RTX 3060 0000:c1:00.0 12288/10240/-"]);
    assert_eq!(notes.len(), 2, "{notes:?}");
    // If a driver has the memory query, the program is not asked.
    let nvml = ScriptedNvml::new(&(rtx_4090() + "memory_error 4\n"));
    with_program(&nvml, "00000000:01:00.0, 24576, 22528\n");
    let (cards, _) = nvidia::detect(Some(&nvml.library()));
    assert_eq!(cards[0].gpu.nvml, None);
}

#[test]
fn every_start_of_the_library_is_ended_and_it_can_start_again() {
    let (nvml, driver) = driver("driver 550.54\u{1b}14\n");
    let first = nvidia::detect(Some(&nvml.library()));
    assert_eq!(first, nvidia::detect(Some(&nvml.library())));
    assert_eq!(first.0[0].gpu.driver.as_deref(), Some("550.54 14"));
    // An open driver is queried repeatedly.
    assert!((0..3).all(|_| driver.state(CARD).memory.is_some()));
    drop(driver);
    assert_eq!(nvml.inits_and_shutdowns(), (3, 3));
}

#[test]
fn a_missing_library_means_no_driver_and_a_wrong_named_one_is_reported() {
    let missing = Path::new("/nowhere/libnvidia-ml.so.1");
    let (found, notes) = nvidia::detect(Some(missing));
    assert_eq!(found, []);
    assert!(texts(&notes)[0].starts_with("NVML: does not start: "), "{notes:?}");
    assert!(Driver::open(Some(missing)).is_none());
    for (lacks, script) in [("INIT", rtx_4090()), ("SHUTDOWN", rtx_4090()), ("", "init 9\n".to_owned())] {
        let nvml = ScriptedNvml::without(&[&format!("-DNVML_NO_{lacks}")], &script);
        assert!(Driver::open(Some(&nvml.library())).is_none(), "{lacks}");
    }
}

/// A card with these lines in its script, and its driver.
fn driver(lines: &str) -> (ScriptedNvml, Driver) {
    let nvml = ScriptedNvml::new(&(rtx_4090() + lines));
    let driver = Driver::open(Some(&nvml.library())).unwrap();
    (nvml, driver)
}

#[test]
fn a_cards_state_is_its_drivers_report_and_an_absent_card_has_none() {
    let (_nvml, with) = driver("temperature 64\nthrottle 0\n");
    let state = with.state(CARD);
    assert_eq!(state.memory, Some(Reading::new(gib(24), gib(22)).reserved(mib(500))));
    assert_eq!((state.temperature, state.throttle), (Some(64), Some(Vec::new())));
    let other = PciId::new(0, 2, 0, 0);
    assert_eq!((with.state(other), with.processes(other)), (CardState::default(), None));
    assert_eq!(driver("memory_error 3\n").1.state(CARD), CardState::default());
}

#[test]
fn each_reason_for_low_clocks_has_a_name() {
    use ThrottleReason::{Hardware, Heat, Overheating, PowerBrake, PowerLimit};
    let cases: [(u64, &[ThrottleReason]); 8] = [
        (0x4, &[PowerLimit]),
        (0x8, &[Hardware]),
        (0x20, &[Heat]),
        (0x40, &[Overheating]),
        (0x80, &[PowerBrake]),
        // A hardware slowdown is reported by its particular reason, if the driver names one.
        (0x8 | 0x40, &[Overheating]),
        (0x8 | 0x80, &[PowerBrake]),
        // These bits mean an idle card, application clocks, display clocks, and a reason that only a later driver
        // knows.
        (0x1 | 0x2 | 0x100 | 0x8000, &[]),
    ];
    for (bits, expected) in cases {
        let (_nvml, driver) = driver(&format!("throttle {bits}\n"));
        assert_eq!(driver.state(CARD).throttle.unwrap(), expected, "{bits:#x}");
    }
}

#[test]
fn other_programs_and_this_one_are_listed_for_a_card_but_not_for_a_slice() {
    let us = format!("compute {} {}\n", std::process::id(), gib(1));
    for (lines, knows_us) in [(us.as_str(), true), ("", false)] {
        let others = format!("compute 7 {}\nprocess 7 /usr/bin/ollama\n", gib(5));
        let found = driver(&(others + lines)).1.processes(CARD).unwrap();
        assert_eq!(found.others, [GpuProcess::new(7).name("ollama").bytes(gib(5))]);
        assert_eq!(found.knows_us, knows_us);
    }
    assert_eq!(driver("mig\ncompute 7 1000\n").1.processes(CARD), None);
}
