//! The memory of a context for embeddings. The probe has exactly the bytes of real loads, and the load contract is
//! kept.

use std::path::Path;

use crate::real_loads_support::{compare, compare_all, random};
use crate::sim_support::{card, fits_whatever_is_free};
use autoplace::gguf::{Header, TensorType};
use autoplace::load::{self, Verify};
use autoplace::machine::mib;
use autoplace::memory::{ContextParams, FlashAttention, Headroom, Pooling};
use autoplace::plan::{Context, Error, Planner, Request};
use autoplace::profile::ModelProfile;
use autoplace::{Model, ModelBuilder};
use test_support::embedding_models::{MAX_LENGTH, encoders, llama_embed, reranker, t5_encoder, text};
use test_support::synthetic::Sketch;

const Q8: TensorType = TensorType::Q8_0;

/// Encoders, a reranker, and models with caches. Recurrent models are not among them: each of their texts has a graph
/// of its own, which cannot be reserved. The warm-up measures such graphs.
fn models() -> Vec<Sketch> {
    let mut models = encoders(Q8);
    models.extend(encoders(TensorType::Q4_K));
    models.push(reranker(Q8));
    models.push(llama_embed(TensorType::Q4_K));
    models.push(t5_encoder(Q8));
    let others = ["llama gqa", "gemma3", "qwen3moe", "deepseek2"];
    let all = test_support::random_weights::all().into_iter();
    models.extend(all.filter(|model| others.iter().any(|other| model.title().starts_with(other))));
    assert_eq!(models.len(), 9 + others.len());
    models
}

/// The settings that the planner uses, with several sizes of batches.
fn settings() -> [ContextParams; 4] {
    let embedding = |pooling, tokens, n_seq_max| {
        let mut params = ContextParams::default();
        params.embeddings = Some(pooling);
        (params.n_ctx, params.n_batch, params.n_ubatch) = (tokens, tokens, tokens);
        (params.n_outputs_max, params.n_seq_max) = (0, n_seq_max);
        params.kv_unified = true;
        params
    };
    let plain = embedding(Pooling::Model, 128, 16);
    let mut lone = embedding(Pooling::None, 200, 1);
    (lone.mmap, lone.repack) = (false, false);
    let mut stepwise = embedding(Pooling::Mean, 130, 5);
    stepwise.flash_attn = FlashAttention::Off;
    stepwise.mmap = false;
    let mut last = embedding(Pooling::Last, 96, 3);
    last.op_offload = false;
    [plain, lone, stepwise, last]
}

#[test]
fn a_probe_of_embeddings_is_the_real_load_to_the_byte() {
    own_process!();
    let probe = |sketch: &Sketch, folder: &Path| Some(random(sketch, folder));
    compare_all(&models(), &settings(), 1, probe, compare);
}

fn builder(path: &Path) -> ModelBuilder {
    let request = Request::new().embeddings(Pooling::Mean).headroom(Headroom::Bytes(0)).n_ctx(MAX_LENGTH as u32);
    Model::builder(path).request(request).n_threads(1)
}

#[test]
fn a_load_for_embeddings_fits_and_one_more_layer_would_not() {
    own_process!();
    let folder = tempfile::tempdir().unwrap();
    let models = [encoders(Q8).remove(0), llama_embed(Q8)];
    let texts: Vec<String> = (0..20).map(|n| text(n, 1 + n)).collect();
    for sketch in models {
        let path = test_support::random_weights::write(&sketch, folder.path());
        let builder = || builder(&path);
        fits_whatever_is_free((0..12).map(|n| mib(1) * n * 3 / 4), builder, |model, gpu| {
            let report = model.report();
            assert_eq!(report.tries(), 1, "{report}");
            let plan = model.placement();
            assert!(plan.n_gpu_layers == 0 || report.warm_up.skipped.is_none(), "{report}");
            let used = gpu.used();
            model.embedder().unwrap().embed(&texts).unwrap();
            assert_eq!(gpu.used(), used, "{plan}");
            let planned: u64 = plan.gpus().map(|gpu| gpu.footprint.total()).sum();
            let grown: u64 = report.gpus.iter().map(|gpu| gpu.grown).sum();
            assert_eq!(used, planned + grown);
        });
    }
}

#[test]
fn a_recurrent_model_takes_no_more_than_is_free_either() {
    own_process!();
    let folder = tempfile::tempdir().unwrap();
    let mut sketch = test_support::random_weights::all().into_iter().find(|sketch| sketch.arch == "jamba").unwrap();
    sketch.vocabulary();
    let path = test_support::random_weights::write(&sketch, folder.path());
    let mut seen = Vec::new();
    for total in (0..9).map(|n| mib(3) * n) {
        let gpu = card(total);
        let model = builder(&path).load().unwrap();
        let used = gpu.used();
        let texts: Vec<String> = (0..9).map(|n| text(n, 1 + 2 * n)).collect();
        model.embedder().unwrap().embed(&texts).unwrap();
        assert!(gpu.peak() <= total, "{} of {total}", gpu.peak());
        assert_eq!(gpu.used(), used, "{}", model.report());
        seen.push(model.placement().n_gpu_layers);
    }
    assert_eq!(seen.last(), Some(&5), "{seen:?}");
}

#[test]
fn every_verification_computes_texts_and_learns_of_the_card() {
    own_process!();
    let folder = tempfile::tempdir().unwrap();
    for sketch in [encoders(Q8).remove(1), reranker(Q8), llama_embed(Q8)] {
        let path = test_support::random_weights::write(&sketch, folder.path());
        for verify in [Verify::Quick, Verify::Full] {
            let _gpu = card(mib(64));
            let report = builder(&path).verify(verify).load().unwrap().report();
            // The warm-up computes a batch, a text with the maximum length, and a short text.
            assert_eq!(u64::from(MAX_LENGTH as u32) * 2 + 31, report.warm_up.tokens);
            assert_eq!(report.warm_up.last_position, MAX_LENGTH as u32 - 1);
        }
    }
}

#[test]
fn a_computation_has_whole_texts_and_all_their_tokens_are_outputs() {
    own_process!();
    let _gpu = card(mib(64));
    let folder = tempfile::tempdir().unwrap();
    let (path, _) = random(&llama_embed(Q8), folder.path());
    let begun = || Request::new().embeddings(Pooling::Mean);
    let asked = |request| Model::builder(&path).request(request).plan().unwrap().context;
    let context = asked(begun());
    assert_eq!(context.embeddings, Some(Pooling::Mean));
    let sizes = |params: &ContextParams| (params.n_ctx, params.n_batch, params.n_ubatch);
    assert_eq!(sizes(&context), (2048, 2048, 2048));
    assert_eq!((context.n_outputs_max, context.n_seq_max), (0, 16));
    assert!(context.kv_unified);
    // A smaller ubatch is raised to the length of the context, because no text may be divided. And a context is never
    // longer than its texts.
    let context = asked(begun().context(Context::AtLeast(300)).n_ubatch(64));
    assert_eq!(sizes(&context), (304, 304, 304));
    // A batch has room for at least one token of each sequence.
    assert_eq!(asked(begun().n_ctx(4)).n_seq_max, 4);
    assert_eq!(asked(begun().n_seq_max(2)).n_seq_max, 2);

    // On the host, there is room for the vectors of all tokens. A graph that combines vectors computes no logits.
    let sketch = &encoders(Q8)[0];
    let (path, probe) = random(sketch, folder.path());
    let plan = Model::builder(&path).request(begun()).plan().unwrap();
    let breakdown = probe.breakdown(&[], &plan.context, &plan.split()).unwrap();
    assert_eq!(breakdown.footprints.output, 4 * sketch.dims.n_embd * MAX_LENGTH);

    // Without llama.cpp, it is not known how much memory these graphs need.
    let profile = ModelProfile::from_header(&Header::open(&path).unwrap()).unwrap();
    let machine = load::detect().unwrap();
    let planner = Planner::new(&profile, &machine);
    planner.clone().plan().unwrap();
    let refused = planner.request(begun()).plan();
    assert_matches!(refused, Err(Error::Unknown { .. }));
}
