//! What failed attempts taught: how much of each device may count as free from now on.
//!
//! Memory that somebody else took shows in what is free now, and needs no lesson. What does not show is a buffer that
//! was refused although there was room, pools that found none, and more taken than was planned. A plan that failed so
//! must not be tried again: the device that failed gets a ceiling, so that the next plan takes less of it.

use std::collections::BTreeMap;

use crate::machine::Machine;
use crate::plan::Plan;

/// Less is no step.
const SMALLEST_STEP: u64 = 64 << 10;

/// Ceilings of what counts as free.
#[derive(Debug, Default)]
pub(super) struct Taught {
    gpus: BTreeMap<String, u64>,
    host: Option<u64>,
    /// The device that last failed without a reason that shows, and by how much its ceiling sinks next.
    last: Option<(Place, u64)>,
}

/// A device of a plan.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Place {
    /// By ggml's name.
    Gpu(String),
    Host,
}

impl Taught {
    /// `place` failed with this plan although there was room. `lacked` is what it is known to have lacked.
    pub(super) fn failed(&mut self, plan: &Plan, place: Place, lacked: u64) {
        let placement = match &place {
            Place::Gpu(device) => plan.gpus().find(|gpu| gpu.device.as_deref() == Some(device)),
            Place::Host => plan.host(),
        };
        let Some(placement) = placement else { return };
        let needed = placement.footprint.total();
        let step = lacked.clamp(needed / 16, (needed / 2).max(needed / 16)).max(SMALLEST_STEP);
        // A device that fails again lacks more than was thought.
        let step = match &self.last {
            Some((last, earlier)) if *last == place => step.max(earlier.saturating_mul(2)),
            _ => step,
        };
        let kept = placement.free.saturating_sub(placement.budget);
        let most = needed.saturating_add(kept).saturating_sub(step);
        self.lower(&place, most);
        self.last = Some((place, step));
    }

    /// This plan took more of a GPU than it left free there.
    pub(super) fn took_more(&mut self, plan: &Plan, device: &str, difference: u64) {
        let placement = plan.gpus().find(|gpu| gpu.device.as_deref() == Some(device));
        if let Some(placement) = placement {
            let most = placement.free.saturating_sub(difference);
            self.lower(&Place::Gpu(device.to_owned()), most);
        }
    }

    /// The last lesson was too small: the plan came out the same. False where there is nothing left to lower.
    pub(super) fn lower_further(&mut self) -> bool {
        let Some((place, step)) = self.last.clone() else {
            return false;
        };
        let Some(ceiling) = self.ceiling(&place).filter(|ceiling| *ceiling > 0) else {
            return false;
        };
        self.lower(&place, ceiling.saturating_sub(step));
        self.last = Some((place, step.saturating_mul(2)));
        true
    }

    fn ceiling(&self, place: &Place) -> Option<u64> {
        match place {
            Place::Gpu(device) => self.gpus.get(device).copied(),
            Place::Host => self.host,
        }
    }

    fn lower(&mut self, place: &Place, most: u64) {
        let ceiling = match place {
            Place::Gpu(device) => self.gpus.entry(device.clone()).or_insert(u64::MAX),
            Place::Host => self.host.get_or_insert(u64::MAX),
        };
        *ceiling = (*ceiling).min(most);
    }

    /// The machine as far as it may be used.
    pub(super) fn apply(&self, mut machine: Machine) -> Machine {
        for gpu in &mut machine.gpus {
            let ceiling = gpu.device.as_ref().and_then(|device| self.gpus.get(device));
            if let Some(&ceiling) = ceiling {
                gpu.free = gpu.free.min(ceiling);
            }
        }
        if let Some(ceiling) = self.host {
            machine.host.available = machine.host.available.min(ceiling);
        }
        machine
    }
}

#[cfg(test)]
mod tests {
    use super::{Place, Taught};
    use crate::load::test_plan::plan;
    use crate::machine::{Gpu, Host, Machine, gib, mib};
    use crate::plan::Plan;

    fn gpu() -> Place {
        Place::Gpu(device(&plan()))
    }

    fn device(plan: &Plan) -> String {
        plan.gpus().next().unwrap().device.clone().unwrap()
    }

    /// What is free on the GPU of the plan in a machine with everything free.
    fn free(taught: &Taught) -> u64 {
        let card = Gpu::new("card").total(gib(1000)).device(device(&plan()));
        let machine = Machine::new(Host::new(gib(1000))).with_gpu(card);
        taught.apply(machine).gpus[0].free
    }

    #[test]
    fn a_device_that_failed_gets_no_plan_of_the_same_size_again() {
        let plan = plan();
        let placement = plan.gpus().next().unwrap();
        let needed = placement.footprint.total();
        let kept = placement.free - placement.budget;
        for lacked in [0, mib(1), needed / 4, u64::MAX] {
            let mut taught = Taught::default();
            taught.failed(&plan, gpu(), lacked);
            let step = needed + kept - free(&taught);
            assert!(step >= needed / 16 && step <= needed / 2, "{step}");
        }
    }

    #[test]
    fn each_further_failure_teaches_more_and_never_less() {
        let plan = plan();
        let mut taught = Taught::default();
        let mut before = free(&taught);
        for _ in 0..4 {
            taught.failed(&plan, gpu(), 0);
            assert!(free(&taught) < before);
            before = free(&taught);
        }
        taught.took_more(&plan, &device(&plan), 1);
        assert_eq!(free(&taught), before, "nothing is unlearned");
    }

    #[test]
    fn a_lesson_can_be_sharpened_until_nothing_is_left() {
        let plan = plan();
        let mut taught = Taught::default();
        assert!(!taught.lower_further(), "nothing has failed");
        taught.failed(&plan, gpu(), 0);
        let mut rounds = 0;
        while taught.lower_further() {
            rounds += 1;
            assert!(rounds < 64);
        }
        assert_eq!(free(&taught), 0);
    }
}
