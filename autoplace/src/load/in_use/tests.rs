use std::path::Path;
use std::time::Duration;

use super::{UseMeter, Window};
use crate::gguf::Header;
use crate::machine::{Host, Machine, MeasurementCache, gib};
use crate::plan::speed::InUse;
use crate::plan::{Planner, Workload};
use crate::profile::ModelProfile;

/// Duration of each test window, in seconds.
const SECONDS: u64 = 2;

/// The demo model on a measured host. The measurements are kept in `folder`.
fn meter(folder: &Path) -> UseMeter {
    let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/model/autoplace-demo-q8_0.gguf");
    let profile = ModelProfile::from_header(&Header::open(demo).unwrap()).unwrap();
    let plan = Planner::new(&profile, &machine()).plan().unwrap();
    UseMeter::new(&profile, &plan, &machine(), Some(MeasurementCache::at(folder))).unwrap()
}

fn machine() -> Machine {
    let mut host = Host::new(gib(8));
    let rates = r#"{"threads": 2, "weights": [{"type": "Q8_0", "bytes_per_second": 100000000}],
        "prompts": [{"type": "Q8_0", "n_tokens": 512, "flops": 1000000000}], "layer_ns": 1}"#;
    host.rates = serde_json::from_str(rates).unwrap();
    Machine::new(host)
}

/// A window of tokens that are generated at this multiple of the predicted speed.
fn window(meter: &UseMeter, times_as_fast: f64) -> Window {
    let predicted = meter.model.token_seconds(&meter.assignment, 10) / times_as_fast;
    let tokens = (SECONDS as f64 / predicted).round() as u64;
    Window { tokens, time: Duration::from_secs(SECONDS), depths: 10 * tokens }
}

/// The stored rates of the host's weights and prompts, relative to the initial rates.
fn kept(folder: &Path) -> Option<(f64, f64)> {
    let rates = MeasurementCache::at(folder).host_rates(&machine().host, &super::build_name())?;
    Some((rates.weights[0].rate() as f64 / 1e8, rates.prompts[0].rate() as f64 / 1e9))
}

#[test]
fn after_a_minute_a_prediction_that_use_refutes_is_replaced_and_the_rates_are_kept() {
    let folder = tempfile::tempdir().unwrap();
    let mut meter = meter(folder.path());
    let twice = window(&meter, 2.0);
    let windows = 60 / SECONDS;
    for _ in 1..windows {
        assert_eq!(meter.generated(twice, true), None);
    }
    let refuted = meter.generated(twice, true).unwrap();
    assert!((refuted.generation - 2.0).abs() < 0.02 && refuted.prompt == 1.0, "{refuted:?}");
    let (weights, prompts) = kept(folder.path()).unwrap();
    assert!((weights - 2.0).abs() < 0.05 && prompts == 1.0, "{weights} {prompts}");
    // The corrected prediction is right, so nothing more is refuted.
    assert!((0..2 * windows).all(|_| meter.generated(twice, true).is_none()));
}

#[test]
fn a_difference_that_is_no_larger_than_noise_refutes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let mut meter = meter(folder.path());
    let usual = window(&meter, 1.1);
    assert!((0..60).all(|_| meter.generated(usual, true).is_none()));
}

#[test]
fn disturbed_times_and_odd_windows_do_not_count() {
    let folder = tempfile::tempdir().unwrap();
    let mut meter = meter(folder.path());
    let [usual, slow, odd] = [1.0, 0.1, 0.01].map(|times| window(&meter, times));
    for _ in 0..100 {
        assert_eq!(meter.generated(slow, false), None, "beside other work");
    }
    meter.computed(0, 512, Duration::from_secs(1000), false);
    for window in [usual, odd, usual, usual, odd, usual, usual] {
        assert_eq!(meter.generated(window, true), None);
    }
    drop(meter);
    let (weights, prompts) = kept(folder.path()).unwrap();
    assert!((weights - 1.0).abs() < 0.05 && prompts == 1.0, "{weights} {prompts}");
}

#[test]
fn measurements_of_a_short_use_are_stored_at_its_end() {
    let folder = tempfile::tempdir().unwrap();
    let mut meter = meter(folder.path());
    drop(self::meter(folder.path()));
    assert_eq!(kept(folder.path()), None, "nothing was seen");
    let half = window(&meter, 0.5);
    meter.generated(half, true);
    let workload = Workload::new(512, 0);
    let seen = InUse::Prompt { workload, seconds: 0.0 };
    let predicted = seen.predicted(&meter.model, &meter.assignment);
    meter.computed(0, 512, Duration::from_secs_f64(predicted / 3.0), true);
    drop(meter);
    let (weights, prompts) = kept(folder.path()).unwrap();
    assert!((weights - 0.5).abs() < 0.05, "{weights}");
    assert!(prompts > 2.0, "{prompts}");
}

#[test]
fn other_threads_and_company_end_a_window() {
    let folder = tempfile::tempdir().unwrap();
    let mut meter = meter(folder.path());
    // The first token opens the window.
    for _ in 0..3 {
        meter.token(Duration::from_millis(1), 5, 2);
    }
    assert_eq!(meter.window.tokens, 2);
    meter.token(Duration::from_millis(1), 5, 1);
    assert!(meter.watch.is_none() && meter.window.tokens == 0);
    meter.token(Duration::from_millis(1), 5, 2);
    meter.prompt_begins();
    meter.has_company();
    assert!(meter.watch.is_none() && meter.prompt.is_none());
}
