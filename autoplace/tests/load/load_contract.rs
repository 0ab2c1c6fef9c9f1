//! The load contract on simulated GPUs: how a load is verified, what happens if there is not enough memory, and what is
//! reported.

use std::sync::Arc;

use crate::sim_support::{card, card_of};
use autoplace::gguf::Header;
use autoplace::llama_sys::sim::SimGpu;
use autoplace::load::{self, Error, LoadReport, NotLearnedReason, OnDifference, Stage, Verify};
use autoplace::machine::{Machine, mib};
use autoplace::memory::Headroom;
use autoplace::plan::{GpuLayers, HostParts, Plan, Request, SavedPlan, SavedPlanError};
use autoplace::{Model, ModelBuilder, generate, llama_sys, plan};
use test_support::demo_path;
use test_support::tiny::{TINY_VOCABULARY, tiny};

const TOTAL: u64 = mib(64);

fn registered() -> (Arc<SimGpu>, Machine) {
    (Arc::new(card(TOTAL)), load::detect().unwrap())
}

/// The demo model, which is planned for this machine. It may use all bytes of a GPU.
fn builder(machine: &Machine) -> ModelBuilder {
    let mut request = Request::new().headroom(Headroom::Bytes(0)).n_ubatch(64);
    request.host_parts = HostParts::None;
    // Repacked weights are multiplied in another order. Only with the same order is the text certain to be the same.
    request.params.repack = false;
    Model::builder(demo_path()).request(request).machine(machine.clone()).n_threads(1)
}

fn text(model: &Model) -> String {
    let prompt = "In the beginning God created the heaven and the earth. And the earth was without form, and void";
    model.generate(prompt).temp(0.0).max_tokens(12).text().unwrap()
}

/// The text that the CPU alone generates.
fn text_of_the_cpu(machine: &Machine) -> String {
    let host = Machine::new(machine.host.clone());
    text(&builder(&host).load().unwrap())
}

/// How many bytes the plan takes of its only GPU.
fn on_gpu(plan: &Plan) -> u64 {
    plan.gpus().next().map_or(0, |gpu| gpu.footprint.total())
}

/// For each attempt, the stage at which it failed.
fn stages(report: &LoadReport) -> Vec<Option<Stage>> {
    report.attempts.iter().map(|attempt| attempt.failure.as_ref().map(|failure| failure.stage)).collect()
}

/// Checks that a card is empty.
#[track_caller]
fn is_empty(gpu: &SimGpu) {
    assert_eq!((gpu.used(), gpu.buffers()), (0, 0));
}

#[test]
fn a_load_without_trouble_is_as_planned_as_probed_and_as_measured() {
    own_process!();
    let (gpu, machine) = registered();
    let model = builder(&machine).load().unwrap();
    let report = model.report();
    assert_eq!(stages(&report), [None]);
    assert_eq!(report.plan, *model.placement());
    let [card] = &report.gpus[..] else { panic!("{report}") };
    assert_eq!(card.allocated, Some(card.planned));
    assert_eq!(card.taken(), Some(gpu.used()));
    let differences = (card.grown, card.beyond(), card.difference());
    assert_eq!(differences, (0, Some(0), 0));
    // The warm-up computes the largest batch, and then one token.
    let warm_up = &report.warm_up;
    assert_eq!((warm_up.tokens, warm_up.last_position), (65, 64));
    let said = report.to_string();
    assert!(said.contains("7 of 7 layers on GPUs"), "{said}");
    assert!(said.contains("65 tokens"), "{said}");
    assert_eq!(text(&model), text_of_the_cpu(&machine));
}

#[test]
fn a_load_computes_as_much_as_requested() {
    own_process!();
    let (gpu, machine) = registered();
    let loaded = |verify| {
        let before = gpu.graphs();
        let warm_up = builder(&machine).n_ctx(300).verify(verify).load().unwrap().report().warm_up.clone();
        (gpu.graphs() - before, warm_up.tokens, warm_up.last_position)
    };
    assert_eq!(loaded(Verify::Off), (0, 0, 0));
    let (graphs, tokens, last) = loaded(Verify::Quick);
    assert!(graphs > 0);
    assert_eq!((tokens, last), (65, 64));
    // llama.cpp rounds the length of the context up to a multiple of 256.
    let (_, tokens, last) = loaded(Verify::Full);
    assert_eq!((tokens, last), (512, 511));

    // If there is only the host, nothing is computed except in a full verification.
    let host = Machine::new(machine.host.clone());
    let loaded = |verify| builder(&host).n_ctx(256).verify(verify).load().unwrap().report();
    let quick = loaded(Verify::Quick);
    assert!(quick.warm_up.skipped.is_some() && quick.gpus.is_empty());
    assert!(quick.to_string().contains("warm-up: none"), "{quick}");
    assert_eq!(loaded(Verify::Full).warm_up.last_position, 255);
}

#[test]
fn a_model_that_does_not_generate_is_loaded_without_a_warm_up_and_refuses_to() {
    own_process!();
    let (_gpu, machine) = registered();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.gguf");
    // LLaDA fills in a whole text at once. It has no cache. If a text were requested token by token, llama_decode would
    // fail an assertion.
    let llada = tiny("llada", 2, 32).str("tokenizer.ggml.model", "no_vocab").u32("llada.vocab_size", TINY_VOCABULARY);
    llada.write_sparse(&path).unwrap();
    for verify in [Verify::Quick, Verify::Full] {
        let model = Model::builder(&path).machine(machine.clone()).n_threads(1).verify(verify).load().unwrap();
        let report = model.report();
        assert_eq!(report.warm_up.tokens, 0);
        assert!(report.to_string().contains("does not generate"), "{report}");
        assert!(report.gpus.iter().all(|gpu| gpu.learned == Err(NotLearnedReason::NotGenerative)), "{report}");
        let error = model.generate("text").stream().unwrap_err();
        assert_matches!(error, generate::Error::NotGenerative { architecture } if architecture == "llada");

        let params = llama_sys::ContextParams { n_outputs_max: 1, n_threads: Some(1), ..<_>::default() };
        let mut context = llama_sys::Context::new(&model.native().unwrap(), params).unwrap();
        assert!(!context.has_memory());
        // Only tokens that are added with the flag `true` are outputs (llama-context.cpp, `encode`).
        let mut batch = llama_sys::Batch::default();
        batch.add(1, 0, 0, false);
        batch.add(2, 1, 0, true);
        context.decode(&batch).unwrap();
        assert_eq!(context.logits(1).unwrap().len(), TINY_VOCABULARY as usize);
        assert!(context.logits(0).is_err());
        batch.add(3, 2, 0, true);
        let error = context.decode(&batch).unwrap_err();
        assert_matches!(error, llama_sys::Error::InvalidParameter { name: "n_outputs", .. });
    }
}

#[test]
fn every_kind_of_model_and_context_warms_up_to_its_last_position_and_grows_no_more() {
    own_process!();
    let folder = tempfile::tempdir().unwrap();
    let contexts = [(1, 1, false), (3, 1, false), (3, 0, true), (2, 4, false)];
    for (number, mut sketch) in test_support::random_weights::all().into_iter().enumerate() {
        sketch.vocabulary();
        let path = test_support::random_weights::write(&sketch, folder.path());
        let (n_seq_max, n_outputs_max, unified) = contexts[number % contexts.len()];
        let gpu = card(mib(512));
        let request = Request::new().n_ctx(700).headroom(Headroom::Bytes(mib(4))).n_ubatch(64).n_batch(128);
        let request = request.n_seq_max(n_seq_max).n_outputs_max(n_outputs_max);
        let mut request = request.n_gpu_layers(GpuLayers::Exactly(3));
        request.params.kv_unified = unified;
        let case = format!("{} {n_seq_max} {n_outputs_max} {unified}", sketch.title());
        for verify in [Verify::Quick, Verify::Full] {
            let model = Model::builder(&path).request(request.clone()).verify(verify).n_threads(1).load();
            let model = model.unwrap_or_else(|error| panic!("{case}: {error}"));
            let report = model.report();
            assert_eq!(report.tries(), 1, "{case}: {report}");
            let length = match (n_seq_max, unified) {
                (1, _) => 768,
                (n, true) => 768 / n,
                // Each sequence has a cache of its own, whose length is rounded up.
                (3, false) => 256,
                _ => 512,
            };
            assert!(verify != Verify::Full || report.warm_up.last_position == length - 1, "{case}: {report}");
            let used = gpu.used();
            let prompt = "a".repeat(200);
            model.generate(prompt).temp(0.0).max_tokens(4).text().unwrap();
            assert_eq!(gpu.used(), used, "{case}");
        }
    }
}

#[test]
fn memory_taken_since_the_plan_makes_a_smaller_one() {
    own_process!();
    let (gpu, machine) = registered();
    let planned = builder(&machine).plan().unwrap();
    assert!(planned.full_offload);
    gpu.set_taken(TOTAL - on_gpu(&planned) / 2);
    let model = builder(&machine).load().unwrap();
    let report = model.report();
    assert_eq!(stages(&report), [Some(Stage::Check), None], "{report}");
    let failure = report.attempts[0].failure.as_ref().unwrap();
    assert_eq!(failure.device, Some(gpu.device().name()));
    assert_eq!(failure.needed, Some(on_gpu(&planned)));
    assert_eq!(failure.free, Some(on_gpu(&planned) / 2));
    let plan = model.placement();
    assert!(plan.n_gpu_layers > 0 && !plan.full_offload, "{plan}");
    assert!(gpu.used() <= on_gpu(&planned) / 2);
    assert_eq!(text(&model), text_of_the_cpu(&machine));
    // If a report is serialized and read again, it is the same.
    let json = serde_json::to_string(&*report).unwrap();
    let read: LoadReport = serde_json::from_str(&json).unwrap();
    assert_eq!(read, *report);
}

/// The device, the bytes that were needed and the bytes that were free, in a load that ran out of memory.
#[track_caller]
fn out_of_memory(error: Error) -> (String, u64, u64) {
    let text = error.to_string();
    assert!(!text.contains('\n') && text.contains("SIM card"), "{text}");
    match error {
        Error::OutOfMemory { device, needed, free, .. } => (device, needed, free),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_single_attempt_names_device_needed_and_free_when_memory_was_taken() {
    own_process!();
    let (gpu, machine) = registered();
    let once = || builder(&machine).attempts(1);
    let planned = once().plan().unwrap();
    let (needed, device) = (on_gpu(&planned), gpu.device().name());
    // After the plan and before the load, other programs take memory: first one byte too much, and then exactly the
    // bytes that the plan does not need.
    gpu.set_taken(TOTAL - needed + 1);
    let error = once().load().unwrap_err();
    assert_eq!(out_of_memory(error), (device.clone(), needed, needed - 1));
    assert_eq!(gpu.allocations(), 0, "nothing was tried");
    gpu.set_taken(TOTAL - needed);
    let model = once().load().unwrap();
    assert_eq!(gpu.free(), 0);
    assert_eq!(*model.placement(), planned);
    drop(model);
    // This time, the memory is taken during the load. When progress is reported for the first weights, the memory for
    // all weights is already allocated. The rest is needed for the cache and the computation.
    gpu.set_taken(0);
    let other = Arc::clone(&gpu);
    let taking = once().progress(move |progress| {
        if progress.stage == Stage::Weights {
            other.set_taken(TOTAL - other.used());
        }
        true
    });
    let (said, bytes, free) = out_of_memory(taking.load().unwrap_err());
    assert_eq!((said, bytes), (device.clone(), needed));
    assert!(free < needed, "{free} of {needed}");
    is_empty(&gpu);
    // If a buffer cannot be allocated although there is room, the error stays the one from llama.cpp.
    gpu.set_taken(0);
    gpu.fail_allocation(1);
    let Error::Native(native) = once().load().unwrap_err() else { panic!("another error") };
    assert_eq!(native.out_of_memory().unwrap().buffer_type, device);
}

#[test]
fn after_any_failed_allocation_the_next_attempt_loads_less_and_nothing_leaks() {
    own_process!();
    let (gpu, machine) = registered();
    let expected = text_of_the_cpu(&machine);
    drop(builder(&machine).load().unwrap());
    let before = gpu.allocations();
    drop(builder(&machine).load().unwrap());
    let allocations = gpu.allocations() - before;
    assert!(allocations > 2);
    for n in 1..=allocations {
        gpu.fail_allocation(n);
        let model = builder(&machine).load().unwrap();
        let report = model.report();
        // If a computation finds no room, llama.cpp may try it again itself.
        if report.tries() > 1 {
            let (tried, layers) = (&report.attempts[0], model.placement().n_gpu_layers);
            assert!(layers < tried.n_gpu_layers, "{report}");
            assert_eq!(tried.failure.as_ref().unwrap().device, Some(gpu.device().name()));
        }
        assert!(report.tries() <= 2, "{report}");
        assert_eq!(text(&model), expected);
        drop(model);
        is_empty(&gpu);
    }
    // A computation that fails in the warm-up counts as a lack of memory.
    gpu.fail_graph(1);
    let model = builder(&machine).load().unwrap();
    assert_eq!(stages(&model.report()), [Some(Stage::WarmUp), None], "{}", model.report());
    assert!(model.placement().n_gpu_layers < 7);
    assert_eq!(text(&model), expected);
}

#[test]
fn when_nothing_works_the_error_lists_every_attempt() {
    own_process!();
    let (gpu, machine) = registered();
    // In every attempt, the card refuses the cache.
    let failing = |attempts| {
        let other = Arc::clone(&gpu);
        let mut is_new_attempt = false;
        builder(&machine)
            .attempts(attempts)
            .progress(move |progress| {
                match progress.stage {
                    Stage::Plan => is_new_attempt = true,
                    Stage::Weights if std::mem::take(&mut is_new_attempt) => other.fail_allocation(1),
                    _ => {}
                }
                true
            })
            .load()
    };
    let error = failing(1).unwrap_err();
    assert_matches!(error, Error::Native(_));
    let error = failing(2).unwrap_err();
    let text = error.to_string();
    assert!(!text.contains('\n'), "{text}");
    assert!(text.contains("1: 7 of 7 layers"), "{text}");
    let Error::AllAttempts { attempts, source } = error else { panic!("{error:?}") };
    assert_eq!(attempts.len(), 2);
    assert!(attempts[1].n_gpu_layers < attempts[0].n_gpu_layers);
    for attempt in attempts {
        let failure = attempt.failure.unwrap();
        assert_eq!(failure.stage, Stage::Context);
        assert_eq!(failure.device, Some(gpu.device().name()));
        assert!(failure.needed.is_some() && failure.free.is_some());
    }
    assert_matches!(*source, Error::Native(_));
    is_empty(&gpu);
}

#[test]
fn requested_layers_are_never_silently_fewer() {
    own_process!();
    let (gpu, machine) = registered();
    let exact = || builder(&machine).n_gpu_layers(GpuLayers::Exactly(7));
    let planned = exact().plan().unwrap();
    gpu.set_taken(TOTAL - on_gpu(&planned) + 1);
    let error = exact().load().unwrap_err();
    let Error::AllAttempts { attempts, source } = error else { panic!("{error:?}") };
    let stages = attempts.iter().map(|attempt| attempt.failure.as_ref().unwrap().stage);
    assert_eq!(stages.collect::<Vec<_>>(), [Stage::Check, Stage::Plan]);
    assert_matches!(*source, Error::Plan(plan::Error::DoesNotFit { .. }));
}

#[test]
fn a_failure_without_a_lack_of_memory_is_not_tried_again() {
    own_process!();
    let (gpu, machine) = registered();
    // The load is cancelled in the warm-up.
    let mut done = 0;
    let cancelled = builder(&machine)
        .progress(move |progress| {
            done += usize::from(progress.stage == Stage::WarmUp);
            done < 2
        })
        .load();
    let error = cancelled.unwrap_err();
    assert_matches!(error, Error::Native(llama_sys::Error::LoadCancelled { .. }));
    // The load is cancelled while it plans, and while it reads the file. At these times, there is no computation that
    // could be cancelled.
    for stage in [Stage::Plan, Stage::Measure, Stage::Weights] {
        let builder = builder(&machine).verify(Verify::Off);
        let cancelled = builder.progress(move |progress| progress.stage != stage).load();
        assert_matches!(cancelled, Err(Error::Native(llama_sys::Error::LoadCancelled { .. })));
    }
    is_empty(&gpu);
    // The plan contains a device that no longer exists.
    let name = gpu.device().name();
    drop(gpu);
    let error = builder(&machine).load().unwrap_err();
    assert!(error.to_string().contains(&name), "{error}");
    assert!(!matches!(error, Error::AllAttempts { .. }), "{error:?}");
}

#[test]
fn a_saved_plan_that_does_not_fit_is_an_error_and_no_other_is_made() {
    own_process!();
    let (gpu, machine) = registered();
    let planned = builder(&machine).plan().unwrap();
    let header = Header::open(demo_path()).unwrap();
    let request = Request::new().headroom(Headroom::Bytes(0)).n_ubatch(64);
    let saved = SavedPlan::new(planned.clone(), request, &header).unwrap();
    let following = || Model::builder(demo_path()).n_threads(1).machine(machine.clone()).follow(saved.clone());
    // The memory is taken after the machine was read. So the description of the machine is outdated.
    gpu.set_taken(TOTAL - on_gpu(&planned) + 1);
    let error = following().load().unwrap_err();
    assert_matches!(error, Error::OutOfMemory { .. });
    // If the description of the machine is up to date, the plan is refused before the first attempt.
    let now = load::detect().unwrap();
    let error = following().machine(now).load().unwrap_err();
    assert_matches!(error, Error::SavedPlan(SavedPlanError::Changed { .. }));
}

#[test]
fn a_load_that_took_too_much_gives_an_error_a_note_or_a_smaller_plan() {
    own_process!();
    let pools = mib(2);
    // The caller lends only a part of the card. The driver's pools need more memory than the plan leaves free in that
    // part.
    let lent = |more: u64| {
        let gpu = card_of(TOTAL).growth(pools).register().unwrap();
        let mut machine = load::detect().unwrap();
        let plan = builder(&machine).plan().unwrap();
        machine.gpus[0].free = on_gpu(&plan) + more;
        (gpu, machine)
    };
    let (gpu, machine) = lent(0);
    let error = builder(&machine).on_difference(OnDifference::Fail).load().unwrap_err();
    let Error::Difference { difference, device, .. } = &error else { panic!("{error:?}") };
    assert_eq!((*difference, device), (pools, &gpu.device().name()));
    assert_eq!(gpu.used(), 0);
    drop(gpu);

    let (gpu, machine) = lent(0);
    let kept = builder(&machine).on_difference(OnDifference::Accept).load().unwrap();
    assert!(kept.placement().full_offload);
    assert_eq!(kept.report().notes.len(), 1, "{}", kept.report());
    drop((kept, gpu));

    let (gpu, machine) = lent(0);
    let smaller = builder(&machine).load().unwrap();
    assert_eq!(stages(&smaller.report()), [Some(Stage::Verify), None]);
    assert!(gpu.used() + gpu.grown() <= machine.gpus[0].free);
    assert_eq!(text(&smaller), text_of_the_cpu(&machine));
    drop((smaller, gpu));

    // If there is room for the pools, a second load would not be better.
    let (gpu, machine) = lent(pools);
    let same = builder(&machine).load().unwrap();
    assert_eq!(stages(&same.report()), [None]);
    assert!(same.placement().full_offload);
    drop((same, gpu));
}

#[test]
fn re_placing_keeps_the_contract() {
    own_process!();
    let (gpu, machine) = registered();
    let model = builder(&machine).load().unwrap();
    let full = model.placement();
    let before = text(&model);
    // There is no room for the earlier plan any more.
    gpu.set_taken(TOTAL - on_gpu(&full) / 2);
    model.replace(Some(Plan::clone(&full))).unwrap();
    assert_eq!(stages(&model.report()), [Some(Stage::Check), None]);
    assert!(!model.placement().full_offload);
    assert_eq!(text(&model), before);
    // If no plan is given, the free memory decides, even if more layers would fit now.
    model.replace(None).unwrap();
    assert_eq!(stages(&model.report()), [None]);
    assert!(!model.placement().full_offload);
    gpu.set_taken(0);
    model.replace(None).unwrap();
    assert!(model.placement().full_offload);
    assert_eq!(text(&model), before);
}
