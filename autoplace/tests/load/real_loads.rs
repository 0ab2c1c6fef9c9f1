//! The probe compared with real loads of models with random weights, on simulated GPUs with their own counts: equal to
//! the byte, before and after a prompt and a token.

use std::path::{Path, PathBuf};

use crate::real_loads_support::{compare, compare_all, random, settings};
use crate::rig::{Card, Kind, Loaded};
use autoplace::gguf::Header;
use autoplace::llama_sys::sim::{Rules, SimGpu};
use autoplace::load::{Error, NativeProbe};
use autoplace::machine::{Gpu, Host, Machine, gib};
use autoplace::memory::{ContextParams, Headroom, Place, Split, TensorOverride};
use autoplace::plan::{GpuLayers, Planner, Policy, Request};
use autoplace::profile::ModelProfile;
use test_support::synthetic::Sketch;

/// A model of the list with random weights.
fn model_of(arch: &str, folder: &Path) -> (PathBuf, NativeProbe) {
    let mut all = test_support::random_weights::all().into_iter();
    random(&all.find(|sketch| sketch.arch == arch).unwrap(), folder)
}

#[test]
fn a_probe_is_the_real_load_to_the_byte() {
    own_process!();
    // Every model uses every setting and every placement.
    let probe = |sketch: &Sketch, folder: &Path| Some(random(sketch, folder));
    compare_all(&test_support::random_weights::all(), &settings(), 1, probe, compare);
}

#[test]
fn graphs_in_flight_are_counted_and_an_override_of_nothing_keeps_one() {
    own_process!();
    let folder = tempfile::tempdir().unwrap();
    let (path, probe) = model_of("llama", folder.path());
    let cards = [(Rules::Cuda, true); 2].map(Card::new);
    let gpus = cards.each_ref().map(|card| &card.gpu);
    let params = ContextParams::default();
    let mut split = Split::layers(5);
    split.tensor_split = vec![1.0, 1.0];
    let four = probe.breakdown(&gpus, &params, &split).unwrap();
    split = split.overrides([TensorOverride::new("^nothing$", Place::Host)]);
    let one = probe.breakdown(&gpus, &params, &split).unwrap();
    assert_eq!((four.copies, one.copies), (4, 1));
    assert!(four.footprints.gpus[0].compute > one.footprints.gpus[0].compute);

    // With room for only one copy, a real load of the first split takes what the probe found for the second.
    for (card, sum) in cards.iter().zip(&one.footprints.gpus) {
        card.sim.set_taken(gib(400) - sum.total());
    }
    split.overrides.clear();
    let loaded = Loaded::new(&path, &cards.each_ref(), &split, &params, Kind::Real).unwrap();
    let _context = loaded.context(&params).unwrap();
    for (card, sum) in cards.iter().zip(&one.footprints.gpus) {
        assert_eq!(card.sim.used(), sum.total());
    }
}

#[test]
fn a_gpu_without_room_for_allocated_state_is_named_and_gets_no_layers() {
    own_process!();
    let folder = tempfile::tempdir().unwrap();
    let (path, probe) = model_of("mamba2", folder.path());
    let sim = SimGpu::builder("SIM").total(4096).register().unwrap();
    let gpu = Gpu::new("SIM").device(sim.device().name()).total(4096);
    let error = probe.breakdown(&[&gpu], &ContextParams::default(), &Split::layers(5)).unwrap_err();
    let Error::Native(native) = &error else { panic!("{error:?}") };
    assert_eq!(native.out_of_memory().expect("it is out of memory").buffer_type, sim.device().name());
    assert_eq!(sim.used(), 0);

    let profile = ModelProfile::from_header(&Header::open(path).unwrap()).unwrap();
    let machine = Machine::new(Host::new(gib(16))).with_gpu(gpu);
    for policy in [Policy::Fastest, Policy::MostLayers] {
        let request = Request::new().policy(policy).headroom(Headroom::Bytes(0));
        let plan = Planner::new(&profile, &machine).request(request).plan_probed(&probe).unwrap();
        assert_eq!(plan.n_gpu_layers, 0, "{plan}");
    }
    let request = Request::new().n_gpu_layers(GpuLayers::Exactly(5));
    let error = Planner::new(&profile, &machine).request(request).plan_probed(&probe).unwrap_err().to_string();
    assert_eq!(error, "the probe with 5 layers on the GPU failed: SIM0 has no room for 548.0 KiB");
}

#[test]
fn a_gpu_whose_blocks_keep_nothing_fails_the_probe_as_it_fails_the_load() {
    own_process!();
    let folder = tempfile::tempdir().unwrap();
    let (path, probe) = random(&test_support::random_weights::without_attention(), folder.path());
    let card = Card::new((Rules::Cuda, false));
    let params = ContextParams::default();
    for (n_gpu_layers, works) in [(0, true), (1, true), (2, false), (3, true)] {
        let split = Split::layers(n_gpu_layers);
        let probed = probe.breakdown(&[&card.gpu], &params, &split);
        let loaded = Loaded::new(&path, &[&card], &split, &params, Kind::Real).unwrap().context(&params);
        assert_eq!(loaded.is_ok(), works, "{n_gpu_layers} layers");
        assert_eq!(probed.is_ok(), works, "{n_gpu_layers} layers: {probed:?}");
    }
}
