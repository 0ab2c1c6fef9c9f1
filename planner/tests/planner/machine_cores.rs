//! Processors and kernels of Linux machines, read from folders.

use crate::folder::Fake;

#[test]
fn cores_outside_the_affinity_of_the_process_are_not_usable() {
    // Four cores have two threads each. The second threads of the cores have the numbers from 4 on.
    let all: Vec<(u32, u32, u32)> = (0..8).map(|cpu| (cpu, 0, cpu % 4)).collect();
    for (allowed, usable) in [("0-7", 4), ("0-3", 4), ("0,4", 1), ("1-2,5", 2), ("6", 1), ("0-4294967295", 4)] {
        let host = Fake::new()
            .processors(&all)
            .file("/proc/self/status", format!("Name:\tx\nCpus_allowed_list:\t{allowed}\n"))
            .host();
        let cores = (host.physical_cores, host.usable_cores);
        assert_eq!(cores, (Some(4), Some(usable)), "{allowed}");
    }
    // Five threads in two packages. Two pairs of threads share a core, unless one thread of a pair is in another
    // cluster.
    let two = Fake::new().processors(&[(0, 0, 0), (1, 0, 1), (2, 0, 0), (3, 0, 1), (4, 1, 0)]);
    assert_eq!(two.host().physical_cores, Some(3));
    assert_eq!(two.file("/sys/devices/system/cpu/cpu3/topology/cluster_id", "1\n").host().physical_cores, Some(4));
    assert_eq!(Fake::new().processors(&all).host().usable_cores, Some(4));
    let nothing = Fake::new().host();
    assert_eq!((nothing.physical_cores, nothing.usable_cores), (None, None));
}

#[test]
fn performance_cores_compute_unless_the_processor_has_only_one_kind() {
    // Two cores have two threads each and four cores have one thread, numbered as on Intel's processors.
    let all = [(0, 0, 0), (1, 0, 0), (2, 0, 4), (3, 0, 4), (4, 0, 8), (5, 0, 9), (6, 0, 10), (7, 0, 11)];
    for (allowed, usable) in [("0-7", 2), ("0-1,4-7", 1), ("4-6", 3)] {
        let host = Fake::new()
            .processors(&all)
            .file("/sys/devices/cpu_core/cpus", "0-3\n")
            .file("/sys/devices/cpu_atom/cpus", "4-7\n")
            .file("/proc/self/status", format!("Cpus_allowed_list:\t{allowed}\n"))
            .host();
        let cores = (host.physical_cores, host.usable_cores);
        assert_eq!(cores, (Some(6), Some(usable)), "{allowed}");
    }
}

#[test]
fn the_processor_is_named_without_its_spaces() {
    let host = Fake::new()
        .file("/proc/cpuinfo", "processor\t: 0\nmodel name\t: Intel(R)  Core(TM)   i7-8700 CPU\nmodel name\t: other\n")
        .host();
    assert_eq!(host.cpu.as_deref(), Some("Intel(R) Core(TM) i7-8700 CPU"));
    let arm = Fake::new().file("/proc/cpuinfo", "processor\t: 0\nCPU part\t: 0xd0c\n");
    assert_eq!(arm.host().cpu, None);
}

#[test]
fn wsl_is_detected_by_the_release_or_version_of_the_kernel() {
    for (file, text, wsl) in [
        ("sys/kernel/osrelease", "5.15.167.4-microsoft-standard-WSL2\n", true),
        ("sys/kernel/osrelease", "4.4.0-19041-Microsoft\n", true),
        ("sys/kernel/osrelease", "6.8.0-45-generic\n", false),
        ("version", "Linux version 6.6.36.3-custom (root@x) (gcc (GCC) 11.2.0) #1 SMP Microsoft\n", true),
        ("version", "Linux version 6.12.1 (gcc (Debian 14)) #1 SMP\n", false),
        ("uptime", "", false),
    ] {
        let machine = Fake::new().file(&format!("/proc/{file}"), text).detector().detect();
        assert_eq!(machine.wsl, wsl, "{text}");
    }
}
