//! A server of one model that computes vectors or scores, and no texts.

use std::collections::BTreeSet;
use std::io;

use autoplace::Embedder;
use autoplace::memory::Pooling;
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::{Value, json};
use tokio::net::TcpListener;

use super::http::Failed;
use super::{Embedding, MAX_EMBEDDINGS, MORE_CONNECTIONS, NO_EMBEDDER, Server, connections, embed, model_routes};
use crate::api::listed;
use crate::shape::now;
use crate::{ApiError, EmbeddingRequest, RerankRequest};

/// What a [`Server`] for a model of vectors or scores serves.
#[derive(Debug)]
pub struct OneEmbedder {
    embedding: Embedding,
    is_reranker: bool,
}

impl Server<OneEmbedder> {
    /// A server of a model that computes vectors, as `llama-server --embedding`, or scores, as `llama-server --rerank`:
    /// it answers `/v1/embeddings`, or `/v1/rerank` and its other paths, and in addition `/v1/models` and `/health`.
    /// Other paths are answered with status 501.
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

/// The routes of a model for vectors, or for scores.
pub(super) fn embedding_routes(embedding: Embedding, is_reranker: bool) -> Router {
    let name = embedding.name.clone();
    let fallback = async move || {
        let message = format!(
            "the model `{name}` computes {}, and writes no texts",
            if is_reranker { "scores" } else { "vectors" }
        );
        Failed::from(ApiError::new(501, message))
    };
    if is_reranker {
        let rerank =
            move |body| embed((Some(embedding), NO_EMBEDDER), body, RerankRequest::read_for, RerankRequest::answer);
        let paths = ["/v1/rerank", "/v2/rerank", "/rerank"];
        let routes = paths.into_iter().fold(Router::new(), |routes, path| routes.route(path, post(rerank.clone())));
        return routes.fallback(fallback);
    }
    let vectors =
        move |body| embed((Some(embedding), NO_EMBEDDER), body, EmbeddingRequest::read_for, EmbeddingRequest::answer);
    Router::new().route("/v1/embeddings", post(vectors)).fallback(fallback)
}
