//! The evidence for a diagnosis: the state of the machine, and a model on it.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use autoplace::Model;
use autoplace::gguf::Header;
use autoplace::load::{self, build_name};
use autoplace::machine::{Machine, MeasuredRates, RateConditions};
use autoplace::plan::{self, Advice, ChangeKind, Plan, Planner, Request};
use autoplace::profile::ModelProfile;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::conditions::Conditions;
use super::measurement::{Speed, anonymous, file_of, lossy, masked};
use super::run::{Measure, Variant};
use super::{Error, Protocol};

/// The time for which a machine without a model is watched.
const WATCH_TIME: Duration = Duration::from_millis(300);

/// The known facts about a machine and a model on it, from which [`diagnose`](Self::diagnose) makes findings. The
/// evidence as JSON is a report that another machine can diagnose again.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Evidence {
    /// The format version: [`Evidence::VERSION`].
    pub version: u64,
    /// This crate, llama.cpp and its backends, with their versions.
    pub made_by: String,
    /// The machine.
    pub machine: Machine,
    /// Instructions that the processor has and this build does not use.
    #[serde(default)]
    pub unused_instructions: Vec<String>,
    /// The state of the machine while it was watched.
    #[serde(default)]
    pub conditions: Conditions,
    /// The model, if there is one.
    #[serde(default)]
    pub model: Option<ModelEvidence>,
}

/// A model: its plan, and its speed if it was measured.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ModelEvidence {
    /// The model's file; a report has only its name.
    #[serde(serialize_with = "lossy")]
    pub path: PathBuf,
    /// The plan.
    pub plan: Option<Plan>,
    /// The reason why there is no plan.
    pub refused: Option<String>,
    /// Changes that would make more of the model fit.
    #[serde(default)]
    pub advice: Advice,
    /// The measured speed of generation.
    #[serde(default)]
    pub measured: Option<Speed>,
    /// The predicted speed of generation, in tokens per second.
    #[serde(default)]
    pub predicted: Option<f64>,
    /// Another program that currently runs the model.
    #[serde(default)]
    pub running: Option<Running>,
}

/// Another program that runs the model, and what is known about it. The plan counts its memory as free.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Running {
    /// The program with its version: `llama-server b11434`.
    pub program: String,
    /// The process id.
    pub pid: Option<u32>,
    /// Layers on GPUs: from the program's flags, or estimated from its memory on GPUs.
    pub n_gpu_layers: Option<u32>,
    /// Bytes of GPU memory that the program uses.
    pub on_gpus: Option<u64>,
    /// Tokens per second of generation, if the program reports them.
    pub tokens_per_second: Option<f64>,
    /// The predicted speed of the model in the program's placement, in tokens per second.
    pub predicted: Option<f64>,
    /// The command that starts the program with the plan's placement.
    pub otherwise: Option<String>,
    /// Settings of the program that are unknown or were ignored.
    pub notes: Vec<String>,
}

/// Seconds of a day.
const DAY: u64 = 24 * 60 * 60;
/// Rates older than half a year count as stale, because drivers, cooling and settings change.
const STALE_AFTER: u64 = 180 * DAY;

impl Evidence {
    /// The format version that this crate writes.
    pub const VERSION: u64 = 1;

    /// Evidence about the machine as described. The machine is not watched.
    pub fn new(machine: Machine) -> Self {
        Self {
            version: Self::VERSION,
            made_by: build_name(),
            machine,
            unused_instructions: Vec::new(),
            conditions: Conditions::default(),
            model: None,
        }
    }

    /// Evidence about this computer, which is watched for some tenths of a second.
    ///
    /// # Errors
    ///
    /// [`load::Error::Native`] if the native code cannot run on this CPU.
    pub fn of_this_machine() -> Result<Self, load::Error> {
        let machine = load::detect()?;
        let mut evidence = Self::new(machine);
        evidence.conditions = Conditions::of_machine(&evidence.machine, WATCH_TIME);
        let unused = autoplace::llama_sys::build_info().unused_instructions;
        evidence.unused_instructions = unused.into_iter().map(str::to_owned).collect();
        Ok(evidence)
    }

    /// Adds a model: its estimated plan on this machine, and changes that would make more of the model fit. Nothing is
    /// loaded.
    ///
    /// # Errors
    ///
    /// [`load::Error::Gguf`] and [`load::Error::Profile`] for a file that is not a model, and [`load::Error::Plan`] for
    /// an invalid request. A model that does not fit is evidence, not an error.
    pub fn with_model(mut self, path: &Path, request: &Request) -> Result<Self, load::Error> {
        let profile = ModelProfile::from_header(&Header::open(path)?)?;
        let hits = Model::builder(path).expert_hits(&self.machine, profile.file_bytes);
        let planner = Planner::new(&profile, &self.machine).request(request.clone()).expert_hits(hits);
        let mut model = ModelEvidence { path: path.to_owned(), ..ModelEvidence::default() };
        match planner.plan() {
            Ok(mut plan) => {
                model.advice = Advice::on(&planner, &plan);
                model.predicted = plan.speed.as_ref().map(|speed| speed.tokens_per_second);
                plan.model.path = None;
                model.plan = Some(plan);
            }
            Err(error @ plan::Error::DoesNotFit { .. }) => {
                model.advice = planner.advice()?;
                model.refused = Some(error.to_string());
            }
            Err(error) => return Err(error.into()),
        }
        self.model = Some(model);
        Ok(self)
    }

    /// Adds a measurement: loads the model and generates for some seconds.
    ///
    /// # Errors
    ///
    /// Those of [`Measure::run`].
    pub fn measured(mut self, measure: Measure<'_>) -> Result<Self, Error> {
        let Some(model) = self.model.as_mut().filter(|model| model.plan.is_some()) else { return Ok(self) };
        let few = |usual: Protocol| {
            let (n_prompt, n_gen) = (usual.n_prompt.min(64), usual.n_gen.min(32));
            usual.n_prompt(n_prompt).n_gen(n_gen).depths([0]).rounds(1).only(3)
        };
        let request = measure.request.clone();
        let measured = measure.protocol(few).run(&[Variant::asked("doctor", request)])?;
        let [point] = measured.points.as_slice() else { return Err(Error::Stopped) };
        if let Some(failure) = &point.failure {
            return Err(Error::Failed(failure.clone()));
        }
        if let Some(row) = point.generation() {
            model.measured = Some(row.speed);
            model.predicted = row.predicted;
        }
        self.conditions = point.conditions.clone();
        // A load without layers on GPUs does not look for GPUs.
        if measured.machine.gpus.len() >= self.machine.gpus.len() {
            self.machine = measured.machine;
        }
        Ok(self)
    }

    /// A line for each device whose rates should be measured again, because they were measured during other work or
    /// long ago.
    pub fn stale_rates(&self) -> Vec<String> {
        let now = SystemTime::now();
        let host = self.machine.host.rates.as_ref().map(|rates| ("host", rates));
        let gpus = self.machine.gpus.iter().filter_map(|gpu| Some((gpu.name.as_str(), gpu.rates.as_ref()?)));
        let of_device = |(name, rates): (&str, &MeasuredRates)| {
            let all: Vec<_> = rates.all_conditions().collect();
            let known = || all.iter().copied().flatten();
            let disturbed: Vec<_> = known().filter(|conditions| !conditions.is_quiet()).collect();
            let old = |conditions: &&RateConditions| conditions.age(now).is_some_and(|seconds| seconds > STALE_AFTER);
            let n_old = known().filter(old).count();
            let worst = disturbed.iter().max_by_key(|conditions| conditions.disturbance());
            let why = match (worst, n_old) {
                (Some(worst), _) => format!("{} of {} were measured {worst}", disturbed.len(), all.len()),
                (None, 0) => return None,
                (None, n) => format!("{n} of {} are older than {} days", all.len(), STALE_AFTER / DAY),
            };
            let remedy = "`autoplace devices --measure` while nothing else computes";
            Some(format!("{name}: its rates are stale: {why}; {remedy}"))
        };
        host.into_iter().chain(gpus).filter_map(of_device).collect()
    }

    /// The same evidence without data that identifies the machine's owner.
    #[must_use]
    pub fn anonymous(mut self) -> Self {
        let path = self.model.as_ref().map(|model| model.path.clone()).unwrap_or_default();
        let names = anonymous(&mut self.machine, &path);
        if let Some(model) = &mut self.model {
            model.path = file_of(&path);
            model.refused.iter_mut().for_each(|refused| masked(refused, &names));
            if let Some(running) = &mut model.running {
                running.pid = None;
                running.notes.iter_mut().chain(&mut running.otherwise).for_each(|text| masked(text, &names));
            }
            if let Some(plan) = &mut model.plan {
                plan.placements.iter_mut().for_each(|device| masked(&mut device.name, &names));
                plan.notes.iter_mut().for_each(|note| masked(note, &names));
            }
            for kind in model.advice.changes.iter_mut().flat_map(|change| &mut change.kinds) {
                if let ChangeKind::CloseProcess { name, pid, .. } = kind {
                    (*name, *pid) = (None, 0);
                }
            }
        }
        self
    }

    /// The evidence as indented JSON.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default()
    }

    /// Reads the output of [`to_json`](Self::to_json), even if it is a part of a longer text.
    ///
    /// # Errors
    ///
    /// A line that names the problem and its position.
    pub fn from_json(text: &str) -> Result<Self, String> {
        let in_json = |error: serde_json::Error| format!("its JSON: {error}");
        let fenced = text.find("```json").unwrap_or(0);
        let begin = text[fenced..].find('{').ok_or("there is no JSON in it")? + fenced;
        let mut values = serde_json::Deserializer::from_str(&text[begin..]).into_iter::<Value>();
        let value = values.next().transpose().map_err(in_json)?.unwrap_or_default();
        let end = begin + values.byte_offset();
        // Other versions may lack keys.
        let version = &value["version"];
        if *version != Self::VERSION {
            return Err(format!("its version is {version}, and only {} is supported", Self::VERSION));
        }
        // The text is parsed again, because parsing from the tree would compile the code of the types twice.
        let read: Self = serde_json::from_str(&text[begin..end]).map_err(in_json)?;
        read.machine.check().map_err(|error| format!("its machine: {error}"))?;
        Ok(read)
    }
}
