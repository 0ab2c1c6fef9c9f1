//! Compares the plan with llama.cpp's figures before and after a load, and with the cards' figures at every stage.
//!
//! Each row is a placement that `autoplace_measure` takes from an empty card to the end of its context ([`Stages`]).

use anyhow::Result;
use autoplace::load::{OnDifference, Verify};
use autoplace::machine::mib;
use autoplace::memory::{FlashAttention, KvType};
use autoplace::plan::{GpuLayers, Request};
use autoplace_measure::{Outcome, Stages, Step};
use serde::{Deserialize, Serialize};

use crate::child::Ballast;
use crate::models::{self, Written};
use crate::rig::Rig;
use crate::setting::{Setting, Size, Verdict, first};

/// A context is filled only if the product of weight bytes and tokens is at most this number, because a large model
/// needs minutes for a long context.
const MAX_FILL: u64 = (5 << 30) * 16384;

/// Tokens to generate after the first prompt.
const DECODED: u32 = 16;

/// One load, from an empty card to the end of its context.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Row {
    pub(crate) model: String,
    /// Bytes of the weights.
    pub(crate) model_bytes: u64,
    pub(crate) n_ctx: u32,
    pub(crate) kv: KvType,
    pub(crate) flash_attention: bool,
    #[serde(flatten)]
    pub(crate) stages: Stages,
}

/// The free bytes of each card, as NVIDIA's driver reports them, before and after a process of ours opens the cards.
struct Opening(Vec<(Option<u64>, Option<u64>)>);

impl Opening {
    /// Opens the machine's cards in another process. Of simulated cards there is nothing to measure.
    fn measured(setting: &Setting) -> Result<Self> {
        if setting.simulated {
            return Ok(Self(Vec::new()));
        }
        let unopened = Rig::Real.of_driver();
        let _open = Ballast::open(&Rig::Real, &setting.cache())?;
        Ok(Self(unopened.into_iter().zip(Rig::Real.of_driver()).collect()))
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
    let opening = Opening::measured(setting)?;
    for (number, sketch) in models::of_size(setting.size).iter().enumerate() {
        if let Some(model) = models::written(setting, sketch, rows.len(), &mut skipped) {
            of_model(setting, &opening, (&model, number), &mut rows, &mut skipped)?;
        }
    }
    Ok(verdict(&rows, &skipped))
}

/// Adds the rows of all shapes and splits of one model.
fn of_model(
    setting: &Setting,
    opening: &Opening,
    (model, number): (&Written, usize),
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
            let row = of_split(setting, opening, &rig, (model, shape), layers)?;
            if layers == GpuLayers::Auto {
                let found = row.stages.n_gpu_layers;
                asked.extend([found / 2, 1].into_iter().filter(|&n| n > 0 && n < found).map(GpuLayers::Exactly));
            }
            rows.push(row);
        }
    }
    Ok(())
}

fn of_split(
    setting: &Setting,
    opening: &Opening,
    rig: &Rig,
    (model, shape): (&Written, &Shape),
    layers: GpuLayers,
) -> Result<Row> {
    let request: Request = setting
        .request()
        .n_ctx(shape.n_ctx)
        .kv_types(shape.kv, shape.kv)
        .flash_attn(if shape.flash { FlashAttention::On } else { FlashAttention::Off })
        .n_gpu_layers(layers);
    let mut steps = vec![Step::Ubatch, Step::Generate(DECODED)];
    if model.bytes.saturating_mul(u64::from(shape.n_ctx)) <= MAX_FILL {
        steps.push(Step::Fill);
    }
    let rig = rig.open()?;
    let load = setting.load_on(&rig)?;
    // There must be no fallback, and no computation before the first reading.
    let load = move |builder| load(builder).attempts(1).verify(Verify::Off).on_difference(OnDifference::Fail);
    let mut stages = setting.measure(&rig, &model.path, request)?.load_with(load).stages(&steps);
    for gpu in &mut stages.gpus {
        let card = rig.devices.iter().position(|device| *device == gpu.device);
        if let Some(&(unopened, opened)) = card.and_then(|card| opening.0.get(card)) {
            gpu.opened_between(unopened, opened);
        }
    }
    Ok(Row {
        model: model.name.clone(),
        model_bytes: model.bytes,
        n_ctx: shape.n_ctx,
        kv: shape.kv,
        flash_attention: shape.flash,
        stages,
    })
}

fn verdict(rows: &[Row], skipped: &[String]) -> Verdict {
    let wrong: Vec<String> = rows
        .iter()
        .filter_map(|row| {
            let what = row.stages.fault()?;
            Some(format!("{}, {} tokens, {} layers: {what}", row.model, row.n_ctx, row.stages.n_gpu_layers))
        })
        .collect();
    let loads = rows.iter().filter(|row| row.stages.outcome == Outcome::Completed).count();
    let cards = || rows.iter().flat_map(|row| &row.stages.gpus);
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
