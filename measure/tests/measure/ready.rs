//! Tests of the readiness check, on simulated GPUs and on hosts that folders describe, with a scripted clock.

use std::cell::Cell;
use std::fs;
use std::path::Path;
use std::time::Duration;

use crate::card;
use autoplace::load;
use autoplace::machine::{Host, gib, mib};
use autoplace::memory::Headroom;
use autoplace::plan::{Request, SavedPlan};
use autoplace_measure::{Aspect, Clock, Measure, Progress, Protocol, Readiness, Ready, Trial};
use tempfile::TempDir;
use test_support::demo_path;

/// The `/proc` and `/sys` files of a host, in a temporary folder. The process is in a container of 8 GiB.
struct System(TempDir);

impl System {
    fn quiet() -> Self {
        let system = Self(tempfile::tempdir().unwrap());
        system.write("proc/meminfo", "MemTotal: 16777216 kB\nMemAvailable: 12582912 kB\n");
        system.write("proc/self/cgroup", "0::/app\n");
        system.write("proc/self/mountinfo", "29 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
        system.write("sys/fs/cgroup/app/memory.max", &gib(8).to_string());
        system.write("sys/fs/cgroup/app/cpu.max", "max 100000\n");
        system.container_uses(gib(1));
        system.swapped(7);
        system.pressure("cpu", 0.0);
        system.pressure("memory", 0.0);
        system.counters(0, 0, 0);
        system
    }

    fn root(&self) -> &Path {
        self.0.path()
    }

    fn write(&self, file: &str, text: &str) {
        let file = self.root().join(file);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
    }

    fn container_uses(&self, bytes: u64) {
        self.write("sys/fs/cgroup/app/memory.current", &bytes.to_string());
    }

    fn swapped(&self, pages: u64) {
        self.write("proc/vmstat", &format!("pgpgin 1\npswpin {pages}\npswpout 3\n"));
    }

    fn pressure(&self, of: &str, percent: f32) {
        let text = format!("some avg10={percent:.2} avg60=0.00 avg300=0.00 total=0\n");
        self.write(&format!("proc/pressure/{of}"), &text);
    }

    /// Sets the counters: milliseconds that a thread waited for a core and that a quota stopped the process, and the
    /// number of heat events.
    fn counters(&self, waited: u64, quota: u64, heat: u64) {
        self.write("proc/self/task/7/schedstat", &format!("5000 {} 9\n", waited * 1_000_000));
        self.write("sys/fs/cgroup/app/cpu.stat", &format!("nr_throttled 2\nthrottled_usec {}\n", quota * 1000));
        let file = "sys/devices/system/cpu/cpu0/thermal_throttle/package_throttle_count";
        self.write(file, &format!("{heat}\n"));
    }
}

/// A clock that advances by a fixed number of seconds and runs a script each time it is read.
struct Scripted<S> {
    now: Cell<u64>,
    step: u64,
    script: S,
}

impl<S: Fn(u64)> Scripted<S> {
    fn new(script: S) -> Self {
        Self { now: Cell::new(0), step: 1, script }
    }
}

impl<S: Fn(u64)> Clock for Scripted<S> {
    fn now(&self) -> Duration {
        self.now.set(self.now.get() + self.step);
        (self.script)(self.now.get());
        Duration::from_secs(self.now.get())
    }

    fn wait(&self, time: Duration) {
        self.now.set(self.now.get() + time.as_secs());
    }
}

fn request() -> Request {
    Request::new().headroom(Headroom::Bytes(0)).n_ctx(256)
}

fn measure<'a>(system: &System) -> Measure<'a> {
    let short = |usual: Protocol| usual.n_prompt(16).n_gen(4);
    let measure = Measure::new(demo_path()).request(request()).protocol(short).system(system.root());
    measure.load_with(|builder| builder.n_threads(1)).clock(Scripted::new(|_| ()))
}

/// A measurement on a machine without a GPU. The folder of `system` describes the host.
fn on_the_host<'a>(system: &System) -> Measure<'a> {
    let mut machine = load::detect().unwrap();
    machine.gpus.clear();
    machine.host = Host::detect_under(system.root()).0;
    measure(system).load_with(move |builder| builder.n_threads(1).machine(machine.clone()))
}

/// Options that accept any speed of this machine.
fn any_speed() -> Ready {
    Ready::default().drift(1e9)
}

fn failed(trial: &Trial) -> Vec<Aspect> {
    trial.failed().collect()
}

fn found(trial: &Trial, aspect: Aspect) -> &str {
    &trial.checks.iter().find(|check| check.aspect == aspect).unwrap().found
}

/// Checks that the only trial failed in this aspect, that no other placement was tried, and that the message contains
/// `word`.
#[track_caller]
fn fails_for_good(readiness: &Readiness, aspect: Aspect, word: &str) {
    let [trial] = readiness.trials.as_slice() else { panic!("{readiness:#?}") };
    assert_eq!(failed(trial), [aspect], "{readiness:#?}");
    assert!(found(trial, aspect).contains(word), "{trial:#?}");
    assert!(readiness.plan.is_none() && !readiness.passed() && readiness.notes.len() == 1, "{readiness:#?}");
}

#[test]
fn a_placement_that_lasts_is_a_plan_to_follow() {
    own_process!();
    let _gpu = card(mib(64));
    let system = System::quiet();
    let readiness = measure(&system).ready(&any_speed()).unwrap();
    let [trial] = readiness.trials.as_slice() else { panic!("{readiness:#?}") };
    assert!(trial.passed() && trial.checks.len() == 9, "{trial:#?}");
    assert_eq!((trial.runs.samples.len(), trial.each.len()), (10, 10));
    assert_eq!(trial.host_available, Some(gib(7)), "the container's limit");
    // The runs are at the end of the context: 4 of its 256 tokens are generated after the prompt.
    assert_eq!(trial.runs.n_depth, 256 - 4 - 1);
    let read: Readiness = serde_json::from_str(&readiness.to_json()).unwrap();
    assert_eq!(read, readiness);
    let saved: SavedPlan = read.plan.unwrap();
    let followed = autoplace::Model::builder(demo_path()).follow(saved).n_threads(1).load().unwrap();
    assert_eq!(followed.placement().n_gpu_layers, trial.placement.n_gpu_layers);
}

#[test]
fn ballast_on_the_card_leads_to_fewer_layers_there() {
    own_process!();
    // A simulated card uses none of the memory that the plan leaves for driver and growth, so this memory is additional
    // margin.
    let gpu = card(mib(2007));
    let margin = Headroom::Bytes(mib(2000));
    let ballast = |progress: &Progress<'_>| {
        if progress.name.ends_with("trial 1") && progress.done > 0.0 {
            gpu.set_taken(mib(2007) - gpu.used() - mib(100));
        }
        true
    };
    let system = System::quiet();
    let measure = measure(&system).request(request().headroom(margin)).progress(ballast);
    let readiness = measure.ready(&any_speed()).unwrap();
    let [first, .., last] = readiness.trials.as_slice() else { panic!("{readiness:#?}") };
    assert_eq!(failed(first), [Aspect::Headroom]);
    assert!(found(first, Aspect::Headroom).starts_with("100 MiB of SIM card free (95 % used)"), "{first:#?}");
    assert!(last.passed() && last.placement.n_gpu_layers < first.placement.n_gpu_layers);
    assert_eq!(readiness.plan.unwrap().plan.n_gpu_layers, last.placement.n_gpu_layers);
}

#[test]
fn a_host_that_swaps_leads_to_a_smaller_context() {
    own_process!();
    let system = System::quiet();
    let pages = Cell::new(7);
    let swapping = |progress: &Progress<'_>| {
        if progress.name.ends_with("trial 1") {
            pages.set(pages.get() + 5);
            system.swapped(pages.get());
        }
        true
    };
    let measure = on_the_host(&system).request(request().n_ctx(1024)).progress(swapping);
    let readiness = measure.ready(&any_speed()).unwrap();
    let [first, last] = readiness.trials.as_slice() else { panic!("{readiness:#?}") };
    assert_eq!(failed(first), [Aspect::Swap]);
    assert!(found(first, Aspect::Swap).contains("pages in, 0 out, 0 at most"), "{first:#?}");
    assert!(last.passed());
    assert_eq!((first.placement.settings.n_ctx, last.placement.settings.n_ctx), (1024, 512));
    assert_eq!(readiness.plan.unwrap().plan.context.n_ctx, 512);
}

#[test]
fn a_process_that_is_partly_in_swap_fails() {
    own_process!();
    let system = System::quiet();
    system.write("proc/self/status", "Name: app\nVmSwap:\t    2048 kB\n");
    let readiness = on_the_host(&system).ready(&any_speed()).unwrap();
    let [trial] = readiness.trials.as_slice() else { panic!("{readiness:#?}") };
    assert_eq!(failed(trial), [Aspect::Swap]);
    assert!(found(trial, Aspect::Swap).contains("2.0 MiB of this process in swap"), "{trial:#?}");
    // A context of 256 tokens is not halved further.
    assert!(readiness.notes[0].contains("256 tokens"), "{:?}", readiness.notes);
}

#[test]
fn a_container_that_fills_up_fails_by_its_own_limit() {
    own_process!();
    let system = System::quiet();
    let filling = |progress: &Progress<'_>| {
        let is_first = progress.name.ends_with("trial 1");
        system.container_uses(if is_first && progress.done > 0.0 { gib(4) } else { gib(1) });
        true
    };
    let measure = on_the_host(&system).request(request().n_ctx(1024)).progress(filling);
    let readiness = measure.ready(&any_speed()).unwrap();
    let [first, last] = readiness.trials.as_slice() else { panic!("{readiness:#?}") };
    assert_eq!(failed(first), [Aspect::HostMemory]);
    let limit = "4.0 GiB available (limited to 8.0 GiB by /sys/fs/cgroup/app/memory.max)";
    assert!(found(first, Aspect::HostMemory).contains(limit), "{first:#?}");
    assert!(last.passed() && last.placement.settings.n_ctx == 512);
}

#[test]
fn a_host_whose_threads_wait_for_memory_leads_to_a_smaller_context() {
    own_process!();
    let system = System::quiet();
    system.pressure("memory", 30.0);
    let relieved = |progress: &Progress<'_>| {
        if progress.name.ends_with("trial 2") {
            system.pressure("memory", 1.0);
        }
        true
    };
    let measure = on_the_host(&system).request(request().n_ctx(1024)).progress(relieved);
    let readiness = measure.ready(&any_speed()).unwrap();
    let failures: Vec<Vec<Aspect>> = readiness.trials.iter().map(failed).collect();
    assert_eq!(failures, [vec![Aspect::MemoryPressure], vec![]]);
}

#[test]
fn no_placement_helps_if_other_programs_keep_the_processor_busy() {
    own_process!();
    let system = System::quiet();
    // From the fifth minute on, a thread waits for a core two thirds of the time.
    let busy = |now: u64| system.counters(now.saturating_sub(300) * 667, 0, 0);
    let readiness = on_the_host(&system).clock(Scripted::new(busy)).ready(&any_speed()).unwrap();
    fails_for_good(&readiness, Aspect::Processor, "waited for a core 66 % of a run");
    assert!(readiness.notes[0].contains("end them"), "{:?}", readiness.notes);

    system.counters(0, 0, 0);
    system.pressure("cpu", 80.0);
    let readiness = on_the_host(&system).ready(&any_speed()).unwrap();
    fails_for_good(&readiness, Aspect::Processor, "80.0 % of ten seconds");
}

#[test]
fn no_placement_helps_if_a_cpu_quota_stops_the_process() {
    own_process!();
    let system = System::quiet();
    system.write("sys/fs/cgroup/app/cpu.max", "50000 100000\n");
    let stopped = |now: u64| system.counters(0, now * 500, 0);
    let readiness = on_the_host(&system).clock(Scripted::new(stopped)).ready(&any_speed()).unwrap();
    let limit = "limited to 0.5 cores by /sys/fs/cgroup/app/cpu.max; stopped this process 50 % of a run";
    fails_for_good(&readiness, Aspect::Quota, limit);
    assert!(readiness.notes[0].contains("--threads"), "{:?}", readiness.notes);
}

#[test]
fn no_placement_helps_if_the_processor_is_too_hot() {
    own_process!();
    let system = System::quiet();
    let hot = |now: u64| system.counters(0, 0, now);
    let readiness = on_the_host(&system).clock(Scripted::new(hot)).ready(&any_speed()).unwrap();
    fails_for_good(&readiness, Aspect::Heat, "10 of 10 runs");
}

#[test]
fn runs_that_drift_lead_to_fewer_layers_until_none_is_left() {
    own_process!();
    let _gpu = card(mib(5));
    let system = System::quiet();
    // Two runs never take exactly the same time.
    let readiness = measure(&system).ready(&Ready::default().runs(3).drift(0.0)).unwrap();
    assert!(readiness.plan.is_none(), "{readiness:#?}");
    let layers: Vec<u32> = readiness.trials.iter().map(|trial| trial.placement.n_gpu_layers).collect();
    assert!(layers.len() > 1 && layers.is_sorted_by(|one, next| one > next) && layers.last() == Some(&0), "{layers:?}");
    assert!(readiness.trials.iter().all(|trial| failed(trial) == [Aspect::Drift]), "{readiness:#?}");
}

#[test]
fn a_quick_check_ends_with_its_time_and_after_three_runs_at_least() {
    own_process!();
    let system = System::quiet();
    let runs_where_each_takes = |seconds: u64| {
        let clock = Scripted { step: seconds, ..Scripted::new(|_| ()) };
        let readiness = on_the_host(&system).clock(clock).ready(&Ready::quick().drift(1e9)).unwrap();
        readiness.trials[0].runs.samples.len()
    };
    assert_eq!((runs_where_each_takes(1), runs_where_each_takes(100)), (6, 3));
}

#[test]
fn a_check_that_is_stopped_says_so_and_has_no_plan() {
    own_process!();
    let system = System::quiet();
    let left = Cell::new(4);
    let going = |_: &Progress<'_>| {
        left.set(left.get() - 1);
        left.get() >= 0
    };
    let readiness = on_the_host(&system).progress(going).ready(&any_speed()).unwrap();
    assert!(readiness.is_stopped && readiness.plan.is_none() && readiness.trials.is_empty(), "{readiness:#?}");
}
