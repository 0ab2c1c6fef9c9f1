//! What of a machine has changed since a plan was made for it, as far as the plan minds.

use crate::machine::{Bytes, Gpu, Machine};
use crate::memory::{Footprint, Footprints};
use crate::plan::{Placement, PlacementKind};

use super::SavedPlan;

/// A difference between the machine that a plan was made for and another that keeps the plan from being followed. Sizes
/// in bytes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)] // The fields are named for what the message says of them.
pub enum MachineChange {
    /// The GPU of this name was never a device of llama.cpp.
    #[error("{0} was planned for without being there")]
    Hypothetical(String),
    /// A GPU of the plan is not there.
    #[error("{gpu} ({device}) is gone")]
    GpuGone { gpu: String, device: String },
    /// A GPU has another name, address, backend, driver or size than the plan's.
    #[error("{gpu} {was} and {is}")]
    OtherGpu { gpu: String, was: String, is: String },
    /// A GPU has less free than the plan needs of it, what the driver takes and what grows included.
    #[error("{gpu} has {} free, and the plan needs {}", Bytes(*free), Bytes(*needed))]
    LessFree { gpu: String, needed: u64, free: u64 },
    /// The host has less memory for this process than the plan needs, that of GPUs in the host's memory included.
    #[error("the host has {} to give, and the plan needs {}", Bytes(*available), Bytes(*needed))]
    HostTooSmall { needed: u64, available: u64 },
}

impl MachineChange {
    /// Several changes in a line.
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
    pub fn changes(&self, machine: &Machine) -> Vec<MachineChange> {
        let footprints = self.plan.placements.iter().map(|one| one.footprint);
        self.changes_if(machine, &footprints.collect::<Vec<_>>())
    }

    /// The same, where llama.cpp says of the plan's placement that it takes these bytes. `output` may be left out, as
    /// in a [`Probe`](crate::plan::Probe)'s answer.
    pub fn changes_by(&self, machine: &Machine, footprints: &Footprints) -> Vec<MachineChange> {
        let mut all = footprints.gpus.clone();
        all.resize(self.plan.gpus().count(), Footprint::default());
        let mut host = footprints.host;
        if footprints.output == 0 {
            // The buffer of logits, which llama.cpp does not count, is what the plan's compute has more.
            let planned = self.plan.host().map_or(0, |host| host.footprint.compute);
            host.compute = host.compute.max(planned);
        }
        all.push(host);
        self.changes_if(machine, &all)
    }

    /// `footprints` are in the order of the plan's placements: its GPUs, then the host.
    fn changes_if(&self, machine: &Machine, footprints: &[Footprint]) -> Vec<MachineChange> {
        let mut changes = Vec::new();
        let mut host = 0_u64;
        for (placement, footprint) in self.plan.placements.iter().zip(footprints) {
            let headroom = placement.headroom.driver.saturating_add(placement.headroom.growth);
            let beside = headroom.saturating_add(placement.companions);
            let needed = footprint.total().saturating_add(beside);
            let of_host = match self.same_gpu(machine, placement) {
                _ if placement.kind == PlacementKind::Host => needed,
                Ok(gpu) if gpu.free >= needed => gpu.bytes_of_host(footprint.total(), beside),
                Ok(gpu) => {
                    let (gpu, free) = (placement.name.clone(), gpu.free);
                    changes.push(MachineChange::LessFree { gpu, needed, free });
                    0
                }
                Err(change) => {
                    changes.push(change);
                    0
                }
            };
            host = host.saturating_add(of_host);
        }
        // What may be dropped and read again needs no room.
        let paged = self.plan.paging.map_or(0, |paging| paging.bytes);
        let (needed, available) = (host.saturating_sub(paged), machine.host.available);
        if available < needed {
            changes.push(MachineChange::HostTooSmall { needed, available });
        }
        changes
    }

    /// The GPU of this machine that is the plan's.
    fn same_gpu<'m>(&self, machine: &'m Machine, placement: &Placement) -> Result<&'m Gpu, MachineChange> {
        let name = &placement.name;
        let Some(device) = &placement.device else {
            return Err(MachineChange::Hypothetical(name.clone()));
        };
        let has_name = |gpu: &&Gpu| gpu.device.as_ref() == Some(device);
        let Some(gpu) = machine.gpus.iter().find(has_name) else {
            let (gpu, device) = (name.clone(), device.clone());
            return Err(MachineChange::GpuGone { gpu, device });
        };
        let planned = self.machine.gpus.iter().find(has_name);
        let both = |of: fn(&Gpu) -> Option<String>| planned.and_then(of).zip(of(gpu));
        let address = |gpu: &Gpu| Some(format!("{} at {}", gpu.name, gpu.pci_id?));
        let backends = (placement.backend.clone(), gpu.backend.clone());
        for (what, was, is, values) in [
            (device, "was", "is", Some((name.clone(), gpu.name.clone()))),
            (name, "was driven by", "is by", Some(backends)),
            (device, "was", "is", both(address)),
            (name, "had driver", "has", both(|gpu| gpu.driver.clone())),
        ] {
            if let Some((before, now)) = values.filter(|(before, now)| before != now) {
                return Err(MachineChange::OtherGpu {
                    gpu: what.clone(),
                    was: format!("{was} {before}"),
                    is: format!("{is} {now}"),
                });
            }
        }
        if gpu.total == placement.total {
            return Ok(gpu);
        }
        let (was, is) = (Bytes(placement.total), Bytes(gpu.total));
        let exactly = match was.to_string() == is.to_string() {
            true => format!(" ({} and {} bytes)", was.0, is.0),
            false => String::new(),
        };
        Err(MachineChange::OtherGpu { gpu: name.clone(), was: format!("had {was}"), is: format!("has {is}{exactly}") })
    }
}

#[cfg(test)]
mod tests {
    use super::{MachineChange, SavedPlan};
    use crate::machine::{Gpu, Machine, PciId, gib, mib};
    use crate::memory::{Footprint, Footprints};
    use crate::plan::saved::tests::{machine, saved};

    #[test]
    fn each_change_is_said_in_a_line() {
        type Edit = fn(&mut SavedPlan, &mut Machine);
        let cases: [(Edit, &str); 13] = [
            (|_, it| it.gpus.clear(), "RTX 3050 (CUDA0) is gone"),
            (|_, it| it.gpus[0].name = "RTX 5090".to_owned(), "CUDA0 was RTX 3050 and is RTX 5090"),
            (|_, it| it.gpus[0].backend = "Vulkan".to_owned(), "RTX 3050 was driven by CUDA and is by Vulkan"),
            (
                |_, it| it.gpus[0].pci_id = Some(PciId::new(0, 2, 0, 0)),
                "CUDA0 was RTX 3050 at 0000:01:00.0 and is RTX 3050 at 0000:02:00.0",
            ),
            (
                |saved, it| {
                    saved.machine.gpus[0].driver = Some("550.54".to_owned());
                    it.gpus[0].driver = Some("560.10".to_owned());
                },
                "RTX 3050 had driver 550.54 and has 560.10",
            ),
            (|_, it| it.gpus[0].total = gib(8), "RTX 3050 had 6.0 GiB and has 8.0 GiB"),
            (|_, it| it.gpus[0].total -= 1, "RTX 3050 had 6.0 GiB and has 6.0 GiB (6442450944 and 6442450943 bytes)"),
            (|_, it| it.gpus[0].free = mib(4339), "RTX 3050 has 4.2 GiB free, and the plan needs 4.2 GiB"),
            (|_, it| it.host.available = gib(2), "the host has 2.0 GiB to give, and the plan needs 2.4 GiB"),
            (|saved, _| saved.plan.placements[0].device = None, "RTX 3050 was planned for without being there"),
            // More or less memory is no change as long as it is enough, and neither is another GPU.
            (|_, it| it.gpus[0].free = mib(4340), ""),
            (|_, it| it.gpus[0].free = gib(6), ""),
            (
                |_, it| {
                    let other = Gpu::new("RTX 5090").total(gib(32)).device("CUDA1");
                    it.gpus.push(other);
                },
                "",
            ),
        ];
        for (change, text) in cases {
            let (mut saved, mut machine) = (saved(), machine());
            assert_eq!(saved.changes(&machine), []);
            change(&mut saved, &mut machine);
            assert_eq!(MachineChange::list(&saved.changes(&machine)), text);
        }
    }

    #[test]
    fn what_llama_cpp_says_now_counts_more_than_what_the_file_says() {
        let mut saved = saved();
        let host = saved.plan.host().unwrap().footprint;
        let by = |saved: &SavedPlan, gpu| saved.changes_by(&machine(), &Footprints::new(vec![gpu], host));
        assert_eq!(by(&saved, saved.plan.placements[0].footprint), []);
        for tampered in [false, true] {
            if tampered {
                saved.plan.placements[0].footprint = Footprint::default();
            }
            let changes = by(&saved, Footprint::new(gib(6), 0, 0));
            assert!(matches!(changes[..], [MachineChange::LessFree { .. }]), "{changes:?}");
        }
    }
}
