//! The choices of a plan: the GPU, the number of layers, the number of tokens.

use autoplace_planner::machine::{DiskRateSource, Gpu, GpuKind, Host, Machine, gib, mib};
use autoplace_planner::memory::Headroom;
use autoplace_planner::plan::{
    ChangeKind, Context, Error, GpuLayers, HostParts, MoeCache, Plan, Planner, Policy, Request, Workload,
};
use autoplace_planner::profile::ModelProfile;

use crate::{machine, plan};
use test_support::shapes::{LLAMA_1B, LLAMA_8B, LLAMA_70B, QWEN3_30B_A3B, Shape};
use test_support::synthetic::named;

fn exactly(layers: u32) -> Request {
    Request::new().n_gpu_layers(GpuLayers::Exactly(layers))
}

#[test]
fn the_gpu_with_more_spare_bytes_is_chosen_or_the_first_of_equal_gpus() {
    let profile = LLAMA_1B.profile();
    // Both cards of the last case are large enough for the whole model. The plan takes the card with more spare bytes.
    for (free, chosen) in [([4, 5], "card 1"), ([5, 5], "card 0"), ([0, 5], "card 1"), ([20, 22], "card 1")] {
        let plan = plan(&profile, &machine(gib(64), &free.map(gib)), &Request::new()).unwrap();
        assert_eq!(plan.gpus().next().unwrap().name, chosen, "{free:?}");
    }
}

#[test]
fn a_stated_number_of_layers_is_kept_or_an_error() {
    let profile = LLAMA_8B.profile();
    let [without, small, large] = [&[][..], &[gib(4)], &[gib(24)]].map(|free| machine(gib(32), free));
    for n in [0, 1, 7] {
        assert_eq!(plan(&profile, &small, &exactly(n)).unwrap().n_gpu_layers, n);
    }
    match plan(&profile, &small, &exactly(33)) {
        Err(Error::DoesNotFit { n_gpu_layers: 33, layers: 33, devices, .. }) => {
            assert_eq!(devices[0].device, "card 0");
            assert!(devices[0].missing > 0);
            assert_eq!((devices[1].device.as_str(), devices[1].missing), ("host", 0));
        }
        other => panic!("{other:?}"),
    }
    let all = plan(&profile, &small, &Request::new().n_gpu_layers(GpuLayers::All));
    assert!(matches!(all, Err(Error::DoesNotFit { n_gpu_layers: 33, .. })), "{all:?}");
    let without = plan(&profile, &without, &exactly(5));
    assert!(matches!(without, Err(Error::NoGpu { n_gpu_layers: 5, .. })), "{without:?}");
    for many in [exactly(99), Request::new().n_gpu_layers(99)] {
        let plan = plan(&profile, &large, &many).unwrap();
        assert_eq!(plan.n_gpu_layers, 33);
        assert!(plan.notes.iter().any(|note| note.contains("99 layers were requested")), "{plan}");
    }
    // A plain number of layers is an upper bound.
    for (machine, n, expected) in [(&small, 7, 0..8), (&small, 33, 8..34), (&large, 7, 1..8)] {
        let plan = plan(&profile, machine, &Request::new().n_gpu_layers(n)).unwrap();
        assert!(expected.contains(&plan.n_gpu_layers), "{n}: {plan}");
    }
}

#[test]
fn a_batch_and_a_ubatch_that_a_smaller_number_limits_are_noted_with_both() {
    let (profile, machine) = (LLAMA_1B.profile(), machine(gib(64), &[gib(24)]));
    let noted = |request: Request| {
        let notes = plan(&profile, &machine, &request).unwrap().notes;
        notes.into_iter().filter(|note| note.contains("n_batch") || note.contains("n_ubatch")).collect::<Vec<_>>()
    };
    let request = |n_ctx, n_batch, n_ubatch| Request::new().n_ctx(n_ctx).n_batch(n_batch).n_ubatch(n_ubatch);
    let by_batch = "128 tokens are computed at once (n_batch) instead of 4096 (n_ubatch)";
    assert_eq!(noted(request(8192, 128, 4096)), [by_batch]);
    let by_context = "1000 tokens are computed at once, the context, instead of 4096 (n_ubatch)";
    let batch = "a batch has 1000 tokens, the context, instead of 8192 (n_batch)";
    assert_eq!(noted(request(1000, 8192, 4096)), [by_context, batch]);
    // The usual ubatch is larger than this batch.
    let usual = "128 tokens are computed at once (n_batch) instead of 512 (n_ubatch)";
    assert_eq!(noted(Request::new().n_batch(128)), [usual]);
    // The batch of the last request is as large as its ubatch, because it was raised with it.
    assert_eq!(noted(request(1000, 4096, 4096)), [by_context]);
    // Nothing is limited here, or only a number that was not requested.
    for request in [Request::new(), request(8192, 2048, 512), request(8192, 4096, 4096), Request::new().n_ctx(256)] {
        assert_eq!(noted(request), [""; 0]);
    }
}

#[test]
fn the_context_has_32768_tokens_unless_another_is_requested() {
    let machine = machine(gib(64), &[]);
    let n_ctx = |context| plan(&LLAMA_1B.profile(), &machine, &Request::new().context(context)).unwrap().context.n_ctx;
    assert_eq!(n_ctx(Context::Default), 32_768);
    assert_eq!(n_ctx(Context::Model), 131_072);
    assert_eq!(n_ctx(Context::Tokens(300)), 300);
    let short = Shape { n_ctx_train: 2049, ..LLAMA_1B }.profile();
    let of = |request: Request| plan(&short, &machine, &request);
    for context in [Context::Default, Context::AtLeast(511), Context::Auto] {
        assert_eq!(of(Request::new().context(context)).unwrap().context.n_ctx, 2049, "{context:?}");
    }
    // Each sequence has at least 4096 tokens, whether or not the sequences share a cache. A stated number is for all of
    // them together.
    for (sequences, n_ctx) in [(2, 32_768), (8, 32_768), (9, 36_864), (16, 65_536)] {
        for unified in [false, true] {
            let request = Request::new().n_seq_max(sequences).kv_unified(unified);
            assert_eq!(plan(&LLAMA_1B.profile(), &machine, &request).unwrap().context.n_ctx, n_ctx, "{sequences}");
        }
        let stated = Request::new().n_seq_max(sequences).context(Context::AtLeast(131_072));
        assert_eq!(plan(&LLAMA_1B.profile(), &machine, &stated).unwrap().context.n_ctx, 131_072, "{sequences}");
    }
    assert!(of(Request::new().n_seq_max(8)).unwrap().context.n_ctx >= 8 * 2049);
    // A stated workload is the workload of one sequence.
    let work = Request::new().workload(Workload::new(8000, 192)).n_seq_max(8);
    assert_eq!(plan(&LLAMA_1B.profile(), &machine, &work).unwrap().context.n_ctx, 8 * 8192);
    // The trained length is compared with the tokens of each sequence.
    for (n_ctx, sequences, said) in [(2049, 1, None), (2050, 1, Some(2049)), (8196, 4, None), (8192, 2, Some(2049))] {
        let plan = of(Request::new().n_ctx(n_ctx).n_seq_max(sequences)).unwrap();
        assert_eq!(plan.trained_on_fewer(), said);
        let each = format!("{sequences} sequences of {} tokens", n_ctx / sequences);
        assert_eq!(plan.notes.contains(&each), sequences > 1, "{plan}");
        // Each sequence may request logits.
        assert_eq!(plan.context.n_outputs_max, sequences);
    }
    let mut twice = Request::new().n_ctx(1024);
    twice.params.n_ctx = 1024;
    assert_eq!(of(twice.clone()).unwrap().context.n_ctx, 1024);
    twice.params.n_ctx = 512;
    let said = of(twice).unwrap_err().to_string();
    assert!(said.contains("1024") && said.contains("512"), "{said}");
}

#[test]
fn experts_may_be_placed_on_the_host() {
    let profile = QWEN3_30B_A3B.profile();
    let machine = machine(gib(32), &[gib(12)]);
    let whole = plan(&profile, &machine, &Request::new().policy(Policy::MostLayers)).unwrap();
    assert!((20..40).contains(&whole.n_gpu_layers), "{whole}");
    assert!(whole.overrides.is_empty() && whole.split_blocks == 0);
    // Every block is on the card, and the experts of some blocks are on the host.
    let parted = plan(&profile, &machine, &Request::new().moe_cache(MoeCache::Off)).unwrap();
    assert_eq!(parted.n_gpu_layers, 49, "{parted}");
    assert!(!parted.overrides.is_empty() && !parted.full_offload);
    assert!((10..40).contains(&parted.split_blocks), "{parted}");
}

/// A model with 32k tokens on a card of `card` GiB, and a request for the same kind of placement as llama.cpp's own
/// fit: with whole layers, or with experts on the host.
fn at_32k(model: &str, card: u64, swa_full: bool) -> (ModelProfile, Machine, Request) {
    let profile = ModelProfile::from_header(&named(model).builder().header().unwrap()).unwrap();
    let card = Gpu::new("card").total(gib(card)).bandwidth(1_008_000_000_000);
    let machine = Machine::new(Host::new(gib(64))).with_gpu(card);
    let request = Request::new().host_parts(HostParts::Experts).moe_cache(MoeCache::Off);
    let request = request.n_ctx(32_768).n_ubatch(512).swa_full(swa_full);
    (profile, machine, request)
}

#[test]
fn a_window_is_kept_as_a_window_unless_the_whole_context_is_requested() {
    let planned = |model, card, swa_full| -> Plan {
        let (profile, machine, request) = at_32k(model, card, swa_full);
        plan(&profile, &machine, &request).unwrap()
    };
    // llama.cpp's own fit finds these numbers with its default settings, if the same number of bytes is left free.
    // Without a probe, more bytes must stay free for the estimate's uncertainty. For gemma 2 on 12 GiB, this costs one
    // of 40 layers.
    for (model, card, least) in
        [("gemma3 Gemma 3 27B", 24, 63), ("gemma2 Gemma 2 9B", 12, 39), ("gemma2 Gemma 2 9B", 8, 24)]
    {
        let windows = planned(model, card, false);
        assert!(windows.n_gpu_layers >= least, "{windows}");
        assert!(!windows.context.swa_full, "{windows}");
        let full = planned(model, card, true);
        assert!(full.n_gpu_layers + 4 < windows.n_gpu_layers, "{full}");
        assert!(full.to_string().contains("swa_full"), "{full}");
    }
    let [windows, full] = [false, true].map(|swa_full| planned("gpt-oss gpt-oss 20B", 8, swa_full));
    assert!(windows.split_blocks <= 13, "{windows}");
    assert!(windows.split_blocks < full.split_blocks, "{full}");
}

#[test]
fn windows_are_advised_if_only_they_would_fit() {
    let (profile, machine, request) = at_32k("gemma3 Gemma 3 27B", 24, true);
    let advice = Planner::new(&profile, &machine).request(request).advice().unwrap();
    assert_eq!(advice.changes[0].kinds, [ChangeKind::SwaFull(false)]);
    assert!(advice.changes[0].outcome.full, "{advice}");
}

/// A plan of `Policy::MostLayers` on several cards with a host of 64 GiB.
fn most_layers(profile: &ModelProfile, free: &[u64], request: Request) -> Result<Plan, Error> {
    plan(profile, &machine(gib(64), free), &request.policy(Policy::MostLayers))
}

#[test]
fn a_division_of_layers_that_no_single_step_reaches_is_found() {
    let (n_layer, n_embd, n_ff, n_head, n_head_kv, head_dim) = (3, 768, 1536, 12, 3, 64);
    let shape = Shape { n_layer, n_embd, n_ff, n_head, n_head_kv, head_dim, n_vocab: 88_832, ..LLAMA_8B };
    let free = [827_568_360, 901_984_960, 827_568_361].map(|free| free + mib(64));
    let request = Request::new().n_ctx(183).n_ubatch(183).n_outputs_max(183);
    assert_eq!(most_layers(&shape.profile(), &free, request).unwrap().n_gpu_layers, 4);
}

#[test]
fn unequal_cards_are_filled_to_the_same_share() {
    let request = Request::new().headroom(Headroom::Bytes(gib(1)));
    let plan = most_layers(&LLAMA_70B.profile(), &[12, 24, 18].map(gib), request).unwrap();
    assert!(plan.full_offload, "{plan}");
    let shares: Vec<f64> = plan.gpus().map(|gpu| gpu.footprint.total() as f64 / gpu.budget as f64).collect();
    let (least, most) =
        shares.iter().fold((1.0_f64, 0.0_f64), |(least, most), &share| (least.min(share), most.max(share)));
    // One layer is 5 % of the smallest card, and the cards need different numbers of bytes besides layers.
    assert!(most - least < 0.08, "{shares:?}");
}

#[test]
fn a_stated_number_of_layers_goes_to_as_few_gpus_as_possible() {
    let profile = LLAMA_8B.profile();
    let used = |n| most_layers(&profile, &[3, 4, 5].map(gib), exactly(n)).unwrap().gpus().count();
    assert_eq!((used(0), used(5), used(33)), (0, 1, 2));
    let error = most_layers(&profile, &[2, 3].map(gib), exactly(33)).unwrap_err();
    let Error::DoesNotFit { devices, .. } = &error else { panic!("{error}") };
    assert_eq!(devices.len(), 3, "both cards and the host: {error}");
}

fn paging(context: u32) -> Request {
    Request::new().allow_paging(true).n_ctx(context)
}

/// The model needs 40 GiB, and the host has 24 GiB.
#[test]
fn a_model_that_does_not_fit_is_read_from_disk_if_that_is_allowed() {
    let profile = LLAMA_70B.profile::<ModelProfile>();
    assert!(profile.file_bytes > gib(38), "{}", profile.file_bytes);
    let host = Host::new(gib(24)).bandwidth(60_000_000_000);
    for gpus in [vec![], vec![Gpu::named("RTX 3060 12GB").unwrap()]] {
        let machine = gpus.iter().cloned().fold(Machine::new(host.clone()), Machine::with_gpu);
        let refused = plan(&profile, &machine, &Request::new());
        assert!(matches!(refused, Err(Error::DoesNotFit { .. })));

        let mut stated = machine.clone();
        stated.host = stated.host.disk(3_000_000_000);
        let paged = plan(&profile, &stated, &paging(4096)).unwrap();
        assert_eq!(paged.gpus().count(), gpus.len(), "{paged}");
        assert_eq!((paged.context.mmap, paged.context.repack), (true, false));
        let (lacks, on_host) = (paged.paging.unwrap(), paged.host().unwrap());
        assert_eq!(lacks.bytes, on_host.footprint.total() - on_host.budget);
        // The tokens of a dense model use all weights in order, so a page is dropped before its next use. Each token
        // therefore reads the whole model from the disk, except the embedding.
        let weights = on_host.footprint.weights;
        assert!(lacks.bytes_per_token <= weights && lacks.bytes_per_token > weights / 10 * 9, "{lacks:?}");
        let speed = paged.speed.as_ref().unwrap();
        let at_most = 1.0 / lacks.seconds_per_token();
        assert!(speed.tokens_per_second > at_most * 0.5 && speed.tokens_per_second < at_most, "{paged}");
        assert!(speed.prompt.tokens_per_second > speed.tokens_per_second, "{paged}");
        assert!(paged.to_string().contains("read from disk again"), "{paged}");

        let guessed = plan(&profile, &machine, &paging(4096)).unwrap();
        assert_eq!(guessed.paging.unwrap().disk.source, DiskRateSource::Guess);
    }
    // The cache cannot be paged from a file.
    let too_long = plan(&profile, &Machine::new(host), &paging(131_072));
    assert!(matches!(too_long, Err(Error::DoesNotFit { .. })));
}

#[test]
fn paging_changes_nothing_if_the_model_fits() {
    let profile = LLAMA_8B.profile();
    let machine = Machine::new(Host::new(gib(16)));
    let plain = Request::new().n_ctx(4096);
    let allowed = plan(&profile, &machine, &paging(4096)).unwrap();
    assert_eq!(allowed, plan(&profile, &machine, &plain).unwrap());
    assert_eq!(allowed.paging, None);
}

#[test]
fn a_token_reads_from_disk_the_share_of_its_experts_that_does_not_fit() {
    let profile = QWEN3_30B_A3B.profile();
    let plan_on = |ram| plan(&profile, &Machine::new(Host::new(gib(ram))), &paging(4096)).unwrap();
    let [small, large] = [10, 14].map(|ram| plan_on(ram).paging.unwrap());
    assert!(small.bytes > gib(6) && small.bytes_per_token < small.bytes / 5, "{small:?}");
    assert!(large.bytes_per_token < small.bytes_per_token, "{large:?}");
    // A prompt uses all experts, in order.
    assert!(small.bytes_per_batch > gib(14), "{small:?}");
}

#[test]
fn a_gpu_that_cannot_use_a_mapped_file_is_left_out_of_paging() {
    let profile = LLAMA_70B.profile();
    let shared = Gpu::new("shared").kind(GpuKind::Integrated).backend("CUDA").total(gib(12));
    let machine = Machine::new(Host::new(gib(16))).with_gpu(shared);
    let plan = plan(&profile, &machine, &paging(4096)).unwrap();
    assert_eq!(plan.gpus().count(), 0, "{plan}");
}
