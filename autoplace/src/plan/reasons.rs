//! Why a plan is as it is, in words.

use crate::machine::{Bytes, Machine, UnusedReason};
use crate::profile::{ModelProfile, Unmodelled, Weight};

use super::candidate::{Candidate, Choice};
use super::fit::Level;
use super::{Confidence, Context, GpuLayers, Request};

/// GPUs that are there and could not be planned for: a card that a build cannot drive is the commonest reason of a slow model.
pub(super) fn unused_gpus(machine: &Machine) -> impl Iterator<Item = String> {
    machine
        .unused_gpus
        .iter()
        // The same hardware under another name is no loss.
        .filter(|unused| !matches!(unused.reason, UnusedReason::SameAs { .. }))
        .map(ToString::to_string)
}

/// Why an estimate is no promise.
pub(super) fn unmodelled(reason: Unmodelled<'_>) -> String {
    match reason {
        Unmodelled::State(reason) => reason.to_owned(),
        Unmodelled::Graph { architecture, does } => format!("`{architecture}` {does}"),
        Unmodelled::Weights {
            first,
            count,
            bytes,
        } => format!(
            "the file holds {count} tensors ({}) of no known place, such as `{first}`",
            Bytes(bytes)
        ),
    }
}

/// The notes of a plan: first what decided the number of layers, then what else there is to say.
pub(super) fn notes(
    profile: &ModelProfile,
    request: &Request,
    candidate: &Candidate<'_>,
    all: &[Candidate<'_>],
    choice: &Choice,
    confidence: Confidence,
) -> Vec<String> {
    let layers = profile.full_offload();
    let mut notes = vec![why(layers, request, candidate, all, choice)];
    if let GpuLayers::Exactly(asked) = request.gpu_layers
        && asked > layers
    {
        notes.push(format!(
            "{asked} layers were asked for, the model has {layers}"
        ));
    }
    let used = &candidate.room.gpus;
    if !used.is_empty() {
        let alone = all.iter().filter_map(|other| match other.room.gpus[..] {
            [gpu] => Some(gpu),
            _ => None,
        });
        let unused: Vec<&str> = alone
            .filter(|gpu| !used.iter().any(|used| std::ptr::eq(*used, *gpu)))
            .map(|gpu| gpu.name.as_str())
            .collect();
        if !unused.is_empty() {
            notes.push(format!(
                "not used, as it would take no more layers: {}",
                unused.join(", ")
            ));
        }
    }
    let n_ctx = candidate.params.n_ctx;
    let trained = profile.hparams.n_ctx_train;
    if trained > 0 && n_ctx > trained {
        notes.push(format!(
            "{n_ctx} tokens of context, but the model was trained on {trained}"
        ));
    }
    if request.context == Context::Default && n_ctx < trained {
        notes.push(format!(
            "{n_ctx} tokens of context, the default; the model was trained on {trained}"
        ));
    }
    let skipped = &profile.weights.skipped;
    if !skipped.is_empty() {
        notes.push(format!(
            "{} of the file are for predicting further tokens and are not loaded",
            Bytes(Weight::sum(skipped))
        ));
    }
    if confidence == Confidence::Modelled {
        notes.push(format!(
            "compute is an estimate for `{}`; as much again is kept free on top",
            profile.architecture
        ));
    }
    notes
}

/// What decided the number of layers.
fn why(
    layers: u32,
    request: &Request,
    candidate: &Candidate<'_>,
    all: &[Candidate<'_>],
    choice: &Choice,
) -> String {
    let n = choice.n_gpu_layers;
    if !candidate.room.gpus.is_empty() {
        let gpus = candidate.names();
        let spare = |level: &Level| level.budget.saturating_sub(level.needed);
        let left = choice.levels.gpus.iter().map(spare).min().unwrap_or(0);
        let left = match candidate.room.gpus.len() {
            1 => format!("{} to spare", Bytes(left)),
            _ => format!("at least {} to spare on each", Bytes(left)),
        };
        if n == layers {
            return format!("all {layers} layers on {gpus}, {left}");
        }
        let Some(above) = &choice.above else {
            return match request.gpu_layers {
                GpuLayers::Exactly(_) => format!("{n} of {layers} layers, as asked for; {left}"),
                GpuLayers::Auto => {
                    format!("{n} of {layers} layers: llama.cpp refuses one more; {left}")
                }
            };
        };
        let missing: Vec<String> = candidate
            .room
            .shortfalls(above)
            .into_iter()
            .filter(|shortfall| shortfall.missing > 0)
            .map(|shortfall| format!("{} more on {}", Bytes(shortfall.missing), shortfall.device))
            .collect();
        return format!(
            "{n} of {layers} layers: layer {} needs {}",
            n + 1,
            missing.join(" and ")
        );
    }
    if let GpuLayers::Exactly(_) = request.gpu_layers {
        return "no layer on a GPU, as asked for".to_owned();
    }
    let nearest = all
        .iter()
        .filter_map(|candidate| {
            let [gpu] = candidate.room.gpus[..] else {
                return None;
            };
            let levels = candidate.estimated(1);
            Some((gpu, levels.gpus.first()?.missing(), levels))
        })
        .min_by_key(|(_, _, levels)| levels.missing());
    match nearest {
        Some((gpu, missing @ 1.., _)) => format!(
            "no layer on a GPU: the output layer alone needs {} more on {}",
            Bytes(missing),
            gpu.name
        ),
        // It would fit there, but with a GPU the host needs more than there is.
        Some((gpu, _, levels)) => format!(
            "no layer on a GPU: beside {} the host lacks {}",
            gpu.name,
            Bytes(levels.host.missing())
        ),
        None => "no layer on a GPU: there is no usable one".to_owned(),
    }
}
