//! Chooses the next placement after a failed one.

use autoplace::plan::{Context, GpuLayers, Plan, Request};

use super::{Aspect, Trial};

/// The smallest number of tokens to which a context is halved.
const MIN_CONTEXT: u32 = 512;

/// The next request. The error has the reasons why there is no smaller request, and advice for the user. Each item is a
/// sentence. `shortfall` is the number of bytes by which a GPU missed its margin.
pub(super) fn next(request: &Request, plan: &Plan, trial: &Trial, shortfall: u64) -> Result<Request, Vec<String>> {
    let failed: Vec<Aspect> = trial.failed().collect();
    let beyond_placement: Vec<String> = failed.iter().filter_map(|&aspect| remedy(aspect)).map(str::to_owned).collect();
    if !beyond_placement.is_empty() {
        return Err(beyond_placement);
    }
    if failed.iter().any(|aspect| matches!(aspect, Aspect::Swap | Aspect::HostMemory | Aspect::MemoryPressure)) {
        return smaller_context(request, plan);
    }
    let fewer = plan.n_gpu_layers.saturating_sub(layers_to_remove(plan, &failed, shortfall));
    if fewer == plan.n_gpu_layers {
        let why = "no layer is on a GPU: a smaller placement would be no steadier, and something else slows the runs";
        return Err(vec![why.to_owned()]);
    }
    Ok(request.clone().n_gpu_layers(GpuLayers::AtMost(fewer)))
}

/// Advice for an aspect that no placement improves.
fn remedy(aspect: Aspect) -> Option<&'static str> {
    match aspect {
        Aspect::Processor => Some(
            "no placement helps against programs that keep the processor busy: end them, or measure again when they have ended",
        ),
        Aspect::Quota => Some(
            "no placement helps against a CPU quota: raise it, or use no more threads than it has whole cores (--threads)",
        ),
        Aspect::Heat => Some("no placement helps against a processor that is too hot: cool it better"),
        _ => None,
    }
}

/// Halves the context. This frees memory on the host, or frees memory on GPUs, to which layers of the host can move.
fn smaller_context(request: &Request, plan: &Plan) -> Result<Request, Vec<String>> {
    let half = plan.context.n_ctx / 2;
    if plan.full_offload {
        return Err(vec!["the whole model is on GPUs: the model is not what takes the host's memory".to_owned()]);
    }
    if half < MIN_CONTEXT {
        return Err(vec![format!(
            "a context of {} tokens is too short to halve: the host has too little memory for this model",
            plan.context.n_ctx
        )]);
    }
    Ok(request.clone().context(Context::Tokens(half)))
}

/// The number of layers to remove. If only bytes are missing, these are the layers that free the missing bytes;
/// otherwise an eighth of the layers.
fn layers_to_remove(plan: &Plan, failed: &[Aspect], shortfall: u64) -> u32 {
    let eighth = (plan.n_gpu_layers / 8).max(1).min(plan.n_gpu_layers);
    if failed != [Aspect::Headroom] {
        return eighth;
    }
    let per_layer = plan.gpus().map(|gpu| gpu.footprint.total() / u64::from(gpu.layers.max(1))).min();
    let layers = shortfall.div_ceil(per_layer.unwrap_or_default().max(1));
    u32::try_from(layers).unwrap_or(u32::MAX).clamp(eighth.min(1), plan.n_gpu_layers)
}
