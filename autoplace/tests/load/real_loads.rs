//! The probe is compared with real loads. The models have random weights, and the simulated GPUs count their own bytes.
//! The probe and the real load have exactly the same bytes, both before and after a prompt and a token are computed.

use std::path::{Path, PathBuf};

use crate::real_loads_support::{Placement, compare, compare_all, probed, random, settings};
use crate::rig::{Card, Kind, Loaded};
use autoplace::gguf::{Header, TensorType};
use autoplace::llama_sys::sim::{Rules, SimGpu};
use autoplace::load::NativeProbe;
use autoplace::machine::{Gpu, Host, Machine, gib};
use autoplace::memory::{ContextParams, Headroom, Place, Split, TensorOverride};
use autoplace::plan::{GpuLayers, Planner, Policy, Request};
use autoplace::profile::ModelProfile;
use test_support::random_weights::DIMS;
use test_support::synthetic::Sketch;
use test_support::synthetic::block::{Block, QkNorms};

/// The model in the list with this architecture, with random weights.
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

/// A model in which the matrices for values, and for the output of the feed-forward step, are folded.
fn folded() -> Sketch {
    let mut sketch = Sketch::new("qwen3", "folded", DIMS);
    sketch.ends(TensorType::Q8_0, Some(TensorType::Q8_0));
    sketch.stack(&Block { qk_norms: QkNorms::PerHead, ..Block::new(TensorType::Q8_0, TensorType::Q8_0) });
    let weights = (0..DIMS.n_layer).flat_map(|il| ["attn_v", "ffn_down"].map(|name| format!("blk.{il}.{name}.weight")));
    sketch.folded(128, &[256, 768], &weights.collect::<Vec<_>>());
    sketch
}

#[test]
fn a_probe_counts_what_llama_cpp_makes_for_weights_that_were_folded_in_their_file() {
    own_process!();
    let mut read = settings();
    for params in &mut read {
        params.mmap = false;
    }
    compare_all(&[folded()], &read, read.len(), |sketch, folder| Some(random(sketch, folder)), compare);
    // The host maps a file only once. But the probe may count its weights twice: for the CPU, and for pinned memory.
    let folder = tempfile::tempdir().unwrap();
    let (path, probe) = random(&folded(), folder.path());
    let [mapped, ..] = settings();
    for placement in Placement::all(5) {
        let (cards, probed) = probed(&probe, &placement, &mapped).unwrap();
        let cards: Vec<&Card> = cards.iter().collect();
        let loaded = Loaded::new(&path, &cards, &placement.split, &mapped, Kind::Real).unwrap();
        assert_eq!(loaded.footprints(&mapped).unwrap().gpus, probed.footprints.gpus, "{placement:?}");
    }
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

    // If there is room for only one copy of the graph, a real load of the first split takes the bytes that the probe
    // counts for the second split.
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
fn a_gpu_without_room_for_recurrent_state_is_probed_and_gets_no_layers() {
    own_process!();
    let folder = tempfile::tempdir().unwrap();
    let (path, probe) = model_of("mamba2", folder.path());
    let sim = SimGpu::builder("SIM").total(4096).register().unwrap();
    let gpu = Gpu::new("SIM").device(sim.device().name()).total(4096);
    let probed = probe.breakdown(&[&gpu], &ContextParams::default(), &Split::layers(5)).unwrap();
    assert!(probed.footprints.gpus[0].kv > 4096 && sim.peak() == 0, "{probed:?}");

    let profile = ModelProfile::from_header(&Header::open(path).unwrap()).unwrap();
    let machine = Machine::new(Host::new(gib(16))).with_gpu(gpu);
    for policy in [Policy::Fastest, Policy::MostLayers] {
        let request = Request::new().policy(policy).headroom(Headroom::Bytes(0));
        let plan = Planner::new(&profile, &machine).request(request).plan_probed(&probe).unwrap();
        assert_eq!(plan.n_gpu_layers, 0, "{plan}");
    }
    let request = Request::new().n_gpu_layers(GpuLayers::Exactly(5));
    let error = Planner::new(&profile, &machine).request(request).plan_probed(&probe).unwrap_err().to_string();
    assert!(error.contains("does not fit with 5 of 5 layers") && error.contains("missing on SIM: "), "{error}");
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
