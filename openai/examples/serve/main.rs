//! Serves a model by OpenAI's API: `/v1/chat/completions`, `/v1/completions`, `/v1/embeddings`, `/v1/models`, and
//! `/health`. It listens on this machine alone, unless `--host` says otherwise: then it wants a key. Each request is a
//! line of JSON on stderr. Ctrl-C lets what runs finish, a second one ends it.
//!
//!     cargo run --release --example serve -- -m model.gguf --embed nomic-embed.gguf

mod access;
mod connections;
mod http;

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use access::Access;
use autoplace::generate::Engine;
use autoplace::memory::Pooling;
use autoplace::plan::Request;
use autoplace::{Embedder, Isolation, Model, OnDeath, WorkerProcess, load};
use autoplace_examples::{DEMO_MODEL, read_template};
use autoplace_openai::{Api, ApiError, Completion, EmbeddingRequest};
use axum::extract;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use clap::Parser;
use http::{Body, Failed, failed};
use serde_json::{Value, json};
use tokio::sync::Mutex;

/// Serves a local model, placed so that it fits, by OpenAI's API.
#[derive(Parser)]
#[command(version)]
struct Args {
    /// GGUF file; of a split model, the first part
    #[arg(short, long, value_name = "FILE", default_value = DEMO_MODEL, hide_default_value = true)]
    model: PathBuf,
    /// What clients call it [default: the file's name]
    #[arg(long, value_name = "NAME")]
    alias: Option<String>,
    /// GGUF file of a model for embeddings, which goes by its file's name
    #[arg(long, value_name = "FILE")]
    embed: Option<PathBuf>,
    /// Family or file of the chat template [default: the model's own]
    #[arg(long, value_name = "NAME|FILE")]
    template: Option<String>,
    /// Address to listen on
    #[arg(long, default_value = "127.0.0.1")]
    host: IpAddr,
    /// Port to listen on; 0 takes a free one
    #[arg(long, default_value_t = 8080)]
    port: u16,
    /// Answers that are generated at once
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=64))]
    at_once: u32,
    /// Answers that wait while others are generated; what is more is refused
    #[arg(long, value_name = "N", default_value_t = 64)]
    queue: usize,
    /// Tokens of context of each answer
    #[arg(long, value_name = "N", default_value_t = 4096, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    ctx: u32,
    /// Threads to compute with [default: as many as the CPU has cores]
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=512))]
    threads: Option<u32>,
    /// Run each model in a process of its own, in whose place another one comes where it dies
    #[arg(long)]
    isolated: bool,
    /// How long such a process may show no sign of life before another one takes its place
    #[arg(long, value_name = "SECONDS", default_value_t = 600, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    silent: u64,
    /// What a client has to send the head of a request, and then its body; and answers to end after Ctrl-C
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    timeout: u64,
    #[command(flatten)]
    access: Access,
}

/// Connections beyond those that are being answered or wait for it: clients that are about to ask, and `/health`.
/// With the default of the others, all fit a limit of 256 open files.
const MORE_CONNECTIONS: usize = 64;

/// A model for embeddings, and what it is called.
type Embedding = (String, Arc<Mutex<Embedder>>);

fn main() -> ExitCode {
    autoplace::worker_main();
    autoplace_examples::run(|args| {
        let runtime = tokio::runtime::Runtime::new()?;
        runtime.block_on(serve(args))?;
        Ok(ExitCode::SUCCESS)
    })
}

async fn serve(args: Args) -> anyhow::Result<()> {
    let key = args.access.key(args.host)?;
    // The smaller one first: the other takes what is left.
    let isolation = if args.isolated {
        let worker = WorkerProcess::own_executable().timeout(Duration::from_secs(args.silent));
        Isolation::Process(worker.on_death(OnDeath::Resume { attempts: 2 }))
    } else {
        Isolation::None
    };
    let embedding = args.embed.as_deref().map(|it| load_embedding(it, &isolation)).transpose()?;
    let request = Request::new().n_seq_max(args.at_once).n_ctx(args.ctx.saturating_mul(args.at_once));
    let mut model = Model::builder(&args.model).request(request).isolation(isolation);
    if let Some(threads) = args.threads {
        model = model.n_threads(threads);
    }
    let model = model.load()?;
    // What a slow client has not read yet is kept: not too much of it.
    let engine = Engine::builder(&model).queue(args.queue).ahead(256);
    let engine = engine.start()?;
    let name = args.alias.unwrap_or_else(|| name_of(&args.model));
    let mut api = Api::new(&model, &engine, name);
    if let Some(template) = &args.template {
        api = api.template(read_template(template)?);
    }
    let models = api.models(embedding.as_ref().map(|it| &*it.0).as_slice());
    let entries = models.clone();
    let model = async move |extract::Path(name): extract::Path<String>| {
        let entry = entries["data"].as_array().into_iter().flatten().find(|it| it["id"] == name);
        let mut error = ApiError::new(404, format!("the model `{name}` does not exist")).with_code("model_not_found");
        error.param = Some("model".to_owned());
        entry.cloned().map(Json).ok_or(Failed::from(error))
    };
    let chat = {
        let api = api.clone();
        move |body| answer(body, move |body| api.chat(body))
    };
    let complete = move |body| answer(body, move |body| api.complete(body));
    let most = engine.capacity() + MORE_CONNECTIONS;
    let health = async move || Json(json!({"status": "ok", "engine": engine.metrics()}));
    let routes = Router::new()
        .route("/v1/chat/completions", post(chat))
        .route("/v1/completions", post(complete))
        .route("/v1/embeddings", post(move |body| embed(embedding, body)))
        .route("/v1/models", get(async move || Json(models)))
        .route("/v1/models/{*name}", get(model))
        .route("/health", get(health))
        .fallback(async || failed(StatusCode::NOT_FOUND, "there is nothing at this path"))
        .method_not_allowed_fallback(async || failed(StatusCode::METHOD_NOT_ALLOWED, "this path takes another method"));
    let routes = args.access.guard(routes, key);
    let address = SocketAddr::new(args.host, args.port);
    http::serve(address, routes, most, Duration::from_secs(args.timeout)).await
}

/// With the pooling that the model names, or the mean.
fn load_embedding(path: &Path, isolation: &Isolation) -> anyhow::Result<Embedding> {
    let load = |pooling| Model::builder(path).embeddings(pooling).isolation(isolation.clone()).load();
    let model = match load(Pooling::Model) {
        Err(load::Error::NoPooling { .. }) => load(Pooling::Mean),
        loaded => loaded,
    };
    Ok((name_of(path), Arc::new(Mutex::new(model?.embedder()?))))
}

fn name_of(path: &Path) -> String {
    let stem = path.file_stem().unwrap_or(path.as_os_str());
    stem.to_string_lossy().into_owned()
}

/// Dropping the response, as happens when the client has gone, cancels the answer.
async fn answer(
    body: Body,
    read: impl FnOnce(&[u8]) -> Result<Completion, ApiError> + Send + 'static,
) -> Result<Response, Failed> {
    let (completion, under_way) = http::read(body, read).await?;
    under_way.is_answered();
    Ok(match completion.is_stream() {
        true => http::events(completion).into_response(),
        false => Json(completion.response().await?).into_response(),
    })
}

async fn embed(loaded: Option<Embedding>, body: Body) -> Result<Json<Value>, Failed> {
    let none = || ApiError::new(404, "no model for embeddings: start with `--embed`");
    let (name, embedder) = loaded.ok_or_else(none)?;
    let read = move |body: &[u8]| EmbeddingRequest::read(body, &name);
    let (request, under_way) = http::read(body, read).await?;
    // In the order of their coming; who leaves meanwhile is not computed.
    let mut embedder = embedder.lock_owned().await;
    under_way.is_answered();
    Ok(Json(http::blocking(move || request.answer(&mut embedder)).await?))
}
