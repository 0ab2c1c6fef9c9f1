//! What holds of every plan that is made to be fast.

use autoplace_planner::machine::{Gpu, Host, Machine, gib, mib};
use autoplace_planner::memory::Headroom;
use autoplace_planner::plan::{Error, KvPlace, Plan, Planner, Policy, Request};
use autoplace_planner::profile::ModelProfile;
use proptest::prelude::{Just, ProptestConfig, Strategy, prop, prop_assert, prop_oneof, proptest};

use crate::plan_properties::assert_sound;
use crate::shapes::any::shape;

/// Up to so many GPUs with some memory free, none slower than the host.
fn gpus(most: usize) -> impl Strategy<Value = Vec<Gpu>> {
    let backend = prop_oneof![Just("CUDA"), Just("CUDA"), Just("Vulkan"), Just("MTL")];
    let gpu = (backend, mib(1)..gib(2), 60u64..2000).prop_map(|(backend, free, speed)| {
        Gpu::new("card").total(gib(2)).free(free).backend(backend).bandwidth(speed * 1_000_000_000)
    });
    prop::collection::vec(gpu, 1..=most)
}

fn request() -> impl Strategy<Value = Request> {
    let headroom = prop_oneof![
        Just(Headroom::Default),
        (0..mib(200)).prop_map(Headroom::Bytes),
        (0.0f32..20.0).prop_map(Headroom::Percent),
    ];
    let (parts, types) = (crate::shapes::any::host_parts(), crate::shapes::any::kv_cache());
    let place = prop_oneof![Just(KvPlace::Given), Just(KvPlace::Auto)];
    let sizes = (1u32..20_000, 16u32..512, prop::option::of(Just(16u32)));
    (headroom, parts, types, place, sizes).prop_map(|(headroom, parts, types, place, (n_ctx, n_ubatch, least))| {
        let mut request = Request::new()
            .headroom(headroom)
            .host_parts(parts)
            .kv_cache(types)
            .kv_place(place)
            .n_ctx(n_ctx)
            .n_ubatch(n_ubatch);
        request.min_ubatch = least;
        request
    })
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

/// What the plan's workload takes: a prompt and its reply.
fn seconds(plan: &Result<Plan, Error>) -> f64 {
    let speed = plan.as_ref().ok().and_then(|plan| plan.speed.as_ref());
    speed.map_or(f64::INFINITY, |speed| {
        let work = speed.workload;
        let prompt = f64::from(work.prompt) / speed.prompt.tokens_per_second;
        prompt + f64::from(work.reply) / speed.tokens_per_second
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn sound_and_never_slower_than_with_the_most_layers(
        shape in shape(),
        gpus in gpus(3),
        host in mib(600)..gib(8),
        request in request(),
    ) {
        let profile = shape.profile();
        let machine = machine(&gpus, host);
        let fastest = plan(&profile, &machine, &request);
        if let Ok(plan) = &fastest {
            assert_sound(plan);
        }
        let fastest = seconds(&fastest);
        let most_layers = request.policy(Policy::MostLayers);
        let most_layers = seconds(&plan(&profile, &machine, &most_layers));
        prop_assert!(fastest <= 1.01 * most_layers, "{fastest} {most_layers}");
    }
}
