//! The type of the KV cache if the planner may choose the type.

use autoplace_planner::machine::{Gpu, Host, Machine, gib, mib};
use autoplace_planner::memory::{ContextParams, Estimate, FlashAttention, Footprints, KvType, Split};
use autoplace_planner::plan::{
    GpuLayers, HostParts, KvCache, KvPlace, Plan, Planner, Policy, Probe, Request, Workload,
};
use autoplace_planner::profile::ModelProfile;

use test_support::shapes::LLAMA_8B;

const FOUR_BITS: KvCache = KvCache::DownTo(KvType::Q4_0);

/// An RTX 4090 with `free` bytes and this backend.
fn card(free: u64, backend: &str) -> Gpu {
    Gpu::named("RTX 4090").unwrap().free(free).backend(backend)
}

fn machine(gpus: impl IntoIterator<Item = Gpu>) -> Machine {
    let host = Host::new(gib(64)).bandwidth(60_000_000_000);
    gpus.into_iter().fold(Machine::new(host), Machine::with_gpu)
}

/// 16,384 tokens of Llama 8B: the cache takes 2 GiB in F16, 1.06 GiB in Q8_0, and 0.56 GiB in Q4_0.
fn asked(kv: KvCache) -> Request {
    Request::new().n_ctx(16_384).kv_cache(kv)
}

fn plan(free: u64, request: Request) -> Plan {
    let (profile, machine) = (LLAMA_8B.profile(), machine([card(free, "CUDA")]));
    Planner::new(&profile, &machine).request(request).plan().unwrap()
}

fn note(plan: &Plan) -> Option<&String> {
    plan.notes.iter().find(|note| note.starts_with("cache in"))
}

#[test]
fn a_smaller_cache_is_chosen_if_it_gains_layers_and_the_plan_states_the_gain() {
    for (free, kv) in [(gib(20), KvType::F16), (mib(6800), KvType::Q8_0)] {
        let plan = plan(free, asked(KvCache::Auto));
        assert_eq!([plan.context.type_k, plan.context.type_v], [kv; 2], "{plan}");
        assert_eq!(note(&plan).is_some(), kv == KvType::Q8_0, "{plan}");
    }
    let plan = |kv| plan(mib(6800), asked(kv).host_parts(HostParts::None));
    let (given, chosen) = (plan(KvCache::Given), plan(KvCache::Auto));
    let more = chosen.n_gpu_layers - given.n_gpu_layers;
    assert!(more >= 2, "{given}{chosen}");
    let speedup = given.speed.as_ref().unwrap().seconds() / chosen.speed.as_ref().unwrap().seconds();
    let said = format!(
        "cache in Q8_0: {more} layers more on GPUs, {speedup:.2} times as fast as with F16; costs about 0.04 % of perplexity"
    );
    assert!(note(&chosen).is_some_and(|note| note.starts_with(&said)), "{said}\n{chosen}");
}

#[test]
fn a_type_below_q8_0_is_chosen_only_if_it_is_allowed_and_gains_more() {
    for free in (4..=8).map(|n| mib(n * 1000)) {
        let [auto, four] = [KvCache::Auto, FOUR_BITS].map(|kv| plan(free, asked(kv)));
        assert!(matches!(auto.context.type_k, KvType::F16 | KvType::Q8_0), "{auto}");
        let [of_auto, of_four] = [&auto, &four].map(|plan| plan.speed.as_ref().unwrap().seconds());
        if four.context.type_k == KvType::Q4_0 {
            assert!(of_auto > 1.15 * of_four, "{auto}{four}");
        }
    }
    // With 131,072 tokens the cache is larger than the weights.
    let long = |kv| plan(gib(12), Request::new().n_ctx(131_072).kv_cache(kv));
    assert_eq!(long(KvCache::Auto).context.type_k, KvType::Q8_0);
    assert_eq!(long(FOUR_BITS).context.type_k, KvType::Q4_0);
}

#[test]
fn a_type_for_which_a_device_does_not_fuse_attention_is_not_chosen() {
    let profile = LLAMA_8B.profile();
    let types = |gpus: Vec<Gpu>, request: Request| {
        let machine = machine(gpus);
        let plan = Planner::new(&profile, &machine).request(request).plan().unwrap();
        plan.context.type_k
    };
    let free = mib(6800);
    for (backend, kv) in [("CUDA", KvType::Q8_0), ("Vulkan", KvType::Q8_0), ("SYCL", KvType::F16)] {
        assert_eq!(types(vec![card(free, backend)], asked(KvCache::Auto)), kv, "{backend}");
    }
    // A second card affects the type only if it has layers.
    assert_eq!(types(vec![card(free, "CUDA"), card(mib(900), "SYCL")], asked(KvCache::Auto)), KvType::Q8_0);
    let plain = asked(KvCache::Auto).flash_attn(FlashAttention::Off);
    assert_eq!(types(vec![card(free, "CUDA")], plain), KvType::F16);
}

#[test]
fn a_stated_number_of_layers_takes_the_widest_type_with_which_it_fits() {
    let all = |free, kv| {
        let (profile, machine) = (LLAMA_8B.profile(), machine([card(free, "CUDA")]));
        let request = asked(kv).n_gpu_layers(GpuLayers::All);
        Planner::new(&profile, &machine).request(request).plan()
    };
    assert!(all(mib(7000), KvCache::Given).is_err());
    let chosen = all(mib(7000), KvCache::Auto).unwrap();
    assert_eq!((chosen.n_gpu_layers, chosen.context.type_v), (33, KvType::Q8_0));
    assert!(note(&chosen).is_some_and(|note| note.contains("with F16 there is no room for the plan")), "{chosen}");
    assert_eq!(all(gib(20), KvCache::Auto).unwrap().context.type_v, KvType::F16);
    // The error states the bytes that are missing for the smallest allowed type.
    let missing = |kv| match all(mib(5000), kv) {
        Err(autoplace_planner::plan::Error::DoesNotFit { devices, .. }) => devices[0].missing,
        other => panic!("{other:?}"),
    };
    assert!(missing(FOUR_BITS) < missing(KvCache::Auto) && missing(KvCache::Auto) < missing(KvCache::Given));
    let by_layers = asked(KvCache::Auto).policy(Policy::MostLayers);
    assert_eq!(plan(mib(6800), by_layers).context.type_k, KvType::Q8_0);
}

fn seconds(plan: &Plan) -> f64 {
    plan.speed.as_ref().unwrap().seconds()
}

#[test]
fn a_cache_goes_to_the_host_if_that_is_faster_for_the_stated_workload() {
    let planned = |work: Workload, place, offload| {
        plan(
            mib(5000),
            asked(KvCache::Given).kv_place(place).offload_kqv(offload).workload(work).host_parts(HostParts::None),
        )
    };
    for (work, is_with_layers) in [(Workload::new(32, 64), false), (Workload::new(14_000, 1000), true)] {
        let auto = planned(work, KvPlace::Auto, true);
        assert_eq!(auto.context.offload_kqv, is_with_layers, "{auto}");
        let note = auto.notes.iter().any(|note| note.starts_with("keys and values are on the host"));
        assert_eq!(note, !is_with_layers, "{auto}");
        let [with_layers, on_host] = [true, false].map(|offload| planned(work, KvPlace::Given, offload));
        let best = seconds(&with_layers).min(seconds(&on_host));
        assert!(seconds(&auto) <= 1.01 * best, "{with_layers}{on_host}{auto}");
        assert!(is_with_layers || auto.n_gpu_layers > with_layers.n_gpu_layers, "{auto}");
    }
    // Layers that the request keeps on the host stay there.
    assert!(!planned(Workload::new(14_000, 1000), KvPlace::Auto, false).context.offload_kqv);
}

#[test]
fn the_ubatch_is_smaller_if_its_memory_gains_more_elsewhere() {
    let mut fewer = 0;
    for free in (4000..7000).step_by(100).map(mib) {
        for policy in [Policy::Fastest, Policy::MostLayers] {
            let request = Request::new().n_ctx(4096).policy(policy).workload(Workload::new(64, 512));
            let [auto, given] = [request.clone().min_ubatch(64), request].map(|request| plan(free, request));
            assert!((64..=2048).contains(&auto.context.n_ubatch), "{auto}");
            if auto.context.n_ubatch == given.context.n_ubatch {
                assert_eq!(auto, given);
                continue;
            }
            fewer += usize::from(auto.context.n_ubatch < 512);
            match policy {
                Policy::MostLayers => assert!(auto.n_gpu_layers > given.n_gpu_layers, "{given}{auto}"),
                _ => assert!(seconds(&auto) < seconds(&given), "{given}{auto}"),
            }
            let said = format!("{} tokens are computed at once instead of 512", auto.context.n_ubatch);
            assert!(auto.notes.contains(&said), "{auto}");
        }
    }
    assert!(fewer > 5, "{fewer}");
    // With a smaller cache type, all requested layers fit on a smaller card.
    let profile = LLAMA_8B.profile();
    let least = |request: Request| {
        let request = request.n_ctx(4096).n_gpu_layers(GpuLayers::All);
        let fits = |free: &u64| {
            let machine = machine([card(mib(*free), "CUDA")]);
            Planner::new(&profile, &machine).request(request.clone()).plan().is_ok()
        };
        (4000..8000).step_by(50).find(fits).unwrap()
    };
    let [given, auto] = [Request::new(), Request::new().min_ubatch(64)].map(least);
    assert!(auto < given, "{auto} MiB with fewer tokens at once, {given} MiB without");
}

/// A probe that answers like llama.cpp on a GPU that does not fuse attention over a quantised cache.
struct NoQuantised<'p>(&'p ModelProfile);

impl Probe for NoQuantised<'_> {
    fn footprints(
        &self,
        gpus: &[&Gpu],
        params: &ContextParams,
        split: &Split,
    ) -> Result<Footprints, Box<dyn std::error::Error + Send + Sync>> {
        if params.type_v.is_quantized() && !gpus.is_empty() {
            return Err("V cache quantization requires flash_attn".into());
        }
        Ok(Estimate::new(self.0, gpus, params)?.overrides(&split.overrides)?.footprints(split.n_gpu_layers))
    }
}

#[test]
fn a_type_that_llama_cpp_refuses_excludes_the_type_but_not_the_gpu() {
    let (profile, machine) = (LLAMA_8B.profile(), machine([card(mib(6800), "CUDA")]));
    let planned = |kv| Planner::new(&profile, &machine).request(asked(kv)).plan_probed(&NoQuantised(&profile)).unwrap();
    let (plan, given) = (planned(KvCache::Auto), planned(KvCache::Given));
    assert_eq!((plan.context.type_k, plan.split()), (KvType::F16, given.split()), "{plan}");
    assert!(plan.notes.iter().any(|note| note.starts_with("no cache in Q8_0 on RTX 4090")), "{plan}");
    assert!(!plan.notes.iter().any(|note| note.contains("left out")), "{plan}");
}
