//! What holds of every plan that is made to be fast.

use autoplace_planner::machine::{Gpu, Host, Machine, gib, mib};
use autoplace_planner::memory::Headroom;
use autoplace_planner::plan::{Context, Error, KvCache, KvPlace, Plan, Planner, Policy, Request};
use autoplace_planner::profile::ModelProfile;
use proptest::prelude::{
    Just, ProptestConfig, Strategy, prop, prop_assert, prop_assert_eq, prop_oneof, proptest,
};

use crate::shapes::any::shape;

/// Up to so many GPUs with some memory free, none slower than the host.
fn gpus(most: usize) -> impl Strategy<Value = Vec<Gpu>> {
    let backend = prop_oneof![Just("CUDA"), Just("CUDA"), Just("Vulkan"), Just("MTL")];
    let gpu = (backend, mib(1)..gib(2), 60u64..2000).prop_map(|(backend, free, speed)| {
        Gpu::new("card")
            .total(gib(2))
            .free(free)
            .backend(backend)
            .bandwidth(speed * 1_000_000_000)
    });
    prop::collection::vec(gpu, 1..=most)
}

fn request() -> impl Strategy<Value = Request> {
    let headroom = prop_oneof![
        Just(Headroom::Default),
        (0..mib(200)).prop_map(Headroom::Bytes),
        (0.0f32..20.0).prop_map(Headroom::Percent),
    ];
    let (parts, types) = (
        crate::shapes::any::host_parts(),
        crate::shapes::any::kv_cache(),
    );
    let place = prop_oneof![Just(KvPlace::Given), Just(KvPlace::Auto)];
    let sizes = (1u32..20_000, 16u32..512, prop::option::of(Just(16u32)));
    (headroom, parts, types, place, sizes).prop_map(
        |(headroom, parts, types, place, (n_ctx, n_ubatch, least))| {
            let mut request = Request::new()
                .headroom(headroom)
                .host_parts(parts)
                .kv_cache(types)
                .kv_place(place)
                .context(Context::Tokens(n_ctx))
                .n_ubatch(n_ubatch);
            request.min_ubatch = least;
            request
        },
    )
}

fn machine(gpus: &[Gpu], host: u64) -> Machine {
    let host = Host::new(host).bandwidth(60_000_000_000);
    let gpus = gpus.iter().cloned();
    gpus.fold(Machine::new(host), Machine::with_gpu)
}

fn plan(profile: &ModelProfile, machine: &Machine, request: &Request) -> Result<Plan, Error> {
    let planner = Planner::new(profile, machine).request(request.clone());
    planner.plan()
}

/// Tokens per second; 0 where there is no plan.
fn speed(plan: &Result<Plan, Error>) -> f64 {
    let plan = plan.as_ref().ok();
    plan.map_or(0.0, |plan| plan.speed.as_ref().unwrap().tokens_per_second)
}

/// Whether no device gives more than it may, the host's memory that GPUs use included.
fn is_within_budget(plan: &Plan) -> bool {
    let within = |needed: u64, placement: &autoplace_planner::plan::Placement| {
        needed <= placement.budget
            && placement.budget + placement.headroom.total() <= placement.free
    };
    let bytes = |placement: &autoplace_planner::plan::Placement| placement.footprint.total();
    let shared: u64 = plan.gpus().map(|gpu| gpu.of_host).sum();
    let host = plan.host().unwrap();
    plan.gpus().all(|gpu| within(bytes(gpu), gpu)) && within(bytes(host) + shared, host)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn never_over_budget_always_the_same_and_read_back_as_written(
        shape in shape(),
        gpus in gpus(3),
        host in mib(600)..gib(8),
        request in request(),
    ) {
        let profile = shape.profile();
        let machine = machine(&gpus, host);
        let found = plan(&profile, &machine, &request);
        let again = plan(&profile, &machine, &request);
        prop_assert_eq!(format!("{found:?}"), format!("{again:?}"));
        if let Ok(plan) = found {
            prop_assert!(is_within_budget(&plan), "{plan}");
            let layers: u32 = plan.placements.iter().map(|placement| placement.layers).sum();
            prop_assert_eq!(layers, plan.layers());
            let text = serde_json::to_string(&plan).unwrap();
            prop_assert_eq!(serde_json::from_str::<Plan>(&text).unwrap(), plan);
        }
    }

    #[test]
    fn never_slower_than_with_the_most_layers(
        shape in shape(),
        gpus in gpus(3),
        host in mib(600)..gib(8),
        request in request(),
    ) {
        let profile = shape.profile();
        let machine = machine(&gpus, host);
        let fastest = speed(&plan(&profile, &machine, &request));
        let most_layers = request.policy(Policy::MostLayers);
        let most_layers = speed(&plan(&profile, &machine, &most_layers));
        prop_assert!(fastest >= 0.99 * most_layers, "{fastest} {most_layers}");
    }
    #[test]
    fn more_free_memory_is_never_slower(
        shape in shape(),
        gpus in gpus(3),
        host in mib(600)..gib(8),
        request in request(),
        more in prop::collection::vec(0..gib(1), 3),
    ) {
        // The search counts a small cache as if it were of 16 bits, the plan does not: one that finds
        // room looks slower.
        let request = request.kv_cache(KvCache::Given);
        let profile = shape.profile();
        let before = speed(&plan(&profile, &machine(&gpus, host), &request));
        let larger: Vec<Gpu> = gpus
            .iter()
            .zip(more)
            .map(|(gpu, more)| gpu.clone().free(gpu.free + more))
            .collect();
        let after = speed(&plan(&profile, &machine(&larger, host), &request));
        prop_assert!(after >= 0.99 * before, "{before} {after}");
    }
}
