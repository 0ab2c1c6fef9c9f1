//! Requests to rank documents by how well they answer a question.

use serde::Deserialize;
use serde_json::{Value, json};

use super::api::check_name;
use super::error::{ApiError, check_length};
use super::parameters;
use super::reading::{self, List};
use autoplace::embed::{self, Embedder, Embedding};

/// Maximum number of documents in one request.
const MAX_DOCUMENTS: usize = 2048;
/// Parameters that are refused, each with the values that have no effect; `false` has no effect either.
const REFUSED: [(&str, &str); 4] =
    [("rank_fields", ""), ("max_tokens_per_doc", ""), ("max_chunks_per_doc", ""), ("truncate", "")];

/// The body of `POST /v1/rerank`, parsed and checked. It has the form of Jina and Cohere (`query`, `documents`,
/// `top_n`, `return_documents`), or that of Hugging Face's TEI (`query`, `texts`, `return_text`).
#[derive(Debug, Clone, PartialEq)]
pub struct RerankRequest {
    query: String,
    documents: Vec<String>,
    /// The parameter that contains the documents.
    name: &'static str,
    top_n: usize,
    returns_documents: bool,
    model: String,
}

#[derive(Debug, Deserialize)]
struct Body {
    model: Option<String>,
    query: String,
    top_n: Option<usize>,
    return_documents: Option<bool>,
    return_text: Option<bool>,
}

/// A document: a text, or an object that contains a text.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Document {
    Text(String),
    Object { text: String },
}

impl RerankRequest {
    /// Parses a request to the model with this name.
    ///
    /// # Errors
    ///
    /// Status 400 for an invalid request, 404 for another model.
    pub fn read(body: &[u8], name: &str) -> Result<Self, ApiError> {
        Self::read_for(body, name, &[])
    }

    /// Parses a request to the model with this name and these other names.
    pub(super) fn read_for(body: &[u8], name: &str, aliases: &[String]) -> Result<Self, ApiError> {
        let body = reading::with_integers(body);
        let object = reading::object(&body)?;
        let Body { model, query, top_n, return_documents, return_text } = object.part()?;
        check_name(model.as_deref(), name, aliases)?;
        parameters::refuse(&object, &REFUSED, ": documents are whole")?;
        let (name_of_documents, given) = match (object.get("documents"), object.get("texts")) {
            (Some(_), Some(_)) => return Err(ApiError::given_twice("texts", "documents")),
            (Some(given), None) => ("documents", given),
            (None, Some(given)) => ("texts", given),
            (None, None) => return Err(ApiError::invalid("documents", "`documents` is missing")),
        };
        if return_documents.is_some_and(|documents| return_text.is_some_and(|other| documents != other)) {
            return Err(ApiError::given_twice("return_text", "return_documents"));
        }
        let List::<Document, MAX_DOCUMENTS>(documents) = reading::value(given, name_of_documents)?;
        if documents.is_empty() {
            return Err(ApiError::invalid(name_of_documents, format!("`{name_of_documents}` is empty")));
        }
        let documents = documents.into_iter().map(|document| match document {
            Document::Text(text) | Document::Object { text } => text,
        });
        let documents: Vec<String> = documents.collect();
        Ok(Self {
            query,
            name: name_of_documents,
            top_n: top_n.unwrap_or(documents.len()),
            returns_documents: return_documents.or(return_text) == Some(true),
            documents,
            model: name.to_owned(),
        })
    }

    /// Computes the scores on this thread and returns the response's body, the best document first.
    ///
    /// # Errors
    ///
    /// Status 400 for a document that is empty, or too long together with the query. Status 500 for a failed
    /// computation, and for a model that is not a reranker.
    pub fn answer(&self, embedder: &mut Embedder) -> Result<Value, ApiError> {
        Ok(self.compute(embedder)?.0)
    }

    /// Like [`answer`](Self::answer), with the number of computed tokens.
    pub(super) fn compute(&self, embedder: &mut Embedder) -> Result<(Value, usize), ApiError> {
        let longest = embedder.longest_text()?;
        check_length(self.query.len(), longest, "query")?;
        let place = |index: usize| format!("{}[{index}]", self.name);
        for (index, document) in self.documents.iter().enumerate() {
            check_length(document.len(), longest, &place(index))?;
        }
        let scored = embedder.score(&self.query, &self.documents).map_err(|error| match error {
            embed::Error::TooLong { index, tokens, limit } => {
                let message =
                    format!("{} is {tokens} tokens long with its query: at most {limit} are allowed", place(index));
                ApiError::invalid(place(index), message).with_code("context_length_exceeded")
            }
            embed::Error::Empty { index } => ApiError::invalid(place(index), format!("{} is empty", place(index))),
            error => error.into(),
        })?;
        let tokens: usize = scored.iter().map(Embedding::tokens).sum();
        let scores = scored.iter().map(|score| score.as_slice().first().copied().unwrap_or(f32::NAN));
        let mut order = best_first(scores);
        order.truncate(self.top_n);
        let is_tei = self.name == "texts";
        let results = order.into_iter().map(|(index, score)| {
            let text = self.returns_documents.then(|| &self.documents[index]);
            match (is_tei, text) {
                (true, Some(text)) => json!({"index": index, "score": score, "text": text}),
                (true, None) => json!({"index": index, "score": score}),
                (false, Some(text)) => json!({"index": index, "relevance_score": score, "document": {"text": text}}),
                (false, None) => json!({"index": index, "relevance_score": score}),
            }
        });
        let results: Value = results.collect();
        if is_tei {
            return Ok((results, tokens));
        }
        let answer = json!({
            "object": "list", "model": self.model, "results": results,
            "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        });
        Ok((answer, tokens))
    }
}

/// Scores with their indices, the highest first. A score that is not a number (NaN) comes last.
fn best_first(scores: impl Iterator<Item = f32>) -> Vec<(usize, f32)> {
    let mut order: Vec<(usize, f32)> = scores.enumerate().collect();
    order.sort_by(|(_, one), (_, other)| one.is_nan().cmp(&other.is_nan()).then(other.total_cmp(one)));
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_without_a_score_comes_last() {
        let scores = [-1.5, f32::NAN, 2.0, -f32::NAN, f32::NEG_INFINITY];
        let order: Vec<usize> = best_first(scores.into_iter()).into_iter().map(|(index, _)| index).collect();
        assert_eq!((&order[..3], order.len()), (&[2, 0, 4][..], 5));
    }

    #[test]
    fn a_parameter_that_would_cut_documents_is_refused() {
        let read =
            |more: &str| RerankRequest::read(format!(r#"{{"query": "a", "texts": ["b"], {more}}}"#).as_bytes(), "");
        for (name, value) in [("max_tokens_per_doc", "1"), ("truncate", "true"), ("rank_fields", r#"["a"]"#)] {
            let error = read(&format!(r#""{name}": {value}"#)).unwrap_err();
            assert_eq!((error.param.as_deref(), error.code), (Some(name), Some("unsupported_parameter")));
            assert!(read(&format!(r#""{name}": null"#)).is_ok());
        }
    }

    #[test]
    fn documents_and_texts_are_one_parameter() {
        let read = |body: &str| RerankRequest::read(body.as_bytes(), "ranker");
        for (body, second, first) in [
            (r#"{"query": "a", "documents": ["b"], "texts": ["c"]}"#, "texts", "documents"),
            (
                r#"{"query": "a", "texts": ["c"], "return_text": true, "return_documents": false}"#,
                "return_text",
                "return_documents",
            ),
        ] {
            let error = read(body).unwrap_err();
            assert_eq!((error.status, error.param.as_deref()), (400, Some(second)), "{error}");
            assert!(error.message.contains(&format!("`{first}`")), "{error}");
        }
        assert!(read(r#"{"query": "a", "texts": ["c"], "return_text": true, "truncate": false}"#).is_ok());
    }
}
