//! Forwards a request to the routes of the model that it names, as soon as that model is loaded.

use std::pin::Pin;
use std::sync::{self, Arc, PoisonError};
use std::task::{Context, Poll};
use std::time::Instant;

use autoplace::generate::Engine;
use autoplace::memory::Pooling;
use autoplace_pool::{ModelHandle, Pool};
use axum::Router;
use axum::body::{Body as HttpBody, Bytes};
use axum::extract::{FromRequest, Request, State};
use axum::http::{HeaderValue, Method, Uri};
use axum::response::{IntoResponse, Response};
use hyper::body::{Frame, SizeHint};
use serde::Deserialize;
use serde_json::Value;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::timeout;
use tower::ServiceExt;

use super::{Pooled, Routed, api_error, names, waiting};
use crate::error::WORKER_DIED;
use crate::server::embedding::Embedding;
use crate::server::http::{Body, Carried, Failed, blocking};
use crate::server::paths::{self, Known};
use crate::server::vectors::embedding_routes;
use crate::server::{not_allowed, not_found, routes};
use crate::timings::Totals;
use crate::{Api, ApiError};

/// Maximum bytes of a body in which the model's name is read without a separate thread.
const SMALL_BODY: usize = 64 << 10;

/// The error if a text model is asked for vectors or scores.
const NOT_AN_EMBEDDER: &str = "this model writes texts: a model with `embed` in the pool's file computes vectors";
const NOT_A_RERANKER: &str = "this model writes texts: a model with `embed = \"rank\"` in the pool's file ranks";

/// A request that was admitted, with everything that is needed to answer it.
pub(super) struct Turn {
    pub(super) pooled: Pooled,
    pub(super) name: String,
    pub(super) begun: Instant,
    /// The request without its body.
    head: axum::http::request::Parts,
    body: Option<Body>,
    /// Whether the request may cause its model to be loaded.
    loads: bool,
    place: OwnedSemaphorePermit,
}

pub(super) async fn forward(State(pooled): State<Pooled>, request: Request) -> Result<Response, Failed> {
    let query = Query::new(request.uri());
    forward_as(pooled, request, query).await
}

/// Forwards a request. `query` are the parameters in its path.
pub(super) async fn forward_as(pooled: Pooled, request: Request, query: Query) -> Result<Response, Failed> {
    // An unknown path is refused here, before any model is loaded.
    match paths::known(request.method(), request.uri().path()) {
        Known::Yes => {}
        Known::OtherMethod => return Err(not_allowed(request.method().clone(), request.uri().clone()).await),
        Known::No => return Err(not_found(request.method().clone(), request.uri().clone()).await),
    }
    let place = place(&pooled)?;
    let (head, body) = request.into_parts();
    let (mut named, mut read) = (Named::default(), None);
    if head.method == Method::POST {
        let request = Request::from_parts(head.clone(), body);
        let (whole, found) = Named::read(Body::from_request(request, &()).await?, query.model.is_some()).await?;
        (read, named) = (Some(whole), found);
    }
    // If the body and the path name different models, the body's name counts, as in llama-server's router.
    let name = match [named.model, query.model].into_iter().flatten().find(|name| !name.is_empty()) {
        Some(name) => name,
        None => only(&pooled.of.pool)?,
    };
    let is_stream = named.stream && waiting::is_stream_path(head.uri.path());
    // By default `GET /slots` does not load the model; every other forwarded request does. `autoload` overrides this.
    let loads = query.autoload.unwrap_or(head.method == Method::POST || head.uri.path() != "/slots");
    let turn = Turn { name, begun: Instant::now(), head, body: read, loads, place, pooled };
    turn.taken(is_stream).await
}

/// A permit for one more request.
pub(super) fn place(pooled: &Pooled) -> Result<OwnedSemaphorePermit, Failed> {
    Arc::clone(&pooled.requests).try_acquire_owned().map_err(|_| {
        let message =
            format!("{} requests are being answered, which is the maximum: ask again later", pooled.of.requests);
        ApiError::new(503, message).with_code("overloaded").into()
    })
}

/// The parameters of a path. llama-server's router has the same ones.
#[derive(Debug, Default)]
pub(super) struct Query {
    pub(super) model: Option<String>,
    pub(super) autoload: Option<bool>,
}

impl Query {
    pub(super) fn new(uri: &Uri) -> Self {
        let mut query = Self::default();
        for (name, value) in uri.query().unwrap_or_default().split('&').filter_map(|pair| pair.split_once('=')) {
            match name {
                "model" => query.model = Some(percent_decoded(value)),
                "autoload" => query.autoload = Some(matches!(value, "true" | "1")),
                _ => {}
            }
        }
        query
    }
}

/// Decodes percent escapes. Clients escape slashes and colons in names.
fn percent_decoded(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        let mut ahead = rest.clone();
        let digits = [ahead.next(), ahead.next()].map(|digit| digit.and_then(|digit| char::from(digit).to_digit(16)));
        match (byte, digits) {
            (b'%', [Some(high), Some(low)]) => {
                bytes.push((high * 16 + low) as u8);
                rest = ahead;
            }
            (b'+', _) => bytes.push(b' '),
            _ => bytes.push(byte),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The fields of a body that the pool's routes need. The model's own routes check all other fields.
#[derive(Debug, Default)]
struct Named {
    model: Option<String>,
    stream: bool,
}

#[derive(Deserialize)]
struct Fields {
    #[serde(default)]
    model: Option<String>,
    #[serde(default)]
    stream: Option<Value>,
}

impl Named {
    /// Reads a body. The body need not be an object if the path names the model.
    async fn read(body: Body, is_named: bool) -> Result<(Body, Self), Failed> {
        if body.bytes().len() <= SMALL_BODY {
            return Ok(Self::read_now(body, is_named)?);
        }
        blocking(move || Self::read_now(body, is_named)).await
    }

    fn read_now(body: Body, is_named: bool) -> Result<(Body, Self), ApiError> {
        match serde_json::from_slice::<Fields>(body.bytes()) {
            Ok(fields) => {
                let stream = fields.stream == Some(Value::Bool(true));
                Ok((body, Self { model: fields.model, stream }))
            }
            Err(_) if is_named => Ok((body, Self::default())),
            Err(error) => Err(ApiError::new(400, format!("the body is not a JSON object that names a model: {error}"))),
        }
    }
}

/// The model's name in a body; `None` if the body does not contain one.
pub(super) fn model_of(body: &Body) -> Result<Option<String>, ApiError> {
    let fields: Result<Fields, _> = serde_json::from_slice(body.bytes());
    let fields = fields.map_err(|error| ApiError::new(400, format!("the body is not a JSON object: {error}")))?;
    Ok(fields.model.filter(|name| !name.is_empty()))
}

/// The name of the pool's model, if it has only one.
pub(super) fn only(pool: &Pool) -> Result<String, ApiError> {
    let mut status = pool.status();
    status.retain(|model| !model.is_replaced);
    if let [model] = &status[..] {
        return Ok(model.name.clone());
    }
    let known: Vec<String> = status.into_iter().map(|model| model.name).collect();
    Err(ApiError::invalid("model", format!("`model` is missing: use one of {}", names(&known))))
}

impl Turn {
    /// Waits for the model, and then answers. If the wait is long and the answer is a stream, the stream begins before
    /// the model is loaded.
    async fn taken(self, is_stream: bool) -> Result<Response, Failed> {
        let pool = &self.pooled.of.pool;
        if !self.loads {
            let Some(handle) = pool.loaded(&self.name).map_err(|error| api_error(&error))? else {
                let message = format!("the model `{}` is not loaded: `?autoload=true` loads it", self.name);
                return Err(ApiError::new(400, message).with_code("model_not_loaded").into());
            };
            return self.answered(handle).await;
        }
        let mut wanted = pool.get(&self.name);
        if is_stream {
            let Ok(outcome) = timeout(self.pooled.of.streams_after, &mut wanted).await else {
                return Ok(waiting::stream(self, wanted));
            };
            return self.answered(outcome.map_err(|error| api_error(&error))?).await;
        }
        let handle = wanted.await.map_err(|error| api_error(&error))?;
        self.answered(handle).await
    }

    pub(super) fn path(&self) -> &str {
        self.head.uri.path()
    }

    /// Waits until the server ends the answers that still run, because it stops. Never ready without a body.
    pub(super) fn cut_off(&self) -> impl Future<Output = ()> + Send + 'static {
        let cut_off = self.body.as_ref().map(|body| body.under_way.cut_off());
        async move {
            match cut_off {
                Some(cut_off) => cut_off.await,
                None => std::future::pending().await,
            }
        }
    }

    /// Waits until the client sends nothing more. Never ready without a body.
    pub(super) fn end(&self) -> impl Future<Output = ()> + Send + 'static {
        let end = self.body.as_ref().map(|body| body.under_way.end());
        async move {
            match end {
                Some(end) => end.await,
                None => std::future::pending().await,
            }
        }
    }

    /// The answer of the model's routes. The model stays loaded until the answer has been sent. If the model's worker
    /// dies before any part of the answer was sent, and does not replace itself, the model is loaded again, and the
    /// request is repeated once.
    pub(super) async fn answered(self, mut handle: ModelHandle) -> Result<Response, Failed> {
        let mut deaths = 0;
        loop {
            let waited = self.begun.elapsed();
            let (mut response, totals) = match self.answer_of(&handle).await {
                Ok(answer) => answer,
                Err(Failed(error)) if is_death(&error) => (Failed(error).into_response(), None),
                Err(error) => return Err(error),
            };
            if self.loads && response.extensions().get().is_some_and(is_death) && deaths < MAX_DEATHS {
                deaths += 1;
                tracing::warn!("{}: the worker died during a request, which is sent again to a new worker", self.name);
                // The pool replaces a dead worker only if nobody has a handle of its model.
                drop((response, handle));
                handle = self.pooled.of.pool.get(&self.name).await.map_err(|error| api_error(&error))?;
                continue;
            }
            if let Ok(seconds) = HeaderValue::from_str(&format!("{:.3}", waited.as_secs_f64())) {
                response.headers_mut().insert("x-autoplace-waited", seconds);
            }
            let kept = Kept { totals, handle, _place: self.place };
            return Ok(response.map(|body| HttpBody::new(Answer { body, _kept: kept })));
        }
    }

    /// The answer that the routes of this loaded model return, and the totals in which its texts are counted.
    async fn answer_of(&self, handle: &ModelHandle) -> Result<(Response, Option<Arc<Totals>>), Failed> {
        let (of, routed) = (handle.clone(), Arc::clone(&self.pooled));
        let routes =
            move || of.attached(|handle| routed.serve_model(handle)).and_then(|model| model.routes(&routed, &of));
        let NamedRoutes { routes, totals, .. } = blocking(routes).await?;
        let mut request = Request::from_parts(self.head.clone(), HttpBody::empty());
        if let Some(body) = &self.body {
            let mut body = body.again();
            body.under_way.kept = Some(handle.clone());
            body.asked = Some(self.name.clone());
            request.extensions_mut().insert(Carried::new(body));
        }
        let Ok(response) = routes.oneshot(request).await;
        Ok((response, totals))
    }
}

/// Maximum number of times that a request is repeated because the model's worker has died. If a request kills its
/// workers, it is not repeated more often: each attempt may cost several workers, and these workers may be answering
/// other requests.
const MAX_DEATHS: u32 = 1;

fn is_death(error: &ApiError) -> bool {
    error.code == Some(WORKER_DIED)
}

/// What serves a loaded model. The pool drops this value before it unloads the model.
struct ServedModel {
    computes: Computes,
    /// The routes for the last request. A loaded model may get another name or template.
    routes: sync::Mutex<Option<NamedRoutes>>,
}

/// What computes the answers of a loaded model. A model has only one of these.
enum Computes {
    Texts(Engine),
    Vectors(Embedding, Pooling),
}

/// The routes that serve a loaded model under this name, with this template of its specification.
#[derive(Clone)]
struct NamedRoutes {
    name: String,
    template: Option<String>,
    routes: Router,
    totals: Option<Arc<Totals>>,
}

impl NamedRoutes {
    fn are_for(&self, handle: &ModelHandle) -> bool {
        self.name == handle.name() && self.template == handle.specification().template
    }
}

impl ServedModel {
    fn routes(&self, routed: &Routed, handle: &ModelHandle) -> Result<NamedRoutes, ApiError> {
        let mut last = self.routes.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(routes) = last.as_ref().filter(|routes| routes.are_for(handle)) {
            return Ok(routes.clone());
        }
        let routes = routed.routes_of(&self.computes, handle)?;
        *last = Some(routes.clone());
        Ok(routes)
    }
}

impl Routed {
    fn serve_model(&self, handle: &ModelHandle) -> Result<ServedModel, ApiError> {
        let named = |error: ApiError| ApiError { message: format!("{}: {}", handle.name(), error.message), ..error };
        let computes = match handle.placement().context.embeddings {
            Some(pooling) => {
                let embedder = (self.of.embedder)(handle.embedder().map_err(|error| named(error.into()))?);
                // The pool has its own maximum of waiting requests.
                Computes::Vectors(Embedding::new(handle.name(), embedder, self.of.requests), pooling)
            }
            None => {
                let engine = (self.of.engine)(Engine::builder(handle)).start();
                let of_model = |error| named(ApiError { param: None, ..ApiError::of_generation(&error, "") });
                Computes::Texts(engine.map_err(of_model)?)
            }
        };
        Ok(ServedModel { computes, routes: sync::Mutex::default() })
    }

    fn routes_of(&self, computes: &Computes, handle: &ModelHandle) -> Result<NamedRoutes, ApiError> {
        let (routes, totals) = match computes {
            Computes::Vectors(embedding, pooling) => {
                (embedding_routes(embedding.named(handle.name()), *pooling == Pooling::Rank), None)
            }
            Computes::Texts(engine) => {
                let api = Api::new(handle, engine, handle.name()).sharing(&self.numbers, &self.responses, self.created);
                let api = (self.of.api)(handle, api)?;
                let totals = Some(Arc::clone(&api.totals));
                (routes(api, (None, NOT_AN_EMBEDDER), (None, NOT_A_RERANKER)), totals)
            }
        };
        let (name, template) = (handle.name().to_owned(), handle.specification().template.clone());
        Ok(NamedRoutes { name, template, routes, totals })
    }
}

/// What an answer keeps alive until it has been sent.
struct Kept {
    totals: Option<Arc<Totals>>,
    handle: ModelHandle,
    _place: OwnedSemaphorePermit,
}

impl Drop for Kept {
    fn drop(&mut self) {
        for (prompt, reply) in self.totals.iter().flat_map(|totals| totals.take_ended()) {
            self.handle.ended(prompt, reply);
        }
    }
}

/// The body of an answer, and what it keeps alive. Fields are dropped in their order: the body must be dropped before
/// the handle of its model.
struct Answer {
    body: HttpBody,
    _kept: Kept,
}

impl hyper::body::Body for Answer {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
