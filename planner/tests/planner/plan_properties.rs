//! Properties of every plan.

use autoplace_planner::machine::{Gpu, Host, Machine, gib, mib};
use autoplace_planner::memory::{Footprint, Headroom};
use autoplace_planner::plan::{Error, KvCache, Plan, Policy, Request};
use autoplace_planner::profile::ModelProfile;
use proptest::prelude::{prop, prop_assert, prop_assert_eq, proptest};

use crate::any::{gpu, gpus, host_parts, kv_cache, request, shape};
use crate::plan;

fn layers(plan: &Result<Plan, Error>) -> Option<u32> {
    plan.as_ref().ok().map(|plan| plan.n_gpu_layers)
}

/// Checks a plan and its other placement: no device's budget is exceeded, including the host memory that GPUs use; each
/// layer has one place; and a plan that is written and read back is the same plan. Both placements must have the same
/// context.
pub(crate) fn assert_sound(plan: &Plan) {
    if let Some(by_depth) = &plan.by_depth {
        assert_sound(&by_depth.plan);
        let (mut here, mut there) = (plan.context.clone(), by_depth.plan.context.clone());
        // Whether the file is mapped depends on the devices.
        (here.mmap, there.mmap) = (true, true);
        assert_eq!(here, there, "{plan}");
        assert!((1..here.n_ctx).contains(&by_depth.crossing), "{plan}");
    }
    for placement in &plan.placements {
        assert!(placement.footprint.total() <= placement.budget, "{plan}");
        let taken = placement.budget + placement.headroom.total();
        assert!(taken <= placement.free, "{plan}");
    }
    let shared: u64 = plan.gpus().map(|placement| placement.of_host).sum();
    let host = plan.host().unwrap();
    assert!(host.footprint.total() + shared <= host.budget, "{plan}");
    let all = plan.placements.iter();
    let layers: u32 = all.map(|placement| placement.layers).sum();
    assert_eq!(layers, plan.layers(), "{plan}");
    let text = serde_json::to_string(plan).unwrap();
    assert_eq!(&serde_json::from_str::<Plan>(&text).unwrap(), plan);
}

/// A plan's decisions: the layers on GPUs, the shares, and for each device its layers, bytes and budget.
type Decided = (u32, Vec<f32>, Vec<(u32, Footprint, u64)>);

/// A plan's decisions, or the reason why there is no plan. Names and totals of the cards are ignored.
fn decided(profile: &ModelProfile, gpus: impl Iterator<Item = Gpu>, request: &Request) -> Result<Decided, String> {
    let machine = gpus.fold(Machine::new(Host::new(gib(64))), Machine::with_gpu);
    let plan = plan(profile, &machine, request).map_err(|error| error.to_string())?;
    let devices = plan.placements.iter().map(|device| (device.layers, device.footprint, device.budget));
    Ok((plan.n_gpu_layers, plan.tensor_split.clone(), devices.collect()))
}

proptest! {
    #[test]
    fn every_plan_is_sound_and_reproducible(
        shape in shape(),
        gpus in gpus(),
        request in request(),
        host in mib(300)..gib(4),
    ) {
        let profile = shape.profile();
        let machine = gpus.into_iter().fold(Machine::new(Host::new(host)), Machine::with_gpu);
        let found = plan(&profile, &machine, &request);
        let again = plan(&profile, &machine, &request);
        prop_assert_eq!(format!("{found:?}"), format!("{again:?}"));
        if let Ok(plan) = found {
            assert_sound(&plan);
            let of_gpus: Vec<u32> = plan.gpus().map(|placement| placement.layers).collect();
            prop_assert_eq!(of_gpus.iter().sum::<u32>(), plan.n_gpu_layers, "{}", plan);
            prop_assert!(!of_gpus.contains(&0), "{}", plan);
            let split: Vec<u32> = plan.tensor_split.iter().map(|&part| part as u32).collect();
            prop_assert_eq!(split, if of_gpus.len() > 1 { of_gpus } else { Vec::new() }, "{}", plan);
            prop_assert_eq!(plan.full_offload, plan.n_gpu_layers == plan.layers(), "{}", plan);
        }
        let text = serde_json::to_string(&request).unwrap();
        prop_assert_eq!(serde_json::from_str::<Request>(&text).unwrap(), request);
    }

    #[test]
    fn the_fastest_plan_is_not_slower_than_others_or_with_less_free_memory(
        shape in shape(),
        gpus in gpus(),
        request in request(),
        speeds in prop::collection::vec(60u64..2000, 3),
        more in prop::collection::vec(0..gib(1), 3),
        (parts, kv) in (host_parts(), kv_cache()),
        host in mib(600)..gib(8),
    ) {
        let profile = shape.profile();
        let mut machine = Machine::new(Host::new(host).bandwidth(60_000_000_000));
        let gpus = gpus.into_iter().zip(speeds).map(|(gpu, speed)| gpu.bandwidth(speed * 1_000_000_000));
        machine.gpus.extend(gpus);
        let seconds = |machine: &Machine, policy| {
            let request = request.clone().host_parts(parts).kv_cache(kv).policy(policy);
            let plan = plan(&profile, machine, &request).ok()?;
            assert_sound(&plan);
            Some(plan.speed?.seconds())
        };
        // If the planner may choose the type of the cache, the plan may be slower by the time that a smaller type must
        // save.
        let slack = if kv == KvCache::Given { 1.01 } else { 1.31 };
        let fastest = seconds(&machine, Policy::Fastest);
        if let Some(most_layers) = seconds(&machine, Policy::MostLayers) {
            prop_assert!(fastest.is_some_and(|fastest| fastest <= slack * most_layers), "{fastest:?} {most_layers}");
        }
        for (gpu, more) in machine.gpus.iter_mut().zip(more) {
            (gpu.total, gpu.free) = (gpu.total + more, gpu.free + more);
        }
        if let Some(less) = fastest {
            let more = seconds(&machine, Policy::Fastest);
            prop_assert!(more.is_some_and(|more| more <= slack * less), "{more:?} {less}");
        }
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
    fn a_failed_plan_states_the_missing_bytes(shape in shape(), gpu in gpu(), request in request()) {
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

    /// Memory that other programs use counts as absent: a plan depends on the free bytes, not on the total.
    #[test]
    fn ballast_makes_a_larger_card_like_a_smaller_one(
        shape in shape(),
        like in gpu(),
        mut request in request(),
        cards in prop::collection::vec((mib(1)..gib(5), 0..gib(40)), 1..4),
    ) {
        // These two kinds of headroom depend on the total.
        if matches!(request.headroom, Headroom::Cautious | Headroom::Percent(_)) {
            request.headroom = Headroom::Default;
        }
        let profile = shape.profile();
        let card = |total: u64, free: u64| like.clone().total(total).free(free);
        let crowded = cards.iter().map(|&(free, ballast)| card(free + ballast, free));
        let small = cards.iter().map(|&(free, _)| card(free, free));
        prop_assert_eq!(decided(&profile, crowded, &request), decided(&profile, small, &request));
    }
}
