//! Compares the search with an exhaustive search.

// The strategies of the integration tests, compiled with this crate's own types.
#[path = "../../../tests/planner/any.rs"]
#[allow(dead_code, reason = "the integration tests use the rest")]
mod any;

use std::collections::BTreeSet;

use proptest::prelude::{Just, ProptestConfig, Strategy, prop, prop_assert, prop_oneof, proptest};

use super::{Path, Placements, Probed, SearchConstraints};
use crate::machine::{Bytes, Gpu, GpuKind, Host, Machine, Pool, Pools, gib, mib};
use crate::memory::{ContextParams, Estimate, Footprint, Footprints, Headroom, PeakSizes, Split, Uncertainty};
use crate::plan::speed::{Rates, SpeedModel};
use crate::plan::{Context, HostParts, KvPlace, Plan, Planner, Policy, Probe, Request, kv_cache};
use crate::profile::ModelProfile;

use test_support::dims::Experts;
use test_support::shapes::{LLAMA_8B, QWEN3_30B_A3B, Shape};

/// Eight experts of width 512; a token uses two of them.
const EXPERTS: Experts = Experts { n: 8, used: 2, ff: 512 };

/// A model with a few narrow blocks.
fn small(n_layer: u32, n_embd: u64, n_ff: u64, n_vocab: u64) -> Shape {
    let (n_head, n_head_kv, head_dim) = (n_embd / 64, n_embd / 256, 64);
    Shape { n_layer, n_embd, n_ff, n_head, n_head_kv, head_dim, n_vocab, tied: false, ..LLAMA_8B }
}

/// A model of a few blocks, dense or with experts.
fn shape(most_blocks: u32) -> impl Strategy<Value = Shape> {
    (1..=most_blocks, any::shape()).prop_map(|(n_layer, shape)| Shape { n_layer, ..shape })
}

/// GPUs with a few hundred MiB free beyond the headroom of the requests.
fn gpus(most: usize) -> impl Strategy<Value = Vec<Gpu>> {
    let backend = prop_oneof![Just("CUDA"), Just("CUDA"), Just("Vulkan"), Just("MTL")];
    let gpu = (backend, 1..mib(600), 0u64..1000, 0u32..9).prop_map(|(backend, free, speed, kind)| {
        let gpu = Gpu::new("card").total(mib(700)).free(free).backend(backend);
        let own = Pool::new(free / 2, free / 2);
        let shared = Pool::new(mib(700) - own.total, free - own.free);
        let gpu = match kind {
            0 => gpu.kind(GpuKind::Integrated),
            1 => gpu.kind(GpuKind::Integrated).pools(Pools::new(own, shared)),
            _ => gpu,
        };
        // Some speeds are unknown, and some are lower than the host's speed.
        if speed < 50 { gpu } else { gpu.bandwidth(speed * 1_000_000_000) }
    });
    prop::collection::vec(gpu, 1..=most)
}

fn request() -> impl Strategy<Value = Request> {
    let parts = any::host_parts();
    let headroom = (0..mib(60)).prop_map(Headroom::Bytes);
    let policy = prop_oneof![2 => Just(Policy::Fastest), 1 => Just(Policy::MostLayers)];
    let kv = (any::kv_cache(), prop_oneof![9 => Just(KvPlace::Given), 1 => Just(KvPlace::Auto)]);
    let min_ubatch = prop_oneof![9 => Just(None), 1 => (64u32..512).prop_map(Some)];
    (parts, headroom, 1u32..6000, policy, kv, min_ubatch).prop_map(
        |(parts, headroom, n_ctx, policy, kv, min_ubatch)| {
            let request = Request::new().host_parts(parts).headroom(headroom).n_ctx(n_ctx).policy(policy);
            Request { min_ubatch, ..request.kv_cache(kv.0).kv_place(kv.1) }
        },
    )
}

fn machine(gpus: Vec<Gpu>, host: u64) -> Machine {
    gpus.into_iter().fold(Machine::new(Host::new(host).bandwidth(60_000_000_000)), Machine::with_gpu)
}

fn params(profile: &ModelProfile, request: &Request) -> ContextParams {
    let mut params = request.params.clone();
    params.n_ctx = request.context.tokens(profile);
    params
}

/// Every way to divide the layers among the GPUs of an order, with every number of parts on the host.
fn ways(placements: &Placements<'_>, setting: usize, order: usize) -> Vec<Path> {
    let layers = placements.profile.full_offload();
    let n = placements.orders[order].len();
    let mut begun: Vec<Path> =
        (0..=layers).map(|first| Path { setting, order, first, runs: Vec::new(), single_copy: false }).collect();
    for _ in 0..n {
        let mut longer = Vec::new();
        for path in &begun {
            let begin = path.runs.last().map_or(path.first, |&(end, _)| end);
            for end in begin + 1..=layers {
                for kept in 0..=placements.parts.count(begin, end) {
                    let mut path = path.clone();
                    path.runs.push((end, kept));
                    longer.push(path);
                }
            }
        }
        begun = longer;
    }
    begun.retain(|path| path.runs.last().map_or(path.first, |&(end, _)| end) == layers);
    let single = begun.iter().filter(|path| path.is_pipelined());
    let single: Vec<Path> = single.map(|path| Path { single_copy: true, ..path.clone() }).collect();
    begun.extend(single);
    begun
}

/// Seconds of the workload on a path, by the speed model.
fn seconds(placements: &Placements<'_>, request: &Request, path: &Path) -> f64 {
    let (profile, params) = (placements.profile, placements.params(path));
    let rates = Rates::for_devices(&placements.gpus_of(path), &placements.machine.host);
    let model = SpeedModel::new(profile, params, rates).overrides(profile, &placements.split(path).overrides).unwrap();
    model.seconds(&placements.assignment(path), &request.work(profile))
}

/// The cost of a path, computed independently: the seconds or layers of the path, and its surcharges.
fn cost(placements: &Placements<'_>, request: &Request, path: &Path) -> f64 {
    let tie = placements.tie;
    let surcharge = placements.setting_costs[path.setting].surcharge;
    let seconds = match placements.policy {
        Policy::Fastest => seconds(placements, request, path) * (1.0 + surcharge),
        Policy::MostLayers => path.first.into(),
    };
    let prices = placements.prices(&placements.setting_costs[path.setting].table, path.order);
    let gpu_prices = path.runs().enumerate().map(|(n, run)| prices.run(n, run) - prices.seconds(n, run));
    let single = if path.single_copy { tie / 2.0 } else { 0.0 };
    seconds + gpu_prices.sum::<f64>() + single + placements.steps(path.setting)
}

/// A simulated llama.cpp. Its compute buffers are these multiples of the estimate, for the first GPU, for other GPUs
/// and for the host.
struct Scaled<'p>(&'p ModelProfile, [f64; 3]);

type Answer = Result<Footprints, Box<dyn std::error::Error + Send + Sync>>;

impl Probe for Scaled<'_> {
    fn footprints(&self, gpus: &[&Gpu], params: &ContextParams, split: &Split) -> Answer {
        let estimate = Estimate::new(self.0, gpus, params)?.tensor_split(&split.tensor_split)?;
        let mut footprints = estimate.overrides(&split.overrides)?.footprints(split.n_gpu_layers);
        let scaled =
            |footprint: &mut Footprint, part: f64| footprint.compute = (footprint.compute as f64 * part) as u64;
        for (n, footprint) in footprints.gpus.iter_mut().enumerate() {
            scaled(footprint, self.1[n.min(1)]);
        }
        footprints.host.compute -= footprints.output;
        scaled(&mut footprints.host, self.1[2]);
        footprints.host.compute += footprints.output;
        Ok(footprints)
    }
}

/// Whether a path fits: by the probe, or by an independent comparison of free bytes, headroom and footprints.
fn fits(placements: &Placements<'_>, request: &Request, path: &Path) -> bool {
    let (profile, params, host) = (placements.profile, placements.params(path), &placements.machine.host);
    let gpus = placements.gpus_of(path);
    let split = placements.split(path);
    if let Some(probe) = placements.probe {
        let footprints = probe.footprints(&gpus, params, &split).unwrap();
        return placements.room(path).levels(&footprints, &Uncertainty::default()).fit();
    }
    let estimate = Estimate::new(profile, &gpus, params).unwrap();
    let peak_sizes = PeakSizes::new(profile, estimate.sizes());
    let estimate = estimate.tensor_split(&split.tensor_split).unwrap().overrides(&split.overrides).unwrap();
    let footprints = estimate.footprints(split.n_gpu_layers);
    let unsure = estimate.with_uncertainty(&estimate.assignment(split.n_gpu_layers)).1;
    let mut host_needed = footprints.host.total();
    for ((gpu, footprint), &unsure) in gpus.iter().zip(&footprints.gpus).zip(&unsure.gpus) {
        let headroom = request.headroom.of_gpu(gpu, &peak_sizes, unsure, false);
        if footprint.total() + headroom.total() > gpu.free {
            return false;
        }
        host_needed += gpu.bytes_of_host(footprint.total(), headroom.total());
    }
    let headroom = Headroom::of_host(host, &peak_sizes, !gpus.is_empty(), unsure.host);
    host_needed + headroom.total() <= host.available
}

/// The least cost of all paths that fit.
fn exhaustive(placements: &Placements<'_>, request: &Request) -> Option<(f64, Path)> {
    let settings = 0..placements.setting_costs.len();
    let places = settings.flat_map(|setting| (0..placements.orders.len()).map(move |order| (setting, order)));
    // A smaller cache type is allowed only if every GPU of the order fuses attention over it.
    let is_allowed = |&(setting, order): &(usize, usize)| {
        let costs = &placements.setting_costs[setting];
        let mut gpus = placements.orders[order].iter().map(|&gpu| &placements.gpus[gpu].backend);
        costs.smaller_kv == 0 || gpus.all(|gpu| kv_cache::is_fused(gpu, placements.profile, &costs.params))
    };
    let all = places.filter(is_allowed).flat_map(|(setting, order)| ways(placements, setting, order));
    let mut priced: Vec<(f64, Path)> = all.map(|path| (cost(placements, request, &path), path)).collect();
    priced.sort_by(|a, b| a.0.total_cmp(&b.0));
    priced.into_iter().find(|(_, path)| fits(placements, request, path))
}

fn same(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-9 * a.abs().max(b.abs())
}

/// Compares the search with the exhaustive search. A search with a probe may find nothing. But if it finds a path, this
/// must be the cheapest path that fits by the probe.
fn compare(
    shape: &Shape,
    gpus: Vec<Gpu>,
    host: u64,
    request: &Request,
    probed: Option<[f64; 3]>,
) -> Result<(), String> {
    let profile = shape.profile();
    let machine = machine(gpus, host);
    let params = params(&profile, request);
    let scaled = Scaled(&profile, probed.unwrap_or_default());
    let probe = probed.map(|_| -> &dyn Probe { &scaled });
    let model = SpeedModel::new(&profile, &params, Rates::for_devices(&[], &machine.host));
    let placements = Placements::new(&profile, &machine, request, (&params, &model), request.policy, probe);
    let Ok(placements) = placements else {
        return Ok(());
    };
    let search = || {
        let found = match probe {
            Some(probe) => Probed::new(&placements, probe).search().unwrap().map(|(found, _)| found),
            None => placements.search(&SearchConstraints::default()).unwrap(),
        };
        found.map(|found| (found.cost, found.path))
    };
    let (found, again) = (search(), search());
    let best = exhaustive(&placements, request);
    let best_found = match (&found, &best) {
        (None, best) => probed.is_some() || best.is_none(),
        (Some((found, _)), best) => best.as_ref().is_some_and(|(best, _)| same(*found, *best)),
    };
    if best_found && again == found { Ok(()) } else { Err(format!("found {found:?}, {again:?}\nbest {best:?}")) }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn a_search_with_a_probe_is_as_good_as_an_exhaustive_one(
        shape in shape(4),
        gpus in gpus(2),
        request in request(),
        parts in prop::array::uniform3(0.8..1.02),
    ) {
        // The model is as wide as a 70B model, so that a layer has some hundred MiB.
        let shape = Shape { n_embd: 8192, n_ff: 28_672, n_head: 64, n_head_kv: 8, head_dim: 128, ..shape };
        let card = |gpu: Gpu| Gpu { total: 6 * gpu.total, free: 6 * gpu.free, pools: None, kind: GpuKind::Discrete, ..gpu };
        let outcome = compare(&shape, gpus.into_iter().map(card).collect(), mib(40_000), &request, Some(parts));
        prop_assert!(outcome.is_ok(), "{}", outcome.unwrap_err());
    }

    #[test]
    fn a_search_on_one_gpu_is_as_good_as_an_exhaustive_one(
        shape in shape(6),
        gpus in gpus(1),
        host in mib(20)..mib(600),
        request in request(),
    ) {
        let outcome = compare(&shape, gpus, host, &request, None);
        prop_assert!(outcome.is_ok(), "{}", outcome.unwrap_err());
    }
}

proptest! {
    // The exhaustive search over several GPUs is slow, so there are fewer cases.
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn a_search_over_several_gpus_is_as_good_as_an_exhaustive_one(
        shape in shape(3),
        gpus in gpus(4),
        host in mib(20)..mib(600),
        request in request(),
    ) {
        let outcome = compare(&shape, gpus, host, &request, None);
        prop_assert!(outcome.is_ok(), "{}", outcome.unwrap_err());
    }
}

#[test]
fn blocks_with_the_same_parts_on_the_host_share_a_pattern() {
    let shape = Shape { experts: Some(EXPERTS), ..small(12, 256, 512, 640) };
    let profile = shape.profile();
    let overrides = super::Parts::new(&profile, HostParts::Experts).overrides(&[(1, 3), (8, 7)]);
    let patterns: Vec<&str> = overrides.iter().map(|rule| rule.pattern.as_str()).collect();
    assert_eq!(patterns, [r"^blk\.5\.ffn_down_exps\.", r"^blk\.(0|6|7)\.(ffn_down_exps|ffn_gate_exps|ffn_up_exps)\."]);
}

#[test]
fn placements_without_room_are_not_tried_again_and_again() {
    let request = |parts, n_ctx| Request::new().headroom(Headroom::Bytes(0)).host_parts(parts).n_ctx(n_ctx);
    let card = |free| Gpu::new("card").total(mib(8000)).free(free);
    let fast = |free| card(free).bandwidth(497_000_000_000);
    // The token embedding stays on the host and leaves too little memory there for a GPU's driver.
    let beside = Shape { tied: true, experts: Some(EXPERTS), ..small(5, 512, 512, 90_816) };
    let auto = request(HostParts::Auto, 1);
    // With all layers on the GPUs, the host has 3 MiB left. With any part of them on the host, its compute buffer would
    // grow by more than that.
    let parts = request(HostParts::FeedForward, 513);
    let few = vec![card(49_298_429), card(46_337_063), fast(109_120_842)];
    // The first GPU computes with the host's weights. It has too little memory for this work even if the other GPUs are
    // full.
    let cache = request(HostParts::FeedForward, 8192).offload_kqv(false);
    let four = [6, 5, 4, 3].map(|n| fast(n * mib(957)));
    // The host has too little memory for the cache and the layers that do not fit on the GPUs.
    let long = request(HostParts::Auto, 32_768).offload_kqv(false);
    let two = vec![fast(mib(3943)), fast(mib(3111))];
    for (shape, request, gpus, host, (layers, at_most)) in [
        (beside, auto, vec![card(mib(118)), card(mib(90))], mib(365), (0, 1)),
        (small(5, 256, 512, 99_328), parts, few, 379_516_288, (0, 1000)),
        (QWEN3_30B_A3B, cache, four.into(), mib(65_536), (49, 2000)),
        (QWEN3_30B_A3B, long, two, mib(18_000), (17, 10)),
    ] {
        let (profile, machine) = (shape.profile(), machine(gpus, host));
        let params = params(&profile, &request);
        let model = SpeedModel::new(&profile, &params, Rates::for_devices(&[], &machine.host));
        let context = (&params, &model);
        let placements = Placements::new(&profile, &machine, &request, context, Policy::Fastest, None).unwrap();
        let found = placements.search(&SearchConstraints::default()).unwrap().unwrap();
        assert_eq!(found.path.counts().iter().sum::<u32>(), layers, "{}", shape.name);
        assert!(placements.estimates_made.get() <= at_most, "{}: {}", shape.name, placements.estimates_made.get());
        // From each layer, the last GPU has at most one run, and this run reaches the last layer.
        let prices = placements.prices(&placements.setting_costs[0].table, 0);
        assert!(prices.runs(prices.order.len() - 1).iter().all(|runs| runs.len() <= 1), "{}", shape.name);
    }
}

#[test]
fn a_request_for_one_depth_gets_one_note_on_another_placement() {
    let card = Gpu::new("card").total(gib(4)).bandwidth(360_000_000_000);
    let request = Request::new().n_ctx(32_768).at([64]).depth(crate::plan::Depth::All);
    let (profile, machine) = (LLAMA_8B.profile(), machine(vec![card], gib(32)));
    let plan = Planner::new(&profile, &machine).request(request).plan().unwrap();
    let named = plan.notes.iter().filter(|note| note.contains("times as fast"));
    assert_eq!(named.count(), 1, "{plan}");
}

#[test]
fn a_grown_context_is_stated_with_its_speeds_and_the_spare_bytes() {
    let (profile, machine) = (LLAMA_8B.profile(), machine(vec![Gpu::new("card").total(gib(12))], gib(32)));
    let planner = |request| Planner::new(&profile, &machine).request(request);
    let grown = |request: Request| planner(request.context(Context::Auto)).plan().unwrap();
    let plan = grown(Request::new());
    let (n_ctx, card) = (plan.context.n_ctx, plan.gpus().next().unwrap());
    assert!(n_ctx > 32_768 && plan.speed.as_ref().unwrap().generation[2].depth == n_ctx, "{plan}");
    let spare = format!(", {} to spare", Bytes(card.budget - card.footprint.total()));
    let said =
        format!("{n_ctx} tokens of context, the most that moves no layer to the host; the model was trained on 131072");
    assert!(plan.notes[0].ends_with(&spare) && plan.notes.contains(&said), "{plan}");
    // The context is long enough for the requested workload.
    let request = Request::new().workload(crate::plan::Workload::new(60_000, 100)).at([64, 70_000]);
    assert!((70_000..71_000).contains(&grown(request).context.n_ctx));
}

#[test]
fn the_default_context_costs_no_layer_and_takes_half_of_the_spare_bytes() {
    let profile = LLAMA_8B.profile();
    let spare = |plan: &Plan| {
        plan.placements.iter().map(|placement| placement.budget - placement.footprint.total()).collect::<Vec<_>>()
    };
    let mut seen = BTreeSet::new();
    for card in 3..=14 {
        let machine = machine(vec![Gpu::new("card").total(gib(card))], gib(16));
        let planned = |request| Planner::new(&profile, &machine).request(request).plan().unwrap();
        let (least, grown) = (planned(Request::new().n_ctx(4096)), planned(Request::new()));
        assert_eq!((grown.n_gpu_layers, &grown.overrides), (least.n_gpu_layers, &least.overrides), "{card} GiB");
        let is_left = |(now, least): (&u64, &u64)| *now >= least / 2;
        assert!(spare(&grown).iter().zip(&spare(&least)).all(is_left), "{least}{grown}");
        seen.insert(grown.context.n_ctx);
    }
    assert!(seen.first() == Some(&4096) && seen.len() > 3 && seen.last() == Some(&32_768), "{seen:?}");
}

#[test]
fn the_ubatch_is_larger_if_that_is_worth_it() {
    let profile = QWEN3_30B_A3B.profile();
    let work = crate::plan::Workload::new;
    let short = work(1024, 256);
    for (cards, n_ctx, workload, (all, n_ubatch)) in [
        // Each expert computes with only the few tokens that chose it.
        (1, 4096, short, (true, 1024)),
        // The cache moves experts to the host.
        (1, 131_072, short, (false, 1024)),
        (1, 16_384, work(8000, 50), (true, 2048)),
        // Several GPUs overlap many small ubatches.
        (2, 16_384, work(8000, 50), (true, 512)),
        (0, 16_384, work(8000, 50), (false, 512)),
    ] {
        let size = if cards == 2 { 14 } else { 24 };
        let machine = machine(vec![Gpu::new("card").total(gib(size)); cards], gib(64));
        let request = Request::new().n_ctx(n_ctx).workload(workload);
        let plan = Planner::new(&profile, &machine).request(request).plan().unwrap();
        assert_eq!((plan.full_offload, plan.context.n_ubatch), (all, n_ubatch), "{plan}");
    }
}

#[test]
fn placements_that_were_once_missed_are_found() {
    let card = |free| Gpu::new("card").total(mib(700)).free(free);
    // Parts on the host may need a smaller compute buffer than whole blocks.
    let request = Request::new().headroom(Headroom::Bytes(8_984_420)).host_parts(HostParts::FeedForward).n_ctx(2305);
    let shared = card(70_292_323).kind(GpuKind::Integrated).bandwidth(103_000_000_000);
    compare(&small(4, 768, 1536, 47_936), vec![shared], 449_284_980, &request, None).unwrap();
    // If the host lacks only the bytes of the estimate's uncertainty, the search must not try the placement again.
    let request = Request::new().headroom(Headroom::Bytes(0)).host_parts(HostParts::FeedForward).n_ctx(338);
    let gpus = vec![
        card(45_941_663),
        card(55_510_687).bandwidth(50_000_000_000),
        card(58_359_967).bandwidth(51_000_000_000),
        card(58_359_967),
    ];
    compare(&Shape { tied: true, ..small(3, 512, 512, 18_496) }, gpus, 363_296_256, &request, None).unwrap();
    // A single copy of the graph may fit by the probe although four copies do not.
    let request = Request::new().headroom(Headroom::Bytes(2_791_829)).host_parts(HostParts::None).n_ctx(1793);
    let wide = Shape { n_embd: 8192, n_ff: 28_672, n_head: 64, n_head_kv: 8, head_dim: 128, ..small(2, 256, 512, 192) };
    let card = |free| Gpu::new("card").total(mib(4200)).free(free).backend("CUDA");
    let gpus = vec![card(450_698_406).bandwidth(50_000_000_000), card(370_487_646)];
    let experts = Shape { experts: Some(EXPERTS), ..wide };
    compare(&experts, gpus, mib(40_000), &request, Some([0.8, 0.976, 0.8])).unwrap();
    let request = Request::new().headroom(Headroom::Bytes(27_533_797)).host_parts(HostParts::None).n_ctx(4865);
    let gpus = vec![card(905_031_666).bandwidth(239_000_000_000), card(1_895_913_000).bandwidth(53_000_000_000)];
    let by_layers = Request::new().policy(Policy::MostLayers).headroom(Headroom::Bytes(10_897_051)).n_ctx(513);
    let by_layers = by_layers.host_parts(HostParts::None).kv_place(KvPlace::Auto);
    let cards = [902_232_708, 1_172_236_212].map(card).to_vec();
    let three = Shape { n_layer: 3, n_vocab: 62_528, ..wide };
    let parts = [0.9095037833750039, 0.8182983360517567, 0.8];
    compare(&three, cards, mib(40_000), &by_layers, Some(parts)).unwrap();
    let four = Shape { n_layer: 4, n_vocab: 1152, ..wide };
    compare(&four, gpus, mib(40_000), &request, Some([0.8221845814739437, 0.9434829618508005, 0.8])).unwrap();
}
