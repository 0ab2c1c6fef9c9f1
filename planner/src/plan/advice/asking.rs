//! What may be asked differently: whole sliding windows, types of keys and values, tokens of context, tokens
//! computed at once.

use crate::memory::{CONTEXT_PADDING as STEP, KvType};

use super::trials::Trials;
use super::{Change, ChangeKind, Effect};

/// The types that keys and values may be made, the largest first.
const TYPES: [KvType; 2] = [KvType::Q8_0, KvType::Q4_0];

/// Longer contexts are looked for in steps four times as long: nobody asks for 40192 tokens.
const FINE: u32 = 8192;

/// Fewer tokens are hardly a prompt and its answer.
const LEAST_CONTEXT: u32 = 1024;

/// With fewer tokens at once GPUs no longer compute with weights that the host keeps (ggml-cuda.cu,
/// `ggml_backend_cuda_reg`; ggml-vulkan.cpp, `ggml_backend_vk_reg_get_device`), and prompts become slow.
const LEAST_UBATCH: u32 = 32;

pub(super) fn changes(trials: &Trials<'_>) -> Vec<Change> {
    let windows = trials
        .scene
        .params()
        .swa_full
        .then(|| trials.worthwhile(vec![ChangeKind::SwaFull(false)]));
    let types = smaller_types(trials);
    let kv = trials.least(types.len(), &|index| vec![ChangeKind::KvType(types[index])]);
    let fits = |change: &Option<Change>| {
        let change = change.as_ref();
        change.is_some_and(|change| change.effect == Effect::Fits)
    };
    let context = context(trials);
    let both = match types.first() {
        Some(&ty) if !fits(&kv) && !fits(&context) => together(trials, ty),
        _ => None,
    };
    [windows.flatten(), kv, context, ubatch(trials), both]
        .into_iter()
        .flatten()
        .collect()
}

/// Types that are smaller than those there are.
fn smaller_types(trials: &Trials<'_>) -> Vec<KvType> {
    let params = match trials.before {
        Some(plan) => &plan.context,
        None => trials.scene.params(),
    };
    let bytes = |ty: KvType| ty.tensor_type().row_bytes(256);
    let (keys, values) = (bytes(params.type_k), bytes(params.type_v));
    TYPES
        .into_iter()
        .filter(|&ty| bytes(ty) < keys.max(values) && bytes(ty) <= keys.min(values))
        .collect()
}

/// The longest context, shorter than what was asked for, with which everything fits; else half of what was asked for,
/// if that is worth it.
fn context(trials: &Trials<'_>) -> Option<Change> {
    let contexts = shorter(trials);
    let change = |index: usize| vec![ChangeKind::Context(contexts[index])];
    if trials.before.is_none() {
        return trials.least(contexts.len(), &change);
    }
    trials.first_that_fits(contexts.len(), &change).or_else(|| {
        let half = asked(trials) / 2 / STEP * STEP;
        (half >= LEAST_CONTEXT)
            .then(|| trials.worthwhile(vec![ChangeKind::Context(half)]))
            .flatten()
    })
}

/// The longest context with which everything fits if keys and values are of this type too.
fn together(trials: &Trials<'_>, ty: KvType) -> Option<Change> {
    let contexts = shorter(trials);
    let change = |index: usize| vec![ChangeKind::KvType(ty), ChangeKind::Context(contexts[index])];
    trials.first_that_fits(contexts.len(), &change)
}

fn asked(trials: &Trials<'_>) -> u32 {
    let scene = &trials.scene;
    scene.request.context.tokens(&scene.profile)
}

/// Contexts that are shorter than what was asked for, the longest first.
fn shorter(trials: &Trials<'_>) -> Vec<u32> {
    let asked = asked(trials);
    let step = if asked > FINE { STEP * 4 } else { STEP };
    let steps = (LEAST_CONTEXT / step..asked.div_ceil(step)).rev();
    steps.map(|n| n * step).collect()
}

/// Half as many tokens at once as often as it takes.
fn ubatch(trials: &Trials<'_>) -> Option<Change> {
    let now = match trials.before {
        Some(plan) => plan.context.n_ubatch,
        None => trials.scene.params().n_ubatch,
    };
    let halves = std::iter::successors(Some(now / 2), |&n| Some(n / 2));
    let halves: Vec<u32> = halves.take_while(|&n| n >= LEAST_UBATCH).collect();
    trials.least(halves.len(), &|index| {
        vec![ChangeKind::Ubatch(halves[index])]
    })
}
