//! The conditions of a rate measurement: whether other work used the processor during the measurement.
//!
//! Counters of Linux (`/proc`, `/sys`) from before and after a measurement flow in. [`RateConditions`] flow out, and
//! are stored with each figure. The averages of `/proc/pressure/cpu` cover ten seconds and change only every two
//! seconds, which is too slow for a measurement of milliseconds. So the decision is made by counters that change at
//! once: the time that this process's threads waited for a core, and the cores' time that other processes used.

mod core_times;

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use chrono::DateTime;
use serde::{Deserialize, Serialize};

use super::pressure::HostSample;
use super::throttle::ThrottleReason;
use super::tree::{Notes, Tree, field};
use core_times::{CoreTimes, gone, percentage};

pub use core_times::FreeCoresWatch;

/// A figure counts as disturbed if a thread of this process waited for a core for at least this percentage of the time.
/// The percentage is below 1 on a quiet machine, and 30 to 50 on two cores if another program keeps one thread busy.
const MIN_WAITED: u32 = 8;
/// A figure counts as disturbed if other processes used at least this percentage of one core. Over a quarter of a
/// second the counters may be wrong by 15 percentage points.
const MIN_OTHERS: u32 = 40;
/// A figure counts as disturbed if the hypervisor gave at least this percentage of the cores' time to other machines.
const MIN_STEAL: u32 = 5;
/// A figure counts as disturbed if a CPU quota stopped this process for at least this percentage of the time.
const MIN_THROTTLED: u32 = 10;
/// A figure counts as disturbed if some thread waited for a core during at least this percentage of the previous ten
/// seconds. Work that caused waiting before the measurement tends to come back during the measurement.
const MIN_PRESSURE: u32 = 50;
/// The disturbance, in percent, that is assumed for a figure with unknown conditions.
const UNKNOWN_DISTURBANCE: u32 = 50;

/// The state of the machine during a measurement. Shares are percent. `None` means that the system does not report the
/// value.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct RateConditions {
    /// The time of the measurement, in seconds since 1970 (UTC).
    pub at: u64,
    /// The share of the previous ten seconds in which some thread waited for a core (`/proc/pressure/cpu`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pressure_before: Option<u32>,
    /// The number of threads of other work that ran or waited for a core just before the measurement (`/proc/loadavg`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run_queue_before: Option<u32>,
    /// The time that the threads of this process waited for a core (`schedstat`), added up over all threads: 100 is one
    /// thread that waited all the time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waited: Option<u32>,
    /// The cores' time that other processes used (`/proc/stat`): 100 is one core.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub others: Option<u32>,
    /// The share of the cores' time that the hypervisor gave to other machines (`/proc/stat`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steal: Option<u32>,
    /// The share of the time in which a CPU quota stopped this process (`cpu.stat`), added up over the cores: a process
    /// that is stopped on two cores for 60 % of the time has 120.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub throttled: Option<u32>,
    /// How often the processor lowered its clock because of heat.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub overheated: Option<u32>,
    /// The processor's clock after the measurement, in MHz.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clock_mhz: Option<u32>,
    /// The temperature of the processor or GPU after the measurement, in degrees Celsius.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub temperature: Option<u32>,
    /// The reasons why a GPU's clocks were lowered.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub throttle: Vec<ThrottleReason>,
}

impl RateConditions {
    /// How disturbed the figure is, in percent; 0 if undisturbed.
    pub fn disturbance(&self) -> u32 {
        let over = |share: Option<u32>, limit: u32| share.filter(|&share| share >= limit).unwrap_or(0);
        let heat = u32::from(self.overheated.unwrap_or(0) > 0) * UNKNOWN_DISTURBANCE;
        let gpu = u32::from(self.throttle.iter().any(|reason| reason.is_fault())) * UNKNOWN_DISTURBANCE;
        let parts = [
            over(self.waited, MIN_WAITED),
            over(self.others, MIN_OTHERS),
            over(self.steal, MIN_STEAL),
            over(self.throttled, MIN_THROTTLED),
            // Work of other programs before the measurement counts a tenth as much as work during it.
            over(self.pressure_before, MIN_PRESSURE) / 10,
            heat,
            gpu,
        ];
        parts.into_iter().fold(0, u32::max)
    }

    /// Whether the figure is undisturbed.
    pub fn is_quiet(&self) -> bool {
        self.disturbance() == 0
    }

    /// The number of threads of other work just before, if this process's threads then waited for a core. `None` if
    /// they hardly waited, or if the system does not report it. Waiting that a CPU quota causes does not count.
    pub fn delayed_by(&self) -> Option<u32> {
        let waited = self.clone().without_quota().waited?;
        self.run_queue_before.filter(|&others| others > 0 && waited >= MIN_WAITED)
    }

    /// The conditions without the effects of a CPU quota. They apply to the rates of a host whose plans take the quota
    /// into account: the measured runs are so short that the quota stops few of them.
    pub fn without_quota(mut self) -> Self {
        // Threads that a quota stops also count as waiting.
        let stopped = self.throttled.take().unwrap_or(0);
        self.waited = self.waited.map(|waited| waited.saturating_sub(stopped));
        self.pressure_before = None;
        self
    }

    /// The day of the measurement: `2026-11-28`; `None` if unknown.
    pub fn date(&self) -> Option<String> {
        let seconds = i64::try_from(self.at).ok().filter(|&at| at > 0)?;
        Some(DateTime::from_timestamp(seconds, 0)?.date_naive().to_string())
    }

    /// Seconds since the measurement; `None` if its time is unknown.
    pub fn age(&self, now: SystemTime) -> Option<u64> {
        let now = now.duration_since(UNIX_EPOCH).ok()?.as_secs();
        (self.at > 0).then(|| now.saturating_sub(self.at))
    }

    /// The disturbances in words; empty for an undisturbed figure.
    pub fn reasons(&self) -> Vec<String> {
        let over = |share: Option<u32>, limit: u32| share.filter(|&share| share >= limit);
        let parts = [
            over(self.others, MIN_OTHERS).map(|percent| {
                let cores = f64::from(percent) / 100.0;
                format!("other programs used {cores:.1} cores")
            }),
            over(self.waited, MIN_WAITED)
                .map(|percent| format!("its threads waited for a core {percent} % of the time")),
            over(self.steal, MIN_STEAL).map(|percent| format!("other virtual machines took {percent} % of the cores")),
            over(self.throttled, MIN_THROTTLED)
                .map(|percent| format!("the CPU quota stopped it {} % of the time", percent.min(100))),
            over(self.pressure_before, MIN_PRESSURE)
                .map(|percent| format!("threads waited for a core {percent} % of the ten seconds before")),
            self.overheated.filter(|&n| n > 0).map(|_| "the processor was too hot for its clock".to_owned()),
        ];
        let faults = self.throttle.iter().filter(|reason| reason.is_fault());
        let gpu = faults.map(|reason| format!("the GPU ran below its clock ({reason})"));
        parts.into_iter().flatten().chain(gpu).collect()
    }
}

/// Checks within two milliseconds whether hardly any other work currently needs a core of this computer: at most one
/// thread for every 16 cores.
pub fn looks_quiet() -> bool {
    looks_quiet_under(Path::new("/"))
}

/// Checks like [`looks_quiet`] whether other work needs a core of the computer that `{root}/proc` describes.
pub fn looks_quiet_under(root: &Path) -> bool {
    let tree = Tree(root);
    let looks = (0..3).map(|look| {
        if look > 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        run_queue(tree)
    });
    // Occasional work is rarely seen by all three looks, so the least of them counts.
    let Some(Some(least)) = looks.min() else { return true };
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    least as usize <= cores / 16
}

impl fmt::Display for RateConditions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let date = self.date();
        write!(f, "{}", date.as_deref().unwrap_or("on an unknown day"))?;
        let reasons = self.reasons();
        if !reasons.is_empty() {
            write!(f, ", beside other work ({})", reasons.join("; "))?;
        }
        Ok(())
    }
}

/// Whether a later figure is more disturbed than an earlier one, judged by the conditions of both. A figure without
/// stored conditions may have been disturbed.
pub(super) fn is_worse(later: Option<&RateConditions>, earlier: Option<&RateConditions>) -> bool {
    let [later, earlier] =
        [later, earlier].map(|conditions| conditions.map_or(UNKNOWN_DISTURBANCE, RateConditions::disturbance));
    later > earlier
}

/// Watches the machine during a measurement.
#[derive(Debug)]
pub struct ConditionsWatch {
    root: PathBuf,
    begun: Instant,
    first: Counters,
    before: HostSample,
    run_queue: Option<u32>,
}

impl ConditionsWatch {
    /// Starts watching this computer.
    pub fn begin() -> Self {
        Self::begin_under(Path::new("/"))
    }

    /// Starts watching the computer that `{root}/proc` and `{root}/sys` describe.
    pub fn begin_under(root: &Path) -> Self {
        let tree = Tree(root);
        Self {
            root: root.to_owned(),
            begun: Instant::now(),
            first: Counters::read(tree),
            before: HostSample::read(&tree.locate("/proc/pressure")),
            run_queue: run_queue(tree),
        }
    }

    /// The number of threads of other work that ran or waited for a core at the start; `None` if the system does not
    /// report it.
    pub const fn run_queue_before(&self) -> Option<u32> {
        self.run_queue
    }

    /// The conditions since the start.
    pub fn so_far(&self) -> RateConditions {
        self.after(self.begun.elapsed())
    }

    /// The conditions since the start, for a watch that lasted `took`.
    pub fn after(&self, took: Duration) -> RateConditions {
        let tree = Tree(&self.root);
        let (first, last) = (&self.first, Counters::read(tree));
        let share = |micros_of: u64| percentage(micros_of, took);
        let (times_before, times) = (first.times, last.times);
        RateConditions {
            at: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
            pressure_before: self.before.cpu_pressure.map(|percent| percent as u32),
            run_queue_before: self.run_queue,
            waited: gone(first.waited_ns, last.waited_ns).map(|ns| share(ns / 1000)),
            others: times.others_since(times_before, took),
            steal: times.steal_since(times_before, took),
            throttled: gone(first.throttled_us, last.throttled_us).map(share),
            overheated: gone(first.overheated, last.overheated).map(|n| u32::try_from(n).unwrap_or(u32::MAX)),
            clock_mhz: clock_mhz(tree),
            temperature: temperature(tree),
            throttle: Vec::new(),
        }
    }
}

/// Running totals, in the units of the files that they were read from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Counters {
    times: CoreTimes,
    /// Nanoseconds that the threads of this process waited for a core.
    waited_ns: Option<u64>,
    /// Microseconds in which a quota stopped this process.
    throttled_us: Option<u64>,
    overheated: Option<u64>,
}

impl Counters {
    fn read(tree: Tree<'_>) -> Self {
        let text = |file: &str| tree.read(file, &mut Notes::default());
        Self {
            times: CoreTimes::read(tree),
            waited_ns: waited(tree),
            throttled_us: throttled(tree),
            overheated: text("/sys/devices/system/cpu/cpu0/thermal_throttle/package_throttle_count")
                .and_then(|text| text.trim().parse().ok()),
        }
    }
}

/// Nanoseconds that the threads of this process waited for a core (Documentation/scheduler/sched-stats.rst, the second
/// number).
fn waited(tree: Tree<'_>) -> Option<u64> {
    let threads = fs::read_dir(tree.locate("/proc/self/task")).ok()?;
    let waited = threads.filter_map(|thread| {
        let text = fs::read_to_string(thread.ok()?.path().join("schedstat")).ok()?;
        text.split_whitespace().nth(1)?.parse::<u64>().ok()
    });
    waited.fold(None, |sum, ns| Some(sum.unwrap_or(0_u64).saturating_add(ns)))
}

/// Microseconds for which a control group's quota has stopped this process, added up over the cores
/// (`unthrottle_cfs_rq` of Linux): the largest number of any group around the process (cgroup-v2.rst, `cpu.stat`;
/// version 1 counts nanoseconds).
fn throttled(tree: Tree<'_>) -> Option<u64> {
    let groups = tree.read("/proc/self/cgroup", &mut Notes::default())?;
    let mut most = None;
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':');
        let (Some(id), Some(controllers), Some(group)) = (parts.next(), parts.next(), parts.next()) else { continue };
        let is_v1 = controllers.split(',').any(|name| name == "cpu");
        let folders: &[&str] = match (id, is_v1) {
            ("0", _) if controllers.is_empty() => &["/sys/fs/cgroup", "/sys/fs/cgroup/unified"],
            (_, true) => &["/sys/fs/cgroup/cpu", "/sys/fs/cgroup/cpu,cpuacct"],
            _ => continue,
        };
        // In a container, the listed path may be the group's path on the host, although the group is mounted as the
        // root.
        let groups = Path::new(group).ancestors().filter_map(Path::to_str);
        for (folder, group) in folders.iter().flat_map(|folder| groups.clone().map(move |group| (folder, group))) {
            let file = format!("{folder}/{}/cpu.stat", group.trim_matches('/'));
            let Some(text) = tree.read(&file, &mut Notes::default()) else { continue };
            let micros = field(&text, "throttled_usec").or_else(|| Some(field(&text, "throttled_time")? / 1000));
            most = most.max(micros);
        }
    }
    most
}

/// The number of threads that run or wait for a core, without the calling thread (proc_loadavg(5): `1/123`).
fn run_queue(tree: Tree<'_>) -> Option<u32> {
    let text = tree.read("/proc/loadavg", &mut Notes::default())?;
    let running: u32 = text.split_whitespace().nth(3)?.split_once('/')?.0.parse().ok()?;
    Some(running.saturating_sub(1))
}

fn clock_mhz(tree: Tree<'_>) -> Option<u32> {
    let text = tree.read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq", &mut Notes::default())?;
    Some(text.trim().parse::<u32>().ok()? / 1000)
}

/// The processor's temperature, if a thermal zone is named after it (Documentation/driver-api/thermal/sysfs-api.rst).
fn temperature(tree: Tree<'_>) -> Option<u32> {
    let zones = (0..16).map(|n| format!("/sys/class/thermal/thermal_zone{n}"));
    let of_cpu = zones.filter_map(|zone| {
        let kind = tree.read(&format!("{zone}/type"), &mut Notes::default())?.to_ascii_lowercase();
        let is_cpu = ["x86_pkg_temp", "cpu", "soc"].iter().any(|name| kind.contains(name));
        let text = is_cpu.then(|| tree.read(&format!("{zone}/temp"), &mut Notes::default()))??;
        let celsius = text.trim().parse::<i64>().ok()? / 1000;
        u32::try_from(celsius).ok()
    });
    of_cpu.max()
}

#[cfg(test)]
mod tests;
