//! Windows, macOS and the rest: what the `sysinfo` crate says. Compiled for them here, not run there.

use sysinfo::{CpuRefreshKind, MemoryRefreshKind, System};

use super::{Host, HostLimit};
use crate::machine::note::{Note, Notes};

pub(super) fn detect() -> (Host, Vec<Note>) {
    let mut notes = Notes::default();
    let mut system = System::new();
    system.refresh_memory_specifics(MemoryRefreshKind::nothing().with_ram());
    let total = system.total_memory();
    if total == 0 {
        notes.add(
            "host memory",
            "is unknown on this system: none is counted on",
        );
    }
    system.refresh_cpu_list(CpuRefreshKind::nothing());
    let cpu = system.cpus().first().map(|cpu| cpu.brand().trim());
    let cpu = cpu.filter(|name| !name.is_empty()).map(str::to_owned);
    let available = system.available_memory().min(total);
    let host = Host {
        total,
        available,
        system_available: available,
        limit: if total == 0 {
            HostLimit::Unknown
        } else {
            HostLimit::System
        },
        cpu,
        physical_cores: System::physical_core_count().and_then(|cores| u32::try_from(cores).ok()),
        usable_cores: None,
        bandwidth: None,
        disk: None,
        rates: None,
    };
    (host, notes.into_vec())
}
