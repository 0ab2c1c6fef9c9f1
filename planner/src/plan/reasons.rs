//! The notes of a plan, apart from the reason for its placement.

use crate::machine::{Bytes, GpuKind, Machine};
use crate::memory::{ContextParams, KvType, full_windows};
use crate::profile::{ModelProfile, Weight};

use super::fit::Chosen;
use super::{Confidence, Context, GpuLayers, Placement, Request};

/// The number and its noun: `3 layers`, `1 layer`.
pub(super) fn counted(n: u32, what: &str) -> String {
    let plural = if n == 1 { "" } else { "s" };
    format!("{n} {what}{plural}")
}

/// Notes on the weights that each load sends to other machines, with the time of the transfer.
pub(super) fn carried(machine: &Machine, placements: &[Placement]) -> impl Iterator<Item = String> {
    machine.gpus.iter().filter(|gpu| gpu.kind == GpuKind::Remote && gpu.device.is_some()).filter_map(|gpu| {
        let placement = placements.iter().find(|placement| placement.device == gpu.device)?;
        let (weights, link) = (placement.footprint.weights, gpu.rates.as_ref()?.link?);
        let (seconds, trip) = (weights.div_ceil(link.upload.max(1)), link.crossing_ns as f64 * 1e-6);
        let (weights, upload) = (Bytes(weights), Bytes(link.upload));
        let to = &gpu.name;
        Some(format!(
            "each load sends {weights} to {to} at {upload}/s, in about {seconds} s; each crossing of the link takes {trip:.2} ms"
        ))
    })
}

/// A note for a request that the plan follows only in part.
pub(super) fn changed(profile: &ModelProfile, request: &Request) -> Option<String> {
    let layers = profile.full_offload();
    match request.gpu_layers {
        GpuLayers::Exactly(asked) | GpuLayers::AtMost(asked) if asked > layers => {
            Some(format!("{asked} layers were requested, but the model has {layers}"))
        }
        _ => None,
    }
}

/// A note on another placement that generates `faster` times as fast at `depth` tokens.
pub(super) fn another_is_faster(depth: u32, other: &Chosen<'_>, layers: u32, faster: f64) -> String {
    let n = other.split.n_gpu_layers;
    let parts = match other.split_blocks {
        0 => String::new(),
        blocks => format!(" with parts of {} on the host", counted(blocks, "block")),
    };
    format!(
        "after {depth} tokens {n} of {layers} layers on GPUs{parts} would generate {faster:.1} times as fast: for such texts plan for \
         that depth"
    )
}

/// The gain of a smaller cache type than `given`: layers on GPUs and speed, compared with `wider`, the best placement
/// for the `given` type. If there is no such placement, no gain is stated.
pub(super) fn smaller_cache(chosen: &Chosen<'_>, given: KvType, wider: Option<(&Chosen<'_>, f64)>) -> String {
    let ty = chosen.params.type_k;
    let mut bought = Vec::new();
    match wider {
        None => bought.push(format!("with {given} there is no room for the plan")),
        Some((wider, speedup)) => {
            let layers = chosen.split.n_gpu_layers.saturating_sub(wider.split.n_gpu_layers);
            if layers > 0 {
                bought.push(format!("{} more on GPUs", counted(layers, "layer")));
            }
            let (now, then) = (chosen.split_blocks, wider.split_blocks);
            if layers == 0 && now < then {
                bought.push(format!("parts of {} on the host instead of {then}", counted(now, "block")));
            }
            if chosen.room.gpus.len() < wider.room.gpus.len() {
                bought
                    .push(format!("{} less", counted((wider.room.gpus.len() - chosen.room.gpus.len()) as u32, "GPU")));
            }
            bought.push(format!("{speedup:.2} times as fast as with {given}"));
        }
    }
    let cost = match ty.perplexity_cost() {
        Some(share) => format!("costs about {:.2} % of perplexity, as published (docs/kv-cache.md)", share * 100.0),
        None => "the cost in perplexity has not been published".to_owned(),
    };
    format!("cache in {ty}: {}; {cost}", bought.join(", "))
}

/// Notes on the model and on the accuracy of the numbers.
pub(super) fn notes(
    profile: &ModelProfile,
    request: &Request,
    params: &ContextParams,
    confidence: Confidence,
) -> Vec<String> {
    let mut notes = Vec::new();
    let n_ctx = params.n_ctx;
    let trained = profile.hparams.n_ctx_train;
    let each = params.n_ctx_seq();
    if trained > 0 && each > trained {
        notes.push(format!("{each} tokens of context, but the model was trained on {trained}"));
    }
    let why = match request.asked_context() {
        Ok(Context::Default) => (n_ctx < trained).then_some("the default"),
        Ok(_) if request.may_grow() => (n_ctx <= trained).then_some("the most that moves no layer to the host"),
        _ => None,
    };
    notes.extend(why.map(|why| format!("{n_ctx} tokens of context, {why}; the model was trained on {trained}")));
    if let (sequences @ 2.., None) = (params.n_seq_max, params.embeddings) {
        notes.push(match params.kv_unified {
            true => format!("{sequences} sequences, which share {each} tokens"),
            false => format!("{sequences} sequences of {each} tokens"),
        });
    }
    if params.swa_full
        && let bytes @ 1.. = full_windows(profile, params)
    {
        let more = Bytes(bytes);
        notes.push(format!("swa_full: layers with a sliding window keep all {n_ctx} tokens, which takes {more} more"));
    }
    if params.embeddings.is_some() {
        let texts = params.n_seq_max;
        notes.push(format!("for embeddings: texts of up to {n_ctx} tokens, or up to {texts} shorter texts at once"));
    }
    let skipped = &profile.weights.skipped;
    if !skipped.is_empty() {
        notes.push(format!(
            "{} of the file are for predicting further tokens and are not loaded",
            Bytes(Weight::sum(skipped))
        ));
    }
    if params.mtp {
        let drafts = request.drafts(profile);
        notes.push(format!(
            "with the block that predicts further tokens, and a context for it: up to {drafts} at once for each sequence"
        ));
    }
    let adapters = &profile.adapters;
    if !adapters.lora.is_empty() {
        let (names, bytes) = (adapters.lora.join(", "), Bytes(adapters.bytes()));
        notes.push(format!("adapters: {names}, with {bytes} beside the weights that they change"));
    }
    if adapters.control_vector {
        let (blocks, direction) = profile.control_vector();
        let bytes = Bytes((blocks.len() as u64).saturating_mul(direction.bytes));
        notes.push(format!("with a control vector beside the layers: {bytes}"));
    }
    if confidence == Confidence::Modelled {
        notes.push(format!(
            "the compute buffers are an estimate for the architecture `{}`; the same amount is kept free in addition",
            profile.architecture
        ));
    }
    notes
}
