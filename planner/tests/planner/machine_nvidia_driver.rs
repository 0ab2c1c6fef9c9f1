//! NVIDIA's driver kept open: what a card's state is, asked again and again. The driver library is a scripted one.

use crate::scripted::{ScriptedNvml, rtx_4090};
use autoplace_planner::machine::nvidia::{CardState, Driver};
use autoplace_planner::machine::{GpuProcess, PciId, Reading, ThrottleReason, gib, mib};

const CARD: PciId = PciId::new(0, 1, 0, 0);

/// A card with these lines, and its driver.
fn driver(lines: &str) -> (ScriptedNvml, Driver) {
    let nvml = ScriptedNvml::new(&(rtx_4090() + lines));
    let driver = Driver::open(Some(&nvml.library())).unwrap();
    (nvml, driver)
}

fn state(lines: &str) -> CardState {
    driver(lines).1.state(CARD)
}

#[test]
fn a_card_tells_its_memory_its_temperature_and_that_its_clocks_are_free() {
    let state = state("temperature 64\nthrottle 0\n");
    let memory = Reading::new(gib(24), gib(22)).reserved(mib(500));
    assert_eq!(state.memory, Some(memory));
    assert_eq!(state.temperature, Some(64));
    assert_eq!(state.throttle, Some(Vec::new()));
}

#[test]
fn what_holds_its_clocks_down_has_a_name() {
    use ThrottleReason::{Hardware, Heat, Overheating, PowerBrake, PowerLimit};
    let cases: [(u64, &[ThrottleReason]); 8] = [
        (0x4, &[PowerLimit]),
        (0x8, &[Hardware]),
        (0x20, &[Heat]),
        (0x40, &[Overheating]),
        (0x80, &[PowerBrake]),
        // A slowdown by the hardware is told by its reason where there is one.
        (0x8 | 0x40, &[Overheating]),
        (0x8 | 0x80, &[PowerBrake]),
        // Idle, application clocks, display clocks; and a bit of a later driver.
        (0x1 | 0x2 | 0x100 | 0x8000, &[]),
    ];
    for (bits, expected) in cases {
        let state = state(&format!("throttle {bits}\n"));
        assert_eq!(state.throttle.unwrap(), expected, "{bits:#x}");
    }
}

#[test]
fn what_a_driver_does_not_tell_is_none() {
    let state = state("memory_error 3\n");
    assert_eq!(state, CardState::default());
}

#[test]
fn a_driver_is_asked_again_and_again_and_ended_once() {
    let (nvml, driver) = driver("");
    for _ in 0..3 {
        let memory = driver.state(CARD).memory;
        assert!(memory.is_some());
    }
    drop(driver);
    assert_eq!(nvml.inits_and_shutdowns(), (1, 1));
}

#[test]
fn a_card_that_is_not_there_tells_nothing() {
    let (_nvml, driver) = driver("temperature 64\n");
    let other = PciId::new(0, 2, 0, 0);
    assert_eq!(driver.state(other), CardState::default());
    assert_eq!(driver.processes(other), None);
}

#[test]
fn other_programs_are_told_and_whether_this_one_is_among_them() {
    let us = std::process::id();
    let others = format!("compute 7 {}\nprocess 7 /usr/bin/ollama\n", gib(5));
    let list = |lines: &str| driver(lines).1.processes(CARD).unwrap();
    let found = list(&format!("{others}compute {us} {}\n", gib(1)));
    let ollama = GpuProcess::new(7).name("ollama").bytes(gib(5));
    assert_eq!(found.others, [ollama]);
    assert!(found.knows_us);
    assert!(!list(&others).knows_us);
}

#[test]
fn the_programs_of_a_card_in_slices_are_not_those_of_one_slice() {
    assert_eq!(driver("mig\ncompute 7 1000\n").1.processes(CARD), None);
}

#[test]
fn no_library_and_one_that_is_none_are_no_driver() {
    let folder = tempfile::tempdir().unwrap();
    assert!(Driver::open(Some(&folder.path().join("missing.so"))).is_none());
    for missing in ["-DNVML_NO_INIT", "-DNVML_NO_SHUTDOWN"] {
        let nvml = ScriptedNvml::without(&[missing], &rtx_4090());
        assert!(Driver::open(Some(&nvml.library())).is_none(), "{missing}");
    }
    let nvml = ScriptedNvml::new("init 9\n");
    assert!(Driver::open(Some(&nvml.library())).is_none());
}
