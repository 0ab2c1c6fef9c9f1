//! Pools of other processes: each tells the others how much memory it lacks, and releases models of its own that nobody
//! uses.
//!
//! A pool that lacks memory announces this for some seconds, and then takes the free memory, whatever the others have
//! decided. It reserves nothing while it asks. So two pools that ask each other cannot wait for each other for ever.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use autoplace::load::{DeviceBytes, LoadedModel, MemoryLack, loaded_models, memory_lacks};
use autoplace::machine::{Machine, folder};

use super::specs::folder_of;
use super::state::{Entry, Id, Shared, State, Work};
use crate::plan::PoolPlan;
use crate::spec::ModelSpec;

/// How long a pool waits for others to give memory: two of their checks of the memory, and some more.
const PATIENCE: Duration = Duration::from_secs(5);

/// Pause between two looks whether others have given memory. A look reads the notices of all of them.
const LOOK: Duration = Duration::from_millis(100);

/// Pause before others are asked again for the same model.
const PAUSE: Duration = Duration::from_secs(60);

/// Assumed bytes of a model that does not fit, in addition to its file: its cache and its compute buffers.
const BESIDE_FILE: u64 = 512 << 20;

/// How long a model has been idle before it is given to another pool.
const IDLE: Duration = Duration::from_secs(1);

impl Shared {
    /// Asks the pools of other processes for the memory that the model lacks: the memory of its layers on the host, or
    /// all of its memory if it does not fit at all. Returns whether some memory has become free: theirs, or that of a
    /// model of this pool which another pool has asked for meanwhile. The plan is out of date then.
    pub(super) fn others_gave(&self, id: Id, machine: &Machine, plan: Option<&PoolPlan>) -> bool {
        let now = self.now();
        let asks = {
            let mut state = self.lock();
            let entry = state.entry(id).filter(|entry| entry.loaded.is_none());
            let entry = entry.filter(|entry| entry.asked.is_none_or(|asked| now >= asked + PAUSE));
            entry.map(|entry| (entry.label.clone(), Arc::clone(&entry.spec)))
        };
        // The lock is not held, because the folder of the model's file may take long to answer. The folder of the
        // notices is read only for a model that lacks something.
        let Some(lack) = asks.and_then(|(label, spec)| Lack::new(&label, &spec, plan)) else { return false };
        let others = self.of_others();
        let devices = lack.on_devices(machine, &others);
        if devices.is_empty() {
            return false;
        }
        if let Some(entry) = self.lock().entry(id) {
            entry.asked = Some(now);
        }
        let held = |models: &[LoadedModel]| -> u64 {
            devices.iter().flat_map(|lack| models.iter().map(|model| bytes_on(model, &lack.name))).sum()
        };
        let before = held(&others);
        let wanted = devices.iter().map(|lack| lack.bytes).max().unwrap_or(0);
        let lack = MemoryLack { pool: self.settings.id.clone(), devices: devices.clone() };
        let Some(_said) = self.settings.leases.announce_lack(&lack) else { return false };
        let begun = Instant::now();
        let (mut given, mut has_given) = (0, false);
        while begun.elapsed() < PATIENCE && given < wanted && !self.lock().is_closed {
            // Two pools that ask each other both give.
            has_given |= self.give_to_others();
            std::thread::sleep(LOOK);
            given = before.saturating_sub(held(&self.of_others()));
        }
        if given > 0
            && let Some(entry) = self.lock().entry(id)
        {
            // The old rungs were planned for less memory.
            entry.ladder = None;
        }
        given > 0 || has_given
    }

    /// The models that pools of other processes have loaded.
    fn of_others(&self) -> Vec<LoadedModel> {
        let own: BTreeSet<u32> = {
            let state = self.lock();
            let loaded = state.entries.iter().filter_map(|entry| entry.loaded.as_ref());
            loaded.map(|loaded| loaded.model.worker_id().unwrap_or_else(std::process::id)).collect()
        };
        let mut models = loaded_models(&self.settings.leases);
        models.retain(|model| model.makes_room && !own.contains(&model.process));
        models
    }

    /// If other pools lack memory, unloads models that nobody uses. The model that is missed least comes first. Returns
    /// whether a model was unloaded.
    pub(super) fn give_to_others(&self) -> bool {
        let mut has_given = false;
        // Each check of the memory comes here, so the folder is read only if there is something to give.
        if !self.has_something_to_give() {
            return has_given;
        }
        let lacks = memory_lacks(&self.settings.leases);
        for lack in lacks.iter().filter(|lack| lack.pool != self.settings.id).flat_map(|lack| &lack.devices) {
            let mut missing = lack.bytes;
            while let Some((id, bytes)) = self.least_missed(&lack.name).filter(|_| missing > 0) {
                // Somebody may have received a handle of it meanwhile: then another model is given.
                if self.unload(id) {
                    missing = missing.saturating_sub(bytes);
                    self.count_reload();
                    has_given = true;
                }
            }
        }
        has_given
    }

    fn has_something_to_give(&self) -> bool {
        let now = self.now();
        let state = self.lock();
        !held_off(&state, now) && state.entries.iter().any(|entry| may_be_given(&state, entry, now))
    }

    /// The idle model on this device that is missed least, and its bytes there; `None` if there is none, or if enough
    /// models were unloaded lately.
    fn least_missed(&self, device: &str) -> Option<(Id, u64)> {
        let now = self.now();
        let state = self.lock();
        if held_off(&state, now) {
            return None;
        }
        let on_device = |entry: &Entry| {
            let plan = &entry.loaded.as_ref()?.rung.plan;
            let placements = plan.placements.iter().filter(|placement| placement.name == device);
            let bytes = placements.map(|placement| placement.footprint.total() + placement.companions).sum();
            Some((entry.id, bytes)).filter(|(_, bytes)| *bytes > 0)
        };
        let price = |entry: &Entry| entry.demand.rate(now) * entry.load_time.unwrap_or_default().as_secs_f64();
        let mut free: Vec<&Entry> = state.entries.iter().filter(|entry| may_be_given(&state, entry, now)).collect();
        free.sort_by(|one, other| price(one).total_cmp(&price(other)));
        free.into_iter().find_map(on_device)
    }
}

/// Whether the pool has unloaded or moved as many models in the last minute as it may.
fn held_off(state: &State, now: Duration) -> bool {
    let recent = state.reloads.iter().filter(|at| **at + Duration::from_secs(60) > now).count();
    let loaded = state.entries.iter().filter(|entry| entry.loads > 0).filter_map(|entry| entry.load_time);
    recent >= state.limits.allowed_reloads(loaded.map(|time| time.as_secs_f64()))
}

/// Whether the model is loaded, and nobody uses, wants or needs it.
fn may_be_given(state: &State, entry: &Entry, now: Duration) -> bool {
    let is_wanted = || state.waiters.iter().any(|waiter| waiter.id == entry.id);
    let is_idle = entry.handles == 0 && entry.work == Work::None && now >= entry.used + IDLE;
    entry.loaded.is_some() && is_idle && !entry.spec.keep && !is_wanted() && !state.is_beside_a_loaded_one(entry)
}

/// The memory that a model lacks.
struct Lack {
    bytes: u64,
    /// Whether the model also lacks memory of the host, because it does not fit at all.
    on_host: bool,
}

impl Lack {
    /// `None` for a model all of whose layers are planned on GPUs.
    fn new(label: &str, spec: &ModelSpec, plan: Option<&PoolPlan>) -> Option<Self> {
        match plan.and_then(|plan| plan.model(label)) {
            Some(planned) if planned.plan.n_gpu_layers >= planned.plan.layers() => None,
            Some(planned) => Some(Self { bytes: planned.held.host, on_host: false }),
            None => {
                let file = spec.model.clone();
                let bytes = folder::ask(folder_of(&spec.model), move || Ok(std::fs::metadata(file)?.len()));
                Some(Self { bytes: bytes.unwrap_or(0).saturating_add(BESIDE_FILE), on_host: true })
            }
        }
    }

    /// The devices on which other pools have memory that the model lacks.
    fn on_devices(&self, machine: &Machine, others: &[LoadedModel]) -> Vec<DeviceBytes> {
        let is_gpu = |name: &str| machine.gpus.iter().any(|gpu| gpu.name == name);
        let names: BTreeSet<&str> = others.iter().flat_map(|model| &model.devices).map(|on| on.name.as_str()).collect();
        let has_any =
            |name: &&str| (self.on_host || is_gpu(name)) && others.iter().any(|model| bytes_on(model, name) > 0);
        let lacked = names.into_iter().filter(has_any);
        lacked.map(|name| DeviceBytes { name: name.to_owned(), bytes: self.bytes }).collect()
    }
}

fn bytes_on(model: &LoadedModel, device: &str) -> u64 {
    model.devices.iter().filter(|on| on.name == device).map(|on| on.bytes).sum()
}
