//! The routes of a pool. Each request goes to the routes of the model that it names; the model is loaded if necessary.
//!
//! [`forward`] finds the model and forwards the request. [`waiting`] keeps an event stream alive while the requested
//! model is being loaded: it sends comments (SSE lines that begin with a colon). [`listing`] has the paths of the pool
//! itself, which are those of llama-server's router: `GET /v1/models` with each model's state, `POST /models/load` and
//! `POST /models/unload`.

mod forward;
mod listing;
mod waiting;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use autoplace::Embedder;
use autoplace::generate::EngineBuilder;
use autoplace_pool::{Error as PoolError, ModelHandle, ModelStatus, Pool};
use axum::Router;
use axum::routing::{get, post};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

use super::{MORE_CONNECTIONS, Server, connections};
use crate::error::WORKER_DIED;
use crate::responses::Store;
use crate::shape::now;
use crate::{Api, ApiError};

type MakeEngine = Arc<dyn Fn(EngineBuilder) -> EngineBuilder + Send + Sync>;
type MakeApi = Arc<dyn Fn(&ModelHandle, Api) -> Result<Api, ApiError> + Send + Sync>;
type MakeEmbedder = Arc<dyn Fn(Embedder) -> Embedder + Send + Sync>;
type MakePage = Arc<dyn Fn(&Pool) -> String + Send + Sync>;

/// What a [`Server`] for a pool serves: the pool's models.
pub struct ManyModels {
    pool: Pool,
    engine: MakeEngine,
    api: MakeApi,
    embedder: MakeEmbedder,
    page: Option<MakePage>,
    requests: usize,
    streams_after: Duration,
}

impl fmt::Debug for ManyModels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ManyModels").field("pool", &self.pool).finish_non_exhaustive()
    }
}

/// The state that the routes share.
struct Routed {
    of: ManyModels,
    /// Permits for requests that are not answered yet, including those that wait for a model.
    requests: Arc<Semaphore>,
    created: u64,
    /// The number of requests so far, and the stored responses. All models share both.
    numbers: Arc<AtomicU64>,
    responses: Arc<Store>,
}

type Pooled = Arc<Routed>;

impl Server<ManyModels> {
    /// A server for the models of a pool. It has no key, and clients have a time limit of 30 seconds. A request names
    /// its model (`model` in its body, or `?model=` in its path). The pool loads that model, and decides itself when to
    /// unload it.
    pub fn from_pool(pool: Pool) -> Self {
        Self::with_defaults(ManyModels {
            pool,
            engine: Arc::new(|builder| builder),
            api: Arc::new(|_, api| Ok(api)),
            embedder: Arc::new(|embedder| embedder),
            page: None,
            requests: 128,
            streams_after: Duration::from_secs(5),
        })
    }

    /// Sets options for the engine of each model that is loaded.
    pub fn engine(mut self, set: impl Fn(EngineBuilder) -> EngineBuilder + Send + Sync + 'static) -> Self {
        self.served.engine = Arc::new(set);
        self
    }

    /// Sets options for the API of each model that is loaded, such as the model's template. If this fails, the error is
    /// the answer to all requests that wait for the model.
    pub fn api(mut self, set: impl Fn(&ModelHandle, Api) -> Result<Api, ApiError> + Send + Sync + 'static) -> Self {
        self.served.api = Arc::new(set);
        self
    }

    /// Sets options for each embedder that is loaded.
    pub fn embedders(mut self, set: impl Fn(Embedder) -> Embedder + Send + Sync + 'static) -> Self {
        self.served.embedder = Arc::new(set);
        self
    }

    /// Sets the maximum number of requests that are not answered yet, including those that wait for their model. More
    /// requests are refused with status 503. Default: 128.
    pub const fn requests(mut self, most: usize) -> Self {
        self.served.requests = most;
        self
    }

    /// Sets after how much time a stream begins although its model is not loaded yet. It then begins with comments
    /// about the wait. An error before that time is sent as an HTTP status, and a later one as an event. Default: five
    /// seconds.
    pub const fn streams_after(mut self, time: Duration) -> Self {
        self.served.streams_after = time;
        self
    }

    /// Answers `GET /` with this page, as [`Server::page`] does for one model.
    pub fn page(mut self, page: impl Fn(&Pool) -> String + Send + Sync + 'static) -> Self {
        self.served.page = Some(Arc::new(page));
        self
    }

    /// Accepts requests until `stop` is ready. Then it waits for running answers, at most as long as the
    /// [time limit](Self::timeout). The rest end with an error (503, `shutting_down`); two seconds later, connections
    /// of clients that have not read it are closed.
    pub async fn serve(self, listener: TcpListener, stop: impl Future<Output = ()>) {
        let most = self.served.requests + MORE_CONNECTIONS;
        let routes = self.access.guard(routes(self.served));
        connections::serve(listener, routes, most, self.waits, stop).await;
    }
}

fn routes(of: ManyModels) -> Router {
    let has_page = of.page.is_some();
    let requests = Arc::new(Semaphore::new(of.requests));
    let pooled = Routed { of, requests, created: now(), numbers: Arc::default(), responses: Arc::default() };
    let mut routes = Router::new()
        .route("/v1/models", get(listing::list))
        .route("/models", get(listing::list))
        .route("/v1/models/{*name}", get(listing::one))
        .route("/models/load", post(listing::load))
        .route("/models/unload", post(listing::unload))
        .route("/v1/responses/{id}", get(listing::response).delete(listing::delete_response))
        .route("/props", get(listing::props))
        .route("/metrics", get(listing::metrics))
        .route("/health", get(listing::health));
    if has_page {
        routes = routes.route("/", get(listing::page));
    }
    // `POST /v1/responses/input_tokens` also matches the path of a stored response, but that path does not have the
    // method POST. So the request is forwarded here.
    let routes = routes.method_not_allowed_fallback(forward::forward);
    routes.fallback(forward::forward).with_state(Arc::new(pooled))
}

/// Maximum number of model names in an error.
const MAX_NAMES: usize = 20;

fn names(names: &[String]) -> String {
    let mut shown = names.iter().take(MAX_NAMES).map(String::as_str).collect::<Vec<_>>().join(", ");
    if names.len() > MAX_NAMES {
        shown += &format!(", and {} more", names.len() - MAX_NAMES);
    }
    shown
}

fn unknown(name: &str, known: &[String]) -> ApiError {
    let shown: String = name.chars().take(200).collect();
    let message = format!("the model `{shown}` does not exist: there are {}", names(known));
    ApiError { status: 404, ..ApiError::invalid("model", message).with_code("model_not_found") }
}

fn api_error(error: &PoolError) -> ApiError {
    match error {
        PoolError::Unknown { name, known } => unknown(name, known),
        PoolError::NoRoom { .. } | PoolError::TimedOut { .. } => {
            ApiError::new(503, error.to_string()).with_code("overloaded")
        }
        PoolError::Load { source, .. } if matches!(&**source, autoplace::load::Error::Worker(error) if error.is_death()) => {
            ApiError::new(500, error.to_string()).with_code(WORKER_DIED)
        }
        PoolError::Closed => ApiError::new(503, error.to_string()).with_code("shutting_down"),
        _ => ApiError::new(500, error.to_string()).with_code("model_not_loaded"),
    }
}

/// The status of the model with this name or alias.
fn status_of(pool: &Pool, name: &str) -> Result<ModelStatus, ApiError> {
    let mut all = pool.status();
    all.retain(|model| !model.is_replaced);
    let known = || all.iter().map(|model| model.name.clone()).collect::<Vec<String>>();
    let found = all.iter().find(|model| model.name == name || model.aliases.iter().any(|alias| alias == name));
    found.cloned().ok_or_else(|| unknown(name, &known()))
}
