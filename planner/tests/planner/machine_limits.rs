//! Limits on the processors of this process, on machines in folders and in a control group of this computer.

use crate::folder::Fake;
use crate::real_group::RealGroup;
use autoplace_planner::gguf::TensorType;
use autoplace_planner::machine::{CpuLimit, CpuWatch, Gpu, GpuKind, Host, HostLimit, MeasuredRates, WeightRate, gib};
use autoplace_planner::plan::speed::Rates;

const V2: &str = "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
const V1: &str = "31 23 0:27 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n\
                  32 23 0:28 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n";

/// Eight cores with one thread each.
fn eight() -> Fake {
    let all: Vec<(u32, u32, u32)> = (0..8).map(|cpu| (cpu, 0, cpu)).collect();
    Fake::new().processors(&all)
}

/// Eight cores, and this process in a group of version 2. `files` belong to that group and to the groups above it.
fn within(group: &str, files: &[(&str, &str)]) -> Fake {
    let fake = eight().file("/proc/self/cgroup", format!("0::{group}\n")).file("/proc/self/mountinfo", V2);
    files.iter().fold(fake, |fake, (file, text)| fake.file(&format!("/sys/fs/cgroup/{file}"), text))
}

#[test]
fn the_group_with_the_least_processor_time_decides() {
    let limit = |quota, period, file: &str| Some(CpuLimit::new(format!("/sys/fs/cgroup/{file}"), quota, period));
    for (group, files, expected, threads) in [
        ("/job", &[("job/cpu.max", "50000 100000\n")][..], limit(50_000, 100_000, "job/cpu.max"), 1),
        ("/job", &[("job/cpu.max", "150000 100000\n")], limit(150_000, 100_000, "job/cpu.max"), 2),
        ("/job", &[("job/cpu.max", "max 100000\n")], None, 8),
        ("/job", &[("job/cpu.max", "300000\n")], limit(300_000, 100_000, "job/cpu.max"), 3),
        // A container's own group appears as the root.
        ("/", &[("cpu.max", "250000 100000\n")], limit(250_000, 100_000, "cpu.max"), 3),
        // A quota of more cores than the machine has does not limit the threads.
        ("/job", &[("job/cpu.max", "1600000 100000\n")], limit(1_600_000, 100_000, "job/cpu.max"), 8),
        (
            "/a/b/c",
            &[("a/cpu.max", "400000 100000"), ("a/b/cpu.max", "30000 20000"), ("a/b/c/cpu.max", "max 100000")],
            limit(30_000, 20_000, "a/b/cpu.max"),
            2,
        ),
        (
            "/a/b",
            &[("a/cpu.max", "100000 100000"), ("a/b/cpu.max", "900000 100000")],
            limit(100_000, 100_000, "a/cpu.max"),
            1,
        ),
    ] {
        let host = within(group, files).host();
        assert_eq!(host.cpu_limit, expected, "{files:?}");
        assert_eq!(host.compute_threads(), Some(threads), "{files:?}");
    }
}

#[test]
fn version_1_has_its_quota_and_its_period_in_two_files() {
    let of = |quota: &str, period: &str| {
        eight()
            .file("/proc/self/cgroup", "3:cpuset:/\n2:cpu,cpuacct:/docker/4f5c\n0::/\n")
            .file("/proc/self/mountinfo", V1)
            .file("/sys/fs/cgroup/cpu,cpuacct/docker/4f5c/cpu.cfs_quota_us", quota)
            .file("/sys/fs/cgroup/cpu,cpuacct/docker/4f5c/cpu.cfs_period_us", period)
            .host()
    };
    let file = "/sys/fs/cgroup/cpu,cpuacct/docker/4f5c/cpu.cfs_quota_us";
    assert_eq!(of("75000\n", "50000\n").cpu_limit, Some(CpuLimit::new(file, 75_000, 50_000)));
    assert_eq!(of("-1\n", "100000\n").cpu_limit, None);
}

#[test]
fn a_quota_is_found_in_every_arrangement_of_hierarchies_and_namespaces() {
    let mounted = |root: &str, point: &str| format!("30 23 0:26 {root} {point} rw - cgroup2 cgroup2 rw\n");
    let v1 = |root: &str, point: &str| format!("31 23 0:27 {root} {point} rw - cgroup cgroup rw,cpu,cpuacct\n");
    for (what, groups, mounts, files, cpus) in [
        (
            "a container of version 1 without a namespace, whose own group is mounted",
            "4:cpu,cpuacct:/docker/4f5c\n1:name=systemd:/docker/4f5c\n",
            v1("/docker/4f5c", "/sys/fs/cgroup/cpu,cpuacct"),
            &[("cpu,cpuacct/cpu.cfs_quota_us", "12345\n"), ("cpu,cpuacct/cpu.cfs_period_us", "50000\n")][..],
            Some(0.2469),
        ),
        (
            "a hybrid system: the quota is in version 1, and version 2 has no controllers",
            "5:cpu,cpuacct:/batch/7\n0::/system.slice/job.service\n",
            v1("/", "/sys/fs/cgroup/cpu,cpuacct") + &mounted("/", "/sys/fs/cgroup/unified"),
            &[
                ("cpu,cpuacct/cpu.cfs_quota_us", "-1"),
                ("cpu,cpuacct/batch/cpu.cfs_quota_us", "175000"),
                ("cpu,cpuacct/batch/cpu.cfs_period_us", "100000"),
                ("cpu,cpuacct/batch/7/cpu.cfs_quota_us", "-1"),
                ("unified/system.slice/job.service/cgroup.procs", "7"),
            ],
            Some(1.75),
        ),
        (
            "a group of another namespace: what is mounted is the best guess",
            "0::/../../kubepods/burstable/pod1\n",
            mounted("/", "/sys/fs/cgroup"),
            &[("cpu.max", "333333 100000\n")],
            Some(3.33333),
        ),
        (
            "a part of the hierarchy is mounted, with a space in its name",
            "0::/a b/c/d\n",
            mounted("/a\\040b", "/sys/fs/cgroup"),
            &[("c/d/cpu.max", "max 100000"), ("c/cpu.max", "1000 1000000")],
            Some(0.001),
        ),
        (
            "equal shares in different periods",
            "0::/a/b\n",
            mounted("/", "/sys/fs/cgroup"),
            &[("a/cpu.max", "5000 10000"), ("a/b/cpu.max", "50000 100000")],
            Some(0.5),
        ),
        ("no quota anywhere", "0::/a\n", mounted("/", "/sys/fs/cgroup"), &[("a/cpu.max", "max 100000")], None),
    ] {
        let fake = eight().file("/proc/self/cgroup", groups).file("/proc/self/mountinfo", mounts);
        let fake = files.iter().fold(fake, |fake, (file, text)| fake.file(&format!("/sys/fs/cgroup/{file}"), *text));
        let limit = fake.host().cpu_limit;
        let found = limit.as_ref().map(CpuLimit::cpus);
        assert!(found.zip(cpus).map_or(found == cpus, |(a, b)| (a - b).abs() < 1e-9), "{what}: {limit:?}");
    }
}

#[test]
fn a_limit_that_is_not_a_number_is_noted_and_ignored() {
    for text in ["plenty 100000", "50000 soon", "-5 100000", "0 100000", "50000 0"] {
        let fake = within("/job", &[("job/cpu.max", text)]);
        let (host, notes) = Host::detect_under(&fake.path("/"));
        assert_eq!(host.cpu_limit, None, "{text}");
        let note = format!("/sys/fs/cgroup/job/cpu.max: contains {text:?}, which is not a known limit: ignored");
        assert_eq!(notes.iter().map(ToString::to_string).collect::<Vec<_>>(), [note]);
    }
}

#[test]
fn a_cpuset_of_any_group_leaves_only_its_own_cores() {
    for (files, usable) in [
        (&[("a/b/cpuset.cpus.effective", "0-2\n")][..], 3),
        (&[("a/cpuset.cpus.effective", "0-5\n"), ("a/b/cpuset.cpus.effective", "4-7\n")], 2),
        // A group with an empty list inherits the list of its parent.
        (&[("a/cpuset.cpus.effective", "1\n"), ("a/b/cpuset.cpus.effective", "\n")], 1),
        (&[("a/b/cpuset.cpus", "2,3\n")], 2),
    ] {
        assert_eq!(within("/a/b", files).host().usable_cores, Some(usable), "{files:?}");
    }
    let v1 = eight()
        .file("/proc/self/cgroup", "3:cpuset:/job\n")
        .file("/proc/self/mountinfo", V1)
        .file("/sys/fs/cgroup/cpuset/job/cpuset.cpus", "0,7\n")
        .file("/proc/self/status", "Cpus_allowed_list:\t4-7\n");
    assert_eq!(v1.host().usable_cores, Some(1));
}

#[test]
fn memory_of_nodes_that_the_process_may_not_use_does_not_count() {
    let node = |number: u32, free: u64, cache: u64| {
        let kib = |bytes| bytes / 1024;
        format!(
            "Node {number} MemTotal: {} kB\nNode {number} MemFree: {} kB\nNode {number} Active(file): {} kB\n",
            kib(gib(32)),
            kib(free),
            kib(cache)
        )
    };
    let two = |allowed: &str| {
        Fake::new()
            .file("/sys/devices/system/node/node0/meminfo", node(0, gib(10), gib(4)))
            .file("/sys/devices/system/node/node1/meminfo", node(1, gib(20), gib(9)))
            .file("/proc/self/status", format!("Mems_allowed_list:\t{allowed}\n"))
    };
    let host = two("0").host();
    assert_eq!(host.available, gib(14));
    assert_eq!(host.limit, HostLimit::MemoryNodes { nodes: "0".to_owned(), bytes: gib(32) });
    assert_eq!(host.limit.to_string(), "limited to 32.0 GiB of memory nodes 0");
    assert_eq!((two("0-1").host().limit, two("0-1").host().available), (HostLimit::System, gib(48)));
    // A control group's set of processors limits in the same way.
    let group = two("0-1")
        .file("/proc/self/cgroup", "0::/job\n")
        .file("/proc/self/mountinfo", V2)
        .file("/sys/fs/cgroup/job/cpuset.mems.effective", "1\n");
    assert_eq!(group.host().available, gib(29));
}

#[test]
fn a_host_displays_its_limit_on_processor_time() {
    let text = within("/job", &[("job/cpu.max", "50000 100000\n")]).host().to_string();
    let limit = "processor time limited to 0.5 cores by /sys/fs/cgroup/job/cpu.max";
    assert_eq!(text, format!("host: 48.0 GiB free of 64.0 GiB; {limit}"));
}

#[test]
fn half_a_core_halves_the_rates_of_the_host_but_not_those_of_a_gpu() {
    let mut measured = MeasuredRates::default();
    let (tensor_type, experts, bytes_per_second) = (TensorType::Q4_K, false, 20_000_000_000);
    measured.weights.push(WeightRate::new(tensor_type, experts, bytes_per_second));
    (measured.threads, measured.layer_ns) = (Some(1), 1000);
    let mut host = Host::new(gib(64)).physical_cores(8).bandwidth(80_000_000_000);
    let mut apu = Gpu::new("APU").total(gib(64));
    apu.kind = GpuKind::Integrated;
    let whole = Rates::for_devices(&[&apu], &host);
    host.cpu_limit = Some(CpuLimit::new("cpu.max", 200_000, 100_000));
    // Without measured rates, the rates of the host shrink with the share of the cores.
    let quarter = Rates::for_devices(&[&apu], &host);
    assert_eq!(quarter.host.bytes_per_second, whole.host.bytes_per_second / 4.0);
    assert_eq!(
        (quarter.host.flops, quarter.host.attention),
        (whole.host.flops / 4.0, whole.host.attention.map(|rate| rate / 4.0))
    );
    assert_eq!(quarter.gpus, whole.gpus);
    // A rate that was measured with one thread shrinks with the share of the time in which that thread may compute.
    host.rates = Some(measured);
    host.cpu_limit = Some(CpuLimit::new("cpu.max", 50_000, 100_000));
    let half = Rates::for_devices(&[], &host).host;
    assert_eq!((half.bytes_per_second, (half.seconds_per_layer * 1e9).round()), (10e9, 2000.0));
    host.cpu_limit = Some(CpuLimit::new("cpu.max", 100_000, 100_000));
    assert_eq!(Rates::for_devices(&[], &host).host.bytes_per_second, 20e9);
}

#[test]
fn a_watch_reports_each_change_once() {
    let fake = within("/a/b", &[("a/cpu.max", "max 100000\n"), ("a/b/cpu.max", "50000 100000\n")]);
    let mut watch = CpuWatch::under(&fake.path("/"));
    assert_eq!(watch.changed(), None);
    let fake = fake.file("/sys/fs/cgroup/a/b/cpu.max", "150000 100000\n");
    assert_eq!(watch.changed().unwrap().compute_threads(), Some(2));
    assert_eq!(watch.changed(), None);
    // The parent group, the group itself and the process's affinity change.
    let fake = fake.file("/sys/fs/cgroup/a/cpu.max", "20000 100000\n");
    assert_eq!(watch.changed().unwrap().share_of_time(1), 0.2);
    let fake = fake.file("/proc/self/status", "Cpus_allowed_list:\t0-7\n").file("/proc/self/cgroup", "0::/\n");
    assert_eq!(watch.changed().unwrap().cpu_limit, None);
    let fake = fake.file("/proc/self/status", "Name:\tx\nCpus_allowed_list:\t0\n");
    assert_eq!(watch.changed().unwrap().usable_cores, Some(1));
    let _fake = fake.file("/proc/self/status", "Name:\tx\nVmSize:\t9 kB\nCpus_allowed_list:\t0\n");
    assert_eq!(watch.changed(), None, "what else the status says is of no matter");
}

#[test]
fn a_real_group_limits_this_process_and_its_change_is_noticed() {
    own_process!();
    let Some(group) = RealGroup::enter(50_000) else {
        println!("no control group can be made here: tested on folders alone");
        return;
    };
    let limit = |host: &Host| host.cpu_limit.as_ref().map(|limit| (limit.quota_us, limit.period_us));
    assert_eq!(limit(&Host::detect().0), Some((50_000, 100_000)));
    assert_eq!(Host::detect_processors().compute_threads(), Some(1));
    let mut watch = CpuWatch::new();
    assert_eq!(watch.changed(), None);
    assert!(group.set(150_000));
    let host = watch.changed().expect("the limit has changed");
    assert_eq!(limit(&host), Some((150_000, 100_000)));
    assert_eq!(host.compute_threads(), Some(host.usable_cores.unwrap_or(2).min(2)));
}
