//! The notes of a plan, apart from the reason for its placement.

use crate::machine::{Bytes, GpuKind, Machine};
use crate::memory::{ContextParams, KvType, OverrideRules, TensorOverride, full_windows};
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

/// Notes for a request that the plan follows only in part. `params` are the plan's parameters.
pub(super) fn changed(profile: &ModelProfile, request: &Request, params: &ContextParams) -> Vec<String> {
    let mut notes = Vec::new();
    let layers = profile.full_offload();
    match request.gpu_layers {
        GpuLayers::Exactly(asked) | GpuLayers::AtMost(asked) if asked > layers => {
            notes.push(format!("{asked} layers were requested, but the model has {layers}"));
        }
        _ => {}
    }
    notes.extend(unmatched(profile, &request.overrides));
    notes.extend(if request.embeds() { whole_texts(request, params) } else { fewer_at_once(params) });
    let drafts = request.drafts(profile);
    if params.n_rs_seq > 0 && params.n_rs_seq < drafts {
        let most = params.n_rs_seq;
        notes.push(format!(
            "up to {most} draft tokens at once instead of {drafts}: the model's state can go back no further"
        ));
    }
    notes
}

/// A note for each override that matches no loaded weight.
fn unmatched(profile: &ModelProfile, overrides: &[TensorOverride]) -> impl Iterator<Item = String> {
    const MOST: usize = 60;
    let weights = &profile.weights;
    let matches = |rules: OverrideRules| {
        let others = [&weights.input, &weights.output, &weights.rope, &weights.unplaced];
        let mut all = weights.blocks.iter().chain(others).flatten();
        all.any(|weight| rules.place(&weight.name).is_some())
    };
    let is_idle = move |rule: &&TensorOverride| {
        OverrideRules::new(std::slice::from_ref(*rule), usize::MAX).is_ok_and(|rules| !matches(rules))
    };
    overrides.iter().filter(is_idle).map(|TensorOverride { pattern, .. }| {
        let begin: String = pattern.chars().take(MOST).collect();
        let rest = if begin.len() < pattern.len() { "..." } else { "" };
        format!("the override `{begin}{rest}` matches no weight of the model")
    })
}

/// Notes on a batch or a ubatch that a smaller number limits (llama-context.cpp, the constructor).
fn fewer_at_once(params: &ContextParams) -> Vec<String> {
    let ContextParams { n_ctx, n_batch, n_ubatch, .. } = *params;
    let usual = ContextParams::default();
    let mut notes = Vec::new();
    if n_ubatch > n_batch && n_batch <= n_ctx {
        notes.push(format!("{n_batch} tokens are computed at once (n_batch) instead of {n_ubatch} (n_ubatch)"));
    } else if n_ubatch > n_ctx && n_ubatch != usual.n_ubatch {
        notes.push(format!("{n_ctx} tokens are computed at once, the context, instead of {n_ubatch} (n_ubatch)"));
    }
    // A batch that grew with the ubatch needs no note of its own.
    if n_batch > n_ctx && ![usual.n_batch, n_ubatch].contains(&n_batch) {
        notes.push(format!("a batch has {n_ctx} tokens, the context, instead of {n_batch} (n_batch)"));
    }
    notes
}

/// Notes on the batch and the ubatch of a context for embeddings, which computes whole texts.
fn whole_texts(request: &Request, params: &ContextParams) -> Vec<String> {
    let (asked, usual, n_ctx) = (&request.params, ContextParams::default(), params.n_ctx);
    let sizes = [("n_batch", asked.n_batch, usual.n_batch), ("n_ubatch", asked.n_ubatch, usual.n_ubatch)];
    let changed = sizes.into_iter().filter(|&(_, asked, usual)| asked != usual && asked != n_ctx);
    let words =
        changed.map(|(name, asked, _)| format!("{name} is {n_ctx} instead of {asked}: texts are computed whole"));
    words.collect()
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
