//! Whether a GPU has too little free, or more than at first.

use std::time::Duration;

use crate::watch::event::Event;
use crate::watch::latch::{Edge, Latch};
use crate::watch::sample::{DeviceSample, WatchedDevice};
use crate::watch::settings::Settings;

/// What is remembered of a GPU's free memory.
#[derive(Debug, Default)]
pub(super) struct MemoryRule {
    pressure: Latch,
    room: Latch,
    first: Option<u64>,
    last: u64,
    /// What this process had in the host's memory at first, and has now.
    on_host: Option<(u64, u64)>,
}

impl MemoryRule {
    /// Whether there is too little.
    pub(super) const fn is_pressed(&self) -> bool {
        self.pressure.is_on()
    }

    /// Whether its driver has moved memory to the host, or is about to.
    pub(super) fn has_spilled(&self, watched: &WatchedDevice) -> bool {
        let moved = self
            .on_host
            .map_or(0, |(first, now)| now.saturating_sub(first));
        watched.spills && (self.is_pressed() || moved >= watched.notable)
    }

    pub(super) fn step(
        &mut self,
        at: Duration,
        watched: &WatchedDevice,
        seen: &DeviceSample,
        settings: &Settings,
        events: &mut Vec<Event>,
    ) {
        if let Some(now) = seen.on_host {
            self.on_host = Some((self.on_host.map_or(now, |(first, _)| first), now));
        }
        let free = seen.free;
        if let Some(free) = free {
            let first = watched.left.map_or(free, |left| left.min(free));
            self.first = self.first.or(Some(first));
            self.last = free;
        }
        let (calm, patience) = (settings.calm, settings.patience);
        // A quarter more than what it takes to begin is what it takes to end.
        let enough = if self.pressure.is_on() {
            watched.needed.saturating_add(watched.needed / 4)
        } else {
            watched.needed
        };
        let pressed = free.map(|free| free < enough);
        // An allocation may fail at any moment: no patience.
        match self.pressure.update(at, pressed, Duration::ZERO, calm) {
            Some(Edge::Begins) => events.push(Event::MemoryPressure {
                device: watched.device.clone(),
                free: self.last,
                needed: watched.needed,
            }),
            Some(Edge::Ends) => events.push(self.relieved(watched)),
            None => {}
        }
        let Some((more, before)) = watched.room.zip(self.first) else {
            return;
        };
        let more = if self.room.is_on() { more / 2 } else { more };
        let roomy = free.map(|free| free > before && free - before >= more);
        match self.room.update(at, roomy, patience, calm) {
            Some(Edge::Begins) => events.push(Event::RoomGained {
                device: watched.device.clone(),
                free: self.last,
                before,
            }),
            Some(Edge::Ends) => events.push(self.room_lost(watched)),
            None => {}
        }
    }

    pub(super) fn end(&mut self, watched: &WatchedDevice, events: &mut Vec<Event>) {
        if self.pressure.end().is_some() {
            events.push(self.relieved(watched));
        }
        if self.room.end().is_some() {
            events.push(self.room_lost(watched));
        }
    }

    fn relieved(&self, watched: &WatchedDevice) -> Event {
        Event::MemoryRelieved {
            device: watched.device.clone(),
            free: self.last,
        }
    }

    fn room_lost(&self, watched: &WatchedDevice) -> Event {
        Event::RoomLost {
            device: watched.device.clone(),
            free: self.last,
        }
    }
}
