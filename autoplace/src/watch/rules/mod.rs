//! Turns samples into events, without a clock, a thread or a driver. In: samples, each with its moment. Out: events.

mod experts;
mod speed;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::time::Duration;

use self::experts::ExpertRule;
use self::speed::SpeedRule;
use super::event::{Cause, Event};
use super::latch::{Condition, Now};
use super::sample::{DeviceSample, Sample, Watched, WatchedDevice};
use super::settings::Settings;
use crate::load::GeneratingThreads;
use crate::machine::{GpuProcess, HostSample, ThrottleReason};

/// If threads wait for a core during at least this percentage of time, this explains a slowdown.
const BUSY_HOST: f32 = 20.0;
/// If threads wait for memory during at least this percentage of time, this explains a slowdown.
const SHORT_HOST: f32 = 5.0;

/// Maximum number of programs that are tracked per GPU.
const MAX_PROGRAMS: usize = 16;

/// The state of all conditions, kept from one sample to the next.
#[derive(Debug)]
pub(super) struct Rules {
    settings: Settings,
    devices: Vec<DeviceRules>,
    speed: SpeedRule,
    experts: ExpertRule,
    /// The model generates with fewer threads than on a quiet machine.
    fewer_threads: Condition,
}

impl Rules {
    pub(super) fn new(settings: Settings, watched: Watched) -> Self {
        let devices = watched.devices.into_iter().map(|mut watched| {
            watched.needed = settings.needed.unwrap_or(watched.needed);
            DeviceRules { watched, ..DeviceRules::default() }
        });
        let (speed, fewer_threads) = (SpeedRule::new(watched.depth_cost), Condition::default());
        let experts = ExpertRule::new(watched.expert_break_even);
        Self { devices: devices.collect(), speed, experts, fewer_threads, settings }
    }

    /// Takes a sample. `at` is the moment of the sample, never earlier than the moment of the last sample.
    pub(super) fn step(&mut self, at: Duration, sample: &Sample, events: &mut Vec<Event>) {
        let settings = &self.settings;
        let mut now = Now { at, settings, events };
        if let Some(GeneratingThreads { threads, most, before, after: observed }) = sample.threads {
            self.fewer_threads.step(
                Some(threads < most),
                // The generating thread measured the speed before it changed the number of threads, so no patience is
                // needed.
                Duration::ZERO,
                || Event::FewerThreads { threads, most, before, observed },
                Event::ThreadsRestored { threads: most },
                &mut now,
            );
        }
        let silent = DeviceSample::default();
        for (n, device) in self.devices.iter_mut().enumerate() {
            device.step(&mut now, sample.devices.get(n).unwrap_or(&silent));
        }
        self.experts.step(sample.experts, &mut now);
        let devices = &self.devices;
        self.speed.step(sample.generated, &mut now, |depth| likely_cause(devices, &sample.host, depth));
    }

    /// Whether to check the other programs sooner than usual, because they may be the cause of an event that is about
    /// to begin.
    pub(super) fn wants_processes(&self) -> bool {
        self.speed.slow.is_pending() || self.devices.iter().any(|device| device.pressure.is_on())
    }

    /// Ends all open conditions, because the watched model is gone or has moved.
    pub(super) fn end(&mut self, events: &mut Vec<Event>) {
        let devices = self.devices.iter_mut().flat_map(DeviceRules::conditions);
        let others = [&mut self.speed.slow, &mut self.experts.misses, &mut self.fewer_threads];
        events.extend(devices.chain(others).filter_map(Condition::end));
    }
}

/// The likely cause of a slowdown. The more certain causes are checked first.
fn likely_cause(devices: &[DeviceRules], host: &HostSample, depth: Option<Cause>) -> Cause {
    let of = |cause: fn(&DeviceRules) -> Option<Cause>| devices.iter().find_map(cause);
    let over = |pressure: Option<f32>, limit| pressure.filter(|&pressure| pressure >= limit);
    let memory = over(host.memory_pressure, SHORT_HOST);
    let busy = over(host.cpu_pressure, BUSY_HOST);
    of(|device| device.throttled(|reason| reason.is_fault()))
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
    /// The GPU has too little free memory.
    pressure: Condition,
    /// The GPU has more free memory than at first.
    room: Condition,
    first_free: Option<u64>,
    last_free: u64,
    /// Free memory at the last report of room. A further gain is measured from this number.
    reported: u64,
    more_since: Option<Duration>,
    /// The memory on the host that this process has for this GPU: at first, and now.
    on_host: Option<(u64, u64)>,
    /// The clocks are lowered because of a fault.
    throttle: Condition,
    /// The present reasons for lowered clocks.
    reasons: Vec<ThrottleReason>,
    /// Memory of each program at the first check, which counts as normal; `None` before that check.
    first_programs: Option<BTreeMap<u32, u64>>,
    /// The program that has taken the most memory since the first check, if the amount is notable.
    taker: Option<GpuProcess>,
    /// Programs that have taken a notable amount of memory since the first check, by process id.
    takers: BTreeMap<u32, Taker>,
}

/// Another program on a GPU.
#[derive(Debug)]
struct Taker {
    name: Option<String>,
    /// The program has a notable amount of memory more than at first.
    took: Condition,
}

impl DeviceRules {
    fn step(&mut self, now: &mut Now<'_>, seen: &DeviceSample) {
        self.memory(now, seen);
        self.clocks(now, seen);
        if let Some(programs) = &seen.processes {
            self.programs(now, programs);
        }
    }

    fn conditions(&mut self) -> impl Iterator<Item = &mut Condition> {
        let own = [&mut self.pressure, &mut self.room, &mut self.throttle];
        own.into_iter().chain(self.takers.values_mut().map(|taker| &mut taker.took))
    }

    /// Checks whether the GPU has too little free memory, or more than at first. Further gains are reported again.
    fn memory(&mut self, now: &mut Now<'_>, seen: &DeviceSample) {
        if let Some(bytes) = seen.on_host {
            self.on_host = Some((self.on_host.map_or(bytes, |(first, _)| first), bytes));
        }
        let watched = &self.watched;
        if let Some(free) = seen.free {
            self.first_free.get_or_insert(watched.left.map_or(free, |left| left.min(free)));
            self.last_free = free;
        }
        let device = || watched.device.clone();
        let (free, needed) = (self.last_free, watched.needed);
        // The condition begins when less memory is free than needed. It ends when a quarter more than that is free.
        let more = if self.pressure.is_on() { needed / 4 } else { 0 };
        let enough = needed.saturating_add(more);
        self.pressure.step(
            seen.free.map(|free| free < enough),
            // This is reported at once, because an allocation may fail at any moment.
            Duration::ZERO,
            || Event::MemoryPressure { device: device(), free, needed },
            Event::MemoryRelieved { device: device(), free },
            now,
        );
        let Some((room, before)) = watched.room.zip(self.first_free) else { return };
        let more = if self.room.is_on() { room / 2 } else { room };
        let gained = || Event::RoomGained { device: device(), free, before };
        self.reported = if self.room.is_on() { self.reported } else { free };
        self.room.step(
            seen.free.map(|free| free > before && free - before >= more),
            now.settings.patience(),
            gained,
            Event::RoomLost { device: device(), free },
            now,
        );
        let is_more = self.room.is_on() && seen.free.is_some_and(|free| free >= self.reported.saturating_add(room));
        self.more_since = is_more.then(|| self.more_since.unwrap_or(now.at));
        if self.more_since.is_some_and(|since| now.at.saturating_sub(since) >= now.settings.calm()) {
            (self.reported, self.more_since) = (free, None);
            now.events.push(gained());
        }
    }

    fn clocks(&mut self, now: &mut Now<'_>, seen: &DeviceSample) {
        self.reasons.clear();
        self.reasons.extend(seen.throttle.iter().flatten());
        let faults: Vec<_> = self.reasons.iter().copied().filter(|reason| reason.is_fault()).collect();
        let (device, temperature) = (self.watched.device.clone(), seen.temperature);
        let end = Event::Unthrottled { device: device.clone(), temperature };
        self.throttle.step(
            seen.throttle.as_ref().map(|_| !faults.is_empty()),
            now.settings.patience(),
            || Event::Throttled { device, reasons: faults, temperature },
            end,
            now,
        );
    }

    /// Checks which other programs have come, and which have taken more memory.
    fn programs(&mut self, now: &mut Now<'_>, seen: &[GpuProcess]) {
        // Memory that the driver does not report cannot be compared.
        let held: BTreeMap<u32, u64> = seen.iter().filter_map(|program| Some((program.pid, program.bytes?))).collect();
        let first = self.first_programs.get_or_insert_with(|| held.clone());
        let bytes = |of: &BTreeMap<u32, u64>, pid| of.get(&pid).copied().unwrap_or(0);
        let taken = |pid| bytes(&held, pid).saturating_sub(bytes(first, pid));
        let notable = self.watched.notable.max(1);
        let takers = || seen.iter().filter(|program| taken(program.pid) >= notable);
        self.taker = takers().max_by_key(|program| taken(program.pid)).cloned();
        for program in takers() {
            if self.takers.len() < MAX_PROGRAMS || self.takers.contains_key(&program.pid) {
                let new = || Taker { name: program.name.clone(), took: Condition::default() };
                self.takers.entry(program.pid).or_insert_with(new);
            }
        }
        let device = &self.watched.device;
        self.takers.retain(|&pid, Taker { name, took }| {
            // A condition that has begun lasts until less than half of the notable amount is left.
            let limit = if took.is_on() { (notable / 2).max(1) } else { notable };
            took.step(
                Some(taken(pid) >= limit),
                // No patience is needed, because the checks are far enough apart.
                Duration::ZERO,
                || Event::OtherProcess { name: name.clone(), pid, bytes: bytes(&held, pid), device: device.clone() },
                Event::OtherProcessGone { name: name.clone(), pid, device: device.clone() },
                now,
            );
            took.is_on()
        });
    }

    /// Lowered clocks as a cause, for the reasons that `counts` accepts.
    fn throttled(&self, counts: fn(&ThrottleReason) -> bool) -> Option<Cause> {
        let reasons: Vec<ThrottleReason> = self.reasons.iter().copied().filter(counts).collect();
        (!reasons.is_empty()).then(|| Cause::Throttled { device: self.watched.device.clone(), reasons })
    }

    /// A spill as a cause: the driver has moved memory to the host, or is about to.
    fn spill(&self) -> Option<Cause> {
        let (first, now) = self.on_host.unwrap_or_default();
        let moved = now.saturating_sub(first) >= self.watched.notable;
        (self.watched.spills && (self.pressure.is_on() || moved))
            .then(|| Cause::Spill { device: self.watched.device.clone() })
    }

    /// Another program as a cause: a program that has come, or has taken more memory.
    fn other_process(&self) -> Option<Cause> {
        let GpuProcess { name, pid, .. } = self.taker.clone()?;
        Some(Cause::OtherProcess { name, pid, device: self.watched.device.clone() })
    }
}
