//! Proptest strategies for models, GPUs and requests.

use autoplace_planner::machine::{Gpu, GpuKind, Pool, Pools, gib, mib};
use autoplace_planner::memory::{Headroom, KvType};
use autoplace_planner::plan::{HostParts, KvCache, Policy, Request};
use proptest::prelude::{Just, Strategy, any, prop, prop_oneof};
use test_support::dims::Experts;
use test_support::shapes::{LLAMA_8B, Shape};

/// A small model.
pub(crate) fn shape() -> impl Strategy<Value = Shape> {
    let sizes = (1u32..24, 1u64..8, 1u64..6, 1u32..2000);
    (sizes, any::<bool>(), any::<bool>()).prop_map(|((n_layer, width, ff, vocab), tied, experts)| Shape {
        n_layer,
        n_embd: 256 * width,
        n_ff: 512 * ff,
        n_head: 4 * width,
        n_head_kv: width,
        head_dim: 64,
        n_vocab: 64 * u64::from(vocab),
        tied,
        experts: experts.then_some(Experts { n: 8, used: 2, ff: 512 * ff }),
        ..LLAMA_8B
    })
}

/// Parts of blocks that may stay on the host.
pub(crate) fn host_parts() -> impl Strategy<Value = HostParts> {
    prop_oneof![Just(HostParts::None), Just(HostParts::Experts), Just(HostParts::FeedForward)]
}

/// Types of the KV cache; in half of the cases the planner may not choose another type.
pub(crate) fn kv_cache() -> impl Strategy<Value = KvCache> {
    prop_oneof![2 => Just(KvCache::Given), 1 => Just(KvCache::Auto), 1 => Just(KvCache::DownTo(KvType::Q4_0))]
}

/// A card with 4 GiB, of which a part is free, or an integrated GPU of the same size, with or without a carve-out.
pub(crate) fn gpu() -> impl Strategy<Value = Gpu> {
    let backend = prop_oneof![Just("CUDA"), Just("Vulkan"), Just("MTL"), Just("Other")];
    let own = prop_oneof![Just(None), Just(None), (0..gib(3)).prop_map(Some)];
    (backend, mib(1)..gib(3), any::<bool>(), own).prop_map(|(backend, free, shared, own)| {
        let card = Gpu::new("card").total(gib(4)).free(free).backend(backend);
        let pools = |own: u64| {
            let own = Pool::new(own.min(free), own.min(free));
            Pools::new(own, Pool::new(gib(4) - own.total, free - own.free))
        };
        match (shared, own) {
            (false, _) => card,
            (true, None) => card.kind(GpuKind::Integrated),
            (true, Some(own)) => card.kind(GpuKind::Integrated).pools(pools(own)),
        }
    })
}

/// One GPU of any kind, or up to three cards with so few free bytes that a small model does not fit on one of them.
pub(crate) fn gpus() -> impl Strategy<Value = Vec<Gpu>> {
    let card = (mib(1)..gib(1)).prop_map(|free| Gpu::new("card").total(gib(24)).free(free).backend("CUDA"));
    prop_oneof![gpu().prop_map(|gpu| vec![gpu]), prop::collection::vec(card, 1..4)]
}

/// A request for the most layers that fit, with any kind of headroom and a context of up to 20000 tokens.
pub(crate) fn request() -> impl Strategy<Value = Request> {
    let headroom = prop_oneof![
        Just(Headroom::Default),
        Just(Headroom::Tight),
        Just(Headroom::Cautious),
        (0..mib(900)).prop_map(Headroom::Bytes),
        (0.0f32..30.0).prop_map(Headroom::Percent),
    ];
    (headroom, 1u32..20_000, 1u32..1024, 0u32..600).prop_map(|(headroom, n_ctx, n_ubatch, outputs)| {
        Request::new()
            .policy(Policy::MostLayers)
            .headroom(headroom)
            .n_ctx(n_ctx)
            .n_ubatch(n_ubatch)
            .n_outputs_max(outputs)
    })
}
