//! How much of the host's memory this process may take, on machines that are folders: each test writes the `/proc` and
//! `/sys` of one and asks.

use std::fs;

use autoplace_planner::machine::{Host, HostLimit, gib, mib};
use proptest::prelude::{
    ProptestConfig, Strategy, any, prop, prop_assert, prop_assert_eq, proptest,
};
use tempfile::TempDir;

const V2_MOUNT: &str = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n";
const V1_MOUNT: &str = "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n";

/// A machine made of files, with 64 GiB of memory of which 50 GiB are available.
struct Fake {
    root: TempDir,
}

impl Fake {
    fn new() -> Self {
        let fake = Self {
            root: tempfile::tempdir().unwrap(),
        };
        fake.meminfo(gib(64), gib(50))
    }

    fn file(self, path: &str, text: impl AsRef<[u8]>) -> Self {
        let path = self.root.path().join(path.trim_start_matches('/'));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
        self
    }

    fn meminfo(self, total: u64, available: u64) -> Self {
        let (total, available) = (total / 1024, available / 1024);
        self.file(
            "/proc/meminfo",
            format!("MemTotal: {total} kB\nMemFree: 100 kB\nMemAvailable: {available} kB\n"),
        )
    }

    fn in_group(self, cgroup: &str, mountinfo: &str) -> Self {
        self.file("/proc/self/cgroup", cgroup)
            .file("/proc/self/mountinfo", mountinfo)
    }

    /// A version 2 group below /sys/fs/cgroup: its limit, what it uses, and how much of that is page
    /// cache in each list.
    fn v2(self, group: &str, max: &str, current: u64, cache: u64) -> Self {
        let folder = format!("/sys/fs/cgroup{group}");
        self.file(&format!("{folder}/memory.max"), format!("{max}\n"))
            .file(&format!("{folder}/memory.high"), "max\n")
            .file(&format!("{folder}/memory.current"), format!("{current}\n"))
            .file(
                &format!("{folder}/memory.stat"),
                format!("anon 5\ninactive_file {cache}\nactive_file {cache}\n"),
            )
    }

    /// A version 1 group, `folder` being its whole path.
    fn v1(self, folder: &str, limit: u64, usage: u64, cache: u64) -> Self {
        self.file(
            &format!("{folder}/memory.limit_in_bytes"),
            format!("{limit}\n"),
        )
        .file(
            &format!("{folder}/memory.usage_in_bytes"),
            format!("{usage}\n"),
        )
        .file(
            &format!("{folder}/memory.stat"),
            format!("cache 1\ntotal_inactive_file {cache}\ntotal_active_file {cache}\n"),
        )
    }

    fn detect(&self) -> Host {
        Host::detect_under(self.root.path()).0
    }

    fn notes(&self) -> Vec<String> {
        Host::detect_under(self.root.path())
            .1
            .iter()
            .map(ToString::to_string)
            .collect()
    }

    /// Available bytes and the file of the limit that decides.
    fn decided(&self) -> (u64, String) {
        let host = self.detect();
        match host.limit {
            HostLimit::Cgroup { file, .. } => (host.available, file),
            other => panic!("{} by {other}", host.available),
        }
    }
}

fn limit(bytes: u64) -> String {
    bytes.to_string()
}

#[test]
fn without_limits_the_host_has_what_the_system_calls_available() {
    let host = Fake::new().detect();
    assert_eq!(
        (host.total, host.available, host.system_available),
        (gib(64), gib(50), gib(50))
    );
    assert_eq!(host.limit, HostLimit::System);
    assert_eq!(host.to_string(), "host: 50.0 GiB free of 64.0 GiB");
}

#[test]
fn an_old_kernel_without_memavailable_is_taken_as_free_and_cache_less_shared_memory() {
    let fake = Fake::new().file(
        "/proc/meminfo",
        "MemTotal: 1000 kB\nMemFree: 300 kB\nCached: 200 kB\nShmem: 50 kB\n",
    );
    assert_eq!(fake.detect().available, 450 * 1024);
    assert_eq!(
        fake.notes(),
        ["/proc/meminfo: has no MemAvailable: taken as MemFree + Cached - Shmem"]
    );
}

#[test]
fn a_machine_that_says_nothing_promises_nothing() {
    for text in ["", "MemTotal: lots\n", "\u{0}\u{1}garbage"] {
        let fake = Fake::new().file("/proc/meminfo", text);
        let host = fake.detect();
        assert_eq!(
            (host.total, host.available, host.limit),
            (0, 0, HostLimit::Unknown),
            "{text:?}"
        );
        assert_eq!(fake.notes().len(), 1);
    }
    let empty = Fake {
        root: tempfile::tempdir().unwrap(),
    };
    assert_eq!(empty.detect().limit, HostLimit::Unknown);
}

#[test]
fn more_available_than_there_is_counts_as_what_there_is() {
    assert_eq!(
        Fake::new().meminfo(gib(8), gib(9)).detect().available,
        gib(8)
    );
}

#[test]
fn a_version_2_limit_leaves_what_the_group_does_not_use() {
    let fake = Fake::new().in_group("0::/app.slice\n", V2_MOUNT).v2(
        "/app.slice",
        &limit(gib(16)),
        gib(4),
        0,
    );
    assert_eq!(
        fake.decided(),
        (gib(12), "/sys/fs/cgroup/app.slice/memory.max".to_owned())
    );
    assert_eq!(fake.detect().system_available, gib(50));
    let text = "host: 12.0 GiB free of 64.0 GiB (limited to 16.0 GiB by /sys/fs/cgroup/app.slice/memory.max; \
                the system has 50.0 GiB free)";
    assert_eq!(fake.detect().to_string(), text);
}

#[test]
fn page_cache_does_not_count_as_used() {
    let fake =
        Fake::new()
            .in_group("0::/app\n", V2_MOUNT)
            .v2("/app", &limit(gib(16)), gib(15), gib(7));
    assert_eq!(fake.detect().available, gib(15));
}

#[test]
fn the_tightest_of_nested_groups_decides_wherever_it_is() {
    let groups = [
        "/",
        "/a.slice",
        "/a.slice/b.slice",
        "/a.slice/b.slice/c.scope",
    ];
    for tightest in 1..groups.len() {
        let mut fake = Fake::new().in_group("0::/a.slice/b.slice/c.scope\n", V2_MOUNT);
        for (place, group) in groups.iter().enumerate().skip(1) {
            let bytes = if place == tightest { gib(8) } else { gib(32) };
            fake = fake.v2(group, &limit(bytes), gib(1), 0);
        }
        assert_eq!(
            fake.decided(),
            (
                gib(7),
                format!("/sys/fs/cgroup{}/memory.max", groups[tightest])
            )
        );
    }
}

#[test]
fn an_outer_group_that_others_fill_decides_over_a_tighter_inner_one() {
    let fake = Fake::new()
        .in_group("0::/outer/inner\n", V2_MOUNT)
        .v2("/outer", &limit(gib(32)), gib(30), 0)
        .v2("/outer/inner", &limit(gib(8)), gib(1), 0);
    assert_eq!(
        fake.decided(),
        (gib(2), "/sys/fs/cgroup/outer/memory.max".to_owned())
    );
}

#[test]
fn max_is_no_limit() {
    let fake = Fake::new()
        .in_group("0::/app\n", V2_MOUNT)
        .v2("/app", "max", gib(4), 0);
    assert_eq!(fake.detect().limit, HostLimit::System);
    assert_eq!(fake.notes(), [""; 0]);
}

#[test]
fn the_lower_of_max_and_high_decides() {
    let fake = Fake::new()
        .in_group("0::/app\n", V2_MOUNT)
        .v2("/app", &limit(gib(16)), gib(1), 0)
        .file("/sys/fs/cgroup/app/memory.high", limit(gib(10)));
    assert_eq!(
        fake.decided(),
        (gib(9), "/sys/fs/cgroup/app/memory.high".to_owned())
    );
}

#[test]
fn a_group_over_its_limit_leaves_nothing() {
    let fake = Fake::new()
        .in_group("0::/app\n", V2_MOUNT)
        .v2("/app", &limit(gib(4)), gib(5), 0);
    assert_eq!(fake.detect().available, 0);
}

#[test]
fn a_docker_container_in_its_own_namespace_finds_its_limit_at_the_mount() {
    let mount = "30 23 0:26 / /sys/fs/cgroup ro,nosuid - cgroup2 cgroup ro\n";
    let fake = Fake::new()
        .in_group("0::/\n", mount)
        .v2("", &limit(gib(8)), gib(1), 0);
    assert_eq!(
        fake.decided(),
        (gib(7), "/sys/fs/cgroup/memory.max".to_owned())
    );
}

#[test]
fn a_docker_container_on_version_1_finds_its_own_group_mounted() {
    let id = "/docker/4f5c";
    let mount = format!("35 31 0:32 {id} /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n");
    let fake = Fake::new()
        .in_group(
            &format!("5:cpu,cpuacct:{id}\n4:memory:{id}\n1:name=systemd:{id}\n"),
            &mount,
        )
        .v1("/sys/fs/cgroup/memory", gib(8), gib(3), gib(1));
    assert_eq!(
        fake.decided(),
        (
            gib(7),
            "/sys/fs/cgroup/memory/memory.limit_in_bytes".to_owned()
        )
    );
}

#[test]
fn a_group_outside_of_what_is_mounted_is_read_at_the_mount_and_said() {
    for group in ["/../other", "/elsewhere"] {
        let mount = "30 23 0:26 /here /sys/fs/cgroup ro - cgroup2 cgroup ro\n";
        let fake =
            Fake::new()
                .in_group(&format!("0::{group}\n"), mount)
                .v2("", &limit(gib(8)), gib(1), 0);
        assert_eq!(fake.detect().available, gib(7), "{group}");
        assert_eq!(fake.notes().len(), 1);
    }
}

#[test]
fn dots_in_a_group_lead_nowhere_else() {
    let fake = Fake::new()
        .in_group("0::/../../etc\n", V2_MOUNT)
        .v2("", "max", 0, 0)
        .file("/sys/etc/memory.max", limit(1));
    assert_eq!(fake.detect().available, gib(50));
}

#[test]
fn version_1_limits_nest_too() {
    let fake = Fake::new()
        .in_group("4:memory:/batch/job7\n", V1_MOUNT)
        .v1("/sys/fs/cgroup/memory/batch/job7", gib(32), gib(1), 0)
        .v1("/sys/fs/cgroup/memory/batch", gib(20), gib(10), gib(2))
        .v1("/sys/fs/cgroup/memory", 0x7fff_ffff_ffff_f000, gib(60), 0);
    assert_eq!(
        fake.decided(),
        (
            gib(14),
            "/sys/fs/cgroup/memory/batch/memory.limit_in_bytes".to_owned()
        )
    );
}

#[test]
fn a_version_1_group_that_does_not_pass_its_limit_on_does_not_count() {
    let fake = Fake::new()
        .in_group("4:memory:/batch/job7\n", V1_MOUNT)
        .v1("/sys/fs/cgroup/memory/batch/job7", gib(32), gib(1), 0)
        .v1("/sys/fs/cgroup/memory/batch", gib(4), gib(1), 0)
        .file("/sys/fs/cgroup/memory/batch/memory.use_hierarchy", "0\n");
    assert_eq!(fake.detect().available, gib(31));
}

#[test]
fn a_version_1_limit_above_the_namespace_still_counts() {
    let folder = "/sys/fs/cgroup/memory";
    let fake = Fake::new()
        .in_group("4:memory:/\n", V1_MOUNT)
        .v1(folder, 0x7fff_ffff_ffff_f000, gib(1), 0)
        .file(
            &format!("{folder}/memory.stat"),
            format!("hierarchical_memory_limit {}\n", gib(6)),
        );
    assert_eq!(fake.decided(), (gib(5), format!("{folder}/memory.stat")));
}

#[test]
fn a_hybrid_system_has_its_limit_in_version_1() {
    let v2 = "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
    let fake = Fake::new()
        .in_group(
            "4:memory:/user.slice\n1:name=systemd:/user.slice\n0::/user.slice\n",
            &format!("{V1_MOUNT}{v2}"),
        )
        .file("/sys/fs/cgroup/unified/user.slice/cgroup.procs", "1\n")
        .v1("/sys/fs/cgroup/memory/user.slice", gib(12), gib(2), 0);
    assert_eq!(
        fake.decided(),
        (
            gib(10),
            "/sys/fs/cgroup/memory/user.slice/memory.limit_in_bytes".to_owned()
        )
    );
    assert_eq!(fake.notes(), [""; 0]);
}

#[test]
fn without_mountinfo_the_usual_places_are_tried() {
    let fake =
        Fake::new()
            .file("/proc/self/cgroup", "0::/app\n")
            .v2("/app", &limit(gib(16)), gib(4), 0);
    assert_eq!(fake.detect().available, gib(12));
    assert_eq!(fake.notes().len(), 1);
}

#[test]
fn a_group_without_a_mount_is_said() {
    let fake = Fake::new().in_group("0::/app\n", "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n");
    assert_eq!(fake.detect().available, gib(50));
    assert_eq!(
        fake.notes(),
        ["control groups: the process is in /app, but its limits are not visible here"]
    );
}

#[test]
fn a_mount_point_with_a_space_is_found() {
    let mount = "30 23 0:26 / /sys/fs/c\\040group rw - cgroup2 cgroup2 rw\n";
    let fake = Fake::new()
        .in_group("0::/app\n", mount)
        .file("/sys/fs/c group/app/memory.max", limit(gib(3)))
        .file("/sys/fs/c group/app/memory.current", "0\n");
    assert_eq!(fake.detect().available, gib(3));
}

#[test]
fn files_that_hold_nonsense_are_no_limit_and_are_said() {
    let fake = Fake::new()
        .in_group("0::/app\n", V2_MOUNT)
        .v2("/app", "plenty", gib(4), 0);
    assert_eq!(fake.detect().available, gib(50));
    let expected = "/sys/fs/cgroup/app/memory.max: holds \"plenty\", which is no limit that is known: not counted";
    assert_eq!(fake.notes(), [expected]);
}

#[test]
fn a_limit_whose_usage_cannot_be_read_still_holds() {
    let fake = Fake::new()
        .in_group("0::/app\n", V2_MOUNT)
        .file("/sys/fs/cgroup/app/memory.max", limit(gib(16)));
    assert_eq!(fake.detect().available, gib(16));
    assert_eq!(fake.notes().len(), 1);
}

#[test]
fn an_address_space_limit_leaves_what_is_not_mapped_yet() {
    let fake = Fake::new()
        .file(
            "/proc/self/limits",
            format!(
                "Max address space         {}           unlimited            bytes\n",
                gib(20)
            ),
        )
        .file(
            "/proc/self/status",
            format!("VmSize:\t {} kB\nVmData:\t 5 kB\n", gib(2) / 1024),
        );
    let host = fake.detect();
    assert_eq!(
        (host.available, host.limit),
        (gib(18), HostLimit::AddressSpace { bytes: gib(20) })
    );
}

#[test]
fn a_data_segment_limit_leaves_what_is_not_taken_yet() {
    let limits = format!(
        "Max data size  {}  unlimited  bytes\nMax address space  unlimited  unlimited  bytes\n",
        gib(20)
    );
    let fake = Fake::new().file("/proc/self/limits", limits).file(
        "/proc/self/status",
        format!(
            "VmSize:\t {} kB\nVmData:\t {} kB\n",
            gib(19) / 1024,
            gib(1) / 1024
        ),
    );
    let host = fake.detect();
    assert_eq!(
        (host.available, host.limit),
        (gib(19), HostLimit::DataSegment { bytes: gib(20) })
    );
}

#[test]
fn two_threads_of_one_core_are_one_core() {
    let mut fake = Fake::new();
    for (cpu, package, core) in [(0, 0, 0), (1, 0, 1), (2, 0, 0), (3, 0, 1), (4, 1, 0)] {
        let topology = format!("/sys/devices/system/cpu/cpu{cpu}/topology");
        fake = fake
            .file(
                &format!("{topology}/physical_package_id"),
                format!("{package}\n"),
            )
            .file(&format!("{topology}/core_id"), format!("{core}\n"));
    }
    assert_eq!(fake.detect().physical_cores, Some(3));
    assert_eq!(Fake::new().detect().physical_cores, None);
}

#[cfg(target_os = "linux")]
#[test]
fn this_very_machine_has_memory_and_cores() {
    let (host, _) = Host::detect();
    assert!(host.total > mib(256), "{host}");
    assert!(
        host.available > 0 && host.available <= host.system_available,
        "{host}"
    );
    assert!(host.system_available <= host.total, "{host}");
}

/// One group's files: limit, use, cache; any of them may be absent or nonsense.
fn group() -> impl Strategy<Value = [Option<String>; 4]> {
    let number = || {
        prop::option::of(prop::strategy::Union::new([
            (0..gib(128)).prop_map(|bytes| bytes.to_string()).boxed(),
            any::<u64>().prop_map(|bytes| bytes.to_string()).boxed(),
            prop::sample::select(vec!["max", "", "-1", "x"])
                .prop_map(str::to_owned)
                .boxed(),
        ]))
    };
    [number(), number(), number(), number()]
}

/// The folders of so many nested groups, outermost first.
fn nested(groups: &[[Option<String>; 4]]) -> Fake {
    let path: String = (0..groups.len())
        .map(|level| format!("/g{level}"))
        .collect();
    let mut fake = Fake::new().in_group(&format!("0::{path}\n"), V2_MOUNT);
    let mut folder = "/sys/fs/cgroup".to_owned();
    for (level, [max, high, current, cache]) in groups.iter().enumerate() {
        folder = format!("{folder}/g{level}");
        for (name, value) in [
            ("memory.max", max),
            ("memory.high", high),
            ("memory.current", current),
        ] {
            if let Some(value) = value {
                fake = fake.file(&format!("{folder}/{name}"), value);
            }
        }
        if let Some(cache) = cache {
            fake = fake.file(
                &format!("{folder}/memory.stat"),
                format!("inactive_file {cache}\nactive_file 1\n"),
            );
        }
    }
    fake
}

proptest! {
    // Each case writes a machine's files.
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_further_group_never_leaves_more(groups in prop::collection::vec(group(), 1..5)) {
        let with_all = nested(&groups).detect().available;
        let without_the_innermost = nested(&groups[..groups.len() - 1]).detect().available;
        prop_assert!(with_all <= without_the_innermost);
    }

    #[test]
    fn no_limit_leaves_more_than_the_system_has(groups in prop::collection::vec(group(), 0..4), available in 0..gib(80)) {
        let host = nested(&groups).meminfo(gib(64), available).detect();
        prop_assert!(host.available <= host.system_available);
        prop_assert!(host.system_available <= host.total);
        prop_assert_eq!(host.system_available, (available / 1024 * 1024).min(gib(64)));
    }

    #[test]
    fn no_text_in_any_file_makes_detection_panic(
        texts in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..200), 7),
    ) {
        let paths = [
            "/proc/meminfo", "/proc/self/cgroup", "/proc/self/mountinfo", "/proc/self/limits", "/proc/self/status",
            "/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.stat",
        ];
        let fake = paths.iter().zip(&texts).fold(Fake::new(), |fake, (path, text)| fake.file(path, text));
        let host = fake.detect();
        prop_assert!(host.available <= host.system_available);
    }

    #[test]
    fn no_mount_line_or_group_makes_detection_panic(mount in "[0-9a-z/\\\\ ,:.-]{0,80}", group in "[0-9a-z/:.]{0,40}") {
        let mountinfo = format!("{mount}\n1 2 3:4 {mount} {mount} rw - cgroup2 x rw\n5 6 7:8 {mount} /m rw - cgroup c memory\n");
        let host = Fake::new().in_group(&format!("0::/{group}\n4:memory:/{group}\n{group}\n"), &mountinfo).detect();
        prop_assert!(host.available <= host.system_available);
    }
}
