//! Requests to rank documents by how well they answer a query.

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::api::check_name;
use super::error::{ApiError, check_length};
use super::reading::{self, List};
use autoplace::embed::{self, Embedder, Embedding};

/// Maximum documents of one request.
const MOST_DOCUMENTS: usize = 2048;

/// The parsed and checked body of `POST /v1/rerank`, in Jina's and Cohere's form (`query`, `documents`, `top_n`,
/// `return_documents`) or in Hugging Face's TEI form (`query`, `texts`, `return_text`).
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

/// A document: a text, or an object with a text.
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
        let body = reading::with_integers(body);
        let object = reading::object(&body)?;
        let Body { model, query, top_n, return_documents, return_text } = object.part()?;
        check_name(model.as_deref(), name)?;
        for refused in ["rank_fields", "max_tokens_per_doc", "max_chunks_per_doc", "truncate"] {
            let is_nothing = |value: &RawValue| value.get() == "false";
            if object.get(refused).is_some_and(|value| !is_nothing(value)) {
                return Err(ApiError::unsupported(
                    refused,
                    format!("`{refused}` is not supported: documents are whole"),
                ));
            }
        }
        let given = ["documents", "texts"].into_iter().find_map(|name| Some((name, object.get(name)?)));
        let Some((name_of_documents, given)) = given else {
            return Err(ApiError::invalid("documents", "`documents` is missing"));
        };
        let List::<Document, MOST_DOCUMENTS>(documents) = reading::value(given, name_of_documents)?;
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
    /// Status 400 for a document that is empty or too long with its query; 500 for a failed computation, and for a
    /// model that is not a reranker.
    pub fn answer(&self, embedder: &mut Embedder) -> Result<Value, ApiError> {
        let longest = embedder.longest_text()?;
        check_length(self.query.len(), longest, "query")?;
        let place = |index: usize| format!("{}[{index}]", self.name);
        for (index, document) in self.documents.iter().enumerate() {
            check_length(document.len(), longest, &place(index))?;
        }
        let scored = embedder.score(&self.query, &self.documents).map_err(|error| match error {
            embed::Error::TooLong { index, tokens, limit } => {
                let message = format!("{} is {tokens} tokens long with its query: {limit} are the most", place(index));
                ApiError::invalid(place(index), message).with_code("context_length_exceeded")
            }
            embed::Error::Empty { index } => ApiError::invalid(place(index), format!("{} is empty", place(index))),
            error => error.into(),
        })?;
        let tokens: usize = scored.iter().map(Embedding::tokens).sum();
        let mut order: Vec<(usize, f32)> =
            scored.iter().map(|it| it.as_slice().first().copied().unwrap_or(f32::NAN)).enumerate().collect();
        order.sort_by(|(_, one), (_, other)| other.total_cmp(one));
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
            return Ok(results);
        }
        Ok(json!({
            "object": "list", "model": self.model, "results": results,
            "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        }))
    }
}
