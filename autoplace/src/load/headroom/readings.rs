//! Free bytes of devices around a load, and what they say of driver and pools: how much those took, or why
//! that cannot be told.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use llama_sys::Device;

use crate::load::devices::{free, is_simulated};
use crate::load::report::Doubt;
use crate::machine::{Date, Gpu, GpuKind, GpuProcess, LearnedHeadroom, mib};
use crate::memory::{ContextSizes, Workload};
use crate::profile::ModelProfile;

/// What free memory may change by itself while nothing is done: desktops redraw, Windows moves what it holds. As much
/// as the smallest margin of [`Headroom::Default`](crate::memory::Headroom::Default) leaves.
const JITTER: u64 = mib(64);

/// Several times as much as the table of known drivers and pools says is the doing of somebody else.
const MOST_OF_TABLE: u64 = 4;

/// What a load notes down before it begins.
#[derive(Debug)]
pub(in crate::load) struct LoadReadings {
    pub(super) devices: Vec<Device>,
    /// Whether the model is the first of this process on the device.
    pub(super) is_first: Vec<bool>,
    pub(in crate::load) before: Vec<Option<u64>>,
    pub(super) work: Work,
}

/// What a model does in its blocks and, on the last GPU, in its output layer.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::load) struct Work {
    pub(super) blocks: Workload,
    pub(super) with_output: Workload,
}

/// Readings of one device.
#[derive(Debug, Clone, Copy)]
pub(super) struct Seen {
    pub(super) before: Option<u64>,
    /// When everything was reserved and nothing computed.
    pub(super) loaded: Option<u64>,
    /// After the warm-up.
    pub(super) used: Option<u64>,
    /// What llama.cpp said it had allocated when everything was reserved.
    pub(super) allocated: Option<u64>,
    /// What it allocated after that.
    pub(super) grown: u64,
}

impl Work {
    /// What this model does in contexts of these sizes.
    pub(in crate::load) fn of(profile: &ModelProfile, sizes: &ContextSizes) -> Self {
        let mut without_output = *sizes;
        without_output.n_outputs = 0;
        Self {
            blocks: Workload::of(profile, &without_output),
            with_output: Workload::of(profile, sizes),
        }
    }

    /// What it does at the most.
    pub(in crate::load) const fn largest(&self) -> &Workload {
        &self.with_output
    }
}

impl LoadReadings {
    /// To be called right before the load.
    pub(in crate::load) fn before(devices: &[Device], work: Work) -> Self {
        Self {
            devices: devices.to_owned(),
            is_first: devices.iter().map(is_first).collect(),
            before: free(devices),
            work,
        }
    }
}

/// Whether no model of this process has been on this device. On a simulated one, which keeps no code
/// loaded, every model counts as the first.
fn is_first(device: &Device) -> bool {
    static USED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    let name = device.name();
    is_simulated(&name)
        || USED
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(name)
}

/// Why nothing can be learned of this GPU, whatever its readings are. `programs` are those on it now.
pub(super) fn doubt(gpu: &Gpu, programs: Option<&[GpuProcess]>) -> Option<Doubt> {
    match gpu.kind {
        GpuKind::Remote => Some(Doubt::Remote),
        GpuKind::Integrated => Some(Doubt::SharedMemory),
        GpuKind::Discrete => {
            let (before, now) = (gpu.processes.as_deref()?, programs?);
            (!are_same(before, now)).then_some(Doubt::OtherPrograms)
        }
    }
}

/// Whether these are the same programs with the same bytes, in whatever order.
fn are_same(before: &[GpuProcess], now: &[GpuProcess]) -> bool {
    let held = |programs: &[GpuProcess]| {
        let mut held: Vec<_> = programs.iter().map(|one| (one.pid, one.bytes)).collect();
        held.sort_unstable();
        held
    };
    held(before) == held(now)
}

impl Seen {
    /// What driver and pools took, unless something else has changed the readings. `table`: what they are known to
    /// take at the most.
    pub(super) fn learned(
        &self,
        workload: &Workload,
        table: u64,
    ) -> Result<LearnedHeadroom, Doubt> {
        let told = |reading: Option<u64>| reading.ok_or(Doubt::NotTold);
        let (before, loaded, used) = (told(self.before)?, told(self.loaded)?, told(self.used)?);
        let expected = before.saturating_sub(told(self.allocated)?);
        let driver = expected.saturating_sub(loaded);
        let growth = loaded.saturating_sub(used).saturating_sub(self.grown);
        let most = table.saturating_mul(MOST_OF_TABLE).saturating_add(JITTER);
        let is_ours = loaded <= expected.saturating_add(JITTER)
            && used <= loaded.saturating_add(JITTER)
            && driver.max(growth) <= most;
        if !is_ours {
            return Err(Doubt::Disturbed);
        }
        let learned = LearnedHeadroom::new(driver, growth, Date::today());
        Ok(learned.work(workload.activations, workload.decoded_matrix))
    }
}

#[cfg(test)]
mod tests {
    use super::{Seen, are_same, doubt};
    use crate::load::Doubt;
    use crate::machine::{Gpu, GpuKind, GpuProcess, mib};
    use crate::memory::Workload;

    /// What drivers and pools are known to take.
    const TABLE: u64 = mib(100);

    /// 1000 MiB free, a model of 600: 20 for the driver, 30 for the pools.
    fn seen() -> Seen {
        Seen {
            before: Some(mib(1000)),
            loaded: Some(mib(380)),
            used: Some(mib(350)),
            allocated: Some(mib(600)),
            grown: 0,
        }
    }

    fn parts(seen: Seen) -> Result<(u64, u64), Doubt> {
        let learned = seen.learned(&Workload::default(), TABLE)?;
        Ok((learned.driver, learned.growth))
    }

    #[test]
    fn the_driver_is_what_the_load_took_beside_its_buffers_and_growth_what_came_after() {
        assert_eq!(parts(seen()), Ok((mib(20), mib(30))));
        // Of which some was a buffer that llama.cpp counts.
        let grown = mib(5);
        assert_eq!(parts(Seen { grown, ..seen() }), Ok((mib(20), mib(25))));
    }

    #[test]
    fn a_little_less_than_nothing_is_nothing() {
        let odd = Seen {
            loaded: Some(mib(410)),
            used: Some(mib(420)),
            ..seen()
        };
        assert_eq!(parts(odd), Ok((0, 0)));
    }

    #[test]
    fn what_the_model_cannot_have_done_is_not_learned_from() {
        let disturbed = Err(Doubt::Disturbed);
        // Another program gave memory back during the load or the warm-up, or took some.
        let gave = Seen {
            before: Some(mib(900)),
            ..seen()
        };
        assert_eq!(parts(gave), disturbed);
        let used = Some(mib(500));
        assert_eq!(parts(Seen { used, ..seen() }), disturbed);
        let large = Seen {
            before: Some(mib(4000)),
            loaded: Some(mib(3380)),
            ..seen()
        };
        let took = |bytes| Seen {
            used: Some(mib(3380) - bytes),
            ..large
        };
        assert!(parts(took(4 * TABLE)).is_ok());
        assert_eq!(parts(took(4 * TABLE + mib(65))), disturbed);
        let during = Seen {
            loaded: Some(mib(2000)),
            used: Some(mib(2000)),
            ..large
        };
        assert_eq!(parts(during), disturbed);
    }

    #[test]
    fn what_is_not_told_is_not_learned_from() {
        let untold = Seen {
            before: None,
            ..seen()
        };
        assert_eq!(parts(untold), Err(Doubt::NotTold));
        let untold = Seen {
            allocated: None,
            ..seen()
        };
        assert_eq!(parts(untold), Err(Doubt::NotTold));
    }

    #[test]
    fn other_programs_with_other_bytes_are_noticed_in_any_order() {
        let program = |pid, bytes| GpuProcess::new(pid).bytes(mib(bytes));
        let before = [program(1, 50), program(2, 60)];
        assert!(are_same(&before, &[program(2, 60), program(1, 50)]));
        let mut gpu = Gpu::new("card");
        gpu.processes = Some(before.to_vec());
        for now in [vec![program(1, 50)], vec![program(1, 50), program(2, 61)]] {
            assert_eq!(doubt(&gpu, Some(&now)), Some(Doubt::OtherPrograms));
        }
        assert_eq!(doubt(&gpu, Some(&before)), None);
        assert_eq!(doubt(&gpu, None), None);
    }

    #[test]
    fn of_memory_that_is_not_the_cards_own_nothing_is_learned() {
        let of = |kind| doubt(&Gpu::new("card").kind(kind), None);
        assert_eq!(of(GpuKind::Integrated), Some(Doubt::SharedMemory));
        assert_eq!(of(GpuKind::Remote), Some(Doubt::Remote));
        assert_eq!(of(GpuKind::Discrete), None);
    }
}
