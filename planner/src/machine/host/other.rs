//! The host under Windows, macOS and other systems, as the `sysinfo` crate reports it. This code compiles for these
//! systems. It has run under Wine, but on no real Windows or macOS.

use sysinfo::{CpuRefreshKind, MemoryRefreshKind, System};

use super::{Host, HostLimit};
use crate::machine::tree::{Note, Notes};

pub(super) fn detect() -> (Host, Vec<Note>) {
    let mut notes = Notes::default();
    let mut system = System::new();
    system.refresh_memory_specifics(MemoryRefreshKind::nothing().with_ram());
    let total = system.total_memory();
    if total == 0 {
        notes.add("host memory", "is unknown on this system and counts as 0");
    }
    system.refresh_cpu_list(CpuRefreshKind::nothing());
    let cpu = system.cpus().first().map(|cpu| cpu.brand().trim()).filter(|name| !name.is_empty()).map(str::to_owned);
    let cores = System::physical_core_count();
    let mut host = Host::new(total).available(system.available_memory());
    host.limit = if total == 0 { HostLimit::Unknown } else { HostLimit::System };
    host.cpu = cpu;
    host.physical_cores = cores.and_then(|cores| u32::try_from(cores).ok());
    host.usable_cores = performance_cores();
    (host, notes.0)
}

/// Apple's processors also have efficiency cores, which llama.cpp's tools leave out
/// (`common_cpu_get_num_physical_cores`).
#[cfg(target_os = "macos")]
fn performance_cores() -> Option<u32> {
    let mut sysctl = std::process::Command::new("/usr/sbin/sysctl");
    let output = sysctl.args(["-n", "hw.perflevel0.physicalcpu"]).output().ok()?;
    str::from_utf8(&output.stdout).ok()?.trim().parse().ok()
}

#[cfg(not(target_os = "macos"))]
const fn performance_cores() -> Option<u32> {
    None
}
