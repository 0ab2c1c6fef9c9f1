//! What holds of every plan.

use autoplace_planner::machine::{Gpu, Host, Machine, gib, mib};
use autoplace_planner::memory::{ContextParams, Estimate, Headroom, Workload};
use autoplace_planner::plan::{Error, Plan, Planner, Request};
use autoplace_planner::profile::ModelProfile;
use proptest::prelude::{prop_assert, prop_assert_eq, proptest};

use crate::shapes::any::{gpu, request, shape};

fn plan(profile: &ModelProfile, machine: &Machine, request: &Request) -> Result<Plan, Error> {
    Planner::new(profile, machine).request(request.clone()).plan()
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
    let unsure = estimate.uncertainty(&estimate.assignment(n));
    let headroom = request.headroom.of_gpu(gpu, &workload, unsure.gpus[0], false);
    let of_host = gpu.bytes_of_host(on_gpu.total(), headroom.total());
    let host_needed = footprints.host.total() + of_host;
    let host_headroom = Headroom::of_host(host, &workload, true, unsure.host);
    on_gpu.total() + headroom.total() <= gpu.free
        && host_needed + host_headroom.total() <= host.available
}

/// Checks that no device gives more than it may, the host's memory that GPUs use included; that each layer has one
/// place; and that the plan is read back as it was written.
pub(crate) fn assert_sound(plan: &Plan) {
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

proptest! {
    #[test]
    fn every_plan_is_sound_and_the_same_each_time(
        shape in shape(),
        gpu in gpu(),
        request in request(),
        host in mib(300)..gib(4),
    ) {
        let profile = shape.profile();
        let machine = Machine::new(Host::new(host)).with_gpu(gpu);
        let found = plan(&profile, &machine, &request);
        let again = plan(&profile, &machine, &request);
        prop_assert_eq!(format!("{found:?}"), format!("{again:?}"));
        if let Ok(plan) = found {
            assert_sound(&plan);
            prop_assert_eq!(plan.full_offload, plan.n_gpu_layers == plan.layers());
            prop_assert_eq!(plan.gpus().count(), usize::from(plan.n_gpu_layers > 0));
        }
        let text = serde_json::to_string(&request).unwrap();
        prop_assert_eq!(serde_json::from_str::<Request>(&text).unwrap(), request);
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
}
