//! Requests for embeddings.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde::Deserialize;
use serde_json::{Value, json};

use super::api::check_name;
use super::error::{ApiError, beginning, check_length};
use super::reading;
use autoplace::embed::{Embedder, Embedding, Normalization};
use autoplace::memory::Pooling;

/// Maximum number of texts in a request.
const MAX_TEXTS: usize = 2048;

/// The body of `POST /v1/embeddings`, parsed and checked: `model`, `input` (a text, or up to 2048 texts),
/// `encoding_format` (`float`, `base64`), `dimensions`, `truncate`, `embd_normalize`.
#[derive(Debug, Clone, PartialEq)]
pub struct EmbeddingRequest {
    texts: Vec<String>,
    in_base64: bool,
    dimensions: Option<usize>,
    truncate: bool,
    normalization: Option<Normalization>,
    model: String,
}

#[derive(Debug, Deserialize)]
struct Body {
    model: Option<String>,
    encoding_format: Option<Encoding>,
    dimensions: Option<usize>,
    /// Hugging Face's TEI and Ollama have this parameter.
    #[serde(default)]
    truncate: bool,
    /// A parameter from vLLM, where -1 means the model's maximum.
    truncate_prompt_tokens: Option<i64>,
    /// A parameter from llama-server that chooses the norm: -1 means no norm, 0 the maximum of the absolute values, 1
    /// the taxicab norm, 2 the Euclidean norm, and any other p the p-norm.
    embd_normalize: Option<i64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Encoding {
    Float,
    Base64,
}

impl EmbeddingRequest {
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
        let Body { model, encoding_format, dimensions, truncate, truncate_prompt_tokens, embd_normalize } =
            object.part()?;
        check_name(model.as_deref(), name, aliases)?;
        if truncate_prompt_tokens.is_some_and(|tokens| tokens != -1) {
            let message =
                "the only supported value of `truncate_prompt_tokens` is -1, which means as many as the model takes";
            return Err(ApiError::unsupported("truncate_prompt_tokens", message));
        }
        let kind = |number| {
            let message = format!(
                "`embd_normalize` is {number}: -1 is none, 0 max absolute, 1 taxicab, 2 Euclidean, p the p-norm up to {}",
                u16::MAX
            );
            Normalization::from_llama_cpp(number).ok_or_else(|| ApiError::invalid("embd_normalize", message))
        };
        let normalization = embd_normalize.map(kind).transpose()?;
        let missing = || ApiError::invalid("input", "`input` is missing or empty");
        let input = object.get("input").ok_or_else(missing)?;
        if matches!(reading::first_of_list(input), Some(b'[' | b'-' | b'0'..=b'9')) {
            let message = "`input` of tokens is not supported: each vocabulary has its own, so send texts. LangChain's \
                           OpenAIEmbeddings sends texts with check_embedding_ctx_length=False";
            return Err(ApiError::unsupported("input", message));
        }
        let texts = reading::texts::<MAX_TEXTS>(input, "input")?;
        if texts.is_empty() {
            return Err(missing());
        }
        let in_base64 = encoding_format == Some(Encoding::Base64);
        let truncate = truncate || truncate_prompt_tokens.is_some();
        Ok(Self { texts, in_base64, dimensions, truncate, normalization, model: name.to_owned() })
    }

    /// Computes the vectors on this thread and returns the response's body.
    ///
    /// # Errors
    ///
    /// Status 400 for a text that is empty or too long, and for `dimensions` that are not supported. Status 500 for a
    /// failed computation, and for a model that was loaded to compute a vector for each token or a score for each text.
    pub fn answer(&self, embedder: &mut Embedder) -> Result<Value, ApiError> {
        Ok(self.compute(embedder)?.0)
    }

    /// Like [`answer`](Self::answer), with the number of computed tokens.
    pub(super) fn compute(&self, embedder: &mut Embedder) -> Result<(Value, usize), ApiError> {
        let pooling = embedder.pooling()?;
        if matches!(pooling, Pooling::None | Pooling::Rank) {
            let message = format!(
                "the model was loaded with the pooling `{pooling}`, with which it computes no vector for a text"
            );
            return Err(ApiError::new(500, message));
        }
        let width = embedder.width()?;
        if let Some(dimensions) = self.dimensions.filter(|dimensions| *dimensions != width) {
            let message = format!("`dimensions` is {dimensions}: the vectors of this model have {width}");
            return Err(ApiError::unsupported("dimensions", message));
        }
        let longest = embedder.longest_text()?;
        let normalization = self.normalization.unwrap_or(embedder.normalization());
        let vectors = match self.truncate {
            true => {
                // Only the beginning is tokenized, because a tokenizer needs up to 120 times as much memory as the
                // text.
                let texts: Vec<&str> = self.texts.iter().map(|text| beginning(text, longest)).collect();
                embedder.embed_with(&texts, true, normalization)?
            }
            false => {
                for (index, text) in self.texts.iter().enumerate() {
                    check_length(text.len(), longest, &format!("input[{index}]"))?;
                }
                embedder.embed_with(&self.texts, false, normalization)?
            }
        };
        let tokens: usize = vectors.iter().map(Embedding::tokens).sum();
        let data = vectors.iter().enumerate().map(|(index, vector)| {
            let values = vector.as_slice();
            let embedding = match self.in_base64 {
                true => {
                    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
                    BASE64_STANDARD.encode(bytes).into()
                }
                false => json!(values),
            };
            json!({"object": "embedding", "index": index, "embedding": embedding})
        });
        let answer = json!({
            "object": "list", "model": self.model, "data": data.collect::<Value>(),
            "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        });
        Ok((answer, tokens))
    }
}
