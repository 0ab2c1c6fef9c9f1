//! What autoplace learns from NVIDIA's driver, from every kind of answer that a driver gives. No card is needed: the
//! driver library is a scripted one (`support/nvml/nvml.c`), opened by path like a real one.

use std::path::Path;

use crate::scripted::{ScriptedNvml, card, rtx_4090};
use crate::table::{parts, rows};
use autoplace_planner::machine::nvidia::{self, Nvidia};
use autoplace_planner::machine::{BandwidthSource, GpuKind, GpuProcess, PciId, PcieLink, PcieRate, Reading, gib, mib};

fn rtx_3060() -> String {
    card("GeForce RTX 3060", "C1", [gib(12), gib(10), 0])
}

fn detect(script: &str) -> Nvidia {
    nvidia::detect(Some(&ScriptedNvml::new(script).library()))
}

fn notes(nvidia: &Nvidia) -> Vec<String> {
    nvidia.notes.iter().map(ToString::to_string).collect()
}

#[test]
fn a_card_tells_its_name_address_and_memory() {
    let found = detect(&rtx_4090());
    assert_eq!(notes(&found), [""; 0]);
    let [card] = &found.gpus[..] else { panic!("{found:?}") };
    let gpu = &card.gpu;
    assert_eq!((gpu.description.as_str(), gpu.driver.as_deref()), ("NVIDIA GeForce RTX 4090", Some("550.54.14")));
    assert_eq!(gpu.pci_id, Some(PciId::new(0, 1, 0, 0)));
    assert_eq!(gpu.nvml, Some(Reading::new(gib(24), gib(22)).reserved(mib(500))));
    assert_eq!((gpu.total, gpu.free), (gib(24) - mib(500), gib(22)));
}

#[test]
fn every_answer_of_a_driver_is_a_card_or_a_note() {
    for [what, lacks, script, cards, said] in rows(include_str!("machine_nvidia.txt")) {
        let script = script.replace(';', "\n") + "\n";
        let script = script.replace("$4090\n", &rtx_4090());
        let script = script.replace("$3060\n", &rtx_3060());
        let lacks = format!("-DNVML_NO_{lacks}");
        let found = nvidia::detect(Some(&ScriptedNvml::without(&[&lacks], &script).library()));
        let told = found.gpus.iter().map(|card| {
            let name = card.gpu.description.trim_start_matches("NVIDIA GeForce ");
            let address = card.gpu.pci_id.map_or("-".to_owned(), |id| id.to_string());
            let memory = card.gpu.nvml.map_or("-".to_owned(), |memory| {
                let reserved = memory.reserved.map(|bytes| (bytes >> 20).to_string());
                let reserved = reserved.as_deref().unwrap_or("-");
                format!("{}/{}/{reserved}", memory.total >> 20, memory.free >> 20)
            });
            format!("{name} {address} {memory}")
        });
        assert_eq!(told.collect::<Vec<_>>().join("; "), cards, "{what}");
        let begin: Vec<&str> = parts(said).collect();
        let notes = notes(&found);
        let mut pairs = notes.iter().zip(&begin);
        let begins = pairs.all(|(note, begin)| note.starts_with(begin));
        assert!(begins && notes.len() == begin.len(), "{what}: {notes:?}");
    }
}

#[test]
fn no_library_where_one_was_named_is_said() {
    let found = nvidia::detect(Some(Path::new("/nowhere/libnvidia-ml.so.1")));
    assert_eq!(found.gpus, []);
    assert!(notes(&found)[0].starts_with("NVML: does not start: "), "{found:?}");
}

#[test]
fn every_start_of_the_library_is_ended_and_it_can_start_again() {
    let nvml = ScriptedNvml::new(&rtx_4090());
    let first = nvidia::detect(Some(&nvml.library()));
    let second = nvidia::detect(Some(&nvml.library()));
    assert_eq!(first, second);
    assert_eq!(nvml.inits_and_shutdowns(), (2, 2));
}

fn rate(generation: u8, lanes: u8) -> PcieRate {
    PcieRate::new(generation, lanes).unwrap()
}

#[test]
fn memory_clock_and_bus_width_make_the_bandwidth() {
    let found = detect(&(rtx_4090() + "memory_clock 10501\nbus_width 384\n"));
    let peak = found.gpus[0].gpu.bandwidth.unwrap();
    assert_eq!((peak.bytes_per_second, peak.source), (1_008_096_000_000, BandwidthSource::Nvml));
    for missing in ["memory_clock 10501\n", "bus_width 384\n", ""] {
        let found = detect(&(rtx_4090() + missing));
        assert_eq!((found.gpus[0].gpu.bandwidth, notes(&found)), (None, vec![]), "{missing}");
    }
}

#[test]
fn the_link_is_what_it_can_do_and_what_it_does_now() {
    let found = detect(&(rtx_4090() + "pcie 4 16 1 8\n" + &rtx_3060() + "pcie 3 8 0 0\n"));
    let busy = PcieLink::new(rate(4, 16)).current(rate(1, 8));
    assert_eq!(found.gpus[0].gpu.pcie, Some(busy));
    assert_eq!(busy.bytes_per_second(), rate(4, 16).bytes_per_second());
    assert_eq!(found.gpus[1].gpu.pcie, Some(PcieLink::new(rate(3, 8))));
    let found = detect(&(rtx_4090() + &rtx_3060() + "pcie 99 16 1 16\n"));
    assert_eq!((found.gpus[0].gpu.pcie, found.gpus[1].gpu.pcie), (None, None));
}

#[test]
fn other_programs_on_a_card_are_told_by_name_and_bytes_the_largest_first() {
    let (own, half, five) = (std::process::id(), mib(500), gib(5));
    let several = format!(
        "compute 41 {half}\ncompute 42 {five}\ngraphics 42 {five}\ngraphics 43 9\n\
         process 42 /usr/bin/ollama\nprocess 43 /usr/lib/xorg/Xorg\n"
    );
    let program = GpuProcess::new;
    for (lines, expected) in [
        (
            several,
            vec![program(42).name("ollama").bytes(five), program(41).bytes(half), program(43).name("Xorg").bytes(9)],
        ),
        // Not every driver counts by program.
        ("graphics 7 -1\nprocess 7 C:\\Windows\\explorer.exe\n".to_owned(), vec![program(7).name("explorer.exe")]),
        (format!("compute {own} 5\n"), vec![]),
        (String::new(), vec![]),
    ] {
        assert_eq!(detect(&(rtx_4090() + &lines)).gpus[0].gpu.processes.as_deref(), Some(&expected[..]));
    }
    // Nobody on it is not the same as a driver that does not tell.
    let old = ScriptedNvml::without(&["-DNVML_NO_PROCESSES"], &rtx_4090());
    assert_eq!(nvidia::detect(Some(&old.library())).gpus[0].gpu.processes, None);
}

#[test]
fn of_a_card_in_mig_mode_the_bandwidth_is_not_a_slices() {
    let clocked = rtx_4090() + "memory_clock 10501\nbus_width 384\n";
    let card = |script: &str| detect(script).gpus.remove(0);
    assert!(!card(&clocked).mig);
    let divided = card(&(clocked + "mig\n"));
    assert_eq!((divided.mig, divided.gpu.bandwidth), (true, None));
}

#[test]
fn only_memory_that_cannot_be_counted_is_taken_for_the_hosts() {
    let kind = |lines: &str| detect(&(rtx_4090() + lines)).gpus[0].gpu.kind;
    // Not supported, and no permission.
    assert_eq!(kind("memory_error 3\n"), GpuKind::Integrated);
    assert_eq!(kind("memory_error 4\n"), GpuKind::Discrete);
    assert_eq!(kind(""), GpuKind::Discrete);
}
