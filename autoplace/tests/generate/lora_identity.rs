//! Texts with adapters and control vectors are those of a raw llama.cpp loop with them: in streams, in a session that
//! changes from one to another between its texts, and in an engine whose texts have each their own. On the demo model.

use std::path::{Path, PathBuf};

use crate::lora_support::Adapter;
use crate::native_support::demo_path;
use crate::session_support::{Raw, SYSTEM, Texts, greedy, request, sampled, tokens_of};
use autoplace::Model;
use autoplace::generate::{Answer, Engine, Generate};
use autoplace::gguf::{Builder, Header, TensorType};
use autoplace::llama_sys::{LoraAdapter, Token};

/// An adapter for the attention, named after the part that it changes.
fn adapter(folder: &Path, part: &str, most: f32) -> PathBuf {
    let header = Header::open(demo_path()).unwrap();
    let takes = |weight: &str| weight.contains(part);
    let adapter = Adapter::of("llama").alpha(8.0);
    let adapter = adapter.of_weights(&header, 8, TensorType::F32, takes);
    adapter.write_random(folder, part, 3, most)
}

/// A control vector for all layers, and its numbers.
fn control_vector(folder: &Path) -> (PathBuf, Vec<f32>) {
    let path = folder.join("control.gguf");
    let builder = Builder::new("controlvector").str("controlvector.model_hint", "llama");
    let builder = (1..6).fold(builder, |builder, layer| {
        builder.tensor(&format!("direction.{layer}"), TensorType::F32, &[256])
    });
    builder.write_sparse(&path).unwrap();
    crate::lora_support::fill(&path, 5, 0.5);
    let of = |layer| crate::lora_support::values(&path, &format!("direction.{layer}"));
    let numbers = (1..6).flat_map(of).collect();
    (path, numbers)
}

const SEED: u32 = 4;

/// The text of a loop over llama.cpp's own calls with these adapters.
fn with_lora(model: &Model, adapters: &[(&Path, f32)]) -> Vec<Token> {
    let native = model.native().unwrap();
    let of = |(path, scale): &(&Path, f32)| (LoraAdapter::load(&native, path).unwrap(), *scale);
    let adapters: Vec<_> = adapters.iter().map(of).collect();
    let mut raw = Raw::new(&native, 512, false);
    raw.context().set_lora(&adapters).unwrap();
    raw.go_on(&tokens_of(model, SYSTEM), 24)
}

fn answered(mut answer: Answer) -> Vec<Token> {
    let pieces: Vec<_> = answer.pieces().map(Result::unwrap).collect();
    pieces.iter().filter_map(|piece| piece.token).collect()
}

#[test]
fn each_text_is_that_of_its_own_adapters_and_scales() {
    let folder = tempfile::tempdir().unwrap();
    let (q, v) = (
        adapter(folder.path(), "attn_q", 0.8),
        adapter(folder.path(), "attn_v", 1.2),
    );
    for sequences in [1, 4] {
        let model = Model::builder(demo_path())
            .request(request(512 * sequences, sequences, false))
            .lora(&q, 1.0)
            .lora(&v, 0.0)
            .threads(1)
            .load()
            .unwrap();
        let sets: [&[(&str, f32)]; 5] = [
            &[("attn_q", 1.0)],
            &[],
            &[("attn_q", 0.8), ("attn_v", 1.0)],
            &[("attn_v", 1.0)],
            &[("attn_v", -0.5)],
        ];
        let path = |name: &str| if name == "attn_q" { &*q } else { &*v };
        let expected = sets.map(|set| {
            let set: Vec<_> = set
                .iter()
                .map(|(name, scale)| (path(name), *scale))
                .collect();
            with_lora(&model, &set)
        });
        let mut distinct = expected.to_vec();
        distinct.sort();
        distinct.dedup();
        assert_eq!(distinct.len(), sets.len());
        let generate =
            |set: &[(&str, f32)]| -> Generate { greedy(&model, SYSTEM).lora(set.iter().copied()) };
        // One after the other, twice.
        for _ in 0..2 {
            for (set, expected) in sets.iter().zip(&expected) {
                let mut session = model.session().unwrap();
                let sequence = session.begin(generate(set)).unwrap();
                let mut texts = Texts::default();
                texts.run(&mut session);
                assert_eq!(texts.of(sequence).tokens, *expected, "{set:?}");
            }
        }
        // All at once, and again with what the first left behind.
        let engine = Engine::new(&model).unwrap();
        for round in 0..2 {
            let answers = sets.map(|set| engine.submit(generate(set)).unwrap());
            for ((answer, set), expected) in answers.into_iter().zip(sets).zip(&expected) {
                assert_eq!(answered(answer), *expected, "{set:?}, {sequences}, {round}");
            }
        }
    }
}

#[test]
fn a_control_vector_is_added_as_llama_cpp_adds_it() {
    let folder = tempfile::tempdir().unwrap();
    let (path, numbers) = control_vector(folder.path());
    let load = |scale: f32, layers: Option<std::ops::RangeInclusive<u32>>| {
        let builder = Model::builder(demo_path()).request(request(512, 1, false));
        let builder = builder.control_vector(&path, scale).threads(1);
        let builder = match layers {
            Some(layers) => builder.control_vector_layers(layers),
            None => builder,
        };
        builder.load().unwrap()
    };
    let mut all = Vec::new();
    for (scale, layers) in [(0.7, None), (-0.4, None), (0.7, Some(2..=3))] {
        let model = load(scale, layers.clone());
        let scaled: Vec<f32> = numbers.iter().map(|number| number * scale).collect();
        let of = layers.unwrap_or(1..=5);
        let mut raw = Raw::new(&model.native().unwrap(), 512, false).by_chance(SEED, 0);
        raw.context().set_control_vector(&scaled, of).unwrap();
        let expected = raw.go_on(&tokens_of(&model, SYSTEM), 24);
        let mut session = model.session().unwrap();
        // By chance, so that it tells of every number.
        let generate = sampled(&model, SYSTEM, SEED).max_tokens(24);
        let sequence = session.begin(generate).unwrap();
        let mut texts = Texts::default();
        texts.run(&mut session);
        assert_eq!(texts.of(sequence).tokens, expected, "{scale}");
        all.push(expected);
    }
    all.sort();
    all.dedup();
    assert_eq!(all.len(), 3, "each changes the text in its own way");
}
