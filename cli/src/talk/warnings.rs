//! Shows the library's warnings. In: the events that the library and its workers log with `tracing`. Out: a line on
//! stderr for each warning. llama.cpp's own log is not shown.

use std::fmt::{self, Write};

use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::{Event, Level, Metadata, Subscriber, span};

use super::screen::note_apart;

/// The events of a worker, whose text begins with the target in the worker.
const WORKER: &str = "autoplace::worker::log";
/// What the sentinel has noticed.
const NOTICED: &str = "autoplace::watch::event";

/// Fields of warnings that the program words itself: the context is full, the context is longer than the trained one,
/// texts are computed one after the other.
const WORDED: [&str; 3] = ["forgotten", "trained", "n_seq_max"];

/// Shows warnings from now on. `with_noticed` is false if the caller reports the sentinel's events itself.
pub(super) fn show(with_noticed: bool) {
    // This fails only if warnings are shown already.
    let _ = tracing::subscriber::set_global_default(Warnings { with_noticed });
}

struct Warnings {
    with_noticed: bool,
}

impl Warnings {
    fn is_shown(&self, level: Level, target: &str) -> bool {
        level <= Level::WARN && target.starts_with("autoplace") && (self.with_noticed || target != NOTICED)
    }

    /// The line for an event of this process; `None` if it is not shown.
    fn line(&self, level: Level, target: &str, text: &str) -> Option<String> {
        let (target, text) = match target {
            // Lines without a target are those of an assertion or of a C++ library. The error about the worker's death
            // has them.
            WORKER => text.split_once(": ").filter(|(target, _)| !target.contains(' '))?,
            _ => (target, text),
        };
        let is_worded = |field: &&str| text.contains(&format!(" {field}="));
        if !self.is_shown(level, target) || WORDED.iter().any(is_worded) {
            return None;
        }
        Some(format!("warning: {text}"))
    }
}

impl Subscriber for Warnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        self.is_shown(*metadata.level(), metadata.target())
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        // Workers log as much as this. The last line of a worker that dies should be about its death.
        Some(LevelFilter::WARN)
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        // All spans have the same id, because no line mentions them.
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        let metadata = event.metadata();
        let mut text = Text::default();
        event.record(&mut text);
        if let Some(line) = self.line(*metadata.level(), metadata.target(), &(text.message + &text.fields)) {
            note_apart(line);
        }
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

/// The message of an event, and its other fields.
#[derive(Default)]
struct Text {
    message: String,
    fields: String,
}

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.fields, " {name}={value:?}"),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warnings_of_this_process_and_of_workers_are_shown_unless_the_program_words_them_itself() {
        let shown = Warnings { with_noticed: false };
        let line = |level, target, text: &str| shown.line(level, target, text);
        let is = |text: &str| Some(text.to_owned());
        assert_eq!(line(Level::WARN, "autoplace::store", "no room"), is("warning: no room"));
        assert_eq!(line(Level::ERROR, "autoplace_pool::runtime", "no room"), is("warning: no room"));
        assert_eq!(line(Level::INFO, "autoplace::store", "room"), None);
        for text in ["full forgotten=3 messages=5", "long n_ctx=9 trained=4", "one n_seq_max=1"] {
            assert_eq!(line(Level::WARN, "autoplace::generate", text), None);
        }
        assert_eq!(line(Level::WARN, NOTICED, "hot"), None);
        assert_eq!(Warnings { with_noticed: true }.line(Level::WARN, NOTICED, "hot"), is("warning: hot"));
        for (text, expected) in [
            ("autoplace::load::load_loop: out of memory: x", is("warning: out of memory: x")),
            ("autoplace::load::load_loop: long n_ctx=9 trained=4", None),
            ("ggml::cuda: slow", None),
            ("ggml.c:12: GGML_ASSERT(x) failed", None),
            ("terminate called after throwing: x", None),
        ] {
            assert_eq!(line(Level::WARN, WORKER, text), expected, "{text}");
        }
        assert_eq!(line(Level::INFO, WORKER, "autoplace::load::load_loop: 1 of 2 layers"), None);
    }
}
