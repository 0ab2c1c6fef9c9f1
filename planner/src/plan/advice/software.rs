//! Advice that requires neither hardware nor another file: smaller requests, and programs to close.

use crate::memory::{CONTEXT_PADDING as STEP, KvType};

use super::trials::Trials;
use super::{Change, ChangeKind, Effect};

/// The smaller types to try for keys and values, the largest first.
const TYPES: [KvType; 2] = [KvType::Q8_0, KvType::Q4_0];

/// Up to this many tokens, candidate contexts are one step apart; above this number they are four steps apart, because
/// nobody requests 40192 tokens.
const FINE_STEPS_UP_TO: u32 = 8192;

/// A shorter context hardly has room for a prompt and its answer.
const MIN_CONTEXT: u32 = 1024;

/// With a smaller ubatch, GPUs no longer compute with the host's weights (ggml-cuda.cu, `ggml_backend_cuda_reg`;
/// ggml-vulkan.cpp, `ggml_backend_vk_reg_get_device`), and prompts become slow.
const MIN_UBATCH: u32 = 32;

/// Advice to request less: sliding windows, smaller cache types, a shorter context, a smaller ubatch.
pub(super) fn asking(trials: &Trials<'_>) -> Vec<Change> {
    let windows = trials.planner.request.params.swa_full.then(|| trials.worthwhile(&[ChangeKind::SwaFull(false)]));
    let types = smaller_types(trials);
    // A few more tokens per second are not worth the loss of quality that keys of four bits cause.
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

/// One change for each value.
fn each<T: Copy>(all: &[T], change: impl Fn(T) -> ChangeKind) -> Vec<Vec<ChangeKind>> {
    all.iter().map(|&one| vec![change(one)]).collect()
}

/// Types smaller than the plan's.
fn smaller_types(trials: &Trials<'_>) -> Vec<KvType> {
    let params = trials.params();
    let bytes = |ty: KvType| ty.tensor_type().row_bytes(256);
    let (keys, values) = (bytes(params.type_k), bytes(params.type_v));
    TYPES.into_iter().filter(|&ty| bytes(ty) < keys.max(values) && bytes(ty) <= keys.min(values)).collect()
}

/// The longest context, shorter than the requested one, with which everything fits. If there is none, half of the
/// requested context, provided that halving is worthwhile.
fn context(trials: &Trials<'_>) -> Option<Change> {
    let contexts = each(&shorter(trials), ChangeKind::Context);
    if trials.before.is_none() {
        return trials.least(&contexts);
    }
    trials.first_that_fits(&contexts).or_else(|| {
        let half = asked(trials) / 2 / STEP * STEP;
        (half >= MIN_CONTEXT).then(|| trials.worthwhile(&[ChangeKind::Context(half)])).flatten()
    })
}

/// The longest context with which everything fits if, in addition, keys and values have this type.
fn together(trials: &Trials<'_>, ty: KvType) -> Option<Change> {
    let contexts = shorter(trials).into_iter();
    let both = contexts.map(|tokens| vec![ChangeKind::KvType(ty), ChangeKind::Context(tokens)]);
    trials.first_that_fits(&both.collect::<Vec<_>>())
}

fn asked(trials: &Trials<'_>) -> u32 {
    trials.planner.request.tokens(&trials.planner.profile)
}

/// Contexts that are shorter than the requested context, the longest first.
fn shorter(trials: &Trials<'_>) -> Vec<u32> {
    let asked = asked(trials);
    let step = if asked > FINE_STEPS_UP_TO { STEP * 4 } else { STEP };
    (MIN_CONTEXT / step..asked.div_ceil(step)).rev().map(|n| n * step).collect()
}

/// The largest ubatch that helps. The candidates are a half of the current ubatch, a quarter, and so on.
fn ubatch(trials: &Trials<'_>) -> Option<Change> {
    let halves = std::iter::successors(Some(trials.params().n_ubatch / 2), |&n| Some(n / 2));
    let halves: Vec<u32> = halves.take_while(|&n| n >= MIN_UBATCH).collect();
    trials.least(&each(&halves, ChangeKind::Ubatch))
}

/// Only the programs that use the most memory are considered. The ninth program uses no more memory than a window of a
/// desktop program.
const MAX_PROGRAMS: usize = 8;

/// Advice to close programs.
pub(super) fn closing(trials: &Trials<'_>) -> Vec<Change> {
    let mut programs = programs(trials);
    programs.truncate(MAX_PROGRAMS);
    let all: Vec<ChangeKind> = programs.iter().flatten().cloned().collect();
    let Some(largest) = programs.first() else {
        return Vec::new();
    };
    // The first choice is the smallest program that is enough, then the largest program if closing it gains as much as
    // closing all, and then all programs together.
    let mut alone = programs.iter().rev();
    let enough = alone.find_map(|program| trials.first_that_fits(std::slice::from_ref(program)));
    let change = enough.or_else(|| {
        let together = trials.worthwhile(&all)?;
        let largest = trials.worthwhile(largest).filter(|largest| largest.effect == together.effect);
        Some(largest.unwrap_or(together))
    });
    change.into_iter().collect()
}

/// For each program, the changes that close it: one change for each GPU on which the program uses memory. The program
/// with the most memory comes first.
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
