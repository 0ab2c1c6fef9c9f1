//! Placements measured side by side: on a simulated GPU, whose arithmetic is the CPU's, with real loads. No speed is
//! asserted.

use std::cell::Cell;
use std::time::Duration;

use crate::native_support::demo_path;
use crate::sim_support::card;
use autoplace::generate::Prompt;
use autoplace::gguf::Header;
use autoplace::load;
use autoplace::machine::mib;
use autoplace::measure::{
    Arm, Aspect, Error, Measure, Measurement, Progress, Protocol, Readiness, Ready, Steps, Trial,
};
use autoplace::memory::Headroom;
use autoplace::plan::{GpuLayers, Request, SavedPlan};

const SCHEMA: &str = include_str!("../../../docs/measurement.schema.json");

fn request() -> Request {
    Request::new().headroom(Headroom::Bytes(0)).n_ctx(256)
}

fn measure<'a>() -> Measure<'a> {
    let short = |usual: Protocol| usual.n_prompt(16).n_gen(4).depths([0, 64]).rounds(2);
    Measure::new(demo_path()).request(request()).protocol(short).load_with(|builder| builder.n_threads(1))
}

/// The same on a machine without a GPU, whatever this one has.
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
    let wrong: Vec<String> = validator.iter_errors(&json).map(|it| format!("{}: {it}", it.instance_path())).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn a_sweep_measures_what_fits_and_says_why_the_rest_does_not() {
    own_process!();
    let gpu = card(mib(5));
    // On any processor more layers on the card are faster.
    let mut machine = load::detect().unwrap();
    machine.host = machine.host.bandwidth(20_000_000_000);
    machine.gpus[0] = machine.gpus[0].clone().bandwidth(1_000_000_000_000);
    let sweep = measure().load_with(|load| load.machine(machine.clone()).n_threads(1)).sweep(Steps::Edge).unwrap();
    assert_eq!(gpu.used(), 0);

    let plan = sweep.point("plan").unwrap().placement.as_ref().unwrap();
    let fit = plan.n_gpu_layers;
    assert!((1..plan.layers).contains(&fit), "{fit} of {}", plan.layers);
    let all = sweep.point(&format!("ngl {}", plan.layers)).unwrap();
    assert!(all.rows.is_empty() && all.failure.as_ref().unwrap().contains("fit"), "{all:?}");

    let measured: Vec<_> = sweep.points.iter().filter(|point| point.failure.is_none()).collect();
    assert!(measured.len() > 3, "{sweep:#?}");
    for point in measured {
        // Twelve prompts, and what was generated after each, at two depths.
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
    assert_eq!(sweep.predicted.len() as u32, plan.layers + 1);
    meets_the_schema(&sweep);
    assert_eq!(Measurement::from_json(&sweep.to_json()).unwrap(), sweep);
}

#[test]
fn a_placement_is_held_against_another_that_was_saved() {
    own_process!();
    let _gpu = card(mib(64));
    let less = request().n_gpu_layers(GpuLayers::Exactly(2));
    let plan = measure().plan(less.clone()).unwrap();
    let header = Header::open(demo_path()).unwrap();
    let saved = SavedPlan::new(plan, less, &header).unwrap();
    let arms = [Arm::saved("before", saved), Arm::asked("after", request())];
    let both = measure().run(&arms).unwrap();
    let layers = |name| both.point(name).unwrap().placement.as_ref().unwrap().n_gpu_layers;
    assert_eq!(layers("before"), 2);
    assert!(layers("after") > 2);
    let comparison = both.compare("before", "after").unwrap();
    let names: Vec<&str> = comparison.ratios.iter().map(|ratio| ratio.name.as_str()).collect();
    assert_eq!(names, ["pp16", "tg4 @ d16", "pp16 @ d64", "tg4 @ d80"]);
    for ratio in &comparison.ratios {
        let (low, high) = ratio.interval.unwrap();
        assert!(low <= ratio.ratio && ratio.ratio <= high, "{ratio}");
    }
    assert_eq!(both.compare("before", "nothing"), None);
}

#[test]
fn what_was_measured_before_it_is_stopped_is_kept() {
    own_process!();
    let left = Cell::new(0);
    let stopped_after = |calls| {
        left.set(calls);
        let going = |progress: &Progress<'_>| {
            assert!((0.0..=1.0).contains(&progress.done));
            left.set(left.get() - 1);
            left.get() >= 0
        };
        on_the_host().progress(going).sweep(Steps::Edge)
    };
    assert!(matches!(stopped_after(0), Err(Error::Stopped)));
    let part = stopped_after(3).unwrap();
    // Without a GPU there is one placement.
    assert_eq!(part.points.len(), 1);
    assert_eq!(part.points[0].rows[0].samples.len(), 3);
    assert_eq!(part.notes, ["stopped before all was measured"]);
    meets_the_schema(&part);
}

#[test]
fn texts_of_ones_own_are_computed_as_they_are_and_not_given_away() {
    own_process!();
    let texts = ["Once upon a time", "And"].map(str::to_owned);
    let short = |usual: Protocol| usual.n_prompt(0).n_gen(2).depths([0]).rounds(1);
    let own = measure().protocol(|usual| short(usual).prompts(texts.clone())).sweep(Steps::Full).unwrap();
    let model = autoplace::Model::builder(demo_path()).load().unwrap();
    let tokens = |text| model.count_tokens(Prompt::text(text).add_special(false)).unwrap() as u32;
    let prompts: Vec<u32> = own.points[0].rows.iter().map(|row| row.n_prompt).filter(|&n| n > 0).collect();
    assert_eq!(prompts, [tokens("Once upon a time"), tokens("And")]);

    let folder = demo_path().parent().unwrap().display().to_string();
    assert!(own.to_json().contains(&folder) && own.to_json().contains("Once upon"));
    let told = own.anonymous();
    assert!(!told.to_json().contains(&folder) && !told.to_json().contains("Once upon"));
    assert_eq!(told.model.path.to_str(), demo_path().file_name().unwrap().to_str());
    meets_the_schema(&told);
}

#[test]
fn what_has_no_room_in_the_context_is_refused_with_what_it_would_need() {
    own_process!();
    let deep = |usual: Protocol| usual.n_prompt(16).n_gen(4).depths([240]);
    let error = measure().protocol(deep).sweep(Steps::Edge).unwrap_err().to_string();
    assert!(error.contains("need a context of 261 tokens, and it has 256"), "{error}");
}

/// A system that nothing else uses, below a folder.
struct System(tempfile::TempDir);

impl System {
    fn quiet() -> Self {
        let system = Self(tempfile::tempdir().unwrap());
        std::fs::create_dir_all(system.0.path().join("proc/pressure")).unwrap();
        system.pressure("cpu", 0.0);
        system.pressure("memory", 0.0);
        system.swapped(7);
        system
    }

    fn pressure(&self, of: &str, percent: f32) {
        let text = format!("some avg10={percent:.2} avg60=0.00 avg300=0.00 total=1\n");
        std::fs::write(self.0.path().join("proc/pressure").join(of), text).unwrap();
    }

    fn swapped(&self, pages: u64) {
        let text = format!("pswpin {pages}\npswpout 3\n");
        std::fs::write(self.0.path().join("proc/vmstat"), text).unwrap();
    }
}

/// Four runs without a pause. How fast they are is another machine's matter.
fn ready(measure: Measure<'_>, system: &System) -> Readiness {
    let ready = Ready { runs: 4, over: Duration::ZERO, drift: f64::INFINITY };
    measure.system(system.0.path()).ready(&ready).unwrap()
}

fn failed(trial: &Trial) -> Vec<Aspect> {
    trial.checks.iter().filter(|check| !check.passed).map(|check| check.aspect).collect()
}

#[test]
fn a_placement_that_holds_is_a_plan_to_follow() {
    own_process!();
    let _gpu = card(mib(5));
    let readiness = ready(measure(), &System::quiet());
    let [trial] = readiness.trials.as_slice() else { panic!("{readiness:#?}") };
    assert!(trial.passed() && trial.checks.len() == 6, "{trial:#?}");
    assert_eq!(trial.runs.samples.len(), 4);
    // At the end of the context: 256 tokens, 4 of which are generated after these.
    assert_eq!(trial.runs.n_depth, 256 - 4 - 1);
    let followed = autoplace::Model::builder(demo_path()).follow(readiness.plan.unwrap());
    let followed = followed.n_threads(1).load().unwrap();
    assert_eq!(followed.placement().n_gpu_layers, trial.placement.n_gpu_layers);
}

#[test]
fn another_program_on_the_card_leads_to_fewer_layers_there() {
    own_process!();
    // What driver and growth are said to take of it, a simulated card does not use: all that is margin.
    let gpu = card(mib(2007));
    let margin = Headroom::Bytes(mib(2000));
    let ballast = |progress: &Progress<'_>| {
        if progress.name.ends_with("trial 1") && progress.done > 0.0 {
            gpu.set_taken(mib(2007) - gpu.used() - mib(100));
        }
        true
    };
    let measure = measure().request(request().headroom(margin)).progress(ballast);
    let readiness = ready(measure, &System::quiet());
    let [first, .., last] = readiness.trials.as_slice() else { panic!("{readiness:#?}") };
    assert_eq!(failed(first), [Aspect::Headroom]);
    assert!(last.passed() && last.placement.n_gpu_layers < first.placement.n_gpu_layers);
    assert_eq!(readiness.plan.unwrap().plan.n_gpu_layers, last.placement.n_gpu_layers);
}

#[test]
fn a_host_that_swaps_leads_to_a_smaller_context() {
    own_process!();
    let system = System::quiet();
    let pages = Cell::new(7);
    let swapping = |progress: &Progress<'_>| {
        if progress.name.ends_with("trial 1") {
            pages.set(pages.get() + 5);
            system.swapped(pages.get());
        }
        true
    };
    let measure = on_the_host().request(request().n_ctx(1024)).progress(swapping);
    let readiness = ready(measure, &system);
    let [first, last] = readiness.trials.as_slice() else { panic!("{readiness:#?}") };
    assert_eq!(failed(first), [Aspect::Swap]);
    let found = &first.checks.iter().find(|check| !check.passed).unwrap().found;
    assert_eq!(found, "20 pages in, 0 out, 0 at most");
    assert!(last.passed());
    assert_eq!((first.placement.settings.n_ctx, last.placement.settings.n_ctx), (1024, 512));
}

#[test]
fn no_placement_mends_a_processor_that_others_keep_busy() {
    own_process!();
    let system = System::quiet();
    system.pressure("cpu", 80.0);
    let readiness = ready(on_the_host(), &system);
    assert_eq!(readiness.trials.iter().map(failed).collect::<Vec<_>>(), [[Aspect::Processor]]);
    assert_eq!((readiness.plan, readiness.notes.len()), (None, 1));
}

#[test]
fn runs_that_become_slower_are_a_drift() {
    own_process!();
    let _gpu = card(mib(5));
    // No drift is that small.
    let none = Ready { runs: 3, over: Duration::ZERO, drift: -1.0 };
    let system = System::quiet();
    let readiness = measure().system(system.0.path()).ready(&none).unwrap();
    assert!(readiness.plan.is_none(), "{readiness:#?}");
    let layers: Vec<u32> = readiness.trials.iter().map(|it| it.placement.n_gpu_layers).collect();
    assert!(layers.is_sorted_by(|one, next| one > next) && layers.last() == Some(&0), "{layers:?}");
    assert!(readiness.trials.iter().all(|trial| failed(trial) == [Aspect::Drift]));
}
