//! Memory that others hold is memory that the card does not have: a plan depends on what is free, not on the total.

use autoplace_planner::machine::{Gpu, Host, Machine, gib, mib};
use autoplace_planner::memory::{Footprint, Headroom};
use autoplace_planner::plan::{Planner, Request};
use autoplace_planner::profile::ModelProfile;
use proptest::prelude::{prop, prop_assert_eq, proptest};

use crate::shapes::any::{gpu, request, shape};

/// Everything that a plan decides: layers, shares, and of each device layers, bytes and budget.
type Decided = (u32, Vec<f32>, Vec<(u32, Footprint, u64)>);

/// That, or why there is no plan. Names and totals are what may differ.
fn decided(profile: &ModelProfile, gpus: impl Iterator<Item = Gpu>, request: &Request) -> Result<Decided, String> {
    let machine = gpus.fold(Machine::new(Host::new(gib(64))), Machine::with_gpu);
    let plan = Planner::new(profile, &machine).request(request.clone()).plan().map_err(|error| error.to_string())?;
    let devices = plan.placements.iter().map(|device| (device.layers, device.footprint, device.budget));
    Ok((plan.n_gpu_layers, plan.tensor_split.clone(), devices.collect()))
}

proptest! {
    #[test]
    fn ballast_on_larger_cards_makes_smaller_cards_of_them(
        shape in shape(),
        like in gpu(),
        mut request in request(),
        cards in prop::collection::vec((mib(1)..gib(5), 0..gib(40)), 1..4),
    ) {
        // A share of the total is asked of the total.
        if request.headroom == Headroom::Cautious {
            request.headroom = Headroom::Default;
        }
        let profile = shape.profile();
        let card = |total: u64, free: u64| like.clone().total(total).free(free);
        let crowded = cards.iter().map(|&(free, ballast)| card(free + ballast, free));
        let small = cards.iter().map(|&(free, _)| card(free, free));
        prop_assert_eq!(decided(&profile, crowded, &request), decided(&profile, small, &request));
    }
}
