//! The paths that the pool itself answers: the list of its models with their states, loading and unloading, its page,
//! and its counts.

use autoplace_pool::{ModelStatus, Residence};
use axum::Json;
use axum::extract::{Path, Request, State};
use axum::http::Uri;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use serde_json::{Value, json};

use super::forward::{Query, forward, model_of, only, place};
use super::{Pooled, api_error, status_of};
use crate::ApiError;
use crate::api::no_response;
use crate::server::http::{Body, Failed, blocking};
use crate::server::{metrics, page};

pub(super) async fn list(State(pooled): State<Pooled>) -> Json<Value> {
    let models: Vec<Value> = pooled.of.pool.status().iter().map(|model| entry(model, pooled.created)).collect();
    Json(json!({"object": "list", "data": models}))
}

pub(super) async fn one(State(pooled): State<Pooled>, Path(name): Path<String>) -> Result<Json<Value>, Failed> {
    Ok(Json(entry(&status_of(&pooled.of.pool, &name)?, pooled.created)))
}

/// The state of a model. llama-server uses the same words.
fn state(model: &ModelStatus) -> &'static str {
    match model.residence {
        Residence::Loaded | Residence::Moving => "loaded",
        Residence::Loading => "loading",
        // Requests wait for this model, and the model waits for room.
        _ if model.waiting > 0 => "loading",
        _ => "unloaded",
    }
}

/// A model in the form of llama-server's router, with its placement added.
fn entry(model: &ModelStatus, created: u64) -> Value {
    let mut status = json!({"value": state(model)});
    if let Some(failure) = model.failure.as_ref().filter(|_| state(model) == "unloaded") {
        (status["failed"], status["exit_code"], status["error"]) = (true.into(), 1.into(), failure.as_str().into());
    }
    let placement = model.layers.map(|(on_gpus, layers)| {
        json!({
            "layers_on_gpus": on_gpus, "layers": layers, "held": model.held,
            "tokens_per_second": model.tokens_per_second, "process": model.process, "notes": model.notes,
        })
    });
    json!({
        "id": model.name, "object": "model", "created": created, "owned_by": "autoplace",
        "aliases": model.aliases, "tags": [], "status": status, "meta": model.n_ctx.map(|n_ctx| json!({"n_ctx": n_ctx})),
        "placement": placement, "in_use": model.in_use, "waiting": model.waiting,
    })
}

/// The model's name in a request to load or unload it.
fn named(pooled: &Pooled, body: &Body) -> Result<String, ApiError> {
    model_of(body)?.map_or_else(|| only(&pooled.of.pool), Ok)
}

/// Begins to load a model. The answer is sent before the model is loaded. `GET /v1/models` shows the state.
pub(super) async fn load(State(pooled): State<Pooled>, body: Body) -> Result<Json<Value>, Failed> {
    let name = named(&pooled, &body)?;
    let model = status_of(&pooled.of.pool, &name)?;
    if state(&model) != "unloaded" {
        return Err(ApiError::new(400, format!("the model `{name}` is already {}", state(&model))).into());
    }
    let place = place(&pooled)?;
    let wanted = pooled.of.pool.get(&name);
    tokio::spawn(async move {
        // If the load fails, the error is in the model's status.
        let _ = wanted.await;
        drop(place);
    });
    Ok(Json(json!({"success": true})))
}

/// Unloads a model as soon as its texts have ended.
pub(super) async fn unload(State(pooled): State<Pooled>, body: Body) -> Result<Json<Value>, Failed> {
    let name = named(&pooled, &body)?;
    match pooled.of.pool.unload(&name) {
        Ok(true) => Ok(Json(json!({"success": true}))),
        Ok(false) => Err(ApiError::new(400, format!("the model `{name}` is not loaded")).into()),
        Err(error) => Err(api_error(&error).into()),
    }
}

pub(super) async fn response(State(pooled): State<Pooled>, Path(id): Path<String>) -> Result<Response, Failed> {
    let response = pooled.responses.response(&id).ok_or_else(|| no_response(&id))?;
    Ok(([(CONTENT_TYPE, "application/json")], response.to_string()).into_response())
}

pub(super) async fn delete_response(
    State(pooled): State<Pooled>,
    Path(id): Path<String>,
) -> Result<Json<Value>, Failed> {
    match pooled.responses.delete(&id) {
        true => Ok(Json(json!({"id": id, "object": "response", "deleted": true}))),
        false => Err(no_response(&id).into()),
    }
}

/// The properties of one model, or of the router itself in the form of llama-server's router.
pub(super) async fn props(State(pooled): State<Pooled>, request: Request) -> Result<Response, Failed> {
    if Query::new(request.uri()).model.is_some() || only(&pooled.of.pool).is_ok() {
        return forward(State(pooled), request).await;
    }
    Ok(Json(json!({
        "role": "router", "models_autoload": true, "model_alias": "autoplace", "model_path": "none",
        "default_generation_settings": {"params": {}, "n_ctx": 0},
        "build_info": concat!("autoplace ", env!("CARGO_PKG_VERSION")),
    }))
    .into_response())
}

/// The counts of one model if it is loaded, or the counts of the pool. A client may ask for them again and again: that
/// does not keep a model loaded.
pub(super) async fn metrics(State(pooled): State<Pooled>, uri: Uri, request: Request) -> Result<Response, Failed> {
    let mut query = Query::new(&uri);
    if query.model.is_some() {
        query.autoload.get_or_insert(false);
        return super::forward::forward_as(pooled, request, query).await;
    }
    metrics::response(&counts(&pooled.of.pool.status()))
}

fn counts(models: &[ModelStatus]) -> Registry {
    type Count = fn(&ModelStatus) -> i64;
    let counts: [(&str, &str, Count); 4] = [
        ("autoplace:model_loaded", "Whether the model is loaded", |model| i64::from(state(model) == "loaded")),
        ("autoplace:model_requests_waiting", "Requests that wait for the model", |model| model.waiting.into()),
        ("autoplace:model_requests_processing", "Requests that use the model", |model| model.in_use.into()),
        ("autoplace:model_bytes", "Bytes of all devices that the model takes", |model| {
            let bytes = model.held.as_ref().map_or(0, autoplace_pool::HeldBytes::total);
            i64::try_from(bytes).unwrap_or(i64::MAX)
        }),
    ];
    let mut registry = Registry::default();
    for (name, help, count) in counts {
        let family = Family::<Vec<(String, String)>, Gauge>::default();
        for model in models {
            family.get_or_create(&vec![("model".to_owned(), model.name.clone())]).set(count(model));
        }
        registry.register(name, help, family);
    }
    registry
}

/// This request needs no key, so the answer contains only counts and no names.
pub(super) async fn health(State(pooled): State<Pooled>) -> Json<Value> {
    let models = pooled.of.pool.status();
    let loaded = models.iter().filter(|model| state(model) == "loaded").count();
    let (in_use, waiting) =
        models.iter().fold((0, 0), |(in_use, waiting), model| (in_use + model.in_use, waiting + model.waiting));
    Json(json!({
        "status": "ok", "models": models.len(), "loaded": loaded, "in_use": in_use, "waiting": waiting,
    }))
}

pub(super) async fn page(State(pooled): State<Pooled>) -> Result<Response, Failed> {
    let Some(write) = pooled.of.page.clone() else { return Err(ApiError::new(404, "there is no page").into()) };
    let pool = pooled.of.pool.clone();
    let html = blocking(move || Ok(write(&pool))).await?;
    Ok((page::HEADERS, html).into_response())
}
