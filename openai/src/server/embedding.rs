//! A model for vectors or scores: its requests, which are computed one after the other, and what llama-server's clients
//! ask about it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use autoplace::chat::ChatTemplate;
use autoplace::{Embedder, Model};
use axum::Json;
use serde_json::{Value, json};
use tokio::sync::{Mutex, Semaphore};

use super::http::{self, Body, Failed};
use super::metrics::Metrics;
use crate::ApiError;
use crate::vocabulary::{Facts, slots};

/// Requests are computed one after the other, each with all sequences of the context.
const SLOTS: usize = 1;

/// A model for vectors or scores.
#[derive(Debug, Clone)]
pub(super) struct Embedding {
    pub(super) name: String,
    /// Further names that requests may use.
    pub(super) aliases: Vec<String>,
    /// The model of the embedder. Nobody has to wait for the embedder to use it.
    pub(super) model: Model,
    embedder: Arc<Mutex<Embedder>>,
    /// A permit for each request that may wait.
    places: Arc<Semaphore>,
    n_places: usize,
    counts: Arc<Counts>,
}

/// What was computed so far.
#[derive(Debug, Default)]
struct Counts {
    answers: AtomicU64,
    tokens: AtomicU64,
    micros: AtomicU64,
    is_computing: AtomicBool,
}

/// A request that is being computed.
struct Computing<'a>(&'a Counts);

impl<'a> Computing<'a> {
    fn new(counts: &'a Counts) -> Self {
        counts.is_computing.store(true, Ordering::Relaxed);
        Self(counts)
    }
}

impl Drop for Computing<'_> {
    fn drop(&mut self) {
        self.0.is_computing.store(false, Ordering::Relaxed);
    }
}

impl Counts {
    fn add(&self, tokens: usize, took: Duration) {
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        for (total, more) in [(&self.answers, 1), (&self.tokens, tokens as u64), (&self.micros, micros)] {
            total.fetch_add(more, Ordering::Relaxed);
        }
    }

    fn running(&self) -> usize {
        usize::from(self.is_computing.load(Ordering::Relaxed))
    }
}

impl Embedding {
    pub(super) fn new(name: impl Into<String>, embedder: Embedder, n_places: usize) -> Self {
        let model = embedder.model().clone();
        let (embedder, places) = (Arc::new(Mutex::new(embedder)), Arc::new(Semaphore::new(n_places)));
        Self { name: name.into(), aliases: Vec::new(), model, embedder, places, n_places, counts: Arc::default() }
    }

    /// The same model under this name.
    #[cfg(feature = "pool")]
    pub(super) fn named(&self, name: &str) -> Self {
        Self { name: name.to_owned(), ..self.clone() }
    }

    /// The answer to `GET /props`.
    pub(super) fn props(&self) -> Result<Value, ApiError> {
        let template = self.model.header().ok().and_then(|header| ChatTemplate::from_header(header).ok());
        Facts { name: &self.name, slots: SLOTS, sampling: json!({}), template: template.as_ref() }.props(&self.model)
    }

    /// The answer to `GET /slots`.
    pub(super) fn slots(&self) -> Value {
        slots(&self.model, SLOTS, false, self.counts.running())
    }

    pub(super) fn metrics(&self) -> Metrics {
        let count = |total: &AtomicU64| total.load(Ordering::Relaxed);
        let running = self.counts.running();
        let asked = self.n_places.saturating_sub(self.places.available_permits());
        Metrics {
            counters: vec![
                ("llamacpp:prompt_tokens", "Tokens that were computed", count(&self.counts.tokens)),
                ("autoplace:answers", "Answers that have ended", count(&self.counts.answers)),
            ],
            seconds: vec![(
                "llamacpp:prompt_seconds",
                "Seconds of computing answers that have ended",
                count(&self.counts.micros) as f64 / 1e6,
            )],
            gauges: vec![
                ("llamacpp:requests_processing", "Answers that are being computed", running),
                ("llamacpp:requests_deferred", "Answers that wait", asked.saturating_sub(running)),
                ("autoplace:sequences", "Answers that can be computed at once", SLOTS),
            ],
        }
    }
}

/// A model for vectors or scores, if there is one, and the error for requests if there is none.
pub(super) type Beside = (Option<Embedding>, &'static str);

/// Parses the body of a request to the model with a name and other names.
type ReadFor<R> = fn(&[u8], &str, &[String]) -> Result<R, ApiError>;

/// Computes the answer, and returns it with the number of computed tokens.
type AnswerFor<R> = fn(&R, &mut Embedder) -> Result<(Value, usize), ApiError>;

/// Answers a request with the additional model for vectors or scores. If there is no such model, the status is 404,
/// with the error's message.
pub(super) async fn embed<R: Send + 'static>(
    (loaded, missing): Beside,
    body: Body,
    read: ReadFor<R>,
    answer: AnswerFor<R>,
) -> Result<Json<Value>, Failed> {
    let loaded = loaded.ok_or_else(|| ApiError::new(404, missing))?;
    let Embedding { name, aliases, embedder, places, counts, .. } = loaded;
    let _place = places.try_acquire().map_err(|_| {
        let message = format!("as many requests wait for `{name}` as may: ask again later");
        ApiError::new(503, message).with_code("overloaded")
    })?;
    let asked = body.asked.clone().unwrap_or_else(|| name.clone());
    let (request, under_way) = http::read(body, move |body: &[u8]| read(body, &asked, &aliases)).await?;
    // Requests are computed in the order in which they arrive. If the client disconnects while its request waits, the
    // request is not computed.
    let mut embedder = embedder.lock_owned().await;
    let computed = http::blocking(move || {
        let _under_way = under_way;
        let _computing = Computing::new(&counts);
        let begun = Instant::now();
        let (answer, tokens) = answer(&request, &mut embedder)?;
        counts.add(tokens, begun.elapsed());
        Ok(answer)
    });
    let mut computed = computed.await?;
    // The answer in TEI's form is a list, which has no model.
    if let Some(model) = computed.get_mut("model") {
        *model = name.into();
    }
    Ok(Json(computed))
}
