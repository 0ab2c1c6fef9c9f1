//! What autoplace learns from NVIDIA's driver, from every kind of answer that a driver gives. No card is needed: the
//! driver library is a scripted one (`support/nvml/nvml.c`), opened by path like a real one.

use std::path::Path;

use crate::scripted::ScriptedNvml;
use autoplace_planner::machine::nvidia::{self, Nvidia};
use autoplace_planner::machine::{GpuProcess, PciId, PcieLink, PcieRate, Reading, gib, mib};

const NOT_SUPPORTED: u32 = 3;
const NO_PERMISSION: u32 = 4;
const DRIVER_NOT_LOADED: u32 = 9;
const GPU_IS_LOST: u32 = 15;

/// A card's lines in a script: 24 GiB, 22 GiB free, 500 MiB kept by the driver, on bus 1.
fn rtx_4090() -> String {
    format!(
        "gpu NVIDIA GeForce RTX 4090\nuuid GPU-11111111-aaaa\npci 00000000:01:00.0\nmemory {} {} {}\n",
        gib(24),
        gib(22),
        mib(500)
    )
}

fn rtx_3060() -> String {
    format!(
        "gpu NVIDIA GeForce RTX 3060\nuuid GPU-22222222-bbbb\npci 00000000:C1:00.0\nmemory {} {} 0\n",
        gib(12),
        gib(10)
    )
}

fn detect(script: &str) -> Nvidia {
    nvidia::detect_at(&ScriptedNvml::new(script).library())
}

fn notes(nvidia: &Nvidia) -> Vec<String> {
    nvidia.notes.iter().map(ToString::to_string).collect()
}

#[test]
fn a_card_tells_its_name_address_identity_and_memory() {
    let found = detect(&rtx_4090());
    assert_eq!(found.gpus[0].driver.as_deref(), Some("550.54.14"));
    assert_eq!(notes(&found), [""; 0]);
    let [card] = &found.gpus[..] else {
        panic!("{found:?}")
    };
    assert_eq!(card.name, "NVIDIA GeForce RTX 4090");
    assert_eq!(card.uuid.as_deref(), Some("GPU-11111111-aaaa"));
    assert_eq!(card.pci_id, Some(PciId::new(0, 1, 0, 0)));
    assert_eq!(
        card.memory,
        Some(Reading::new(gib(24), gib(22)).reserved(mib(500)))
    );
}

#[test]
fn two_cards_come_in_the_drivers_order() {
    let found = detect(&(rtx_4090() + &rtx_3060()));
    let names: Vec<&str> = found.gpus.iter().map(|card| card.name.as_str()).collect();
    assert_eq!(
        names,
        ["NVIDIA GeForce RTX 4090", "NVIDIA GeForce RTX 3060"]
    );
    assert_eq!(found.gpus[1].pci_id, Some(PciId::new(0, 0xc1, 0, 0)));
}

#[test]
fn a_driver_without_cards_is_no_card_and_no_note() {
    let found = detect("");
    assert_eq!((found.gpus.len(), notes(&found)), (0, vec![]));
}

#[test]
fn a_driver_before_510_is_asked_the_first_memory_query() {
    let nvml = ScriptedNvml::without(&["-DNVML_NO_MEMORY_V2"], &(rtx_4090() + &rtx_3060()));
    let found = nvidia::detect_at(&nvml.library());
    assert_eq!(found.gpus[0].memory, Some(Reading::new(gib(24), gib(22))));
    assert_eq!(found.gpus[1].memory, Some(Reading::new(gib(12), gib(10))));
    assert_eq!(found.notes.len(), 2);
    let note = &notes(&found)[0];
    assert!(
        note.starts_with("NVIDIA GPU 0: answers only NVML's first memory query, the second says: "),
        "{note}"
    );
}

#[test]
fn a_card_that_refuses_the_second_memory_query_is_asked_the_first() {
    let found = detect(&format!(
        "{}v2_error {NOT_SUPPORTED}\n{}",
        rtx_4090(),
        rtx_3060()
    ));
    assert_eq!(found.gpus[0].memory, Some(Reading::new(gib(24), gib(22))));
    assert_eq!(
        found.gpus[1].memory,
        Some(Reading::new(gib(12), gib(10)).reserved(0))
    );
    assert_eq!(found.notes.len(), 1);
}

#[test]
fn memory_that_is_not_available_leaves_the_card_without_a_figure() {
    let found = detect(&format!(
        "gpu NVIDIA GB10\npci 0000000F:01:00.0\nv2_error {NOT_SUPPORTED}\nv1_error {NOT_SUPPORTED}\n"
    ));
    assert_eq!(found.gpus[0].memory, None);
    assert_eq!(found.gpus[0].pci_id, Some(PciId::new(0xf, 1, 0, 0)));
    let expected = "NVIDIA GPU 0: does not tell its memory: the requested operation is not available on the target device";
    assert_eq!(notes(&found), [expected]);
}

#[test]
fn a_lost_card_is_skipped_and_the_others_stay() {
    for lost in ["handle_error", "v2_error"] {
        let found = detect(&format!(
            "{}{lost} {GPU_IS_LOST}\n{}",
            rtx_4090(),
            rtx_3060()
        ));
        assert_eq!(found.gpus.len(), 1, "{lost}");
        assert!(found.gpus[0].name.ends_with("RTX 3060"), "{found:?}");
        assert!(
            notes(&found)[0].starts_with("NVIDIA GPU 0: is skipped"),
            "{found:?}"
        );
    }
}

#[test]
fn a_card_without_permission_is_skipped() {
    let found = detect(&format!("{}handle_error {NO_PERMISSION}\n", rtx_4090()));
    assert_eq!(found.gpus, []);
    let expected = "NVIDIA GPU 0: is skipped: the current user does not have permission to perform this operation";
    assert_eq!(notes(&found), [expected]);
}

#[test]
fn a_card_that_hides_its_name_and_address_is_still_a_card() {
    let found = detect(&format!(
        "{}name_error {NOT_SUPPORTED}\npci_error {NOT_SUPPORTED}\n",
        rtx_4090()
    ));
    let card = &found.gpus[0];
    assert_eq!((card.name.as_str(), card.pci_id), ("NVIDIA GPU 0", None));
    assert!(card.memory.is_some());
    assert_eq!(found.notes.len(), 2);
}

#[test]
fn an_address_that_is_none_is_left_out_with_a_note() {
    let found = detect(&rtx_4090().replace("00000000:01:00.0", "N/A"));
    assert_eq!(found.gpus[0].pci_id, None);
    assert_eq!(
        notes(&found),
        ["NVIDIA GPU 0: has an odd PCI address: `N/A` is not a PCI address such as 0000:01:00.0"]
    );
}

#[test]
fn an_address_in_any_form_is_the_same_address() {
    for form in ["00000000:01:00.0", "0000:01:00.0", "01:00.0"] {
        let found = detect(&rtx_4090().replace("00000000:01:00.0", form));
        assert_eq!(found.gpus[0].pci_id, Some(PciId::new(0, 1, 0, 0)), "{form}");
    }
}

#[test]
fn a_library_without_its_driver_is_said() {
    let found = detect(&format!("init {DRIVER_NOT_LOADED}\n{}", rtx_4090()));
    assert_eq!(found.gpus, []);
    assert_eq!(
        notes(&found),
        ["NVML: does not start: NVIDIA driver is not loaded"]
    );
}

#[test]
fn a_driver_that_does_not_count_its_cards_is_said() {
    let found = detect(&format!("count_error 999\n{}", rtx_4090()));
    assert_eq!(found.gpus, []);
    assert_eq!(
        notes(&found),
        ["NVML: does not say how many cards there are: an internal driver error occurred"]
    );
}

#[test]
fn no_library_where_one_was_named_is_said() {
    let found = nvidia::detect_at(Path::new("/nowhere/libnvidia-ml.so.1"));
    assert_eq!(found.gpus, []);
    assert!(
        notes(&found)[0].starts_with("NVML: does not start: "),
        "{found:?}"
    );
}

#[test]
fn no_library_in_the_usual_place_is_no_news() {
    let found = nvidia::detect();
    if found.gpus.is_empty() && found.notes.is_empty() {
        assert_eq!(found, Nvidia::default());
    }
}

#[test]
fn a_library_that_is_not_nvml_is_said_and_does_no_harm() {
    for missing in ["-DNVML_NO_INIT", "-DNVML_NO_SHUTDOWN"] {
        let nvml = ScriptedNvml::without(&[missing], &rtx_4090());
        let found = nvidia::detect_at(&nvml.library());
        assert_eq!(found.gpus, [], "{missing}");
        assert_eq!(found.notes.len(), 1, "{missing}");
    }
}

#[test]
fn every_start_of_the_library_is_ended_and_it_can_start_again() {
    let nvml = ScriptedNvml::without(&["-DNVML_NO_MEMORY_V2"], &rtx_4090());
    let first = nvidia::detect_at(&nvml.library());
    let second = nvidia::detect_at(&nvml.library());
    assert_eq!(first, second);
    assert_eq!(nvml.inits_and_shutdowns(), (2, 2));
}

fn rate(generation: u8, lanes: u8) -> PcieRate {
    PcieRate::new(generation, lanes).unwrap()
}

#[test]
fn memory_clock_and_bus_width_make_the_bandwidth() {
    let found = detect(&(rtx_4090() + "memory_clock 10501\nbus_width 384\n"));
    assert_eq!(found.gpus[0].bandwidth, Some(1_008_096_000_000));
    for missing in ["memory_clock 10501\n", "bus_width 384\n", ""] {
        let found = detect(&(rtx_4090() + missing));
        assert_eq!(
            (found.gpus[0].bandwidth, notes(&found)),
            (None, vec![]),
            "{missing}"
        );
    }
}

#[test]
fn the_link_is_what_it_can_do_and_what_it_does_now() {
    let found = detect(&(rtx_4090() + "pcie 4 16 1 8\n" + &rtx_3060() + "pcie 3 8 0 0\n"));
    let busy = PcieLink::new(rate(4, 16)).current(rate(1, 8));
    assert_eq!(found.gpus[0].pcie, Some(busy));
    assert_eq!(busy.bytes_per_second(), rate(4, 16).bytes_per_second());
    assert_eq!(found.gpus[1].pcie, Some(PcieLink::new(rate(3, 8))));
    let found = detect(&(rtx_4090() + &rtx_3060() + "pcie 99 16 1 16\n"));
    assert_eq!((found.gpus[0].pcie, found.gpus[1].pcie), (None, None));
}

#[test]
fn programs_on_a_card_are_told_by_name_and_bytes_the_largest_first() {
    let found = detect(&format!(
        "{}compute 41 {}\ncompute 42 {}\ngraphics 42 {}\ngraphics 43 {}\n\
         process 42 /usr/bin/ollama\nprocess 43 /usr/lib/xorg/Xorg\n",
        rtx_4090(),
        mib(500),
        gib(5),
        gib(5),
        mib(90),
    ));
    let expected = [
        GpuProcess::new(42).name("ollama").bytes(gib(5)),
        GpuProcess::new(41).bytes(mib(500)),
        GpuProcess::new(43).name("Xorg").bytes(mib(90)),
    ];
    assert_eq!(found.gpus[0].processes.as_deref(), Some(&expected[..]));
}

#[test]
fn a_driver_that_does_not_count_by_program_still_names_them() {
    let found = detect(&(rtx_4090() + "graphics 7 -1\nprocess 7 C:\\Windows\\explorer.exe\n"));
    let expected = [GpuProcess::new(7).name("explorer.exe")];
    assert_eq!(found.gpus[0].processes.as_deref(), Some(&expected[..]));
}

#[test]
fn nobody_on_a_card_is_told_apart_from_a_driver_that_does_not_tell() {
    assert_eq!(detect(&rtx_4090()).gpus[0].processes, Some(Vec::new()));
    let old = ScriptedNvml::without(&["-DNVML_NO_PROCESSES"], &rtx_4090());
    assert_eq!(nvidia::detect_at(&old.library()).gpus[0].processes, None);
}

#[test]
fn this_process_is_not_among_those_that_hold_memory() {
    let own = std::process::id();
    let found = detect(&format!("{}compute {own} 5\n", rtx_4090()));
    assert_eq!(found.gpus[0].processes, Some(Vec::new()));
}

#[test]
fn the_slices_of_a_card_in_mig_mode_are_told_wherever_they_are() {
    let script = format!(
        "gpu NVIDIA H100 80GB HBM3\npci 00000000:01:00.0\nmemory {} {} 0\nmig\n\
         slice 1 {} {} MIG-aaaa NVIDIA H100 80GB HBM3 MIG 1g.10gb\n\
         slice 6 {} {} MIG-bbbb NVIDIA H100 80GB HBM3 MIG 3g.40gb\n",
        gib(80),
        gib(80),
        gib(10),
        gib(9),
        gib(40),
        gib(40),
    );
    let found = detect(&script);
    let slices = found.gpus[0].mig.as_deref().unwrap();
    let told: Vec<_> = slices
        .iter()
        .map(|slice| {
            (
                slice.profile.as_deref().unwrap(),
                slice.uuid.as_deref().unwrap(),
            )
        })
        .collect();
    assert_eq!(told, [("1g.10gb", "MIG-aaaa"), ("3g.40gb", "MIG-bbbb")]);
    let memory = slices[0].memory.unwrap();
    assert_eq!((memory.total, memory.free), (gib(10), gib(9)));
    assert_eq!(notes(&found), [""; 0]);
    assert_eq!(detect(&rtx_4090()).gpus[0].mig, None);
    let undivided = detect(&(rtx_4090() + "mig\n"));
    assert_eq!(undivided.gpus[0].mig, Some(Vec::new()));
}

#[test]
fn only_memory_that_cannot_be_counted_is_taken_for_the_hosts() {
    let card = |code: u32| format!("{}v2_error {code}\nv1_error {code}\n", rtx_4090());
    assert!(detect(&card(NOT_SUPPORTED)).gpus[0].unified);
    assert!(!detect(&card(NO_PERMISSION)).gpus[0].unified);
    assert!(!detect(&rtx_4090()).gpus[0].unified);
}
