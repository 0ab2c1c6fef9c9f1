//! Simulated GPUs. All tests of a program share them.

use autoplace::llama_sys::sim::{Rules, SimGpu, SimGpuBuilder};
use autoplace::plan::{self, GpuLayers};
use autoplace::{Model, ModelBuilder, load};

/// A card that has CUDA's rules.
pub(crate) fn card(total: u64) -> SimGpu {
    card_of(total).register().unwrap()
}

pub(crate) fn card_of(total: u64) -> SimGpuBuilder {
    SimGpu::builder("SIM card").total(total).rules(Rules::Cuda).backend("CUDA")
}

/// Loads on cards of increasing sizes, from a card without room to one with room for everything. Checks that each load
/// fits, and that there is no room for one more layer. `check` is called with each model and its card.
pub(crate) fn fits_whatever_is_free(
    totals: impl IntoIterator<Item = u64>,
    builder: impl Fn() -> ModelBuilder,
    check: impl Fn(&Model, &SimGpu),
) {
    let (mut seen, mut all) = (Vec::new(), 0);
    for total in totals {
        let gpu = card(total);
        let model = builder().load().unwrap();
        let plan = model.placement();
        let n = plan.n_gpu_layers;
        all = plan.layers();
        check(&model, &gpu);
        assert!(gpu.peak() <= total, "{n} layers took {} of {total}", gpu.peak());
        drop(model);
        assert_eq!(gpu.used(), 0);
        if total > 0 && n < all {
            let more = builder().n_gpu_layers(GpuLayers::Exactly(n + 1)).plan();
            assert!(
                matches!(more, Err(load::Error::Plan(plan::Error::DoesNotFit { .. }))),
                "{n} + 1 layers fit {total} too: {more:?}"
            );
        }
        seen.push(n);
    }
    assert!(seen.is_sorted(), "more memory, fewer layers: {seen:?}");
    assert_eq!((seen[0], seen.last()), (0, Some(&all)), "{seen:?}");
    assert!(seen.iter().any(|n| (1..all).contains(n)), "{seen:?}");
}
