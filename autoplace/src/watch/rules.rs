//! From samples to events. Here are no clock, no thread and no driver: samples flow in with the moment of each,
//! events flow out.

mod speed;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::time::Duration;

use self::speed::SpeedRule;
use super::event::{Cause, Event};
use super::latch::Condition;
use super::sample::{DeviceSample, Sample, Watched, WatchedDevice};
use crate::machine::{GpuProcess, HostSample, ThrottleReason};

/// The share of time in which threads wait for a core that explains a slowdown, in percent.
const BUSY_HOST: f32 = 20.0;
/// The share of time in which threads wait for memory that explains a slowdown, in percent.
const SHORT_HOST: f32 = 5.0;
/// Programs of one GPU that are told of at once; those beyond are not.
const MOST_PROGRAMS: usize = 16;

/// When a sentinel speaks: as [`SentinelBuilder`](super::SentinelBuilder) says.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Settings {
    pub(super) interval: Duration,
    pub(super) process_interval: Duration,
    pub(super) patience: Duration,
    pub(super) calm: Duration,
    /// What must stay free on each GPU, instead of what follows from the plan.
    pub(super) needed: Option<u64>,
    pub(super) slow: f64,
    pub(super) window: u64,
    pub(super) warm_up: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            interval: Duration::from_secs(1),
            process_interval: Duration::from_secs(5),
            patience: Duration::from_secs(2),
            calm: Duration::from_secs(5),
            needed: None,
            slow: 0.7,
            window: 32,
            warm_up: 16,
        }
    }
}

/// The moment of a sample, by which settings it is judged, and where events go.
struct Now<'a> {
    at: Duration,
    settings: &'a Settings,
    events: &'a mut Vec<Event>,
}

impl Now<'_> {
    /// Takes what the sample says of a condition, which must hold for as long as `patience`: `None` where it does not
    /// tell. `begins` is asked for its event when it begins; `end` is the event of its end.
    fn step(
        &mut self,
        condition: &mut Condition<Event>,
        holds: Option<bool>,
        patience: Duration,
        begins: impl FnOnce() -> Option<Event>,
        end: Event,
    ) {
        let calm = self.settings.calm;
        let told = condition.update(self.at, holds, patience, calm, begins, end);
        self.events.extend(told);
    }
}

/// Everything that is remembered from one sample to the next.
#[derive(Debug)]
pub(super) struct Rules {
    settings: Settings,
    devices: Vec<DeviceRules>,
    speed: SpeedRule,
}

impl Rules {
    pub(super) fn new(settings: Settings, watched: Watched) -> Self {
        let devices = watched.devices.into_iter().map(|mut watched| {
            watched.needed = settings.needed.unwrap_or(watched.needed);
            DeviceRules { watched, ..DeviceRules::default() }
        });
        Self { devices: devices.collect(), speed: SpeedRule::new(watched.depth_cost), settings }
    }

    /// Takes a sample. `at`: its moment, never before that of the last one.
    pub(super) fn step(&mut self, at: Duration, sample: &Sample, events: &mut Vec<Event>) {
        let settings = &self.settings;
        let mut now = Now { at, settings, events };
        let silent = DeviceSample::default();
        for (n, device) in self.devices.iter_mut().enumerate() {
            device.step(&mut now, sample.devices.get(n).unwrap_or(&silent));
        }
        let devices = &self.devices;
        self.speed.step(sample.generated, &mut now, |depth| likely_cause(devices, &sample.host, depth));
    }

    /// Whether to look for other programs sooner than usual: they may be why something is about to be told.
    pub(super) fn wants_processes(&self) -> bool {
        self.speed.slow.is_pending() || self.devices.iter().any(|device| device.pressure.is_on())
    }

    /// Ends what has begun: what is watched is no more, or is another.
    pub(super) fn end(&mut self, events: &mut Vec<Event>) {
        let devices = self.devices.iter_mut().flat_map(DeviceRules::conditions);
        events.extend(devices.chain([&mut self.speed.slow]).filter_map(Condition::end));
    }
}

/// Why it may be slow, the surest reason first.
fn likely_cause(devices: &[DeviceRules], host: &HostSample, depth: Option<Cause>) -> Cause {
    let of = |cause: fn(&DeviceRules) -> Option<Cause>| devices.iter().find_map(cause);
    let over = |pressure: Option<f32>, limit| pressure.filter(|&pressure| pressure >= limit);
    let memory = over(host.memory_pressure, SHORT_HOST);
    let busy = over(host.cpu_pressure, BUSY_HOST);
    of(|device| device.throttled(|it| it.is_fault()))
        .or_else(|| of(DeviceRules::spill))
        .or_else(|| of(DeviceRules::other_process))
        .or(memory.map(|pressure| Cause::HostMemory { pressure }))
        .or(busy.map(|pressure| Cause::HostBusy { pressure }))
        .or(depth)
        .or_else(|| of(|device| device.throttled(|_| true)))
        .unwrap_or(Cause::Unknown)
}

#[derive(Debug, Default)]
struct DeviceRules {
    watched: WatchedDevice,
    /// It has too little free.
    pressure: Condition<Event>,
    /// It has more free than at first.
    room: Condition<Event>,
    first_free: Option<u64>,
    last_free: u64,
    /// What this process had in the host's memory at first, and has now.
    on_host: Option<(u64, u64)>,
    /// Its clocks are held down by a fault.
    throttle: Condition<Event>,
    /// What holds them down now.
    reasons: Vec<ThrottleReason>,
    /// What each program held when they were first looked for: those are there by right. `None` before that.
    first_programs: Option<BTreeMap<u32, u64>>,
    /// Those that took notably more since, with their names.
    takers: BTreeMap<u32, (Option<String>, Condition<Event>)>,
}

impl DeviceRules {
    fn conditions(&mut self) -> impl Iterator<Item = &mut Condition<Event>> {
        let own = [&mut self.pressure, &mut self.room, &mut self.throttle];
        let takers = self.takers.values_mut().map(|(_, took)| took);
        own.into_iter().chain(takers)
    }

    fn step(&mut self, now: &mut Now<'_>, seen: &DeviceSample) {
        self.memory(now, seen);
        self.clocks(now, seen);
        if let Some(programs) = &seen.processes {
            self.programs(now, programs);
        }
    }

    /// Whether it has too little free, or more than at first.
    fn memory(&mut self, now: &mut Now<'_>, seen: &DeviceSample) {
        if let Some(bytes) = seen.on_host {
            self.on_host = Some((self.on_host.map_or(bytes, |(first, _)| first), bytes));
        }
        let watched = &self.watched;
        if let Some(free) = seen.free {
            let first = watched.left.map_or(free, |left| left.min(free));
            self.first_free.get_or_insert(first);
            self.last_free = free;
        }
        let device = || watched.device.clone();
        let (free, needed) = (self.last_free, watched.needed);
        // A quarter more than what it takes to begin is what it takes to end.
        let more = if self.pressure.is_on() { needed / 4 } else { 0 };
        let enough = needed.saturating_add(more);
        now.step(
            &mut self.pressure,
            seen.free.map(|free| free < enough),
            // An allocation may fail at any moment.
            Duration::ZERO,
            || Some(Event::MemoryPressure { device: device(), free, needed }),
            Event::MemoryRelieved { device: device(), free },
        );
        let Some((more, before)) = watched.room.zip(self.first_free) else { return };
        let more = if self.room.is_on() { more / 2 } else { more };
        now.step(
            &mut self.room,
            seen.free.map(|free| free > before && free - before >= more),
            now.settings.patience,
            || Some(Event::RoomGained { device: device(), free, before }),
            Event::RoomLost { device: device(), free },
        );
    }

    fn clocks(&mut self, now: &mut Now<'_>, seen: &DeviceSample) {
        self.reasons.clear();
        self.reasons.extend(seen.throttle.iter().flatten());
        let faults: Vec<_> = self.reasons.iter().copied().filter(|it| it.is_fault()).collect();
        let (device, temperature) = (self.watched.device.clone(), seen.temperature);
        let end = Event::Unthrottled { device: device.clone(), temperature };
        now.step(
            &mut self.throttle,
            seen.throttle.as_ref().map(|_| !faults.is_empty()),
            now.settings.patience,
            || Some(Event::Throttled { device, reasons: faults, temperature }),
            end,
        );
    }

    /// Which other programs came to it, or took more of it.
    fn programs(&mut self, now: &mut Now<'_>, seen: &[GpuProcess]) {
        // What a driver does not count cannot have grown.
        let held: BTreeMap<u32, u64> = seen.iter().filter_map(|it| Some((it.pid, it.bytes?))).collect();
        let Some(first) = &self.first_programs else {
            self.first_programs = Some(held);
            return;
        };
        let bytes = |of: &BTreeMap<u32, u64>, pid| of.get(&pid).copied().unwrap_or(0);
        let taken = |pid: u32| bytes(&held, pid).saturating_sub(bytes(first, pid));
        let notable = self.watched.notable.max(1);
        for program in seen {
            let is_new = !self.takers.contains_key(&program.pid);
            if is_new && self.takers.len() < MOST_PROGRAMS && taken(program.pid) >= notable {
                self.takers.insert(program.pid, (program.name.clone(), Condition::default()));
            }
        }
        let device = || self.watched.device.clone();
        self.takers.retain(|&pid, (name, took)| {
            let limit = if took.is_on() { notable / 2 } else { notable };
            let name = || name.clone();
            now.step(
                took,
                Some(taken(pid) >= limit.max(1)),
                // Looked for seldom enough.
                Duration::ZERO,
                || Some(Event::OtherProcess { name: name(), pid, bytes: bytes(&held, pid), device: device() }),
                Event::OtherProcessGone { name: name(), pid, device: device() },
            );
            took.is_on()
        });
    }

    /// That clocks are held down now, by these reasons.
    fn throttled(&self, counts: fn(&ThrottleReason) -> bool) -> Option<Cause> {
        let reasons: Vec<ThrottleReason> = self.reasons.iter().copied().filter(counts).collect();
        (!reasons.is_empty()).then(|| Cause::Throttled { device: self.watched.device.clone(), reasons })
    }

    /// That its driver has moved memory to the host, or is about to.
    fn spill(&self) -> Option<Cause> {
        let (first, now) = self.on_host.unwrap_or_default();
        let moved = now.saturating_sub(first) >= self.watched.notable;
        (self.watched.spills && (self.pressure.is_on() || moved))
            .then(|| Cause::Spill { device: self.watched.device.clone() })
    }

    /// That another program came or took more.
    fn other_process(&self) -> Option<Cause> {
        let (&pid, (name, _)) = self.takers.first_key_value()?;
        Some(Cause::OtherProcess { name: name.clone(), pid, device: self.watched.device.clone() })
    }
}
