//! A machine's measurements in files. The rates of devices and the headroom of GPUs are found again only on the same
//! machine, with the same driver and build.

use std::fs;
use std::path::{Path, PathBuf};

use crate::folder::{Fake, device};
use autoplace_planner::gguf::TensorType;
use autoplace_planner::machine::{
    Detector, ExpertUse, Gpu, GpuKind, Host, LearnedHeadroom, Machine, MeasuredRates, MeasurementCache, MoveFigure,
    MoveRates, PciId, RateConditions, WeightRate, gib, mib,
};
use proptest::prelude::{any, prop_assert, proptest};
use tempfile::TempDir;

const BUILD: &str = "autoplace 0.1.0, llama.cpp 0.6.0";

fn learned(driver: u64, growth: u64) -> LearnedHeadroom {
    LearnedHeadroom::new(driver, growth).work(mib(28), mib(112))
}

fn rates(threads: Option<u32>, weights: &[(TensorType, u64)]) -> MeasuredRates {
    let mut rates = MeasuredRates::default();
    rates.threads = threads;
    let weight = |&(tensor_type, bytes_per_second)| WeightRate::new(tensor_type, false, bytes_per_second);
    rates.weights = weights.iter().map(weight).collect();
    rates
}

fn card() -> Gpu {
    let mut gpu = Gpu::named("RTX 4090").unwrap().pci_id(PciId::new(0, 1, 0, 0));
    gpu.driver = Some("550.54.14".to_owned());
    gpu
}

/// An empty cache, and its folder, which does not exist yet.
fn empty() -> (TempDir, PathBuf, MeasurementCache) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("new");
    (folder, path.clone(), MeasurementCache::at(path))
}

/// Puts a host's rates into the cache.
fn put_rates(cache: &MeasurementCache, host: &Host, rates: MeasuredRates) {
    let mut machine = Machine::new(host.clone());
    machine.host.rates = Some(rates);
    cache.put_rates(&machine, BUILD);
}

/// The only file in a folder.
fn only(folder: &Path) -> PathBuf {
    let mut files = fs::read_dir(folder).unwrap();
    let file = files.next().unwrap().unwrap().path();
    assert!(files.next().is_none());
    file
}

#[test]
fn the_largest_headroom_is_found_only_by_the_same_device_driver_backend_and_build() {
    let (_folder, path, cache) = empty();
    cache.put_headroom(&card(), BUILD, learned(mib(20), mib(30)));
    assert_eq!(cache.headroom(&card(), BUILD), Some(learned(mib(20), mib(30))));
    // The card's free memory and the name of its device do not matter.
    let crowded = card().free(gib(1)).device("CUDA3");
    assert!(cache.headroom(&crowded, BUILD).is_some());
    let (mut newer, mut unknown, mut slice) = (card(), card(), card());
    newer.driver = Some("560.35.03".to_owned());
    unknown.driver = None;
    slice.description += " MIG 1g.5gb";
    let elsewhere = card().pci_id(PciId::new(0, 2, 0, 0));
    for other in [newer, unknown, slice, elsewhere, card().backend("Vulkan"), Gpu::new("RTX 4090").total(gib(24))] {
        assert_eq!(cache.headroom(&other, BUILD), None, "{other:?}");
    }
    assert_eq!(cache.headroom(&card(), "autoplace 0.2.0"), None);
    // The largest measured bytes are kept, and the folder has no other file.
    cache.put_headroom(&card(), BUILD, learned(mib(40), mib(10)));
    assert_eq!(cache.headroom(&card(), BUILD), Some(learned(mib(40), mib(30))));
    // The larger of two workloads is also kept. If neither workload is larger in both parts, the later workload is
    // kept.
    for (work, stays) in [((mib(10), mib(10)), (mib(28), mib(112))), ((mib(30), mib(5)), (mib(30), mib(5)))] {
        cache.put_headroom(&card(), BUILD, LearnedHeadroom::new(0, 0).work(work.0, work.1));
        let most = LearnedHeadroom::new(mib(40), mib(30)).work(stays.0, stays.1);
        assert_eq!(cache.headroom(&card(), BUILD), Some(most));
    }
    only(&path);
}

#[test]
fn rates_are_found_again_by_device_and_build_and_later_ones_are_added() {
    let (_folder, _, cache) = empty();
    let host = Host::new(gib(64)).physical_cores(8);
    assert_eq!(cache.host_rates(&host, BUILD), None);
    put_rates(&cache, &host, rates(Some(8), &[(TensorType::Q4_K, 10)]));
    // Of two rates for the same type, the later rate is kept.
    let both = [(TensorType::Q4_K, 12), (TensorType::Q6_K, 11)];
    put_rates(&cache, &host, rates(Some(8), &both));
    assert_eq!(cache.host_rates(&host, BUILD), Some(rates(Some(8), &both)));
    // Rates that were measured with another number of threads replace the earlier rates.
    let one = rates(Some(1), &[(TensorType::Q4_K, 4)]);
    put_rates(&cache, &host, one.clone());
    // The machine counts as the same if a newer kernel reserves more of the memory.
    let booted = Host::new(gib(64) - mib(100)).physical_cores(8);
    assert_eq!([&host, &booted].map(|host| cache.host_rates(host, BUILD)), [Some(one.clone()), Some(one)]);
    assert_eq!(cache.host_rates(&host, "another build"), None);
    assert_eq!(cache.host_rates(&Host::new(gib(64)), BUILD), None);

    let gpu = Gpu::new("RTX 4090").total(gib(24));
    let mut machine = Machine::new(host).with_gpu(gpu.clone());
    machine.gpus[0].rates = Some(rates(None, &[(TensorType::Q4_K, 900)]));
    cache.put_rates(&machine, BUILD);
    assert_eq!(cache.gpu_rates(&gpu, BUILD), machine.gpus[0].rates);
    assert_eq!(cache.gpu_rates(&gpu, "another build"), None);
}

#[test]
fn measurements_of_another_machine_are_not_kept() {
    let (_folder, path, cache) = empty();
    // The driver of a remote GPU is unknown.
    let mut remote = card().kind(GpuKind::Remote);
    remote.rates = Some(rates(None, &[(TensorType::Q4_K, 900)]));
    cache.put_headroom(&remote, BUILD, learned(20, 30));
    cache.put_rates(&Machine::new(Host::new(gib(64))).with_gpu(remote.clone()), BUILD);
    assert_eq!(cache.headroom(&remote, BUILD), None);
    assert_eq!(cache.gpu_rates(&remote, BUILD), None);
    assert!(!path.exists());
}

#[test]
fn a_cache_file_states_its_version_and_its_device() {
    let (_folder, path, cache) = empty();
    cache.put_headroom(&card(), BUILD, learned(20, 30));
    let file: serde_json::Value = serde_json::from_slice(&fs::read(only(&path)).unwrap()).unwrap();
    let of = "NVIDIA GeForce RTX 4090 at 0000:01:00.0, driver 550.54.14, CUDA";
    assert_eq!(file["key"], format!("{of}, {BUILD}"));
    assert_eq!(file["version"], 3);
    assert_eq!((&file["value"]["driver"], &file["value"]["growth"]), (&20.into(), &30.into()));
}

/// Damages a file that a cache wrote, in each of several ways. Checks that the cache reads nothing from the file and
/// writes it again.
fn replaced(put: impl Fn(&MeasurementCache), is_there: impl Fn(&MeasurementCache) -> bool, wrong: &[(&str, &str)]) {
    let folder = tempfile::tempdir().unwrap();
    let cache = MeasurementCache::at(folder.path());
    put(&cache);
    let file = only(folder.path());
    let good = fs::read_to_string(&file).unwrap();
    let changed = wrong.iter().chain(&[("version\": 3", "version\": 4"), ("{\n", "")]).map(|(from, to)| {
        assert!(good.contains(from), "no {from:?} in {good}");
        good.replacen(from, to, 1).into_bytes()
    });
    let of_another = b"{\"version\":3,\"key\":\"x\",\"value\":[]}";
    let half = &good.as_bytes()[..good.len() / 2];
    let broken = [half, b"", b"{}", of_another, &[0xff, 0xfe, 0]].map(<[u8]>::to_vec);
    for content in changed.chain(broken) {
        fs::write(&file, &content).unwrap();
        let text = String::from_utf8_lossy(&content);
        assert!(!is_there(&cache), "{text}");
        put(&cache);
        assert!(is_there(&cache), "{text}");
    }
}

#[test]
fn a_file_that_is_not_a_cache_is_ignored_and_replaced() {
    let host = Host::new(gib(64));
    let kept = || rates(Some(8), &[(TensorType::Q4_K, 10)]);
    replaced(
        |cache| put_rates(cache, &host, kept()),
        |cache| cache.host_rates(&host, BUILD) == Some(kept()),
        &[("64 GiB", "65 GiB"), (": 10", ": -5")],
    );
    // A value above the card's memory cannot have been measured on it.
    let (too_much, most) = (format!(" {},", gib(25)), format!(" {},", u64::MAX));
    replaced(
        |cache| cache.put_headroom(&card(), BUILD, learned(20, 30)),
        |cache| cache.headroom(&card(), BUILD) == Some(learned(20, 30)),
        &[(" 20,", " -20,"), ("\"driver\": 20,", ""), (" 20,", &too_much), (" 20,", &most)],
    );
}

#[test]
fn a_folder_that_cannot_be_written_causes_no_error() {
    let (_folder, path, _) = empty();
    fs::write(&path, "").unwrap();
    let cache = MeasurementCache::at(path.join("below"));
    cache.put_headroom(&card(), BUILD, learned(20, 30));
    assert_eq!(cache.headroom(&card(), BUILD), None);
}

#[test]
fn threads_that_write_at_once_lose_nothing_and_leave_whole_files() {
    let (_folder, _path, cache) = empty();
    let cards: Vec<Gpu> = (0..16).map(|bus| card().pci_id(PciId::new(0, bus, 0, 0))).collect();
    std::thread::scope(|scope| {
        for card in &cards {
            // Two threads write each file.
            for _ in 0..2 {
                scope.spawn(|| cache.put_headroom(card, BUILD, learned(20, 30)));
            }
        }
    });
    for card in &cards {
        assert_eq!(cache.headroom(card, BUILD), Some(learned(20, 30)));
    }
}

#[test]
fn detection_finds_headroom_for_the_build_that_will_use_the_gpu() {
    let (folder, fake) = (tempfile::tempdir().unwrap(), Fake::new());
    let detected =
        |detector: Detector| detector.detect_with(&[device("CUDA0@0000:01:00.0 gpu 24 22 RTX 4090")]).gpus.remove(0);
    let detector = || fake.detector().cache_folder(folder.path());
    let here = detected(detector());
    assert_eq!(here.resident_threads, Some(128 * 1536));
    MeasurementCache::at(folder.path()).put_headroom(&here, BUILD, learned(20, 30));

    let found = detected(detector().for_build(BUILD)).learned;
    assert_eq!(found, Some(learned(20, 30)));
    for other in [detector().for_build("another"), detector(), fake.detector().for_build(BUILD)] {
        assert_eq!(detected(other).learned, None);
    }
}

proptest! {
    #[test]
    fn no_cache_file_causes_a_panic_or_a_figure_above_the_cards_total(
        text in any::<Vec<u8>>(),
        tail in "[0-9a-z \n-]{0,60}",
    ) {
        let folder = tempfile::tempdir().unwrap();
        let cache = MeasurementCache::at(folder.path());
        cache.put_headroom(&card(), BUILD, learned(20, 30));
        let file = only(folder.path());
        let begun = [b"{\"version\": 3, \"key\": ", text.as_slice(), tail.as_bytes()].concat();
        for content in [begun, text] {
            fs::write(&file, content).unwrap();
            let found = cache.headroom(&card(), BUILD);
            prop_assert!(found.is_none_or(|learned| learned.total() <= card().total));
        }
    }
}

/// Conditions of a measurement at this time, in which other programs used `others` percent of a core.
fn conditions(at: u64, others: u32) -> RateConditions {
    let mut conditions = RateConditions::default();
    (conditions.at, conditions.others) = (at, Some(others));
    conditions
}

#[test]
fn a_disturbed_figure_never_replaces_a_quiet_one_and_is_replaced_by_it() {
    let (_folder, _, cache) = empty();
    let host = Host::new(gib(64));
    let quiet = |at| conditions(at, 3);
    let busy = conditions;
    let kept = || {
        let rates = cache.host_rates(&host, BUILD).unwrap();
        (rates.weights[0].bytes_per_second, rates.layer_ns)
    };
    for (taken, bytes, layer_ns, expected) in [
        // The first measurement is kept with its disturbance, even if it was disturbed.
        (busy(1, 190), 10, 900, (10, 900)),
        // Of two disturbed measurements, the less disturbed one is kept or, at equal disturbance, the later one.
        (busy(2, 195), 9, 950, (10, 900)),
        (busy(3, 60), 30, 500, (30, 500)),
        (busy(4, 60), 32, 480, (32, 480)),
        (quiet(5), 50, 300, (50, 300)),
        (busy(6, 195), 8, 990, (50, 300)),
        (quiet(7), 48, 310, (48, 310)),
    ] {
        let mut measured = rates(Some(2), &[(TensorType::Q4_K, bytes)]);
        measured.layer_ns = layer_ns;
        put_rates(&cache, &host, measured.taken_under(&taken));
        assert_eq!(kept(), expected, "{taken:?}");
    }
    let rates = cache.host_rates(&host, BUILD).unwrap();
    assert!(rates.all_conditions().all(|taken| taken.is_some_and(|taken| taken.at == 7)));
}

#[test]
fn a_figure_without_conditions_is_read_and_replaced_by_any_quiet_measurement() {
    let (_folder, path, cache) = empty();
    let host = Host::new(gib(64));
    // The file is in the format of an older release.
    put_rates(&cache, &host, rates(Some(2), &[(TensorType::Q4_K, 10)]));
    let text = fs::read_to_string(only(&path)).unwrap();
    assert!(!text.contains("conditions") && !text.contains("shape") && !text.contains("used"), "{text}");
    let old = cache.host_rates(&host, BUILD).unwrap();
    assert_eq!(old.all_conditions().collect::<Vec<_>>(), [None]);
    put_rates(&cache, &host, rates(Some(2), &[(TensorType::Q4_K, 20)]).taken_under(&conditions(1, 0)));
    assert_eq!(cache.host_rates(&host, BUILD).unwrap().weights[0].bytes_per_second, 20);
}

#[test]
fn corrections_from_real_use_survive_a_later_measurement() {
    let (_folder, _, cache) = empty();
    let host = Host::new(gib(64));
    let mut seen = rates(Some(2), &[(TensorType::Q4_K, 10)]);
    let used = r#"{"per_second": 15, "tokens": 200, "at": 5}"#;
    seen.weights[0].used = serde_json::from_str(used).unwrap();
    put_rates(&cache, &host, seen);
    put_rates(&cache, &host, rates(Some(2), &[(TensorType::Q4_K, 12)]));
    let kept = cache.host_rates(&host, BUILD).unwrap();
    assert_eq!((kept.weights[0].bytes_per_second, kept.weights[0].rate()), (12, 15));
}

#[test]
fn times_of_moves_are_found_only_for_the_same_file_on_the_same_machine() {
    let (folder, _path, cache) = empty();
    let file = folder.path().join("model.gguf");
    fs::write(&file, "GGUF").unwrap();
    let machine = Machine::new(Host::new(gib(64))).with_gpu(card());
    let figure = |value| Some(MoveFigure::new(value, RateConditions::default()));
    let mut rates = MoveRates::default();
    rates.warm_file = figure(2_000_000_000);
    cache.put_move_rates(&machine, (&file, 4), BUILD, rates.clone());
    let known = |machine: &Machine, file: &Path, bytes| cache.move_rates(machine, (file, bytes), BUILD);
    assert_eq!(known(&machine, &file, 4), Some(rates.clone()));
    // The file is found under another name, and the card's free memory does not matter.
    let link = folder.path().join("link.gguf");
    #[cfg(unix)]
    std::os::unix::fs::symlink(&file, &link).unwrap();
    #[cfg(unix)]
    assert_eq!(known(&machine, &link, 4), Some(rates.clone()));
    let crowded = Machine::new(Host::new(gib(64))).with_gpu(card().free(gib(1)));
    assert_eq!(known(&crowded, &file, 4), Some(rates.clone()));
    // Figures of other kinds are added to the known figures.
    let mut later = MoveRates::default();
    later.rest_ns = figure(3_000_000_000);
    cache.put_move_rates(&machine, (&file, 4), BUILD, later.clone());
    rates.merge(later);
    assert_eq!(known(&machine, &file, 4), Some(rates.clone()));
    assert!(rates.warm_file.is_some() && rates.rest_ns.is_some());

    let two = Machine::new(Host::new(gib(64))).with_gpu(card()).with_gpu(card().pci_id(PciId::new(0, 2, 0, 0)));
    let remote = Machine::new(Host::new(gib(64))).with_gpu(card().kind(GpuKind::Remote));
    for (machine, file, bytes) in [
        (&two, &file, 4),
        (&remote, &file, 4),
        (&Machine::new(Host::new(gib(32))).with_gpu(card()), &file, 4),
        (&machine, &file, 5),
        (&machine, &folder.path().join("other.gguf"), 4),
    ] {
        assert_eq!(known(machine, file, bytes), None, "{} {bytes}", file.display());
    }
    assert_eq!(cache.move_rates(&machine, (&file, 4), "another build"), None);
}

#[test]
fn the_reuse_of_experts_is_kept_for_the_file_on_any_machine() {
    let (folder, _path, cache) = empty();
    let file = folder.path().join("model.gguf");
    fs::write(&file, "GGUF").unwrap();
    assert_eq!(cache.expert_use((&file, 4)), None);
    cache.put_expert_use((&file, 4), ExpertUse::new(8.0, 3000));
    cache.put_expert_use((&file, 4), ExpertUse::new(12.0, 1000));
    let known = cache.expert_use((&file, 4)).unwrap();
    assert_eq!((known.locality(), known.uses), (9.0, 4000));
    assert_eq!(cache.expert_use((&file, 5)), None);
    assert_eq!(cache.expert_use((&folder.path().join("other.gguf"), 4)), None);
}

#[test]
#[cfg(unix)]
fn a_cache_whose_folder_does_not_answer_keeps_nothing_until_it_answers() {
    let (_folder, path, cache) = empty();
    cache.put_file_hash("one", "1");
    let file = only(&path);
    cache.put_file_hash("other", "2");
    // The opening of a pipe for writing waits for a reader.
    fs::remove_file(&file).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(&file).status().unwrap().success());
    cache.put_file_hash("one", "3");
    // The folder is not asked again, so even the other file is not found.
    assert_eq!(cache.file_hash("other"), None);
    assert!(fs::read_to_string(&file).unwrap().contains("\"3\""));
    test_support::wait("answers", || cache.file_hash("other").is_some());
    assert_eq!(cache.file_hash("other").unwrap(), "2");
}
