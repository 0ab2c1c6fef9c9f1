//! Texts with LoRA adapters: nothing of one set gets into another's: each text is that of a raw
//! llama.cpp loop with the same set.

use std::collections::BTreeSet;
use std::path::PathBuf;

use crate::lora_support::Adapter;
use crate::native_support::demo_path;
use crate::sim_support::{card, fits_whatever_is_free};
use crate::text_support::{PROMPT, Raw, complete, request, text, tokens_of, worker};
use autoplace::generate::Generate;
use autoplace::gguf::{Header, TensorType};
use autoplace::llama_sys::{LoraAdapter, Token};
use autoplace::machine::mib;
use autoplace::memory::Headroom;
use autoplace::plan::{Request, SavedPlan, SavedPlanError};
use autoplace::profile::AdapterError;
use autoplace::{Isolation, Model, ModelBuilder, load};

/// Adapters of the demo model, each of other weights, and large enough to be seen.
struct Files {
    folder: tempfile::TempDir,
}

impl Files {
    fn new() -> Self {
        let files = Self { folder: tempfile::tempdir().unwrap() };
        let header = Header::open(demo_path()).unwrap();
        for (seed, name, part, most) in [(1, "one", "attn_q", 0.8), (2, "two", "attn_v", 1.2)] {
            let takes = |weight: &str| weight.contains(part);
            let adapter = Adapter::of("llama").alpha(8.0).of_weights(&header, 8, TensorType::F32, takes);
            adapter.write_random(files.folder.path(), name, seed, most);
        }
        files
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(format!("{name}.gguf"))
    }

    /// The text of a loop over llama.cpp's own calls with a set.
    fn raw(&self, model: &Model, set: Set) -> Vec<Token> {
        let native = model.native().unwrap();
        let load = |name: &str| LoraAdapter::load(&native, self.path(name)).unwrap();
        let adapters: Vec<_> = set.iter().map(|(name, scale)| (load(name), *scale)).collect();
        let mut raw = Raw::new(&native, 512);
        raw.context().set_lora(&adapters).unwrap();
        raw.go_on(&tokens_of(model, PROMPT), 20)
    }
}

/// The names and scales of what is added.
type Set = &'static [(&'static str, f32)];

fn demo() -> ModelBuilder {
    Model::builder(demo_path()).n_threads(1)
}

fn greedy(model: &Model) -> Generate {
    model.generate(PROMPT).temp(0.0).max_tokens(20)
}

#[test]
fn a_text_is_that_of_the_adapters_and_scales_of_the_load() {
    let files = Files::new();
    let sets: [Set; 5] = [&[("one", 1.0)], &[], &[("one", 0.8), ("two", 1.0)], &[("two", 1.0)], &[("two", -0.5)]];
    let plain = || demo().request(request(512, 1, false));
    let texts = sets.map(|set| {
        let model = set.iter().fold(plain(), |it, (name, scale)| it.lora(files.path(name), *scale)).load().unwrap();
        assert!(model.adapters().iter().map(|it| it.scale).eq(set.iter().map(|it| it.1)));
        let tokens = complete(greedy(&model), &model).tokens;
        assert_eq!(tokens, files.raw(&model, set), "{set:?}");
        tokens
    });
    assert_eq!(texts.iter().collect::<BTreeSet<_>>().len(), sets.len(), "{texts:?}");
    let none = plain().lora(files.path("one"), 0.0).load().unwrap();
    assert_eq!(complete(greedy(&none), &none).tokens, texts[1]);
}

#[test]
fn adapters_travel_to_a_worker_and_a_scale_that_is_no_number_is_refused() {
    let files = Files::new();
    let with = |scale| demo().lora(files.path("one"), scale);
    let here = with(1.0).load().unwrap();
    let there = with(1.0).isolation(Isolation::Process(worker())).load().unwrap();
    assert_eq!(there.adapters(), here.adapters());
    assert_eq!(text(greedy(&there)), text(greedy(&here)));
    let scaled = with(f32::INFINITY).load();
    assert_matches!(scaled, Err(load::Error::Adapter(error)) if matches!(**error, AdapterError::Scale { .. }));
}

#[test]
fn adapters_stay_when_the_model_is_re_placed_and_its_memory_is_given_back() {
    own_process!();
    let files = Files::new();
    let gpu = card(mib(64));
    let model =
        demo().headroom(Headroom::Bytes(0)).lora(files.path("one"), 1.0).lora(files.path("two"), 0.5).load().unwrap();
    let placed = model.placement();
    assert_eq!(placed.n_gpu_layers, 7);
    let is_said = |note: &String| note.starts_with("with one, two beside");
    assert!(placed.notes.iter().any(is_said), "{:?}", placed.notes);
    // Weights with adapters, as planned, on the card and on the host.
    let weights = placed.gpus().next().unwrap().footprint.weights;
    assert_eq!(model.allocated().gpus[0].weights, weights);
    let plain = demo().headroom(Headroom::Bytes(0)).plan().unwrap().gpus().next().unwrap().footprint.weights;
    // Two pairs of 8 x 256 floats in each of six blocks, one of them 8 x 128.
    let adapters = 6 * 4 * (8 * 256 + 8 * 256 + 8 * 256 + 8 * 128);
    assert_eq!(weights - plain, adapters);
    let first = text(greedy(&model));
    let planned = placed.gpus().next().unwrap().footprint.total();
    assert!(gpu.peak() <= planned, "{} of {planned}", gpu.peak());
    let moved = crate::replace_support::text_of(greedy(&model), |stream, index| {
        if index == 5 {
            stream.replace(None).unwrap();
        }
    });
    assert_eq!(moved, first);
    model.replace(None).unwrap();
    assert_eq!(text(greedy(&model)), first);
    drop(model);
    assert_eq!(gpu.used(), 0);
}

#[test]
fn whatever_is_free_a_model_with_adapters_fits_and_one_layer_more_would_not() {
    own_process!();
    let files = Files::new();
    let builder = || demo().headroom(Headroom::Bytes(0)).lora(files.path("one"), 1.0).lora(files.path("two"), 1.0);
    fits_whatever_is_free((0..13).map(|step| step * mib(4) / 3), builder, |model, _| {
        text(greedy(model).max_tokens(3));
    });
}

#[test]
fn a_saved_plan_is_followed_with_the_adapters_that_it_was_made_with() {
    own_process!();
    let files = Files::new();
    let gpu = card(mib(64));
    let with = || demo().lora(files.path("one"), 1.0);
    let saved = |builder: &ModelBuilder| {
        let header = Header::open(demo_path()).unwrap();
        let request = Request::new().headroom(Headroom::Bytes(0));
        let plan = builder.plan().unwrap();
        SavedPlan::new(plan, request, &header).unwrap()
    };
    let plan = saved(&with().headroom(Headroom::Bytes(0)));
    let model = with().follow(plan).load().unwrap();
    assert!(gpu.peak() <= model.placement().gpus().next().unwrap().footprint.total());
    drop(model);
    // One that was made without them is not where there is no room for them.
    let plan = saved(&demo().headroom(Headroom::Bytes(0)));
    let needed = plan.plan.gpus().next().unwrap().footprint.total();
    gpu.set_taken(mib(64) - needed);
    assert_matches!(with().follow(plan).load(), Err(load::Error::SavedPlan(SavedPlanError::Changed { .. })));
}
