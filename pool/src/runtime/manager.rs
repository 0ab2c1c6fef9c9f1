//! The pool's thread: it answers requests for models, unloads idle models, and watches the machine's memory.

use std::sync::Arc;
use std::time::Duration;

use autoplace::machine::Machine;

use super::execute::Stopped;
use super::handle::ModelHandle;
use super::place::plan_error;
use super::state::{Answer, Entry, Id, Shared, Source, State};
use super::ticket::Ticket;
use crate::error::{Error, Reason};
use crate::ladder::slowness;
use crate::plan::{PoolPlan, Step};
use crate::state::PoolState;

/// Maximum number of decisions for one request, if the state changes while they are carried out.
const TRIES: u32 = 4;

/// The thread's next task.
enum Task {
    /// Load or move a model, because a request waits for it or because it is kept.
    Prepare(Id),
    /// Load a model because the pool has started, if there is room.
    Preload(Id),
    /// Unload an idle model.
    Unload(Id),
    /// Load what is expected to be wanted next.
    Anticipate,
    /// Check the machine's memory.
    Look,
    Close,
}

/// The answer to a request, to be given without the lock.
type Due = (Arc<Ticket<Answer>>, Answer);

pub(super) fn run(shared: &Arc<Shared>) {
    // A panic, such as one of the application's `configure`, ends the pool, but leaves nobody waiting.
    let _end = End(shared);
    let mut looked = shared.now();
    loop {
        match next(shared, looked) {
            Task::Prepare(id) => prepare(shared, id),
            Task::Preload(id) => preload(shared, id),
            Task::Unload(id) => {
                shared.unload(id);
            }
            Task::Anticipate => anticipate(shared),
            Task::Look => {
                looked = shared.now();
                look(shared);
                shared.lock().memory_checks += 1;
            }
            Task::Close => break,
        }
    }
}

/// Ends the pool when it is dropped.
struct End<'s>(&'s Shared);

impl Drop for End<'_> {
    fn drop(&mut self) {
        end(self.0);
    }
}

/// Ends all requests and unloads all models.
fn end(shared: &Shared) {
    let (due, ids) = shared.change(|state| {
        state.is_closed = true;
        let due: Vec<Due> = state.waiters.drain(..).map(|waiter| (waiter.ticket, Err(Error::Closed))).collect();
        (due, state.entries.iter().map(|entry| entry.id).collect::<Vec<Id>>())
    });
    give(due);
    for id in ids {
        shared.unload(id);
    }
}

fn give(due: Vec<Due>) {
    for (ticket, answer) in due {
        ticket.answer(answer);
    }
}

/// Gives handles of the models that are ready, and waits for the next task.
fn next(shared: &Arc<Shared>, looked: Duration) -> Task {
    let mut state = shared.lock();
    loop {
        state.is_at_rest = false;
        let now = shared.now();
        if state.is_closed {
            return Task::Close;
        }
        let due = due(shared, &mut state, now);
        if !due.is_empty() {
            drop(state);
            give(due);
            state = shared.lock();
            continue;
        }
        if let Some(task) = task(&state, now) {
            return task;
        }
        if std::mem::take(&mut state.may_anticipate) && state.is_worth_anticipating() {
            return Task::Anticipate;
        }
        let look = shared.settings.look;
        let rest = looked.saturating_add(look).saturating_sub(now);
        if rest.is_zero() {
            return Task::Look;
        }
        let rest = rest.min(soonest(&state, shared.settings.patience, now));
        state.is_at_rest = true;
        state = shared.wait(state, rest);
    }
}

/// The answers that can be given now: handles of models that are ready, and errors for requests that waited too long or
/// whose model was removed.
fn due(shared: &Arc<Shared>, state: &mut State, now: Duration) -> Vec<Due> {
    let mut due = Vec::new();
    let waiters = std::mem::take(&mut state.waiters);
    for waiter in waiters {
        let patience = shared.settings.patience;
        let is_named = |entry: &&mut Entry| !entry.is_removed && entry.spec.is_named(&waiter.name);
        let Some(entry) = state.entry(waiter.id).filter(is_named) else {
            let error = state.unknown(&waiter.name);
            due.push((waiter.ticket, Err(error)));
            continue;
        };
        let handle = if entry.is_ready() { ModelHandle::give(shared, entry, now) } else { None };
        if let Some(handle) = handle {
            due.push((waiter.ticket, Ok(handle)));
        } else if now.saturating_sub(waiter.since) >= patience {
            let reason = entry.failure.clone().unwrap_or_else(|| "others use the memory that it needs".to_owned());
            due.push((waiter.ticket, Err(Error::TimedOut { name: entry.spec.name.clone(), time: patience, reason })));
        } else {
            state.waiters.push_back(waiter);
        }
    }
    due
}

fn task(state: &State, now: Duration) -> Option<Task> {
    let free = |entry: &&Entry| entry.loaded.is_some() && entry.handles == 0;
    let leaves = |entry: &&Entry| entry.must_leave || entry.leaves_unless_wanted || entry.is_removed || entry.is_dead();
    if let Some(entry) = state.entries.iter().filter(free).find(leaves) {
        return Some(Task::Unload(entry.id));
    }
    let is_going = |id: Id| state.entries.iter().any(|entry| entry.id == id && entry.is_going());
    if let Some(waiter) = state.waiters.iter().find(|waiter| waiter.not_before <= now && !is_going(waiter.id)) {
        return Some(Task::Prepare(waiter.id));
    }
    if let Some(entry) = state.entries.iter().find(|entry| entry.is_missing() && entry.retry_at <= now) {
        return Some(Task::Prepare(entry.id));
    }
    if let Some(entry) = state.entries.iter().find(|entry| entry.is_preloaded && !entry.is_removed) {
        return Some(Task::Preload(entry.id));
    }
    let is_idle = |entry: &&Entry| {
        let idle = entry.spec.idle.filter(|_| !entry.spec.keep);
        let is_over = idle.is_some_and(|idle| now >= entry.used.saturating_add(idle));
        is_over && !state.is_beside_a_loaded_one(entry)
    };
    state.entries.iter().filter(free).find(is_idle).map(|entry| Task::Unload(entry.id))
}

/// The time until the next task or answer is due, if no request comes.
fn soonest(state: &State, patience: Duration, now: Duration) -> Duration {
    let waiters = state.waiters.iter().flat_map(|waiter| [waiter.not_before, waiter.since.saturating_add(patience)]);
    let idle = state.entries.iter().filter(|entry| entry.loaded.is_some() && entry.handles == 0);
    let idle = idle.filter_map(|entry| Some(entry.used.saturating_add(entry.spec.idle?)));
    let kept = state.entries.iter().filter(|entry| entry.spec.keep && entry.loaded.is_none());
    let next = waiters
        .chain(idle)
        .chain(kept.map(|entry| entry.retry_at))
        .map(|at| at.saturating_sub(now))
        .filter(|left| !left.is_zero())
        .min();
    next.unwrap_or(Duration::from_secs(60))
}

/// Makes a model ready: decides how to make room for it, and carries the plan out.
fn prepare(shared: &Arc<Shared>, id: Id) {
    for _ in 0..TRIES {
        // The requests may have been withdrawn while the plan was carried out.
        if !shared.lock().is_wanted(id) {
            return;
        }
        match try_to_prepare(shared, id) {
            Ok(()) => {
                // For example, its worker has died at once.
                if shared.lock().entry(id).is_some_and(|entry| !entry.is_ready()) {
                    put_off(shared, id, Duration::from_millis(200));
                }
                return;
            }
            Err(Failure::Closed) => return,
            Err(Failure::Again) => {}
            Err(Failure::HoldOff(time)) => return put_off(shared, id, time),
            Err(Failure::For(failed, error)) => return fail(shared, id, failed, &error),
        }
    }
    // New texts keep the plan from being carried out, so other requests are served first.
    put_off(shared, id, Duration::from_millis(200));
}

enum Failure {
    Again,
    Closed,
    HoldOff(Duration),
    /// The error of this model.
    For(Id, Reason),
}

fn try_to_prepare(shared: &Arc<Shared>, id: Id) -> Result<(), Failure> {
    let failed = |error: autoplace::load::Error| Failure::For(id, error.into());
    let machine = shared.bare_machine().map_err(failed)?;
    let Some(name) = shared.lock().entry(id).map(|entry| entry.label.clone()) else { return Ok(()) };
    let planned = |machine: &Machine| {
        make_ladders(shared, id, machine).map_err(|(partner, reason)| Failure::For(partner, reason))?;
        decide(shared, machine, Some(&name)).map_err(|error| match error {
            Error::NoRoom { name, kept } => Failure::For(id, Reason::NoRoom { name, kept }),
            // Meanwhile, another specification has taken the name.
            _ => Failure::Again,
        })
    };
    let mut machine = machine;
    let mut plan = planned(&machine);
    if shared.others_gave(id, &machine, plan.as_ref().ok()) {
        machine = shared.bare_machine().map_err(failed)?;
        plan = planned(&machine);
    }
    let plan = plan?;
    decided(shared, &plan);
    // A request waits no longer than the pool's patience, so the plan does not either.
    let oldest = shared.lock().waiters.iter().map(|waiter| waiter.since).min();
    let waited = oldest.map_or(Duration::ZERO, |since| shared.now().saturating_sub(since));
    let patience = shared.settings.patience.saturating_sub(waited);
    shared.carry_out(&plan, &machine, Some(id), patience).map_err(|stopped| match stopped {
        Stopped::Failed(id, reason) => Failure::For(id, reason),
        Stopped::Changed => Failure::Again,
        Stopped::HoldOff(time) => Failure::HoldOff(time),
        Stopped::Closed => Failure::Closed,
    })
}

/// Makes the missing ladders of the model and of those that must be loaded with it.
fn make_ladders(shared: &Shared, id: Id, machine: &Machine) -> Result<(), (Id, Reason)> {
    // The lock is released before the loop.
    let partners = with_partners(&mut shared.lock(), id);
    for partner in partners {
        let source = shared.lock().entry(partner).filter(|entry| entry.ladder.is_none()).map(|entry| entry.source());
        if let Some(source) = source {
            let ladder = shared.ladder(&source, machine).map_err(|error| (partner, error.into()))?;
            if let Some(entry) = shared.lock().entry(partner) {
                entry.ladder = Some(ladder);
            }
        }
    }
    Ok(())
}

/// Loads a model that nobody waits for, unless others would have to make room.
fn preload(shared: &Arc<Shared>, id: Id) {
    let name = shared.change(|state| {
        let entry = state.entry(id)?;
        entry.is_preloaded = false;
        entry.loaded.is_none().then(|| entry.label.clone())
    });
    let Some(name) = name else { return };
    let failed = |error: &dyn std::fmt::Display| {
        tracing::warn!("{name} is not loaded in advance: {error}");
        if let Some(entry) = shared.lock().entry(id) {
            entry.failure = Some(error.to_string());
        }
    };
    let machine = match shared.bare_machine() {
        Ok(machine) => machine,
        Err(error) => return failed(&error),
    };
    if let Err((_, reason)) = make_ladders(shared, id, &machine) {
        return failed(&reason.words(&name));
    }
    match decide(shared, &machine, Some(&name)) {
        Err(error) => failed(&error),
        Ok(plan) if plan.steps.iter().all(|step| matches!(step, Step::Load { .. })) => {
            decided(shared, &plan);
            // If a load fails, it logs its error.
            let _ = shared.carry_out(&plan, &machine, None, Duration::ZERO);
        }
        Ok(_) => tracing::info!("{name} is not loaded in advance: others would have to make room"),
    }
}

/// The pool decides anew only if a model is wanted next with at least this probability. A decision asks the machine for
/// its free memory, which takes too long to be done after each request.
const LIKELY: f64 = 0.25;

impl State {
    /// Whether a model is likely to be wanted next that is not loaded, or that is over 10 % slower than in its fastest
    /// placement.
    fn is_worth_anticipating(&self) -> bool {
        let Some((last, _)) = self.succession.last().filter(|_| self.limits.anticipate && self.waiters.is_empty())
        else {
            return false;
        };
        let is_likely = |entry: &&Entry| self.succession.chance(last, &entry.label) >= LIKELY;
        let is_slow = |entry: &Entry| {
            let fastest = entry.ladder.as_ref().and_then(|ladder| ladder.rungs().first());
            match (&entry.loaded, fastest) {
                (Some(loaded), Some(fastest)) => slowness(&loaded.rung.plan) > 1.1 * slowness(&fastest.plan),
                (None, Some(_)) => entry.may_be_loaded(),
                (_, None) => false,
            }
        };
        self.entries.iter().filter(is_likely).any(is_slow)
    }
}

/// Loads the model that usually follows the last one, before it is wanted.
fn anticipate(shared: &Arc<Shared>) {
    let Ok(machine) = shared.bare_machine() else { return };
    let (pool, sources) = input(shared, &machine);
    let plan = PoolPlan::anticipate(&pool, |index, request, machine| {
        let source = &sources[index];
        shared.probed(source, request, machine).map_err(|error| plan_error(&source.spec, error))
    });
    let Some(plan) = plan else { return };
    decided(shared, &plan);
    // A text that has begun meanwhile is not waited for: the next one that ends brings the pool here again.
    if let Err(stopped) = shared.carry_out(&plan, &machine, None, Duration::ZERO) {
        tracing::debug!("nothing is loaded for the next request: {stopped:?}");
    }
}

/// The model, and the models that must be loaded with it.
fn with_partners(state: &mut State, id: Id) -> Vec<Id> {
    let mut all = vec![id];
    let mut next = 0;
    while next < all.len() {
        let beside = state.entry(all[next]).map(|entry| entry.spec.beside.clone()).unwrap_or_default();
        let found: Vec<Id> = beside.iter().filter_map(|name| state.id_of(name)).collect();
        all.extend(found.into_iter().filter(|id| !all.contains(id)).collect::<Vec<_>>());
        next += 1;
    }
    all
}

/// The input of a decision, and what is needed to plan its models.
fn input(shared: &Arc<Shared>, machine: &Machine) -> (PoolState, Vec<Source>) {
    let mut state = shared.lock();
    state.decisions += 1;
    // The application may have moved a model itself, or its worker was replaced by one with other free memory.
    state.entries.iter_mut().filter_map(|entry| entry.loaded.as_mut()).for_each(|loaded| loaded.look(machine));
    let (pool, ids) = state.pool_state(machine, shared.now(), shared);
    let entries = ids.iter().filter_map(|id| state.entries.iter().find(|entry| entry.id == *id));
    let sources = entries.map(Entry::source).collect();
    (pool, sources)
}

/// Logs the reasons of a plan that is about to be carried out, and keeps it as the pool's last plan.
fn decided(shared: &Shared, plan: &PoolPlan) {
    if plan.steps.is_empty() {
        return;
    }
    plan.reasons.iter().for_each(|reason| tracing::info!("{reason}"));
    let plan = Arc::new(plan.clone());
    shared.change(|state| state.last_plan = Some(plan));
}

fn decide(shared: &Arc<Shared>, machine: &Machine, wanted: Option<&str>) -> Result<PoolPlan, Error> {
    let (pool, sources) = input(shared, machine);
    PoolPlan::decide(&pool, wanted, |index, request, machine| {
        let source = &sources[index];
        shared.probed(source, request, machine).map_err(|error| plan_error(&source.spec, error))
    })
}

fn put_off(shared: &Shared, id: Id, time: Duration) {
    let until = shared.now() + time;
    shared.change(|state| {
        if let Some(entry) = state.entry(id) {
            entry.retry_at = until;
        }
        state.waiters.iter_mut().filter(|waiter| waiter.id == id).for_each(|waiter| waiter.not_before = until);
    });
}

/// Answers all requests for the model with the error of its load, or of the load of a model beside it.
fn fail(shared: &Shared, id: Id, failed: Id, reason: &Reason) {
    let due = shared.change(|state| {
        let Some(name) = state.entry(failed).map(|entry| entry.spec.name.clone()) else { return Vec::new() };
        let words = reason.words(&name);
        for id in [id, failed] {
            if let Some(entry) = state.entry(id) {
                entry.failure = Some(words.clone());
            }
        }
        let mut due: Vec<Due> = Vec::new();
        let waiters = std::mem::take(&mut state.waiters);
        for waiter in waiters {
            if waiter.id != id {
                state.waiters.push_back(waiter);
                continue;
            }
            due.push((waiter.ticket, Err(reason.error(&name))));
        }
        due
    });
    give(due);
}

/// Shrinks or parks models for other programs, grows models into free memory, and loads parked models again.
fn look(shared: &Arc<Shared>) {
    let is_empty = shared.lock().entries.iter().all(|entry| entry.loaded.is_none() && !entry.is_parked);
    if is_empty {
        return;
    }
    shared.give_to_others();
    let Ok(machine) = shared.bare_machine() else { return };
    let is_pressed = !input(shared, &machine).0.is_within();
    let Ok(plan) = decide(shared, &machine, None) else { return };
    let unloaded = plan.steps.iter().filter_map(|step| match step {
        Step::Unload { model } => Some(model.clone()),
        _ => None,
    });
    let unloaded: Vec<String> = unloaded.collect();
    decided(shared, &plan);
    // Running texts are not waited for here; the next check decides again.
    if let Err(stopped) = shared.carry_out(&plan, &machine, None, shared.settings.look) {
        tracing::debug!("the pool stays as it is: {stopped:?}");
    }
    shared.change(|state| {
        for entry in state.entries.iter_mut().filter(|entry| unloaded.contains(&entry.label)) {
            entry.is_parked = is_pressed && entry.loaded.is_none();
        }
    });
    if !unloaded.is_empty() {
        return;
    }
    // The first of the parked models may be too large for the memory that is free again, and another one not.
    let parked = |entry: &&Entry| entry.is_parked && entry.loaded.is_none();
    let names: Vec<String> = shared.lock().entries.iter().filter(parked).map(|entry| entry.label.clone()).collect();
    for name in names {
        let Ok(machine) = shared.bare_machine() else { return };
        let Ok(plan) = decide(shared, &machine, Some(&name)) else { continue };
        if matches!(&plan.steps[..], [Step::Load { .. }]) {
            decided(shared, &plan);
            let _ = shared.carry_out(&plan, &machine, None, Duration::ZERO);
        }
    }
}
