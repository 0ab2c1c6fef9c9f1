//! What autoplace learns from NVIDIA's driver, from every kind of answer that a driver gives. No card is needed: the driver library
//! is a scripted one (`support/nvml/nvml.c`), opened by path like a real one.
#![cfg(target_os = "linux")]

#[path = "support/nvml/mod.rs"]
mod scripted;

use std::path::Path;

use autoplace::machine::nvidia::{self, Nvidia};
use autoplace::machine::{PciId, Reading, gib, mib};
use scripted::ScriptedNvml;

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
    assert_eq!(found.driver.as_deref(), Some("550.54.14"));
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
        assert_eq!(found.gpus[0].index, 1);
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
    if found.driver.is_none() && found.notes.is_empty() {
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
    // Each detection starts it twice: once for everything, once more for the first memory query.
    assert_eq!(nvml.inits_and_shutdowns(), (4, 4));
}
