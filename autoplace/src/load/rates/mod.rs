//! Measures the speed of ggml's own operations on the devices of this machine.
//!
//! In: a machine and the cases to measure ([`RatesRequest`]). Out: the [`MeasuredRates`] of each device. Each case
//! repeats one operation in a graph. The weights or the KV cache that the operation reads are too large for the caches
//! of any processor.

mod case;
mod request;
mod types;

pub use case::RateCase;
pub use request::RatesRequest;
pub use types::{with_rates_for_advice, with_rates_of};

use std::path::Path;
use std::time::{Duration, Instant};

use case::Scale;
use llama_sys::{Backend, Bench, Device, DeviceKind};

use super::devices::{build_name, is_simulated, named};
use super::{Error, threads};
use crate::machine::nvidia::Driver;
use crate::machine::{ConditionsWatch, GpuKind, Host, Machine, MeasuredRates, PciId, RateConditions};

/// The progress of a measurement.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct RatesProgress<'a> {
    /// ggml's name of the measured device: `CUDA0`, `CPU`.
    pub device: &'a str,
    /// The number of finished cases on all devices.
    pub done: usize,
    /// The number of all cases on all devices.
    pub total: usize,
}

/// Smallest working set, in bytes. A smaller working set would fit in the processor's caches, so the speed of the
/// memory would not be measured.
const MIN_WORKING_SET: u64 = 16 << 20;

/// Measures the GPUs and the host of this machine, and adds the results to its [`rates`](crate::machine::Gpu::rates).
/// Known rates are measured again, unless the request asks only for missing rates. `threads` are the threads of the
/// host; `None` means the number that a load would use. Each rate keeps its conditions. If a measurement was disturbed,
/// it does not replace an undisturbed one.
///
/// The measurement takes at most an eighth of the free memory of a device, and releases it at the end. It does not
/// store the rates; [`MeasurementCache`](crate::machine::MeasurementCache) does.
///
/// # Errors
///
/// [`Error::Native`] if the native code cannot run on this CPU, or a device fails.
pub fn measure_rates(
    machine: &mut Machine,
    request: &RatesRequest,
    threads: Option<u32>,
    progress: impl FnMut(RatesProgress<'_>),
) -> Result<(), Error> {
    measure_rates_under(Path::new("/"), machine, request, threads, progress)
}

/// Measures like [`measure_rates`]. `{root}/proc` and `{root}/sys` describe the conditions of the measurements.
pub(super) fn measure_rates_under(
    root: &Path,
    machine: &mut Machine,
    request: &RatesRequest,
    threads: Option<u32>,
    mut progress: impl FnMut(RatesProgress<'_>),
) -> Result<(), Error> {
    let threads = threads.unwrap_or_else(|| threads::cores(&machine.host));
    let devices = Backend::init()?.devices();
    let repacked = repacks(machine, &devices);
    let beyond_caches = Host::beyond_caches();
    let mut jobs = Vec::new();
    let driver = machine.gpus.iter().any(|gpu| gpu.nvml.is_some()).then(|| Driver::open(None)).flatten();
    for gpu in &mut machine.gpus {
        let Some(device) = named(&devices, gpu.device.as_deref()) else { continue };
        let scale = if is_simulated(&device.name()) {
            // A simulated device computes on the processor.
            Scale::host((gpu.free / 8).min(beyond_caches))
        } else if gpu.kind == GpuKind::Remote {
            Scale::remote(gpu.free / 8)
        } else {
            Scale::gpu(gpu.free / 8)
        };
        let mut job = Job::new(device, request, scale, (None, false), &mut gpu.rates);
        if gpu.kind == GpuKind::Remote {
            job.within = job.within.map(|_| REMOTE_WITHIN);
        }
        job.card = gpu.pci_id.filter(|_| gpu.nvml.is_some());
        jobs.push(job);
    }
    if let Some(device) = devices.iter().find(|device| device.kind() == DeviceKind::Cpu) {
        let scale = Scale::host((machine.host.available / 8).min(beyond_caches));
        let share = machine.host.share_of_time(threads);
        let scale = scale.for_share_of_time(share, threads);
        let mut job = Job::new(device, request, scale, (Some(threads), repacked), &mut machine.host.rates);
        if share < 1.0 {
            job.has_quota = true;
            job.within = job.within.map(|within| within.div_f64(share.max(MIN_SHARE)));
        }
        jobs.push(job);
    }
    let total = jobs.iter().map(|job| job.cases.len()).sum();
    let mut done = 0;
    for job in &mut jobs {
        let device = job.device.name();
        job.run(root, request.each, threads, driver.as_ref(), || {
            done += 1;
            progress(RatesProgress { device: &device, done, total });
        })?;
    }
    Ok(())
}

/// Whether a load on this machine rearranges the host's weights for its processor.
pub(super) fn repacks(machine: &Machine, devices: &[Device]) -> bool {
    let mut gpus = machine.gpus.iter().filter_map(|gpu| named(devices, gpu.device.as_deref()));
    !gpus.any(Device::pins_host_memory)
}

struct Job<'a> {
    device: &'a Device,
    cases: Vec<RateCase>,
    scale: Scale,
    within: Option<Duration>,
    /// For the host: the number of threads, and whether weights are rearranged.
    way: (Option<u32>, bool),
    /// Whether this is a host with a CPU quota.
    has_quota: bool,
    /// The PCI address of the card, if NVIDIA's driver knows it.
    card: Option<PciId>,
    rates: &'a mut Option<MeasuredRates>,
}

impl<'a> Job<'a> {
    fn new(
        device: &'a Device,
        request: &RatesRequest,
        mut scale: Scale,
        way: (Option<u32>, bool),
        rates: &'a mut Option<MeasuredRates>,
    ) -> Self {
        // Rates for other threads or another weight layout do not apply.
        let _ = rates.take_if(|rates| (rates.threads, rates.repacked) != way);
        let mut cases = request.cases.clone();
        cases.retain(|case| {
            let is_known = rates.as_ref().is_some_and(|rates| match request.disturbed {
                true => case.is_quiet_in(rates),
                false => case.is_in(rates),
            });
            let has_link = way.0.is_none();
            !(request.missing && is_known) && (has_link || *case != RateCase::Link)
        });
        let most = request.working_set.unwrap_or(u64::MAX);
        scale.working_set = scale.working_set.min(most);
        if scale.working_set < most.min(MIN_WORKING_SET) {
            tracing::debug!(device = device.name(), "too little free memory for a measurement");
            cases.clear();
        }
        Self { device, cases, scale, within: request.within, way, has_quota: false, card: None, rates }
    }

    fn run(
        &mut self,
        root: &Path,
        each: Duration,
        threads: u32,
        driver: Option<&Driver>,
        mut done: impl FnMut(),
    ) -> Result<(), Error> {
        if self.cases.is_empty() {
            return Ok(());
        }
        let begin = Instant::now();
        let mut empty = MeasuredRates::default();
        (empty.threads, empty.repacked) = self.way;
        let mut rates = empty.clone();
        let mut bench = Bench::new(self.device, threads, self.way.1)?;
        // Successive cases share one reading of the conditions until `JUDGED_TOGETHER` has passed.
        let (mut watch, mut watched_since) = (ConditionsWatch::begin_under(root), Instant::now());
        let mut together = empty.clone();
        let last = self.cases.len() - 1;
        for (index, case) in self.cases.iter().enumerate() {
            let is_time = self.within.is_none_or(|within| begin.elapsed() < within);
            if index == 0 || is_time {
                case.measure(&mut bench, &mut self.scale, each, &mut together)?;
            }
            if index == last || watched_since.elapsed() >= JUDGED_TOGETHER {
                let mut conditions = watch.so_far();
                if self.has_quota {
                    conditions = conditions.without_quota();
                }
                self.add_card(&mut conditions, driver);
                let judged = std::mem::replace(&mut together, empty.clone());
                rates.merge(judged.taken_under(&conditions));
                (watch, watched_since) = (ConditionsWatch::begin_under(root), Instant::now());
            }
            done();
        }
        // The device may support none of these operations.
        if self.cases.iter().any(|case| case.is_in(&rates)) {
            match &mut *self.rates {
                Some(earlier) => earlier.merge(rates),
                nothing => *nothing = Some(rates),
            }
        }
        Ok(())
    }

    /// Adds the state that a card's driver reports.
    fn add_card(&self, conditions: &mut RateConditions, driver: Option<&Driver>) {
        let Some((card, driver)) = self.card.zip(driver) else { return };
        let state = driver.state(card);
        conditions.throttle = state.throttle.unwrap_or_default();
        conditions.temperature = state.temperature;
        conditions.clock_mhz = state.clock_mhz;
    }
}

/// Cases that follow within this time share one reading of the conditions, because the system's counters advance in
/// hundredths of a second.
const JUDGED_TOGETHER: Duration = Duration::from_millis(200);

/// Smallest model for which rates are measured, in bytes. A smaller model is fast in every placement.
pub(super) const MIN_MODEL_BYTES: u64 = 64 << 20;

/// No further case of a device begins after this time. A later load measures the cases that are left.
pub(super) const WITHIN: Duration = Duration::from_millis(1200);

/// Under a CPU quota, [`WITHIN`] is divided by the share of the time that the quota leaves, but not by less than this.
/// A smaller quota would delay a load too long.
const MIN_SHARE: f64 = 0.25;

/// The limit that replaces [`WITHIN`] for a remote device, which first receives its data over the network.
const REMOTE_WITHIN: Duration = Duration::from_secs(3);

/// Working set of a load's measurements, in bytes. A part of it may fit in a large processor cache, but a larger
/// working set would delay the load.
pub(super) const WORKING_SET: u64 = 256 << 20;

/// Duration of each case. A computation that is running at its end is completed.
pub(super) const EACH: Duration = Duration::from_millis(15);
