//! Plans that a probe confirms. The probe here is the scaled estimate, so that the tests need no native code.

use std::cell::RefCell;

use autoplace_planner::gguf::TensorType;
use autoplace_planner::machine::{Gpu, Host, Machine, gib, mib};
use autoplace_planner::memory::{ContextParams, Estimate, Footprints, Split};
use autoplace_planner::plan::{Confidence, Error, GpuLayers, HostParts, Plan, Planner, Policy, Probe, Request};
use autoplace_planner::profile::ModelProfile;
use proptest::prelude::{prop_assert, prop_assert_eq, proptest};

use crate::any::{gpu, request, shape};
use crate::machine;
use test_support::shapes::{LLAMA_1B, LLAMA_8B, LLAMA_70B, QWEN3_30B_A3B, Shape};

/// A probe that answers with the scaled estimate.
struct Scaled<'a> {
    profile: &'a ModelProfile,
    /// For each GPU and number of layers, the scale in percent, or llama.cpp's reason to refuse this placement.
    percent: Box<Percent<'a>>,
    asked: RefCell<Vec<u32>>,
}

type Percent<'a> = dyn Fn(&[&Gpu], u32) -> Result<u64, &'static str> + 'a;
type Answer = Result<Footprints, Box<dyn std::error::Error + Send + Sync>>;

fn scaled(profile: &ModelProfile, percent: u64) -> Scaled<'_> {
    scaled_by(profile, Box::new(move |_, _| Ok(percent)))
}

fn scaled_by<'a>(profile: &'a ModelProfile, percent: Box<Percent<'a>>) -> Scaled<'a> {
    Scaled { profile, percent, asked: RefCell::default() }
}

fn most_layers(profile: &ModelProfile, machine: &Machine, probe: &Scaled<'_>) -> Result<Plan, Error> {
    Planner::new(profile, machine).request(Request::new().policy(Policy::MostLayers)).plan_probed(probe)
}

impl Probe for Scaled<'_> {
    fn footprints(&self, gpus: &[&Gpu], params: &ContextParams, split: &Split) -> Answer {
        let layers = split.n_gpu_layers;
        self.asked.borrow_mut().push(layers);
        let percent = (self.percent)(gpus, layers)?;
        let estimate = Estimate::new(self.profile, gpus, params)?.overrides(&split.overrides)?;
        let mut footprints = estimate.footprints(layers);
        for part in footprints.gpus.iter_mut().chain([&mut footprints.host]) {
            for bytes in [&mut part.weights, &mut part.kv, &mut part.compute] {
                *bytes = *bytes * percent / 100;
            }
        }
        Ok(footprints)
    }
}

/// A probe that does not count the buffer of a context's outputs, as llama.cpp's breakdown does not.
struct WithoutOutputs<'a>(Scaled<'a>);

impl Probe for WithoutOutputs<'_> {
    fn footprints(&self, gpus: &[&Gpu], params: &ContextParams, split: &Split) -> Answer {
        let mut footprints = self.0.footprints(gpus, params, split)?;
        footprints.host.compute -= footprints.output;
        footprints.output = 0;
        Ok(footprints)
    }
}

#[test]
fn a_plan_has_the_buffer_of_outputs_also_if_the_probe_does_not_count_it() {
    let profile = LLAMA_8B.profile();
    let machine = machine(gib(64), &[gib(8)]);
    let planned = |probe: &dyn Probe| Planner::new(&profile, &machine).plan_probed(probe).unwrap();
    let counted = planned(&scaled(&profile, 100));
    let added = planned(&WithoutOutputs(scaled(&profile, 100)));
    assert_eq!(added.n_gpu_layers, counted.n_gpu_layers);
    let footprints = |plan: &Plan| plan.placements.iter().map(|placement| placement.footprint).collect::<Vec<_>>();
    assert_eq!(footprints(&added), footprints(&counted));
}

proptest! {
    /// The probe differs from the estimate by a share of the estimate, up or down.
    #[test]
    fn a_probed_plan_equals_an_exhaustive_search_with_the_probe(
        shape in shape(),
        gpu in gpu(),
        request in request(),
        percent in 70u64..140,
    ) {
        let profile = shape.profile();
        let machine = Machine::new(Host::new(gib(16))).with_gpu(gpu);
        let probe = scaled(&profile, percent);
        let found = Planner::new(&profile, &machine).request(request.clone()).plan_probed(&probe);
        let asked = probe.asked.take();
        if let Err(Error::DoesNotFit { devices, .. }) = &found {
            prop_assert!(devices.iter().any(|device| device.missing > 0));
        }
        if let Ok(plan) = &found {
            prop_assert_eq!(plan.confidence, Confidence::Probed);
            prop_assert!(asked.contains(&plan.n_gpu_layers));
            let above = plan.n_gpu_layers + 1;
            // If every answer differs from the estimate by a third, the search may use up its probes before it finds
            // the best plan.
            let is_known = asked.contains(&above) || asked.len() >= 6;
            prop_assert!(plan.full_offload || is_known || plan.n_gpu_layers == 0);
            prop_assert!(plan.placements.iter().all(|p| p.footprint.total() <= p.budget));
        }
    }
}

#[test]
fn a_plan_of_a_70b_model_needs_few_probes_and_equals_an_exhaustive_search() {
    for (percent, at_most) in [(100, 3), (97, 6), (106, 7), (130, 9)] {
        let profile = LLAMA_70B.profile();
        let machine = machine(gib(64), &[gib(22)]);
        let probe = scaled(&profile, percent);
        let request = Request::new().host_parts(HostParts::None);
        let plan = Planner::new(&profile, &machine).request(request).plan_probed(&probe).unwrap();
        let asked = probe.asked.take().len();
        assert!(asked <= at_most, "{percent} %: asked {asked} times");
        // By brute force, this is the largest number of layers whose probe fits the budget of the plan.
        let budget = plan.gpus().next().unwrap().budget;
        let gpu = &machine.gpus[0];
        let largest = (1..=81).rev().find(|&n| {
            let footprints = probe.footprints(&[gpu], &plan.context, &Split::layers(n)).unwrap();
            footprints.gpus[0].total() <= budget
        });
        assert_eq!(Some(plan.n_gpu_layers), largest, "{percent} %");
    }
}

#[test]
fn a_stated_number_of_layers_is_probed_once() {
    let profile = LLAMA_8B.profile();
    let machine = machine(gib(32), &[gib(24)]);
    for (n, gpus) in [(0, 0), (7, 1), (33, 1)] {
        let probe = scaled(&profile, 100);
        let request = Request::new().n_gpu_layers(GpuLayers::Exactly(n)).n_ctx(4096);
        let plan = Planner::new(&profile, &machine).request(request).plan_probed(&probe).unwrap();
        assert_eq!((plan.n_gpu_layers, plan.gpus().count()), (n, gpus));
        assert_eq!(probe.asked.take(), [n]);
    }
}

#[test]
fn a_probe_that_finds_no_room_gives_an_error_with_the_missing_bytes() {
    let profile = LLAMA_8B.profile();
    // The model fits on the card by the estimate, but the probe reports three times as many bytes.
    let machine = machine(gib(8), &[gib(8)]);
    let probe = scaled(&profile, 300);
    let planner = Planner::new(&profile, &machine);
    assert!(planner.plan().is_ok());
    match planner.plan_probed(&probe) {
        Err(Error::DoesNotFit { devices, .. }) => {
            assert!(devices.iter().any(|device| device.missing > gib(1) / 2), "{devices:?}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_error_of_a_probed_plan_names_the_split_with_the_fewest_missing_bytes() {
    let profile = LLAMA_70B.profile();
    let machine = machine(gib(16), &[gib(24)]);
    let probe = scaled(&profile, 100);
    let planner = Planner::new(&profile, &machine);
    let lacking = |error| match error {
        Error::DoesNotFit { n_gpu_layers, devices, n_ctx, .. } => (n_gpu_layers, devices, n_ctx),
        other => panic!("{other}"),
    };
    let (estimated, ..) = lacking(planner.plan().unwrap_err());
    let (probed, devices, n_ctx) = lacking(planner.plan_probed(&probe).unwrap_err());
    assert!((35..60).contains(&estimated) && estimated.abs_diff(probed) < 2, "{estimated} {probed}");
    // The number of devices that lack memory, and the number of missing bytes.
    let lack = |n: u32| {
        let gpus: Vec<&Gpu> = machine.gpus.iter().collect();
        let mut params = Request::new().params;
        params.n_ctx = n_ctx;
        let footprints = probe.footprints(&gpus, &params, &Split::layers(n)).unwrap();
        let needed = [footprints.gpus[0].total(), footprints.host.total()];
        let missing = needed.iter().zip(&devices);
        let missing = missing.map(|(needed, device)| needed.saturating_sub(device.budget));
        let missing: Vec<u64> = missing.filter(|&missing| missing > 0).collect();
        (missing.len(), missing.iter().sum::<u64>())
    };
    assert!((1..=81).all(|n| lack(probed) <= lack(n)), "{probed}");
}

#[test]
fn a_model_with_unknown_memory_can_only_be_planned_by_a_probe() {
    let machine = machine(gib(32), &[gib(8)]);
    // `eagle3` is a draft model without a context of its own, and `gemma3n` has a graph of several streams.
    for arch in ["eagle3", "gemma3n"] {
        let builder = Shape { arch, ..LLAMA_1B }.builder();
        let header = builder.u32(&format!("{arch}.attention.sliding_window"), 512);
        let profile = ModelProfile::from_header(&header.header().unwrap()).unwrap();
        let planner = Planner::new(&profile, &machine);
        let error = planner.plan().unwrap_err();
        assert!(matches!(error, Error::Unknown { .. }), "{error}");
        let plan = planner.plan_probed(&scaled(&profile, 100)).unwrap();
        assert_eq!(plan.confidence, Confidence::Probed);
        assert!(plan.full_offload);
    }
}

#[test]
fn experts_of_a_model_with_prediction_blocks_go_to_the_host_before_layers() {
    let header = Shape { arch: "glm4moe", ..QWEN3_30B_A3B }.builder().u32("glm4moe.nextn_predict_layers", 1);
    let heads = ["eh_proj", "enorm", "hnorm"].map(|name| format!("blk.47.nextn.{name}.weight"));
    let header = heads.iter().fold(header, |header, name| header.tensor(name, TensorType::F16, &[2048]));
    let profile = ModelProfile::from_header(&header.header().unwrap()).unwrap().with_mtp().unwrap();
    let plan = Planner::new(&profile, &machine(gib(32), &[gib(12)])).plan_probed(&scaled(&profile, 105)).unwrap();
    assert!(plan.context.mtp && plan.n_gpu_layers == plan.layers() && plan.split_blocks > 0, "{plan}");
}

#[test]
fn a_failed_probe_gives_an_error_with_the_layers_and_the_reason() {
    let profile = LLAMA_1B.profile();
    let probe = scaled_by(&profile, Box::new(|_, _| Err("no native code")));
    let error = most_layers(&profile, &machine(gib(32), &[gib(8)]), &probe).unwrap_err();
    assert_eq!(error.to_string(), "the probe with 17 layers on the GPU failed: no native code");
}

#[test]
fn the_card_with_the_most_layers_by_the_probe_is_taken_and_a_refused_one_is_named() {
    let profile = LLAMA_8B.profile();
    let machine = machine(gib(64), &[gib(6), gib(6) - mib(200)]);
    for (of_first, taken) in [(Ok(100), "card 0"), (Ok(110), "card 1"), (Err("no context on this one"), "card 1")] {
        let is_first = |gpus: &[&Gpu]| gpus.iter().any(|gpu| gpu.name == "card 0");
        let probe = scaled_by(&profile, Box::new(|gpus, _| if is_first(gpus) { of_first } else { Ok(100) }));
        let plan = most_layers(&profile, &machine, &probe).unwrap();
        assert_eq!(plan.gpus().next().unwrap().name, taken);
        if of_first.is_ok() {
            let fastest = Planner::new(&profile, &machine).plan_probed(&probe).unwrap();
            assert_eq!(fastest.gpus().next().unwrap().name, taken);
        }
        let left_out = plan.notes.iter().any(|note| note.contains("card 0 was left out"));
        assert_eq!(left_out, of_first.is_err(), "{plan}");
    }
}

#[test]
fn a_number_of_layers_that_llama_cpp_refuses_is_skipped_with_a_note() {
    let profile = LLAMA_8B.profile();
    let planned = |refused: &[u32]| {
        let refuses = |_: &[&Gpu], layers| match refused.contains(&layers) {
            true => Err("no cache for these"),
            false => Ok(100),
        };
        most_layers(&profile, &machine(gib(32), &[gib(4)]), &scaled_by(&profile, Box::new(refuses)))
    };
    let most = planned(&[]).unwrap().n_gpu_layers;
    let plan = planned(&[most]).unwrap();
    assert_eq!(plan.n_gpu_layers, most - 1);
    assert!(plan.notes[0].contains("llama.cpp refuses one more"), "{plan}");
    // The card refuses every number of layers, so the error is about the card.
    let refused: Vec<u32> = (0..=most).collect();
    let error = planned(&refused).unwrap_err();
    assert!(error.to_string().contains("no cache for these"), "{error}");
}
