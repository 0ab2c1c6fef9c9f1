//! The path `/metrics` for Prometheus. A count has llama-server's name if it means the same there.

use std::fmt;
use std::sync::atomic::AtomicU64;

use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::http::Failed;
use crate::{Api, ApiError};

/// The content type of OpenMetrics, which Prometheus can read.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// A name, its help, and a value.
type Row<T> = (&'static str, &'static str, T);

/// The current values of a model. In the text, the library adds `_total` to the names of counters.
#[derive(Debug)]
pub(super) struct Metrics {
    pub(super) counters: Vec<Row<u64>>,
    pub(super) seconds: Vec<Row<f64>>,
    pub(super) gauges: Vec<Row<usize>>,
}

impl Metrics {
    /// The values of a model that generates.
    pub(super) fn of_texts(api: &Api) -> Self {
        let engine = api.engine.metrics();
        let took = api.totals.took();
        Self {
            counters: vec![
                (
                    "llamacpp:prompt_tokens",
                    "Prompt tokens that were computed, without those that the cache held",
                    engine.prompt_tokens.saturating_sub(engine.cached_tokens),
                ),
                ("llamacpp:prompt_tokens_cached", "Prompt tokens that the cache held", engine.cached_tokens),
                ("llamacpp:tokens_predicted", "Generated tokens", engine.generated_tokens),
                ("llamacpp:spec_decode_num_draft_tokens", "Draft tokens", took.drafted),
                ("llamacpp:spec_decode_num_accepted_tokens", "Draft tokens that were accepted", took.accepted),
                ("autoplace:answers", "Answers that have ended", took.answers),
            ],
            seconds: vec![
                ("llamacpp:prompt_seconds", "Seconds of prompts of answers that have ended", took.prompt_seconds),
                (
                    "llamacpp:tokens_predicted_seconds",
                    "Seconds of generation of answers that have ended",
                    took.generation_seconds,
                ),
            ],
            gauges: vec![
                ("llamacpp:requests_processing", "Answers that are being computed", engine.running),
                ("llamacpp:requests_deferred", "Answers that wait", engine.queued),
                ("autoplace:sequences", "Answers that can be computed at once", api.sequences()),
            ],
        }
    }

    pub(super) fn response(self) -> Result<Response, Failed> {
        let mut registry = Registry::default();
        for (name, help, value) in self.counters {
            let counter = Counter::<u64>::default();
            counter.inc_by(value);
            registry.register(name, help, counter);
        }
        for (name, help, value) in self.seconds {
            let counter = Counter::<f64, AtomicU64>::default();
            counter.inc_by(value);
            registry.register(name, help, counter);
        }
        for (name, help, value) in self.gauges {
            let gauge: Gauge = Gauge::default();
            gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
            registry.register(name, help, gauge);
        }
        response(&registry)
    }
}

/// The values of a registry as a response.
pub(super) fn response(registry: &Registry) -> Result<Response, Failed> {
    let mut text = String::new();
    encode(&mut text, registry).map_err(|error: fmt::Error| ApiError::new(500, error.to_string()))?;
    Ok(([(CONTENT_TYPE, OPEN_METRICS)], text).into_response())
}
