//! What holds of every plan.

mod shapes;

use std::cell::RefCell;

use autoplace::machine::{Gpu, GpuKind, Host, Machine, gib, mib};
use autoplace::memory::{ContextParams, Estimate, Footprints, Headroom, Workload};
use autoplace::plan::{Confidence, Context, Error, GpuLayers, Plan, Planner, Probe, Request};
use autoplace::profile::ModelProfile;
use proptest::prelude::{Just, Strategy, any, prop_assert, prop_assert_eq, prop_oneof, proptest};

use shapes::{LLAMA_1B, LLAMA_8B, LLAMA_70B, QWEN3_30B_A3B, Shape};

fn shape() -> impl Strategy<Value = Shape> {
    let sizes = (1u32..24, 1u64..8, 1u64..6, 1u32..2000);
    (sizes, any::<bool>(), any::<bool>()).prop_map(
        |((n_layer, width, ff, vocab), tied, experts)| Shape {
            n_layer,
            n_embd: 256 * width,
            n_ff: 512 * ff,
            n_head: 4 * width,
            n_head_kv: width,
            head_dim: 64,
            n_vocab: 64 * u64::from(vocab),
            tied,
            experts: experts.then_some((8, 2)),
            ..LLAMA_8B
        },
    )
}

fn gpu() -> impl Strategy<Value = Gpu> {
    let backend = prop_oneof![Just("CUDA"), Just("Vulkan"), Just("MTL"), Just("Other")];
    (backend, mib(1)..gib(3), any::<bool>()).prop_map(|(backend, free, shared)| {
        let kind = if shared {
            GpuKind::Integrated
        } else {
            GpuKind::Discrete
        };
        Gpu::new("card")
            .total(gib(4))
            .free(free)
            .backend(backend)
            .kind(kind)
    })
}

fn request() -> impl Strategy<Value = Request> {
    let headroom = prop_oneof![
        Just(Headroom::Default),
        (0..mib(900)).prop_map(Headroom::Bytes),
        (0.0f32..30.0).prop_map(Headroom::Percent),
    ];
    (headroom, 1u32..20_000, 1u32..1024, 0u32..600).prop_map(
        |(headroom, n_ctx, n_ubatch, outputs)| {
            Request::new()
                .headroom(headroom)
                .context(Context::Tokens(n_ctx))
                .n_ubatch(n_ubatch)
                .n_outputs_max(outputs)
        },
    )
}

fn plan(profile: &ModelProfile, machine: &Machine, request: &Request) -> Result<Plan, Error> {
    Planner::new(profile, machine)
        .request(request.clone())
        .plan()
}

fn layers(plan: &Result<Plan, Error>) -> Option<u32> {
    plan.as_ref().ok().map(|plan| plan.n_gpu_layers)
}

/// Whether `n` layers on this GPU fit, put together anew from the parts: free bytes, headroom, footprints.
fn fits(profile: &ModelProfile, gpu: &Gpu, host: &Host, request: &Request, n: u32) -> bool {
    let mut params: ContextParams = request.params.clone();
    params.n_ctx = request.context.tokens(profile);
    let estimate = Estimate::new(profile, &[gpu], &params).unwrap();
    let workload = Workload::of(profile, estimate.sizes());
    let footprints = estimate.footprints(n);
    let on_gpu = footprints.gpus[0];
    let unsure = |footprint| estimate.uncertainty(n, footprint);
    let headroom = request.headroom.of_gpu(gpu, &workload, unsure(&on_gpu));
    let mut host_needed = footprints.host.total();
    if gpu.kind == GpuKind::Integrated {
        host_needed += on_gpu.total();
    }
    let host_headroom = Headroom::of_host(host, &workload, true, unsure(&footprints.host));
    on_gpu.total() + headroom.total() <= gpu.free
        && host_needed + host_headroom.total() <= host.available
}

proptest! {
    #[test]
    fn never_over_budget(
        shape in shape(),
        gpu in gpu(),
        request in request(),
        host in mib(300)..gib(4),
    ) {
        let machine = Machine::new(Host::new(host)).with_gpu(gpu.clone());
        if let Ok(plan) = plan(&shape.profile(), &machine, &request) {
            let mut shared = 0;
            for placement in &plan.placements {
                prop_assert!(placement.footprint.total() <= placement.budget, "{plan}");
                prop_assert!(placement.budget + placement.headroom.total() <= placement.free);
            }
            if gpu.kind == GpuKind::Integrated {
                shared = plan.gpus().map(|placement| placement.footprint.total()).sum();
            }
            let on_host = plan.host().unwrap();
            prop_assert!(on_host.footprint.total() + shared <= on_host.budget);
        }
    }

    #[test]
    fn never_under_brute_force(
        shape in shape(),
        gpu in gpu(),
        request in request(),
        host in mib(300)..gib(4),
    ) {
        let profile = shape.profile();
        let machine = Machine::new(Host::new(host)).with_gpu(gpu.clone());
        let all = 1..=profile.full_offload();
        let largest = all.rev().find(|&n| fits(&profile, &gpu, &machine.host, &request, n));
        let found = plan(&profile, &machine, &request);
        prop_assert_eq!(layers(&found).unwrap_or(0), largest.unwrap_or(0));
    }

    #[test]
    fn more_free_memory_never_means_fewer_layers(
        shape in shape(),
        gpu in gpu(),
        request in request(),
        more in 0u64..gib(1),
    ) {
        let profile = shape.profile();
        let machine = |gpu: Gpu| Machine::new(Host::new(gib(8))).with_gpu(gpu);
        let less = layers(&plan(&profile, &machine(gpu.clone()), &request));
        let free = gpu.free + more;
        let more = layers(&plan(&profile, &machine(gpu.free(free)), &request));
        prop_assert!(more >= less, "{less:?} {more:?}");
    }

    #[test]
    fn the_same_question_has_the_same_answer(shape in shape(), gpu in gpu(), request in request()) {
        let profile = shape.profile();
        let machine = Machine::new(Host::new(gib(2))).with_gpu(gpu);
        let one = plan(&profile, &machine, &request);
        let other = plan(&profile, &machine, &request);
        prop_assert_eq!(format!("{one:?}"), format!("{other:?}"));
    }

    #[test]
    fn every_layer_has_one_place(shape in shape(), gpu in gpu(), request in request()) {
        let profile = shape.profile();
        let machine = Machine::new(Host::new(gib(4))).with_gpu(gpu);
        if let Ok(plan) = plan(&profile, &machine, &request) {
            let layers: u32 = plan.placements.iter().map(|placement| placement.layers).sum();
            prop_assert_eq!(layers, plan.layers());
            prop_assert_eq!(plan.full_offload, plan.n_gpu_layers == plan.layers());
            prop_assert_eq!(plan.gpus().count(), usize::from(plan.n_gpu_layers > 0));
        }
    }

    #[test]
    fn a_plan_is_read_back_as_it_was_written(shape in shape(), gpu in gpu(), request in request()) {
        let machine = Machine::new(Host::new(gib(4))).with_gpu(gpu);
        if let Ok(plan) = plan(&shape.profile(), &machine, &request) {
            let text = serde_json::to_string(&plan).unwrap();
            prop_assert_eq!(serde_json::from_str::<Plan>(&text).unwrap(), plan);
        }
        let text = serde_json::to_string(&request).unwrap();
        prop_assert_eq!(serde_json::from_str::<Request>(&text).unwrap(), request);
    }

    #[test]
    fn a_plan_that_fails_says_what_is_missing(shape in shape(), gpu in gpu(), request in request()) {
        let profile = shape.profile();
        let machine = Machine::new(Host::new(mib(400))).with_gpu(gpu);
        match plan(&profile, &machine, &request) {
            Ok(_) => {}
            Err(Error::DoesNotFit { devices, .. }) => {
                prop_assert!(devices.iter().any(|device| device.missing > 0));
                for device in devices {
                    prop_assert_eq!(device.missing, device.needed.saturating_sub(device.budget));
                }
            }
            Err(other) => prop_assert!(false, "{}", other),
        }
    }

    /// A probe that says something else than the estimate: more or less by a share of it.
    #[test]
    fn a_probed_plan_equals_brute_force_over_the_probe(
        shape in shape(),
        gpu in gpu(),
        request in request(),
        percent in 70u64..140,
    ) {
        let profile = shape.profile();
        let machine = Machine::new(Host::new(gib(16))).with_gpu(gpu.clone());
        let probe = Scaled { profile: &profile, percent, asked: RefCell::default() };
        let found = Planner::new(&profile, &machine).request(request.clone()).plan_probed(&probe);
        let asked = probe.asked.take();
        if let Ok(plan) = &found {
            prop_assert_eq!(plan.confidence, Confidence::Probed);
            prop_assert!(asked.contains(&plan.n_gpu_layers));
            let above = plan.n_gpu_layers + 1;
            prop_assert!(plan.full_offload || asked.contains(&above) || plan.n_gpu_layers == 0);
            prop_assert!(plan.placements.iter().all(|p| p.footprint.total() <= p.budget));
        }
    }
}

/// The estimate, scaled: stands for a probe.
struct Scaled<'a> {
    profile: &'a ModelProfile,
    percent: u64,
    asked: RefCell<Vec<u32>>,
}

impl Probe for Scaled<'_> {
    fn footprints(
        &self,
        gpu: Option<&Gpu>,
        params: &ContextParams,
        n_gpu_layers: u32,
    ) -> Result<Footprints, Box<dyn std::error::Error + Send + Sync>> {
        self.asked.borrow_mut().push(n_gpu_layers);
        let gpus: Vec<&Gpu> = gpu.into_iter().collect();
        let mut footprints = Estimate::new(self.profile, &gpus, params)?.footprints(n_gpu_layers);
        for part in footprints.gpus.iter_mut().chain([&mut footprints.host]) {
            part.weights = part.weights * self.percent / 100;
            part.kv = part.kv * self.percent / 100;
            part.compute = part.compute * self.percent / 100;
        }
        Ok(footprints)
    }
}

#[test]
fn a_probed_plan_of_a_70b_model_asks_a_handful_of_times_and_agrees_with_all_of_them() {
    for (percent, at_most) in [(100, 3), (97, 6), (106, 7), (130, 9)] {
        let profile = LLAMA_70B.profile();
        let card = Gpu::new("RTX 4090").total(gib(24)).free(gib(22));
        let machine = Machine::new(Host::new(gib(64))).with_gpu(card);
        let probe = Scaled {
            profile: &profile,
            percent,
            asked: RefCell::default(),
        };
        let planner = Planner::new(&profile, &machine);
        let plan = planner.plan_probed(&probe).unwrap();
        let asked = probe.asked.take().len();
        assert!(asked <= at_most, "{percent} %: asked {asked} times");
        // Brute force: the largest number of layers whose probe fits the budget of the plan.
        let budget = plan.gpus().next().unwrap().budget;
        let gpu = &machine.gpus[0];
        let largest = (1..=81).rev().find(|&n| {
            let footprints = probe.footprints(Some(gpu), &plan.context, n).unwrap();
            footprints.gpus[0].total() <= budget
        });
        assert_eq!(Some(plan.n_gpu_layers), largest, "{percent} %");
    }
}

#[test]
fn of_two_gpus_the_one_that_takes_more_layers_is_chosen_and_of_equals_the_first() {
    let profile = LLAMA_8B.profile();
    let card = |name: &str, free| Gpu::new(name).total(gib(24)).free(free);
    let machine = |gpus: [Gpu; 2]| {
        gpus.into_iter()
            .fold(Machine::new(Host::new(gib(64))), Machine::with_gpu)
    };
    let chosen = |machine: &Machine| {
        let plan = Planner::new(&profile, machine).plan().unwrap();
        plan.gpus().next().unwrap().name.clone()
    };
    assert_eq!(
        chosen(&machine([card("A", gib(4)), card("B", gib(5))])),
        "B"
    );
    assert_eq!(
        chosen(&machine([card("A", gib(5)), card("B", gib(5))])),
        "A"
    );
    assert_eq!(chosen(&machine([card("A", 0), card("B", gib(5))])), "B");
    // Both take everything: the one with more to spare.
    assert_eq!(
        chosen(&machine([card("A", gib(20)), card("B", gib(22))])),
        "B"
    );
}

#[test]
fn a_named_number_of_layers_is_that_number_or_an_error() {
    let profile = LLAMA_8B.profile();
    let card = Gpu::new("card").total(gib(8)).free(gib(4));
    let machine = Machine::new(Host::new(gib(32))).with_gpu(card);
    let exactly = |n| Request::new().gpu_layers(GpuLayers::Exactly(n));
    for n in [0, 1, 7] {
        assert_eq!(
            plan(&profile, &machine, &exactly(n)).unwrap().n_gpu_layers,
            n
        );
    }
    match plan(&profile, &machine, &exactly(33)) {
        Err(Error::DoesNotFit {
            n_gpu_layers: 33,
            layers: 33,
            devices,
            ..
        }) => {
            assert_eq!(devices[0].device, "card");
            assert!(devices[0].missing > 0);
            assert_eq!(
                (devices[1].device.as_str(), devices[1].missing),
                ("host", 0)
            );
        }
        other => panic!("{other:?}"),
    }
    let large = Machine::new(Host::new(gib(32))).with_gpu(Gpu::new("card").total(gib(24)));
    let plan = plan(&profile, &large, &exactly(99)).unwrap();
    assert_eq!(plan.n_gpu_layers, 33);
    assert!(
        plan.notes
            .iter()
            .any(|note| note.contains("99 layers were asked for")),
        "{plan}"
    );
}

#[test]
fn layers_on_a_gpu_that_is_not_there_are_an_error() {
    let machine = Machine::new(Host::new(gib(32)));
    let request = Request::new().gpu_layers(GpuLayers::Exactly(5));
    let error = plan(&LLAMA_1B.profile(), &machine, &request).unwrap_err();
    assert!(matches!(error, Error::NoGpu { n_gpu_layers: 5 }), "{error}");
}

#[test]
fn memory_of_unknown_law_is_planned_by_a_probe_only() {
    let shape = Shape {
        arch: "mamba2",
        ..LLAMA_1B
    };
    let profile = shape.profile();
    let machine = Machine::new(Host::new(gib(32))).with_gpu(Gpu::new("card").total(gib(8)));
    let error = plan(&profile, &machine, &Request::new()).unwrap_err();
    assert!(matches!(error, Error::Unknown { .. }), "{error}");
    let probe = Scaled {
        profile: &profile,
        percent: 100,
        asked: RefCell::default(),
    };
    let plan = Planner::new(&profile, &machine)
        .plan_probed(&probe)
        .unwrap();
    assert_eq!(plan.confidence, Confidence::Probed);
    assert!(plan.full_offload);
}

#[test]
fn a_probe_that_fails_is_an_error_that_says_where() {
    struct Broken;
    impl Probe for Broken {
        fn footprints(
            &self,
            _: Option<&Gpu>,
            _: &ContextParams,
            _: u32,
        ) -> Result<Footprints, Box<dyn std::error::Error + Send + Sync>> {
            Err("no native code".into())
        }
    }
    let profile = LLAMA_1B.profile();
    let machine = Machine::new(Host::new(gib(32))).with_gpu(Gpu::new("card").total(gib(8)));
    let error = Planner::new(&profile, &machine)
        .plan_probed(&Broken)
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "the probe with 17 layers on the GPU failed: no native code"
    );
}

#[test]
fn the_context_is_4096_tokens_unless_asked_for() {
    let machine = Machine::new(Host::new(gib(64)));
    let n_ctx = |context| {
        let request = Request::new().context(context);
        plan(&LLAMA_1B.profile(), &machine, &request)
            .unwrap()
            .context
            .n_ctx
    };
    assert_eq!(n_ctx(Context::Default), 4096);
    assert_eq!(n_ctx(Context::Model), 131_072);
    assert_eq!(n_ctx(Context::Tokens(300)), 300);
    let short = Shape {
        n_ctx_train: 2048,
        ..LLAMA_1B
    }
    .profile();
    let plan = plan(&short, &machine, &Request::new()).unwrap();
    assert_eq!(plan.context.n_ctx, 2048);
}

#[test]
fn experts_are_planned_too() {
    let profile = QWEN3_30B_A3B.profile();
    let machine = Machine::new(Host::new(gib(32))).with_gpu(Gpu::new("card").total(gib(12)));
    let plan = plan(&profile, &machine, &Request::new()).unwrap();
    assert!((20..40).contains(&plan.n_gpu_layers), "{plan}");
}
