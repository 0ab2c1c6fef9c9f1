//! The host's memory that this process may take. Each test writes the `/proc` and `/sys` of a machine into a folder and
//! detects it.

use crate::folder::Fake;
use autoplace_planner::machine::{Host, HostLimit, gib, mib};
use proptest::prelude::{ProptestConfig, Strategy, any, prop, prop_assert, prop_oneof, proptest};
use test_support::table::rows;

const V2_MOUNT: &str = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate";
const V1_MOUNT: &str = "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory";

/// Adds the files of a control group, in the notation of `machine_host.txt`.
fn with_files(fake: Fake, word: &str) -> Fake {
    let (kind, rest) = word.split_once(':').expect(word);
    if kind == "file" {
        let (path, text) = rest.split_once('=').expect(word);
        // In a file's name, an underscore stands for itself. In a folder's name, it stands for a space.
        let (folder, name) = path.rsplit_once('/').unwrap();
        let path = format!("{}/{name}", folder.replace('_', " ").replace('^', "\t"));
        return fake.file(&path, text.replace("limit_", "limit "));
    }
    let [folder, limit, used, cache] = rest.split(',').collect::<Vec<_>>()[..] else {
        panic!("{word}");
    };
    let bytes = |text: &str| match (text.parse(), kind) {
        (Ok(size), _) => gib(size).to_string(),
        (_, "v1") => 0x7fff_ffff_ffff_f000_u64.to_string(),
        _ => text.to_owned(),
    };
    let (names, total) = match kind {
        "v1" => (["memory.limit_in_bytes", "memory.usage_in_bytes"], "total_"),
        _ => (["memory.max", "memory.current"], ""),
    };
    let cache = bytes(cache);
    let stat = format!("anon 5\ncache 1\n{total}inactive_file {cache}\n{total}active_file {cache}");
    let files = names.into_iter().zip([bytes(limit), bytes(used)]).chain([("memory.stat", stat)]);
    files.fold(fake, |fake, (name, text)| fake.file(&format!("{folder}/{name}"), text + "\n"))
}

#[test]
fn the_group_with_the_fewest_remaining_bytes_decides() {
    for row in rows(include_str!("machine_host.txt")) {
        let [what, groups, mounts, files, left, decides, said] = row;
        let lines = |text: &str| text.replace(';', "\n") + "\n";
        let mounts = match mounts {
            "v1" => V1_MOUNT,
            "v2" => V2_MOUNT,
            other => other,
        };
        let fake = Fake::new().file("/proc/self/cgroup", lines(groups)).file("/proc/self/mountinfo", lines(mounts));
        let fake = files.split_whitespace().fold(fake, with_files);
        let (host, notes) = Host::detect_under(&fake.path("/"));
        assert_eq!(host.available, gib(left.parse().unwrap()), "{what}");
        assert_eq!(host.system_available, gib(48), "{what}");
        match &host.limit {
            HostLimit::Cgroup { file, .. } => assert_eq!(file, decides, "{what}"),
            other => assert_eq!((other, decides), (&HostLimit::System, ""), "{what}"),
        }
        let notes: Vec<String> = notes.iter().map(ToString::to_string).collect();
        match said {
            "" => assert_eq!(notes, [""; 0], "{what}"),
            "*" => assert_eq!(notes.len(), 1, "{what}: {notes:?}"),
            said => assert_eq!(notes, [said], "{what}"),
        }
    }
}

#[test]
fn a_host_states_its_memory_and_its_limit() {
    let host = Fake::new().host();
    assert_eq!((host.total, host.limit), (gib(64), HostLimit::System));
    assert_eq!(Fake::new().host().to_string(), "host: 48.0 GiB free of 64.0 GiB");
    let fake = Fake::new().file("/proc/self/cgroup", "0::/app.slice\n");
    let fake = fake.file("/proc/self/mountinfo", V2_MOUNT);
    let text = "host: 12.0 GiB free of 64.0 GiB (limited to 16.0 GiB by /sys/fs/cgroup/app.slice/memory.max; \
                the system has 48.0 GiB free)";
    let limited = with_files(fake, "v2:/sys/fs/cgroup/app.slice,16,4,0");
    assert_eq!(limited.host().to_string(), text);
}

#[test]
fn without_memavailable_free_memory_and_cache_minus_shared_memory_count() {
    let fake = Fake::new().file("/proc/meminfo", "MemTotal: 1000 kB\nMemFree: 300 kB\nCached: 200 kB\nShmem: 50 kB\n");
    let (host, notes) = Host::detect_under(&fake.path("/"));
    assert_eq!(host.available, 450 * 1024);
    let note = "/proc/meminfo: has no MemAvailable: taken as MemFree + Cached - Shmem";
    assert_eq!(notes[0].to_string(), note);
}

#[test]
fn a_machine_without_reports_has_no_available_memory() {
    for text in ["", "MemTotal: lots\n", "\u{0}\u{1}garbage"] {
        let fake = Fake::new().file("/proc/meminfo", text);
        let (host, notes) = Host::detect_under(&fake.path("/"));
        let found = (host.total, host.available, host.limit, notes.len());
        assert_eq!(found, (0, 0, HostLimit::Unknown, 1), "{text:?}");
    }
    let empty = tempfile::tempdir().unwrap();
    assert_eq!(Host::detect_under(empty.path()).0.limit, HostLimit::Unknown);
}

#[test]
fn a_limit_of_the_process_leaves_the_bytes_that_are_not_yet_taken() {
    let bytes = gib(20);
    for (limited, other, [size, taken], left, limit) in [
        ("Max address space", "Max data size", [gib(2), 5 << 10], 18, HostLimit::AddressSpace { bytes }),
        ("Max data size", "Max address space", [gib(19), gib(1)], 19, HostLimit::DataSegment { bytes }),
    ] {
        let limits =
            format!("{other}  unlimited  unlimited  bytes\n{limited}       {bytes}    unlimited       bytes\n");
        let status = format!("VmSize:\t {} kB\nVmData:\t {} kB\n", size / 1024, taken / 1024);
        let fake = Fake::new().file("/proc/self/limits", limits);
        let host = fake.file("/proc/self/status", status).host();
        assert_eq!((host.available, host.limit), (gib(left), limit));
    }
}

#[cfg(target_os = "linux")]
#[test]
fn this_computer_has_memory_and_cores() {
    let (host, _) = Host::detect();
    assert!(host.total > mib(256) && host.available > 0, "{host}");
    assert!(host.available <= host.system_available, "{host}");
    assert!(host.system_available <= host.total, "{host}");
}

/// The files of one control group: limits, use, cache. Any of them may be missing or invalid.
fn group() -> impl Strategy<Value = [Option<String>; 4]> {
    let number = || {
        let bytes = prop_oneof![0..gib(128), any::<u64>()].prop_map(|bytes| bytes.to_string());
        let word = prop::sample::select(&["max", "", "-1", "x"]).prop_map(str::to_owned);
        prop::option::of(prop_oneof![2 => bytes, 1 => word])
    };
    let cache = number().prop_map(|cache| Some(format!("inactive_file {}\nactive_file 1\n", cache?)));
    (number(), number(), number(), cache).prop_map(<[Option<String>; 4]>::from)
}

/// The folders of nested groups, outermost first.
fn nested(groups: &[[Option<String>; 4]]) -> Fake {
    let path: String = (0..groups.len()).map(|level| format!("/g{level}")).collect();
    let fake = Fake::new().file("/proc/self/cgroup", format!("0::{path}\n"));
    let mut fake = fake.file("/proc/self/mountinfo", V2_MOUNT);
    let mut folder = "/sys/fs/cgroup".to_owned();
    for (level, group) in groups.iter().enumerate() {
        folder += &format!("/g{level}");
        for (name, text) in ["memory.max", "memory.high", "memory.current", "memory.stat"].into_iter().zip(group) {
            if let Some(text) = text {
                fake = fake.file(&format!("{folder}/{name}"), text);
            }
        }
    }
    fake
}

proptest! {
    // Each case writes the files of a machine, so there are only a few cases.
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_further_group_never_leaves_more(groups in prop::collection::vec(group(), 1..5)) {
        let with_all = nested(&groups).host().available;
        let without_the_innermost = nested(&groups[..groups.len() - 1]).host().available;
        prop_assert!(with_all <= without_the_innermost && without_the_innermost <= gib(48));
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
        let host = fake.host();
        prop_assert!(host.available <= host.system_available);
    }
}
