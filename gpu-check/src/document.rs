//! Makes `docs/hardware.md` from the stored results. The document has one section for each machine; the newest results
//! come first.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::checks::{BallastRow, BytesRow};

const HEAD: &str = "\
# Hardware

This page shows how the promises were kept on real cards, and on simulated cards where no real card was available. It is made from the files in `benches/results` by
`cargo run -p autoplace-gpu-check -- --document benches/results > docs/hardware.md`; a test repeats this. `cargo xtask gpu-bundle` makes an archive. Its
`run.sh` measures the cards of any Linux machine with an NVIDIA card, nvcc, CMake and a C++ compiler; `run.sh --cpu` needs no card. `cargo xtask gpu-bundle --vulkan` makes an
archive whose `run.sh --vulkan` measures any card with a Vulkan driver.

- *identical*: the greedy text of the demo model at every split is compared with the CPU's text. Devices round differently, so the texts may differ.
- *bytes*: planned bytes (those of the accepted plan, which a probe has counted) and allocated bytes must be equal. *context* is the memory that opening the card takes. *beside* is the memory that the card lost beyond the buffers that llama.cpp
  counts (workspaces, pools), after the load and at the end. The loss at the end must not exceed the headroom.
- *ballast*: another process leaves only as much memory as the column *left free* states. The model is planned and loaded, and computes up to the last position of its context.
  *More* is the number of layers beyond the plan's that could also be loaded and computed, with no headroom at all.
- *cliff*: tokens per second over `n_gpu_layers`. *peers*: a comparison with llama.cpp's own loop and its own fit.
";

/// One folder of results.
struct Results {
    folder: String,
    machine: Value,
    summary: String,
    bytes: Vec<BytesRow>,
    ballast: Vec<BallastRow>,
    has_curve: bool,
}

/// The whole document, made from the folders below `root` that have a `machine.json`.
pub(crate) fn document(root: &Path) -> Result<String> {
    let entries = std::fs::read_dir(root).with_context(|| format!("cannot list {}", root.display()))?;
    let mut folders: Vec<PathBuf> = entries.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    folders.retain(|folder| folder.join("machine.json").is_file());
    // The names of the folders begin with the date.
    folders.sort();
    let mut text = HEAD.to_owned();
    let mut real = 0;
    for folder in folders.iter().rev() {
        let results = Results::read(folder)?;
        real += usize::from(results.is_of_a_card());
        results.write(&mut text)?;
    }
    if real == 0 {
        text.push_str("\nNo real card has been measured yet: the planner's table of headroom (`memory/headroom/known.rs`) rests on published figures alone.\n");
    }
    Ok(text)
}

impl Results {
    fn read(folder: &Path) -> Result<Self> {
        let name = folder.file_name().unwrap_or_default();
        Ok(Self {
            folder: name.to_string_lossy().into_owned(),
            machine: json(&folder.join("machine.json"))?,
            summary: std::fs::read_to_string(folder.join("summary.md"))
                .with_context(|| format!("{} has no summary.md", folder.display()))?,
            bytes: rows(&folder.join("bytes.json"))?,
            ballast: rows(&folder.join("ballast.json"))?,
            has_curve: folder.join("cliff.svg").is_file(),
        })
    }

    fn write(&self, text: &mut String) -> Result<()> {
        writeln!(text, "\n## {}\n", self.folder)?;
        for line in self.described() {
            writeln!(text, "{line}  ")?;
        }
        writeln!(text, "\n{}", self.summary.trim_end())?;
        if self.has_curve {
            writeln!(text, "\n![tokens per second over n_gpu_layers](../benches/results/{}/cliff.svg)", self.folder)?;
        }
        self.write_bytes(text)?;
        self.write_ballast(text)
    }

    fn gpus(&self) -> impl Iterator<Item = &str> {
        let gpus = self.machine["machine"]["gpus"].as_array().into_iter().flatten();
        gpus.filter_map(|gpu| gpu["name"].as_str())
    }

    /// Whether the results come from a real card, not from a simulation or Mesa's driver on the processor.
    fn is_of_a_card(&self) -> bool {
        self.machine["simulated"] == false && !self.gpus().any(|gpu| gpu.contains("llvmpipe"))
    }

    /// The machine, as lines of text.
    fn described(&self) -> Vec<String> {
        let machine = &self.machine;
        let host = &machine["machine"]["host"];
        let mut lines = Vec::new();
        let says_nothing = "as the host does, so the speeds say nothing about a card";
        match machine["nvidia"].as_str() {
            _ if machine["simulated"] != false => {
                lines.push(format!("simulated cards with CUDA's rules of allocation; they compute {says_nothing}"));
            }
            // The first line is left out, because it contains the names of the columns.
            Some(said) => lines.extend(said.lines().skip(1).map(str::to_owned)),
            None if self.is_of_a_card() => lines.extend(self.gpus().map(str::to_owned)),
            None => {
                let gpus =
                    self.gpus().map(|gpu| format!("{gpu}: a driver without a card, which computes {says_nothing}"));
                lines.extend(gpus);
            }
        }
        let cpu = host["cpu"].as_str().unwrap_or("a CPU without a name");
        let gib = host["total"].as_u64().unwrap_or(0) >> 30;
        lines.push(format!("{cpu}, {gib} GiB"));
        let build = &machine["build"];
        if let Some(name) = build["name"].as_str() {
            lines.push(name.to_owned());
        }
        if let Some(bundle) = build["bundle"].as_object() {
            let facts = bundle.iter().filter_map(|(key, value)| match value {
                Value::String(text) => Some(format!("{key} {text}")),
                Value::Number(number) => Some(format!("{key} {number}")),
                _ => None,
            });
            lines.push(facts.collect::<Vec<_>>().join(", "));
        }
        lines
    }

    fn write_bytes(&self, text: &mut String) -> Result<()> {
        if self.bytes.is_empty() {
            return Ok(());
        }
        writeln!(
            text,
            "\n| bytes: model | MiB | n_ctx | KV | FA | layers | planned, MiB | allocated, bytes more | context, MiB | beside, after the load | at the end | headroom |\n|---|--:|--:|---|---|--:|--:|--:|--:|--:|--:|--:|"
        )?;
        for row in &self.bytes {
            for card in &row.stages.gpus {
                let (loaded, end) = card.beyond().unzip();
                writeln!(
                    text,
                    "| {} | {} | {} | {} | {} | {} of {} | {} | {} | {} | {} | {} | {} |",
                    row.model,
                    row.model_bytes >> 20,
                    row.n_ctx,
                    row.kv,
                    if row.flash_attention { "on" } else { "off" },
                    row.stages.n_gpu_layers,
                    row.stages.layers,
                    card.planned.total() >> 20,
                    i128::from(card.allocated.total()) - i128::from(card.planned.total()),
                    in_mib(card.context()),
                    in_mib(loaded),
                    in_mib(end),
                    in_mib(Some(card.headroom)),
                )?;
            }
        }
        Ok(())
    }

    fn write_ballast(&self, text: &mut String) -> Result<()> {
        if self.ballast.is_empty() {
            return Ok(());
        }
        writeln!(
            text,
            "\n| ballast: model | MiB | left free, MiB | layers | out of memory | least free, MiB | headroom, MiB | more |\n|---|--:|--:|--:|--:|--:|--:|--:|"
        )?;
        for row in &self.ballast {
            writeln!(
                text,
                "| {} | {} | {} | {} of {} | {} | {} | {} | {} |",
                row.model,
                row.model_bytes >> 20,
                row.left >> 20,
                row.n_gpu_layers,
                row.layers,
                row.events(),
                in_mib(row.least_free),
                in_mib(Some(row.headroom)),
                row.also_safe,
            )?;
        }
        Ok(())
    }
}

#[allow(clippy::cast_precision_loss)] // Printed with one decimal.
fn in_mib(bytes: Option<u64>) -> String {
    bytes.map_or_else(|| "unknown".to_owned(), |bytes| format!("{:.1}", bytes as f64 / f64::from(1 << 20)))
}

fn json(path: &Path) -> Result<Value> {
    let text = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    serde_json::from_slice(&text).with_context(|| format!("{} is no JSON", path.display()))
}

/// The rows of a check; empty if the check was not run.
fn rows<T: DeserializeOwned>(path: &Path) -> Result<Vec<T>> {
    if !path.is_file() {
        return Ok(Vec::new());
    }
    serde_json::from_value(json(path)?["rows"].take())
        .with_context(|| format!("{} holds other rows than this program writes", path.display()))
}
