//! The page that `serve` shows in a browser at `/`. It contains the server's activity, the last events of the sentinel,
//! and a picture of the plan. It is a single HTML document without a script.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use autoplace::Model;
use autoplace::watch::Sentinel;
use autoplace_openai::server::Activity;

use crate::picture;

/// Maximum number of events on the page.
const MAX_EVENTS: usize = 10;

type Events = Arc<Mutex<VecDeque<(Instant, String)>>>;

pub(super) struct Page {
    model: Model,
    begin: Instant,
    events: Events,
    /// The sentinel, or the reason why there is none.
    sentinel: Mutex<Result<Sentinel, String>>,
}

impl Page {
    /// Begins to watch the model.
    pub(super) fn new(model: &Model) -> Self {
        let events = Events::default();
        let kept = Arc::clone(&events);
        let keep = move |event: &autoplace::watch::Event| {
            let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
            kept.truncate(MAX_EVENTS - 1);
            kept.push_front((Instant::now(), event.to_string()));
        };
        let sentinel = Sentinel::builder().on_event(keep).watch(model).map_err(|error| error.to_string());
        Self { model: model.clone(), begin: Instant::now(), events, sentinel: Mutex::new(sentinel) }
    }

    pub(super) fn html(&self, activity: &Activity) -> String {
        let plan = self.model.placement();
        let metrics = &activity.metrics;
        let row = |name: &str, value: String| vec![name.to_owned(), value];
        let now = vec![
            row("autoplace serve", env!("CARGO_PKG_VERSION").to_owned()),
            row("model for clients", activity.model.clone()),
            row("running for", since(self.begin)),
            row("speed now", format!("{:.1} tok/s", activity.tokens_per_second)),
            row("answers under way", format!("{} of {}", metrics.running, activity.sequences)),
            row("answers that wait", metrics.queued.to_string()),
            row("answers given", activity.answers.to_string()),
            row("tokens written", metrics.generated_tokens.to_string()),
            row("prompt tokens", metrics.prompt_tokens.to_string()),
            row("of these in the cache", metrics.cached_tokens.to_string()),
        ];
        let events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        let mut said: Vec<_> =
            events.iter().map(|(when, event)| row(&format!("{} ago", since(*when)), event.clone())).collect();
        drop(events);
        match &*self.sentinel.lock().unwrap_or_else(PoisonError::into_inner) {
            Err(error) => said.push(row("the sentinel does not watch", error.clone())),
            Ok(sentinel) if !sentinel.is_watching() => said.push(row("the sentinel", "has ended".to_owned())),
            Ok(_) if said.is_empty() => said.push(row("the sentinel", "nothing to report".to_owned())),
            Ok(_) => {}
        }
        said.insert(0, row("the sentinel's last events", String::new()));
        picture::plan_page(&activity.model, &plan, &[now, said])
    }
}

/// The time that has passed since an instant, in the largest fitting unit.
fn since(begin: Instant) -> String {
    match begin.elapsed().as_secs() {
        seconds @ 0..60 => format!("{seconds} s"),
        seconds @ 60..3600 => format!("{} min", seconds / 60),
        seconds => format!("{} h", seconds / 3600),
    }
}
