//! A cache of experts on a simulated card. Its planned, probed and allocated bytes are exactly the same. The texts are
//! the same with the cache and without it: if it begins in the middle of a text, in a worker, and with several
//! sequences.

use std::path::{Path, PathBuf};

use crate::replace_support::{request, text_of};
use crate::sim_support::card;
use crate::text_support::{SEED, Texts, complete, random, sampled, words, worker};
use autoplace::gguf::TensorType;
use autoplace::llama_sys::Token;
use autoplace::machine::{Gpu, Machine, PcieLink, PcieRate, mib};
use autoplace::memory::{FlashAttention, KvType, Place, TensorOverride};
use autoplace::plan::{self, GpuLayers, MoeCache, Plan, Request, Workload};
use autoplace::{Isolation, Model, ModelBuilder, load};
use test_support::random_weights::{self, DIMS};
use test_support::synthetic::Sketch;
use test_support::synthetic::block::{Block, Feed, QkNorms};

const N_CTX: u32 = 512;

/// A request with all layers on cards, and all experts on the host. The model computes in 32 bits, so that the numbers
/// are the same in batches of any shape.
fn experts_on_host(n_seq_max: u32) -> Request {
    let mut request = request().n_ctx(N_CTX * n_seq_max).n_seq_max(n_seq_max).n_ubatch(64).n_gpu_layers(GpuLayers::All);
    request.params.flash_attn = FlashAttention::Off;
    (request.params.type_k, request.params.type_v) = (KvType::F32, KvType::F32);
    request.overrides(vec![TensorOverride::new("_exps", Place::Host)])
}

fn builder(path: &Path, request: &Request, cache: MoeCache) -> ModelBuilder {
    Model::builder(path).request(request.clone()).moe_cache(cache).n_threads(1)
}

/// Checks that the plan, llama.cpp's count and the card have the same number of bytes.
fn agrees(model: &Model, used: u64) {
    let (plan, report) = (model.placement(), model.report());
    let [gpu] = report.gpus.as_slice() else { panic!("{report:?}") };
    assert_eq!(gpu.allocated, Some(gpu.planned), "{plan}");
    assert_eq!(used, gpu.planned.total(), "{plan}");
    let (planned, allocated) = (report.host.planned, report.host.allocated);
    assert_eq!(planned.experts, allocated.experts, "{plan}");
}

fn text(model: &Model) -> Vec<Token> {
    complete(sampled(model, words(7, 90), SEED).max_tokens(24), model).tokens
}

#[test]
fn a_cache_of_any_size_changes_no_text_and_takes_the_planned_and_probed_bytes() {
    own_process!();
    let folder = tempfile::tempdir().unwrap();
    let (path, gpu) = (random("qwen3moe", None, folder.path()), card(mib(256)));
    let without = {
        let model = builder(&path, &experts_on_host(1), MoeCache::Auto).load().unwrap();
        assert!(model.placement().moe_cache.is_none(), "a stated placement has no cache but a stated one");
        agrees(&model, gpu.used());
        assert_eq!(model.expert_uses(), None);
        text(&model)
    };
    let mut last = 0;
    for size in [mib(4), mib(9) + 12_345, mib(200)] {
        let model = builder(&path, &experts_on_host(1), MoeCache::Bytes(size)).load().unwrap();
        let plan = model.placement();
        let cache = plan.moe_cache.expect("it was asked for");
        assert_eq!((cache.bytes, plan.context.moe_cache_size), (size, size));
        agrees(&model, gpu.used());
        let experts = plan.gpus().next().unwrap().footprint.experts;
        assert!(last < experts && experts <= size, "{plan}");
        last = experts;
        let generated = complete(sampled(&model, words(7, 90), SEED).max_tokens(24), &model);
        assert_eq!(generated.tokens, without, "with {size} bytes");
        let rate = generated.statistics().expert_hit_rate().expect("experts were used");
        assert!((0.0..=1.0).contains(&rate));
        assert!(model.expert_uses().unwrap().total() > 0);
    }
    // All experts fit into the cache, so each of them has to be loaded only once.
    assert!(last < mib(40), "{last}");
}

#[test]
fn the_search_leaves_room_for_a_stated_cache_on_cards_of_any_size() {
    own_process!();
    let folder = tempfile::tempdir().unwrap();
    let path = random("qwen3moe", None, folder.path());
    let request = request().n_ctx(N_CTX);
    let mut cached = 0;
    for size in [12, 16, 20, 24, 28, 64] {
        let gpu = card(mib(size));
        let machine = fast_card(100_000_000, PcieRate::new(5, 16).unwrap());
        match builder(&path, &request, MoeCache::Bytes(mib(4))).machine(machine).load() {
            Ok(model) => {
                let plan = model.placement();
                cached += u32::from(plan.moe_cache.is_some());
                assert!(
                    plan.moe_cache.is_some() || plan.notes.iter().any(|note| note.contains("no cache of 4.0 MiB")),
                    "{plan}"
                );
                agrees(&model, gpu.used());
                assert!(gpu.peak() <= mib(size));
                text(&model);
            }
            // On a small card, there is no room for the cache.
            Err(load::Error::Plan(error @ plan::Error::Memory(_))) => {
                assert!(size <= 16 && error.to_string().contains("moe_cache is 4194304"), "{size}: {error}");
            }
            Err(error) => panic!("{size} MiB: {error}"),
        }
    }
    assert!(cached > 1);
}

/// A machine with a fast card and a host that reads `host` bytes per second. They are connected by this link.
fn fast_card(host: u64, link: PcieRate) -> Machine {
    let mut machine = load::detect().unwrap();
    machine.host = machine.host.bandwidth(host);
    machine.host.rates = None;
    let link = PcieLink::new(link);
    let fast = |gpu: Gpu| {
        let mut gpu = gpu.bandwidth(500_000_000_000).pcie(link);
        gpu.rates = None;
        gpu
    };
    machine.gpus = machine.gpus.into_iter().map(fast).collect();
    machine
}

#[test]
fn on_a_card_behind_a_fast_link_a_plan_chooses_a_cache_and_a_load_has_it() {
    own_process!();
    let folder = tempfile::tempdir().unwrap();
    let path = random("qwen3moe", None, folder.path());
    let request = request().n_ctx(N_CTX);
    let gpu = card(mib(24));
    let machine = fast_card(100_000_000, PcieRate::new(5, 16).unwrap());
    let with = |cache| builder(&path, &request, cache).machine(machine.clone());
    let model = with(MoeCache::Auto).load().unwrap();
    let plan = model.placement();
    let cache = plan.moe_cache.unwrap_or_else(|| panic!("{plan}"));
    assert!(cache.speedup >= 1.1 && cache.hits > 0.5, "{cache:?}");
    agrees(&model, gpu.used());
    text(&model);
    drop(model);
    assert!(with(MoeCache::Off).plan().unwrap().moe_cache.is_none());
}

#[test]
fn a_cache_that_texts_seldom_hit_is_turned_off_by_the_next_plan() {
    own_process!();
    let folder = tempfile::tempdir().unwrap();
    let path = random("qwen3moe", None, folder.path());
    let gpu = card(mib(24));
    // The link is slower than the host. So a cache helps only if the same experts are soon used again. If tokens are
    // drawn by chance, they use other experts each time.
    let machine = fast_card(1_600_000_000, PcieRate::new(1, 1).unwrap());
    let kept = folder.path().join("kept");
    // A prompt goes over the link whether there is a cache or not.
    let request = request().n_ctx(N_CTX).workload(Workload::new(8, 200));
    let builder = || builder(&path, &request, MoeCache::Auto).machine(machine.clone()).headroom_folder(&kept);
    let model = builder().load().unwrap();
    let before = model.placement();
    let cache = before.moe_cache.unwrap_or_else(|| panic!("{before}"));
    assert!(cache.break_even.is_some_and(|hits| hits < cache.hits), "{cache:?}");
    // For each token, eight experts are used in all layers together.
    for seed in 0.. {
        sampled(&model, words(seed, 20), seed).temp(100.0).max_tokens(400).text().unwrap();
        if model.expert_uses().is_some_and(|uses| uses.total() > 22_000) {
            break;
        }
    }
    let uses = model.expert_uses().unwrap();
    assert!(uses.hit_rate().unwrap() < cache.hits, "{uses:?} {cache:?}");
    let expected = text(&model);
    // Both plans use the hit rates that were measured with the texts. The rates that the current plan expected do not
    // count.
    let better = model.better_plan().unwrap().unwrap_or_else(|| panic!("{uses:?} {before}"));
    assert!(better.gain > 0.0 && better.plan.moe_cache.is_none(), "{better:?}");
    model.replace(None).unwrap();
    let after = model.placement();
    assert!(after.moe_cache.is_none(), "{uses:?} {after}");
    assert_eq!(model.better_plan().unwrap(), None);
    agrees(&model, gpu.used());
    assert_eq!(text(&model), expected);
    drop(model);
    // A program that starts later uses the measured rates too.
    assert!(builder().plan().unwrap().moe_cache.is_none());
}

/// A model with random weights, in which each token uses four of each layer's 32 experts.
fn of_32_experts(folder: &Path) -> PathBuf {
    const EXPERTS: Feed = Feed::Experts { n: 32, ff: 64, ty: TensorType::F32 };
    let mut sketch = Sketch::new("qwen3moe", "32 experts", DIMS);
    sketch.mixture(32, 4, 64);
    sketch.ends(TensorType::F32, Some(TensorType::F32));
    let block = Block::new(TensorType::F32, TensorType::F32);
    sketch.stack(&Block { qk_norms: QkNorms::PerHead, feed: EXPERTS, ..block });
    sketch.vocabulary();
    random_weights::write(&sketch, folder)
}

/// The weights are random, but each token's experts are chosen by the model's own routers. The curve is learned anew
/// for each size of the cache. For another size it may be further off, because these models have few experts.
#[test]
fn once_learned_texts_hit_within_five_points_of_what_a_plan_expects() {
    own_process!();
    let folder = tempfile::tempdir().unwrap();
    let _gpu = card(mib(256));
    let models = [random("qwen3moe", None, folder.path()), of_32_experts(folder.path())];
    for (number, path) in models.iter().enumerate() {
        let all = {
            let model = builder(path, &experts_on_host(1), MoeCache::Bytes(mib(200))).load().unwrap();
            model.placement().gpus().next().unwrap().footprint.experts
        };
        let mut learned = 0;
        for eighths in [3, 6] {
            let kept = folder.path().join(format!("{number} {eighths}"));
            let cache = MoeCache::Bytes(all * eighths / 8);
            let load = || builder(path, &experts_on_host(1), cache).headroom_folder(&kept).load().unwrap();
            let expected = |model: &Model| model.placement().moe_cache.unwrap().hits;
            let generate = |model: &Model, seed: u32| {
                sampled(model, words(seed, 20), seed).temp(1.0).max_tokens(400).text().unwrap();
                model.expert_uses().unwrap()
            };
            let assumed = {
                let model = load();
                let mut seeds = 0..;
                while generate(&model, seeds.next().unwrap()).total() < 22_000 {}
                expected(&model)
            };
            let model = load();
            let expected = expected(&model);
            learned += u32::from((expected - assumed).abs() > 0.01);
            // An empty cache is filled first. Single texts differ, so five texts are counted together.
            let before = generate(&model, 1000);
            let mut after = before;
            for seed in 1001..=1005 {
                after = generate(&model, seed);
            }
            let observed = (after.hits - before.hits) as f64 / (after.total() - before.total()) as f64;
            println!("{number}, {eighths} eighths: {observed:.3}, {expected:.3} expected, {assumed:.3} assumed before");
            assert!((observed - expected).abs() <= 0.05, "{number}, {eighths} eighths: {observed}, not {expected}");
        }
        assert!(learned > 0, "{number}: every curve was right before it was learned");
    }
}

#[test]
fn a_text_goes_on_with_a_cache_without_it_and_where_memory_is_short() {
    own_process!();
    let folder = tempfile::tempdir().unwrap();
    let (path, gpu) = (random("qwen3moe", None, folder.path()), card(mib(64)));
    let request = experts_on_host(1);
    let of = |cache| builder(&path, &request, cache).plan().unwrap();
    let [with, without, small] = [MoeCache::Bytes(mib(16)), MoeCache::Off, MoeCache::Bytes(mib(4))].map(of);
    let model = builder(&path, &request, MoeCache::Bytes(mib(16))).attempts(1).load().unwrap();
    let generate = || sampled(&model, words(7, 90), SEED).max_tokens(40);
    let expected = generate().text().unwrap();
    let plans: [&Plan; 4] = [&without, &with, &small, &with];
    let mut plans = plans.into_iter();
    let text = text_of(generate(), |stream, index| {
        if let Some(plan) = (index % 8 == 7).then(|| plans.next()).flatten() {
            stream.replace(Some(plan.clone())).unwrap();
            assert_eq!(*model.placement(), *plan);
            agrees(&model, gpu.used());
        }
    });
    assert_eq!((text, plans.len()), (expected.clone(), 0));

    // Another program takes the memory that the cache would need again. If the size of the cache was set and there is
    // no room for it, that is an error, and the model stays where it is. With a smaller plan, the model moves.
    gpu.set_taken(mib(64) - gpu.used() - mib(1));
    let text = text_of(generate(), |stream, index| {
        if index == 7 {
            stream.replace(Some(small.clone())).unwrap();
        }
    });
    assert_eq!(text, expected);
    assert_eq!(model.placement().moe_cache.unwrap().bytes, mib(4));
}

#[test]
fn four_sequences_at_once_use_the_same_cache_and_have_their_own_texts() {
    own_process!();
    let folder = tempfile::tempdir().unwrap();
    let (path, gpu) = (random("qwen3moe", None, folder.path()), card(mib(256)));
    let texts = |cache| {
        let model = builder(&path, &experts_on_host(4), cache).load().unwrap();
        agrees(&model, gpu.used());
        let mut session = model.session().unwrap();
        let mut texts = Texts::default();
        let all: Vec<_> = (1..=4)
            .map(|n| session.begin(sampled(&model, words(n, 40 + n as usize), SEED).max_tokens(16)).unwrap())
            .collect();
        texts.run(&mut session);
        let tokens: Vec<_> = all.into_iter().map(|sequence| texts.of(sequence).tokens.clone()).collect();
        (tokens, model.expert_uses())
    };
    let (expected, none) = texts(MoeCache::Off);
    assert_eq!(none, None);
    // Four tokens may use all of a layer's eight experts.
    for size in [mib(9), mib(12)] {
        let (tokens, uses) = texts(MoeCache::Bytes(size));
        assert_eq!(tokens, expected, "with {size} bytes");
        assert!(uses.unwrap().total() > 0);
    }
}

/// There is no card in this worker. The worker of `isolation_own.rs` has one.
#[test]
fn a_worker_reports_why_a_cache_of_experts_is_impossible() {
    let folder = tempfile::tempdir().unwrap();
    let path = random("qwen3moe", None, folder.path());
    let isolated = Isolation::Process(worker());
    let load = || builder(&path, &request().n_ctx(N_CTX), MoeCache::Bytes(mib(4)));
    let (there, here) = (load().isolation(isolated).load().unwrap(), load().load().unwrap());
    assert_eq!(there.placement().notes, here.placement().notes);
    assert!(here.placement().notes.iter().any(|note| note.contains("there is no GPU")), "{}", here.placement());
    assert_eq!(text(&there), text(&here));
}
