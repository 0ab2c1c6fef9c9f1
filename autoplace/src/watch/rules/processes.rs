//! Which other programs came to a GPU, or took more of it.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::machine::GpuProcess;
use crate::watch::event::{Cause, Event};
use crate::watch::latch::{Edge, Latch};
use crate::watch::sample::WatchedDevice;
use crate::watch::settings::Settings;

/// Programs of one GPU that are told of at once; those beyond are not.
const MOST: usize = 16;

/// What is remembered of the programs on a GPU.
#[derive(Debug, Default)]
pub(super) struct ProcessRule {
    /// What each held when they were first looked for: those are there by right. `None` before that.
    first: Option<BTreeMap<u32, u64>>,
    /// Those that took notably more since.
    since: BTreeMap<u32, Taker>,
}

#[derive(Debug)]
struct Taker {
    name: Option<String>,
    latch: Latch,
}

impl ProcessRule {
    pub(super) fn step(
        &mut self,
        at: Duration,
        watched: &WatchedDevice,
        seen: &[GpuProcess],
        settings: &Settings,
        events: &mut Vec<Event>,
    ) {
        // What a driver does not count cannot have grown.
        let held: BTreeMap<u32, u64> = seen
            .iter()
            .filter_map(|process| Some((process.pid, process.bytes?)))
            .collect();
        let Some(first) = &self.first else {
            self.first = Some(held);
            return;
        };
        let taken = |pid: u32| {
            let before = first.get(&pid).copied().unwrap_or(0);
            held.get(&pid)
                .map_or(0, |bytes| bytes.saturating_sub(before))
        };
        let notable = watched.notable.max(1);
        for process in seen {
            let is_new = !self.since.contains_key(&process.pid);
            if is_new && self.since.len() < MOST && taken(process.pid) >= notable {
                let taker = Taker {
                    name: process.name.clone(),
                    latch: Latch::default(),
                };
                self.since.insert(process.pid, taker);
            }
        }
        self.since.retain(|&pid, taker| {
            let limit = if taker.latch.is_on() {
                notable / 2
            } else {
                notable
            };
            let holds = taken(pid) >= limit.max(1);
            // Looked for seldom enough to need no patience.
            match taker
                .latch
                .update(at, Some(holds), Duration::ZERO, settings.calm)
            {
                Some(Edge::Begins) => events.push(Event::OtherProcess {
                    name: taker.name.clone(),
                    pid,
                    bytes: held.get(&pid).copied().unwrap_or(0),
                    device: watched.device.clone(),
                }),
                Some(Edge::Ends) => events.push(gone(watched, pid, taker)),
                None => {}
            }
            taker.latch.is_on()
        });
    }

    pub(super) fn end(&mut self, watched: &WatchedDevice, events: &mut Vec<Event>) {
        for (pid, mut taker) in std::mem::take(&mut self.since) {
            if taker.latch.end().is_some() {
                events.push(gone(watched, pid, &taker));
            }
        }
    }

    /// That another program came or took more.
    pub(super) fn cause(&self, watched: &WatchedDevice) -> Option<Cause> {
        let (&pid, taker) = self.since.iter().next()?;
        Some(Cause::OtherProcess {
            name: taker.name.clone(),
            pid,
            device: watched.device.clone(),
        })
    }
}

fn gone(watched: &WatchedDevice, pid: u32, taker: &Taker) -> Event {
    Event::OtherProcessGone {
        name: taker.name.clone(),
        pid,
        device: watched.device.clone(),
    }
}
