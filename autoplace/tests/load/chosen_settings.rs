//! The planner may also choose settings: the type and the place of the cache, and how many tokens are computed at once.
//! If a plan has such settings, the load needs exactly the planned bytes, on simulated cards of increasing sizes.

use std::collections::BTreeSet;

use crate::sim_support::card;
use autoplace::machine::{Machine, mib};
use autoplace::memory::Headroom;
use autoplace::plan::{KvCache, KvPlace, Policy, Request};
use autoplace::{Model, Plan};
use test_support::demo_path;

/// The policy counts layers, because so small a model is as fast on some hosts as on a card. So a setting is chosen
/// only where it brings one more layer onto the card.
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
