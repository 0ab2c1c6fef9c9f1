//! Memory that others hold is memory that the card does not have: a plan depends on what is free, not on the total.

use autoplace_planner::machine::{Gpu, Host, Machine, gib, mib};
use autoplace_planner::memory::{Footprint, Headroom};
use autoplace_planner::plan::{Plan, Planner, Policy, Request};
use autoplace_planner::profile::ModelProfile;
use proptest::prelude::{Strategy, prop, prop_assert_eq, proptest};

use crate::shapes::any::{gpu, request, shape};

/// A card of `total` bytes of which others hold `ballast`.
fn card(like: &Gpu, total: u64, ballast: u64) -> Gpu {
    like.clone().total(total).free(total - ballast)
}

/// Everything that a plan decides, or why there is none. Names and totals are what may differ.
fn split(profile: &ModelProfile, gpus: Vec<Gpu>, request: &Request) -> Result<Split, String> {
    let mut machine = Machine::new(Host::new(gib(64)));
    machine.gpus = gpus;
    let plan = Planner::new(profile, &machine).request(request.clone()).plan();
    plan.map(|plan| Split::of(&plan)).map_err(|error| error.to_string())
}

#[derive(Debug, PartialEq)]
struct Split {
    n_gpu_layers: u32,
    tensor_split: Vec<f32>,
    devices: Vec<(u32, Footprint, u64)>,
}

impl Split {
    fn of(plan: &Plan) -> Self {
        let devices = plan.placements.iter();
        Self {
            n_gpu_layers: plan.n_gpu_layers,
            tensor_split: plan.tensor_split.clone(),
            devices: devices.map(|device| (device.layers, device.footprint, device.budget)).collect(),
        }
    }
}

/// What to leave free, other than a share of the total: that one is asked of the total.
fn absolute(request: &Request) -> bool {
    !matches!(request.headroom, Headroom::Percent(_) | Headroom::Cautious)
}

proptest! {
    #[test]
    fn ballast_on_a_larger_card_is_a_smaller_card(
        shape in shape(),
        like in gpu(),
        request in request().prop_filter("a share of the total", absolute),
        free in mib(1)..gib(5),
        ballast in mib(1)..gib(40),
    ) {
        let profile = shape.profile();
        let crowded = split(&profile, vec![card(&like, free + ballast, ballast)], &request);
        let small = split(&profile, vec![card(&like, free, 0)], &request);
        prop_assert_eq!(crowded, small);
    }

    #[test]
    fn so_it_is_on_several_cards(
        shape in shape(),
        like in gpu(),
        cards in prop::collection::vec((mib(1)..gib(3), 0..gib(20)), 2..4),
    ) {
        let profile = shape.profile();
        let crowded = cards.iter().map(|&(free, ballast)| card(&like, free + ballast, ballast));
        let small = cards.iter().map(|&(free, _)| card(&like, free, 0));
        let request = Request::new().policy(Policy::MostLayers);
        prop_assert_eq!(
            split(&profile, crowded.collect(), &request),
            split(&profile, small.collect(), &request)
        );
    }
}
