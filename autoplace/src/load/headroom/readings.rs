//! Free bytes of devices around a load, and what they say of driver and pools: how much those took, or why that cannot be told.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use llama_sys::Device;

use super::Doubt;
use crate::load::devices::is_simulated;
use crate::machine::{Date, Gpu, GpuKind, GpuProcess, LearnedHeadroom, mib};
use crate::memory::{ContextSizes, Workload};
use crate::profile::ModelProfile;

/// What free memory may change by itself while nothing is done: desktops redraw, Windows moves what it holds. As much as the smallest
/// margin of [`Headroom::Default`](crate::memory::Headroom::Default) leaves.
const JITTER: u64 = mib(64);

/// What a load notes down for a measurement to come.
#[derive(Debug)]
pub(in crate::load) struct LoadReadings {
    pub(super) devices: Vec<Device>,
    /// Whether the model is the first of this process on the device.
    pub(super) is_first: Vec<bool>,
    pub(super) before: Vec<Option<u64>>,
    pub(super) loaded: Vec<Option<u64>>,
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
    pub(super) loaded: Option<u64>,
    /// When the measurement began.
    pub(super) start: Option<u64>,
    /// After each of the two runs; `None` where nothing was run.
    pub(super) runs: Option<[Option<u64>; 2]>,
    pub(super) allocated: Option<u64>,
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
}

impl LoadReadings {
    /// To be called right before the load.
    pub(in crate::load) fn before(devices: &[Device], work: Work) -> Self {
        Self {
            devices: devices.to_owned(),
            is_first: devices.iter().map(is_first).collect(),
            before: free(devices),
            loaded: Vec::new(),
            work,
        }
    }

    /// To be called when the model has its context and nothing is computed yet.
    pub(in crate::load) fn loaded(mut self) -> Self {
        self.loaded = free(&self.devices);
        self
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

/// Free bytes of each device, where it tells. A total of 0 is how ggml says "unknown".
pub(super) fn free(devices: &[Device]) -> Vec<Option<u64>> {
    let memory = devices.iter().map(|device| device.memory().ok());
    memory
        .map(|memory| {
            memory
                .filter(|memory| memory.total > 0)
                .map(|memory| memory.free)
        })
        .collect()
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
    /// The smaller of the free bytes after both runs.
    pub(super) fn used(&self) -> Option<u64> {
        let [first, second] = self.runs?;
        Some(first?.min(second?))
    }

    /// What driver and pools took, unless something else has changed the readings.
    pub(super) fn learned(&self, workload: &Workload) -> Result<LearnedHeadroom, Doubt> {
        let [first, second] = self.runs.ok_or(Doubt::NotGenerative)?;
        let told = |reading: Option<u64>| reading.ok_or(Doubt::NotTold);
        let (before, loaded, start) = (told(self.before)?, told(self.loaded)?, told(self.start)?);
        let (first, second) = (told(first)?, told(second)?);
        let expected = before.saturating_sub(told(self.allocated)?);
        let is_steady = loaded.abs_diff(start) <= JITTER
            && first.abs_diff(second) <= JITTER
            && loaded <= expected.saturating_add(JITTER)
            && first.max(second) <= loaded.saturating_add(JITTER);
        if !is_steady {
            return Err(Doubt::Disturbed);
        }
        let driver = expected.saturating_sub(loaded);
        let growth = loaded.saturating_sub(first.min(second));
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

    /// 1000 MiB free, a model of 600: 20 for the driver, 30 for the pools.
    fn seen() -> Seen {
        Seen {
            before: Some(mib(1000)),
            loaded: Some(mib(380)),
            start: Some(mib(380)),
            runs: Some([Some(mib(350)), Some(mib(350))]),
            allocated: Some(mib(600)),
        }
    }

    fn parts(seen: Seen) -> Result<(u64, u64), Doubt> {
        let learned = seen.learned(&Workload::default())?;
        Ok((learned.driver, learned.growth))
    }

    #[test]
    fn the_driver_is_what_the_load_took_beside_its_buffers_and_growth_what_came_after() {
        assert_eq!(parts(seen()), Ok((mib(20), mib(30))));
        // The second run took a little more.
        let runs = Some([Some(mib(350)), Some(mib(340))]);
        assert_eq!(parts(Seen { runs, ..seen() }), Ok((mib(20), mib(40))));
    }

    #[test]
    fn a_little_less_than_nothing_is_nothing() {
        let loaded = Some(mib(410));
        let start = loaded;
        let runs = Some([Some(mib(420)); 2]);
        let odd = Seen {
            loaded,
            start,
            runs,
            ..seen()
        };
        assert_eq!(parts(odd), Ok((0, 0)));
    }

    #[test]
    fn what_the_model_cannot_have_done_is_not_learned_from() {
        let disturbed = Err(Doubt::Disturbed);
        // Another program gave memory back during the load, or took some after it, or does so now.
        let gave = Seen {
            before: Some(mib(900)),
            ..seen()
        };
        assert_eq!(parts(gave), disturbed);
        let took = Seen {
            start: Some(mib(200)),
            ..seen()
        };
        assert_eq!(parts(took), disturbed);
        let runs = Some([Some(mib(350)), Some(mib(200))]);
        assert_eq!(parts(Seen { runs, ..seen() }), disturbed);
        let runs = Some([Some(mib(500)); 2]);
        assert_eq!(parts(Seen { runs, ..seen() }), disturbed);
    }

    #[test]
    fn what_is_not_told_or_not_run_is_not_learned_from() {
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
        let idle = Seen {
            runs: None,
            ..seen()
        };
        assert_eq!(parts(idle), Err(Doubt::NotGenerative));
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
