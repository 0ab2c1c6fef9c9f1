//! Embeddings. The vectors of a text are equal to llama.cpp's own, and the other texts do not affect them.

use std::path::{Path, PathBuf};

use crate::native_support::{load_demo, native};
use crate::text_support::Raw;
use autoplace::embed::{self, Embedding, Normalization, cosine_similarity};
use autoplace::gguf::TensorType;
use autoplace::llama_sys::{self, Batch, Context, ContextParams, Token, Vocab};
use autoplace::machine::{Host, Machine, gib};
use autoplace::memory::Pooling;
use autoplace::plan::Request;
use autoplace::{Embedder, Model, load};
use test_support::demo_path;
use test_support::embedding_models::{
    MAX_LENGTH, bert, classifier, encoders, llama_embed, nomic_bert, t5_encoder, text,
};
use test_support::synthetic::Sketch;

const F32: TensorType = TensorType::F32;

pub(crate) fn written(sketch: &Sketch) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = test_support::random_weights::write(sketch, folder.path());
    (folder, path)
}

/// Loads the model on the host, with one thread.
pub(crate) fn load(path: &Path, request: Request) -> Result<Model, load::Error> {
    Model::builder(path).request(request).machine(Machine::new(Host::new(gib(8)))).n_threads(1).load()
}

fn loaded(path: &Path, request: Request) -> Model {
    load(path, request).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

pub(crate) fn embedder(path: &Path, pooling: Pooling) -> Embedder {
    let request = Request::new().embeddings(pooling);
    loaded(path, request).embedder().unwrap()
}

/// An embedder of a small model with random weights.
pub(crate) fn small(sketch: &Sketch, pooling: Pooling) -> Embedder {
    embedder(&written(sketch).1, pooling)
}

/// The largest difference between the vectors of one text and those of another.
fn distance(one: &Embedding, other: &Embedding) -> f32 {
    assert_eq!(one.as_slice().len(), other.as_slice().len());
    one.as_slice().iter().zip(other.as_slice()).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

/// Embeds texts together, and compares their vectors with those of each text alone. A cosine may differ from 1 by
/// `apart`, because of rounding.
fn together_as_alone(sketch: &Sketch, poolings: &[Pooling], texts: &[String], apart: f32) {
    let (_folder, path) = written(sketch);
    for &pooling in poolings {
        let case = format!("{} {pooling}", sketch.title());
        let request = Request::new().embeddings(pooling).n_ctx(MAX_LENGTH as u32).n_seq_max(6);
        let mut embedder = loaded(&path, request).embedder().unwrap();
        let together = embedder.embed(texts).unwrap();
        for (text, together) in texts.iter().zip(&together) {
            let alone = embedder.embed(&[text]).unwrap().remove(0);
            assert_eq!(alone.vectors().len(), together.vectors().len());
            for (alone, together) in alone.vectors().zip(together.vectors()) {
                let cosine = cosine_similarity(alone, together).unwrap();
                assert!(1.0 - cosine <= apart, "{case}: {cosine} in {text:?}");
            }
        }
        let [one, other] = [&together[0], &together[1]].map(|embedding| embedding.vectors().last().unwrap());
        let cosine = cosine_similarity(one, other).unwrap();
        assert!(1.0 - cosine > apart, "{case}: all texts are alike, {cosine}");
    }
}

const POOLINGS: [Pooling; 5] = [Pooling::Model, Pooling::None, Pooling::Mean, Pooling::Cls, Pooling::Last];

#[test]
fn an_encoder_gives_many_texts_at_once_the_vectors_that_each_has_alone() {
    // The lengths of the texts are different. So some of them fit into one batch together, and some do not.
    let texts: Vec<String> = (0..30).map(|n| text(n, 1 + n * 7 % 60)).collect();
    for sketch in encoders(F32) {
        together_as_alone(&sketch, &POOLINGS, &texts, 1e-5);
    }
}

#[test]
fn a_model_with_any_kind_of_memory_gives_the_vectors_of_each_text_alone() {
    // The vocabulary of these models consists of bytes.
    let texts: Vec<String> = (0..14).map(|n| text(n, 1 + n % 5)).collect();
    let mut models = test_support::random_weights::all();
    // For each kind of memory there is one model: a cache, a cache with a window, a recurrent state, a cache with a
    // state.
    let kinds = ["llama split q8_0", "gemma3", "mamba2", "jamba"];
    models.retain(|sketch| kinds.iter().any(|kind| sketch.title().starts_with(kind)));
    assert_eq!(models.len(), kinds.len());
    for mut sketch in models {
        sketch.vocabulary();
        // The headers of these models state no pooling. The first token is the same in all texts, and it attends to no
        // other token. So its vector is not compared.
        together_as_alone(&sketch, &[Pooling::None, Pooling::Mean, Pooling::Last], &texts, 2e-3);
    }
    for sketch in [llama_embed(F32), t5_encoder(F32)] {
        together_as_alone(&sketch, &POOLINGS, &texts, 2e-3);
    }
}

/// The embedding of one text, not scaled, computed as llama.cpp's own example `embedding` does it.
pub(crate) fn by_llama_cpp(
    path: &Path,
    pooling: llama_sys::Pooling,
    tokens: impl FnOnce(&Vocab) -> Vec<Token>,
) -> Vec<f32> {
    let model = native(path).unwrap();
    let threads = Some(1);
    let params = ContextParams { n_ctx: 512, n_batch: 512, n_ubatch: 512, embeddings: true, pooling, ..<_>::default() };
    let mut raw = Raw::with(&model, ContextParams { n_threads: threads, n_threads_batch: threads, ..params });
    let tokens = tokens(&model.vocab());
    raw.compute(&tokens);
    let context = raw.context();
    match context.pooling() {
        llama_sys::Pooling::None => {
            (0..tokens.len() as i32).flat_map(|index| context.embeddings_ith(index).unwrap().to_vec()).collect()
        }
        _ => context.embeddings_seq(0).unwrap().to_vec(),
    }
}

#[test]
fn a_text_alone_has_llama_cpps_own_vector() {
    let mut models = encoders(F32);
    models.extend([llama_embed(F32), t5_encoder(F32)]);
    let mut paths = vec![demo_path()];
    let folders: Vec<_> = models.iter().map(written).collect();
    paths.extend(folders.iter().map(|(_, path)| path.clone()));
    for path in paths {
        for (pooling, native) in [
            (Pooling::Model, llama_sys::Pooling::Unspecified),
            (Pooling::None, llama_sys::Pooling::None),
            (Pooling::Mean, llama_sys::Pooling::Mean),
            (Pooling::Cls, llama_sys::Pooling::Cls),
            (Pooling::Last, llama_sys::Pooling::Last),
        ] {
            if pooling == Pooling::Model && path == demo_path() {
                let load = Model::builder(&path).embeddings(pooling).load();
                let error = load.map(drop).unwrap_err();
                assert_matches!(error, load::Error::NoPooling { .. });
                assert!(error.to_string().contains("choose `Pooling::Mean`"), "{error}");
                continue;
            }
            let mut embedder = embedder(&path, pooling).normalize(false);
            for text in ["the moon pulls the sea", "a cat sleeps on a warm stone"] {
                let ours = embedder.embed(&[text]).unwrap().remove(0);
                let theirs = by_llama_cpp(&path, native, |vocab| vocab.tokenize(text, true, false).unwrap());
                assert_eq!(ours.as_slice(), theirs, "{} {pooling}", path.display());
            }
        }
    }
}

#[test]
fn vectors_have_a_length_of_1_unless_requested_otherwise() {
    let length = |vector: &[f32]| vector.iter().map(|x| x * x).sum::<f32>().sqrt();
    // Without pooling, each token has a vector, and so have [CLS] and [SEP].
    for (pooling, counts) in [(Pooling::Model, [1, 1]), (Pooling::None, [4, 6])] {
        let mut embedder = small(&nomic_bert(F32), pooling);
        let texts = ["the sea", "a warm stone sleeps"];
        let scaled = embedder.embed(&texts).unwrap();
        assert_eq!([&scaled[0], &scaled[1]].map(|embedding| embedding.vectors().len()), counts);
        let mut embedder = embedder.normalize(false);
        let raw = embedder.embed(&texts).unwrap();
        for (scaled, raw) in scaled.iter().zip(&raw).flat_map(|(scaled, raw)| scaled.vectors().zip(raw.vectors())) {
            assert_eq!(scaled.len(), embedder.width().unwrap());
            assert!((length(scaled) - 1.0).abs() < 1e-5 && (length(raw) - 1.0).abs() > 1e-2);
            assert!(cosine_similarity(scaled, raw).unwrap() > 0.999_99);
        }
        // Checks the other ways of scaling, for each vector separately.
        for (kind, size) in [
            (
                Normalization::MaxAbsolute,
                (|vector| vector.iter().fold(0.0, |most, x| x.abs().max(most)) / 32760.0) as fn(&[f32]) -> f32,
            ),
            (Normalization::Taxicab, |vector| vector.iter().map(|x| x.abs()).sum()),
            (Normalization::P(3), |vector| vector.iter().map(|x| x.abs().powi(3)).sum::<f32>().cbrt()),
        ] {
            let other = embedder.embed_with(&texts, false, kind).unwrap();
            for vector in other.iter().flat_map(Embedding::vectors) {
                assert!((size(vector) - 1.0).abs() < 1e-4, "{kind:?}: {}", size(vector));
            }
        }
    }
}

#[test]
fn a_text_that_is_too_long_is_an_error_that_counts_or_is_cut_when_asked() {
    for sketch in encoders(F32) {
        let mut embedder = small(&sketch, Pooling::Model);
        let longest = embedder.longest_text().unwrap();
        assert_eq!(longest, MAX_LENGTH as usize, "{}", sketch.title());
        // The model adds two tokens to these.
        let fits = text(0, longest - 2);
        assert_eq!(embedder.embed(&[&fits]).unwrap()[0].tokens(), longest);
        let long = text(0, longest + 40);
        // With this call, the next computation is aborted.
        embedder.abort_handle().abort();
        let counts = (longest + 42, longest);
        let refused = embedder.embed(&["the sea", &long]);
        assert_matches!(refused, Err(embed::Error::TooLong { index: 1, tokens, limit }) if (*tokens, *limit) == counts);
        assert_matches!(embedder.embed(&["the sea"]), Err(embed::Error::Native(llama_sys::Error::Aborted)));

        // One call may cut where the embedder refuses.
        let cut_once = embedder.embed_truncated(&["the sea", &long]).unwrap();
        assert_matches!(embedder.embed(&[&long]), Err(embed::Error::TooLong { index: 0, .. }));

        let mut embedder = embedder.truncate(true);
        let cut = embedder.embed(&["the sea", &long]).unwrap();
        assert_eq!(cut_once, cut);
        assert_eq!(cut_once[1].clone().into_vec(), cut[1].as_slice());
        let truncated: Vec<bool> = cut.iter().map(Embedding::is_truncated).collect();
        assert_eq!(truncated, [false, true]);
        // The result is the same as for the longest text that fits, including the token at its end.
        let fits = embedder.embed(&[&fits]).unwrap().remove(0);
        assert_eq!(cut[1].tokens(), longest);
        assert!(distance(&cut[1], &fits) < 2e-3);
    }
}

#[test]
fn a_megabyte_of_text_is_counted_or_cut() {
    // For each kind of vocabulary there is one model.
    for sketch in [bert(F32), llama_embed(F32), t5_encoder(F32)] {
        let mut embedder = small(&sketch, Pooling::Mean);
        for of in ["the moon pulls the sea ", "日"] {
            let long = of.repeat((1 << 20) / of.len());
            let case = format!("{} {of:?}", sketch.title());
            match embedder.embed(&[&long]) {
                Err(embed::Error::TooLong { tokens, limit, .. }) => {
                    assert!(tokens > limit, "{case}");
                    embedder = embedder.truncate(true);
                    let cut = embedder.embed(&[&long]).unwrap().remove(0);
                    assert!(cut.is_truncated() && cut.tokens() <= limit, "{case}");
                    embedder = embedder.truncate(false);
                }
                // In some vocabularies, many spaces or a long unknown word become only a few tokens.
                Ok(embeddings) => assert!(embeddings[0].tokens() < 8, "{case}"),
                Err(error) => panic!("{case}: {error}"),
            }
        }
    }
}

#[test]
fn a_position_beyond_the_learned_ones_neither_lengthens_texts_nor_ends_the_process() {
    let (_folder, path) = written(&bert(F32));
    let request = Request::new().embeddings(Pooling::Model).n_ctx(2 * MAX_LENGTH as u32);
    let mut embedder = loaded(&path, request).embedder().unwrap();
    assert_eq!(embedder.longest_text().unwrap(), MAX_LENGTH as usize);
    assert_matches!(embedder.embed(&[text(0, 200)]), Err(embed::Error::TooLong { .. }));

    let params = ContextParams { embeddings: true, ..ContextParams::default() };
    let mut context = Context::new(&native(&path).unwrap(), params).unwrap();
    assert_eq!(context.longest_text(), MAX_LENGTH as u32);
    let mut compute = |position| {
        let mut batch = Batch::default();
        batch.add(7, position, 0, true);
        context.decode(&batch)
    };
    compute(MAX_LENGTH as i32 - 1).unwrap();
    assert_matches!(compute(MAX_LENGTH as i32), Err(llama_sys::Error::InvalidParameter { name: "pos", .. }));
}

#[test]
fn empty_texts_are_accepted_and_control_tokens_are_text() {
    let mut embedder = small(&bert(F32), Pooling::Model);
    assert!(embedder.embed::<&str>(&[]).unwrap().is_empty());
    let embeddings = embedder.embed(&["", "the", ""]).unwrap();
    assert_eq!(embeddings[0].tokens(), 2);
    assert!(distance(&embeddings[0], &embeddings[2]) < 1e-5);
    assert!(distance(&embeddings[0], &embeddings[1]) > 1e-3);
    // If this text were read as a control token, there would be only three tokens.
    assert!(embedder.embed(&["[SEP]"]).unwrap()[0].tokens() > 3);
}

#[test]
fn a_model_embeds_or_generates_as_it_was_loaded() {
    let refused = load_demo().embedder().map(drop).unwrap_err();
    assert_matches!(refused, embed::Error::Load(error) if matches!(**error, load::Error::LoadedToGenerate));
    let embedding = loaded(&demo_path(), Request::new().embeddings(Pooling::Last));
    let refused = embedding.generate("In").text().unwrap_err();
    assert!(refused.to_string().contains("loaded to embed"), "{refused}");
    let first = embedding.embedder().unwrap();
    assert!(matches!(embedding.embedder(), Err(embed::Error::Busy)));
    assert!(matches!(embedding.replace(None), Err(load::Error::Busy)));
    drop(first);
    assert!(embedding.embedder().is_ok());
}

#[test]
fn a_classifier_says_what_its_scores_stand_for() {
    let mut embedder = small(&classifier(&["calm", "storm", "flood"]), Pooling::Model);
    assert_eq!(embedder.labels().unwrap(), ["calm", "storm", "flood"]);
    assert_eq!(embedder.width().unwrap(), 3);
    let scores = embedder.embed(&["the river", "the sea"]).unwrap();
    assert_eq!(scores[0].as_slice().len(), 3);
    assert_ne!(scores[0].as_slice(), scores[1].as_slice());
}

#[test]
fn an_encoder_without_a_vocabulary_says_so() {
    let mut sketch = bert(F32);
    sketch.text("tokenizer.ggml.model", "no_vocab");
    let refused = small(&sketch, Pooling::Model).embed(&["the sea"]);
    assert_matches!(refused, Err(embed::Error::Native(llama_sys::Error::NoVocabulary)));
}
