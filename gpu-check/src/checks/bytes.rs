//! Compares the plan with llama.cpp's figures before and after a load, and with the cards' figures at every stage.

use anyhow::Result;
use autoplace::load::OnDifference;
use autoplace::machine::mib;
use autoplace::memory::{FlashAttention, Footprint, KvType};
use autoplace::plan::{GpuLayers, Request};
use serde::{Deserialize, Serialize};

use crate::child::{self, End, Outcome};
use crate::job::{Stage, Step};
use crate::models::{self, Written};
use crate::rig::{Free, Rig};
use crate::setting::{Setting, Size, Verdict, first};

/// A context is filled only if the product of weight bytes and tokens is at most this number, because a large model
/// needs minutes for a long context.
const MAX_FILL: u64 = (5 << 30) * 16384;

/// The stage of a card before any process has opened it.
const UNOPENED: &str = "unopened";
/// The stage of a card that a process has opened, before a load.
const OPENED: &str = "opened";

/// Tokens to generate after the first prompt.
const DECODED: usize = 16;

/// One load, from an empty card to the end of its context. Sizes are in bytes.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Row {
    pub(crate) model: String,
    pub(crate) model_bytes: u64,
    pub(crate) n_ctx: u32,
    pub(crate) kv: KvType,
    pub(crate) flash_attention: bool,
    pub(crate) n_gpu_layers: u32,
    pub(crate) layers: u32,
    pub(crate) gpus: Vec<Card>,
    pub(crate) host_planned: Footprint,
    pub(crate) host_allocated: Footprint,
    pub(crate) end: End,
}

/// A card in a [`Row`].
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Card {
    pub(crate) device: String,
    pub(crate) planned: Footprint,
    pub(crate) headroom: u64,
    pub(crate) allocated: Footprint,
    /// Free memory at every stage.
    pub(crate) stages: Vec<Reading>,
}

/// A card's reading at a stage.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Reading {
    pub(crate) stage: String,
    /// Tokens in the context.
    pub(crate) depth: usize,
    pub(crate) free: Free,
}

impl Card {
    /// Bytes that the driver's context took when the card was opened. `None` if no driver reports it.
    pub(crate) fn context(&self) -> Option<u64> {
        let at = |stage: &str| {
            let reading = self.stages.iter().find(|reading| reading.stage == stage);
            reading?.free.nvml
        };
        Some(at(UNOPENED)?.saturating_sub(at(OPENED)?))
    }

    /// Bytes that disappeared since the devices were opened, without the buffers that llama.cpp counts. The first
    /// number is for the time after the load, and the second for the last stage. `None` if the card does not report
    /// free memory.
    pub(crate) fn beyond(&self) -> Option<(u64, u64)> {
        let at = |reading: &Reading| reading.free.ggml;
        let opened = self.stages.iter().position(|reading| reading.stage == OPENED)?;
        let stages = &self.stages[opened..];
        let first = at(&stages[0])?;
        let beyond = |reading: &Reading| {
            let gone = first.saturating_sub(at(reading)?);
            Some(gone.saturating_sub(self.allocated.total()))
        };
        Some((beyond(stages.get(1)?)?, beyond(stages.last()?)?))
    }
}

impl Row {
    /// The fault in this row, if there is one.
    pub(crate) fn wrong(&self) -> Option<String> {
        if let Some(why) = self.end.failure() {
            return Some(why.to_owned());
        }
        self.gpus.iter().find_map(|gpu| {
            let device = &gpu.device;
            if gpu.planned != gpu.allocated {
                return Some(format!("{device}: planned {:?}, allocated {:?}", gpu.planned, gpu.allocated));
            }
            let (_, beyond) = gpu.beyond()?;
            (beyond > gpu.headroom)
                .then(|| format!("{device}: {beyond} bytes beyond the footprint, {} were left", gpu.headroom))
        })
    }
}

/// Sizes of a context.
#[derive(Clone)]
struct Shape {
    n_ctx: u32,
    kv: KvType,
    flash: bool,
}

/// The context shapes for the model with this number. On a real card with limited time, there are only two shapes,
/// which differ from model to model.
fn shapes(setting: &Setting, number: usize) -> Vec<Shape> {
    let shape = |n_ctx, kv, flash| Shape { n_ctx, kv, flash };
    let all = match setting.size {
        Size::Small => {
            vec![shape(512, KvType::F16, true), shape(1024, KvType::Q8_0, true), shape(512, KvType::F16, false)]
        }
        Size::Real => vec![
            shape(4096, KvType::F16, true),
            shape(16384, KvType::Q8_0, true),
            shape(4096, KvType::F16, false),
            shape(65536, KvType::F16, true),
        ],
    };
    if setting.size == Size::Small || setting.until.is_none() {
        return all;
    }
    let count = all.len();
    all.into_iter().cycle().skip(number % count).take(2).collect()
}

pub(crate) fn run(setting: &Setting) -> Result<Verdict> {
    let (mut rows, mut skipped): (Vec<Row>, Vec<String>) = (Vec::new(), Vec::new());
    for (number, sketch) in models::of_size(setting.size).iter().enumerate() {
        if let Some(model) = models::written(setting, sketch, rows.len(), &mut skipped) {
            of_model(setting, &model, number, &mut rows, &mut skipped)?;
        }
    }
    Ok(verdict(&rows, &skipped))
}

/// Adds the rows of all shapes and splits of one model.
fn of_model(
    setting: &Setting,
    model: &Written,
    number: usize,
    rows: &mut Vec<Row>,
    skipped: &mut Vec<String>,
) -> Result<()> {
    for (kind, shape) in shapes(setting, number).iter().enumerate() {
        // The splits are: as many layers as fit, half as many, and only the output layer.
        let mut asked = vec![GpuLayers::Auto];
        let mut next = 0;
        while let Some(&layers) = asked.get(next) {
            next += 1;
            if let Some(why) = setting.ends(rows.len()) {
                skipped.push(format!("{}, {} tokens: {why}", model.name, shape.n_ctx));
                return Ok(());
            }
            // A simulated card gets enough memory for the whole model, or for a part of it.
            let total = match kind % 2 {
                0 => model.bytes * 2 + mib(16),
                _ => model.bytes / 2 + mib(10),
            };
            let rig = setting.rig(&format!("bytes-{}", rows.len()), total);
            let row = of_split(setting, &rig, model, shape, layers)?;
            if layers == GpuLayers::Auto {
                let found = row.n_gpu_layers;
                asked.extend([found / 2, 1].into_iter().filter(|&n| n > 0 && n < found).map(GpuLayers::Exactly));
            }
            rows.push(row);
        }
    }
    Ok(())
}

fn of_split(setting: &Setting, rig: &Rig, model: &Written, shape: &Shape, layers: GpuLayers) -> Result<Row> {
    let request: Request = setting
        .request()
        .n_ctx(shape.n_ctx)
        .kv_types(shape.kv, shape.kv)
        .flash_attn(if shape.flash { FlashAttention::On } else { FlashAttention::Off })
        .n_gpu_layers(layers);
    let mut steps = vec![Step::Ubatch, Step::Decode(DECODED)];
    if model.bytes.saturating_mul(u64::from(shape.n_ctx)) <= MAX_FILL {
        steps.push(Step::ToTheEnd);
    }
    let mut job = setting.job(rig, &model.path, request, steps);
    // There must be no fallback, and no computation before the first reading.
    (job.attempts, job.warm_up) = (1, false);
    job.on_difference = OnDifference::Fail;
    let unopened = rig.unopened();
    let outcome = child::drive(&job, &setting.cache())?;
    Ok(row(model, shape, &unopened, &outcome))
}

fn row(model: &Written, shape: &Shape, unopened: &[Free], outcome: &Outcome) -> Row {
    let mut row = Row {
        model: model.name.clone(),
        model_bytes: model.bytes,
        n_ctx: shape.n_ctx,
        kv: shape.kv,
        flash_attention: shape.flash,
        n_gpu_layers: 0,
        layers: 0,
        gpus: Vec::new(),
        host_planned: Footprint::default(),
        host_allocated: Footprint::default(),
        end: outcome.end.clone(),
    };
    let mut opened: &[Free] = &[];
    for stage in &outcome.stages {
        match stage {
            Stage::Opened { free } => opened = free,
            Stage::Loaded { report, free, .. } => {
                let plan = &report.plan;
                (row.n_gpu_layers, row.layers) = (plan.n_gpu_layers, plan.layers());
                (row.host_planned, row.host_allocated) = (report.host.planned, report.host.allocated);
                row.gpus = report
                    .gpus
                    .iter()
                    .map(|gpu| Card {
                        device: gpu.device.clone(),
                        planned: gpu.planned,
                        headroom: gpu.headroom.total(),
                        allocated: gpu.allocated.unwrap_or_default(),
                        stages: Vec::new(),
                    })
                    .collect();
                // The readings can be compared only if both lists contain the same cards.
                if unopened.len() == opened.len() {
                    read(&mut row, UNOPENED, 0, unopened);
                }
                read(&mut row, OPENED, 0, opened);
                read(&mut row, "loaded", 0, free);
            }
            Stage::Done { step, free, depth, .. } => {
                let name = match step {
                    Step::Ubatch => "prompt",
                    Step::Decode(_) => "decoded",
                    _ => "full",
                };
                read(&mut row, name, *depth, free);
            }
            Stage::Failed { .. } => {}
        }
    }
    row
}

/// Stores the readings of the cards. A plan lists the cards in the order of the rig.
fn read(row: &mut Row, stage: &str, depth: usize, free: &[Free]) {
    for (card, &free) in row.gpus.iter_mut().zip(free) {
        card.stages.push(Reading { stage: stage.to_owned(), depth, free });
    }
}

fn verdict(rows: &[Row], skipped: &[String]) -> Verdict {
    let wrong: Vec<String> = rows
        .iter()
        .filter_map(|row| {
            let what = row.wrong()?;
            Some(format!("{}, {} tokens, {} layers: {what}", row.model, row.n_ctx, row.n_gpu_layers))
        })
        .collect();
    let loads = rows.iter().filter(|row| row.end == End::Completed).count();
    let cards = || rows.iter().flat_map(|row| &row.gpus);
    let most = cards().filter_map(|card| Some(card.beyond()?.1)).max().unwrap_or(0);
    let first = first(&wrong);
    Verdict {
        passed: wrong.is_empty() && loads > 0,
        line: format!(
            "{loads} loads, {} not as planned; at most {} MiB beside the buffers{first}",
            wrong.len(),
            most >> 20
        ),
        json: serde_json::json!({ "rows": rows, "wrong": wrong, "skipped": skipped }),
    }
}
