//! Whether a model generates with fewer threads than usual, because others hold them up.

use std::time::Duration;

use crate::load::GeneratingThreads;
use crate::watch::event::Event;
use crate::watch::latch::{Edge, Latch};
use crate::watch::settings::Settings;

/// What is remembered of a model's threads.
#[derive(Debug, Default)]
pub(super) struct ThreadsRule {
    fewer: Latch,
    usual: u32,
}

impl ThreadsRule {
    /// Told at once: whoever generates has tried it out.
    pub(super) fn step(
        &mut self,
        at: Duration,
        seen: Option<GeneratingThreads>,
        settings: &Settings,
        events: &mut Vec<Event>,
    ) {
        let are_fewer = seen.map(|seen| seen.threads < seen.usual);
        let edge = self
            .fewer
            .update(at, are_fewer, Duration::ZERO, settings.calm);
        self.usual = seen.map_or(self.usual, |seen| seen.usual);
        match (edge, seen) {
            (Some(Edge::Begins), Some(seen)) => events.push(Event::FewerThreads {
                threads: seen.threads,
                usual: seen.usual,
                before: seen.before,
                observed: seen.after,
            }),
            (Some(Edge::Ends), _) => events.push(self.restored()),
            _ => {}
        }
    }

    pub(super) fn end(&mut self, events: &mut Vec<Event>) {
        if self.fewer.end().is_some() {
            events.push(self.restored());
        }
    }

    const fn restored(&self) -> Event {
        Event::ThreadsRestored {
            threads: self.usual,
        }
    }
}
