//! Plans for tests: written by hand, not searched for.
#![allow(dead_code, reason = "each user takes its part")]

use autoplace_planner::plan::Plan;

/// 20 of 33 layers on a card, the others on the host.
pub(crate) fn plan() -> Plan {
    serde_json::from_str(include_str!("plan.json")).unwrap()
}

/// 12 layers on the second card, then 8 on the first.
pub(crate) fn two_gpus() -> Plan {
    let mut plan = plan();
    plan.tensor_split = vec![12.0, 8.0];
    let mut second = plan.placements[0].clone();
    (second.name, second.device) = ("RTX 4060".to_owned(), Some("CUDA1".to_owned()));
    (second.layers, plan.placements[0].layers) = (12, 8);
    plan.placements.insert(0, second);
    plan
}

/// No layer on a GPU.
pub(crate) fn host_plan() -> Plan {
    let mut plan = plan();
    (plan.n_gpu_layers, plan.speed) = (0, None);
    plan.placements.remove(0);
    plan.placements[0].layers = 33;
    plan
}
