//! Carries out a plan step by step. Each load and each move reads the free memory again, so it never takes more than is
//! free, even if the plan is out of date.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use autoplace::load::Replacement;
use autoplace::machine::Machine;
use autoplace::{Model, load};

use super::state::{Id, Loaded, Shared, Work};
use crate::held::Room;
use crate::ladder::Rung;
use crate::plan::{PoolPlan, Step};

/// Maximum time that the pool waits for a move in the middle of a text.
const MOVE_PATIENCE: Duration = Duration::from_secs(30);

/// The pause between two checks whether a move has been carried out.
const PAUSE: Duration = Duration::from_millis(20);

/// Why a plan was not carried out to its end.
#[derive(Debug)]
pub(super) enum Stopped {
    /// The model cannot be loaded.
    Failed(Id, Arc<load::Error>),
    /// The state has changed since the decision, so the pool must decide again.
    Changed,
    /// No model may be reloaded before this time has passed.
    HoldOff(Duration),
    /// The pool ends.
    Closed,
}

impl Shared {
    /// Carries out the steps of a plan that was made for this machine.
    pub(super) fn carry_out(&self, plan: &PoolPlan, machine: &Machine, patience: Duration) -> Result<(), Stopped> {
        for step in &plan.steps {
            let id = |name: &str| self.lock().id_of(name).ok_or(Stopped::Changed);
            match step {
                Step::WaitForTexts { model, .. } => self.wait_for_texts(id(model)?, patience)?,
                Step::HoldOff { time } => return Err(Stopped::HoldOff(*time)),
                Step::Unload { model } => {
                    self.wait_for_texts(id(model)?, patience)?;
                    self.unload(id(model)?);
                    self.count_reload();
                }
                Step::Load { model } => self.load(id(model)?, plan, machine)?,
                Step::Shrink { model } | Step::Grow { model } => {
                    if !self.moves() {
                        self.wait_for_texts(id(model)?, patience)?;
                    }
                    self.relocate(id(model)?, plan, machine)?;
                    self.count_reload();
                }
            }
        }
        Ok(())
    }

    pub(super) fn count_reload(&self) {
        let now = self.now();
        let mut state = self.lock();
        state.reloads.retain(|at| *at + Duration::from_secs(60) > now);
        state.reloads.push(now);
    }

    /// Stops giving handles of the model, and waits until all its handles are dropped. New handles are given again
    /// after the model was unloaded or moved.
    fn wait_for_texts(&self, id: Id, patience: Duration) -> Result<(), Stopped> {
        let begun = Instant::now();
        let mut state = self.lock();
        loop {
            let is_closed = state.is_closed;
            let Some(entry) = state.entry(id) else { return Err(Stopped::Changed) };
            entry.is_leaving = true;
            if entry.handles == 0 {
                return Ok(());
            }
            if is_closed || begun.elapsed() >= patience {
                entry.is_leaving = false;
                return Err(if is_closed { Stopped::Closed } else { Stopped::Changed });
            }
            state = self.wait(state, Duration::from_millis(200));
        }
    }

    /// Unloads a model that has no handles.
    pub(super) fn unload(&self, id: Id) {
        let loaded = self.change(|state| {
            let is_closed = state.is_closed;
            let entry = state.entry(id)?;
            // Somebody may have received a handle since the decision.
            if entry.handles > 0 && !entry.is_leaving && !is_closed {
                return None;
            }
            (entry.is_leaving, entry.must_leave) = (false, false);
            entry.loaded.take()
        });
        if let Some(Loaded { model, engine, attached, .. }) = loaded {
            tracing::info!("{} is unloaded", model.placement().model.name);
            // The engine is ended first, because it uses the model's context.
            drop(attached);
            drop(engine);
            drop(model);
        }
        self.change(|state| {
            // The entry of a removed specification is removed with its model.
            state.entries.retain(|entry| !(entry.is_removed && entry.loaded.is_none() && entry.handles == 0));
        });
    }

    /// The machine with the free bytes that this model may use: those that are free now, limited to those that the plan
    /// leaves beside the other models.
    fn room_for(
        &self,
        name: &str,
        plan: &PoolPlan,
        machine: &Machine,
        own: Option<&Model>,
    ) -> Result<Machine, load::Error> {
        let others = plan.models.iter().filter(|model| model.name != name);
        let room = others.fold(Room::new(machine), |room, other| room.with(&other.held).unwrap_or(room));
        if self.settings.machine.is_some() {
            return Ok(room.limit(machine));
        }
        let now = load::detect()?;
        let now = own.map_or(now.clone(), |model| model.once_released(now));
        Ok(room.limit(&now))
    }

    fn load(&self, id: Id, plan: &PoolPlan, machine: &Machine) -> Result<(), Stopped> {
        let begun = self.change(|state| {
            let entry = state.entry(id)?;
            let planned = plan.model(&entry.label)?;
            let request = entry.ladder.as_ref()?.request_for(&planned.plan);
            entry.work = Work::Loading;
            Some((entry.spec.clone(), entry.label.clone(), request))
        });
        let Some((spec, label, request)) = begun else { return Err(Stopped::Changed) };
        let started = Instant::now();
        let loaded =
            self.room_for(&label, plan, machine, None).and_then(|room| self.builder(&spec, &request, &room).load());
        let now = self.now();
        self.change(|state| {
            let Some(entry) = state.entry(id) else { return Err(Stopped::Changed) };
            entry.work = Work::None;
            entry.used = now;
            match loaded {
                Ok(model) => {
                    let rung = Rung::new(autoplace::Plan::clone(&model.placement()), machine);
                    entry.loaded = Some(Loaded {
                        model,
                        rung,
                        engine: None,
                        starting: Arc::default(),
                        making: Arc::default(),
                        attached: None,
                        since: SystemTime::now(),
                    });
                    entry.load_time = Some(started.elapsed());
                    entry.loads = entry.loads.saturating_add(1);
                    (entry.failure, entry.is_parked) = (None, false);
                    Ok(())
                }
                Err(error) => {
                    tracing::warn!("{}: {error}", spec.name);
                    entry.failure = Some(error.to_string());
                    Err(Stopped::Failed(id, Arc::new(error)))
                }
            }
        })
    }

    /// Re-places a loaded model by a new plan, for the bytes that the pool's plan leaves it.
    fn relocate(&self, id: Id, plan: &PoolPlan, machine: &Machine) -> Result<(), Stopped> {
        let moves = self.moves();
        let begun = self.change(|state| {
            let entry = state.entry(id)?;
            let planned = plan.model(&entry.label)?;
            let request = entry.ladder.as_ref()?.request_for(&planned.plan);
            let is_in_use = moves && entry.handles > 0;
            let loaded = entry.loaded.as_mut()?;
            // A handle that was given since the decision may have more texts than the new plan computes at once.
            if is_in_use && planned.plan.context.n_seq_max < loaded.rung.sequences() {
                return None;
            }
            // In a worker, the engine ends before the model is moved. In this process, the engine moves its texts.
            let ended = if moves { None } else { Some((loaded.attached.take(), loaded.engine.take())) };
            let model = loaded.model.clone();
            entry.work = if moves { Work::None } else { Work::Moving };
            Some((entry.spec.clone(), entry.label.clone(), request, model, ended))
        });
        let Some((spec, label, request, model, ended)) = begun else { return Err(Stopped::Changed) };
        drop(ended);
        let started = Instant::now();
        let room = self.room_for(&label, plan, machine, Some(&model));
        let next = room.and_then(|room| self.probed(&spec, &request, &room));
        let moved = next.and_then(|next| replace(&model, next));
        self.change(|state| {
            let Some(entry) = state.entry(id) else { return Err(Stopped::Changed) };
            (entry.work, entry.is_leaving) = (Work::None, false);
            if let Some(loaded) = &mut entry.loaded {
                loaded.rung = Rung::new(autoplace::Plan::clone(&model.placement()), machine);
            }
            match moved {
                Ok(()) => {
                    entry.load_time = Some(started.elapsed());
                    entry.loads = entry.loads.saturating_add(1);
                    Ok(())
                }
                Err(error) => {
                    tracing::warn!("{} stays where it is: {error}", spec.name);
                    Err(match error {
                        load::Error::Busy | load::Error::NativeHeld { .. } => Stopped::Changed,
                        error => Stopped::Failed(id, Arc::new(error)),
                    })
                }
            }
        })
    }
}

/// Re-places the model now, or in the middle of its texts.
///
/// # Errors
///
/// [`load::Error::Busy`] if a text could not be moved in time.
fn replace(model: &Model, plan: autoplace::Plan) -> Result<(), load::Error> {
    match model.replace(Some(plan.clone())) {
        Err(load::Error::Busy) => {}
        outcome => return outcome,
    }
    // Each load makes a new report, so another report means that the move is done.
    let before = model.report();
    model.request_replace(Replacement::By(Box::new(plan.clone())));
    let begun = Instant::now();
    while begun.elapsed() < MOVE_PATIENCE {
        std::thread::sleep(PAUSE);
        if !Arc::ptr_eq(&before, &model.report()) {
            return Ok(());
        }
        // The text may have ended before it carried out the request.
        match model.replace(Some(plan.clone())) {
            Err(load::Error::Busy) => {}
            outcome => {
                // Withdraws the request, so that the next text does not carry it out.
                model.request_replace(Replacement::Better { min_gain: f64::INFINITY });
                return outcome;
            }
        }
    }
    Err(load::Error::Busy)
}
