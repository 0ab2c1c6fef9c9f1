//! The machine and the models as the pool's thread sees them: the input of a decision.

use std::fs::{self, File};
use std::io::{ErrorKind, Read};
use std::path::Path;
use std::time::Duration;

use autoplace::gguf::{self, Header};
use autoplace::machine::{Machine, folder};
use autoplace::plan::{self, Plan, Planner, Request};
use autoplace::profile::ModelProfile;
use autoplace::{Isolation, Model, ModelBuilder, load};

use super::specs::folder_of;
use super::state::{Entry, Id, Shared, Source, State};
use crate::ladder::{Ladder, Rung, for_one_of_several, is_planned_again};
use crate::spec::ModelSpec;
use crate::state::{ModelState, PoolState};

/// Fails if the folder of a model's file does not answer. The pool's thread reads the file next, and all other models
/// would wait for that.
pub(super) fn answers(file: &Path) -> Result<(), load::Error> {
    let of = file.to_owned();
    let read = move || {
        // The opening of a pipe would wait for a writer.
        if fs::metadata(&of)?.is_file() {
            File::open(of)?.read_exact(&mut [0])?;
        }
        Ok(())
    };
    match folder::ask(folder_of(file), read) {
        Err(source) if source.kind() == ErrorKind::TimedOut => {
            Err(gguf::Error::Open { path: file.to_owned(), source }.into())
        }
        // The load says what else is wrong with the file.
        _ => Ok(()),
    }
}

impl Shared {
    /// The machine with the free bytes that it would have if no model of the pool were loaded.
    pub(super) fn bare_machine(&self) -> Result<Machine, load::Error> {
        if let Some(machine) = &self.settings.machine {
            return Ok(self.lock().limits.apply(machine.clone()));
        }
        let (models, limits): (Vec<Model>, _) = {
            let state = self.lock();
            let loaded = state.entries.iter().filter_map(|entry| Some(entry.loaded.as_ref()?.model.clone()));
            (loaded.collect(), state.limits)
        };
        let machine = load::detect()?;
        Ok(limits.apply(models.iter().fold(machine, |machine, model| model.once_released(machine))))
    }

    /// Configures the load of this model for this request, on this machine.
    pub(super) fn builder(&self, source: &Source, request: &Request, machine: &Machine) -> ModelBuilder {
        let Source { spec, store } = source;
        let mut builder = Model::builder(&spec.model).request(request.clone());
        if let Some(draft) = &spec.draft {
            builder = builder.draft(draft.clone());
        }
        if let Some(projector) = &spec.mmproj {
            builder = builder.mmproj(projector.clone());
        }
        for adapter in &spec.lora {
            builder = builder.lora(adapter.clone(), 1.0);
        }
        if let Some(store) = store {
            builder = builder.prompt_store(store.clone());
        }
        let builder = (self.settings.configure)(&spec.name, builder);
        builder.machine(machine.clone()).isolation(self.settings.isolation.clone()).leases(self.settings.leases.clone())
    }

    /// Whether models can be re-placed in the middle of a text. A model in a worker can only be re-placed between two
    /// texts.
    pub(super) fn moves(&self) -> bool {
        self.settings.isolation == Isolation::None
    }

    /// Plans a model with probes of llama.cpp.
    pub(super) fn probed(&self, source: &Source, request: &Request, machine: &Machine) -> Result<Plan, load::Error> {
        self.builder(source, request, machine).plan()
    }

    /// Makes the ladder of a model. Its fastest rung is planned with probes. The others are planned by the estimate if
    /// the estimate knows the model's memory and nothing is loaded beside the model. Otherwise they are planned with
    /// probes, and there are fewer of them.
    pub(super) fn ladder(&self, source: &Source, machine: &Machine) -> Result<Ladder, load::Error> {
        let spec = &source.spec;
        answers(&spec.model)?;
        let request = for_one_of_several(&spec.request);
        let alone = self.probed(source, &request, machine)?;
        // The load's options add the bytes of a prompt store to the request. Estimated plans need these bytes too.
        let prompt_store = alone.host().map_or(0, |host| host.headroom.prompt_store);
        let path = alone.model.path.clone().unwrap_or_else(|| spec.model.clone());
        let profile = ModelProfile::from_header(&Header::open(&path)?)?;
        let is_estimated = spec.draft.is_none()
            && spec.mmproj.is_none()
            && spec.lora.is_empty()
            && Planner::new(&profile, machine).request(request.clone()).unknown().is_none();
        let hits = self.builder(source, &request, machine).expert_hits(machine, profile.file_bytes);
        let mut failed = None;
        let mut is_planned_again = is_planned_again(&request, &alone);
        let mut first = Some(alone);
        let planned = |request: &Request, machine: &Machine| {
            if let Some(alone) = first.take() {
                return Ok(alone);
            }
            let is_fastest = std::mem::take(&mut is_planned_again);
            if is_estimated && !is_fastest {
                let mut request = request.clone();
                request.prompt_store = prompt_store;
                return Planner::new(&profile, machine).request(request).expert_hits(hits).plan();
            }
            self.probed(source, request, machine).map_err(|error| match error {
                load::Error::Plan(error) => error,
                other => {
                    let words = other.to_string();
                    failed = Some(other);
                    plan::Error::Unknown { model: spec.name.clone(), reason: words }
                }
            })
        };
        let ladder = match is_estimated {
            true => Ladder::new(machine, &request, planned),
            false => Ladder::by_probes(machine, &request, planned),
        };
        match (ladder, failed) {
            (Ok(ladder), _) => Ok(ladder),
            (Err(_), Some(error)) => Err(error),
            (Err(error), None) => Err(error.into()),
        }
    }
}

impl State {
    /// The models whose ladder is known, and their ids in the same order.
    pub(super) fn pool_state(&self, machine: &Machine, now: Duration, shared: &Shared) -> (PoolState, Vec<Id>) {
        let mut pool = PoolState::new(machine.clone());
        pool.now = now;
        pool.limits = self.limits;
        pool.reloads.clone_from(&self.reloads);
        pool.succession.clone_from(&self.succession);
        let mut ids = Vec::new();
        for entry in &self.entries {
            if entry.is_removed && entry.loaded.is_none() {
                continue;
            }
            let Some(ladder) = &entry.ladder else { continue };
            pool.models.push(self.model_of(entry, ladder, now, shared.moves()));
            ids.push(entry.id);
        }
        // A model without a ladder is not in the state, so no model may name it.
        let names: Vec<String> = pool.models.iter().map(|model| model.name.clone()).collect();
        pool.models.iter_mut().for_each(|model| model.beside.retain(|beside| names.contains(beside)));
        (pool, ids)
    }

    fn model_of(&self, entry: &Entry, ladder: &Ladder, now: Duration, moves: bool) -> ModelState {
        let waiting = self.waiters.iter().filter(|waiter| waiter.id == entry.id).count();
        let rung = entry.loaded.as_ref().map(|loaded| loaded.rung.clone());
        // A text is expected to take the mean time. One that has run for longer may end at any moment.
        let usual = rung.as_ref().map_or(0.0, |rung| entry.demand.seconds(&rung.plan));
        let left =
            Duration::try_from_secs_f64(usual).unwrap_or(Duration::MAX).saturating_sub(now.saturating_sub(entry.used));
        // Further handles wait in the model's queue.
        let rounds = entry.handles.div_ceil(rung.as_ref().map_or(1, Rung::sequences)).max(1);
        let usual = Duration::try_from_secs_f64(usual).unwrap_or(Duration::MAX);
        let left = left.saturating_add(usual.saturating_mul(rounds - 1));
        let mut model = ModelState::new(entry.label.clone(), ladder.clone());
        model.loaded = rung;
        model.demand = entry.demand;
        model.waiting = u32::try_from(waiting).unwrap_or(u32::MAX);
        model.texts = entry.handles;
        model.ends_in = left.max(Duration::from_millis(500));
        model.moves = moves;
        model.keep = entry.spec.keep && !entry.is_removed;
        model.priority = entry.spec.priority;
        model.beside.clone_from(&entry.spec.beside);
        (model.load_time, model.loads) = (entry.load_time, entry.loads);
        model.may_be_loaded = entry.may_be_loaded();
        model
    }
}

/// Extracts the planner's error. Another error, such as one of the file, becomes a text.
pub(super) fn plan_error(spec: &ModelSpec, error: load::Error) -> plan::Error {
    match error {
        load::Error::Plan(error) => error,
        other => plan::Error::Unknown { model: spec.name.clone(), reason: other.to_string() },
    }
}
