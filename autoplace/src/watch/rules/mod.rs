//! From samples to events. Here are no clock, no thread and no driver: samples flow in with the moment of each,
//! events flow out.

mod memory;
mod processes;
mod speed;
mod threads;
mod throttle;

#[cfg(test)]
mod tests;

use std::time::Duration;

use self::memory::MemoryRule;
use self::processes::ProcessRule;
use self::speed::SpeedRule;
use self::threads::ThreadsRule;
use self::throttle::ThrottleRule;
use super::event::{Cause, Event};
use super::sample::{DeviceSample, HostSample, Sample, Watched, WatchedDevice};
use super::settings::Settings;

/// The share of time in which threads wait for a core that explains a slowdown, in percent.
const BUSY_HOST: f32 = 20.0;
/// The share of time in which threads wait for memory that explains a slowdown, in percent.
const SHORT_HOST: f32 = 5.0;

/// Everything that is remembered from one sample to the next.
#[derive(Debug)]
pub(super) struct Rules {
    settings: Settings,
    devices: Vec<DeviceRules>,
    speed: SpeedRule,
    threads: ThreadsRule,
}

#[derive(Debug)]
struct DeviceRules {
    watched: WatchedDevice,
    memory: MemoryRule,
    throttle: ThrottleRule,
    processes: ProcessRule,
}

impl Rules {
    pub(super) fn new(settings: Settings, watched: Watched) -> Self {
        let devices = watched.devices.into_iter().map(|mut watched| {
            watched.needed = settings.needed.unwrap_or(watched.needed);
            DeviceRules {
                watched,
                memory: MemoryRule::default(),
                throttle: ThrottleRule::default(),
                processes: ProcessRule::default(),
            }
        });
        Self {
            devices: devices.collect(),
            speed: SpeedRule::new(watched.depth_cost),
            threads: ThreadsRule::default(),
            settings,
        }
    }

    /// Takes a sample. `at`: its moment, never before that of the last one.
    pub(super) fn step(&mut self, at: Duration, sample: &Sample, events: &mut Vec<Event>) {
        let Self {
            settings,
            devices,
            speed,
            threads,
        } = self;
        threads.step(at, sample.threads, settings, events);
        let silent = DeviceSample::default();
        for (n, device) in devices.iter_mut().enumerate() {
            let seen = sample.devices.get(n).unwrap_or(&silent);
            let DeviceRules {
                watched,
                memory,
                throttle,
                processes,
            } = device;
            memory.step(at, watched, seen, settings, events);
            throttle.step(at, watched, seen, settings, events);
            if let Some(seen) = &seen.processes {
                processes.step(at, watched, seen, settings, events);
            }
        }
        speed.step(sample.generated, settings, events, |depth| {
            likely_cause(devices, &sample.host, depth)
        });
    }

    /// Whether to look for other programs sooner than usual: they may be why something is about to be told.
    pub(super) fn wants_processes(&self) -> bool {
        self.speed.is_suspected() || self.devices.iter().any(|device| device.memory.is_pressed())
    }

    /// Ends what has begun: what is watched is no more, or is another.
    pub(super) fn end(&mut self, events: &mut Vec<Event>) {
        for device in &mut self.devices {
            let watched = &device.watched;
            device.memory.end(watched, events);
            device.throttle.end(watched, events);
            device.processes.end(watched, events);
        }
        self.speed.end(events);
        self.threads.end(events);
    }
}

/// Why it may be slow, the surest reason first.
fn likely_cause(devices: &[DeviceRules], host: &HostSample, depth: Option<Cause>) -> Cause {
    let over = |pressure: Option<f32>, limit| pressure.filter(|&pressure| pressure >= limit);
    let fault = || {
        devices
            .iter()
            .find_map(|device| device.throttle.cause(&device.watched, true))
    };
    let spill = || {
        let full = |device: &&DeviceRules| device.memory.has_spilled(&device.watched);
        devices.iter().find(full).map(|device| Cause::Spill {
            device: device.watched.device.clone(),
        })
    };
    let process = || {
        devices
            .iter()
            .find_map(|device| device.processes.cause(&device.watched))
    };
    let memory = || {
        let pressure = over(host.memory_pressure, SHORT_HOST)?;
        Some(Cause::HostMemory { pressure })
    };
    let busy = || {
        let pressure = over(host.cpu_pressure, BUSY_HOST)?;
        Some(Cause::HostBusy { pressure })
    };
    let power = || {
        devices
            .iter()
            .find_map(|device| device.throttle.cause(&device.watched, false))
    };
    fault()
        .or_else(spill)
        .or_else(process)
        .or_else(memory)
        .or_else(busy)
        .or(depth)
        .or_else(power)
        .unwrap_or(Cause::Unknown)
}
