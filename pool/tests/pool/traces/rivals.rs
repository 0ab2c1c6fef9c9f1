//! The rules of other programs, written from their public sources. Each gets our planner's placements, and loads and
//! unloads by its own rule. If a program cuts a text off, the rule here waits for the text's end instead.

use autoplace_pool::Rung;

use super::sim::{Action, Rule, System};

/// llama-swap with its defaults (github.com/mostlygeek/llama-swap, proxy/processgroup.go, `ProxyRequest`): one model at
/// a time. A request for another model stops the running process. The process first ends its requests
/// (proxy/process.go, `Stop`), and all later requests wait for the lock.
#[derive(Debug, Default)]
pub(crate) struct LlamaSwap;

impl Rule for LlamaSwap {
    fn next(&mut self, system: &System) -> Action {
        let Some(&first) = system.queue.front() else { return Action::Wait(None) };
        let model = system.wishes[first].model;
        if let Some(running) = (0..system.models.len()).find(|&model| system.loaded[model].is_some()) {
            return match running == model {
                // Requests for the running model go to its own queue.
                true => begin(system, |place, wish| same_up_to(system, place, wish, model)),
                false if system.texts(running) == 0 && system.is_ready(running) => Action::Unload(running),
                false => Action::Wait(None),
            };
        }
        load(system, model)
    }
}

/// Whether all requests up to this place are for the model. No request overtakes another.
fn same_up_to(system: &System, place: usize, _wish: usize, model: usize) -> bool {
    system.queue.iter().take(place + 1).all(|&wish| system.wishes[wish].model == model)
}

fn begin(system: &System, may: impl Fn(usize, usize) -> bool) -> Action {
    let place = system.queue.iter().enumerate().find(|&(place, &wish)| {
        let model = system.wishes[wish].model;
        system.is_ready(model) && system.has_slot(model) && may(place, wish)
    });
    place.map_or(Action::Wait(None), |(place, _)| Action::Begin(place))
}

fn load(system: &System, model: usize) -> Action {
    match system.fitting(model).filter(|_| !system.is_reading()) {
        Some(rung) => Action::Load(model, rung.clone()),
        None => Action::Wait(None),
    }
}

/// Ollama with its defaults (github.com/ollama/ollama, server/sched.go): up to three models for each GPU
/// (`defaultModelsPerGPU`). The first model is placed as well as it can be. A further one is loaded if it fits whole
/// (`pickBestFitGPUs`); otherwise an idle model is unloaded, or the first that becomes idle (`findRunnerToUnload`). All
/// have the same keep-alive, so Ollama unloads any of them; the rule here takes the least recently used one. Requests
/// are scheduled in their order. While one waits for room, all later ones wait (`processPending`). A model that was not
/// used for five minutes is unloaded (`OLLAMA_KEEP_ALIVE`).
///
/// If the number of texts at once is not set (`OLLAMA_NUM_PARALLEL`), the version of 2024 chooses it: four if the model
/// then fits whole, otherwise one (`numParallelToTry`).
#[derive(Debug, Default)]
pub(crate) struct Ollama {
    /// Whether Ollama chooses the number of texts at once, for a model that may compute several.
    pub(crate) chooses_texts: bool,
}

const KEEP_ALIVE: f64 = 300.0;

impl Ollama {
    /// The fastest placement beside the loaded models; if `is_whole`, one with all layers on GPUs.
    fn fitting<'s>(&self, system: &'s System, model: usize, is_whole: bool) -> Option<&'s Rung> {
        let asked = system.models[model].sequences;
        let tried = if self.chooses_texts && asked > 1 { vec![4, 1] } else { vec![asked] };
        let of = |texts: &usize| system.fitting_for(model, *texts);
        let whole = tried.iter().filter_map(of).find(|rung| rung.plan.full_offload);
        whole.or_else(|| tried.last().and_then(of).filter(|_| !is_whole))
    }
}

impl Rule for Ollama {
    fn next(&mut self, system: &System) -> Action {
        let models = 0..system.models.len();
        let is_idle = |model: &usize| system.is_ready(*model) && system.texts(*model) == 0;
        let used = |model: usize| system.loaded[model].as_ref().map_or(0.0, |loaded| loaded.used);
        let is_wanted = |model: usize| system.queue.iter().any(|&wish| system.wishes[wish].model == model);
        let idle = models.clone().filter(is_idle);
        if let Some(model) = idle.clone().find(|&model| system.now >= used(model) + KEEP_ALIVE && !is_wanted(model)) {
            return Action::Unload(model);
        }
        // The first request whose model is not loaded blocks the requests after it.
        let blocked = system.queue.iter().position(|&wish| system.loaded[system.wishes[wish].model].is_none());
        let began = begin(system, |place, _| blocked.is_none_or(|blocked| place < blocked));
        if let Action::Begin(_) = began {
            return began;
        }
        let expires = idle.clone().map(|model| used(model) + KEEP_ALIVE).filter(|&at| at > system.now);
        let wait = Action::Wait(expires.min_by(f64::total_cmp));
        let Some(model) = blocked.map(|place| system.wishes[system.queue[place]].model) else { return wait };
        if system.is_reading() {
            return wait;
        }
        let loaded = models.filter(|&model| system.loaded[model].is_some()).count();
        let most = 3 * system.machine.gpus.len().max(1);
        let whole = self.fitting(system, model, loaded > 0);
        match whole.filter(|_| loaded < most) {
            Some(rung) => Action::Load(model, rung.clone()),
            None => match idle.min_by(|&one, &other| used(one).total_cmp(&used(other))) {
                Some(model) => Action::Unload(model),
                None => wait,
            },
        }
    }
}

/// llama-server's router with its defaults (github.com/ggml-org/llama.cpp, tools/server/server-models.cpp): up to four
/// models (`--models-max`, common/arg.cpp). At the limit the least recently used one is unloaded (`unload_lru`). As
/// many layers of a model as fit into the free memory are loaded (`--fit`, on by default), and stay there. If a model
/// fits nowhere, the router fails; the rule here unloads another model.
#[derive(Debug, Default)]
pub(crate) struct Router;

const MODELS_MAX: usize = 4;

impl Rule for Router {
    fn next(&mut self, system: &System) -> Action {
        let is_missing = |wish: &&usize| system.loaded[system.wishes[**wish].model].is_none();
        let missing = system.queue.iter().find(is_missing).map(|&wish| system.wishes[wish].model);
        let loaded = || (0..system.models.len()).filter(|&model| system.loaded[model].is_some());
        let used = |model: usize| system.loaded[model].as_ref().map_or(0.0, |loaded| loaded.used);
        let oldest = || loaded().min_by(|&one, &other| used(one).total_cmp(&used(other)));
        let leaves = missing.and_then(|model| {
            let is_full = loaded().count() >= MODELS_MAX || system.fitting(model).is_none();
            oldest().filter(|_| is_full && !system.is_reading())
        });
        // Requests for a model that is about to be stopped wait for its next load.
        let began = begin(system, |_, wish| Some(system.wishes[wish].model) != leaves);
        match (began, leaves, missing) {
            (Action::Begin(place), _, _) => Action::Begin(place),
            (_, Some(model), _) if system.texts(model) == 0 => Action::Unload(model),
            (_, None, Some(model)) => load(system, model),
            _ => Action::Wait(None),
        }
    }
}
