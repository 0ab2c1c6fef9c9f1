//! What a measurement gives to others: a [`Measurement`] flows in, a [`Submission`] flows out, in which nothing says
//! whose machine it was.
//!
//! A submission has fields of its own, and only these: what is not listed here is not given away. Paths, prompts,
//! messages of errors, other programs, PCI addresses and control groups have no field. Texts that somebody else wrote
//! (names of models and devices, patterns of overrides) are [cleared](clean) of what identifies a person or a machine.

mod clean;

use std::env::consts::{ARCH, OS};

use autoplace::machine::{Bandwidth, Gpu, GpuKind, LinkRate, Machine, PcieLink, ThrottleReason};
use autoplace::memory::{ContextParams, TensorOverride};
use serde::{Deserialize, Serialize};

use super::measurement::{Measured, Measurement, Point, Row};
use clean::Clean;

/// A measurement without what identifies a person or a machine. Sizes in bytes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Submission {
    /// What this file is: [`Submission::FORM`].
    pub form: String,
    /// The version of this form: [`Submission::VERSION`] when written by this crate.
    pub version: u64,
    /// This crate, llama.cpp and its backends, with their versions.
    pub made_by: String,
    /// The day of the first measurement: `2026-11-28`.
    pub date: String,
    /// The model.
    pub model: SubmittedModel,
    /// The machine.
    pub machine: SubmittedMachine,
    /// The placements that were measured.
    pub points: Vec<SubmittedPoint>,
    /// Placements that could not be loaded, or not measured.
    pub failed: u64,
}

/// The model that was measured.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct SubmittedModel {
    /// Its name, as its file says it.
    pub name: String,
    /// Architecture, size and quantisation in llama.cpp's words: `llama 8B Q4_K - Medium`.
    pub description: String,
    /// The hash of its header, by which two files are the same: 32 hexadecimal digits.
    pub header: String,
    /// Bytes of all tensors.
    pub tensor_bytes: u64,
    /// Elements of all tensors.
    pub n_params: u64,
}

/// The machine that was measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct SubmittedMachine {
    /// The operating system and the kind of processor: `linux x86_64`.
    pub system: String,
    /// The processor's name.
    pub cpu: Option<String>,
    /// Its physical cores.
    pub cores: Option<u32>,
    /// Bytes of memory.
    pub memory: u64,
    /// How fast memory is read, where somebody has stated it.
    pub bandwidth: Option<Bandwidth>,
    /// The GPUs.
    pub gpus: Vec<SubmittedGpu>,
}

/// A GPU of that machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct SubmittedGpu {
    /// Its full name.
    pub name: String,
    /// The ggml backend that drives it.
    pub backend: String,
    /// Where its memory is.
    pub kind: GpuKind,
    /// Bytes that the backend can use of it.
    pub memory: u64,
    /// The version of its driver.
    pub driver: Option<String>,
    /// How fast its memory is read.
    pub bandwidth: Option<Bandwidth>,
    /// Its PCIe link.
    pub link: Option<PcieLink>,
    /// What the link was measured to carry.
    pub measured_link: Option<LinkRate>,
}

/// A placement that was measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct SubmittedPoint {
    /// What it was called: `plan`, `ngl 32`, `before`.
    pub name: String,
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
    /// What each GPU was planned to hold, and what was taken of it.
    pub gpus: Vec<SubmittedBytes>,
    /// How the machine was meanwhile.
    pub conditions: SubmittedConditions,
    /// What was computed.
    pub rows: Vec<SubmittedRow>,
}

/// Bytes of one GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct SubmittedBytes {
    /// Layers on it.
    pub layers: u32,
    /// What the plan takes of it.
    pub planned: u64,
    /// By how much its free memory shrank, if it reports that.
    pub taken: Option<u64>,
}

/// The worst that was seen of the machine while a placement was measured. `None`: unknown.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct SubmittedConditions {
    /// The warmest GPU, in degrees Celsius.
    pub temperature: Option<u32>,
    /// The lowest clock of a GPU's processors, in MHz.
    pub clock_mhz: Option<u32>,
    /// What held clocks down.
    pub throttle: Vec<ThrottleReason>,
    /// The share of ten seconds in which a thread waited for a core, in percent.
    pub cpu_pressure: Option<f32>,
    /// The same for memory.
    pub memory_pressure: Option<f32>,
    /// Pages that went to swap or came from it.
    pub swapped: Option<u64>,
}

/// Computations of one kind. As in llama-bench either `n_prompt` or `n_gen` is 0.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct SubmittedRow {
    /// Tokens of the prompt that was computed.
    pub n_prompt: u32,
    /// Tokens that were generated.
    pub n_gen: u32,
    /// Tokens that the context held before.
    pub n_depth: u32,
    /// Tokens per second that were predicted.
    pub predicted: Option<f64>,
    /// Nanoseconds of each computation, in the order in which they were made.
    pub ns: Vec<u64>,
}

impl Measurement {
    /// The same as a file for others, without what identifies a person or a machine.
    pub fn submission(&self) -> Submission {
        Submission::of(self, &Clean::of_this_user())
    }
}

impl Submission {
    /// What a file of this kind says that it is.
    pub const FORM: &str = "autoplace measurement for others";
    /// The version that this crate writes.
    pub const VERSION: u64 = 1;

    fn of(measurement: &Measurement, clean: &Clean) -> Self {
        let rows = || measurement.points.iter().flat_map(|point| &point.rows);
        let times = rows().filter_map(|row| row.time.get(.."2026-11-28".len()));
        let points: Vec<SubmittedPoint> =
            measurement.points.iter().filter_map(|point| SubmittedPoint::of(point, clean)).collect();
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
            machine: SubmittedMachine::of(&measurement.machine, clean),
            failed: (measurement.points.len() - points.len()) as u64,
            points,
        }
    }

    /// As JSON, indented.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default() + "\n"
    }

    /// What is left in, for the person who gives it away: a line for each kind of thing.
    pub fn left_in(&self) -> Vec<String> {
        let (model, machine) = (&self.model, &self.machine);
        let gpus: Vec<String> = machine
            .gpus
            .iter()
            .map(|gpu| {
                let driver = gpu.driver.as_ref().map_or(String::new(), |it| format!(", driver {it}"));
                let link = gpu.link.map_or(String::new(), |it| format!(", {}", it.max));
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
    fn of(machine: &Machine, clean: &Clean) -> Self {
        let host = &machine.host;
        Self {
            system: format!("{OS} {ARCH}"),
            cpu: host.cpu.as_ref().map(|cpu| clean.text(cpu)),
            cores: host.physical_cores,
            memory: host.total,
            bandwidth: host.bandwidth,
            gpus: machine.gpus.iter().map(|gpu| SubmittedGpu::of(gpu, clean)).collect(),
        }
    }
}

impl SubmittedGpu {
    fn of(gpu: &Gpu, clean: &Clean) -> Self {
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
            driver: gpu.driver.as_ref().map(|it| clean.text(it)),
            bandwidth: gpu.bandwidth,
            link: gpu.pcie,
            measured_link: gpu.rates.as_ref().and_then(|rates| rates.link),
        }
    }
}

impl SubmittedPoint {
    /// `None` for a placement of which nothing was measured.
    fn of(point: &Point, clean: &Clean) -> Option<Self> {
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
            rows: point.rows.iter().map(SubmittedRow::of).collect(),
        })
    }
}

impl SubmittedRow {
    fn of(row: &Row) -> Self {
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
    const FILE: &str = include_str!("../../xtask/tests/submission.json");

    /// A measurement of a machine that says in every text whose it is.
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
        Submission::of(&measurement(), &Clean::of(["zoe", "zoespc"]))
    }

    #[test]
    fn nothing_in_it_says_whose_machine_it_was_and_all_that_counts_is_there() {
        let submission = submission();
        let json = submission.to_json();
        for private in ["zoe", "Zoe", "/", "secret", "4242", "0000:01", "busy", "10:11"] {
            // A pattern of tensors has no slash either.
            assert!(!json.contains(private), "{private}: {json}");
        }
        assert_eq!((submission.model.name.as_str(), submission.date.as_str()), ("Llama 3.1 8B", "2026-11-28"));
        assert_eq!((submission.points.len(), submission.failed), (1, 1));
        let (point, gpu) = (&submission.points[0], &submission.machine.gpus[0]);
        assert_eq!(point.rows[1].ns, [3_200_000_000, 3_300_000_000, 3_100_000_000]);
        assert_eq!(point.overrides[0].pattern, r"^blk\.(0|1)\.ffn_up\.");
        assert_eq!((gpu.name.as_str(), gpu.link.unwrap().max.lanes), ("NVIDIA GeForce RTX 4090", 16));
        let said = submission.left_in().join("\n");
        for part in ["Llama 3.1 8B", "RTX 4090", "PCIe 4.0 x16", "Ryzen 9 7950X", "plan", "6 times"] {
            assert!(said.contains(part), "{said}");
        }
    }

    /// `AUTOPLACE_WRITE=1` writes the file anew. The system is this machine's.
    #[test]
    fn the_ledgers_test_reads_what_is_written() {
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
    fn a_field_that_is_not_known_is_refused() {
        let mut value: Value = serde_json::from_str(FILE).unwrap();
        value["machine"]["hostname"] = json!("zoespc");
        assert!(serde_json::from_value::<Submission>(value).is_err());
    }
}
