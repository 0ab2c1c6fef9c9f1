//! The path `/metrics` for Prometheus. A count of the engine has llama-server's name if it means the same there.

use std::fmt;
use std::sync::atomic::AtomicU64;

use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::Api;

/// The content type of OpenMetrics, which Prometheus can read.
pub(super) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The current metrics. In the text, the library adds `_total` to the names of counters.
pub(super) fn text(api: &Api) -> Result<String, fmt::Error> {
    let engine = api.engine.metrics();
    let took = api.totals.took();
    let mut registry = Registry::default();
    for (name, help, value) in [
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
    ] {
        let counter = Counter::<u64>::default();
        counter.inc_by(value);
        registry.register(name, help, counter);
    }
    for (name, help, value) in [
        ("llamacpp:prompt_seconds", "Seconds of prompts of answers that have ended", took.prompt_seconds),
        (
            "llamacpp:tokens_predicted_seconds",
            "Seconds of generation of answers that have ended",
            took.generation_seconds,
        ),
    ] {
        let counter = Counter::<f64, AtomicU64>::default();
        counter.inc_by(value);
        registry.register(name, help, counter);
    }
    for (name, help, value) in [
        ("llamacpp:requests_processing", "Answers that are being computed", engine.running),
        ("llamacpp:requests_deferred", "Answers that wait", engine.queued),
        ("autoplace:sequences", "Answers that can be computed at once", api.sequences()),
    ] {
        let gauge: Gauge = Gauge::default();
        gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
        registry.register(name, help, gauge);
    }
    let mut text = String::new();
    encode(&mut text, &registry)?;
    Ok(text)
}
