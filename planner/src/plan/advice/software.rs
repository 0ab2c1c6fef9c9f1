//! What costs no hardware and no other file: asking for less, closing programs that hold a GPU's memory.

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

/// Whole sliding windows, types of keys and values, tokens of context, tokens computed at once.
pub(super) fn asking(trials: &Trials<'_>) -> Vec<Change> {
    let windows = trials.planner.request.params.swa_full.then(|| trials.worthwhile(&[ChangeKind::SwaFull(false)]));
    let types = smaller_types(trials);
    // Keys of four bits cost more of what the model answers than a few tokens per second are worth.
    let too_dear = |kv: &Change| kv.effect == Effect::More && kv.kinds == [ChangeKind::KvType(KvType::Q4_0)];
    let kv = trials.least(&each(&types, ChangeKind::KvType)).filter(|kv| !too_dear(kv));
    let context = context(trials);
    let fits = |change: &Change| change.effect == Effect::Fits;
    let both = match types.first() {
        Some(&ty) if !kv.iter().chain(&context).any(fits) => together(trials, ty),
        _ => None,
    };
    [windows.flatten(), kv, context, ubatch(trials), both].into_iter().flatten().collect()
}

/// A change to each of these.
fn each<T: Copy>(all: &[T], change: impl Fn(T) -> ChangeKind) -> Vec<Vec<ChangeKind>> {
    all.iter().map(|&one| vec![change(one)]).collect()
}

/// Types that are smaller than those there are.
fn smaller_types(trials: &Trials<'_>) -> Vec<KvType> {
    let params = trials.params();
    let bytes = |ty: KvType| ty.tensor_type().row_bytes(256);
    let (keys, values) = (bytes(params.type_k), bytes(params.type_v));
    TYPES.into_iter().filter(|&ty| bytes(ty) < keys.max(values) && bytes(ty) <= keys.min(values)).collect()
}

/// The longest context, shorter than what was asked for, with which everything fits; else half of what was asked for,
/// if that is worth it.
fn context(trials: &Trials<'_>) -> Option<Change> {
    let contexts = each(&shorter(trials), ChangeKind::Context);
    if trials.before.is_none() {
        return trials.least(&contexts);
    }
    trials.first_that_fits(&contexts).or_else(|| {
        let half = asked(trials) / 2 / STEP * STEP;
        (half >= LEAST_CONTEXT).then(|| trials.worthwhile(&[ChangeKind::Context(half)])).flatten()
    })
}

/// The longest context with which everything fits if keys and values are of this type too.
fn together(trials: &Trials<'_>, ty: KvType) -> Option<Change> {
    let contexts = shorter(trials).into_iter();
    let both = contexts.map(|tokens| vec![ChangeKind::KvType(ty), ChangeKind::Context(tokens)]);
    trials.first_that_fits(&both.collect::<Vec<_>>())
}

fn asked(trials: &Trials<'_>) -> u32 {
    trials.planner.request.tokens(&trials.planner.profile)
}

/// Contexts that are shorter than what was asked for, the longest first.
fn shorter(trials: &Trials<'_>) -> Vec<u32> {
    let asked = asked(trials);
    let step = if asked > FINE { STEP * 4 } else { STEP };
    (LEAST_CONTEXT / step..asked.div_ceil(step)).rev().map(|n| n * step).collect()
}

/// Half as many tokens at once as often as it takes.
fn ubatch(trials: &Trials<'_>) -> Option<Change> {
    let halves = std::iter::successors(Some(trials.params().n_ubatch / 2), |&n| Some(n / 2));
    let halves: Vec<u32> = halves.take_while(|&n| n >= LEAST_UBATCH).collect();
    trials.least(&each(&halves, ChangeKind::Ubatch))
}

/// So many of the largest are thought of: what holds less than the eighth is a desktop's window.
const MOST_PROGRAMS: usize = 8;

/// Closing the smallest program that is enough, else the largest, else all.
pub(super) fn closing(trials: &Trials<'_>) -> Vec<Change> {
    let mut programs = programs(trials);
    programs.truncate(MOST_PROGRAMS);
    let all: Vec<ChangeKind> = programs.iter().flatten().cloned().collect();
    let Some(largest) = programs.first() else {
        return Vec::new();
    };
    // The smallest that is enough, the largest if it does as much as all together, else those.
    let mut alone = programs.iter().rev();
    let enough = alone.find_map(|program| trials.first_that_fits(std::slice::from_ref(program)));
    let change = enough.or_else(|| {
        let together = trials.worthwhile(&all)?;
        let largest = trials.worthwhile(largest).filter(|largest| largest.effect == together.effect);
        Some(largest.unwrap_or(together))
    });
    change.into_iter().collect()
}

/// What closing each program frees, one change per GPU of which it holds memory: the largest holder first.
fn programs(trials: &Trials<'_>) -> Vec<Vec<ChangeKind>> {
    let mut programs: Vec<(u32, u64, Vec<ChangeKind>)> = Vec::new();
    for (index, gpu) in trials.planner.machine.gpus.iter().enumerate() {
        for process in gpu.processes.iter().flatten() {
            let Some(bytes) = process.bytes.filter(|&bytes| bytes > 0) else {
                continue;
            };
            let close = ChangeKind::CloseProcess {
                name: process.name.clone(),
                pid: process.pid,
                gpu: index,
                gpu_name: gpu.name.clone(),
                bytes,
            };
            match programs.iter_mut().find(|(pid, ..)| *pid == process.pid) {
                Some((_, sum, changes)) => {
                    *sum = sum.saturating_add(bytes);
                    changes.push(close);
                }
                None => programs.push((process.pid, bytes, vec![close])),
            }
        }
    }
    programs.sort_by_key(|&(pid, bytes, _)| (std::cmp::Reverse(bytes), pid));
    programs.into_iter().map(|(_, _, changes)| changes).collect()
}
