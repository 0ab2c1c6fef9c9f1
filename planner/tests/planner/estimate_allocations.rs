//! What is exact of a placement costs the same few allocations however many layers the model has: a search
//! looks at hundreds.

use autoplace_planner::machine::{Gpu, gib};
use autoplace_planner::memory::{ContextParams, Estimate, Place, TensorOverride};

use crate::shapes::{LLAMA_1B, LLAMA_70B, Shape};

/// Allocations of a placement of half of the model on three GPUs, with weights elsewhere.
fn allocations(shape: &Shape) -> usize {
    let profile = shape.profile();
    let cards: Vec<Gpu> = [24, 12, 48].map(|size| Gpu::new("card").total(gib(size))).to_vec();
    let gpus: Vec<&Gpu> = cards.iter().collect();
    let rules = [TensorOverride::new(r"ffn_(up|down)", Place::Host)];
    let estimate = Estimate::new(&profile, &gpus, &ContextParams::default()).unwrap().overrides(&rules).unwrap();
    let before = crate::counting::allocations();
    let assignment = estimate.assignment(profile.n_layer() / 2);
    let stored = estimate.stored(&assignment);
    let after = crate::counting::allocations();
    assert!(stored.host.weights > 0 && stored.gpus.iter().all(|gpu| gpu.weights > 0));
    after - before
}

#[test]
fn a_placement_costs_no_allocation_per_layer() {
    own_process!();
    assert_eq!((LLAMA_1B.n_layer, LLAMA_70B.n_layer), (16, 80));
    let few = allocations(&LLAMA_1B);
    assert_eq!(few, allocations(&LLAMA_70B));
    assert!(few <= 8, "{few} allocations");
}
