//! How fast the host's memory is read: measured when asked, once, and kept per machine.

use std::fs;
use std::path::{Path, PathBuf};

use crate::folder::Fake;
use autoplace_planner::gguf::TensorType;
use autoplace_planner::machine::{
    Bandwidth, BandwidthCache, Date, Gpu, GpuKind, Host, Machine, MeasuredRates, RatesCache,
    WeightRate, gib,
};
use proptest::prelude::{ProptestConfig, any, prop, prop_assert_eq, proptest};

fn measured(bytes_per_second: u64) -> Bandwidth {
    Bandwidth::measured(bytes_per_second, Date::new(2026, 11, 21).unwrap())
}

/// The only file in a folder.
fn only(folder: &Path) -> PathBuf {
    let mut files = fs::read_dir(folder).unwrap();
    let file = files.next().unwrap().unwrap().path();
    assert!(files.next().is_none());
    file
}

#[test]
fn a_measurement_is_found_again_by_the_machine_it_was_made_on_alone() {
    let folder = tempfile::tempdir().unwrap();
    let cache = BandwidthCache::at(folder.path().join("new"));
    let (one, other) = (
        Host::new(gib(64)).physical_cores(8),
        Host::new(gib(64)).physical_cores(16),
    );
    assert_eq!(cache.get(&one), None);
    cache.put(&one, measured(60_000_000_000));
    cache.put(&other, measured(90_000_000_000));
    assert_eq!(cache.get(&one), Some(measured(60_000_000_000)));
    assert_eq!(cache.get(&other), Some(measured(90_000_000_000)));
    assert_eq!(cache.get(&Host::new(gib(64))), None);
    // A kernel that keeps some more of the memory makes no other machine.
    let booted = Host::new(gib(64) - (100 << 20)).physical_cores(8);
    assert_eq!(cache.get(&booted), Some(measured(60_000_000_000)));
    cache.put(&booted, measured(61_000_000_000));
    assert_eq!(cache.get(&one), Some(measured(61_000_000_000)));
    assert_eq!(fs::read_dir(folder.path().join("new")).unwrap().count(), 2);
}

#[test]
fn the_file_has_its_version_the_machine_and_the_day() {
    let folder = tempfile::tempdir().unwrap();
    let host = Host::new(gib(64)).physical_cores(8);
    BandwidthCache::at(folder.path()).put(&host, measured(60_000_000_000));
    let text = fs::read_to_string(only(folder.path())).unwrap();
    let file: serde_json::Value = serde_json::from_str(&text).unwrap();
    let bandwidth = serde_json::json!({
        "bytes_per_second": 60_000_000_000_u64, "source": "measured", "date": "2026-11-21"
    });
    let key = "unknown processor, ? of 8 cores, 64 GiB";
    assert_eq!(
        file,
        serde_json::json!({"version": 2, "key": key, "value": bandwidth})
    );
}

#[test]
fn a_file_that_is_no_cache_is_ignored_and_replaced() {
    let host = Host::new(gib(64));
    let folder = tempfile::tempdir().unwrap();
    let cache = BandwidthCache::at(folder.path());
    cache.put(&host, measured(60_000_000_000));
    let file = only(folder.path());
    let good = fs::read_to_string(&file).unwrap();
    for text in [
        String::new(),
        good.replace("version\": 2", "version\": 3"),
        good.replace("64 GiB", "65 GiB"),
        good.replace("60000000000", "-5"),
        good.replace("60000000000", "0"),
        good.replace("11-21", "13-21"),
        good.replace("measured", "stated"),
        good[..good.len() / 2].to_owned(),
    ] {
        fs::write(&file, &text).unwrap();
        assert_eq!(cache.get(&host), None, "{text}");
        cache.put(&host, measured(7));
        assert_eq!(cache.get(&host), Some(measured(7)), "{text}");
    }
}

#[test]
fn a_folder_that_cannot_be_written_is_no_error() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    let cache = BandwidthCache::at(file.join("below"));
    cache.put(&Host::new(gib(1)), measured(7));
    assert_eq!(cache.get(&Host::new(gib(1))), None);
}

#[test]
fn what_was_not_measured_is_not_kept() {
    let folder = tempfile::tempdir().unwrap();
    let cache = BandwidthCache::at(folder.path());
    let host = Host::new(gib(64)).bandwidth(5);
    cache.put(&host, host.bandwidth.unwrap());
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn detection_finds_what_was_measured_here() {
    let folder = tempfile::tempdir().unwrap();
    let fake = Fake::new().processors(&[(0, 0, 0)]);
    let detector = fake.detector().cache_folder(folder.path());
    let host = detector.detect().host;
    assert_eq!(host.bandwidth, None);
    let found = host.measure_bandwidth().unwrap();
    assert!(found.is_measured() && found.bytes_per_second > 0);
    assert_eq!(found.date, Some(Date::today()));
    BandwidthCache::at(folder.path()).put(&host, found);
    assert_eq!(detector.detect().host.bandwidth, Some(found));
    assert_eq!(fake.detector().detect().host.bandwidth, None);
}

#[test]
fn a_machine_without_memory_to_spare_is_not_measured() {
    assert_eq!(Host::new(64 << 20).measure_bandwidth(), None);
    assert_eq!(Host::new(0).measure_bandwidth(), None);
}

proptest! {
    // Each case writes files.
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn no_text_in_the_cache_makes_reading_it_panic(text in "[0-9a-z \n-]{0,80}", bytes in prop::collection::vec(any::<u8>(), 0..80)) {
        let folder = tempfile::tempdir().unwrap();
        let host = Host::new(gib(64));
        let cache = BandwidthCache::at(folder.path());
        cache.put(&host, measured(7));
        let file = only(folder.path());
        let begun = [b"{\"version\": 2, \"key\": ", text.as_bytes(), &bytes].concat();
        for content in [begun.as_slice(), &bytes] {
            fs::write(&file, content).unwrap();
            prop_assert_eq!(cache.get(&host), None);
        }
    }

    #[test]
    fn every_measurement_is_found_again(rates in prop::collection::vec(1u64.., 1..80)) {
        let folder = tempfile::tempdir().unwrap();
        let cache = BandwidthCache::at(folder.path());
        for (cores, rate) in (1..).zip(&rates) {
            let host = Host::new(gib(64)).physical_cores(cores);
            cache.put(&host, measured(*rate));
            prop_assert_eq!(cache.get(&host), Some(measured(*rate)));
        }
    }
}

#[test]
fn a_hypothetical_machine_has_the_bandwidths_that_are_stated() {
    let card = Gpu::named("RTX 4090").unwrap().bandwidth(900_000_000_000);
    let machine = Machine::new(Host::new(gib(64)).bandwidth(60_000_000_000)).with_gpu(card);
    assert_eq!(
        machine.gpus[0].bandwidth.unwrap().to_string(),
        "900 GB/s as stated"
    );
    assert_eq!(
        machine.host.bandwidth.unwrap().to_string(),
        "60 GB/s as stated"
    );
}

fn rates(threads: Option<u32>, weights: &[(TensorType, u64)]) -> MeasuredRates {
    let mut rates = MeasuredRates::new(Date::new(2026, 11, 22).unwrap());
    rates.threads = threads;
    rates.weights = weights
        .iter()
        .map(|&(tensor_type, bytes_per_second)| WeightRate {
            tensor_type,
            experts: false,
            bytes_per_second,
        })
        .collect();
    rates
}

#[test]
fn measured_rates_are_found_again_by_device_build_and_threads_and_later_ones_are_added() {
    let folder = tempfile::tempdir().unwrap();
    let cache = RatesCache::at(folder.path().join("new"));
    let host = Host::new(gib(64)).physical_cores(8);
    assert_eq!(cache.host(&host, "build", |_| true), None);
    let q4 = rates(Some(8), &[(TensorType::Q4_K, 10)]);
    cache.put_host(&host, "build", q4.clone());
    cache.put_host(&host, "build", rates(Some(8), &[(TensorType::Q6_K, 11)]));
    let one = rates(Some(1), &[(TensorType::Q4_K, 4)]);
    cache.put_host(&host, "build", one.clone());
    let both = [(TensorType::Q4_K, 10), (TensorType::Q6_K, 11)];
    let both = rates(Some(8), &both);
    assert_eq!(
        cache.host(&host, "build", |rates| rates.threads == Some(8)),
        Some(both)
    );
    assert_eq!(
        cache.host(&host, "build", |_| true),
        Some(one),
        "the latest"
    );
    assert_eq!(
        cache.host(&host, "build", |rates| rates.threads == Some(4)),
        None
    );
    assert_eq!(
        cache.host(&host, "another build", |rates| rates.threads == Some(8)),
        None
    );
    assert_eq!(
        cache.host(&Host::new(gib(64)), "build", |rates| rates.threads
            == Some(8)),
        None
    );

    let gpu = Gpu::new("RTX 4090").total(gib(24));
    let card = rates(None, &[(TensorType::Q4_K, 900)]);
    let mut machine = Machine::new(host).with_gpu(gpu.clone());
    machine.gpus[0].rates = Some(card.clone());
    cache.put(&machine, "build");
    assert_eq!(cache.gpu(&gpu, "build"), Some(card.clone()));
    assert_eq!(cache.gpu(&gpu, "another build"), None);
    let remote = gpu.kind(GpuKind::Remote);
    cache.put_gpu(&remote, "build", card);
    assert_eq!(cache.gpu(&remote, "build"), None, "its driver is not known");
}

#[test]
fn a_file_of_rates_that_is_none_is_ignored_and_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let cache = RatesCache::at(folder.path());
    let host = Host::new(gib(64));
    let q4 = rates(Some(8), &[(TensorType::Q4_K, 10)]);
    cache.put_host(&host, "build", q4.clone());
    let file = only(folder.path());
    for text in ["", "{}", "[1", "{\"version\":2,\"key\":\"x\",\"value\":[]}"] {
        fs::write(&file, text).unwrap();
        assert_eq!(cache.host(&host, "build", |_| true), None, "{text}");
        cache.put_host(&host, "build", q4.clone());
        assert_eq!(cache.host(&host, "build", |_| true), Some(q4.clone()));
    }
    // A folder that cannot be written keeps nothing.
    RatesCache::at(file.join("below")).put_host(&host, "build", q4);
}
