//! The state of the machine during a measurement.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use autoplace::load::Model;
use autoplace::machine::nvidia::Driver;
use autoplace::machine::{HostSample, Machine, ThrottleReason};
use autoplace::watch::{DeviceSample, ModelSource, Sample, Source};
use serde::{Deserialize, Serialize};

/// The worst state of the machine that was observed between computations. `None` means unknown.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Conditions {
    /// The highest temperature of a GPU, in degrees Celsius.
    pub temperature: Option<u32>,
    /// The lowest clock of a GPU's multiprocessors, in MHz.
    pub clock_mhz: Option<u32>,
    /// The reasons that held clocks down.
    pub throttle: BTreeSet<ThrottleReason>,
    /// The minimum of a GPU's free bytes.
    pub least_free: Option<u64>,
    /// The maximum of the bytes that a driver kept in the host's memory for a GPU (Windows).
    #[serde(default)]
    pub on_host: Option<u64>,
    /// The largest percentage of a ten-second period in which a thread waited for a core (Linux).
    pub cpu_pressure: Option<f32>,
    /// The largest percentage of a ten-second period in which a thread waited for memory (Linux).
    pub memory_pressure: Option<f32>,
    /// Pages that the system read back from swap during the measurement (Linux).
    pub swapped_in: Option<u64>,
    /// Pages that the system wrote to swap during the measurement (Linux).
    pub swapped_out: Option<u64>,
}

/// Watches the machine of a loaded model.
#[derive(Debug)]
pub(super) struct Observer {
    source: ModelSource,
    /// The minimum of the free bytes of each device of the model. These devices come first in the list of the sampled
    /// devices.
    least_free: Vec<Option<u64>>,
    proc: PathBuf,
    swapped: Option<[u64; 2]>,
}

impl Observer {
    /// Watches this model on the host that `{root}/proc` describes.
    pub(super) fn new(model: &Model, root: &Path) -> Self {
        let mut source = ModelSource::new(model);
        source.watched();
        let proc = root.join("proc");
        let swapped = swapped(&proc);
        Self { source, least_free: vec![None; model.placement().gpus().count()], proc, swapped }
    }

    /// The minimum of the free bytes of each GPU of the plan; `None` if its driver does not report them.
    pub(super) fn least_free(&self) -> &[Option<u64>] {
        &self.least_free
    }

    /// Adds the current state, and the pages that were swapped since the last call, to `conditions`.
    pub(super) fn look(&mut self, conditions: &mut Conditions) {
        if let Some(mut sample) = self.source.sample(false) {
            sample.devices.truncate(self.least_free.len());
            for (free, device) in self.least_free.iter_mut().zip(&sample.devices) {
                *free = least(*free, device.free);
            }
            sample.host = HostSample::read(&self.proc.join("pressure"));
            conditions.add(&sample);
        }
        let now = swapped(&self.proc);
        conditions.swap(self.swapped, now);
        self.swapped = now;
    }
}

impl Conditions {
    /// The state of this machine, which is watched for the time `within`.
    pub(super) fn of_machine(machine: &Machine, within: Duration) -> Self {
        let proc = Path::new("/proc");
        let before = swapped(proc);
        thread::sleep(within);
        let driver = Driver::open(None);
        let devices = machine.gpus.iter().map(|gpu| {
            let card = driver.as_ref().zip(gpu.pci_id.filter(|_| gpu.nvml.is_some()));
            let state = card.map(|(driver, id)| driver.state(id)).unwrap_or_default();
            let mut sample = DeviceSample::new(gpu.free);
            (sample.throttle, sample.temperature) = (state.throttle, state.temperature);
            sample.clock_mhz = state.clock_mhz;
            sample
        });
        let (devices, host) = (devices.collect(), HostSample::now());
        let mut conditions = Self::default();
        conditions.add(&Sample { devices, host, ..Sample::default() });
        conditions.swap(before, swapped(proc));
        conditions
    }

    fn swap(&mut self, before: Option<[u64; 2]>, now: Option<[u64; 2]>) {
        if let (Some(before), Some(now)) = (before, now) {
            let [pages_in, pages_out] = [0, 1].map(|n| now[n].saturating_sub(before[n]));
            *self.swapped_in.get_or_insert(0) += pages_in;
            *self.swapped_out.get_or_insert(0) += pages_out;
        }
    }

    fn add(&mut self, sample: &Sample) {
        for device in &sample.devices {
            self.temperature = self.temperature.max(device.temperature);
            self.clock_mhz = least(self.clock_mhz, device.clock_mhz);
            self.throttle.extend(device.throttle.iter().flatten());
            self.least_free = least(self.least_free, device.free);
            self.on_host = self.on_host.max(device.on_host);
        }
        let host = sample.host;
        self.cpu_pressure = most(self.cpu_pressure, host.cpu_pressure);
        self.memory_pressure = most(self.memory_pressure, host.memory_pressure);
    }
}

fn least<T: Ord>(one: Option<T>, other: Option<T>) -> Option<T> {
    one.into_iter().chain(other).min()
}

fn most(one: Option<f32>, other: Option<f32>) -> Option<f32> {
    one.into_iter().chain(other).reduce(f32::max)
}

/// Pages that the system has read from and written to swap since boot (proc(5): `pswpin`, `pswpout`).
fn swapped(proc: &Path) -> Option<[u64; 2]> {
    let text = fs::read_to_string(proc.join("vmstat")).ok()?;
    let count = |name| text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
    Some([count("pswpin ")?, count("pswpout ")?])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_observed_state_is_kept() {
        let seen = |free, clock, celsius, pressure| {
            let heat = [ThrottleReason::Heat];
            let mut device = DeviceSample::new(free).throttle(heat, Some(celsius));
            device.clock_mhz = Some(clock);
            let host = HostSample { cpu_pressure: Some(pressure), memory_pressure: None };
            Sample { devices: vec![device], host, ..Sample::default() }
        };
        let mut conditions = Conditions::default();
        conditions.add(&seen(70, 1500, 80, 3.0));
        conditions.add(&seen(90, 900, 60, 1.0));
        conditions.add(&Sample::default());
        let expected = Conditions {
            temperature: Some(80),
            clock_mhz: Some(900),
            throttle: BTreeSet::from([ThrottleReason::Heat]),
            least_free: Some(70),
            cpu_pressure: Some(3.0),
            ..Conditions::default()
        };
        assert_eq!(conditions, expected);
    }
}
