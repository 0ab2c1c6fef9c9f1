//! Why so many layers and not one more, in words.

use crate::machine::Bytes;
use crate::plan::fit::Level;
use crate::plan::{GpuLayers, Request};

use super::candidate::{Candidate, Choice};

/// The GPUs that were left out since they would take no more layers.
pub(super) fn unused(used: &Candidate<'_>, all: &[Candidate<'_>]) -> Option<String> {
    let gpus = &used.room.gpus;
    let alone = all.iter().filter_map(|other| match other.room.gpus[..] {
        [gpu] => Some(gpu),
        _ => None,
    });
    let unused: Vec<&str> = alone
        .filter(|gpu| !gpus.iter().any(|used| std::ptr::eq(*used, *gpu)))
        .map(|gpu| gpu.name.as_str())
        .collect();
    (!gpus.is_empty() && !unused.is_empty()).then(|| {
        let unused = unused.join(", ");
        format!("not used, as it would take no more layers: {unused}")
    })
}

/// What decided the number of layers.
pub(super) fn why(
    layers: u32,
    request: &Request,
    candidate: &Candidate<'_>,
    all: &[Candidate<'_>],
    choice: &Choice,
) -> String {
    let n = choice.n_gpu_layers;
    if !candidate.room.gpus.is_empty() {
        let gpus = candidate.room.names();
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
