//! The reasons why a saved plan no longer fits a machine.

use crate::machine::{Bytes, Gpu, Machine};
use crate::memory::{Footprint, Footprints};
use crate::plan::{Placement, PlacementKind, Plan};

use super::SavedPlan;

/// A reason why a saved plan cannot be followed on a machine. Sizes in bytes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)] // The message explains the fields.
pub enum MachineChange {
    /// A GPU of the plan is missing. `device` is its name in ggml; `None` if the plan was made for a hypothetical GPU.
    #[error("there is no {gpu}{} here", device.iter().map(|device| format!(" ({device})")).collect::<String>())]
    GpuGone { gpu: String, device: Option<String> },
    /// A GPU or the host has fewer free bytes than the plan needs there, including the driver's memory and later
    /// growth.
    #[error("{device} has {} free, but the plan needs {}", Bytes(*free), Bytes(*needed))]
    LessFree { device: String, needed: u64, free: u64 },
}

impl SavedPlan {
    /// Like [`Plan::changes`], for the saved plan.
    pub fn changes(&self, machine: &Machine) -> Vec<MachineChange> {
        self.plan.changes(machine)
    }

    /// Like [`Plan::changes_by`], for the saved plan.
    pub fn changes_by(&self, machine: &Machine, footprints: &Footprints) -> Vec<MachineChange> {
        self.plan.changes_by(machine, footprints)
    }
}

impl Plan {
    /// The reasons why the plan cannot be followed on this machine; empty if it can be followed.
    ///
    /// A different amount of free memory does not count as a change as long as the plan still fits. It still fits if
    /// there is memory for its footprints, for its companions, and for the parts of its headroom that are meant for the
    /// driver and for growth. The third part of the headroom, the margin, exists for such differences. GPUs outside the
    /// plan are ignored.
    pub fn changes(&self, machine: &Machine) -> Vec<MachineChange> {
        let footprints = self.placements.iter().map(|placement| placement.footprint);
        self.changes_if(machine, &footprints.collect::<Vec<_>>())
    }

    /// Like [`changes`](Self::changes), but with the bytes that llama.cpp counts for the placement now, instead of the
    /// plan's bytes. `footprints.output` may be 0, as in the answer of a [`Probe`](crate::plan::Probe).
    pub fn changes_by(&self, machine: &Machine, footprints: &Footprints) -> Vec<MachineChange> {
        let mut all = footprints.gpus.clone();
        all.resize(self.gpus().count(), Footprint::default());
        let mut host = footprints.host;
        if footprints.output == 0 {
            // The plan's compute buffer includes the buffer of logits, which llama.cpp does not count.
            let planned = self.host().map_or(0, |host| host.footprint.compute);
            host.compute = host.compute.max(planned);
        }
        all.push(host);
        self.changes_if(machine, &all)
    }

    /// `footprints` are in the order of the plan's placements: first the GPUs, then the host.
    fn changes_if(&self, machine: &Machine, footprints: &[Footprint]) -> Vec<MachineChange> {
        let mut changes = Vec::new();
        let mut of_host = 0_u64;
        for (placement, footprint) in self.placements.iter().zip(footprints) {
            let headroom = placement.headroom.driver.saturating_add(placement.headroom.growth);
            let beside = headroom.saturating_add(placement.companions);
            let needed = footprint.total().saturating_add(beside);
            if placement.kind == PlacementKind::Host {
                of_host = of_host.saturating_add(needed);
                continue;
            }
            let Some(gpu) = same_gpu(machine, placement) else {
                let (gpu, device) = (placement.name.clone(), placement.device.clone());
                changes.push(MachineChange::GpuGone { gpu, device });
                continue;
            };
            if gpu.free < needed {
                changes.push(MachineChange::LessFree { device: placement.name.clone(), needed, free: gpu.free });
            }
            of_host = of_host.saturating_add(gpu.bytes_of_host(footprint.total(), beside));
        }
        // Paged weights need no memory.
        let needed = of_host.saturating_sub(self.paging.map_or(0, |paging| paging.bytes));
        let free = machine.host.available;
        if free < needed {
            changes.push(MachineChange::LessFree { device: "the host".to_owned(), needed, free });
        }
        changes
    }
}

/// The GPU of the machine that has the ggml name of the placement, if it is the same card.
fn same_gpu<'m>(machine: &'m Machine, placement: &Placement) -> Option<&'m Gpu> {
    let device = placement.device.as_ref()?;
    machine.gpus.iter().find(|gpu| gpu.device.as_ref() == Some(device) && gpu.name == placement.name)
}

#[cfg(test)]
mod tests {
    use super::{MachineChange, SavedPlan};
    use crate::machine::{Gpu, Machine, gib, mib};
    use crate::memory::{Footprint, Footprints};
    use crate::plan::error::list;
    use crate::plan::saved::tests::{machine, saved};

    #[test]
    fn a_plan_is_followed_while_it_fits_and_the_missing_part_is_named_in_a_line() {
        type Edit = fn(&mut SavedPlan, &mut Machine);
        let cases: [(Edit, &str); 9] = [
            (|_, machine| machine.gpus.clear(), "there is no RTX 3050 (CUDA0) here"),
            (|_, machine| machine.gpus[0].name = "RTX 5090".to_owned(), "there is no RTX 3050 (CUDA0) here"),
            (|saved, _| saved.plan.placements[0].device = None, "there is no RTX 3050 here"),
            (|_, machine| machine.gpus[0].free = mib(4339), "RTX 3050 has 4.2 GiB free, but the plan needs 4.2 GiB"),
            (|_, machine| machine.host.available = gib(2), "the host has 2.0 GiB free, but the plan needs 2.4 GiB"),
            // A different number of free bytes is accepted if it is enough, and additional GPUs are ignored.
            (|_, machine| machine.gpus[0].free = mib(4340), ""),
            (|_, machine| machine.gpus[0].free = gib(6), ""),
            (|_, machine| machine.gpus[0].total = gib(8), ""),
            (|_, machine| machine.gpus.push(Gpu::new("RTX 5090").total(gib(32)).device("CUDA1")), ""),
        ];
        for (change, text) in cases {
            let (mut saved, mut machine) = (saved(), machine());
            assert_eq!(saved.changes(&machine), []);
            change(&mut saved, &mut machine);
            assert_eq!(list(&saved.changes(&machine)), text);
        }
    }

    #[test]
    fn llama_cpps_current_bytes_replace_those_in_the_file() {
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
