//! Texts with LoRA adapters: nothing of one set gets into another's: each text is that of a raw
//! llama.cpp loop with the same set.

use std::path::PathBuf;

use crate::lora_support::Adapter;
use crate::native_support::demo_path;
use crate::sim_support::{card, fits_whatever_is_free};
use crate::text_support::{
    PROMPT, Raw, all_differ, answered, request, text, text_and_statistics, to_the_end, tokens_of,
};
use autoplace::generate::{Engine, Error, Generate};
use autoplace::gguf::{Header, TensorType};
use autoplace::llama_sys::{LoraAdapter, Token};
use autoplace::machine::mib;
use autoplace::memory::Headroom;
use autoplace::plan::{Request, SavedPlan, SavedPlanError};
use autoplace::profile::AdapterError;
use autoplace::{Model, ModelBuilder, load};

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
}

fn demo() -> ModelBuilder {
    Model::builder(demo_path()).n_threads(1)
}

/// Why a load was refused before llama.cpp saw anything of it.
#[track_caller]
fn refused(loaded: Result<Model, load::Error>) -> AdapterError {
    match loaded {
        Err(load::Error::Adapter(error)) => *error,
        other => panic!("{other:?}"),
    }
}

fn greedy(model: &Model) -> Generate {
    model.generate(PROMPT).temp(0.0).max_tokens(20)
}

/// The names and scales of what is added.
type Set = &'static [(&'static str, f32)];

impl Files {
    /// The text of a loop over llama.cpp's own calls with a set.
    fn raw(&self, model: &Model, set: Set) -> Vec<Token> {
        let native = model.native().unwrap();
        let load = |name: &str| LoraAdapter::load(&native, self.path(name)).unwrap();
        let adapters: Vec<_> = set.iter().map(|(name, scale)| (load(name), *scale)).collect();
        let mut raw = Raw::new(&native, 512, false);
        raw.context().set_lora(&adapters).unwrap();
        raw.go_on(&tokens_of(model, PROMPT), 20)
    }
}

#[test]
fn an_adapter_changes_the_text_by_its_scale_and_at_zero_not_at_all() {
    let files = Files::new();
    let plain = text(greedy(&demo().load().unwrap()));
    let model = demo().lora(files.path("one"), 1.0).load().unwrap();
    let [adapter] = model.adapters() else { panic!("{:?}", model.adapters()) };
    assert_eq!((adapter.name.as_str(), adapter.scale), ("one", 1.0));
    let changed = text(greedy(&model));
    assert_ne!(changed, plain);
    assert_eq!(text(greedy(&model).lora([("one", 1.0)])), changed);
    assert_eq!(text(greedy(&model).lora([("one", 0.0)])), plain);
    assert_eq!(text(greedy(&model).lora::<&str>([])), plain);
    assert_ne!(text(greedy(&model).lora([("one", -1.0)])), changed);
    // What one text asked for is not the next one's.
    assert_eq!(text(greedy(&model)), changed);
    drop(model);
    let model = demo().lora(files.path("one"), 0.0).load().unwrap();
    assert_eq!(text(greedy(&model)), plain);
    assert_eq!(text(greedy(&model).lora([("one", 1.0)])), changed);
}

#[test]
fn an_adapter_that_is_not_there_or_is_there_twice_is_refused_by_name() {
    let files = Files::new();
    let model = demo().lora(files.path("one"), 1.0).load().unwrap();
    let error = greedy(&model).lora([("three", 1.0)]).text().unwrap_err();
    assert_eq!(error.to_string(), "the model was loaded without an adapter called three: it has one");
    let error = greedy(&model).lora([("one", f32::NAN)]).text();
    assert_is!(error, Err(Error::Load(_)));
    let twice = demo().lora(files.path("one"), 1.0).lora(files.path("one"), 0.5).load();
    assert_is!(refused(twice), AdapterError::Twice { .. });
    let named = demo().lora(files.path("one"), 1.0).lora_named("again", files.path("one"), 0.5).load().unwrap();
    assert_eq!(named.adapters()[1].name, "again");
    let scaled = demo().lora(files.path("one"), f32::INFINITY).load();
    assert_is!(refused(scaled), AdapterError::Scale { .. });
}

#[test]
fn each_text_is_that_of_its_own_adapters_and_scales() {
    let files = Files::new();
    let sets: [Set; 5] = [&[("one", 1.0)], &[], &[("one", 0.8), ("two", 1.0)], &[("two", 1.0)], &[("two", -0.5)]];
    for sequences in [1, 5] {
        let model = demo()
            .request(request(512 * sequences, sequences, false))
            .lora(files.path("one"), 1.0)
            .lora(files.path("two"), 0.0)
            .load()
            .unwrap();
        let expected = sets.map(|set| files.raw(&model, set));
        all_differ(&expected);
        let generate = |set: Set| greedy(&model).lora(set.iter().copied());
        // One after the other, and side by side as far as there are sequences.
        for sets in sets.chunks(sequences as usize).cycle().take(2 * sets.len()) {
            let mut session = model.session().unwrap();
            for set in sets {
                session.begin(generate(set)).unwrap();
            }
            for (told, set) in to_the_end(&mut session).iter().zip(sets) {
                assert_eq!(told.tokens, files.raw(&model, set), "{set:?}, {sequences}");
            }
        }
        // All at once, and again with what the first left behind.
        let engine = Engine::new(&model).unwrap();
        for round in 0..2 {
            let answers = sets.map(|set| engine.submit(generate(set)).unwrap());
            for ((answer, set), expected) in answers.into_iter().zip(sets).zip(&expected) {
                let tokens = answered(answer).tokens;
                assert_eq!(tokens, *expected, "{set:?}, {sequences}, {round}");
            }
        }
    }
}

#[test]
fn no_text_waits_longer_than_the_others_turns() {
    let files = Files::new();
    let model = demo().request(Request::new().n_seq_max(2)).lora(files.path("one"), 1.0).load().unwrap();
    let mut session = model.session().unwrap();
    let with = session.begin(greedy(&model).max_tokens(60)).unwrap();
    let without = greedy(&model).max_tokens(60).lora::<&str>([]);
    let without = session.begin(without).unwrap();
    // Steps since either was last heard of.
    let (mut silent, mut longest) = ([0, 0], 0);
    for _ in 0..60 {
        silent = silent.map(|steps| steps + 1);
        for piece in session.step().unwrap() {
            silent[usize::from(piece.sequence == without)] = 0;
        }
        longest = longest.max(silent[0]).max(silent[1]);
    }
    assert!(longest > 1 && longest <= 9, "{longest}");
    assert!(session.statistics(with).unwrap().generated_tokens > 20);
    assert!(session.statistics(without).unwrap().generated_tokens > 20);
}

#[test]
fn what_was_computed_with_other_adapters_is_not_reused() {
    let files = Files::new();
    let model = demo().request(Request::new().n_seq_max(3)).lora(files.path("one"), 1.0).load().unwrap();
    // Short, so that the prompt is most of what is left behind.
    let told = |generate: Generate| {
        let generate = generate.max_tokens(6).cache_prompt(true);
        let (text, statistics) = text_and_statistics(generate);
        (text, statistics.cached_tokens)
    };
    let without = || greedy(&model).lora::<&str>([]);
    let (first, cached) = told(greedy(&model));
    assert_eq!(cached, 0);
    let (plain, cached) = told(without());
    assert_eq!(cached, 0);

    for (generate, text) in [(greedy(&model), first), (without(), plain)] {
        let (again, cached) = told(generate);
        assert_eq!(again, text);
        assert!(cached > 0);
    }
    // Nor is what runs.
    let mut session = model.session().unwrap();
    session.begin(greedy(&model)).unwrap();
    session.step().unwrap();
    let other = without().lora([("one", 0.5)]).cache_prompt(true);
    let other = session.begin(other).unwrap();
    assert_eq!(session.statistics(other).unwrap().cached_tokens, 0);
}

#[test]
fn adapters_stay_when_the_model_is_placed_anew_and_its_memory_is_given_back() {
    own_process!();
    let files = Files::new();
    let gpu = card(mib(64));
    let model =
        demo().headroom(Headroom::Bytes(0)).lora(files.path("one"), 1.0).lora(files.path("two"), 0.0).load().unwrap();
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
    let other = text(greedy(&model).lora([("two", 1.0)]));
    assert_ne!(first, other);
    let planned = placed.gpus().next().unwrap().footprint.total();
    assert!(gpu.peak() <= planned, "{} of {planned}", gpu.peak());
    let moved = greedy(&model).lora([("two", 1.0)]);
    let moved = crate::replace_support::text_of(moved, |stream, index| {
        if index == 5 {
            stream.replace(None).unwrap();
        }
    });
    assert_eq!(moved, other);
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
    fits_whatever_is_free((0..26).map(|step| step * mib(2) / 3), builder, |model, _| {
        for set in [&[("one", 1.0)][..], &[], &[("one", 1.0), ("two", 1.0)]] {
            text(greedy(model).max_tokens(3).lora(set.iter().copied()));
        }
    });
}

#[test]
fn a_change_that_finds_its_memory_taken_is_an_error_and_the_next_text_goes_on() {
    own_process!();
    let files = Files::new();
    let gpu = card(mib(64));
    let model = demo().headroom(Headroom::Bytes(0)).lora(files.path("one"), 1.0).load().unwrap();
    let first = text(greedy(&model));
    // The buffers are freed before they are reserved anew: somebody may come in between.
    gpu.set_taken(mib(64));
    assert_eq!(text(greedy(&model)), first);
    let error = greedy(&model).lora::<&str>([]).text().unwrap_err();
    let Error::Native(native) = &error else { panic!("{error:?}") };
    assert!(native.out_of_memory().is_some(), "{error}");
    gpu.set_taken(0);
    assert_eq!(text(greedy(&model)), first);
    assert_ne!(text(greedy(&model).lora::<&str>([])), first);
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
    assert_ne!(text(greedy(&model)), text(greedy(&model).lora::<&str>([])));
    drop(model);
    // One that was made without them is not where there is no room for them.
    let plan = saved(&demo().headroom(Headroom::Bytes(0)));
    let needed = plan.plan.gpus().next().unwrap().footprint.total();
    gpu.set_taken(mib(64) - needed);
    let refused = with().follow(plan).load();
    assert_is!(refused, Err(load::Error::SavedPlan(SavedPlanError::Changed { .. })));
}
