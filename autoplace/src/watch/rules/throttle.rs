//! Whether a GPU's clocks are held down.

use std::time::Duration;

use crate::machine::ThrottleReason;
use crate::watch::event::{Cause, Event};
use crate::watch::latch::{Edge, Latch};
use crate::watch::sample::{DeviceSample, WatchedDevice};
use crate::watch::settings::Settings;

/// What is remembered of a GPU's clocks.
#[derive(Debug, Default)]
pub(super) struct ThrottleRule {
    fault: Latch,
    /// What holds them down now.
    reasons: Vec<ThrottleReason>,
    temperature: Option<u32>,
}

impl ThrottleRule {
    pub(super) fn step(
        &mut self,
        at: Duration,
        watched: &WatchedDevice,
        seen: &DeviceSample,
        settings: &Settings,
        events: &mut Vec<Event>,
    ) {
        self.reasons.clear();
        self.reasons.extend(seen.throttle.iter().flatten());
        self.temperature = seen.temperature;
        let held = seen.throttle.as_deref();
        let held = held.map(|reasons| reasons.iter().any(|reason| reason.is_fault()));
        match self
            .fault
            .update(at, held, settings.patience, settings.calm)
        {
            Some(Edge::Begins) => events.push(Event::Throttled {
                device: watched.device.clone(),
                reasons: self.faults().collect(),
                temperature: self.temperature,
            }),
            Some(Edge::Ends) => events.push(self.unthrottled(watched)),
            None => {}
        }
    }

    pub(super) fn end(&mut self, watched: &WatchedDevice, events: &mut Vec<Event>) {
        if self.fault.end().is_some() {
            events.push(self.unthrottled(watched));
        }
    }

    /// That clocks are held down now, by a fault or by the power limit.
    pub(super) fn cause(&self, watched: &WatchedDevice, by_fault: bool) -> Option<Cause> {
        let reasons: Vec<ThrottleReason> = if by_fault {
            self.faults().collect()
        } else {
            self.reasons.clone()
        };
        (!reasons.is_empty()).then(|| Cause::Throttled {
            device: watched.device.clone(),
            reasons,
        })
    }

    fn faults(&self) -> impl Iterator<Item = ThrottleReason> {
        self.reasons
            .iter()
            .copied()
            .filter(|reason| reason.is_fault())
    }

    fn unthrottled(&self, watched: &WatchedDevice) -> Event {
        Event::Unthrottled {
            device: watched.device.clone(),
            temperature: self.temperature,
        }
    }
}
