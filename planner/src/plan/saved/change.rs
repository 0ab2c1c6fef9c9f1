//! What of a machine has changed since a plan was made for it, as far as the plan minds.

use std::fmt;

use crate::machine::{Bytes, Gpu, Machine};
use crate::memory::{Footprint, Footprints};
use crate::plan::{Placement, PlacementKind};

use super::SavedPlan;

/// A difference between the machine that a plan was made for and another that keeps the plan from being followed.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum MachineChange {
    /// A GPU of the plan was never a device of llama.cpp.
    Hypothetical {
        /// The GPU's name for people.
        gpu: String,
    },
    /// A GPU of the plan is not there.
    GpuGone {
        /// The GPU's name for people.
        gpu: String,
        /// ggml's name of it.
        device: String,
    },
    /// Another GPU has the name in ggml of one of the plan.
    OtherGpu {
        /// ggml's name of both.
        device: String,
        /// What the plan's is called, with its address where only that differs.
        was: String,
        /// What the other is called.
        is: String,
    },
    /// A GPU is driven by another backend.
    Backend {
        /// The GPU's name for people.
        gpu: String,
        /// The backend that the plan was made for.
        was: String,
        /// The backend that drives it now.
        is: String,
    },
    /// A GPU has another driver, which may take more for itself.
    Driver {
        /// The GPU's name for people.
        gpu: String,
        /// The version that the plan was made with.
        was: String,
        /// The version now.
        is: String,
    },
    /// A GPU has another number of bytes.
    Total {
        /// The GPU's name for people.
        gpu: String,
        /// Bytes that it had.
        was: u64,
        /// Bytes that it has.
        is: u64,
    },
    /// A GPU has less free than the plan needs of it.
    LessFree {
        /// The GPU's name for people.
        gpu: String,
        /// Bytes that the plan takes, what the driver takes and what grows included.
        needed: u64,
        /// Bytes that are free.
        free: u64,
    },
    /// The host has less memory for this process than the plan needs.
    HostTooSmall {
        /// Bytes that the plan takes, those of GPUs in the host's memory included.
        needed: u64,
        /// Bytes that this process may take.
        available: u64,
    },
}

impl fmt::Display for MachineChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Hypothetical { gpu } => write!(f, "{gpu} was planned for without being there"),
            Self::GpuGone { gpu, device } => write!(f, "{gpu} ({device}) is gone"),
            Self::OtherGpu { device, was, is } => write!(f, "{device} was {was} and is {is}"),
            Self::Backend { gpu, was, is } => {
                write!(f, "{gpu} was driven by {was} and is by {is}")
            }
            Self::Driver { gpu, was, is } => {
                write!(f, "{gpu} had driver {was} and has {is}")
            }
            Self::Total { gpu, was, is } => {
                write!(f, "{gpu} had {} and has {}", Bytes(*was), Bytes(*is))?;
                if Bytes(*was).to_string() == Bytes(*is).to_string() {
                    write!(f, " ({was} and {is} bytes)")?;
                }
                Ok(())
            }
            Self::LessFree { gpu, needed, free } => {
                let (needed, free) = (Bytes(*needed), Bytes(*free));
                write!(f, "{gpu} has {free} free, and the plan needs {needed}")
            }
            Self::HostTooSmall { needed, available } => {
                let (needed, available) = (Bytes(*needed), Bytes(*available));
                write!(
                    f,
                    "the host has {available} to give, and the plan needs {needed}"
                )
            }
        }
    }
}

impl MachineChange {
    /// Several changes in a line.
    #[must_use]
    pub fn list(changes: &[Self]) -> String {
        let all: Vec<String> = changes.iter().map(Self::to_string).collect();
        all.join("; ")
    }
}

impl SavedPlan {
    /// What keeps the plan from being followed on this machine; nothing where it can be.
    ///
    /// More or less free memory is no change as long as the plan still fits: what it takes, and the parts of its
    /// headroom that are for the driver and for growth. The third, the margin, is there for just such differences. GPUs
    /// that the plan does not use do not matter.
    #[must_use]
    pub fn changes(&self, machine: &Machine) -> Vec<MachineChange> {
        let footprints = self.plan.placements.iter().map(|one| one.footprint);
        self.changes_if(machine, &footprints.collect::<Vec<_>>())
    }

    /// The same, where llama.cpp says of the plan's placement that it takes these bytes. `output` may be left out, as
    /// in a [`Probe`](crate::plan::Probe)'s answer.
    #[must_use]
    pub fn changes_by(&self, machine: &Machine, footprints: &Footprints) -> Vec<MachineChange> {
        let host = self.plan.host().map(|host| host.footprint);
        let mut all = footprints.gpus.clone();
        all.resize(self.plan.gpus().count(), Footprint::default());
        let mut measured = footprints.host;
        if footprints.output == 0 {
            // The buffer of logits, which llama.cpp does not count, is what the plan's compute has more.
            let planned = host.unwrap_or_default().compute;
            measured.compute = measured.compute.max(planned);
        }
        all.push(measured);
        self.changes_if(machine, &all)
    }

    /// `footprints` are in the order of the plan's placements: its GPUs, then the host.
    fn changes_if(&self, machine: &Machine, footprints: &[Footprint]) -> Vec<MachineChange> {
        let mut changes = Vec::new();
        // What may be dropped and read again needs no room.
        let paged = self.plan.paging.map_or(0, |paging| paging.bytes);
        let mut host = 0_u64;
        for (placement, footprint) in self.plan.placements.iter().zip(footprints) {
            let needed = footprint
                .total()
                .saturating_add(placement.headroom.driver)
                .saturating_add(placement.headroom.growth)
                .saturating_add(placement.companions);
            if placement.kind == PlacementKind::Host {
                host = host.saturating_add(needed);
                continue;
            }
            match self.same_gpu(machine, placement) {
                Ok(gpu) if gpu.free < needed => changes.push(MachineChange::LessFree {
                    gpu: placement.name.clone(),
                    needed,
                    free: gpu.free,
                }),
                // Of its companions the host's part is among the host's.
                Ok(gpu) => {
                    let beside = needed.saturating_sub(footprint.total());
                    let of_host = gpu.bytes_of_host(footprint.total(), beside);
                    host = host.saturating_add(of_host);
                }
                Err(change) => changes.push(change),
            }
        }
        host = host.saturating_sub(paged);
        let available = machine.host.available;
        if available < host {
            changes.push(MachineChange::HostTooSmall {
                needed: host,
                available,
            });
        }
        changes
    }

    /// The GPU of this machine that is the plan's.
    fn same_gpu<'m>(
        &self,
        machine: &'m Machine,
        placement: &Placement,
    ) -> Result<&'m Gpu, MachineChange> {
        let name = &placement.name;
        let Some(device) = &placement.device else {
            return Err(MachineChange::Hypothetical { gpu: name.clone() });
        };
        let has_name = |gpu: &&Gpu| gpu.device.as_ref() == Some(device);
        let Some(gpu) = machine.gpus.iter().find(has_name) else {
            return Err(MachineChange::GpuGone {
                gpu: name.clone(),
                device: device.clone(),
            });
        };
        if gpu.name != *name {
            return Err(MachineChange::OtherGpu {
                device: device.clone(),
                was: name.clone(),
                is: gpu.name.clone(),
            });
        }
        if gpu.backend != placement.backend {
            return Err(MachineChange::Backend {
                gpu: name.clone(),
                was: placement.backend.clone(),
                is: gpu.backend.clone(),
            });
        }
        let planned = self.machine.gpus.iter().find(has_name);
        if let (Some(was), Some(is)) = (planned.and_then(|gpu| gpu.pci_id), gpu.pci_id)
            && was != is
        {
            return Err(MachineChange::OtherGpu {
                device: device.clone(),
                was: format!("{name} at {was}"),
                is: format!("{name} at {is}"),
            });
        }
        if let (Some(was), Some(is)) = (planned.and_then(|gpu| gpu.driver.as_ref()), &gpu.driver)
            && was != is
        {
            return Err(MachineChange::Driver {
                gpu: name.clone(),
                was: was.clone(),
                is: is.clone(),
            });
        }
        if gpu.total != placement.total {
            return Err(MachineChange::Total {
                gpu: name.clone(),
                was: placement.total,
                is: gpu.total,
            });
        }
        Ok(gpu)
    }
}

#[cfg(test)]
mod tests {
    use super::MachineChange;
    use crate::machine::{Gpu, Host, Machine, PciId, gib, mib};
    use crate::memory::{Footprint, Footprints};
    use crate::plan::saved::tests::saved;

    fn machine() -> Machine {
        let card = Gpu::new("RTX 3050")
            .total(gib(6))
            .free(mib(5632))
            .device("CUDA0");
        Machine::new(Host::new(gib(32)).available(gib(24)))
            .with_gpu(card.pci_id(PciId::new(0, 1, 0, 0)))
    }

    /// What is said once the machine was changed.
    #[track_caller]
    fn said(change: impl FnOnce(&mut Machine)) -> String {
        let mut machine = machine();
        assert_eq!(saved().changes(&machine), []);
        change(&mut machine);
        let changes = saved().changes(&machine);
        assert_eq!(changes.len(), 1, "{changes:?}");
        MachineChange::list(&changes)
    }

    #[test]
    fn each_change_is_said_in_a_line() {
        assert_eq!(said(|it| it.gpus.clear()), "RTX 3050 (CUDA0) is gone");
        assert_eq!(
            said(|it| it.gpus[0].name = "RTX 5090".to_owned()),
            "CUDA0 was RTX 3050 and is RTX 5090"
        );
        assert_eq!(
            said(|it| it.gpus[0].backend = "Vulkan".to_owned()),
            "RTX 3050 was driven by CUDA and is by Vulkan"
        );
        assert_eq!(
            said(|it| it.gpus[0].pci_id = Some(PciId::new(0, 2, 0, 0))),
            "CUDA0 was RTX 3050 at 0000:01:00.0 and is RTX 3050 at 0000:02:00.0"
        );
        let mut before = saved();
        before.machine.gpus[0].driver = Some("550.54".to_owned());
        let mut now = machine();
        now.gpus[0].driver = Some("560.10".to_owned());
        assert_eq!(
            MachineChange::list(&before.changes(&now)),
            "RTX 3050 had driver 550.54 and has 560.10"
        );
        assert_eq!(
            said(|it| it.gpus[0].total = gib(8)),
            "RTX 3050 had 6.0 GiB and has 8.0 GiB"
        );
        assert_eq!(
            said(|it| it.gpus[0].total -= 1),
            "RTX 3050 had 6.0 GiB and has 6.0 GiB (6442450944 and 6442450943 bytes)"
        );
        assert_eq!(
            said(|it| it.gpus[0].free = mib(4339)),
            "RTX 3050 has 4.2 GiB free, and the plan needs 4.2 GiB"
        );
        assert_eq!(
            said(|it| it.host.available = gib(2)),
            "the host has 2.0 GiB to give, and the plan needs 2.4 GiB"
        );
    }

    #[test]
    fn free_memory_may_change_as_long_as_it_is_enough() {
        let mut machine = machine();
        machine.gpus[0].free = mib(4340);
        assert_eq!(saved().changes(&machine), []);
        machine.gpus[0].free = gib(6);
        machine
            .gpus
            .push(Gpu::new("RTX 5090").total(gib(32)).device("CUDA1"));
        assert_eq!(saved().changes(&machine), []);
    }

    #[test]
    fn a_gpu_that_was_never_there_is_said_to_be_so() {
        let mut saved = saved();
        saved.plan.placements[0].device = None;
        let changes = saved.changes(&machine());
        assert_eq!(
            MachineChange::list(&changes),
            "RTX 3050 was planned for without being there"
        );
    }

    #[test]
    fn what_llama_cpp_says_now_counts_more_than_what_the_file_says() {
        let saved = saved();
        let host = saved.plan.host().unwrap().footprint;
        let footprints = |gpu| Footprints::new(vec![gpu], host);
        let planned = saved.plan.placements[0].footprint;
        assert_eq!(saved.changes_by(&machine(), &footprints(planned)), []);
        let more = Footprint::new(gib(6), 0, 0);
        let changes = saved.changes_by(&machine(), &footprints(more));
        assert!(
            matches!(changes[..], [MachineChange::LessFree { .. }]),
            "{changes:?}"
        );
        let mut tampered = saved;
        tampered.plan.placements[0].footprint = Footprint::default();
        let changes = tampered.changes_by(&machine(), &footprints(more));
        assert!(
            matches!(changes[..], [MachineChange::LessFree { .. }]),
            "{changes:?}"
        );
    }
}
