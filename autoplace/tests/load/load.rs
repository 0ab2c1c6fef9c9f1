//! Loads and errors that are the same on every machine.

use std::collections::BTreeSet;

use autoplace::load::{ThreadBasis, Verify};
use autoplace::machine::{Gpu, Host, Machine, gib, mib};
use autoplace::memory::{KvType, RopeScaling};
use autoplace::plan::{self, Confidence, GpuLayers, Request};
use autoplace::{Model, ModelBuilder, llama_sys, load};
use test_support::demo_path;

#[test]
fn the_context_and_the_cache_type_are_the_ones_asked_for() {
    let model = Model::builder(demo_path()).n_ctx(1024).type_k(KvType::Q8_0).type_v(KvType::Q8_0).load().unwrap();
    let plan = model.placement();
    assert_eq!((plan.context.n_ctx, plan.confidence), (1024, Confidence::Probed));
    // There are 6 blocks with 1024 cells. In each cell, K and V have 128 elements each. 32 elements have 34 bytes. In
    // addition, each block has two matrices of 64 x 64 floats: one for K and one for V (llama-kv-cache.cpp,
    // `init_rotation`).
    let kv = plan.host().unwrap().footprint.kv;
    assert_eq!(kv, 6 * 2 * (1024 * (128 / 32) * 34 + 4 * 64 * 64));
    let notes = plan.notes.join("\n");
    assert!(notes.contains("trained on 512"), "{notes}");
}

#[test]
fn an_impossible_load_is_refused_with_the_reason() {
    let demo = || Model::builder(demo_path());
    let host = || Machine::new(Host::new(gib(8)));
    let gpu = Gpu::new("RTX 9999").total(gib(24));
    let gone = host().with_gpu(gpu.clone().device("CUDA7"));
    for (case, builder, reason) in [
        ("no tokens", demo().n_ctx(0), "n_ctx"),
        ("positions without a base", demo().rope(|rope| rope.freq_base = Some(0.0)), "rope_freq_base"),
        ("layers for no GPU", demo().machine(host()).n_gpu_layers(GpuLayers::Exactly(3)), "3"),
        ("another process's GPU", demo().machine(gone).leases(load::Leases::none()), "CUDA7"),
        // If a device is missing, the model must not move to the host without an error.
        ("a GPU without a device", demo().machine(host().with_gpu(gpu)), "RTX 9999"),
    ] {
        let error = builder.load().unwrap_err();
        assert!(error.to_string().contains(reason), "{case}: {error}");
        let has_type =
            matches!(error, load::Error::Plan(plan::Error::Memory(_) | plan::Error::NoGpu { n_gpu_layers: 3, .. }));
        assert!(has_type || !["no tokens", "layers for no GPU"].contains(&case), "{case}: {error:?}");
    }
    let small = Machine::new(Host::new(gib(1)).available(mib(2)));
    let error = demo().machine(small).load().unwrap_err();
    let load::Error::Plan(plan::Error::DoesNotFit { devices, .. }) = &error else { panic!("{error:?}") };
    assert_eq!(devices.len(), 1);
    assert!(devices[0].missing > 0 && devices[0].needed > mib(4));
    assert!(error.to_string().contains("missing on host"), "{error}");
    // The error that `load` returns has the same methods, and need not be converted. The message says that no change
    // would help here.
    assert!(error.is_out_of_memory() && !error.is_aborted() && !error.is_bad_file());
    assert_eq!((error.device(), error.needed()), (Some("host"), Some(devices[0].needed)));
    let advice = error.advice().expect("changes were tried").to_string();
    assert!(!advice.is_empty() && error.to_string().contains("no change that was tried makes it fit"), "{error}");
}

#[test]
fn error_and_builder_give_advice_and_say_so_if_there_is_none() {
    let builder = || {
        let machine = Machine::new(Host::new(gib(4)).available(gib(2)));
        Model::builder(demo_path()).machine(machine).n_ctx(20_000_000).leases(load::Leases::none())
    };
    // With a shorter context, it would fit.
    let error = builder().plan().unwrap_err();
    let advice = error.advice().expect("changes were tried");
    let change = advice.changes.first().unwrap_or_else(|| panic!("{error}")).to_string();
    assert!(change.contains("a context of") && error.to_string().ends_with(&change), "{error}");
    assert_eq!(builder().advice().unwrap().changes, advice.changes);
    let all_fits = Model::builder(demo_path()).machine(Machine::new(Host::new(gib(1)).available(gib(1))));
    let advice = all_fits.n_gpu_layers(GpuLayers::Exactly(0)).advice().unwrap();
    let line = advice.to_string();
    assert!(!line.is_empty(), "a line says that there is nothing to change");
    assert_eq!(advice.is_empty(), line.starts_with("nothing to change"), "{line}");
}

#[test]
fn a_build_without_gpu_features_says_so() {
    let plan = Model::builder(demo_path()).plan().unwrap();
    let has_gpu = llama_sys::build_info().backends.iter().any(|name| !["CPU", "BLAS", "RPC"].contains(name));
    let says_so = plan.notes[0].contains("this build has no GPU backend") && plan.notes[0].contains("`cuda`");
    assert_eq!(says_so, !has_gpu, "{plan}");
    let error = Model::builder(demo_path()).n_gpu_layers(GpuLayers::All).load();
    if !has_gpu {
        let error = error.unwrap_err().to_string();
        assert!(error.contains("this build has no GPU backend"), "{error}");
    }
}

#[test]
fn positions_are_scaled_as_requested() {
    let text = |builder: ModelBuilder| {
        let model = builder.load().unwrap();
        model.generate("Once upon a time").temp(0.0).max_tokens(12).text().unwrap()
    };
    let demo = || Model::builder(demo_path()).verify(Verify::Off);
    let quarter = |scaling| text(demo().rope(|rope| (rope.scaling, rope.freq_scale) = (Some(scaling), Some(0.25))));
    let other_base = text(demo().rope(|rope| rope.freq_base = Some(100.0)));
    let texts = [text(demo()), other_base, quarter(RopeScaling::Linear), quarter(RopeScaling::Yarn)];
    let different: BTreeSet<_> = texts.iter().collect();
    assert_eq!(different.len(), texts.len(), "{texts:?}");
    assert_eq!(text(demo().rope(|rope| rope.scaling = Some(RopeScaling::None))), texts[0]);
}

#[test]
fn a_load_says_how_many_threads_it_begins_with_and_why() {
    let model = Model::builder(demo_path()).n_gpu_layers(GpuLayers::Exactly(0)).load().unwrap();
    let report = model.report();
    let threads = &report.threads;
    let host = &model.machine().host;
    let is_limited = host.compute_threads() < host.usable_cores;
    let basis = if is_limited { ThreadBasis::TimeLimit } else { ThreadBasis::PerCore };
    assert_eq!(threads.basis, basis, "{report}");
    let cores = model.machine().host.physical_cores.unwrap_or(u32::MAX);
    assert!(threads.generation == threads.prompt && threads.prompt <= cores, "{report}");
    let said = format!("threads: {} to generate, {basis}; {} for prompts", threads.generation, threads.prompt);
    assert!(report.to_string().contains(&said), "{report}");
}

#[test]
fn requested_threads_are_kept() {
    for asked in [1, 3] {
        let model = Model::builder(demo_path()).n_threads(asked).load().unwrap();
        let threads = model.report().threads.clone();
        assert_eq!((threads.generation, threads.prompt), (asked, asked));
        assert_eq!(threads.basis, ThreadBasis::Asked);
        let mut stream = model.generate("And").max_tokens(3).stream().unwrap();
        stream.by_ref().for_each(|piece| drop(piece.unwrap()));
        assert_eq!(stream.statistics().threads, asked);
    }
}

#[test]
fn more_threads_than_can_run_at_once_are_kept_and_noted() {
    // Under a quota of one and a half processors, two threads can run at once.
    let many = std::thread::available_parallelism().map_or(1, |n| n.get() as u32) + 2;
    let noted = |threads: u32, batch: u32| {
        let model = Model::builder(demo_path()).n_threads(threads).n_threads_batch(batch).load().unwrap();
        let report = model.report();
        assert_eq!((report.threads.generation, report.threads.prompt), (threads, batch));
        let (notes, whole) = (report.notes.clone(), report.to_string());
        assert!(notes.iter().all(|note| whole.contains(note)), "{whole}");
        notes.into_iter().find(|note| note.contains("threads")).unwrap_or_default()
    };
    let both = format!("{many} threads to generate and {many} threads for prompts on ");
    assert!(noted(many, many).starts_with(&both), "{}", noted(many, many));
    let prompts = noted(1, many);
    assert!(prompts.starts_with(&format!("{many} threads for prompts on ")), "{prompts}");
    assert!(prompts.contains(" as requested, are slow"), "{prompts}");
    assert_eq!(noted(1, 1), "");
}

#[test]
fn a_model_larger_than_memory_is_loaded_where_paging_is_allowed() {
    let load = |available, allow| {
        let mut request = Request::new().n_gpu_layers(GpuLayers::Exactly(0));
        // A plan with paging has this setting too, because weights that were rearranged cannot be paged from a file.
        request.params.repack = false;
        let builder = Model::builder(demo_path()).request(request).n_threads(1);
        let host = Host::new(gib(64)).available(available).disk(1_000_000_000);
        builder.machine(Machine::new(host)).allow_paging(allow).load()
    };
    let greedy = |model: &Model| model.generate("In the beginning").temp(0.0).max_tokens(8).text().unwrap();
    let whole = load(gib(4), true).unwrap();
    let plan = whole.placement();
    assert_eq!(plan.paging, None);
    let text = greedy(&whole);
    // On the host, there is room for everything but half of the weights.
    let host = plan.host().unwrap();
    let little = host.footprint.total() + host.headroom.total() - host.footprint.weights / 2;
    drop(whole);
    assert_matches!(load(little, false), Err(load::Error::Plan(_)));
    let paged = load(little, true).unwrap();
    let paging = paged.placement().paging.expect("a part of the weights has no room");
    assert!(paging.bytes > 0 && paging.bytes < host.footprint.weights, "{paging:?}");
    assert_eq!(greedy(&paged), text);
}
