//! What was learned of a GPU's driver: kept per device, driver, backend and build, and found again by them alone.

use std::fs;
use std::path::{Path, PathBuf};

use autoplace_planner::machine::{
    Date, Detector, GgmlDevice, GgmlKind, Gpu, GpuKind, HeadroomCache, LearnedHeadroom, MigSlice,
    PciId, gib, mib,
};
use proptest::prelude::{any, prop_assert, prop_assert_eq, proptest};

const BUILD: &str = "autoplace 0.1.0, llama.cpp 0.6.0";

fn learned(driver: u64, growth: u64) -> LearnedHeadroom {
    let day = Date::new(2026, 11, 21).unwrap();
    LearnedHeadroom::new(driver, growth, day).work(mib(28), mib(112))
}

fn card() -> Gpu {
    let mut gpu = Gpu::named("RTX 4090")
        .unwrap()
        .pci_id(PciId::new(0, 1, 0, 0));
    gpu.driver = Some("550.54.14".to_owned());
    gpu
}

/// The only file in a folder.
fn only(folder: &Path) -> PathBuf {
    let mut files = fs::read_dir(folder).unwrap();
    let file = files.next().unwrap().unwrap().path();
    assert!(files.next().is_none());
    file
}

#[test]
fn it_is_found_by_the_same_device_driver_backend_and_build_alone() {
    let folder = tempfile::tempdir().unwrap();
    let cache = HeadroomCache::at(folder.path().join("new"));
    cache.put(&card(), BUILD, learned(mib(20), mib(30)));
    assert_eq!(cache.get(&card(), BUILD), Some(learned(mib(20), mib(30))));
    // What else is used of it does not matter.
    assert!(
        cache
            .get(&card().free(gib(1)).device("CUDA3"), BUILD)
            .is_some()
    );

    let mut newer = card();
    newer.driver = Some("560.35.03".to_owned());
    let mut unknown = card();
    unknown.driver = None;
    let mut slice = card();
    slice.mig = Some(MigSlice::new("MIG 1g.5gb"));
    for other in [
        newer,
        unknown,
        slice,
        card().pci_id(PciId::new(0, 2, 0, 0)),
        card().backend("Vulkan"),
        Gpu::new("RTX 4090").total(gib(24)),
    ] {
        assert_eq!(cache.get(&other, BUILD), None, "{other:?}");
    }
    assert_eq!(cache.get(&card(), "autoplace 0.2.0"), None);
}

#[test]
fn the_file_has_its_version_the_day_and_who_it_is_of() {
    let folder = tempfile::tempdir().unwrap();
    HeadroomCache::at(folder.path()).put(&card(), BUILD, learned(20, 30));
    let text = fs::read_to_string(only(folder.path())).unwrap();
    let file: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(
        (&file["version"], &file["value"]["driver"]),
        (&2.into(), &20.into())
    );
    assert_eq!(file["value"]["date"], "2026-11-21");
    let of = "NVIDIA GeForce RTX 4090 at 0000:01:00.0, driver 550.54.14, CUDA";
    assert_eq!(file["key"], format!("{of}, {BUILD}"));
}

#[test]
fn the_most_that_was_seen_stays() {
    let folder = tempfile::tempdir().unwrap();
    let cache = HeadroomCache::at(folder.path());
    cache.put(&card(), BUILD, learned(20, 50));
    cache.put(&card(), BUILD, learned(40, 30));
    assert_eq!(cache.get(&card(), BUILD), Some(learned(40, 50)));
    only(folder.path());
}

#[test]
fn of_another_machines_gpu_nothing_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    let cache = HeadroomCache::at(folder.path());
    let remote = card().kind(GpuKind::Remote);
    cache.put(&remote, BUILD, learned(20, 30));
    assert_eq!(cache.get(&remote, BUILD), None);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn a_file_that_is_no_cache_is_ignored_and_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let cache = HeadroomCache::at(folder.path());
    cache.put(&card(), BUILD, learned(20, 30));
    let file = only(folder.path());
    let good = fs::read_to_string(&file).unwrap();
    for text in [
        String::new(),
        good.replace("version\": 2", "version\": 3"),
        good.lines().skip(1).collect(),
        good.replace(" 20,", " -20,"),
        good.replace("\"driver\": 20,", ""),
        good.replace("11-21", "13-21"),
        // More than the card has.
        good.replace(" 20,", &format!(" {},", gib(25))),
        good.replace(" 20,", &format!(" {},", u64::MAX)),
    ] {
        fs::write(&file, &text).unwrap();
        assert_eq!(cache.get(&card(), BUILD), None, "{text}");
        cache.put(&card(), BUILD, learned(1, 2));
        assert_eq!(cache.get(&card(), BUILD), Some(learned(1, 2)), "{text}");
    }
    fs::write(&file, [0xff, 0xfe, 0]).unwrap();
    assert_eq!(cache.get(&card(), BUILD), None);
}

#[test]
fn a_folder_that_cannot_be_written_is_no_error() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    let cache = HeadroomCache::at(file.join("below"));
    cache.put(&card(), BUILD, learned(20, 30));
    assert_eq!(cache.get(&card(), BUILD), None);
}

#[test]
fn threads_that_keep_something_at_once_lose_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let cache = HeadroomCache::at(folder.path());
    let cards: Vec<Gpu> = (0..16)
        .map(|bus| card().pci_id(PciId::new(0, bus, 0, 0)))
        .collect();
    std::thread::scope(|scope| {
        for card in &cards {
            scope.spawn(|| cache.put(card, BUILD, learned(20, 30)));
        }
    });
    for card in &cards {
        assert_eq!(cache.get(card, BUILD), Some(learned(20, 30)));
    }
}

#[test]
fn nothing_stays_beside_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let cache = HeadroomCache::at(folder.path());
    for round in 0..3 {
        cache.put(&card(), BUILD, learned(round, round));
    }
    only(folder.path());
}

/// A machine of one card, as ggml describes it.
fn detect(detector: &Detector, root: &Path) -> Gpu {
    let device = GgmlDevice::new("CUDA0", "CUDA", GgmlKind::Gpu)
        .description("NVIDIA GeForce RTX 4090")
        .device_id("0000:01:00.0")
        .memory(gib(24), gib(22));
    let detector = detector.clone().root(root).without_nvml();
    let mut machine = detector.detect_with(&[device]);
    machine.gpus.remove(0)
}

#[test]
fn detection_finds_it_for_the_build_that_will_use_the_gpu() {
    let folder = tempfile::tempdir().unwrap();
    let cache = HeadroomCache::at(folder.path());
    let root = tempfile::tempdir().unwrap();
    let found = |detector: Detector| detect(&detector, root.path()).learned;
    let detector = Detector::new().cache_folder(folder.path());
    let here = detect(&detector, root.path());
    assert_eq!(here.resident_threads, Some(128 * 1536));
    cache.put(&here, BUILD, learned(20, 30));

    assert_eq!(
        found(detector.clone().for_build(BUILD)),
        Some(learned(20, 30))
    );
    assert_eq!(found(detector.clone().for_build("another")), None);
    assert_eq!(found(detector.clone()), None);
    assert_eq!(found(Detector::new().for_build(BUILD)), None);
}

/// Two drivers on one card, as NVIDIA's own library tells of them.
#[cfg(target_os = "linux")]
#[test]
fn a_new_version_of_the_driver_is_measured_anew() {
    use crate::scripted::ScriptedNvml;

    let folder = tempfile::tempdir().unwrap();
    let root = tempfile::tempdir().unwrap();
    let card = |version: &str| {
        let memory = format!("memory {} {} 0", gib(24), gib(22));
        let script = format!(
            "driver {version}\ngpu NVIDIA GeForce RTX 4090\npci 00000000:01:00.0\n{memory}\n"
        );
        let nvml = ScriptedNvml::new(&script);
        let detector = Detector::new()
            .root(root.path())
            .cache_folder(folder.path())
            .for_build(BUILD)
            .nvml_library(nvml.library());
        detector.detect().gpus.remove(0)
    };
    let old = card("550.54.14");
    assert_eq!(old.driver.as_deref(), Some("550.54.14"));
    HeadroomCache::at(folder.path()).put(&old, BUILD, learned(20, 30));
    assert_eq!(card("550.54.14").learned, Some(learned(20, 30)));
    assert_eq!(card("560.35.03").learned, None);
}

proptest! {
    #[test]
    fn no_file_makes_it_panic_or_say_more_than_the_card_has(text in any::<Vec<u8>>(), tail in "[0-9 \n-]{0,60}") {
        let folder = tempfile::tempdir().unwrap();
        let cache = HeadroomCache::at(folder.path());
        cache.put(&card(), BUILD, learned(20, 30));
        let file = only(folder.path());
        let mut content = b"{\"version\": 2, \"key\": ".to_vec();
        content.extend(text);
        content.extend(tail.bytes());
        fs::write(file, content).unwrap();
        let found = cache.get(&card(), BUILD);
        prop_assert!(found.is_none_or(|learned| learned.total() <= card().total));
    }

    #[test]
    fn every_measurement_survives_the_file(driver in 0..gib(12), growth in 0..gib(12), name in "\\PC*") {
        let folder = tempfile::tempdir().unwrap();
        let cache = HeadroomCache::at(folder.path());
        let gpu = Gpu::new(name).total(gib(24));
        cache.put(&gpu, BUILD, learned(driver, growth));
        prop_assert_eq!(cache.get(&gpu, BUILD), Some(learned(driver, growth)));
    }
}
