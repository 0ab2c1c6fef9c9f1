//! The checks, applied to stated figures.

use autoplace::machine::{CpuLimit, RateConditions};

use super::checks::{drift, heat, processor, quota};
use super::host::HostSeen;
use super::{Aspect, Check, Ready};
use crate::Protocol;
use crate::measurement::{Row, Sample, Speed};

/// Runs at these tokens per second.
fn runs(speeds: &[f64]) -> Row {
    let samples = speeds.iter().zip(0..).map(|(speed, round)| Sample { round, ns: (100e9 / speed) as u64 }).collect();
    let time = "2026-11-28T12:00:00Z".to_owned();
    let mut row = Row { n_prompt: 0, n_gen: 100, n_depth: 0, time, speed: Speed::default(), predicted: None, samples };
    row.speed = Speed::from_samples(row.speeds());
    row
}

/// A host with ten runs. The first runs have the conditions in `others`, and the remaining runs have the `usual`
/// conditions.
fn host(usual: &str, others: &[&str]) -> HostSeen {
    let read = |text: &str| -> RateConditions { serde_json::from_str(&format!("{{{text}}}")).unwrap() };
    let rest = std::iter::repeat(usual);
    let each: Vec<RateConditions> = others.iter().copied().chain(rest).take(10).map(read).collect();
    HostSeen { pressure: vec![None; each.len()], each, ..HostSeen::default() }
}

#[track_caller]
fn fails(check: &Check, aspect: Aspect, word: &str) {
    assert!(check.aspect == aspect && !check.passed && check.found.contains(word), "{word}: {check}");
}

#[test]
fn runs_within_five_percent_of_the_first_are_steady_and_one_in_ten_may_differ() {
    let steady = [100.0, 99.0, 101.0, 100.0, 98.0, 103.0, 97.0, 100.0, 99.0, 98.0];
    let mut one_is_slow = steady;
    one_is_slow[4] = 60.0;
    let mut two_are_slow = one_is_slow;
    two_are_slow[6] = 90.0;
    assert!(drift(&runs(&steady), 0.05).passed);
    assert!(drift(&runs(&one_is_slow), 0.05).passed);
    fails(&drift(&runs(&two_are_slow), 0.05), Aspect::Drift, "2 of 10 runs beyond that (allowed: 1)");
    // Of three runs, none may differ.
    fails(&drift(&runs(&[100.0, 90.0, 100.0]), 0.05), Aspect::Drift, "1 of 3 runs");
}

#[test]
fn runs_that_become_slower_or_faster_drift_even_if_slowly() {
    let becoming = |by: f64| -> Vec<f64> { (0..10).map(|n| 100.0 * (1.0 + by * f64::from(n) / 9.0)).collect() };
    assert!(drift(&runs(&becoming(-0.04)), 0.05).passed);
    fails(&drift(&runs(&becoming(-0.10)), 0.05), Aspect::Drift, "from the first third to the last");
    fails(&drift(&runs(&becoming(0.10)), 0.05), Aspect::Drift, "+");
    assert!(drift(&runs(&becoming(-0.10)), 0.15).passed);
}

#[test]
fn a_processor_fails_if_the_threads_waited_and_not_if_others_use_idle_cores() {
    assert!(processor(&host("\"waited\": 1, \"others\": 300", &[])).passed);
    assert!(processor(&host("\"waited\": 1", &["\"waited\": 60"])).passed, "one run in ten");
    fails(&processor(&host("\"waited\": 24, \"others\": 100", &[])), Aspect::Processor, "24 % of a run");
    fails(&processor(&host("\"others\": 100", &[])), Aspect::Processor, "other programs used 1.0 cores");
    fails(&processor(&host("\"waited\": 0, \"steal\": 12", &[])), Aspect::Processor, "virtual machines took 12 %");
    // The quota is the only cause.
    assert!(processor(&host("\"waited\": 50, \"throttled\": 50, \"others\": 3", &[])).passed);
    fails(&processor(&host("\"waited\": 50, \"throttled\": 50, \"others\": 90", &[])), Aspect::Processor, "50 %");
    let pressed = HostSeen { pressure: vec![Some(80.0); 10], ..host("", &[]) };
    fails(&processor(&pressed), Aspect::Processor, "80.0 % of ten seconds");
    let unknown = processor(&host("", &[]));
    assert!(unknown.passed && unknown.found == "not reported");
}

#[test]
fn a_quota_fails_only_if_it_stopped_the_process_long_enough() {
    let under = |usual: &str| {
        let cpu_limit = Some(CpuLimit::new("/sys/fs/cgroup/cpu.max", 150_000, 100_000));
        quota(&HostSeen { cpu_limit, ..host(usual, &[]) })
    };
    assert!(under("\"throttled\": 3").passed);
    fails(&under("\"throttled\": 25"), Aspect::Quota, "1.5 cores by /sys/fs/cgroup/cpu.max; stopped this process 25 %");
    assert_eq!(quota(&HostSeen::default()).found, "none is set");
}

#[test]
fn a_processor_that_is_too_hot_fails() {
    assert!(heat(&host("\"overheated\": 0", &["\"overheated\": 9"]).each).passed, "one run in ten");
    fails(&heat(&host("\"overheated\": 2, \"temperature\": 99", &[]).each), Aspect::Heat, "10 of 10 runs, 99 °C");
    assert!(heat(&[]).passed);
}

#[test]
fn the_default_check_has_ten_runs_in_ten_minutes_and_a_quick_one_six_in_two() {
    let (usual, quick) = (Ready::default(), Ready::quick());
    assert_eq!((usual.runs, usual.over.as_secs(), usual.drift), (10, 600, 0.05));
    assert_eq!((quick.runs, quick.over.as_secs(), quick.drift), (6, 120, 0.05));
    let tokens = |ready: &Ready| {
        let protocol = ready.protocol(Protocol::new(4096));
        (protocol.n_prompt, protocol.n_gen)
    };
    assert_eq!((tokens(&usual), tokens(&quick)), ((512, 256), (64, 64)));
    assert_eq!(Ready::default().runs(0).runs, 2);
}
