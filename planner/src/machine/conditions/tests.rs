use std::fs;
use std::path::Path;
use std::time::Duration;

use super::{ConditionsWatch, RateConditions, looks_quiet_under};

const QUARTER: Duration = Duration::from_millis(250);

/// Writes the counters of a machine with two cores: the ticks of all processes and of this process, the nanoseconds
/// that the two threads of this process waited, the microseconds that its quota stopped it, and the number of heat
/// events.
fn write(root: &Path, [busy, steal, own]: [u64; 3], waited: [u64; 2], [quota, heat]: [u64; 2]) {
    let file = |path: &str, text: String| {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    file("proc/stat", format!("cpu  {busy} 0 0 900 0 0 0 {steal} 0 0\ncpu0 1 0 0 0\ncpu1 1 0 0 0\nctxt 5\n"));
    file("proc/self/stat", format!("7 (a) b) R 1 1 1 0 -1 4 0 0 0 0 {own} 0 0 0 20 0 2"));
    for (thread, waited) in [7, 8].into_iter().zip(waited) {
        file(&format!("proc/self/task/{thread}/schedstat"), format!("5000 {waited} 9\n"));
    }
    file("proc/self/cgroup", "0::/a.slice/b.scope\n".to_owned());
    file("sys/fs/cgroup/a.slice/cpu.stat", format!("usage_usec 1\nnr_throttled 2\nthrottled_usec {quota}\n"));
    file("sys/devices/system/cpu/cpu0/thermal_throttle/package_throttle_count", format!("{heat}\n"));
    file("sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq", "3400000\n".to_owned());
    file("sys/class/thermal/thermal_zone1/type", "x86_pkg_temp\n".to_owned());
    file("sys/class/thermal/thermal_zone1/temp", "71500\n".to_owned());
    file("proc/loadavg", "4.11 3.86 2.99 6/128 12764\n".to_owned());
}

/// The conditions if the counters change by these amounts within a quarter of a second.
fn seen(ticks: [u64; 3], waited_ms: u64, [quota_ms, heat]: [u64; 2], pressure: f32) -> RateConditions {
    let root = tempfile::tempdir().unwrap();
    write(root.path(), [1000, 10, 300], [1, 2], [5, 3]);
    let folder = root.path().join("proc/pressure");
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("cpu"), format!("some avg10={pressure} avg60=0 avg300=0 total=0\n")).unwrap();
    let watch = ConditionsWatch::begin_under(root.path());
    let [busy, steal, own] = ticks;
    let ticks = [1000 + busy, 10 + steal, 300 + own];
    let waited = [1 + waited_ms * 1_000_000, 2];
    write(root.path(), ticks, waited, [5 + quota_ms * 1000, 3 + heat]);
    watch.after(QUARTER)
}

#[test]
fn a_measurement_is_quiet_if_only_this_process_used_the_cores() {
    // A quarter of a second on two cores. One tick belongs to another process.
    let quiet = seen([51, 0, 50], 1, [0, 0], 3.0);
    assert_eq!((quiet.others, quiet.waited, quiet.steal, quiet.throttled), (Some(4), Some(0), Some(0), Some(0)));
    assert_eq!((quiet.run_queue_before, quiet.pressure_before), (Some(5), Some(3)));
    assert_eq!((quiet.clock_mhz, quiet.temperature), (Some(3400), Some(71)));
    assert!(quiet.is_quiet() && quiet.reasons().is_empty(), "{quiet:?}");
    assert!(quiet.date().is_some_and(|date| quiet.to_string() == date), "{quiet}");
}

#[test]
fn each_kind_of_other_work_disturbs_a_measurement_and_is_named() {
    for (conditions, word) in [
        // The ten-second averages have not changed yet.
        (seen([50, 0, 25], 0, [0, 0], 0.0), "other programs used 1.0 cores"),
        (seen([50, 0, 50], 60, [0, 0], 0.0), "waited for a core 24 % of the time"),
        (seen([50, 5, 45], 0, [0, 0], 0.0), "other virtual machines took 10 %"),
        (seen([20, 0, 20], 0, [150, 0], 0.0), "the CPU quota stopped it 60 %"),
        (seen([50, 0, 50], 0, [0, 1], 0.0), "too hot"),
        (seen([50, 0, 50], 0, [0, 0], 90.0), "90 % of the ten seconds before"),
    ] {
        assert!(!conditions.is_quiet(), "{word}: {conditions:?}");
        assert!(conditions.to_string().contains("beside other work") && conditions.to_string().contains(word));
    }
    // A disturbance before the measurement counts less than a disturbance during it.
    let [before, seen] = [seen([50, 0, 50], 0, [0, 0], 90.0), seen([50, 0, 50], 60, [0, 0], 0.0)];
    assert!(before.disturbance() < seen.disturbance());
}

#[test]
fn other_work_delays_this_process_only_if_its_threads_wait_for_a_core() {
    // `/proc/loadavg` counts five threads besides the one that reads it.
    assert_eq!(seen([50, 0, 25], 60, [0, 0], 0.0).delayed_by(), Some(5));
    assert_eq!(seen([50, 0, 50], 10, [0, 0], 90.0).delayed_by(), None);
    // A quota stops two threads for 60 % of the time.
    assert_eq!(seen([20, 0, 20], 300, [300, 0], 0.0).delayed_by(), None);
    assert_eq!(seen([20, 0, 20], 360, [300, 0], 0.0).delayed_by(), Some(5));
    assert_eq!(RateConditions::default().delayed_by(), None);
    let nobody_else = RateConditions { run_queue_before: Some(0), waited: Some(30), ..RateConditions::default() };
    assert_eq!(nobody_else.delayed_by(), None);
}

#[test]
fn under_a_quota_that_plans_know_only_other_work_disturbs_a_measurement() {
    // The quota stops two threads, on two cores, for 60 % of the time. They count as waiting.
    let stopped = seen([20, 0, 20], 300, [300, 0], 90.0);
    assert!(!stopped.is_quiet());
    assert!(stopped.to_string().contains("stopped it 100 %"), "{stopped}");
    let stopped = stopped.without_quota();
    assert!(stopped.is_quiet() && stopped.reasons().is_empty(), "{stopped:?}");
    for (conditions, word) in [
        (seen([45, 0, 20], 300, [300, 0], 0.0), "other programs used 1.0 cores"),
        (seen([20, 0, 20], 360, [300, 0], 0.0), "waited for a core 24 % of the time"),
    ] {
        assert!(conditions.without_quota().to_string().contains(word), "{word}");
    }
}

#[test]
fn a_system_that_reports_nothing_has_no_known_disturbance() {
    let root = tempfile::tempdir().unwrap();
    let conditions = ConditionsWatch::begin_under(root.path()).after(QUARTER);
    assert_eq!((conditions.waited, conditions.others, conditions.steal), (None, None, None));
    assert!(conditions.is_quiet());
    assert_eq!(RateConditions::default().date(), None);
}

#[test]
fn a_computer_looks_quiet_unless_many_other_threads_run() {
    let root = tempfile::tempdir().unwrap();
    assert!(looks_quiet_under(root.path()), "the system reports nothing");
    fs::create_dir(root.path().join("proc")).unwrap();
    // The calling thread runs too. The limit is one thread for every 16 cores of this computer.
    for (running, is_quiet) in [(1, true), (5000, false), (0, true)] {
        fs::write(root.path().join("proc/loadavg"), format!("4.11 3.86 2.99 {running}/6000 12764\n")).unwrap();
        assert_eq!(looks_quiet_under(root.path()), is_quiet, "{running}");
    }
}
