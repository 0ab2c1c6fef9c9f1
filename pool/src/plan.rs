//! The decision about all models of a machine: a [`PoolState`] flows in, a [`PoolPlan`] with its reasons flows out.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use autoplace::Plan;
use autoplace::machine::Machine;
use autoplace::plan::{self, Request};

use crate::anticipate;
use crate::error::Error;
use crate::held::{HeldBytes, Room};
use crate::ladder::{Rung, slowness};
use crate::search::{Arrangement, cheapest, order, together};
use crate::state::{ModelState, PoolState};

/// The steps that make room for a model, in their order, and the placements after the last step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct PoolPlan {
    /// The requested model; `None` for a plan that only moves or unloads loaded models.
    pub wanted: Option<String>,
    /// The steps, in an order in which no device ever exceeds its free bytes.
    pub steps: Vec<Step>,
    /// The models that are loaded after the last step.
    pub models: Vec<PlannedModel>,
    /// The devices after the last step: the GPUs in the machine's order, then the host.
    pub devices: Vec<DeviceLeft>,
    /// The reasons: a sentence for each step, and further sentences, such as one about steps that are not allowed now.
    pub reasons: Vec<String>,
    /// Predicted seconds that requests wait because of this decision, during the next ten minutes.
    pub price: f64,
}

/// One step of a plan.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "step", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Step {
    /// Wait until the running texts of this model have ended.
    WaitForTexts {
        /// The model.
        model: String,
        /// The predicted time.
        time: Duration,
    },
    /// Wait because too many models were reloaded in the last minute, then decide again. A plan with this step has no
    /// other steps.
    HoldOff {
        /// The time until the next reload is allowed.
        time: Duration,
    },
    /// Unload this model.
    Unload {
        /// The model.
        model: String,
    },
    /// Re-place this model, so that it takes fewer bytes.
    Shrink {
        /// The model.
        model: String,
    },
    /// Load this model.
    Load {
        /// The model.
        model: String,
    },
    /// Re-place this model, so that it is faster or computes more texts at once.
    Grow {
        /// The model.
        model: String,
    },
}

/// A model that is loaded after a plan.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct PlannedModel {
    /// Its name in the pool.
    pub name: String,
    /// Its placement, planned for the free bytes that it may take.
    pub plan: Arc<Plan>,
    /// The bytes that it takes of the devices.
    pub held: HeldBytes,
    /// Predicted seconds of a request of the mean size.
    pub seconds: f64,
    /// Whether the plan loads or moves it.
    pub is_new: bool,
}

impl PlannedModel {
    fn new(model: &ModelState, rung: &Rung, is_new: bool) -> Self {
        Self {
            name: model.name.clone(),
            plan: Arc::clone(&rung.plan),
            held: rung.held.clone(),
            seconds: model.demand.seconds(&rung.plan),
            is_new,
        }
    }
}

/// A device after a plan. Sizes in bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct DeviceLeft {
    /// The name that reports use for the device.
    pub name: String,
    /// Free bytes if no model of the pool were loaded.
    pub free: u64,
    /// Bytes that the models of the pool take.
    pub taken: u64,
    /// Bytes that are left.
    pub left: u64,
}

impl PoolPlan {
    /// Decides how to make room for the model `wanted`. Without `wanted`, decides whether loaded models should shrink,
    /// grow or be unloaded. The plan is the one in which requests are predicted to wait least: it may place the model
    /// smaller, unload idle models, shrink others, or wait for texts to end. The prediction uses the demand of about
    /// the last ten minutes.
    ///
    /// `plan` makes a plan for the model with this index in the state. It is called for each model that changes,
    /// because the exact bytes that the others leave lie between two rungs of the model's [ladder](crate::Ladder).
    ///
    /// # Errors
    ///
    /// [`Error::Unknown`] for a name that no model of the state has; [`Error::NoRoom`] if the model does not fit beside
    /// those that are never unloaded.
    pub fn decide(
        state: &PoolState,
        wanted: Option<&str>,
        mut plan: impl FnMut(usize, &Request, &Machine) -> Result<Plan, plan::Error>,
    ) -> Result<Self, Error> {
        let index = wanted.map(|name| state.find(name).ok_or_else(|| unknown(state, name))).transpose()?;
        // If other programs need memory, models make room at once, whatever the limit of reloads is.
        let held_off = state.held_off().filter(|_| state.is_within());
        let arrangement = cheapest(state, index, held_off.is_some());
        match (arrangement, held_off) {
            (Some(mut arrangement), _) => {
                polish(state, &mut arrangement, &mut plan);
                Ok(Self::from_arrangement(state, wanted, index, &arrangement, held_off))
            }
            (None, Some(time)) if cheapest(state, index, false).is_some() => Ok(Self::hold_off(state, wanted, time)),
            (None, _) => Err(no_room(state, index)),
        }
    }

    /// Decides what to load before the next request, which usually follows the last one, and which models make room for
    /// it. `plan` is as in [`decide`](Self::decide). `None` if the next two requests are expected to wait as long
    /// without these loads, if requests wait now, if [`Limits::anticipate`](crate::Limits::anticipate) is off, or if
    /// enough models were reloaded lately. Models with running texts stay as they are.
    pub fn anticipate(
        state: &PoolState,
        mut plan: impl FnMut(usize, &Request, &Machine) -> Result<Plan, plan::Error>,
    ) -> Option<Self> {
        let is_idle = state.models.iter().all(|model| model.waiting == 0);
        if !state.limits.anticipate || !is_idle || !state.is_within() {
            return None;
        }
        let mut arrangement = anticipate::for_the_next(state)?;
        let moved = arrangement.order.iter().filter(|&&index| state.models[index].loaded.is_some()).count();
        if !state.may_anticipate(moved) {
            return None;
        }
        polish(state, &mut arrangement, &mut plan);
        let mut decided = Self::from_arrangement(state, None, None, &arrangement, None);
        let (last, _) = state.succession.last()?;
        for &index in arrangement.order.iter().filter(|&&index| arrangement.choices[index].rung.is_some()) {
            decided.reasons.push(format!("{} is expected to be requested soon after {last}", state.models[index].name));
        }
        Some(decided)
    }

    fn from_arrangement(
        state: &PoolState,
        wanted: Option<&str>,
        index: Option<usize>,
        arrangement: &Arrangement,
        held_off: Option<Duration>,
    ) -> Self {
        let mut steps = Vec::new();
        let mut reasons = Vec::new();
        for &changed in &arrangement.order {
            let (model, choice) = (&state.models[changed], &arrangement.choices[changed]);
            if choice.waits {
                steps.push(Step::WaitForTexts { model: model.name.clone(), time: model.ends_in });
                reasons.push(format!(
                    "{} generates for about {:.1} s more: the pool waits, because it cuts no text off",
                    model.name,
                    model.ends_in.as_secs_f64()
                ));
            }
            let (step, reason) = step(state, model, choice.rung.as_ref());
            steps.push(step);
            reasons.push(reason);
        }
        let wanted_model = index.map(|index| &state.models[index]).filter(|model| model.loaded.is_none());
        if let (Some(time), Some(wanted)) = (held_off, wanted_model) {
            reasons.push(format!(
                "{} is placed in the memory that is left: {} in the last minute, and no more are allowed for {:.0} s",
                wanted.name,
                reloads(state),
                time.as_secs_f64()
            ));
        }
        let mut room = Room::new(&state.machine);
        let mut models = Vec::new();
        for (model, choice) in state.models.iter().zip(&arrangement.choices) {
            let Some(rung) = &choice.rung else { continue };
            room = room.without(&rung.held);
            models.push(PlannedModel::new(model, rung, choice.is_change));
        }
        let devices = devices(&state.machine, &room);
        Self { wanted: wanted.map(str::to_owned), steps, models, devices, reasons, price: arrangement.price }
    }

    /// The plan to wait before the next reload.
    fn hold_off(state: &PoolState, wanted: Option<&str>, time: Duration) -> Self {
        let loaded = state.models.iter().filter_map(|model| Some((model, model.loaded.as_ref()?)));
        let mut room = Room::new(&state.machine);
        let mut models = Vec::new();
        for (model, rung) in loaded {
            room = room.without(&rung.held);
            models.push(PlannedModel::new(model, rung, false));
        }
        let reason = format!(
            "nothing is unloaded or moved for {:.0} s: {} in the last minute, as many as are allowed",
            time.as_secs_f64(),
            reloads(state)
        );
        Self {
            wanted: wanted.map(str::to_owned),
            steps: vec![Step::HoldOff { time }],
            models,
            devices: devices(&state.machine, &room),
            reasons: vec![reason],
            price: time.as_secs_f64(),
        }
    }

    /// The placement of this model after the plan; `None` if it is not loaded.
    pub fn model(&self, name: &str) -> Option<&PlannedModel> {
        self.models.iter().find(|model| model.name == name)
    }
}

/// Makes a second plan of each model that changes, for exactly the bytes that the others leave. The model of the last
/// step comes first.
fn polish(
    state: &PoolState,
    arrangement: &mut Arrangement,
    plan: &mut impl FnMut(usize, &Request, &Machine) -> Result<Plan, plan::Error>,
) {
    for index in arrangement.order.clone().into_iter().rev() {
        let Some(rung) = arrangement.choices[index].rung.clone() else { continue };
        let others = arrangement.choices.iter().enumerate().filter(|(other, _)| *other != index);
        let others = others.filter_map(|(_, choice)| choice.rung.as_ref());
        let room = others.into_iter().try_fold(Room::new(&state.machine), |room, other| room.with(&other.held));
        let request = state.models[index].ladder.request_for(&rung.plan);
        let better = room.and_then(|room| room.better(&state.machine, &rung, |machine| plan(index, &request, machine)));
        let Some(better) = better else { continue };
        arrangement.choices[index].rung = Some(better);
        match order(state, &arrangement.choices) {
            Some(order) => arrangement.order = order,
            // With this rung, the steps have no order in which each of them fits.
            None => arrangement.choices[index].rung = Some(rung),
        }
    }
}

/// The step that moves the model to this rung, and its reason.
fn step(state: &PoolState, model: &ModelState, rung: Option<&Rung>) -> (Step, String) {
    let name = model.name.clone();
    let load = model.load_seconds(&state.machine);
    let fastest = model.ladder.rungs().first();
    match (&model.loaded, rung) {
        (Some(_), None) => {
            let requests = model.demand.rate(state.now) * 600.0;
            let wanted = match model.demand.last() {
                None => "it has not been requested yet".to_owned(),
                Some(_) => format!("about {requests:.1} requests are expected in ten minutes"),
            };
            let reason = format!("{name} is unloaded: {wanted}, and loading it again takes about {load:.1} s");
            (Step::Unload { model: name }, reason)
        }
        (Some(now), Some(rung)) => {
            let [was, is] = [now, rung].map(|rung| (slowness(&rung.plan), std::cmp::Reverse(rung.sequences())));
            let shrinks = is > was;
            let verb = if shrinks { "shrinks" } else { "grows" };
            let [was, is] = [now, rung].map(|rung| layers(model, rung));
            let reason = format!("{name} {verb} from {was} to {is}, which takes about {load:.1} s");
            (if shrinks { Step::Shrink { model: name } } else { Step::Grow { model: name } }, reason)
        }
        (None, Some(rung)) => {
            let is_smaller = |fastest: &&Rung| {
                slowness(&fastest.plan) < 0.99 * slowness(&rung.plan) || rung.sequences() < fastest.sequences()
            };
            let is = layers(model, rung);
            let reason = match fastest.filter(is_smaller) {
                None => format!("{name} is loaded with {is}"),
                Some(fastest) => format!("{name} is loaded with {is}; alone it would have {}", layers(model, fastest)),
            };
            (Step::Load { model: name }, reason)
        }
        (None, None) => (Step::Unload { model: name.clone() }, format!("{name} is not loaded")),
    }
}

/// `20 of 33 layers on GPUs`, with the parts of blocks that are on the host, and with the number of texts at once if
/// that number differs between rungs.
fn layers(model: &ModelState, rung: &Rung) -> String {
    let plan = &rung.plan;
    let mut text = format!("{} of {} layers on GPUs", plan.n_gpu_layers, plan.layers());
    if plan.split_blocks > 0 {
        text += &format!(" (parts of {} on the host)", plan.split_blocks);
    }
    if model.ladder.rungs().iter().any(|other| other.sequences() != rung.sequences()) {
        text += &format!(" for {} texts at once", rung.sequences());
    }
    text
}

fn reloads(state: &PoolState) -> String {
    let count = state.reloads.iter().filter(|at| **at + Duration::from_secs(60) > state.now).count();
    format!("{count} models were unloaded or moved")
}

fn devices(machine: &Machine, room: &Room) -> Vec<DeviceLeft> {
    let of = |name: &str, free: u64, left: u64| DeviceLeft {
        name: name.to_owned(),
        free,
        taken: free.saturating_sub(left),
        left,
    };
    let gpus = machine.gpus.iter().zip(room.gpus()).map(|(gpu, &left)| of(&gpu.name, gpu.free, left));
    gpus.chain([of("host", machine.host.available, room.host())]).collect()
}

fn unknown(state: &PoolState, name: &str) -> Error {
    Error::Unknown { name: name.to_owned(), known: state.models.iter().map(|model| model.name.clone()).collect() }
}

fn no_room(state: &PoolState, wanted: Option<usize>) -> Error {
    let together = wanted.map(|wanted| together(state, wanted)).unwrap_or_default();
    let is_kept = |index: &usize| {
        let model = &state.models[*index];
        model.loaded.is_some() && (model.keep || together.contains(index) || model.waiting > 0)
    };
    let mut kept: Vec<usize> = (0..state.models.len()).filter(is_kept).collect();
    kept.extend(together.iter().filter(|index| state.models[**index].loaded.is_none()));
    kept.retain(|index| Some(*index) != wanted);
    let name = |index: usize| state.models[index].name.clone();
    Error::NoRoom {
        name: wanted.map_or_else(|| "the set of loaded models".to_owned(), name),
        kept: kept.into_iter().map(name).collect(),
    }
}
