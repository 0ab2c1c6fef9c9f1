//! Windows, macOS and the rest: what the `sysinfo` crate says. Compiled for them here, not run there.

use sysinfo::{MemoryRefreshKind, System};

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
        physical_cores: System::physical_core_count().and_then(|cores| u32::try_from(cores).ok()),
    };
    (host, notes.into_vec())
}
