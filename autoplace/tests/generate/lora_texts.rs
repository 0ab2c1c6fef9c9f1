//! Texts with LoRA adapters and control vectors. Each text is the same as in a bare llama.cpp loop with the same
//! adapters, or as after a load with only these adapters. So the adapters of one text never affect another text.

use std::collections::BTreeSet;
use std::path::PathBuf;

use crate::sim_support::{card, fits_whatever_is_free};
use crate::text_support::{
    Completion, PROMPT, Raw, answered, complete, request, text, text_and_statistics, to_the_end, tokens_of, worker,
};
use autoplace::generate::{Engine, Error, GenerateRequest};
use autoplace::gguf::{Builder, Header, TensorType};
use autoplace::llama_sys::{LoraAdapter, Token};
use autoplace::machine::mib;
use autoplace::memory::Headroom;
use autoplace::plan::{Request, SavedPlan, SavedPlanError};
use autoplace::profile::AdapterError;
use autoplace::{Isolation, Model, ModelBuilder, load};
use test_support::demo_path;
use test_support::lora::{Adapter, values, write_random};

/// Adapters for different weights of the demo model. They are large enough to change texts.
struct Files {
    folder: tempfile::TempDir,
}

impl Files {
    fn new() -> Self {
        let files = Self { folder: tempfile::tempdir().unwrap() };
        let header = Header::open(demo_path()).unwrap();
        for (seed, name, part, most) in [(1, "one", "attn_q", 0.8), (2, "two", "attn_v", 1.2)] {
            let takes = |weight: &str| weight.contains(part);
            let adapter = Adapter::new("llama").alpha(8.0).of_weights(&header, 8, TensorType::F32, takes);
            adapter.write_random(files.folder.path(), name, seed, most);
        }
        files
    }

    /// Ten adapters for the demo model. They change different weights, or the same weights by other numbers.
    fn ten() -> (Self, Vec<String>) {
        let files = Self { folder: tempfile::tempdir().unwrap() };
        let header = Header::open(demo_path()).unwrap();
        let parts = ["attn_q", "attn_v", "attn_output", "ffn_up", "ffn_down"];
        let write = |number: usize| {
            let (name, part) = (format!("a{number}"), parts[number % parts.len()]);
            let takes = |weight: &str| weight.contains(part);
            let adapter = Adapter::new("llama").alpha(8.0).of_weights(&header, 8, TensorType::F32, takes);
            adapter.write_random(files.folder.path(), &name, 10 + number as u64, 0.9);
            name
        };
        let names = (0..10).map(write).collect();
        (files, names)
    }

    fn control_vector(&self, name: &str, most: f32) -> PathBuf {
        let layers = 1..6;
        let builder = layers.fold(Builder::new("controlvector"), |builder, layer| {
            builder.tensor(&format!("direction.{layer}"), TensorType::F32, &[256])
        });
        write_random(&builder, self.folder.path(), name, 5, most)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(format!("{name}.gguf"))
    }

    /// The text of a bare llama.cpp loop with these adapters.
    fn raw(&self, model: &Model, set: Set) -> Vec<Token> {
        let native = model.native().unwrap();
        let load = |name: &str| LoraAdapter::load(&native, self.path(name)).unwrap();
        let adapters: Vec<_> = set.iter().map(|(name, scale)| (load(name), *scale)).collect();
        let mut raw = Raw::new(&native, 512);
        raw.context().set_lora(&adapters).unwrap();
        raw.go_on(&tokens_of(model, PROMPT), 20)
    }
}

/// Adapters, each with its name and its scale.
type Set = &'static [(&'static str, f32)];

fn demo() -> ModelBuilder {
    Model::builder(demo_path()).n_threads(1)
}

fn greedy(model: &Model) -> GenerateRequest {
    model.generate(PROMPT).temp(0.0).max_tokens(20)
}

#[test]
fn a_text_is_that_of_the_adapters_and_scales_of_the_load() {
    let files = Files::new();
    let sets: [Set; 5] = [&[("one", 1.0)], &[], &[("one", 0.8), ("two", 1.0)], &[("two", 1.0)], &[("two", -0.5)]];
    let plain = || demo().request(request(512, 1, false));
    let texts = sets.map(|set| {
        let model =
            set.iter().fold(plain(), |builder, (name, scale)| builder.lora(files.path(name), *scale)).load().unwrap();
        assert!(model.adapters().iter().map(|adapter| adapter.scale).eq(set.iter().map(|adapter| adapter.1)));
        let tokens = complete(greedy(&model), &model).tokens;
        assert_eq!(tokens, files.raw(&model, set), "{set:?}");
        tokens
    });
    assert_eq!(texts.iter().collect::<BTreeSet<_>>().len(), sets.len(), "{texts:?}");
    let none = plain().lora(files.path("one"), 0.0).load().unwrap();
    assert_eq!(complete(greedy(&none), &none).tokens, texts[1]);
}

/// Completes a prompt twice, and returns both texts with their logprobs. First, the prompt is computed at once. Then
/// all of its tokens but the last are reused. The results may differ, because in a batch of one token the floats of an
/// adapter are added in another order.
fn at_once_and_reused(model: &Model, name: &str) -> [Completion; 2] {
    let generate = || greedy(model).lora([(name, 1.0)]).logprobs(2).cache_prompt(true);
    let texts = [complete(generate(), model), complete(generate(), model)];
    let prompt = tokens_of(model, PROMPT).len();
    assert_eq!(texts.each_ref().map(|text| text.statistics().cached_tokens), [0, prompt - 1]);
    texts
}

#[test]
fn ten_adapters_in_one_engine_give_the_texts_of_loads_with_each_adapter_alone() {
    let (files, names) = Files::ten();
    let alone = |name: &String| {
        let model = demo().request(request(512, 1, false)).lora(files.path(name), 1.0).load().unwrap();
        at_once_and_reused(&model, name)
    };
    let expected: Vec<[Completion; 2]> = names.iter().map(alone).collect();
    let texts: BTreeSet<_> = expected.iter().map(|[at_once, _]| &at_once.tokens).collect();
    assert_eq!(texts.len(), 10, "{expected:?}");
    for sequences in [1, 4, 10] {
        let builder = demo().request(request(512 * sequences, sequences, false));
        let model = names.iter().fold(builder, |builder, name| builder.lora(files.path(name), 0.0)).load().unwrap();
        let engine = Engine::new(&model).unwrap();
        let mut reused = 0;
        // All texts run at the same time, three times. Each text is identical, to the bit, to a text with only its own
        // adapter that reuses the same part of the prompt.
        for round in 0..3 {
            let generate = |name: &String| greedy(&model).lora([(name.as_str(), 1.0)]).logprobs(2).cache_prompt(true);
            let submit = |name: &String| engine.submit(generate(name)).unwrap();
            let answers: Vec<_> = names.iter().map(submit).collect();
            for (answer, (name, [at_once, with_reuse])) in answers.into_iter().zip(names.iter().zip(&expected)) {
                let text = answered(answer);
                let cached = text.statistics().cached_tokens;
                let expected = if cached == 0 { at_once } else { with_reuse };
                assert_eq!(text, *expected, "{name}, {sequences} sequences, round {round}, {cached} tokens reused");
                assert!([0, with_reuse.statistics().cached_tokens].contains(&cached), "{cached}");
                reused += usize::from(cached > 0);
            }
        }
        // If each text has a sequence of its own, every text finds its prompt from the second round on.
        assert!(sequences < 10 || reused == 20, "{reused} of 20");
    }
}

#[test]
fn each_text_of_a_session_is_that_of_its_own_set_and_scales() {
    let files = Files::new();
    let sets: [Set; 5] = [&[("one", 1.0)], &[], &[("one", 0.8), ("two", 1.0)], &[("two", 1.0)], &[("two", -0.5)]];
    let builder = demo().request(request(512 * 5, 5, false));
    let model = builder.lora(files.path("one"), 1.0).lora(files.path("two"), 0.0).load().unwrap();
    let expected = sets.map(|set| files.raw(&model, set));
    let mut session = model.session().unwrap();
    for set in sets {
        session.begin(greedy(&model).lora(set.iter().copied())).unwrap();
    }
    for (text, (set, expected)) in to_the_end(&mut session).iter().zip(sets.iter().zip(&expected)) {
        assert_eq!(text.tokens, *expected, "{set:?}");
    }
    drop(session);
    assert_eq!(complete(greedy(&model), &model).tokens, expected[0]);
}

#[test]
fn no_text_waits_longer_than_the_turns_of_the_others() {
    let files = Files::new();
    let model = demo().request(Request::new().n_seq_max(2)).lora(files.path("one"), 1.0).load().unwrap();
    let mut session = model.session().unwrap();
    let with = session.begin(greedy(&model).max_tokens(60)).unwrap();
    let without = session.begin(greedy(&model).max_tokens(60).lora::<&str>([])).unwrap();
    // For each text, the number of steps since its last piece.
    let (mut silent, mut longest) = ([0, 0], 0);
    for _ in 0..60 {
        silent = silent.map(|steps| steps + 1);
        for piece in session.step().unwrap() {
            silent[usize::from(piece.sequence == without)] = 0;
        }
        longest = longest.max(silent[0]).max(silent[1]);
    }
    assert!(longest > 1 && longest <= 9, "{longest}");
    for sequence in [with, without] {
        assert!(session.statistics(sequence).unwrap().generated_tokens > 20);
    }
}

#[test]
fn tokens_computed_with_other_adapters_are_not_reused() {
    let files = Files::new();
    let model = demo().request(Request::new().n_seq_max(3)).lora(files.path("one"), 1.0).load().unwrap();
    // The answers are short. So most of the tokens in the cache belong to the prompt.
    let cached = |generate: GenerateRequest| {
        let (text, statistics) = text_and_statistics(generate.max_tokens(6).cache_prompt(true));
        (text, statistics.cached_tokens)
    };
    let without = || greedy(&model).lora::<&str>([]);
    let (with_it, first) = cached(greedy(&model));
    let (plain, second) = cached(without());
    assert_eq!((first, second), (0, 0));
    assert_ne!(with_it, plain);
    for (generate, text) in [(greedy(&model), with_it), (without(), plain)] {
        let (again, cached) = cached(generate);
        assert_eq!(again, text);
        assert!(cached > 0);
    }
    // The tokens of a text that is running are not reused, either.
    let mut session = model.session().unwrap();
    session.begin(greedy(&model)).unwrap();
    drop(session.step().unwrap());
    let other = session.begin(without().lora([("one", 0.5)]).cache_prompt(true)).unwrap();
    assert_eq!(session.statistics(other).unwrap().cached_tokens, 0);
}

#[test]
fn an_adapter_is_named_by_its_file_or_its_own_name_and_others_are_refused_by_name() {
    let files = Files::new();
    let one = || files.path("one");
    let model = demo().lora(one(), 1.0).lora(one(), 0.5).lora_named("formal", files.path("two"), 0.0).load().unwrap();
    let names: Vec<_> = model.adapters().iter().map(|adapter| &*adapter.name).collect();
    assert_eq!(names, ["one", "one-2", "formal"]);
    let refused = greedy(&model).lora([("three", 1.0)]).text().unwrap_err().to_string();
    assert!(refused.contains("without an adapter called `three`: it has one, one-2, formal"), "{refused}");
    assert_matches!(greedy(&model).lora([("one", f32::NAN)]).text(), Err(Error::Load(_)));
    drop(model);
    let twice = demo().lora_named("a", one(), 1.0).lora_named("a", one(), 0.5).load();
    assert_matches!(twice, Err(load::Error::Adapter(error)) if matches!(**error, AdapterError::Twice { .. }));
}

#[test]
fn a_control_vector_is_added_as_llama_cpp_adds_it() {
    let files = Files::new();
    let path = files.control_vector("control", 0.5);
    let numbers: Vec<f32> = (1..6).flat_map(|layer| values(&path, &format!("direction.{layer}"))).collect();
    let mut texts = BTreeSet::new();
    for (scale, layers) in [(0.7, None), (-0.4, None), (0.7, Some(2..=3))] {
        let builder = demo().request(request(512, 1, false)).control_vector(&path, scale);
        let model = match layers.clone() {
            Some(layers) => builder.control_vector_layers(layers).load().unwrap(),
            None => builder.load().unwrap(),
        };
        let scaled: Vec<f32> = numbers.iter().map(|number| number * scale).collect();
        let mut raw = Raw::new(&model.native().unwrap(), 512);
        raw.context().set_control_vector(&scaled, layers.unwrap_or(1..=5)).unwrap();
        let expected = raw.go_on(&tokens_of(&model, PROMPT), 20);
        assert_eq!(complete(greedy(&model), &model).tokens, expected, "{scale}");
        texts.insert(expected);
    }
    assert_eq!(texts.len(), 3);
}

#[test]
fn control_vectors_are_summed_up_by_their_scales() {
    let files = Files::new();
    let vector = files.control_vector("v", 0.5);
    let plain = text(greedy(&demo().load().unwrap()));
    let with = |builder: ModelBuilder| text(greedy(&builder.load().unwrap()));
    assert_eq!(with(demo().control_vector(&vector, 0.0)), plain);
    let changed = with(demo().control_vector(&vector, 1.0));
    assert_ne!(changed, plain);
    // A vector and its opposite have no effect together, and two halves have the effect of the whole.
    assert_eq!(with(demo().control_vector(&vector, 1.0).control_vector(&vector, -1.0)), plain);
    assert_eq!(with(demo().control_vector(&vector, 0.5).control_vector(&vector, 0.5)), changed);
    let none = demo().control_vector(&vector, 1.0).control_vector_layers(0..=3).load();
    assert_matches!(none, Err(load::Error::Adapter(error)) if matches!(**error, AdapterError::Layers { first: 0, last: 3 }));
    let wrong = demo().control_vector(files.path("one"), 1.0).load();
    assert_matches!(wrong, Err(load::Error::Adapter(error)) if matches!(**error, AdapterError::Tensor { .. }));
}

#[test]
fn an_adapter_change_without_memory_is_an_error_and_the_next_text_goes_on() {
    own_process!();
    let files = Files::new();
    let gpu = card(mib(64));
    let model = demo().headroom(Headroom::Bytes(0)).lora(files.path("one"), 1.0).load().unwrap();
    let first = text(greedy(&model));
    // When adapters change, buffers are freed before they are reserved again. Between the two, another program may take
    // the memory.
    gpu.set_taken(mib(64));
    assert_eq!(text(greedy(&model)), first);
    let error = greedy(&model).lora::<&str>([]).text().unwrap_err();
    let native = match &error {
        Error::Native(native) => native,
        other => panic!("{other:?}"),
    };
    assert!(native.out_of_memory().is_some(), "{error}");
    gpu.set_taken(0);
    assert_eq!(text(greedy(&model)), first);
    assert_ne!(text(greedy(&model).lora::<&str>([])), first);
}

#[test]
fn adapters_travel_to_a_worker_and_a_scale_of_nan_is_refused() {
    let files = Files::new();
    let with = |scale| demo().lora(files.path("one"), scale);
    let here = with(1.0).load().unwrap();
    let there = with(1.0).isolation(Isolation::Process(worker())).load().unwrap();
    assert_eq!(there.adapters(), here.adapters());
    assert_eq!(text(greedy(&there)), text(greedy(&here)));
    let half = |model: &Model| text(greedy(model).lora([("one", 0.5)]));
    assert_eq!(half(&there), half(&here));
    assert_ne!(half(&there), text(greedy(&there).lora::<&str>([])));
    let refused = greedy(&there).lora([("two", 1.0)]).text().unwrap_err().to_string();
    assert!(refused.contains("without an adapter called `two`"), "{refused}");
    let scaled = with(f32::INFINITY).load();
    assert_matches!(scaled, Err(load::Error::Adapter(error)) if matches!(**error, AdapterError::Scale { .. }));
}

#[test]
fn adapters_stay_when_the_model_is_re_placed_and_its_memory_is_given_back() {
    own_process!();
    let files = Files::new();
    let gpu = card(mib(64));
    let builder = demo().headroom(Headroom::Bytes(0)).lora(files.path("one"), 1.0).lora(files.path("two"), 0.0);
    let model = builder.control_vector(files.control_vector("v", 0.3), 1.0).load().unwrap();
    let placed = model.placement();
    assert_eq!(placed.n_gpu_layers, 7);
    let is_said = |note: &String| note.starts_with("adapters: one, two, with");
    assert!(placed.notes.iter().any(is_said), "{:?}", placed.notes);
    assert!(placed.notes.iter().any(|note| note.starts_with("with a control vector")), "{:?}", placed.notes);
    // On the card and on the host, the bytes of the weights are as planned. They include the adapters.
    let weights = placed.gpus().next().unwrap().footprint.weights;
    assert_eq!(model.allocated().gpus[0].weights, weights);
    let plain = demo().headroom(Headroom::Bytes(0)).plan().unwrap().gpus().next().unwrap().footprint.weights;
    // In each of six blocks there are two pairs of matrices. Three of the matrices have 8 x 256 floats, and one has
    // 8 x 128. Each block but the first has a direction.
    let adapters = 6 * 4 * (8 * 256 + 8 * 256 + 8 * 256 + 8 * 128) + 5 * 4 * 256;
    assert_eq!(weights - plain, adapters);
    let first = text(greedy(&model));
    let planned = placed.gpus().next().unwrap().footprint.total();
    assert!(gpu.peak() <= planned, "{} of {planned}", gpu.peak());
    let other = || greedy(&model).lora([("two", 1.0)]);
    let expected = text(other());
    assert_ne!(expected, first);
    let moved = crate::replace_support::text_of(other(), |stream, index| {
        if index == 5 {
            stream.replace(None).unwrap();
        }
    });
    assert_eq!(moved, expected);
    model.replace(None).unwrap();
    assert_eq!(text(greedy(&model)), first);
    drop(model);
    assert_eq!(gpu.used(), 0);
}

#[test]
fn a_model_with_adapters_fits_and_one_more_layer_would_not() {
    own_process!();
    let files = Files::new();
    let builder = || demo().headroom(Headroom::Bytes(0)).lora(files.path("one"), 1.0).lora(files.path("two"), 1.0);
    fits_whatever_is_free((0..13).map(|step| step * mib(4) / 3), builder, |model, _| {
        for set in [&[("one", 1.0)][..], &[], &[("one", 1.0), ("two", 1.0)]] {
            text(greedy(model).max_tokens(3).lora(set.iter().copied()));
        }
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
    // If a plan was made without the adapters and there is no room for them, it is refused.
    let plan = saved(&demo().headroom(Headroom::Bytes(0)));
    let needed = plan.plan.gpus().next().unwrap().footprint.total();
    gpu.set_taken(mib(64) - needed);
    assert_matches!(with().follow(plan).load(), Err(load::Error::SavedPlan(SavedPlanError::Changed { .. })));
}
