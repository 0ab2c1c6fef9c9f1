//! Measurements for publication. A [`Measurement`] flows in; a [`Submission`], which does not identify its owner, flows
//! out.
//!
//! A submission contains only the fields listed here, so nothing else is published. Paths, prompts, error messages,
//! other programs, PCI addresses and control groups have no field. Some texts come from elsewhere: names of models and
//! devices, and patterns of overrides. In these texts, words that identify a person or a machine are [masked](clean).

mod clean;

use std::env::consts::{ARCH, OS};

use autoplace::machine::{Bandwidth, Gpu, GpuKind, LinkRate, Machine, PcieLink, ThrottleReason};
use autoplace::memory::{ContextParams, TensorOverride};
use serde::{Deserialize, Serialize};

use super::measurement::{Measured, Measurement, Point, Row};
use clean::Clean;

/// A measurement without data that identifies a person or a machine. Sizes in bytes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Submission {
    /// The kind of file: [`Submission::FORM`].
    pub form: String,
    /// The format version; this crate writes [`Submission::VERSION`].
    pub version: u64,
    /// The names and versions of this crate, llama.cpp and its backends.
    pub made_by: String,
    /// The day of the first measurement: `2026-11-28`.
    pub date: String,
    /// The model.
    pub model: SubmittedModel,
    /// The machine.
    pub machine: SubmittedMachine,
    /// The measured placements.
    pub points: Vec<SubmittedPoint>,
    /// The number of placements that could not be loaded or measured.
    pub failed: u64,
}

/// The measured model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct SubmittedModel {
    /// The name in the model's file.
    pub name: String,
    /// Architecture, size and quantisation in llama.cpp's words: `llama 8B Q4_K - Medium`.
    pub description: String,
    /// The hash of the file's header, which identifies the model: 32 hexadecimal digits.
    pub header: String,
    /// Bytes of all tensors.
    pub tensor_bytes: u64,
    /// Elements of all tensors.
    pub n_params: u64,
}

/// The measured machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct SubmittedMachine {
    /// The operating system and the processor architecture: `linux x86_64`.
    pub system: String,
    /// The processor's name.
    pub cpu: Option<String>,
    /// Physical cores.
    pub cores: Option<u32>,
    /// Bytes of memory.
    pub memory: u64,
    /// The memory's read bandwidth, if stated.
    pub bandwidth: Option<Bandwidth>,
    /// The GPUs.
    pub gpus: Vec<SubmittedGpu>,
}

/// A GPU of the machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct SubmittedGpu {
    /// The full name.
    pub name: String,
    /// The ggml backend.
    pub backend: String,
    /// Where the GPU's memory is.
    pub kind: GpuKind,
    /// Usable bytes.
    pub memory: u64,
    /// The driver's version.
    pub driver: Option<String>,
    /// The memory's read bandwidth.
    pub bandwidth: Option<Bandwidth>,
    /// The PCIe link.
    pub link: Option<PcieLink>,
    /// Measured transfer rates of the link.
    pub measured_link: Option<LinkRate>,
}

/// A measured placement.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct SubmittedPoint {
    /// The name: `plan`, `ngl 32`, `before`.
    pub name: String,
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
    /// Planned and actual bytes of each GPU.
    pub gpus: Vec<SubmittedBytes>,
    /// The state of the machine during the measurement.
    pub conditions: SubmittedConditions,
    /// The computations.
    pub rows: Vec<SubmittedRow>,
}

/// Bytes of one GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct SubmittedBytes {
    /// Layers on the GPU.
    pub layers: u32,
    /// Planned bytes.
    pub planned: u64,
    /// The decrease of the GPU's free memory, if the GPU reports it.
    pub taken: Option<u64>,
}

/// The worst state of the machine during a placement's measurement. `None` means unknown.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct SubmittedConditions {
    /// The highest temperature of a GPU, in degrees Celsius.
    pub temperature: Option<u32>,
    /// The lowest clock of a GPU's multiprocessors, in MHz.
    pub clock_mhz: Option<u32>,
    /// The reasons that held clocks down.
    pub throttle: Vec<ThrottleReason>,
    /// The largest percentage of a ten-second period in which a thread waited for a core.
    pub cpu_pressure: Option<f32>,
    /// The largest percentage of a ten-second period in which a thread waited for memory.
    pub memory_pressure: Option<f32>,
    /// Pages read from or written to swap.
    pub swapped: Option<u64>,
}

/// Computations of one kind. As in llama-bench, either `n_prompt` or `n_gen` is 0.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct SubmittedRow {
    /// Tokens of the prompt.
    pub n_prompt: u32,
    /// Generated tokens.
    pub n_gen: u32,
    /// Tokens in the context before the computation.
    pub n_depth: u32,
    /// Predicted tokens per second.
    pub predicted: Option<f64>,
    /// Nanoseconds of each computation, in the order of execution.
    pub ns: Vec<u64>,
}

impl Measurement {
    /// The measurement as a file for publication, without data that identifies a person or a machine.
    pub fn submission(&self) -> Submission {
        Submission::new(self, &Clean::for_this_user())
    }
}

impl Submission {
    /// The value of `form` in such a file.
    pub const FORM: &str = "autoplace measurement for others";
    /// The format version that this crate writes.
    pub const VERSION: u64 = 1;

    fn new(measurement: &Measurement, clean: &Clean) -> Self {
        let rows = || measurement.points.iter().flat_map(|point| &point.rows);
        let times = rows().filter_map(|row| row.time.get(.."2026-11-28".len()));
        let points: Vec<SubmittedPoint> =
            measurement.points.iter().filter_map(|point| SubmittedPoint::new(point, clean)).collect();
        let model = &measurement.model;
        Self {
            form: Self::FORM.to_owned(),
            version: Self::VERSION,
            made_by: clean.text(&measurement.made_by),
            date: times.min().unwrap_or_default().to_owned(),
            model: SubmittedModel {
                name: clean.text(&model.identity.name),
                description: clean.text(&model.description),
                header: model.identity.header.clone(),
                tensor_bytes: model.tensor_bytes,
                n_params: model.n_params,
            },
            machine: SubmittedMachine::new(&measurement.machine, clean),
            failed: (measurement.points.len() - points.len()) as u64,
            points,
        }
    }

    /// The submission as indented JSON.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default() + "\n"
    }

    /// The published data in words, for the person who publishes it. There is one line for each kind of data.
    pub fn contents(&self) -> Vec<String> {
        let (model, machine) = (&self.model, &self.machine);
        let gpus: Vec<String> = machine
            .gpus
            .iter()
            .map(|gpu| {
                let driver = gpu.driver.as_ref().map_or(String::new(), |version| format!(", driver {version}"));
                let link = gpu.link.map_or(String::new(), |link| format!(", {}", link.max));
                format!("{} ({}, {} bytes{driver}{link})", gpu.name, gpu.backend, gpu.memory)
            })
            .collect();
        let unknown = "unknown".to_owned();
        let cores = machine.cores.map_or(unknown.clone(), |cores| cores.to_string());
        let samples: usize = self.points.iter().flat_map(|point| &point.rows).map(|row| row.ns.len()).sum();
        let names: Vec<&str> = self.points.iter().map(|point| point.name.as_str()).collect();
        vec![
            format!("made by: {}, on {}", self.made_by, self.date),
            format!("model: {} ({}), header {}", model.name, model.description, model.header),
            format!(
                "machine: {}, {} with {cores} cores, {} bytes of memory",
                machine.system,
                machine.cpu.as_ref().unwrap_or(&unknown),
                machine.memory
            ),
            format!("GPUs: {}", if gpus.is_empty() { "none".to_owned() } else { gpus.join("; ") }),
            format!("placements: {}, with their settings, threads, planned and taken bytes", names.join(", ")),
            format!("{samples} times of computations; temperatures, clocks, pressure and swapping meanwhile"),
        ]
    }
}

impl SubmittedMachine {
    fn new(machine: &Machine, clean: &Clean) -> Self {
        let host = &machine.host;
        Self {
            system: format!("{OS} {ARCH}"),
            cpu: host.cpu.as_ref().map(|cpu| clean.text(cpu)),
            cores: host.physical_cores,
            memory: host.total,
            bandwidth: host.bandwidth,
            gpus: machine.gpus.iter().map(|gpu| SubmittedGpu::new(gpu, clean)).collect(),
        }
    }
}

impl SubmittedGpu {
    fn new(gpu: &Gpu, clean: &Clean) -> Self {
        // The name of a device of another machine is an address.
        let name = match gpu.kind {
            GpuKind::Remote => "a GPU of another machine".to_owned(),
            _ => clean.text(if gpu.description.is_empty() { &gpu.name } else { &gpu.description }),
        };
        Self {
            name,
            backend: clean.text(&gpu.backend),
            kind: gpu.kind,
            memory: gpu.total,
            driver: gpu.driver.as_ref().map(|version| clean.text(version)),
            bandwidth: gpu.bandwidth,
            link: gpu.pcie,
            measured_link: gpu.rates.as_ref().and_then(|rates| rates.link),
        }
    }
}

impl SubmittedPoint {
    /// The submitted form of a point; `None` for a placement without measurements.
    fn new(point: &Point, clean: &Clean) -> Option<Self> {
        let placement: &Measured = point.placement.as_ref().filter(|_| !point.rows.is_empty())?;
        let mut overrides = placement.overrides.clone();
        overrides.iter_mut().for_each(|rule| rule.pattern = clean.pattern(&rule.pattern));
        let gpus = placement.devices.iter().filter(|device| device.device.is_some());
        let conditions = &point.conditions;
        let swapped = [conditions.swapped_in, conditions.swapped_out];
        Some(Self {
            name: clean.text(&point.name),
            n_gpu_layers: placement.n_gpu_layers,
            layers: placement.layers,
            tensor_split: placement.tensor_split.clone(),
            overrides,
            settings: placement.settings.clone(),
            threads: placement.threads,
            threads_batch: placement.threads_batch,
            gpus: gpus
                .map(|device| SubmittedBytes {
                    layers: device.layers,
                    planned: device.planned.total(),
                    taken: device.taken,
                })
                .collect(),
            conditions: SubmittedConditions {
                temperature: conditions.temperature,
                clock_mhz: conditions.clock_mhz,
                throttle: conditions.throttle.iter().copied().collect(),
                cpu_pressure: conditions.cpu_pressure,
                memory_pressure: conditions.memory_pressure,
                swapped: swapped.into_iter().flatten().reduce(u64::saturating_add),
            },
            rows: point.rows.iter().map(SubmittedRow::new).collect(),
        })
    }
}

impl SubmittedRow {
    fn new(row: &Row) -> Self {
        Self {
            n_prompt: row.n_prompt,
            n_gen: row.n_gen,
            n_depth: row.n_depth,
            predicted: row.predicted,
            ns: row.samples.iter().map(|sample| sample.ns).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use autoplace::machine::{Gpu, GpuProcess, Host, Machine, PcieLink, PcieRate, gib};
    use serde_json::{Value, json};

    use super::{Clean, Measurement, Submission};

    /// The file that `cargo xtask ledger` reads in its tests.
    const FILE: &str = include_str!("../../../xtask/tests/submission.json");

    /// A measurement in which all texts identify the machine's owner.
    fn measurement() -> Measurement {
        let mut card = Gpu::named("RTX 4090").unwrap().pcie(PcieLink::new(PcieRate::new(4, 16).unwrap()));
        card.pci_id = "0000:01:00.0".parse().ok();
        card.processes = Some(vec![GpuProcess::new(4242).name("zoes-secret-program").bytes(gib(1))]);
        let mut machine = Machine::new(Host::new(gib(64))).with_gpu(card);
        machine.host.cpu = Some("AMD Ryzen 9 7950X 16-Core Processor".to_owned());
        machine.host.physical_cores = Some(16);
        let row = |n_prompt, n_gen, ns: [u64; 3]| {
            let samples: Vec<Value> = ns.iter().zip(0..).map(|(ns, round)| json!({"round": round, "ns": ns})).collect();
            json!({"n_prompt": n_prompt, "n_gen": n_gen, "n_depth": 512, "time": "2026-11-28T10:11:12Z",
                "speed": {"median": 1.0, "least": 1.0, "most": 1.0}, "predicted": 40.0, "samples": samples})
        };
        let settings = autoplace::memory::ContextParams::default();
        let device = json!({"name": "RTX 4090 of zoe", "device": "CUDA0", "kind": "gpu", "layers": 33,
            "planned": {"weights": 4_000_000_000_u64, "kv": 500_000_000, "compute": 200_000_000},
            "probed": null, "allocated": null, "taken": 4_800_000_000_u64, "headroom": 1, "free": null});
        let conditions = json!({"temperature": 61, "clock_mhz": 2500, "throttle": [], "least_free": null,
            "cpu_pressure": 0.5, "memory_pressure": 0.0, "swapped_in": 0, "swapped_out": 0});
        let value = json!({
            "version": 1, "made_by": "autoplace 0.1.0, llama.cpp", "machine": machine,
            "model": {"path": "/home/zoe/models/secret-folder/llama-8b.gguf", "name": "/home/zoe/models/Llama 3.1 8B",
                "file_bytes": [4_900_000_000_u64], "header": "0123456789abcdef0123456789abcdef",
                "description": "llama 8B Q4_K - Medium", "tensor_bytes": 4_900_000_000_u64, "n_params": 8_030_000_000_u64},
            "protocol": {"prompts": ["My name is Zoe."], "n_prompt": 512, "n_gen": 256, "depths": [0], "rounds": 3},
            "points": [
                {"name": "plan", "failure": null, "conditions": conditions,
                    "placement": {"n_gpu_layers": 33, "layers": 33, "tensor_split": [], "overrides": [
                        {"pattern": r"^blk\.(0|1)\.ffn_up\.", "place": "host"}],
                        "settings": settings, "threads": 16, "threads_batch": 16, "devices": [device]},
                    "rows": [row(512, 0, [200_000_000, 210_000_000, 190_000_000]), row(0, 256, [3_200_000_000, 3_300_000_000, 3_100_000_000])]},
                {"name": "ngl 40", "failure": "/home/zoe/models/x.gguf does not fit", "conditions": conditions,
                    "placement": null, "rows": []}],
            "notes": ["zoe's desktop was busy"]
        });
        Measurement::from_json(&value.to_string()).unwrap()
    }

    fn submission() -> Submission {
        Submission::new(&measurement(), &Clean::new(["zoe", "zoespc"]))
    }

    #[test]
    fn a_submission_does_not_identify_the_owner_and_has_all_that_counts() {
        let submission = submission();
        let json = submission.to_json();
        for private in ["zoe", "Zoe", "/", "secret", "4242", "0000:01", "busy", "10:11"] {
            // The pattern of tensors must have no slash either.
            assert!(!json.contains(private), "{private}: {json}");
        }
        assert_eq!((submission.model.name.as_str(), submission.date.as_str()), ("Llama 3.1 8B", "2026-11-28"));
        assert_eq!((submission.points.len(), submission.failed), (1, 1));
        let (point, gpu) = (&submission.points[0], &submission.machine.gpus[0]);
        assert_eq!(point.rows[1].ns, [3_200_000_000, 3_300_000_000, 3_100_000_000]);
        assert_eq!(point.overrides[0].pattern, r"^blk\.(0|1)\.ffn_up\.");
        assert_eq!((gpu.name.as_str(), gpu.link.unwrap().max.lanes), ("NVIDIA GeForce RTX 4090", 16));
        let said = submission.contents().join("\n");
        for part in ["Llama 3.1 8B", "RTX 4090", "PCIe 4.0 x16", "Ryzen 9 7950X", "plan", "6 times"] {
            assert!(said.contains(part), "{said}");
        }
    }

    /// With `AUTOPLACE_WRITE=1`, the test writes the file again, with the operating system of this machine.
    #[test]
    fn the_test_of_the_ledger_reads_the_written_submission() {
        let mut submission = submission();
        submission.machine.system = "linux x86_64".to_owned();
        if std::env::var_os("AUTOPLACE_WRITE").is_some() {
            let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../xtask/tests/submission.json");
            std::fs::write(file, submission.to_json()).unwrap();
            return;
        }
        assert_eq!(submission.to_json(), FILE);
        assert_eq!(serde_json::from_str::<Submission>(FILE).unwrap(), submission);
    }

    #[test]
    fn an_unknown_field_is_refused() {
        let mut value: Value = serde_json::from_str(FILE).unwrap();
        value["machine"]["hostname"] = json!("zoespc");
        assert!(serde_json::from_value::<Submission>(value).is_err());
    }
}
