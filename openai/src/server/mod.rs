//! OpenAI's API over HTTP: `/v1/chat/completions`, `/v1/responses`, `/v1/completions`, `/v1/embeddings`, `/v1/models`;
//! Anthropic's `/v1/messages`; `/v1/rerank`; llama-server's `/infill`, `/tokenize`, `/props`, `/metrics` and others;
//! and `/health`. docs/openai.md leads to the pages of all of them.
//!
//! ```no_run
//! use autoplace::{Model, generate::Engine};
//! use autoplace_openai::{Api, Server};
//! # async fn serve() -> Result<(), Box<dyn std::error::Error>> {
//! let model = Model::load("model.gguf")?;
//! let server = Server::new(Api::new(&model, &Engine::new(&model)?, "my-model"));
//! let listener = tokio::net::TcpListener::bind("127.0.0.1:8080").await?;
//! server.serve(listener, std::future::pending()).await;
//! # Ok(()) }
//! ```

mod access;
mod connection;
mod connections;
mod embedding;
mod http;
mod metrics;
mod page;
mod paths;
#[cfg(feature = "pool")]
mod pooled;
mod socket;
mod vectors;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use autoplace::Embedder;
use axum::extract;
pub use axum::http::HeaderValue;
use axum::http::header::CONTENT_TYPE;
use axum::http::{Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get, post};
use axum::{Json, Router};
use serde_json::{Value, json};
use tokio::net::TcpListener;

use self::access::{Access, Key};
pub use self::access::{check_key, check_prefix};
use self::embedding::{Beside, Embedding, embed};
use self::http::{Body, Failed, failed};
use self::metrics::Metrics;
pub use self::page::Activity;
use self::page::Page;
#[cfg(feature = "pool")]
pub use self::pooled::ManyModels;
pub use self::vectors::OneEmbedder;
use crate::{Api, ApiError, Completion, EmbeddingRequest, RerankRequest};

/// Connections that are permitted in addition to those of running and queued requests. They are for clients that are
/// about to send a request, and for `/health`. For example, with eight running and 64 queued answers, all connections
/// fit into a limit of 256 open files.
const MORE_CONNECTIONS: usize = 64;

/// Maximum number of requests that wait for a model of vectors or scores. It has as many connections in addition, so
/// that they don't take those of other requests.
const MAX_EMBEDDINGS: usize = 64;

/// A server of OpenAI's API, which `autoplace serve` runs. For each request it writes a line of JSON to stderr.
///
/// No page in a browser can use it without permission: it answers only to `localhost`, to IP addresses and to
/// [additional names](Self::allow_host), accepts only bodies declared as JSON, and refuses requests from pages of other
/// sites. Bodies, heads and connections are limited; docs/server.md has the numbers. It uses HTTP without TLS.
///
/// The type `Served` says what is served: [one model](OneModel), one model [for vectors or scores](OneEmbedder), or the
/// models of a pool (`ManyModels`, with the feature `pool`).
#[derive(Debug)]
#[must_use]
pub struct Server<Served = OneModel> {
    served: Served,
    access: Access,
    waits: Waits,
}

/// How long a server waits.
#[derive(Debug, Clone, Copy)]
struct Waits {
    /// For the head of a request, for its body, and after the stop for the answers that are still running.
    timeout: Duration,
    /// Without an event of a stream, before the stream gets a comment.
    ping: Duration,
}

impl Default for Waits {
    fn default() -> Self {
        Self { timeout: Duration::from_secs(30), ping: Duration::from_secs(15) }
    }
}

/// What a [`Server`] for one model serves: that model, and in addition the models for vectors and for scores.
#[derive(Debug)]
pub struct OneModel {
    api: Api,
    embedding: Option<Embedding>,
    reranking: Option<Embedding>,
    page: Option<Page>,
}

impl Server {
    /// A server without a key. Clients have a time limit of 30 seconds.
    pub fn new(api: Api) -> Self {
        Self::with_defaults(OneModel { api, embedding: None, reranking: None, page: None })
    }

    /// Adds a model that answers `/v1/embeddings` under this name.
    pub fn embedder(mut self, name: impl Into<String>, embedder: Embedder) -> Self {
        self.served.embedding = Some(Embedding::new(name, embedder, MAX_EMBEDDINGS));
        self
    }

    /// Adds a model that answers `/v1/rerank` under this name. It must be loaded with
    /// [`Pooling::Rank`](autoplace::memory::Pooling::Rank).
    pub fn reranker(mut self, name: impl Into<String>, embedder: Embedder) -> Self {
        self.served.reranking = Some(Embedding::new(name, embedder, MAX_EMBEDDINGS));
        self
    }

    /// Answers `GET /` with a page, which is a whole HTML document. A browser loads it again every 5 seconds. The page
    /// may contain styles, but the browser loads no script and no other resource. If no page is set, `/` is answered
    /// with status 404.
    pub fn page(mut self, page: impl Fn(&Activity) -> String + Send + Sync + 'static) -> Self {
        self.served.page = Some(Page(Arc::new(page)));
        self
    }

    /// Accepts requests until `stop` is ready. Then it waits for running answers, at most as long as the
    /// [time limit](Self::timeout). The rest end with an error (503, `shutting_down`); two seconds later, connections
    /// of clients that have not read it are closed.
    pub async fn serve(self, listener: TcpListener, stop: impl Future<Output = ()>) {
        let OneModel { api, embedding, reranking, page } = self.served;
        let embedders = [&embedding, &reranking].into_iter().flatten().count();
        let most = api.engine.capacity() + embedders * MAX_EMBEDDINGS + MORE_CONNECTIONS;
        let shown = api.clone();
        let mut routes = routes(api, (embedding, NO_EMBEDDER), (reranking, NO_RERANKER));
        if let Some(page) = page {
            routes = routes.route("/", get(move || page::show(shown, page)));
        }
        connections::serve(listener, self.access.guard(routes), most, self.waits, stop).await;
    }
}

impl<Served> Server<Served> {
    fn with_defaults(served: Served) -> Self {
        Self { served, access: Access::default(), waits: Waits::default() }
    }

    /// Adds a key. Each request must then contain one of the server's keys (`Authorization: Bearer KEY`, or
    /// `x-api-key: KEY`), except for `/health`. For `GET /`, a browser may also send a key as a password
    /// (`Authorization: Basic`), with any user name. All keys admit to the same: a client with one key can use
    /// everything that clients with other keys can.
    ///
    /// # Errors
    ///
    /// The errors of [`check_key`].
    pub fn key(mut self, key: impl Into<String>) -> io::Result<Self> {
        let key = key.into();
        check_key(&key)?;
        self.access.keys.push(Key(key));
        Ok(self)
    }

    /// Adds a host name under which the server may be reached.
    pub fn allow_host(mut self, name: impl Into<String>) -> Self {
        self.access.hosts.push(name.into());
        self
    }

    /// Permits requests from pages of this site, such as `https://chat.example`.
    pub fn allow_origin(mut self, origin: HeaderValue) -> Self {
        self.access.origins.push(origin);
        self
    }

    /// Sets a time limit for three waits: for the head of a request, for its body, and after the stop for the answers
    /// that are still running. The default is 30 seconds.
    pub const fn timeout(mut self, timeout: Duration) -> Self {
        self.waits.timeout = timeout;
        self
    }

    /// Sets after which time without an event a stream gets a comment, so that no client and no proxy takes it for
    /// dead. `None` sends no comments. The default is 15 seconds.
    pub fn ping(mut self, time: Option<Duration>) -> Self {
        self.waits.ping = time.unwrap_or(NEVER).min(NEVER);
        self
    }

    /// Puts all paths behind this prefix, such as `/llama`, also those of the page and of `/health`.
    ///
    /// # Errors
    ///
    /// The errors of [`check_prefix`].
    pub fn prefix(mut self, prefix: &str) -> io::Result<Self> {
        check_prefix(prefix)?;
        prefix.clone_into(&mut self.access.prefix);
        Ok(self)
    }

    /// Answers `GET /slots` with status 501, and not with the state of the sequences.
    pub const fn without_slots(mut self) -> Self {
        self.access.hides_slots = true;
        self
    }
}

/// Ten years: a time after which no stream still runs.
const NEVER: Duration = Duration::from_secs(10 * 365 * 24 * 60 * 60);

/// The error for a request for which no model is loaded.
const NO_EMBEDDER: &str = "no model for embeddings: `autoplace serve --embed FILE` has one";
const NO_RERANKER: &str = "no model for reranking: `autoplace serve --reranker FILE` has one";

fn routes(api: Api, embedding: Beside, reranking: Beside) -> Router {
    let others: Vec<&str> = [&embedding.0, &reranking.0].into_iter().flatten().map(|model| &*model.name).collect();
    let models = api.models(&others);
    let [chat, complete, message, counted, health] = [(); 5].map(|()| api.clone());
    let [respond, counted_response, kept, deleted] = [(); 4].map(|()| api.clone());
    let chat = move |body| answer(body, move |body| chat.chat(body));
    let complete = move |body| answer(body, move |body| complete.complete(body));
    let message = move |body| answer(body, move |body| message.message(body));
    let count = move |body| reply(body, move |body| counted.count_message_tokens(body));
    let respond = move |body| answer(body, move |body| respond.respond(body));
    let count_response = move |body| reply(body, move |body| counted_response.count_response_tokens(body));
    let kept_response = async move |extract::Path(id): extract::Path<String>| {
        let response = kept.response(&id).map_err(Failed::from)?;
        Ok::<_, Failed>(([(CONTENT_TYPE, "application/json")], response.to_string()))
    };
    let delete_response = async move |extract::Path(id): extract::Path<String>| {
        Ok::<_, Failed>(Json(deleted.delete_response(&id).map_err(Failed::from)?))
    };
    let [listed, applied] = [(); 2].map(|()| api.clone());
    let list_adapters = async move || Json(listed.adapters());
    let apply_adapters = move |body| reply(body, move |body| applied.apply_adapters(body));
    let [metrics, props, slots] = [(); 3].map(|()| api.clone());
    let metrics = async move || Metrics::of_texts(&metrics).response();
    let props = async move || Ok::<_, Failed>(Json(http::blocking(move || props.props()).await?));
    let slots = async move |uri: Uri| show_slots(slots.slots(), &uri);
    let [tokenize, detokenize, template, counted_chat, infill] = [(); 5].map(|()| api.clone());
    let rerank = move |body| embed(reranking, body, RerankRequest::read_for, RerankRequest::compute);
    let embed = move |body| embed(embedding, body, EmbeddingRequest::read_for, EmbeddingRequest::compute);
    let health = async move || Json(json!({"status": "ok", "engine": health.engine.metrics()}));
    let count_chat = move |body| reply(body, move |body| counted_chat.count_chat_tokens(body));
    let routes = [
        ("/v1/chat/completions", post(chat)),
        ("/v1/chat/completions/input_tokens", post(count_chat)),
        ("/v1/completions", post(complete)),
        ("/v1/responses", post(respond)),
        ("/v1/responses/input_tokens", post(count_response)),
        ("/v1/responses/{id}", get(kept_response).delete(delete_response)),
        ("/v1/messages", post(message)),
        ("/v1/messages/count_tokens", post(count)),
        ("/v1/embeddings", post(embed)),
        ("/v1/rerank", post(rerank.clone())),
        ("/v2/rerank", post(rerank.clone())),
        ("/rerank", post(rerank)),
        ("/tokenize", post(move |body| reply(body, move |body| tokenize.tokenize(body)))),
        ("/detokenize", post(move |body| reply(body, move |body| detokenize.detokenize(body)))),
        ("/apply-template", post(move |body| reply(body, move |body| template.apply_template(body)))),
        ("/infill", post(move |body| answer(body, move |body| infill.infill(body)))),
        ("/metrics", get(metrics)),
        ("/props", get(props)),
        ("/slots", get(slots)),
        ("/lora-adapters", get(list_adapters).post(apply_adapters)),
        ("/health", get(health)),
    ];
    let add = |router: Router, (path, methods): (&str, MethodRouter)| {
        debug_assert!(paths::PATHS.iter().any(|(listed, _)| *listed == path), "{path} is missing in `PATHS`");
        router.route(path, methods)
    };
    let router = routes.into_iter().chain(model_routes(models)).fold(Router::new(), add);
    router.fallback(not_found).method_not_allowed_fallback(not_allowed)
}

/// The answer to `GET /slots`. With `fail_on_no_slot`, it is an error if none of the slots is free.
fn show_slots(slots: Value, uri: &Uri) -> Result<Json<Value>, Failed> {
    let is_busy = slots.as_array().is_some_and(|all| all.iter().all(|slot| slot["is_processing"] == true));
    match is_busy && uri.query().is_some_and(|query| query.contains("fail_on_no_slot")) {
        true => Err(Failed::from(ApiError::new(503, "no slot is free").with_code("overloaded"))),
        false => Ok(Json(slots)),
    }
}

/// The routes that answer with this list of models, and with one of its entries.
fn model_routes(models: Value) -> [(&'static str, MethodRouter); 3] {
    let [listed, entries] = [(); 2].map(|()| models.clone());
    let model = async move |extract::Path(name): extract::Path<String>| {
        let is_named = |entry: &&Value| entry["aliases"].as_array().is_some_and(|names| names.contains(&json!(name)));
        let entry = entries["data"].as_array().into_iter().flatten().find(is_named);
        let mut error = ApiError::new(404, format!("the model `{name}` does not exist")).with_code("model_not_found");
        error.param = Some("model".to_owned());
        entry.cloned().map(Json).ok_or(Failed::from(error))
    };
    [
        ("/v1/models", get(async move || Json(models))),
        ("/models", get(async move || Json(listed))),
        ("/v1/models/{*name}", get(model)),
    ]
}

async fn not_found(method: Method, uri: Uri) -> Failed {
    let message = format!("{method} {} does not exist: use {}", uri.path(), paths::listed());
    failed(StatusCode::NOT_FOUND, message)
}

async fn not_allowed(method: Method, uri: Uri) -> Failed {
    let message = format!("{} does not accept {method}: use {}", uri.path(), paths::listed());
    failed(StatusCode::METHOD_NOT_ALLOWED, message)
}

/// If the client disconnects, the response is dropped, and this cancels the answer.
async fn answer(
    body: Body,
    read: impl FnOnce(&[u8]) -> Result<Completion, ApiError> + Send + 'static,
) -> Result<Response, Failed> {
    let (completion, under_way) = http::read(body, read).await?;
    let notes = [("x-autoplace-unenforced", completion.unenforced()), ("x-autoplace-left-out", completion.left_out())];
    let notes = notes.map(|(name, list)| (name, http::list_header(list)));
    let mut response = match completion.is_stream() {
        true => {
            let ping = under_way.ping();
            http::events(completion, under_way.cut_off(), under_way.end(), ping).into_response()
        }
        false => Json(completion.response().await?).into_response(),
    };
    for (name, note) in notes {
        if let Some(note) = note {
            response.headers_mut().insert(name, note);
        }
    }
    Ok(response)
}

/// Answers a request. The thread that parses the request also computes the result.
async fn reply(
    body: Body,
    read: impl FnOnce(&[u8]) -> Result<Value, ApiError> + Send + 'static,
) -> Result<Json<Value>, Failed> {
    let (answer, _) = http::read(body, read).await?;
    Ok(Json(answer))
}
