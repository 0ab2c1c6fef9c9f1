//! The pool's own rule: the decisions of [`PoolPlan`], carried out step by step.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use autoplace_pool::{ModelState, PoolPlan, PoolState, Rung, Step, Succession};

use super::sim::{Action, Rule, System};
use crate::models::planned;

/// Seconds between two checks whether a model should grow.
const LOOK: f64 = 10.0;

pub(crate) struct Ours {
    state: PoolState,
    steps: VecDeque<Step>,
    plan: Option<PoolPlan>,
    looked: f64,
    held_until: f64,
    /// The model of the last request.
    last: Option<usize>,
    /// Whether a request has come, or one has ended, since the last decision about the next request.
    may_anticipate: bool,
    /// Whether the rule knows the next requests of the trace, which no real rule can know.
    is_clairvoyant: bool,
    /// The requests that had come before the last decision. If such a request is for a loaded model, it is answered
    /// before the model leaves.
    with_handle: BTreeSet<usize>,
    /// Number of requests that have come.
    come: usize,
}

impl Ours {
    /// `moves`: whether a model can be re-placed in the middle of a text.
    pub(crate) fn new(system: (&autoplace::machine::Machine, &[super::sim::TracedModel]), moves: bool) -> Self {
        let mut state = PoolState::new(system.0.clone());
        state.models = system.1.iter().map(|model| ModelState::new(model.name, model.ladder.clone())).collect();
        state.models.iter_mut().for_each(|model| model.moves = moves);
        state.limits.anticipate = true;
        Self {
            state,
            steps: VecDeque::new(),
            plan: None,
            looked: 0.0,
            held_until: 0.0,
            last: None,
            may_anticipate: false,
            is_clairvoyant: false,
            with_handle: BTreeSet::new(),
            come: 0,
        }
    }

    /// The same rule with knowledge of the next two requests, instead of the models that usually follow.
    pub(crate) fn clairvoyant(system: (&autoplace::machine::Machine, &[super::sim::TracedModel])) -> Self {
        Self { is_clairvoyant: true, ..Self::new(system, false) }
    }

    /// A succession from which the next two requests are certain; `None` if the next one is for the same model as the
    /// last.
    fn known(&self, system: &System) -> Option<Succession> {
        let last = self.last?;
        let mut coming = system.wishes[self.come..].iter();
        let next = coming.next().filter(|wish| wish.model != last)?;
        let then = coming.find(|wish| wish.model != next.model);
        let since = system.wishes[self.come - 1].at;
        let mut known = Succession::default();
        let mut wanted = |model: usize, at: f64| {
            known.wanted(&self.state.models[model].name, Duration::from_secs_f64(at));
        };
        for _ in 0..40 {
            wanted(last, since);
            wanted(next.model, next.at);
            if let Some(then) = then {
                wanted(then.model, then.at);
            }
        }
        wanted(last, since);
        Some(known)
    }

    fn look(&mut self, system: &System) {
        self.state.now = Duration::from_secs_f64(system.now);
        for (index, model) in self.state.models.iter_mut().enumerate() {
            model.loaded = system.loaded[index].as_ref().map(|loaded| loaded.rung.clone());
            // A request for a loaded model has its handle at once, and waits in the model's queue.
            let queued = system.queued(index).count() as u32;
            let texts = system.texts(index) as u32 + queued;
            (model.texts, model.waiting) = if model.loaded.is_some() { (texts, 0) } else { (0, queued) };
            model.ends_in = Duration::from_secs_f64(system.ends_in(index));
            model.load_time = system.took[index].map(Duration::from_secs_f64);
            model.loads = system.loads[index];
        }
    }

    fn decide(&mut self, system: &System, wanted: Option<usize>) {
        self.look(system);
        self.with_handle = system.queue.iter().copied().collect();
        let name = wanted.map(|wanted| self.state.models[wanted].name.clone());
        let state = &self.state;
        let plan = PoolPlan::decide(state, name.as_deref(), |index, request, machine| {
            planned(&state.models[index].name, request, machine)
        });
        let plan = plan.unwrap();
        self.steps = plan.steps.iter().cloned().collect();
        self.plan = Some(plan);
    }

    fn anticipate(&mut self, system: &System) {
        self.look(system);
        if self.is_clairvoyant {
            let Some(known) = self.known(system) else { return };
            self.state.succession = known;
        }
        let state = &self.state;
        let plan =
            PoolPlan::anticipate(state, |index, request, machine| planned(&state.models[index].name, request, machine));
        if let Some(plan) = plan {
            self.steps = plan.steps.iter().cloned().collect();
            self.plan = Some(plan);
        }
    }

    fn index(&self, name: &str) -> usize {
        self.state.models.iter().position(|model| model.name == name).unwrap()
    }

    /// The next step, if it can be done now.
    fn step(&mut self, system: &System) -> Option<Action> {
        let step = self.steps.front()?.clone();
        let placed = |name: &str| {
            let model = self.plan.as_ref().unwrap().model(name).unwrap();
            Rung::new((*model.plan).clone(), &system.machine)
        };
        let (action, is_reload) = match &step {
            Step::WaitForTexts { model, .. } => {
                let index = self.index(model);
                if system.texts(index) > 0 || system.queued(index).any(|wish| self.with_handle.contains(&wish)) {
                    return None;
                }
                self.steps.pop_front();
                return self.step(system);
            }
            Step::HoldOff { time } => {
                self.held_until = system.now + time.as_secs_f64();
                self.steps.pop_front();
                return None;
            }
            _ if system.is_reading() => return None,
            Step::Unload { model } => (Action::Unload(self.index(model)), true),
            Step::Load { model } => (Action::Load(self.index(model), placed(model)), false),
            Step::Shrink { model } | Step::Grow { model } => (Action::Move(self.index(model), placed(model)), true),
            other => panic!("{other:?}"),
        };
        if is_reload {
            self.state.reloads.push(Duration::from_secs_f64(system.now));
        }
        self.steps.pop_front();
        Some(action)
    }

    /// Whether a later step unloads the model or waits for its texts. No text begins on such a model.
    fn is_leaving(&self, model: usize) -> bool {
        self.steps.iter().any(|step| match step {
            Step::Unload { model: name } => self.index(name) == model,
            Step::WaitForTexts { model: name, .. } => self.index(name) == model,
            _ => false,
        })
    }
}

impl Rule for Ours {
    fn next(&mut self, system: &System) -> Action {
        let place = system.queue.iter().position(|&wish| {
            let model = system.wishes[wish].model;
            let may_begin = !self.is_leaving(model) || self.with_handle.contains(&wish);
            system.is_ready(model) && system.has_slot(model) && may_begin
        });
        if let Some(place) = place {
            return Action::Begin(place);
        }
        if let Some(action) = self.step(system) {
            return action;
        }
        if !self.steps.is_empty() || system.is_reading() {
            return Action::Wait(None);
        }
        let is_missing = |wish: &&usize| system.loaded[system.wishes[**wish].model].is_none();
        let missing = system.queue.iter().find(is_missing).map(|&wish| system.wishes[wish].model);
        if let Some(model) = missing {
            if system.now < self.held_until {
                return Action::Wait(Some(self.held_until));
            }
            self.decide(system, Some(model));
            return match self.step(system) {
                Some(action) => action,
                None => Action::Wait((self.held_until > system.now).then_some(self.held_until)),
            };
        }
        if std::mem::take(&mut self.may_anticipate) && system.queue.is_empty() {
            self.anticipate(system);
            if let Some(action) = self.step(system) {
                return action;
            }
        }
        if system.now >= self.looked + LOOK {
            self.looked = system.now;
            self.decide(system, None);
            if matches!(self.steps.front(), Some(Step::HoldOff { .. })) {
                self.steps.clear();
            }
            if let Some(action) = self.step(system) {
                return action;
            }
        }
        Action::Wait(None)
    }

    fn wanted(&mut self, system: &System, wish: usize) {
        let wish = system.wishes[wish];
        let is_turn = self.last != Some(wish.model);
        self.last = Some(wish.model);
        self.come += 1;
        let at = Duration::from_secs_f64(wish.at);
        self.state.models[wish.model].demand.count_request(at, is_turn);
        let name = self.state.models[wish.model].name.clone();
        self.state.succession.wanted(&name, at);
        self.may_anticipate = true;
    }

    fn ended(&mut self, system: &System, wish: usize) {
        let wish = system.wishes[wish];
        self.state.models[wish.model].demand.ended(wish.prompt, wish.reply);
        self.may_anticipate = true;
    }
}
