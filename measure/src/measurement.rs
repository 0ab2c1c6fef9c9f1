//! What was measured, as others can read it: docs/measure.md describes its JSON, docs/measurement.schema.json is its
//! schema.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use autoplace::load::{GpuReport, LoadReport, Model, build_name};
use autoplace::machine::{GpuKind, HostLimit, Machine, UnusedReason};
use autoplace::memory::{ContextParams, Footprint, TensorOverride};
use autoplace::plan::{Confidence, ModelIdentity, PlacementKind};
use serde::{Deserialize, Serialize, Serializer};

use super::conditions::Conditions;
use super::protocol::Protocol;

/// Placements of one model on one machine, and how fast each was. Sizes in bytes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Measurement {
    /// The version of this form: [`Measurement::VERSION`] when written by this crate.
    pub version: u64,
    /// This crate, llama.cpp and its backends, with their versions.
    pub made_by: String,
    /// The model.
    pub model: MeasuredModel,
    /// The machine, as the first load found it.
    pub machine: Machine,
    /// What was computed of each placement.
    pub protocol: Protocol,
    /// The placements.
    pub points: Vec<Point>,
    /// What else there is to say, for people.
    pub notes: Vec<String>,
}

/// The model that was measured.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct MeasuredModel {
    /// The file, as it was given; in JSON, what is not Unicode is replaced.
    #[serde(serialize_with = "lossy")]
    pub path: PathBuf,
    /// Its name, its length and the hash of its header.
    #[serde(flatten)]
    pub identity: ModelIdentity,
    /// Architecture, size and quantisation in llama.cpp's words: `llama 8B Q4_K - Medium`.
    pub description: String,
    /// Bytes of all tensors.
    pub tensor_bytes: u64,
    /// Elements of all tensors.
    pub n_params: u64,
}

/// One placement, and what was measured of it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Point {
    /// What it was called: `plan`, `ngl 32`, `before`.
    pub name: String,
    /// Where the model went; `None` where it was not loaded.
    pub placement: Option<Measured>,
    /// Why nothing, or nothing more, was measured.
    pub failure: Option<String>,
    /// A row for each length of prompt and for what was generated after it, at each depth.
    pub rows: Vec<Row>,
    /// How the machine was meanwhile.
    pub conditions: Conditions,
}

/// Where a model went, what was planned for it and what it took.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Measured {
    /// Layers on GPUs, the output layer counted.
    pub n_gpu_layers: u32,
    /// All layers, the output layer counted.
    pub layers: u32,
    /// Layers per GPU, as llama.cpp takes them; empty for one GPU.
    pub tensor_split: Vec<f32>,
    /// Parts that lie elsewhere than their layer.
    pub overrides: Vec<TensorOverride>,
    /// The settings of context and load, under llama.cpp's names.
    pub settings: ContextParams,
    /// Threads that generated.
    pub threads: u32,
    /// Threads for prompts.
    pub threads_batch: u32,
    /// The devices in use, the host last.
    pub devices: Vec<MeasuredDevice>,
}

/// What one device held.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct MeasuredDevice {
    /// Its name for people.
    pub name: String,
    /// ggml's name of it; `None` for the host.
    pub device: Option<String>,
    /// What it is.
    pub kind: PlacementKind,
    /// Layers on it.
    pub layers: u32,
    /// What the plan takes of it.
    pub planned: Footprint,
    /// What llama.cpp said before the load that it would allocate; `None` for the host.
    pub probed: Option<Footprint>,
    /// What llama.cpp says it has allocated, where it says so.
    pub allocated: Option<Footprint>,
    /// By how much its free memory shrank, if it reports that.
    pub taken: Option<u64>,
    /// What the plan leaves free on it.
    pub headroom: u64,
    /// What was free on it when all had been computed, if it reports that.
    pub free: Option<u64>,
}

/// Computations of one kind. As in llama-bench either `n_prompt` or `n_gen` is 0.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Row {
    /// Tokens of the prompt that was computed.
    pub n_prompt: u32,
    /// Tokens that were generated.
    pub n_gen: u32,
    /// Tokens that the context held before.
    pub n_depth: u32,
    /// When the first was begun: `2026-11-24T11:59:33Z`.
    pub time: String,
    /// Tokens per second.
    pub speed: Speed,
    /// What the plan's model of speed says, from the rates of this machine; `None` where it knows no law for this
    /// model, or a rate would be a guess.
    pub predicted: Option<f64>,
    /// Each computation, in the order in which they were made.
    pub samples: Vec<Sample>,
}

/// Tokens per second.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Speed {
    /// Half of them were faster.
    pub median: f64,
    /// The slowest.
    pub least: f64,
    /// The fastest.
    pub most: f64,
}

/// One computation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Sample {
    /// The round that it was made in, from 0.
    pub round: u32,
    /// Its nanoseconds.
    pub ns: u64,
}

impl Measurement {
    /// The version that this crate writes.
    pub const VERSION: u64 = 1;

    pub(super) fn new(model: MeasuredModel, machine: Machine, protocol: Protocol) -> Self {
        let (version, made_by) = (Self::VERSION, build_name());
        Self { version, made_by, model, machine, protocol, points: Vec::new(), notes: Vec::new() }
    }

    /// As JSON, indented.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default()
    }

    /// Reads what [`to_json`](Self::to_json) wrote.
    ///
    /// # Errors
    ///
    /// A line that names what is wrong, and where.
    pub fn from_json(text: &str) -> Result<Self, String> {
        let read: Self = serde_json::from_str(text).map_err(|error| error.to_string())?;
        match read.version {
            Self::VERSION => Ok(read),
            other => Err(format!("its version is {other}, and {} is read", Self::VERSION)),
        }
    }

    /// The point of this name.
    pub fn point(&self, name: &str) -> Option<&Point> {
        self.points.iter().find(|point| point.name == name)
    }
}

impl Point {
    pub(super) fn add(&mut self, shape: [u32; 3], sample: Sample, begun: &str, predicted: Option<f64>) {
        let [n_prompt, n_gen, n_depth] = shape;
        let known = self.rows.iter().position(|row| [row.n_prompt, row.n_gen, row.n_depth] == shape);
        let row = known.unwrap_or_else(|| {
            let (time, speed, samples) = (begun.to_owned(), Speed::default(), Vec::new());
            self.rows.push(Row { n_prompt, n_gen, n_depth, time, speed, predicted, samples });
            self.rows.len() - 1
        });
        let row = &mut self.rows[row];
        row.samples.push(sample);
        row.speed = Speed::of(row.speeds());
    }

    /// Generation at the least depth that was measured: what a sweep is drawn by.
    pub fn generation(&self) -> Option<&Row> {
        self.rows.iter().filter(|row| row.n_gen > 0).min_by_key(|row| row.n_depth)
    }

    /// Prompts at the least depth that was measured.
    pub fn prompt(&self) -> Option<&Row> {
        self.rows.iter().filter(|row| row.n_gen == 0).min_by_key(|row| row.n_depth)
    }
}

impl Row {
    /// The tokens per second of each computation.
    pub fn speeds(&self) -> impl Iterator<Item = f64> {
        let tokens = f64::from(self.n_prompt.saturating_add(self.n_gen));
        self.samples.iter().map(move |sample| tokens * 1e9 / sample.ns.max(1) as f64)
    }

    /// As llama-bench calls it: `pp512`, `tg256 @ d2048`.
    pub fn name(&self) -> String {
        let (kind, tokens) = if self.n_gen > 0 { ("tg", self.n_gen) } else { ("pp", self.n_prompt) };
        match self.n_depth {
            0 => format!("{kind}{tokens}"),
            depth => format!("{kind}{tokens} @ d{depth}"),
        }
    }
}

impl Speed {
    /// Of the two in the middle the upper one.
    pub(super) fn of(speeds: impl Iterator<Item = f64>) -> Self {
        let mut sorted: Vec<f64> = speeds.collect();
        sorted.sort_by(f64::total_cmp);
        let at = |n: usize| rounded(sorted.get(n).copied().unwrap_or_default());
        Self { median: at(sorted.len() / 2), least: at(0), most: at(sorted.len().saturating_sub(1)) }
    }
}

/// Leaves out what identifies the machine's owner. Returns what to mask in texts, and as what: the folder of the model,
/// and the names of devices of other machines, which are their addresses.
pub(super) fn anonymous(machine: &mut Machine, model: &Path) -> Vec<(String, String)> {
    let whole = model.display().to_string();
    let folder = whole.strip_suffix(&*file_of(model).to_string_lossy()).filter(|folder| *folder != "/");
    let mut names = vec![(folder.unwrap_or_default().to_owned(), String::new())];
    let mut pids = BTreeMap::new();
    let unused = machine.unused_gpus.iter_mut().map(|unused| &mut unused.gpu);
    for gpu in machine.gpus.iter_mut().chain(unused) {
        gpu.pci_id = None;
        for program in gpu.processes.iter_mut().flatten() {
            // One program may be on several GPUs.
            let number = pids.len() as u32;
            let number = *pids.entry(program.pid).or_insert(number);
            (program.pid, program.name) = (number, None);
        }
        if gpu.kind == GpuKind::Remote {
            let masked = format!("a remote GPU ({})", names.len() / 2);
            for name in [&mut gpu.name, &mut gpu.description] {
                names.push((std::mem::replace(name, masked.clone()), masked.clone()));
            }
        }
    }
    if let HostLimit::Cgroup { file, .. } = &mut machine.host.limit {
        "a control group".clone_into(file);
    }
    if let Some(limit) = &mut machine.host.cpu_limit {
        "a control group".clone_into(&mut limit.file);
    }
    machine.notes.clear();
    names.retain(|(name, _)| !name.is_empty());
    for unused in &mut machine.unused_gpus {
        if let UnusedReason::NoServer { problem } = &mut unused.reason {
            masked(problem, &names);
        }
    }
    names
}

pub(super) fn masked(text: &mut String, names: &[(String, String)]) {
    for (name, mask) in names {
        *text = text.replace(name, mask);
    }
}

/// The name of a file alone.
pub(super) fn file_of(path: &Path) -> PathBuf {
    path.file_name().map_or_else(PathBuf::new, PathBuf::from)
}

/// A path as JSON can hold it.
pub(super) fn lossy<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&path.to_string_lossy())
}

/// With four decimals: so few are read back from text as they were.
pub(super) fn rounded(speed: f64) -> f64 {
    (speed * 1e4).round() / 1e4
}

impl Measured {
    /// Whether it is the same placement, with the same settings.
    pub(super) fn is_where(&self, other: &Self) -> bool {
        (self.n_gpu_layers, &self.tensor_split, &self.overrides, &self.settings)
            == (other.n_gpu_layers, &other.tensor_split, &other.overrides, &other.settings)
    }

    pub(super) fn of(report: &LoadReport) -> Self {
        let plan = &report.plan;
        let gpus = plan.gpus().zip(report.gpus.iter().map(Some));
        // `None` is the host.
        let devices = gpus.chain(plan.host().map(|host| (host, None))).map(|(placement, gpu)| MeasuredDevice {
            name: placement.name.clone(),
            device: gpu.map(|gpu| gpu.device.clone()),
            kind: placement.kind,
            layers: placement.layers,
            planned: placement.footprint,
            probed: gpu.filter(|_| plan.confidence == Confidence::Probed).map(|gpu| gpu.planned),
            allocated: gpu.map_or(Some(report.host.allocated), |gpu| gpu.allocated),
            taken: gpu.and_then(GpuReport::taken),
            headroom: placement.headroom.total(),
            free: gpu.and_then(|gpu| gpu.used),
        });
        Self {
            n_gpu_layers: plan.n_gpu_layers,
            layers: plan.layers(),
            tensor_split: plan.tensor_split.clone(),
            overrides: plan.overrides.clone(),
            settings: plan.context.clone(),
            threads: report.threads.generation,
            threads_batch: report.threads.prompt,
            devices: devices.collect(),
        }
    }
}

impl MeasuredModel {
    pub(super) fn of(path: &Path, model: &Model) -> Result<Self, super::Error> {
        let header = model.header().map_err(autoplace::load::Error::from)?;
        let plan = model.placement();
        let described = match model.native() {
            Ok(native) => native.description(),
            // It is in another process.
            Err(_) => {
                let kind = plan.model.file_type.as_deref().unwrap_or_default();
                format!("{} {kind}", plan.model.architecture).trim_end().to_owned()
            }
        };
        Ok(Self {
            path: path.to_owned(),
            identity: ModelIdentity::of(header).map_err(autoplace::load::Error::from)?,
            description: described,
            tensor_bytes: header.tensors().map(autoplace::gguf::Tensor::bytes).sum(),
            n_params: header.tensors().map(autoplace::gguf::Tensor::elements).sum(),
        })
    }
}
