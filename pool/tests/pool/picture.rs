//! The picture of a plan, which docs/pool.md shows.

use autoplace::plan::{Context, Request};
use autoplace_pool::{ModelState, PoolPlan, PoolState};

use crate::models::{machine, model, planned};

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/pool.svg");

/// A coder is loaded, and a chat model is wanted, on one card.
#[test]
fn the_picture_of_the_documentation_is_of_a_plan() {
    let machine = machine(&["RTX 4090"], "Ryzen 9 7950X", 64);
    let request = Request::new().context(Context::Tokens(16_384));
    let mut state = PoolState::new(machine.clone());
    state.models = ["30b-a3b", "8b", "1b"]
        .map(|name| ModelState::new(name, model(name, &machine, &request).unwrap().ladder))
        .into();
    for name in ["30b-a3b", "1b", "8b"] {
        let plan = PoolPlan::decide(&state, Some(name), |index, request, machine| {
            planned(&state.models[index].name, request, machine)
        });
        let plan = plan.unwrap();
        let picture = plan.picture().unwrap();
        assert!(picture.contains(&format!("After {name} was requested")), "{picture}");
        for model in &mut state.models {
            let placed = plan.model(&model.name);
            model.loaded = placed.map(|placed| autoplace_pool::Rung::new((*placed.plan).clone(), &machine));
            model.demand.count_request(state.now, true);
        }
        if name == "8b" {
            if std::env::var_os("AUTOPLACE_WRITE").is_some() {
                std::fs::write(FILE, &picture).unwrap();
            }
            assert_eq!(std::fs::read_to_string(FILE).unwrap(), picture, "AUTOPLACE_WRITE=1 writes it");
        }
    }
}
