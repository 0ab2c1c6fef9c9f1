//! The page at `GET /`, which shows what the server is doing. The program that runs the server writes the page's HTML.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use autoplace::generate::Metrics;
use axum::http::HeaderName;
use axum::http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY, REFRESH};
use axum::response::IntoResponse;
use tokio::time::{Instant, sleep};

use super::http::{self, Failed};
use crate::Api;

/// How long the speed is measured.
const LOOK: Duration = Duration::from_millis(500);
/// How many seconds pass until a browser loads the page again.
const SECONDS: &str = "5";
/// The page may use only its own styles: no script, no resource from elsewhere, no frame.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; \
    frame-ancestors 'none'";

/// The headers with which a page is sent.
pub(super) const HEADERS: [(HeaderName, &str); 5] = [
    (CONTENT_TYPE, "text/html; charset=utf-8"),
    (CONTENT_SECURITY_POLICY, POLICY),
    (CACHE_CONTROL, "no-store"),
    (REFERRER_POLICY, "no-referrer"),
    (REFRESH, SECONDS),
];

/// What a server is doing, for its [page](super::Server::page).
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Activity {
    /// The model's name, as clients know it.
    pub model: String,
    /// Number of texts that can be computed at once.
    pub sequences: usize,
    /// The engine's current counts.
    pub metrics: Metrics,
    /// How many answers have ended.
    pub answers: u64,
    /// Tokens per second that all texts together have generated during the last half second.
    pub tokens_per_second: f64,
}

/// The function that writes the page.
#[derive(Clone)]
pub(super) struct Page(pub(super) Arc<dyn Fn(&Activity) -> String + Send + Sync>);

impl fmt::Debug for Page {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Page")
    }
}

/// Measures for half a second, then writes the page.
pub(super) async fn show(api: Api, Page(write): Page) -> Result<impl IntoResponse, Failed> {
    let (before, begin) = (api.engine.metrics().generated_tokens, Instant::now());
    sleep(LOOK).await;
    let metrics = api.engine.metrics();
    let generated = metrics.generated_tokens.saturating_sub(before);
    let activity = Activity {
        model: api.name().to_owned(),
        sequences: api.sequences(),
        answers: api.totals.took().answers,
        tokens_per_second: generated as f64 / begin.elapsed().as_secs_f64(),
        metrics,
    };
    let html = http::blocking(move || Ok(write(&activity))).await?;
    Ok((HEADERS, html))
}
