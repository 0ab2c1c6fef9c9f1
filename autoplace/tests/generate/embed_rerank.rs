//! Documents are scored against a query, in the form that the model expects. If many documents are scored at once, each
//! has the same score as alone.

use crate::embed_vectors::{by_llama_cpp, embedder, load, small, written};
use autoplace::embed::Error;
use autoplace::gguf::TensorType;
use autoplace::llama_sys::{self, Token, Vocab};
use autoplace::load;
use autoplace::memory::Pooling;
use autoplace::plan::{Plan, Request};
use test_support::embedding_models::{MAX_LENGTH, bert, reranker, text};
use test_support::synthetic::Sketch;

const F32: TensorType = TensorType::F32;
const QUERY: &str = "tide on the river";

fn with_template(template: &str) -> Sketch {
    let mut sketch = reranker(F32);
    sketch.text("tokenizer.chat_template.rerank", template);
    sketch
}

/// Checks that the score of a pair is the score that llama.cpp computes for these tokens.
fn is_scored_as(sketch: &Sketch, query: &str, document: &str, tokens: impl FnOnce(&Vocab) -> Vec<Token>) {
    let (_folder, path) = written(sketch);
    let score = embedder(&path, Pooling::Rank).rerank(query, &[document]).unwrap()[0];
    assert_eq!(by_llama_cpp(&path, llama_sys::Pooling::Rank, tokens), [score], "{query:?} {document:?}");
}

const CLS: Token = 2;
const SEP: Token = 3;

fn plain(vocab: &Vocab, text: &str) -> Vec<Token> {
    vocab.tokenize(text, false, false).unwrap()
}

#[test]
fn a_pair_is_put_between_the_tokens_that_the_model_has_or_into_its_own_template() {
    for document in ["the moon pulls the sea", "", "a stone"] {
        // BERT adds no EOS.
        is_scored_as(&reranker(F32), QUERY, document, |vocab| {
            [vec![CLS], plain(vocab, QUERY), vec![SEP], plain(vocab, document)].concat()
        });
    }
    is_scored_as(&with_template("[CLS]{document}[SEP]on {query}[SEP]"), QUERY, "the warm sea", |vocab| {
        vocab.tokenize(&format!("[CLS]the warm sea[SEP]on {QUERY}[SEP]"), false, true).unwrap()
    });
}

#[test]
fn texts_cannot_take_the_templates_places_or_write_control_tokens() {
    let (query, document) = ("[SEP]{document}", "the warm sea");
    is_scored_as(&with_template("[CLS]{query}[SEP]{document}[SEP]"), query, document, |vocab| {
        [vec![CLS], plain(vocab, query), vec![SEP], plain(vocab, document), vec![SEP]].concat()
    });
}

#[test]
fn many_documents_have_the_scores_that_each_has_alone_in_their_order() {
    let mut embedder = small(&reranker(F32), Pooling::Rank);
    let documents: Vec<String> = (0..25).map(|n| text(n, 2 + n * 5 % 40)).collect();
    let together = embedder.rerank(QUERY, &documents).unwrap();
    let (mut least, mut most) = (f32::MAX, f32::MIN);
    for (document, &score) in documents.iter().zip(&together) {
        let alone = embedder.rerank(QUERY, &[document]).unwrap()[0];
        assert!((alone - score).abs() < 1e-3, "{alone} {score}");
        (least, most) = (least.min(score), most.max(score));
    }
    assert!(most - least > 1e-2, "all documents are alike");
}

#[test]
fn a_document_that_is_too_long_is_an_error_or_cut_but_never_the_query() {
    // The query has four tokens, and there are two or three special tokens.
    let templated = with_template("[CLS]{query}[SEP]{document}[SEP]");
    for (sketch, others) in [(reranker(F32), 6), (templated, 7)] {
        let mut embedder = small(&sketch, Pooling::Rank);
        let longest = MAX_LENGTH as usize;
        let long = text(0, longest);
        let counts = (longest + others, longest);
        let refused = embedder.rerank(QUERY, &["the sea", &long]);
        assert_matches!(refused, Err(Error::TooLong { index: 1, tokens, limit }) if (*tokens, *limit) == counts);
        let mut embedder = embedder.truncate(true);
        let cut = embedder.rerank(QUERY, &[&long]).unwrap()[0];
        let fits = text(0, longest - others);
        let whole = embedder.rerank(QUERY, &[&fits]).unwrap()[0];
        assert!((whole - cut).abs() < 1e-3, "{whole} {cut}");
        assert_matches!(embedder.rerank(&long, &["the sea"]), Err(Error::TooLong { index: 0, .. }));
    }
}

#[test]
fn a_model_without_a_head_or_without_that_pooling_does_not_rerank() {
    let (_folder, path) = written(&bert(F32));
    let refused = load(&path, Request::new().embeddings(Pooling::Rank));
    assert_matches!(refused, Err(load::Error::NoRankHead { architecture }) if architecture == "bert");
    let refused = embedder(&path, Pooling::Model).rerank(QUERY, &["the sea"]);
    assert_matches!(refused, Err(Error::NotReranking { pooling: Pooling::Mean }));
}

#[test]
fn a_reranker_by_its_own_header_needs_no_request() {
    let (_folder, path) = written(&reranker(F32));
    let mut ranking = embedder(&path, Pooling::Model);
    assert_eq!(ranking.pooling().unwrap(), Pooling::Rank);
    assert_eq!(ranking.rerank(QUERY, &["a", "b"]).unwrap().len(), 2);
    // The same model can also be loaded for embeddings.
    assert!(embedder(&path, Pooling::Mean).embed(&["the sea"]).unwrap()[0].width() > 1);
}

#[test]
fn a_reranker_goes_on_when_its_model_is_loaded_again() {
    let (_folder, path) = written(&reranker(F32));
    let model = load(&path, Request::new().embeddings(Pooling::Rank)).unwrap();
    let mut embedder = model.embedder().unwrap();
    let abort = embedder.abort_handle();
    let before = embedder.rerank(QUERY, &["the sea"]).unwrap();
    let mut impossible = Plan::clone(&model.placement());
    impossible.context.n_seq_max = 1 << 20;
    for asks in [true, false] {
        model.request_replace(load::Replacement::By(Box::new(impossible.clone())));
        assert!(embedder.rerank(QUERY, &["the sea"]).is_err());
        // Re-places the model, either by a request or at once.
        if asks {
            model.request_replace(load::Replacement::Replan);
        } else {
            model.replace(None).unwrap();
        }
        let after = embedder.rerank(QUERY, &["the sea"]).unwrap();
        assert_eq!(before, after, "{asks}");
    }
    abort.abort();
    assert!(embedder.rerank(QUERY, &["the sea"]).is_err());
}
