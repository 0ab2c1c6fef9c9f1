//! The planner may also choose settings: the type and the place of the cache, and how many tokens are computed at once.
//! If a plan has such settings, the load needs exactly the planned bytes, on simulated cards of increasing sizes.

use std::collections::BTreeSet;

use crate::sim_support::card;
use autoplace::machine::{Host, Machine, gib, mib};
use autoplace::memory::{FlashAttention, Headroom};
use autoplace::plan::{Depth, KvCache, KvPlace, Policy, Request, Workload};
use autoplace::{Model, ModelBuilder, Plan};
use test_support::demo_path;

/// The policy counts layers, because so small a model is as fast on some hosts as on a card. So a setting is chosen
/// only if it brings one more layer onto the card.
fn request() -> Request {
    Request::new().headroom(Headroom::Bytes(0)).policy(Policy::MostLayers).n_ctx(4096)
}

/// Loads with this request on cards of increasing sizes. Returns which values `setting` has in the plans.
fn loaded<T: Ord>(request: &Request, setting: impl Fn(&Plan) -> T) -> BTreeSet<T> {
    let mut seen = BTreeSet::new();
    for size in (4..=32).step_by(2) {
        let gpu = card(mib(size));
        let model = Model::builder(demo_path()).request(request.clone()).n_threads(1).load().unwrap();
        let plan = model.placement();
        let planned = plan.gpus().next().map_or(0, |gpu| gpu.footprint.total());
        assert_eq!(gpu.used(), planned, "{size} MiB: {plan}");
        let text = model.generate("And it came to pass").temp(0.0).max_tokens(4).text().unwrap();
        assert!(!text.is_empty());
        // A plan that may choose settings has at least as many layers on the card as a plan with given settings.
        let mut given = request.clone().kv_cache(KvCache::Given).kv_place(KvPlace::Given);
        given.min_ubatch = None;
        let given = Model::builder(demo_path()).request(given).machine(Machine::clone(&model.machine())).plan();
        let layers = given.map_or(0, |given| given.n_gpu_layers);
        assert!(plan.n_gpu_layers >= layers, "{size} MiB: {layers} layers without the choice, {plan}");
        seen.insert(setting(&plan));
    }
    seen
}

#[test]
fn a_type_of_the_cache_is_loaded_as_it_was_chosen() {
    own_process!();
    let types = loaded(&request().kv_cache(KvCache::Auto), |plan| {
        let [k, v] = [plan.context.type_k, plan.context.type_v].map(|ty| ty.to_string());
        assert_eq!(k, v);
        let is_said = plan.notes.iter().any(|note| note.starts_with("cache in Q8_0"));
        assert_eq!(is_said, k == "Q8_0", "{plan}");
        k
    });
    assert_eq!(types.into_iter().collect::<Vec<_>>(), ["F16", "Q8_0"]);
}

#[test]
fn a_place_of_the_cache_is_loaded_as_it_was_chosen() {
    own_process!();
    let places = loaded(&request().kv_place(KvPlace::Auto), |plan| {
        let is_said = plan.notes.iter().any(|note| note.starts_with("keys and values are on the host"));
        assert_eq!(is_said, !plan.context.offload_kqv, "{plan}");
        plan.context.offload_kqv
    });
    assert_eq!(places.len(), 2);
}

#[test]
fn fewer_tokens_at_once_are_loaded_as_they_were_chosen() {
    own_process!();
    let numbers = loaded(&request().min_ubatch(64), |plan| {
        assert!((64..=512).contains(&plan.context.n_ubatch), "{plan}");
        plan.context.n_ubatch
    });
    assert!(numbers.len() > 1 && numbers.last() == Some(&512), "{numbers:?}");
}

/// A machine with a stated memory bandwidth of the host, so that plans have a predicted speed.
fn host() -> Machine {
    Machine::new(Host::new(gib(8)).bandwidth(50_000_000_000))
}

#[test]
fn each_setting_of_the_builder_is_in_the_plan() {
    let planned = |set: fn(ModelBuilder) -> ModelBuilder| {
        set(Model::builder(demo_path()).machine(host()).n_ctx(1024)).plan().unwrap()
    };
    let context = |set| planned(set).context;
    let usual = context(|builder| builder);
    assert_eq!(context(|builder| builder.flash_attn(FlashAttention::Off)).flash_attn, FlashAttention::Off);
    assert!(context(|builder| builder.kv_unified(true)).kv_unified && !usual.kv_unified);
    assert!(!context(|builder| builder.offload_kqv(false)).offload_kqv && usual.offload_kqv);
    assert!(!context(|builder| builder.op_offload(false)).op_offload && usual.op_offload);
    assert!(!context(|builder| builder.mmap(false)).mmap && usual.mmap);
    assert!(!context(|builder| builder.repack(false)).repack && usual.repack);
    assert!(context(|builder| builder.swa_full(true)).swa_full && !usual.swa_full);
    assert_eq!(context(|builder| builder.n_batch(700)).n_batch, 700);

    let workload = |set| planned(set).speed.expect("a predicted speed").workload;
    let stated = Workload::new(300, 40);
    assert_eq!(workload(|builder| builder.workload(Workload::new(300, 40))), stated);
    assert_eq!(workload(|builder| builder.depth(Depth::Fixed(500))).depth(), 500);
}

#[test]
fn what_the_builder_leaves_to_the_planner_is_what_a_request_leaves_to_it() {
    own_process!();
    let most = || Request::new().headroom(Headroom::Bytes(0)).policy(Policy::MostLayers).n_ctx(4096);
    for (name, set, request) in [
        (
            "kv_cache",
            (|builder| builder.kv_cache(KvCache::Auto)) as fn(ModelBuilder) -> ModelBuilder,
            most().kv_cache(KvCache::Auto),
        ),
        ("kv_place", |builder| builder.kv_place(KvPlace::Auto), most().kv_place(KvPlace::Auto)),
        ("min_ubatch", |builder| builder.min_ubatch(64), most().min_ubatch(64)),
    ] {
        let mut changes = 0;
        for size in (4..=32).step_by(4) {
            let _gpu = card(mib(size));
            let placed = |builder: ModelBuilder| {
                let plan = builder.plan().unwrap();
                (plan.n_gpu_layers, plan.context)
            };
            let model = |request| Model::builder(demo_path()).request(request);
            let by_builder = placed(set(model(most())));
            assert_eq!(by_builder, placed(model(request.clone())), "{name}, {size} MiB");
            changes += u32::from(by_builder != placed(model(most())));
        }
        assert!(changes > 0, "{name} changes nothing on these cards");
    }
}
