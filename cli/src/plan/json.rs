//! A plan as JSON, with the form and the order of keys that `docs/cli.md` describes. Sizes are in bytes, times in
//! milliseconds.

use std::time::Duration;

use autoplace::memory::{Footprint, Footprints, Place, TensorOverride};
use autoplace::plan::{Placement, Plan};
use serde_json::{Value, json};

use crate::emit::kv_type;

/// How long each step took. If `probe` has a time, the bytes in the plan come from llama.cpp.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Took {
    /// For reading the file's header.
    pub(crate) header: Duration,
    /// For the search by arithmetic.
    pub(crate) estimate: Duration,
    /// For llama.cpp's probe; `None` if there was none.
    pub(crate) probe: Option<Duration>,
    /// For everything, including the detection of the machine.
    pub(crate) total: Duration,
}

/// The JSON text, with indentation.
///
/// `estimate` is the arithmetical estimate for the same placement; `None` if the model has no known memory layout.
pub(crate) fn text(plan: &Plan, estimate: Option<&Footprints>, took: Took) -> String {
    let (model, devices) = (&plan.model, &plan.placements);
    let gpus: Vec<&str> = plan.gpus().map(|gpu| gpu.device.as_deref().unwrap_or_default()).collect();
    let estimate = estimate.map(|estimate| -> Vec<Value> {
        devices.iter().zip(estimate.gpus.iter().chain([&estimate.host])).map(bytes).collect()
    });
    let probe =
        took.probe.map(|_| -> Vec<Value> { devices.iter().map(|device| bytes((device, &device.footprint))).collect() });
    let document = json!({
        "model": {
            "path": model.path.as_ref().map(|path| path.to_string_lossy()),
            "name": model.name,
            "architecture": model.architecture,
            "file_bytes": model.file_bytes,
            "blocks": model.blocks,
        },
        "context": plan.context.n_ctx,
        "kv_type": kv_type(plan.context.type_k),
        "n_gpu_layers": plan.n_gpu_layers,
        "full_offload": plan.full_offload,
        "devices": devices.iter().map(device).collect::<Vec<_>>(),
        // Empty if all layers are on one GPU.
        "tensor_split": plan.tensor_split,
        "overrides": plan.overrides.iter().map(|rule| override_tensor(rule, &gpus)).collect::<Vec<_>>(),
        "estimate": estimate,
        "probe": probe,
        "took_ms": {
            "header": milliseconds(took.header),
            "estimate": milliseconds(took.estimate),
            "probe": took.probe.map(milliseconds),
            "total": milliseconds(took.total),
        },
        "settings": settings(plan),
        "moe_cache": plan.moe_cache,
        "paging": plan.paging,
        "speed": plan.speed,
        "notes": plan.notes,
        "by_depth": by_depth(plan),
    });
    format!("{document:#}")
}

/// The settings of a plan, apart from the layers: all settings of the context, including those that a saved plan leaves
/// out.
fn settings(plan: &Plan) -> Value {
    let context = &plan.context;
    let mut settings = json!(context);
    settings["type_k"] = kv_type(context.type_k).into();
    settings["type_v"] = kv_type(context.type_v).into();
    settings["embeddings"] = json!(context.embeddings);
    settings["mtp"] = context.mtp.into();
    settings["n_rs_seq"] = context.n_rs_seq.into();
    settings["moe_cache_size"] = context.moe_cache_size.into();
    settings["split_blocks"] = plan.split_blocks.into();
    settings
}

/// The second placement of a plan that depends on the depth, and a description of both; `None` if the plan has only one
/// placement.
fn by_depth(plan: &Plan) -> Option<Value> {
    let by_depth = plan.by_depth.as_deref()?;
    let mut document = json!(by_depth);
    document["moving_measured"] = json!(by_depth.moving_measured);
    document["in_words"] = json!(plan.by_depth_in_words());
    Some(document)
}

fn device(placement: &Placement) -> Value {
    json!({
        "name": placement.name,
        "kind": placement.kind,
        "total": placement.total,
        "free": placement.free,
        "layers": placement.layers,
        "weights": placement.footprint.weights,
        "kv": placement.footprint.kv,
        "compute": placement.footprint.compute,
        "experts": placement.footprint.experts,
        "of_host": placement.of_host,
        "headroom": placement.headroom.total(),
    })
}

fn bytes((placement, bytes): (&Placement, &Footprint)) -> Value {
    let Footprint { weights, kv, compute, experts, .. } = *bytes;
    json!({"name": placement.name, "weights": weights, "kv": kv, "compute": compute, "experts": experts})
}

/// An entry for llama.cpp's `--override-tensor`: `PATTERN=BUFFER TYPE`. `devices` are the names that ggml gives to the
/// GPUs.
pub(crate) fn override_tensor(rule: &TensorOverride, devices: &[&str]) -> String {
    let buffer_type = match rule.place {
        Place::Host => "CPU",
        Place::Gpu(gpu) => devices.get(gpu).copied().unwrap_or_default(),
    };
    format!("{}={buffer_type}", rule.pattern)
}

/// Milliseconds, with three decimals.
fn milliseconds(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1e6).round() / 1e3
}
