//! A machine in virtual time: requests arrive, models are loaded from one disk, and texts share the processors.
//!
//! Every rule runs on the same machine with the same placements and speeds, the planner's own:
//!
//! - loads and re-placements read whole files, one after another. A file is read from the disk; with a [page
//!   cache](Caching::Pages), the part that the host's memory still holds is read from that memory;
//! - a model computes up to its number of sequences at once, at full speed; models that compute at the same time share
//!   the machine evenly;
//! - a text whose model is re-placed pauses.

use std::collections::VecDeque;

use autoplace::machine::Machine;
use autoplace_pool::{Ladder, Rung};

/// A request of a trace. Times in seconds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wish {
    pub(crate) at: f64,
    pub(crate) model: usize,
    pub(crate) prompt: u32,
    pub(crate) reply: u32,
}

/// A model of a trace.
#[derive(Debug, Clone)]
pub(crate) struct TracedModel {
    pub(crate) name: &'static str,
    pub(crate) ladder: Ladder,
    /// Texts that it computes at once.
    pub(crate) sequences: usize,
}

impl TracedModel {
    /// The seconds that a text takes alone in the fastest placement for all texts at once.
    pub(crate) fn alone(&self, wish: &Wish) -> f64 {
        let rungs = self.ladder.rungs();
        let fastest = rungs.iter().find(|rung| rung.sequences() as usize == self.sequences);
        seconds(fastest.unwrap_or(&rungs[0]), wish)
    }
}

/// The next action of a rule.
#[derive(Debug, Clone)]
pub(crate) enum Action {
    /// Begins the text of a waiting request (by its place in the queue) on its loaded model.
    Begin(usize),
    Load(usize, Rung),
    Move(usize, Rung),
    Unload(usize),
    /// Do nothing before the next event, or before this time.
    Wait(Option<f64>),
}

/// Which files the host's memory keeps after they were read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Caching {
    /// Nothing: each load reads its whole file from the disk, as on a machine whose memory others use.
    Nothing,
    /// The host memory that the loaded models leave free holds the files that were read last, as an operating system's
    /// page cache does.
    Pages,
}

/// Bytes per second of a load from the page cache: "RAM: ~9GB/sec" with DDR4 at 2666 MT/s, by the author of llama-swap
/// (reddit.com/r/LocalLLaMA/comments/1jz3tkv).
const WARM: f64 = 9e9;

/// A rule by which models are loaded and unloaded.
pub(crate) trait Rule {
    fn next(&mut self, system: &System) -> Action;

    /// A request has come.
    fn wanted(&mut self, _: &System, _: usize) {}

    /// A request has ended.
    fn ended(&mut self, _: &System, _: usize) {}

    /// Whether models that compute at the same time slow each other down.
    fn is_shared(&self) -> bool {
        true
    }
}

#[derive(Debug, Clone)]
struct Text {
    wish: usize,
    /// The remaining share of the text.
    left: f64,
}

/// A loaded model.
#[derive(Debug, Clone)]
pub(crate) struct Loaded {
    pub(crate) rung: Rung,
    texts: Vec<Text>,
    /// When it was last used.
    pub(crate) used: f64,
}

/// Reading a file.
#[derive(Debug, Clone)]
struct Reading {
    model: usize,
    until: f64,
}

#[derive(Debug)]
pub(crate) struct System {
    pub(crate) machine: Machine,
    pub(crate) models: Vec<TracedModel>,
    pub(crate) loaded: Vec<Option<Loaded>>,
    /// Waiting requests, the oldest first.
    pub(crate) queue: VecDeque<usize>,
    pub(crate) wishes: Vec<Wish>,
    pub(crate) now: f64,
    /// How long the last load or re-placement of each model took.
    pub(crate) took: Vec<Option<f64>>,
    /// Number of loads and re-placements of each model.
    pub(crate) loads: Vec<u32>,
    caching: Caching,
    /// The bytes of each model's file that the host's memory holds, and when the file was last read.
    cached: Vec<(u64, f64)>,
    /// Whether models that compute at the same time slow each other down.
    is_shared: bool,
    reading: Option<Reading>,
    pub(crate) report: Report,
}

/// The result of a trace under a rule.
#[derive(Debug, Clone, Default)]
pub(crate) struct Report {
    /// The sum, over all requests, of the seconds from arrival to end, less the seconds that the text takes alone in
    /// the fastest placement.
    pub(crate) waited: f64,
    /// The parts of `waited`.
    pub(crate) parts: Parts,
    /// Bytes that loads and re-placements read from the disk.
    pub(crate) read: u64,
    pub(crate) loads: u32,
    pub(crate) moves: u32,
}

/// Seconds that requests lost, by cause.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Parts {
    /// Their model was not loaded, was being read, or was about to leave.
    pub(crate) load: f64,
    /// Their model computed as many other texts as it can.
    pub(crate) queue: f64,
    /// Their model's placement is slower than its fastest one.
    pub(crate) slower: f64,
    /// Another model computed at the same time.
    pub(crate) shared: f64,
}

/// Seconds of a load in addition to reading the file: the process, the context, the warm-up.
const LOAD_SECONDS: f64 = 0.5;

pub(crate) fn seconds(rung: &Rung, wish: &Wish) -> f64 {
    let speed = rung.plan.speed.as_ref().unwrap();
    f64::from(wish.prompt) / speed.prompt.tokens_per_second + f64::from(wish.reply) / speed.tokens_per_second
}

/// Seconds to load a file, if the host's memory has `cached` bytes of it.
fn seconds_of_load_with(machine: &Machine, file: u64, cached: u64) -> f64 {
    let from_disk = (file - cached) as f64 / machine.host.disk.unwrap().bytes_per_second as f64;
    LOAD_SECONDS + from_disk + cached as f64 / WARM
}

/// Seconds of a load of a model whose file the host's memory has, or does not have.
pub(crate) fn seconds_of_load(machine: &Machine, rung: &Rung, is_cached: bool) -> f64 {
    let file = rung.plan.model.file_bytes;
    seconds_of_load_with(machine, file, if is_cached { file } else { 0 })
}

/// Whether these placements fit on the machine together.
pub(crate) fn fit(machine: &Machine, rungs: &[&Rung]) -> bool {
    let gpus = machine.gpus.iter().enumerate();
    let are_gpus =
        gpus.into_iter().all(|(index, gpu)| rungs.iter().map(|rung| rung.held.gpus[index]).sum::<u64>() <= gpu.free);
    are_gpus && rungs.iter().map(|rung| rung.held.host).sum::<u64>() <= machine.host.available
}

impl System {
    fn file(&self, model: usize) -> u64 {
        self.models[model].ladder.rungs()[0].plan.model.file_bytes
    }

    fn load_seconds(&self, model: usize) -> f64 {
        seconds_of_load_with(&self.machine, self.file(model), self.cached[model].0)
    }

    /// Records that the model's file was read. If there is too little room, the files that were read longest ago leave
    /// the host's memory, except the parts that loaded models have mapped.
    fn keep_in_memory(&mut self, model: usize) {
        if self.caching == Caching::Nothing {
            return;
        }
        self.cached[model] = (self.file(model), self.now);
        let loaded = |model: usize| self.loaded[model].as_ref().map(|loaded| &loaded.rung);
        let weights = |rung: &Rung| rung.plan.host().map_or(0, |host| host.footprint.weights);
        let mapped: Vec<u64> = (0..self.models.len()).map(|model| loaded(model).map_or(0, weights)).collect();
        let other: u64 = (0..self.models.len()).filter_map(loaded).map(|rung| rung.held.host - weights(rung)).sum();
        let room = self.machine.host.available - other;
        let mut by_age: Vec<usize> = (0..self.models.len()).collect();
        by_age.sort_by(|&one, &other| self.cached[one].1.total_cmp(&self.cached[other].1));
        for model in by_age {
            let over = self.cached.iter().map(|(bytes, _)| bytes).sum::<u64>().saturating_sub(room);
            let most = self.cached[model].0.saturating_sub(mapped[model]);
            self.cached[model].0 -= over.min(most);
        }
    }

    /// Whether a file is being read.
    pub(crate) fn is_reading(&self) -> bool {
        self.reading.is_some()
    }

    /// Whether the model is loaded and not being read.
    pub(crate) fn is_ready(&self, model: usize) -> bool {
        self.loaded[model].is_some() && self.reading.as_ref().is_none_or(|reading| reading.model != model)
    }

    pub(crate) fn texts(&self, model: usize) -> usize {
        self.loaded[model].as_ref().map_or(0, |loaded| loaded.texts.len())
    }

    pub(crate) fn has_slot(&self, model: usize) -> bool {
        let most = |loaded: &Loaded| self.models[model].sequences.min(loaded.rung.sequences() as usize);
        self.texts(model) < self.loaded[model].as_ref().map_or(0, most)
    }

    /// The waiting requests for a model.
    pub(crate) fn queued(&self, model: usize) -> impl Iterator<Item = usize> + '_ {
        self.queue.iter().copied().filter(move |&wish| self.wishes[wish].model == model)
    }

    /// The time until the running texts of a model and its waiting requests end, if no other model computes.
    pub(crate) fn ends_in(&self, model: usize) -> f64 {
        let Some(loaded) = &self.loaded[model] else { return 0.0 };
        let left = |text: &Text| text.left * seconds(&loaded.rung, &self.wishes[text.wish]);
        let running = loaded.texts.iter().map(left).fold(0.0, f64::max);
        let queued: f64 = self.queued(model).map(|wish| seconds(&loaded.rung, &self.wishes[wish])).sum();
        running + queued / f64::from(loaded.rung.sequences())
    }

    /// The fastest rung of a model, for as many texts at once as were asked for, that fits beside the loaded models.
    pub(crate) fn fitting(&self, model: usize) -> Option<&Rung> {
        self.fitting_for(model, self.models[model].sequences)
    }

    /// The fastest rung for `texts` texts at once that fits beside the loaded models.
    pub(crate) fn fitting_for(&self, model: usize, texts: usize) -> Option<&Rung> {
        let mut rungs = self.models[model].ladder.rungs().iter().filter(|rung| rung.sequences() as usize == texts);
        rungs.find(|rung| self.fits(model, rung))
    }

    fn fits(&self, model: usize, rung: &Rung) -> bool {
        let others = self.loaded.iter().enumerate().filter(|(other, _)| *other != model);
        let others = others.filter_map(|(_, loaded)| Some(&loaded.as_ref()?.rung));
        fit(&self.machine, &others.chain([rung]).collect::<Vec<_>>())
    }

    /// Number of models that compute now.
    fn computing(&self) -> usize {
        (0..self.models.len()).filter(|&model| self.is_ready(model) && self.texts(model) > 0).count()
    }

    /// Advances the time to `until`, or to the first end of a text. Returns the requests that ended.
    fn pass(&mut self, until: f64) -> Vec<usize> {
        let share = if self.is_shared { 1.0 / self.computing().max(1) as f64 } else { 1.0 };
        let mut end = until;
        let ready: Vec<usize> = (0..self.models.len()).filter(|&model| self.is_ready(model)).collect();
        for &model in &ready {
            let loaded = self.loaded[model].as_ref().unwrap();
            for text in &loaded.texts {
                let left = text.left * seconds(&loaded.rung, &self.wishes[text.wish]) / share;
                end = end.min(self.now + left);
            }
        }
        let passed = (end - self.now).max(0.0);
        self.count_parts(passed, share);
        let mut ended = Vec::new();
        for &model in &ready {
            let loaded = self.loaded[model].as_mut().unwrap();
            for text in &mut loaded.texts {
                text.left -= passed * share / seconds(&loaded.rung, &self.wishes[text.wish]);
            }
            loaded.texts.retain(|text| {
                let is_over = text.left <= 1e-9;
                if is_over {
                    ended.push(text.wish);
                }
                !is_over
            });
            if !ended.is_empty() {
                loaded.used = end;
            }
        }
        self.now = end;
        for &wish in &ended {
            let Wish { at, model, .. } = self.wishes[wish];
            let alone = self.models[model].alone(&self.wishes[wish]);
            self.report.waited += self.now - at - alone;
        }
        ended
    }

    /// Adds the passed time to the parts of the waiting. Each computing model got this share of the machine in that
    /// time.
    fn count_parts(&mut self, passed: f64, share: f64) {
        let mut parts = self.report.parts;
        for &wish in &self.queue {
            let model = self.wishes[wish].model;
            let is_queued = self.is_ready(model) && !self.has_slot(model);
            *(if is_queued { &mut parts.queue } else { &mut parts.load }) += passed;
        }
        for (index, loaded) in self.loaded.iter().enumerate() {
            for text in loaded.iter().flat_map(|loaded| &loaded.texts) {
                if !self.is_ready(index) {
                    parts.load += passed;
                    continue;
                }
                let wish = &self.wishes[text.wish];
                let rung = &loaded.as_ref().unwrap().rung;
                let alone = self.models[index].alone(wish);
                parts.slower += passed * share * (1.0 - alone / seconds(rung, wish));
                parts.shared += passed * (1.0 - share);
            }
        }
        self.report.parts = parts;
    }

    fn carry_out(&mut self, action: Action) {
        match action {
            Action::Begin(place) => {
                let wish = self.queue.remove(place).unwrap();
                let model = self.wishes[wish].model;
                assert!(self.is_ready(model) && self.has_slot(model));
                let now = self.now;
                let loaded = self.loaded[model].as_mut().unwrap();
                loaded.texts.push(Text { wish, left: 1.0 });
                loaded.used = now;
            }
            Action::Load(model, rung) | Action::Move(model, rung) => {
                assert!(self.reading.is_none() && self.fits(model, &rung), "over what is free");
                let seconds = self.load_seconds(model);
                self.took[model] = Some(seconds);
                self.loads[model] += 1;
                self.reading = Some(Reading { model, until: self.now + seconds });
                self.report.read += self.file(model) - self.cached[model].0;
                match &mut self.loaded[model] {
                    Some(loaded) => {
                        loaded.rung = rung;
                        self.report.moves += 1;
                    }
                    empty => {
                        *empty = Some(Loaded { rung, texts: Vec::new(), used: self.now });
                        self.report.loads += 1;
                    }
                }
                self.keep_in_memory(model);
            }
            Action::Unload(model) => {
                assert_eq!(self.texts(model), 0, "a text was cut off");
                self.loaded[model] = None;
            }
            Action::Wait(_) => {}
        }
    }
}

/// Runs a trace, whose requests are sorted by time.
pub(crate) fn run(
    (machine, models, wishes): (&Machine, &[TracedModel], &[Wish]),
    caching: Caching,
    rule: &mut dyn Rule,
) -> Report {
    let mut system = System {
        took: vec![None; models.len()],
        loads: vec![0; models.len()],
        caching,
        cached: vec![(0, 0.0); models.len()],
        is_shared: rule.is_shared(),
        machine: machine.clone(),
        loaded: models.iter().map(|_| None).collect(),
        models: models.to_vec(),
        queue: VecDeque::new(),
        wishes: wishes.to_vec(),
        now: 0.0,
        reading: None,
        report: Report::default(),
    };
    let mut come = 0;
    let mut ended = 0;
    while ended < wishes.len() {
        let wake = loop {
            match rule.next(&system) {
                Action::Wait(until) => break until,
                action => system.carry_out(action),
            }
        };
        let next = wishes.get(come).map(|wish| wish.at);
        let read = system.reading.as_ref().map(|reading| reading.until);
        let until = [next, read, wake].into_iter().flatten().fold(f64::INFINITY, f64::min);
        let over = system.pass(until);
        assert!(system.now.is_finite(), "the rule waits for ever at {} requests of {}", ended, wishes.len());
        ended += over.len();
        for wish in over {
            rule.ended(&system, wish);
        }
        if system.reading.as_ref().is_some_and(|reading| reading.until <= system.now) {
            system.reading = None;
        }
        while wishes.get(come).is_some_and(|wish| wish.at <= system.now) {
            system.queue.push_back(come);
            rule.wanted(&system, come);
            come += 1;
        }
    }
    system.report
}
