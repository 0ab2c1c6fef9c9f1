//! Measurements in their exchange format: docs/measure.md describes the JSON, and docs/measurement.schema.json is its
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

/// Placements of one model on one machine, with their speeds. Sizes in bytes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Measurement {
    /// The format version; this crate writes [`Measurement::VERSION`].
    pub version: u64,
    /// The names and versions of this crate, llama.cpp and its backends.
    pub made_by: String,
    /// The model.
    pub model: MeasuredModel,
    /// The machine, as detected by the first load.
    pub machine: Machine,
    /// The computations made with each placement.
    pub protocol: Protocol,
    /// The placements.
    pub points: Vec<Point>,
    /// Notes for people.
    pub notes: Vec<String>,
}

/// The measured model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct MeasuredModel {
    /// The file, as given. In JSON, invalid Unicode is replaced.
    #[serde(serialize_with = "lossy")]
    pub path: PathBuf,
    /// The model's name, lengths and header hash.
    #[serde(flatten)]
    pub identity: ModelIdentity,
    /// Architecture, size and quantisation in llama.cpp's words: `llama 8B Q4_K - Medium`.
    pub description: String,
    /// Bytes of all tensors.
    pub tensor_bytes: u64,
    /// Elements of all tensors.
    pub n_params: u64,
}

/// One placement with its measurements.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Point {
    /// The name: `plan`, `ngl 32`, `before`.
    pub name: String,
    /// The placement; `None` if the model was not loaded.
    pub placement: Option<Measured>,
    /// The reason why the measurement is missing or incomplete.
    pub failure: Option<String>,
    /// At each depth, one row for each prompt length, and one row for the tokens that are generated after the prompts.
    pub rows: Vec<Row>,
    /// The state of the machine during the measurement.
    pub conditions: Conditions,
}

/// The placement of a loaded model, with its planned and actual bytes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Measured {
    /// Layers on GPUs, the output layer included.
    pub n_gpu_layers: u32,
    /// All layers, the output layer included.
    pub layers: u32,
    /// The layers of each GPU, in llama.cpp's form; empty for one GPU.
    pub tensor_split: Vec<f32>,
    /// Weights placed apart from their layer.
    pub overrides: Vec<TensorOverride>,
    /// The parameters of context and load, under llama.cpp's names.
    pub settings: ContextParams,
    /// Threads for generation.
    pub threads: u32,
    /// Threads for prompts.
    pub threads_batch: u32,
    /// The devices in use, the host last.
    pub devices: Vec<MeasuredDevice>,
}

/// The bytes of one device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct MeasuredDevice {
    /// The name for people.
    pub name: String,
    /// The name in ggml; `None` for the host.
    pub device: Option<String>,
    /// The kind of device.
    pub kind: PlacementKind,
    /// Layers on the device.
    pub layers: u32,
    /// Planned bytes.
    pub planned: Footprint,
    /// Bytes that llama.cpp reported before the load; `None` without a report, and for the host.
    pub probed: Option<Footprint>,
    /// Bytes that llama.cpp reports as allocated, if it does.
    pub allocated: Option<Footprint>,
    /// The decrease of the free memory, if the device reports it.
    pub taken: Option<u64>,
    /// Bytes that the plan keeps free.
    pub headroom: u64,
    /// Free bytes after the warm-up of the load, if the device reports them.
    pub free: Option<u64>,
}

/// Computations of one kind. As in llama-bench, either `n_prompt` or `n_gen` is 0.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Row {
    /// Tokens of the prompt.
    pub n_prompt: u32,
    /// Generated tokens.
    pub n_gen: u32,
    /// Tokens in the context before the computation.
    pub n_depth: u32,
    /// The time at which the first computation began: `2026-11-24T11:59:33Z`.
    pub time: String,
    /// Tokens per second.
    pub speed: Speed,
    /// The predicted tokens per second, from this machine's rates; `None` if the model's layout is unknown or a rate
    /// would be a guess.
    pub predicted: Option<f64>,
    /// Each computation, in the order of execution.
    pub samples: Vec<Sample>,
}

/// Tokens per second.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Speed {
    /// The median.
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
    /// The round, from 0.
    pub round: u32,
    /// Nanoseconds.
    pub ns: u64,
}

impl Measurement {
    /// The format version that this crate writes.
    pub const VERSION: u64 = 1;

    pub(super) fn new(model: MeasuredModel, mut machine: Machine, protocol: Protocol) -> Self {
        // In a file, the machine has no list of backends, because `made_by` names the backends of the build.
        machine.backends.clear();
        let (version, made_by) = (Self::VERSION, build_name());
        Self { version, made_by, model, machine, protocol, points: Vec::new(), notes: Vec::new() }
    }

    /// The measurement as indented JSON.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default()
    }

    /// Reads the output of [`to_json`](Self::to_json).
    ///
    /// # Errors
    ///
    /// A line that names the problem and its position.
    pub fn from_json(text: &str) -> Result<Self, String> {
        let read: Self = serde_json::from_str(text)
            .map_err(|error| format!("{error}; a measurement is a file that `autoplace measure --write` writes"))?;
        match read.version {
            Self::VERSION => Ok(read),
            other => Err(format!("its version is {other}, and only {} is supported", Self::VERSION)),
        }
    }

    /// The point with this name.
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
        row.speed = Speed::from_samples(row.speeds());
    }

    /// The row of generation at the smallest measured depth, for the chart of a sweep.
    pub fn generation(&self) -> Option<&Row> {
        self.rows.iter().filter(|row| row.n_gen > 0).min_by_key(|row| row.n_depth)
    }

    /// The row of prompts at the smallest measured depth.
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

    /// The name in llama-bench's notation: `pp512`, `tg256 @ d2048`.
    pub fn name(&self) -> String {
        let (kind, tokens) = if self.n_gen > 0 { ("tg", self.n_gen) } else { ("pp", self.n_prompt) };
        match self.n_depth {
            0 => format!("{kind}{tokens}"),
            depth => format!("{kind}{tokens} @ d{depth}"),
        }
    }
}

impl Speed {
    /// The speeds of some computations. The median of an even number of speeds is the higher of the two middle speeds.
    pub(super) fn from_samples(speeds: impl Iterator<Item = f64>) -> Self {
        let mut sorted: Vec<f64> = speeds.collect();
        sorted.sort_by(f64::total_cmp);
        let at = |n: usize| rounded(sorted.get(n).copied().unwrap_or_default());
        Self { median: at(sorted.len() / 2), least: at(0), most: at(sorted.len().saturating_sub(1)) }
    }
}

/// Removes data that identifies the machine's owner. Returns the texts to mask, each with its mask. These texts are the
/// model's folder, and the names of devices of other machines, which are addresses.
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

/// The file name of a path.
pub(super) fn file_of(path: &Path) -> PathBuf {
    path.file_name().map_or_else(PathBuf::new, PathBuf::from)
}

/// A path as valid Unicode for JSON.
pub(super) fn lossy<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&path.to_string_lossy())
}

/// Rounds to four decimals, so that the number is the same after a round trip through text.
pub(super) fn rounded(speed: f64) -> f64 {
    (speed * 1e4).round() / 1e4
}

impl Measured {
    /// Whether both values describe the same placement with the same settings.
    pub(super) fn is_where(&self, other: &Self) -> bool {
        (self.n_gpu_layers, &self.tensor_split, &self.overrides, &self.settings)
            == (other.n_gpu_layers, &other.tensor_split, &other.overrides, &other.settings)
    }

    pub(super) fn from_report(report: &LoadReport) -> Self {
        let plan = &report.plan;
        let gpus = plan.gpus().zip(report.gpus.iter().map(Some));
        // For the host, the GPU is `None`.
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
    pub(super) fn new(path: &Path, model: &Model) -> Result<Self, super::Error> {
        let header = model.header().map_err(autoplace::load::Error::from)?;
        let plan = model.placement();
        let described = match model.native() {
            Ok(native) => native.description(),
            // The model is in another process, so its bytes are unknown here.
            Err(_) => {
                let kind = plan.model.file_type.as_deref().unwrap_or_default();
                format!("{} {kind}", plan.model.architecture).trim_end().to_owned()
            }
        };
        Ok(Self {
            path: path.to_owned(),
            identity: ModelIdentity::from_header(header).map_err(autoplace::load::Error::from)?,
            description: described,
            tensor_bytes: header.tensors().map(autoplace::gguf::Tensor::bytes).sum(),
            n_params: header.tensors().map(autoplace::gguf::Tensor::elements).sum(),
        })
    }
}
