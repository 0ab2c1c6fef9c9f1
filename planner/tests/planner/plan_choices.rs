//! Which GPU, how many layers, how many tokens: what a plan chooses.

use autoplace_planner::gguf::Header;
use autoplace_planner::machine::{Gpu, Host, Machine, gib};
use autoplace_planner::plan::{Context, Error, GpuLayers, HostParts, Plan, Planner, Policy, Request};
use autoplace_planner::profile::ModelProfile;

use crate::shapes::{LLAMA_1B, LLAMA_8B, QWEN3_30B_A3B, Shape};
use crate::synthetic::named;

fn plan(profile: &ModelProfile, machine: &Machine, request: &Request) -> Result<Plan, Error> {
    Planner::new(profile, machine).request(request.clone()).plan()
}

#[test]
fn of_two_gpus_that_take_it_all_the_one_with_more_to_spare_is_chosen_and_of_equals_the_first() {
    let profile = LLAMA_1B.profile();
    // The last take everything: the one with more to spare.
    for (free, chosen) in [([4, 5], "B"), ([5, 5], "A"), ([0, 5], "B"), ([20, 22], "B")] {
        let mut machine = Machine::new(Host::new(gib(64)));
        for (name, free) in ["A", "B"].into_iter().zip(free) {
            machine = machine.with_gpu(Gpu::new(name).total(gib(24)).free(gib(free)));
        }
        let plan = Planner::new(&profile, &machine).plan().unwrap();
        assert_eq!(plan.gpus().next().unwrap().name, chosen, "{free:?}");
    }
}

#[test]
fn a_named_number_of_layers_is_that_number_or_an_error() {
    let profile = LLAMA_8B.profile();
    let card = Gpu::new("card").total(gib(8)).free(gib(4));
    let machine = Machine::new(Host::new(gib(32))).with_gpu(card);
    let exactly = |n| Request::new().n_gpu_layers(GpuLayers::Exactly(n));
    for n in [0, 1, 7] {
        assert_eq!(plan(&profile, &machine, &exactly(n)).unwrap().n_gpu_layers, n);
    }
    match plan(&profile, &machine, &exactly(33)) {
        Err(Error::DoesNotFit { n_gpu_layers: 33, layers: 33, devices, .. }) => {
            assert_eq!(devices[0].device, "card");
            assert!(devices[0].missing > 0);
            assert_eq!((devices[1].device.as_str(), devices[1].missing), ("host", 0));
        }
        other => panic!("{other:?}"),
    }
    let all = plan(&profile, &machine, &Request::new().n_gpu_layers(GpuLayers::All));
    assert!(matches!(all, Err(Error::DoesNotFit { n_gpu_layers: 33, .. })), "{all:?}");
    let without = plan(&profile, &Machine::new(Host::new(gib(32))), &exactly(5));
    assert!(matches!(without, Err(Error::NoGpu { n_gpu_layers: 5 })), "{without:?}");
    let large = Machine::new(Host::new(gib(32))).with_gpu(Gpu::new("card").total(gib(24)));
    for many in [exactly(99), Request::new().n_gpu_layers(99)] {
        let plan = plan(&profile, &large, &many).unwrap();
        assert_eq!(plan.n_gpu_layers, 33);
        assert!(plan.notes.iter().any(|note| note.contains("99 layers were asked for")), "{plan}");
    }
    // A number alone is at most so many.
    for (machine, n, expected) in [(&machine, 7, 0..8), (&machine, 33, 8..34), (&large, 7, 1..8)] {
        let plan = plan(&profile, machine, &Request::new().n_gpu_layers(n)).unwrap();
        assert!(expected.contains(&plan.n_gpu_layers), "{n}: {plan}");
    }
}

#[test]
fn the_context_is_4096_tokens_unless_asked_for() {
    let machine = Machine::new(Host::new(gib(64)));
    let n_ctx = |context| {
        let request = Request::new().context(context);
        plan(&LLAMA_1B.profile(), &machine, &request).unwrap().context.n_ctx
    };
    assert_eq!(n_ctx(Context::Default), 4096);
    assert_eq!(n_ctx(Context::Model), 131_072);
    assert_eq!(n_ctx(Context::Tokens(300)), 300);
    let short = Shape { n_ctx_train: 2048, ..LLAMA_1B }.profile();
    let of = |request: Request| plan(&short, &machine, &request);
    assert_eq!(of(Request::new()).unwrap().context.n_ctx, 2048);
    // Beyond what it was trained on counts what each sequence has.
    for (n_ctx, sequences, said) in [(2048, 1, None), (2049, 1, Some(2048)), (8192, 4, None), (8192, 2, Some(2048))] {
        let plan = of(Request::new().n_ctx(n_ctx).n_seq_max(sequences)).unwrap();
        assert_eq!(plan.trained_on_fewer(), said);
        let each = format!("{sequences} sequences of {} tokens", n_ctx / sequences);
        assert_eq!(plan.notes.contains(&each), sequences > 1, "{plan}");
        // Each may ask for its logits.
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
fn experts_are_planned_too() {
    let profile = QWEN3_30B_A3B.profile();
    let machine = Machine::new(Host::new(gib(32))).with_gpu(Gpu::new("card").total(gib(12)));
    let whole = plan(&profile, &machine, &Request::new().policy(Policy::MostLayers)).unwrap();
    assert!((20..40).contains(&whole.n_gpu_layers), "{whole}");
    assert!(whole.overrides.is_empty() && whole.parted_blocks == 0);
    // Every block on the card, the experts of some on the host.
    let parted = plan(&profile, &machine, &Request::new()).unwrap();
    assert_eq!(parted.n_gpu_layers, 49, "{parted}");
    assert!(!parted.overrides.is_empty() && !parted.full_offload);
    assert!((10..40).contains(&parted.parted_blocks), "{parted}");
}

#[test]
fn a_window_is_kept_as_a_window_unless_the_whole_context_is_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let at_32k = |sketch: &crate::synthetic::Sketch, card, swa_full| {
        let header = Header::open(sketch.write(folder.path())).unwrap();
        let profile = ModelProfile::from_header(&header).unwrap();
        let machine =
            Machine::new(Host::new(gib(64))).with_gpu(Gpu::new("card").total(gib(card)).bandwidth(1_008_000_000_000));
        // As llama.cpp's own fit: whole layers, or experts.
        let request = Request::new().host_parts(HostParts::Experts).n_ctx(32_768).swa_full(swa_full);
        plan(&profile, &machine, &request).unwrap()
    };
    // What llama.cpp's own fit finds with its defaults and the same bytes left free, less what arithmetic alone must
    // keep for its uncertainty: of gemma 2 on 12 GiB one layer of 40.
    for (sketch, card, least) in [
        (named("gemma3 Gemma 3 27B"), 24, 63),
        (named("gemma2 Gemma 2 9B"), 12, 39),
        (named("gemma2 Gemma 2 9B"), 8, 24),
    ] {
        let windows = at_32k(&sketch, card, false);
        assert!(windows.n_gpu_layers >= least, "{windows}");
        assert!(!windows.context.swa_full, "{windows}");
        let full = at_32k(&sketch, card, true);
        assert!(full.n_gpu_layers + 4 < windows.n_gpu_layers, "{full}");
        assert!(full.to_string().contains("swa_full"), "{full}");
    }
    let (windows, full) =
        (at_32k(&named("gpt-oss gpt-oss 20B"), 8, false), at_32k(&named("gpt-oss gpt-oss 20B"), 8, true));
    assert!(windows.parted_blocks <= 13, "{windows}");
    assert!(windows.parted_blocks < full.parted_blocks, "{full}");
}

#[test]
fn where_windows_alone_would_fit_that_is_advised() {
    use autoplace_planner::plan::ChangeKind;
    let folder = tempfile::tempdir().unwrap();
    let sketch = named("gemma3 Gemma 3 27B");
    let header = Header::open(sketch.write(folder.path())).unwrap();
    let profile = ModelProfile::from_header(&header).unwrap();
    let machine = Machine::new(Host::new(gib(64))).with_gpu(Gpu::new("card").total(gib(24)));
    let request = Request::new().n_ctx(32_768).swa_full(true);
    let advice = Planner::new(&profile, &machine).request(request).advice().unwrap();
    assert_eq!(advice.changes[0].kinds, [ChangeKind::SwaFull(false)]);
    assert!(advice.changes[0].outcome.full, "{advice}");
}
