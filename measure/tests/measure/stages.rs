//! A placement from its load to the end of its context, on simulated cards. The cards have pools like a driver's, which
//! take memory at the first computation.

use autoplace::llama_sys::sim::{Rules, SimGpu};
use autoplace::load::{OnDifference, Verify};
use autoplace::machine::mib;
use autoplace::memory::Headroom;
use autoplace::plan::{GpuLayers, Request};
use autoplace_measure::{Measure, Outcome, Progress, Stages, Step};
use test_support::demo_path;

const POOLS: u64 = 300_000;
const STEPS: [Step; 3] = [Step::Ubatch, Step::Generate(4), Step::Fill];

fn card(total: u64, pools: u64) -> SimGpu {
    SimGpu::builder("SIM card").total(total).rules(Rules::Cuda).backend("CUDA").growth(pools).register().unwrap()
}

/// The placement of four layers, which leaves this many bytes free.
fn four_layers(headroom: u64) -> Measure<'static> {
    let request = Request::new().headroom(Headroom::Bytes(headroom)).n_ctx(256).n_ubatch(64);
    let measure = Measure::new(demo_path()).request(request.n_gpu_layers(GpuLayers::Exactly(4)));
    measure.load_with(|builder| {
        builder.n_threads(1).attempts(1).verify(Verify::Off).on_difference(OnDifference::Fail).without_learning()
    })
}

#[test]
fn every_stage_has_a_reading_and_pools_are_counted_besides_the_planned_bytes() {
    own_process!();
    let gpu = card(mib(64), POOLS);
    let stages = four_layers(POOLS).stages(&STEPS);
    assert_eq!((stages.outcome.clone(), stages.failed_attempts), (Outcome::Completed, 0));
    assert_eq!(stages.n_gpu_layers, 4);
    let [card] = stages.gpus.as_slice() else { panic!("{stages:?}") };
    assert_eq!((card.device.as_str(), card.headroom), (&*gpu.device().name(), POOLS));
    assert_eq!(card.planned, card.allocated);
    let read: Vec<_> = card.stages.iter().map(|reading| (reading.stage.as_str(), reading.depth)).collect();
    assert_eq!(read, [("opened", 0), ("loaded", 0), ("prompt", 65), ("decoded", 5), ("full", 257)]);
    let free: Vec<u64> = card.stages.iter().map(|reading| reading.free.ggml.unwrap()).collect();
    let loaded = mib(64) - card.planned.total();
    assert_eq!(free, [mib(64), loaded, loaded - POOLS, loaded - POOLS, loaded - POOLS]);
    assert_eq!((card.beyond(), stages.least_free()), (Some((0, POOLS)), Some(loaded - POOLS)));
    assert_eq!(stages.fault(), None);
    assert_eq!(gpu.used(), 0, "the model is unloaded");

    let json = serde_json::to_string(&stages).unwrap();
    assert_eq!(serde_json::from_str::<Stages>(&json).unwrap(), stages);
}

#[test]
fn pools_that_take_more_than_was_left_free_are_a_fault() {
    own_process!();
    let _gpu = card(mib(64), POOLS);
    let fault = four_layers(POOLS - 1).stages(&STEPS).fault().unwrap();
    assert!(fault.contains("300000 bytes beyond the footprint, 299999 were left"), "{fault}");
    // Before the first computation, nothing is taken.
    assert_eq!(four_layers(0).stages(&[]).fault(), None);
}

#[test]
fn a_refused_plan_a_lack_of_memory_and_a_stop_are_different_outcomes() {
    own_process!();
    let gpu = card(mib(1), 0);
    let refused = four_layers(0).stages(&STEPS);
    assert!(matches!(refused.outcome, Outcome::Refused(_)), "{refused:?}");
    assert_eq!((refused.fault(), refused.gpus.len()), (None, 0));
    drop(gpu);

    // The pools take memory that the plan has given to nothing, and then there is too little for the first computation.
    let _gpu = card(mib(64), mib(64));
    let late = four_layers(0).stages(&STEPS);
    let Outcome::OutOfMemory(why) = &late.outcome else { panic!("{late:?}") };
    assert_eq!(late.fault().as_ref(), Some(why));
    let read = late.gpus[0].stages.iter().map(|reading| reading.stage.as_str());
    assert_eq!(read.collect::<Vec<_>>(), ["opened", "loaded"], "earlier readings are kept");

    let stopped = four_layers(0).progress(|progress: &Progress<'_>| progress.name != "prompt").stages(&STEPS);
    assert!(matches!(&stopped.outcome, Outcome::Failed(why) if why.contains("stopped")), "{stopped:?}");
}
