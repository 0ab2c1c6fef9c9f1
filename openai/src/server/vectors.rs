//! A server of one model that computes vectors or scores, and no texts.

use std::collections::BTreeSet;
use std::io;

use autoplace::Embedder;
use autoplace::memory::Pooling;
use axum::http::{Method, StatusCode, Uri};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::{Value, json};
use tokio::net::TcpListener;

use super::embedding::{Embedding, embed};
use super::http::{self, Failed, failed};
use super::{
    MAX_EMBEDDINGS, MORE_CONNECTIONS, NO_EMBEDDER, NO_RERANKER, Server, connections, model_routes, reply, show_slots,
};
use crate::api::listed;
use crate::shape::now;
use crate::vocabulary::{detokenize, tokenize};
use crate::{ApiError, EmbeddingRequest, RerankRequest};

/// What a [`Server`] for a model of vectors or scores serves.
#[derive(Debug)]
pub struct OneEmbedder {
    embedding: Embedding,
    is_reranker: bool,
}

impl Server<OneEmbedder> {
    /// A server of a model that computes vectors, as `llama-server --embedding`, or scores, as `llama-server --rerank`:
    /// it answers `/v1/embeddings`, or `/v1/rerank` and its other paths, and in addition `/tokenize`, `/detokenize`,
    /// `/props`, `/slots`, `/metrics`, `/v1/models` and `/health`. Other paths are answered with status 501.
    ///
    /// # Errors
    ///
    /// The model was loaded with [`Pooling::None`], with which it computes no vector for a text; or its worker process
    /// has died.
    pub fn from_embedder(name: impl Into<String>, embedder: Embedder) -> io::Result<Self> {
        let is_reranker = match embedder.pooling().map_err(io::Error::other)? {
            Pooling::None => {
                let message = "with the pooling `none` a model computes a vector for each token, and none for a text";
                return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
            }
            pooling => pooling == Pooling::Rank,
        };
        let embedding = Embedding::new(name, embedder, MAX_EMBEDDINGS);
        Ok(Self::with_defaults(OneEmbedder { embedding, is_reranker }))
    }

    /// Adds another name that requests may use. Answers have the first one.
    pub fn alias(mut self, name: impl Into<String>) -> Self {
        self.served.embedding.aliases.push(name.into());
        self
    }

    /// Accepts requests until `stop` is ready, and then waits for running answers, at most as long as the
    /// [time limit](Self::timeout).
    pub async fn serve(self, listener: TcpListener, stop: impl Future<Output = ()>) {
        let OneEmbedder { embedding, is_reranker } = self.served;
        let models = models(&embedding);
        let health = get(async || Json(json!({"status": "ok"})));
        let routes = embedding_routes(embedding, is_reranker).route("/health", health);
        let routes = model_routes(models).into_iter().fold(routes, |routes, (path, get)| routes.route(path, get));
        // The fallback applies to the routes that were added before it.
        let routes = routes.method_not_allowed_fallback(not_allowed);
        let most = MAX_EMBEDDINGS + MORE_CONNECTIONS;
        connections::serve(listener, self.access.guard(routes), most, self.waits, stop).await;
    }
}

/// The answer to `GET /v1/models`.
fn models(embedding: &Embedding) -> Value {
    let names = embedding.aliases.iter().chain([&embedding.name]).map(String::as_str).collect();
    let model = listed(&embedding.name, &names, &BTreeSet::new(), now());
    json!({"object": "list", "data": [model]})
}

/// The answer to another method of a path.
async fn not_allowed(method: Method, uri: Uri) -> Failed {
    failed(StatusCode::METHOD_NOT_ALLOWED, format!("{} does not accept {method}", uri.path()))
}

/// The routes of a model for vectors, or for scores. Clients of llama-server ask it for more: tokens, properties, slots
/// and counts.
pub(super) fn embedding_routes(embedding: Embedding, is_reranker: bool) -> Router {
    let name = embedding.name.clone();
    let fallback = async move || {
        let message = format!(
            "the model `{name}` computes {}, and writes no texts",
            if is_reranker { "scores" } else { "vectors" }
        );
        Failed::from(ApiError::new(501, message))
    };
    let [to_tokens, to_text] = [(); 2].map(|()| embedding.model.clone());
    let [props, slots, metrics] = [(); 3].map(|()| embedding.clone());
    let router = Router::new()
        .route("/tokenize", post(move |body| reply(body, move |body| tokenize(&to_tokens, body))))
        .route("/detokenize", post(move |body| reply(body, move |body| detokenize(&to_text, body))))
        .route("/props", get(async move || Ok::<_, Failed>(Json(http::blocking(move || props.props()).await?))))
        .route("/slots", get(async move |uri: Uri| show_slots(slots.slots(), &uri)))
        .route("/metrics", get(async move || metrics.metrics().response()));
    let router = if is_reranker {
        let loaded = (Some(embedding), NO_RERANKER);
        let rerank = move |body| embed(loaded, body, RerankRequest::read_for, RerankRequest::compute);
        let paths = ["/v1/rerank", "/v2/rerank", "/rerank"];
        paths.into_iter().fold(router, |routes, path| routes.route(path, post(rerank.clone())))
    } else {
        let loaded = (Some(embedding), NO_EMBEDDER);
        let vectors = move |body| embed(loaded, body, EmbeddingRequest::read_for, EmbeddingRequest::compute);
        router.route("/v1/embeddings", post(vectors))
    };
    router.fallback(fallback).method_not_allowed_fallback(not_allowed)
}
