//! Carries out a plan step by step. Each load and each move reads the free memory again, so it never takes more than is
//! free, even if the plan is out of date.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use autoplace::load::Replacement;
use autoplace::machine::Machine;
use autoplace::{Model, load};

use super::place::answers;
use super::specs::without_links;
use super::state::{Id, Loaded, Shared, State, Work};
use crate::error::Reason;
use crate::held::Room;
use crate::ladder::Rung;
use crate::plan::{PoolPlan, Step};

/// Maximum time that the pool waits until a text begins to move, and until a move that has begun is over.
const MOVE_PATIENCE: Duration = Duration::from_secs(30);

/// The pause between two checks whether a move has been carried out.
const PAUSE: Duration = Duration::from_millis(20);

/// Why a plan was not carried out to its end.
#[derive(Debug)]
pub(super) enum Stopped {
    /// The model cannot be loaded.
    Failed(Id, Reason),
    /// The state has changed since the decision, so the pool must decide again.
    Changed,
    /// No model may be reloaded before this time has passed.
    HoldOff(Duration),
    /// The pool ends.
    Closed,
}

impl Shared {
    /// Carries out the steps of a plan that was made for this machine. `wanted` is the model for which it was made; if
    /// its requests are withdrawn, no text is waited for any more. All steps together wait for texts for at most
    /// `patience`.
    pub(super) fn carry_out(
        &self,
        plan: &PoolPlan,
        machine: &Machine,
        wanted: Option<Id>,
        patience: Duration,
    ) -> Result<(), Stopped> {
        let outcome = self.steps(plan, machine, wanted, patience);
        // Models whose step was not reached give handles again.
        self.change(|state| state.entries.iter_mut().for_each(|entry| entry.is_leaving = false));
        outcome
    }

    fn steps(&self, plan: &PoolPlan, machine: &Machine, wanted: Option<Id>, patience: Duration) -> Result<(), Stopped> {
        let begun = Instant::now();
        let wait = |id: Id| self.wait_for_texts(id, wanted, patience.saturating_sub(begun.elapsed()));
        for step in &plan.steps {
            if self.lock().is_closed {
                return Err(Stopped::Closed);
            }
            let id = |name: &str| self.lock().id_of(name).ok_or(Stopped::Changed);
            match step {
                Step::WaitForTexts { model, .. } => wait(id(model)?)?,
                Step::HoldOff { time } => return Err(Stopped::HoldOff(*time)),
                Step::Unload { model } => {
                    let id = id(model)?;
                    wait(id)?;
                    if self.unload(id) {
                        self.count_reload();
                    }
                }
                Step::Load { model } => self.load(id(model)?, plan, machine)?,
                Step::Shrink { model } | Step::Grow { model } => {
                    let id = id(model)?;
                    if !self.moves() {
                        wait(id)?;
                    }
                    self.relocate(id, plan, machine)?;
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
    /// after the model was unloaded or moved, or when the plan has ended.
    fn wait_for_texts(&self, id: Id, wanted: Option<Id>, patience: Duration) -> Result<(), Stopped> {
        let begun = Instant::now();
        let mut state = self.lock();
        loop {
            if state.is_closed {
                return Err(Stopped::Closed);
            }
            let is_withdrawn = wanted.is_some_and(|wanted| !state.is_wanted(wanted));
            let Some(entry) = state.entry(id).filter(|entry| entry.loaded.is_some()) else {
                return Err(Stopped::Changed);
            };
            entry.is_leaving = true;
            if entry.handles == 0 {
                return Ok(());
            }
            if is_withdrawn || begun.elapsed() >= patience {
                return Err(Stopped::Changed);
            }
            state = self.wait(state, Duration::from_millis(200));
        }
    }

    /// Unloads a model that has no handles. Returns whether it was loaded.
    pub(super) fn unload(&self, id: Id) -> bool {
        let loaded = self.change(|state| {
            let is_closed = state.is_closed;
            let entry = state.entry(id)?;
            // Somebody may have received a handle since the decision.
            if entry.handles > 0 && !is_closed {
                return None;
            }
            (entry.is_leaving, entry.must_leave, entry.leaves_unless_wanted) = (false, false, false);
            entry.loaded.take()
        });
        let was_loaded = loaded.is_some();
        if let Some(Loaded { model, engine, attached, .. }) = loaded {
            tracing::info!("{} is unloaded", model.placement().model.name);
            // The engine is ended first, because it uses the model's context.
            drop(attached);
            drop(engine);
            drop(model);
        }
        self.change(State::forget_removed);
        was_loaded
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
        let room = others.fold(Room::new(machine), |room, other| room.without(&other.held));
        if self.settings.machine.is_some() {
            return Ok(room.limit(machine));
        }
        let now = load::detect()?;
        let now = own.map_or(now.clone(), |model| model.once_released(now));
        Ok(room.limit(&now))
    }

    fn load(&self, id: Id, plan: &PoolPlan, machine: &Machine) -> Result<(), Stopped> {
        let path = self.lock().entry(id).map(|entry| entry.spec.model.clone());
        let file = path.map(|path| without_links(&path));
        let begun = self.change(|state| {
            let entry = state.entry(id)?;
            let planned = plan.model(&entry.label)?;
            let request = entry.ladder.as_ref()?.request_for(&planned.plan);
            (entry.work, entry.file) = (Work::Loading, file);
            Some((entry.source(), entry.label.clone(), request))
        });
        let Some((source, label, request)) = begun else { return Err(Stopped::Changed) };
        let started = Instant::now();
        let loaded = answers(&source.spec.model)
            .and_then(|()| self.room_for(&label, plan, machine, None))
            .and_then(|room| self.builder(&source, &request, &room).load());
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
                    tracing::warn!("{}: {error}", source.spec.name);
                    entry.failure = Some(error.to_string());
                    (entry.is_parked, entry.leaves_unless_wanted) = (false, false);
                    state.forget_removed();
                    Err(Stopped::Failed(id, error.into()))
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
            Some((entry.source(), entry.label.clone(), request, model, ended))
        });
        let Some((source, label, request, model, ended)) = begun else { return Err(Stopped::Changed) };
        drop(ended);
        let name = &source.spec.name;
        let started = Instant::now();
        let room = self.room_for(&label, plan, machine, Some(&model));
        let next = room.and_then(|room| self.probed(&source, &request, &room));
        let (moved, is_released) = match next {
            Err(error) => (Err(error), false),
            Ok(next) => {
                let moved = replace(&model, next, MOVE_PATIENCE);
                let is_released = matches!(&moved, Err(error) if !keeps_model(error));
                (moved, is_released)
            }
        };
        let outcome = self.change(|state| {
            let Some(entry) = state.entry(id) else { return Err(Stopped::Changed) };
            (entry.work, entry.is_leaving) = (Work::None, false);
            if let Some(loaded) = &mut entry.loaded {
                loaded.look(machine);
            }
            match moved {
                Ok(()) => {
                    entry.load_time = Some(started.elapsed());
                    entry.loads = entry.loads.saturating_add(1);
                    Ok(())
                }
                Err(error) if is_released => {
                    tracing::warn!("{name} could not be moved, and is loaded anew when it is wanted: {error}");
                    entry.must_leave = true;
                    Err(Stopped::Changed)
                }
                Err(error) => {
                    tracing::warn!("{name} stays where it is: {error}");
                    Err(if keeps_model(&error) { Stopped::Changed } else { Stopped::Failed(id, error.into()) })
                }
            }
        });
        if is_released {
            self.unload(id);
        }
        outcome
    }
}

/// Whether the pool keeps a model as it is after a re-placement has failed with this error. After all other errors the
/// model was released or its file has changed, so it is loaded anew.
const fn keeps_model(error: &load::Error) -> bool {
    matches!(error, load::Error::Busy | load::Error::NativeHeld { .. })
}

/// Re-places the model now, or in the middle of its texts. Waits for at most `patience` until a text begins to move,
/// and for at most this time again until the move is over.
///
/// # Errors
///
/// [`load::Error::Busy`] if a text could not be moved in time. No text carries the move out later.
fn replace(model: &Model, plan: autoplace::Plan, patience: Duration) -> Result<(), load::Error> {
    match model.replace(Some(plan.clone())) {
        Err(load::Error::Busy) => {}
        outcome => return outcome,
    }
    // Each load makes a new report, so another report means that the move is done.
    let before = model.report();
    let is_moved = || !Arc::ptr_eq(&before, &model.report());
    model.request_replace(Replacement::By(Box::new(plan.clone())));
    let begun = Instant::now();
    while begun.elapsed() < patience {
        std::thread::sleep(PAUSE);
        // The text may have ended before it carried out the request. If it has carried it out and ended since, there is
        // no request any more, so the model is not moved twice.
        match model.replace_as_requested() {
            Err(load::Error::Busy) => {}
            Ok(false) if !is_moved() => match model.replace(Some(plan.clone())) {
                // A text has refused the request, and goes on.
                Err(load::Error::Busy) => {}
                outcome => return outcome,
            },
            outcome => return outcome.map(drop),
        }
    }
    // Nobody waits for the move any more, so no later text may carry it out. A text that has begun to move must end
    // the move first, because the model's place is known only then.
    if model.withdraw_replace() {
        return Err(load::Error::Busy);
    }
    let begun = Instant::now();
    while matches!(model.replace_as_requested(), Err(load::Error::Busy)) && begun.elapsed() < patience {
        std::thread::sleep(PAUSE);
    }
    if is_moved() { Ok(()) } else { Err(load::Error::Busy) }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::thread;
    use std::time::Duration;

    use autoplace::machine::{Host, Machine};
    use autoplace::plan::Request;
    use autoplace::{Model, load};
    use test_support::demo_path;

    use super::replace;

    const ROUNDS: usize = 60;

    fn demo() -> Model {
        let host = Machine::new(Host::new(4 << 30));
        let builder = Model::builder(demo_path()).request(Request::new().n_ctx(512)).machine(host);
        builder.n_threads(1).without_learning().load().unwrap()
    }

    #[test]
    fn a_move_that_was_given_up_is_not_carried_out_by_a_later_text() {
        let model = demo();
        let plan = autoplace::Plan::clone(&model.placement());
        let mut text = model.generate("And it came to pass").temp(0.0).max_tokens(6).stream().unwrap();
        text.next().unwrap().unwrap();
        let before = model.report();
        let moved = replace(&model, plan.clone(), Duration::ZERO);
        assert!(matches!(moved, Err(load::Error::Busy)), "{moved:?}");
        // Neither the running text nor a later one moves the model.
        text.by_ref().for_each(|piece| drop(piece.unwrap()));
        drop(text);
        model.generate("In the beginning").temp(0.0).max_tokens(2).text().unwrap();
        assert!(Arc::ptr_eq(&before, &model.report()));
        replace(&model, plan, Duration::ZERO).unwrap();
        assert!(!Arc::ptr_eq(&before, &model.report()));
    }

    #[test]
    fn a_text_that_moves_and_then_ends_is_not_followed_by_a_second_move() {
        let model = demo();
        let plan = autoplace::Plan::clone(&model.placement());
        // How far the pool's thread is when the text ends differs from round to round.
        for _ in 0..ROUNDS {
            let text = model.generate("And it came to pass").temp(0.0).ignore_eos().max_tokens(400);
            let mut text = text.stream().unwrap();
            text.next().unwrap().unwrap();
            let before = model.report();
            let after = thread::scope(|scope| {
                let moved = scope.spawn(|| replace(&model, plan.clone(), Duration::from_secs(60)));
                while Arc::ptr_eq(&before, &model.report()) && text.next().is_some() {}
                let after = model.report();
                drop(text);
                moved.join().unwrap().unwrap();
                after
            });
            // A text that ended too early was not moved: then this thread has moved the model.
            let is_once = Arc::ptr_eq(&after, &model.report()) != Arc::ptr_eq(&before, &after);
            assert!(is_once, "it was moved twice");
        }
    }
}
