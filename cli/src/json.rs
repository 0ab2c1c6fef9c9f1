//! A plan as JSON: the shape that `docs/cli.md` promises, keys in its order. All sizes in bytes, all times
//! in milliseconds.

use std::borrow::Cow;
use std::time::Duration;

use autoplace::memory::{ContextParams, FlashAttention, Footprint, Place, Pooling, TensorOverride};
use autoplace::plan::{Paging, Placement, PlacementKind, Plan, Speed};
use serde::Serialize;

use crate::plan::Answer;

/// The JSON, indented.
pub(crate) fn text(answer: &Answer) -> Result<String, serde_json::Error> {
    serde_json::to_string_pretty(&Document::of(answer))
}

#[derive(Serialize)]
struct Document<'a> {
    model: Model<'a>,
    context: u32,
    kv_type: String,
    n_gpu_layers: u32,
    full_offload: bool,
    devices: Vec<Device<'a>>,
    /// Empty where one GPU takes all layers.
    tensor_split: &'a [f32],
    /// As llama.cpp's `--override-tensor` takes them.
    overrides: Vec<String>,
    estimate: Option<Vec<Bytes<'a>>>,
    probe: Option<Vec<Bytes<'a>>>,
    took_ms: Took,
    settings: Settings,
    paging: Option<Paging>,
    speed: Option<&'a Speed>,
    notes: &'a [String],
}

/// What a plan has beside the layers: all of [`ContextParams`], and what was called otherwise before.
#[derive(Serialize)]
struct Settings {
    kv_type_v: String,
    kv_offload: bool,
    ubatch: u32,
    parted_blocks: u32,
    n_ctx: u32,
    n_batch: u32,
    n_ubatch: u32,
    n_seq_max: u32,
    n_outputs_max: u32,
    type_k: String,
    type_v: String,
    flash_attn: FlashAttention,
    offload_kqv: bool,
    op_offload: bool,
    kv_unified: bool,
    swa_full: bool,
    mmap: bool,
    repack: bool,
    embeddings: Option<Pooling>,
    mtp: bool,
    n_rs_seq: u32,
}

impl Settings {
    fn of(plan: &Plan) -> Self {
        let context: &ContextParams = &plan.context;
        // As llama.cpp's own programs take it.
        let name = |ty: autoplace::memory::KvType| ty.to_string().to_lowercase();
        Self {
            kv_type_v: name(context.type_v),
            kv_offload: context.offload_kqv,
            ubatch: context.n_ubatch,
            parted_blocks: plan.parted_blocks,
            n_ctx: context.n_ctx,
            n_batch: context.n_batch,
            n_ubatch: context.n_ubatch,
            n_seq_max: context.n_seq_max,
            n_outputs_max: context.n_outputs_max,
            type_k: name(context.type_k),
            type_v: name(context.type_v),
            flash_attn: context.flash_attn,
            offload_kqv: context.offload_kqv,
            op_offload: context.op_offload,
            kv_unified: context.kv_unified,
            swa_full: context.swa_full,
            mmap: context.mmap,
            repack: context.repack,
            embeddings: context.embeddings,
            mtp: context.mtp,
            n_rs_seq: context.n_rs_seq,
        }
    }
}

#[derive(Serialize)]
struct Model<'a> {
    path: Option<Cow<'a, str>>,
    name: &'a str,
    architecture: &'a str,
    file_bytes: u64,
    blocks: u32,
}

#[derive(Serialize)]
struct Device<'a> {
    name: &'a str,
    kind: PlacementKind,
    total: u64,
    free: u64,
    layers: u32,
    weights: u64,
    kv: u64,
    compute: u64,
    of_host: u64,
    headroom: u64,
}

#[derive(Serialize)]
struct Bytes<'a> {
    name: &'a str,
    weights: u64,
    kv: u64,
    compute: u64,
}

#[derive(Serialize)]
struct Took {
    header: f64,
    estimate: f64,
    probe: Option<f64>,
    total: f64,
}

impl<'a> Document<'a> {
    fn of(answer: &'a Answer) -> Self {
        let plan = &answer.plan;
        let devices = &plan.placements;
        let took = &answer.took;
        Self {
            model: Model {
                path: plan.model.path.as_ref().map(|path| path.to_string_lossy()),
                name: &plan.model.name,
                architecture: &plan.model.architecture,
                file_bytes: plan.model.file_bytes,
                blocks: plan.model.blocks,
            },
            context: plan.context.n_ctx,
            // As llama.cpp's own programs take it.
            kv_type: plan.context.type_k.to_string().to_lowercase(),
            n_gpu_layers: plan.n_gpu_layers,
            full_offload: plan.full_offload,
            devices: devices.iter().map(Device::of).collect(),
            tensor_split: &plan.tensor_split,
            overrides: plan.overrides.iter().map(|rule| override_tensor(rule, plan)).collect(),
            estimate: answer.estimate.as_ref().map(|estimate| {
                let bytes = estimate.gpus.iter().chain([&estimate.host]);
                devices.iter().zip(bytes).map(Bytes::of).collect()
            }),
            probe: took.probe.map(|_| {
                let bytes = devices.iter().map(|device| &device.footprint);
                devices.iter().zip(bytes).map(Bytes::of).collect()
            }),
            took_ms: Took {
                header: milliseconds(took.header),
                estimate: milliseconds(took.estimate),
                probe: took.probe.map(milliseconds),
                total: milliseconds(took.total),
            },
            settings: Settings::of(plan),
            paging: plan.paging,
            speed: plan.speed.as_ref(),
            notes: &plan.notes,
        }
    }
}

impl<'a> Device<'a> {
    fn of(placement: &'a Placement) -> Self {
        Self {
            name: &placement.name,
            kind: placement.kind,
            total: placement.total,
            free: placement.free,
            layers: placement.layers,
            weights: placement.footprint.weights,
            kv: placement.footprint.kv,
            compute: placement.footprint.compute,
            of_host: placement.of_host,
            headroom: placement.headroom.total(),
        }
    }
}

impl<'a> Bytes<'a> {
    fn of((placement, bytes): (&'a Placement, &Footprint)) -> Self {
        Self { name: &placement.name, weights: bytes.weights, kv: bytes.kv, compute: bytes.compute }
    }
}

/// `PATTERN=BUFFER TYPE`.
fn override_tensor(rule: &TensorOverride, plan: &Plan) -> String {
    let buffer_type = match rule.place {
        Place::Host => "CPU",
        Place::Gpu(gpu) => {
            let device = plan.gpus().nth(gpu).and_then(|gpu| gpu.device.as_deref());
            device.unwrap_or_default()
        }
    };
    format!("{}={buffer_type}", rule.pattern)
}

/// With three decimals.
fn milliseconds(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1e6).round() / 1e3
}
