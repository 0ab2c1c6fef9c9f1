//! Blocks for multi-token prediction: they are planned, probed and loaded with exactly the same bytes, and they move
//! together with the model. The simulated cards count the bytes themselves.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use crate::real_loads_support::{compare, compare_all, random, settings};
use crate::replace_support::run_replacing;
use crate::rig::Card;
use crate::sim_support::{card, fits_whatever_is_free};
use crate::speculative_support::{PROMPT, builder, exact, request};
use crate::text_support::complete;
use autoplace::generate::{GenerateRequest, Speculation};
use autoplace::gguf::{Header, TensorType};
use autoplace::llama_sys::{self, Context, LoraAdapter, ModelParams, Mtp, sim::Rules};
use autoplace::load::{self, NativeProbe};
use autoplace::machine::{Host, Machine, gib, mib};
use autoplace::memory::{ContextParams, Estimate, Headroom, Pooling, Split};
use autoplace::plan::{self, GpuLayers, Planner, Policy, Request, SavedPlan};
use autoplace::profile::{ModelProfile, MtpError};
use autoplace::{Model, ModelBuilder};
use test_support::lora::Adapter;
use test_support::prediction_heads;
use test_support::synthetic::{Sketch, in_32_bits};

/// Architectures that these tests can create, and whose block for multi-token prediction can be computed.
const PREDICTS: &str = "cohere2moe deepseek2 deepseek32 glm-dsa glm4moe hy_v3 qwen35 qwen35moe step35";

#[test]
fn a_probe_is_the_real_load_of_both_contexts_to_the_byte() {
    own_process!();
    let probe = |sketch: &Sketch, folder: &Path| Some(random(sketch, folder));
    for (arch, n_rs_seq) in [("glm4moe", 0), ("qwen35", 3)] {
        let settings = settings().map(|mut params| {
            (params.mtp, params.n_rs_seq) = (true, n_rs_seq);
            params.n_ubatch = params.n_ubatch.max(n_rs_seq + 2);
            if params.n_outputs_max > 0 {
                params.n_outputs_max = 4 * params.n_seq_max;
            }
            params
        });
        compare_all(&[in_32_bits(arch)], &settings, if n_rs_seq == 0 { 2 } else { 1 }, probe, compare);
    }
}

#[test]
fn adapters_come_and_go_while_contexts_that_predict_are_made() {
    let folder = tempfile::tempdir().unwrap();
    let path = prediction_heads::random(folder.path());
    let adapter = Adapter::new("glm4moe");
    let takes = |name: &str| name == "blk.0.attn_q.weight";
    let adapter = adapter.of_weights(&Header::open(&path).unwrap(), 4, TensorType::F32, takes);
    let adapter = adapter.write(folder.path(), "adapter");
    let (done, wait) = mpsc::channel();
    thread::spawn(move || {
        let params = ModelParams { load_mtp: true, devices: Some(vec![]), ..<_>::default() };
        let model = llama_sys::Model::load(&path, params).unwrap();
        let is_done = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !is_done.load(Ordering::Relaxed) {
                    LoraAdapter::load(&model, &adapter).unwrap();
                    // Meanwhile, a thread that waits for the lock can take it.
                    thread::sleep(Duration::from_micros(100));
                }
            });
            let params = llama_sys::ContextParams { mtp: Mtp::Trunk, n_ctx: 64, ..<_>::default() };
            (0..20).for_each(|_| drop(Context::new(&model, params.clone()).unwrap()));
            is_done.store(true, Ordering::Relaxed);
        });
        done.send(()).unwrap();
    });
    wait.recv_timeout(Duration::from_secs(120)).expect("neither waits for the other");
}

#[test]
fn each_architecture_is_probed_with_its_weights_or_refused_by_its_name() {
    own_process!();
    let folder = tempfile::tempdir().unwrap();
    let card = Card::new((Rules::Cuda, false));
    let mut used = Vec::new();
    let blueprints = llama_sys::architectures().into_iter().flat_map(|arch| crate::blueprints::all(&arch));
    for blueprint in blueprints.filter(|blueprint| blueprint.name == "nextn") {
        let arch = &blueprint.arch;
        let path = blueprint.write(&blueprint.make(folder.path()).unwrap(), folder.path());
        let header = Header::open(&path).unwrap();
        let profile = match ModelProfile::from_header(&header).unwrap().with_mtp() {
            Ok(profile) => profile,
            Err(MtpError::Architecture { architecture, .. }) => {
                assert_eq!(architecture, *arch);
                continue;
            }
            // If llama.cpp creates this model from metadata, a projection is missing that its graph needs
            // (models/deepseek4.cpp, `load_arch_hparams`).
            Err(MtpError::NoHeads { .. }) if arch == "deepseek4" => continue,
            Err(error) => panic!("{arch}: {error}"),
        };
        used.push(arch.clone());
        let probe = NativeProbe::new(&header).unwrap();
        let mut params = ContextParams::default();
        (params.n_ctx, params.mtp, params.repack) = (512, true, false);
        let estimate = Estimate::new(&profile, &[&card.gpu], &params).unwrap();
        for n in 0..=profile.full_offload() {
            let probed = probe.breakdown(&[&card.gpu], &params, &Split::layers(n));
            let probed = probed.unwrap_or_else(|error| panic!("{arch}, {n}: {error}"));
            let (ours, theirs) = (estimate.footprints(n).gpus[0], probed.footprints.gpus[0]);
            assert_eq!(ours.weights, theirs.weights, "{arch}, {n} layers");
            // If the arithmetic does not know how much memory is needed, its number is too high, and never too low.
            assert!(ours.kv <= theirs.kv);
        }
    }
    used.sort_unstable();
    used.dedup();
    assert_eq!(used.join(" "), PREDICTS);
}

fn small(path: &Path, request: &Request) -> ModelBuilder {
    let mut request = request.clone().headroom(Headroom::Bytes(64 << 10));
    request.params.repack = false;
    builder(path, request).mtp(true)
}

fn text(model: &Model) -> GenerateRequest {
    model.generate(PROMPT).seed(2).temp(0.7).repeat_penalty(1.1).max_tokens(60)
}

#[test]
fn both_contexts_fit_any_free_memory_and_one_more_layer_would_not() {
    own_process!();
    let folder = tempfile::tempdir().unwrap();
    let path = prediction_heads::steps(folder.path());
    let request = request(512, 2, 3).policy(Policy::MostLayers);
    let totals = [1, 4, 6, 8, 10, 12, 14, 16, 20, 24, 64].map(mib);
    fits_whatever_is_free(
        totals,
        || small(&path, &request),
        |model, _| {
            let plan = model.placement();
            assert!(plan.context.mtp);
            let planned: Vec<_> = plan.gpus().map(|gpu| gpu.footprint).collect();
            assert_eq!(model.allocated().gpus, planned, "{plan}");
            let drafted = complete(text(model).speculate(Speculation::mtp()), model);
            assert_eq!(drafted, complete(text(model), model), "{plan}");
            assert!(drafted.statistics().accepted_tokens > 10, "{drafted:?}");
        },
    );
}

#[test]
fn a_re_placed_model_takes_its_block_along() {
    own_process!();
    let folder = tempfile::tempdir().unwrap();
    let request = request(512, 1, 3);
    let _card = card(mib(64));
    // The drafts of the first model are correct. The second model has random weights, so its state goes back each time.
    let models =
        [(prediction_heads::steps(folder.path()), [4, 0, 2], true), (exact("qwen35", folder.path()), [6, 0, 3], false)];
    for (path, layers, is_right) in models {
        let plans = layers.map(|n| small(&path, &request).n_gpu_layers(GpuLayers::Exactly(n)).plan().unwrap());
        let model = small(&path, &request).load().unwrap();
        let plain = complete(text(&model), &model);
        let drafted = || text(&model).speculate(Speculation::mtp());
        let mut session = model.session().unwrap();
        session.begin(drafted()).unwrap();
        let moved = run_replacing(&mut session, &plans);
        assert_eq!(moved, plain);
        let statistics = moved.statistics();
        assert!(!is_right || statistics.accepted_tokens == statistics.drafted_tokens);
        assert!(!is_right || statistics.accepted_tokens > 0);
        drop(session);
        // A model that is idle can be re-placed, too.
        model.replace(Some(plans[2].clone())).unwrap();
        let again = complete(drafted(), &model);
        assert_eq!(again, plain);
        assert!(!is_right || again.statistics().accepted_tokens > 10, "{again:?}");
    }
}

#[test]
fn a_saved_plan_says_that_the_block_is_loaded() {
    own_process!();
    let folder = tempfile::tempdir().unwrap();
    let path = prediction_heads::steps(folder.path());
    let _card = card(mib(64));
    let request = request(512, 1, 3).headroom(Headroom::Bytes(64 << 10));
    let plan = builder(&path, request.clone()).mtp(true).plan().unwrap();
    let header = Header::open(&path).unwrap();
    let saved = SavedPlan::new(plan, request, &header).unwrap();
    let model = Model::builder(&path).follow(saved.clone()).n_threads(1).without_learning().load().unwrap();
    assert_eq!(*model.placement(), saved.plan);
    let drafted = complete(text(&model).speculate(Speculation::mtp()), &model);
    assert!(drafted.statistics().accepted_tokens > 10, "{drafted:?}");
}

#[test]
fn only_a_probe_plans_the_block_and_the_model_does_not_embed() {
    own_process!();
    let folder = tempfile::tempdir().unwrap();
    let path = prediction_heads::random(folder.path());
    let header = Header::open(&path).unwrap();
    let profile = ModelProfile::from_header(&header).unwrap();
    let machine = Machine::new(Host::new(gib(8)));
    Planner::new(&profile, &machine).plan().unwrap();
    let profile = profile.with_mtp().unwrap();
    let planner = Planner::new(&profile, &machine);
    assert_matches!(planner.plan(), Err(plan::Error::Unknown { .. }));
    let plan = planner.plan_probed(&NativeProbe::new(&header).unwrap()).unwrap();
    // There are outputs for three draft tokens, and for the token before these.
    assert_eq!((plan.context.mtp, plan.context.n_outputs_max), (true, 4));
    let error = Model::builder(&path).mtp(true).embeddings(Pooling::Mean).load().unwrap_err();
    assert_matches!(error, load::Error::Plan(plan::Error::Mtp(MtpError::Embeds { .. })));
}
