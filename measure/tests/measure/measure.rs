//! Placements are measured one against another with real loads, on a simulated GPU that computes on the CPU. No speed
//! is asserted.

use std::cell::Cell;

use crate::card;
use autoplace::generate::Prompt;
use autoplace::load;
use autoplace::machine::mib;
use autoplace::memory::Headroom;
use autoplace::plan::{HostParts, Request};
use autoplace_measure::{Error, Measure, Measurement, Progress, Protocol, Steps};
use test_support::demo_path;

const SCHEMA: &str = include_str!("../../../docs/measurement.schema.json");

fn request() -> Request {
    Request::new().headroom(Headroom::Bytes(0)).n_ctx(256)
}

fn measure<'a>() -> Measure<'a> {
    let short = |usual: Protocol| usual.n_prompt(16).n_gen(4).depths([0, 64]).rounds(2);
    Measure::new(demo_path()).request(request()).protocol(short).load_with(|builder| builder.n_threads(1))
}

/// A measurement on a machine without a GPU, even if the real machine has one.
fn on_the_host() -> Measure<'static> {
    let mut machine = load::detect().unwrap();
    machine.gpus.clear();
    measure().load_with(move |builder| builder.n_threads(1).machine(machine.clone()))
}

#[track_caller]
fn meets_the_schema(measurement: &Measurement) {
    let schema = serde_json::from_str(SCHEMA).unwrap();
    let validator = jsonschema::validator_for(&schema).unwrap();
    let json = serde_json::from_str(&measurement.to_json()).unwrap();
    let wrong: Vec<String> =
        validator.iter_errors(&json).map(|error| format!("{}: {error}", error.instance_path())).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn a_sweep_measures_the_placements_that_fit_and_says_why_others_do_not() {
    own_process!();
    let gpu = card(mib(5));
    // With the stated bandwidth, layers on the card are faster than on any processor.
    let mut machine = load::detect().unwrap();
    machine.host = machine.host.bandwidth(20_000_000_000);
    machine.gpus[0] = machine.gpus[0].clone().bandwidth(1_000_000_000_000);
    // With parts of blocks on the host, all layers fit, and some processors compute this placement faster.
    let whole = measure().request(request().host_parts(HostParts::None));
    let sweep = whole.load_with(|load| load.machine(machine.clone()).n_threads(1)).sweep(Steps::Edge).unwrap();
    assert_eq!(gpu.used(), 0);

    let plan = sweep.point("plan").unwrap().placement.as_ref().unwrap();
    let fit = plan.n_gpu_layers;
    assert!((1..plan.layers).contains(&fit), "{fit} of {}", plan.layers);
    let all = sweep.point(&format!("ngl {}", plan.layers)).unwrap();
    assert!(all.rows.is_empty() && all.failure.as_ref().unwrap().contains("fit"), "{all:?}");

    let measured: Vec<_> = sweep.points.iter().filter(|point| point.failure.is_none()).collect();
    assert!(measured.len() > 3, "{sweep:#?}");
    for point in measured {
        // The rows are twelve prompts and their generations, at two depths.
        let rows: Vec<_> = point.rows.iter().map(|row| (row.name(), row.samples.len(), row.n_depth)).collect();
        let expected = [("pp16", 0), ("tg4 @ d16", 16), ("pp16 @ d64", 64), ("tg4 @ d80", 80)];
        assert_eq!(rows, expected.map(|(name, depth)| (name.to_owned(), 12, depth)), "{}", point.name);
        for row in &point.rows {
            let speed = row.speed;
            assert!(row.predicted.is_some_and(|predicted| predicted > 0.0), "{row:?}");
            assert!(0.0 < speed.least && speed.least <= speed.median && speed.median <= speed.most);
            assert!(row.samples.iter().map(|sample| sample.round).eq([0; 6].into_iter().chain([1; 6])));
        }
        let placement = point.placement.as_ref().unwrap();
        let (host, gpus) = placement.devices.split_last().unwrap();
        assert_eq!(host.device, None);
        for gpu in gpus {
            assert_eq!((Some(gpu.planned), Some(gpu.planned)), (gpu.probed, gpu.allocated), "{}", point.name);
            assert_eq!(gpu.taken, Some(gpu.planned.total()));
        }
        let layers: u32 = placement.devices.iter().map(|device| device.layers).sum();
        assert_eq!(layers, placement.layers);
    }
    meets_the_schema(&sweep);
    assert_eq!(Measurement::from_json(&sweep.to_json()).unwrap(), sweep);
}

#[test]
fn results_before_a_stop_are_kept() {
    own_process!();
    let left = Cell::new(0);
    let stopped_after = |calls| {
        left.set(calls);
        let going = |progress: &Progress<'_>| {
            assert!((0.0..=1.0).contains(&progress.done));
            left.set(left.get() - 1);
            left.get() >= 0
        };
        on_the_host().request(request().n_batch(32)).progress(going).sweep(Steps::Edge)
    };
    assert!(matches!(stopped_after(0), Err(Error::Stopped)));
    let part = stopped_after(3).unwrap();
    // Without a GPU there is one placement.
    assert_eq!(part.points.len(), 1);
    assert_eq!(part.points[0].rows[0].samples.len(), 3);
    let (stopped, of_load) = part.notes.split_last().unwrap();
    assert_eq!(stopped, "stopped before everything was measured");
    assert!(of_load.iter().any(|note| note.contains("32 tokens are computed at once (n_batch)")), "{of_load:?}");
    meets_the_schema(&part);
}

#[test]
fn stated_texts_are_computed_unchanged() {
    own_process!();
    let texts = ["Once upon a time", "And"].map(str::to_owned);
    let short = |usual: Protocol| usual.n_prompt(0).n_gen(2).depths([0]).rounds(1);
    let own = measure().protocol(|usual| short(usual).prompts(texts.clone())).sweep(Steps::Full).unwrap();
    let model = autoplace::Model::builder(demo_path()).load().unwrap();
    let tokens = |text| model.count_tokens(Prompt::text(text).add_special(false)).unwrap() as u32;
    let prompts: Vec<u32> = own.points[0].rows.iter().map(|row| row.n_prompt).filter(|&n| n > 0).collect();
    assert_eq!(prompts, [tokens("Once upon a time"), tokens("And")]);
}
