//! Memory ceilings: after a failed attempt, the maximum bytes of a device that count as free in later attempts.
//!
//! Some causes of failures are invisible in the free memory: a buffer that was refused although there was room, pools
//! that found no room, and a load that took more than planned. After such a failure, the device gets a ceiling, so that
//! the next plan takes less of the device's memory.

use crate::machine::Machine;
use crate::plan::{Placement, Plan};

const MIN_STEP: u64 = 64 << 10;

/// The name of the host, among ggml's names of GPUs.
pub(super) const HOST: &str = "host";

/// Upper bounds of the free bytes of each device.
#[derive(Debug, Default)]
pub(super) struct MemoryCeilings {
    ceilings: Vec<(String, u64)>,
    /// The device that last failed for no visible reason, and the number of bytes by which its ceiling is lowered next.
    last: Option<(String, u64)>,
}

impl MemoryCeilings {
    /// Records that `device` (a GPU, or a buffer type of the host) failed with this plan although there was room.
    /// `lacked` is the known number of missing bytes.
    pub(super) fn failed(&mut self, plan: &Plan, device: &str, lacked: u64) {
        let of = |placement: &Placement| (placement.footprint.total(), placement.free.saturating_sub(placement.budget));
        // A companion may be on a GPU that has no layer of the model.
        let beside = plan.companions.iter().find(|one| one.device.as_deref() == Some(device));
        let own = || beside.map(|one| (one.bytes.gpu.total().saturating_add(one.bytes.gpu_uncertainty), 0));
        let gpu = gpu(plan, device).map(of).or_else(own);
        let name = gpu.map_or(HOST, |_| device).to_owned();
        let Some((needed, kept)) = gpu.or_else(|| plan.host().map(of)) else { return };
        let step = lacked.clamp(needed / 16, (needed / 2).max(needed / 16)).max(MIN_STEP);
        // A device that fails again lacks more bytes than was assumed.
        let step = match &self.last {
            Some((last, earlier)) if *last == name => step.max(earlier.saturating_mul(2)),
            _ => step,
        };
        self.lower(&name, needed.saturating_add(kept).saturating_sub(step));
        self.last = Some((name, step));
    }

    /// Records that the load of this plan took more of a GPU than the plan left free.
    pub(super) fn took_more(&mut self, plan: &Plan, device: &str, difference: u64) {
        if let Some(gpu) = gpu(plan, device) {
            self.lower(device, gpu.free.saturating_sub(difference));
        }
    }

    /// Lowers the last ceiling further, because the new plan was the same as before. False if nothing is left to lower.
    pub(super) fn lower_further(&mut self) -> bool {
        let Some((device, step)) = self.last.take() else { return false };
        let ceiling = self.bounded(u64::MAX, &device);
        self.lower(&device, ceiling.saturating_sub(step));
        self.last = Some((device, step.saturating_mul(2)));
        ceiling > 0
    }

    fn lower(&mut self, device: &str, most: u64) {
        self.ceilings.push((device.to_owned(), most));
    }

    fn bounded(&self, free: u64, device: &str) -> u64 {
        self.ceilings.iter().filter(|(name, _)| name == device).fold(free, |free, (_, ceiling)| free.min(*ceiling))
    }

    /// The machine with the ceilings applied.
    pub(super) fn apply(&self, mut machine: Machine) -> Machine {
        for gpu in &mut machine.gpus {
            gpu.free = self.bounded(gpu.free, gpu.device.as_deref().unwrap_or_default());
        }
        machine.host.available = self.bounded(machine.host.available, HOST);
        machine
    }
}

/// The GPU with this ggml name in the plan.
pub(super) fn gpu<'a>(plan: &'a Plan, device: &str) -> Option<&'a Placement> {
    plan.gpus().find(|gpu| gpu.device.as_deref() == Some(device))
}

#[cfg(test)]
mod tests {
    use super::MemoryCeilings;
    use crate::load::draft::beside;
    use crate::load::test_plan::plan;
    use crate::machine::{Gpu, Host, Machine, gib, mib};
    use crate::plan::Plan;

    fn device(plan: &Plan) -> String {
        plan.gpus().next().unwrap().device.clone().unwrap()
    }

    /// The free bytes of the plan's GPU and of the host, after the ceilings were applied to a machine whose memory is
    /// all free.
    fn free(ceilings: &MemoryCeilings) -> (u64, u64) {
        let card = Gpu::new("card").total(gib(1000)).device(device(&plan()));
        let machine = ceilings.apply(Machine::new(Host::new(gib(1000))).with_gpu(card));
        (machine.gpus[0].free, machine.host.available)
    }

    #[test]
    fn a_device_that_failed_gets_no_plan_of_the_same_size_again() {
        let plan = plan();
        let placement = plan.gpus().next().unwrap();
        let (needed, kept) = (placement.footprint.total(), placement.free - placement.budget);
        for lacked in [0, mib(1), needed / 4, u64::MAX] {
            let mut ceilings = MemoryCeilings::default();
            ceilings.failed(&plan, &device(&plan), lacked);
            let step = needed + kept - free(&ceilings).0;
            assert!(step >= needed / 16 && step <= needed / 2, "{step}");
            // Any other buffer type belongs to the host.
            ceilings.failed(&plan, "CPU", lacked);
            assert!(free(&ceilings).1 < plan.host().unwrap().free);
        }
        // A draft model does not return to the card where it failed either.
        let mut ceilings = MemoryCeilings::default();
        ceilings.failed(&beside("CUDA9"), "CUDA9", 0);
        assert!(ceilings.bounded(u64::MAX, "CUDA9") < gib(1) && free(&ceilings) == (gib(1000), gib(1000)));
    }

    #[test]
    fn each_further_failure_lowers_the_ceiling_until_nothing_is_left() {
        let plan = plan();
        let mut ceilings = MemoryCeilings::default();
        assert!(!ceilings.lower_further(), "nothing has failed");
        let mut before = free(&ceilings).0;
        for _ in 0..4 {
            ceilings.failed(&plan, &device(&plan), 0);
            assert!(free(&ceilings).0 < before);
            before = free(&ceilings).0;
        }
        ceilings.took_more(&plan, &device(&plan), 1);
        assert_eq!(free(&ceilings).0, before, "nothing is unlearned");
        assert!((0..64).any(|_| !ceilings.lower_further()));
        assert_eq!(free(&ceilings).0, 0);
    }
}
