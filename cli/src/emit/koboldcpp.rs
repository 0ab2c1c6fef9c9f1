//! Translates a plan into flags of koboldcpp.py (`KoboldCpp`).

use autoplace::memory::backend::Family;
use autoplace::memory::{FlashAttention, KvType};
use autoplace::plan::Plan;

use super::{applying, cannot, comment, devices, mapped, n_ubatch, override_tensor, said};

/// The values that `--contextsize` accepts.
const CONTEXT: std::ops::RangeInclusive<u32> = 256..=262_144;

/// The values that `--batchsize` accepts.
const BATCHES: [u32; 9] = [16, 32, 64, 128, 256, 512, 1024, 2048, 4096];

/// `--usecuda` can only select one of the first four GPUs.
const CUDA_IDS: u32 = 4;

pub(super) fn emit(plan: &Plan, path: &str) -> Result<String, String> {
    let context = &plan.context;
    if !CONTEXT.contains(&context.n_ctx) {
        return cannot(format_args!("a context of {} tokens: it takes 256 to 262144", context.n_ctx));
    }
    let asked = n_ubatch(plan);
    let Some(batch) = BATCHES.into_iter().rev().find(|&size| size <= asked) else {
        return cannot(format_args!("a batch of {asked} tokens: its minimum is 16"));
    };
    let cache = match (context.type_k, context.type_v) {
        (KvType::F16, KvType::F16) => None,
        (KvType::Q8_0, KvType::Q8_0) => Some("1".to_owned()),
        (KvType::Q4_0, KvType::Q4_0) => Some("2".to_owned()),
        (keys, values) => {
            return cannot(format_args!("keys of {keys} and values of {values}: it takes f16, q8_0 or q4_0 for both"));
        }
    };
    let mut notes = Vec::new();
    let mut words = vec!["koboldcpp".to_owned(), "--model".to_owned(), path.to_owned()];
    words.extend(gpus(plan, &mut notes)?);
    words.extend(["--gpulayers".to_owned(), plan.n_gpu_layers.to_string()]);
    if !plan.tensor_split.is_empty() {
        words.push("--tensor_split".to_owned());
        words.extend(plan.tensor_split.iter().map(f32::to_string));
    }
    let flags = [
        ("--overridetensors", override_tensor(plan)?),
        ("--contextsize", said(true, context.n_ctx)),
        ("--batchsize", said(true, batch)),
        ("--quantkv", cache),
    ];
    words.extend(flags.into_iter().filter_map(|(flag, value)| Some([flag.to_owned(), value?])).flatten());
    let switches = [
        (context.flash_attn != FlashAttention::Off, "--flashattention"),
        (!context.offload_kqv, "--lowvram"),
        (plan.model.sliding_window && !context.swa_full, "--useswa"),
        (mapped(plan), "--usemmap"),
    ];
    words.extend(applying(&switches).map(str::to_owned));
    if batch != asked {
        notes.push(format!(
            "KoboldCpp accepts only powers of two as batch sizes: the batch has {batch} tokens instead of {asked}"
        ));
    }
    if context.flash_attn == FlashAttention::Auto {
        notes.push(
            "KoboldCpp has no `auto` for flash attention: leave the flag out if a device does not support it"
                .to_owned(),
        );
    }
    let lacking = [
        (context.n_seq_max > 1, "several sequences: one sequence gets the whole context"),
        (
            context.n_outputs_max != 0,
            "fewer logits than one per token of a batch: it allocates memory for all of them, which is more than was planned",
        ),
        (!context.op_offload, "keeping large batches off the GPU (op_offload off)"),
        (!context.repack, "leaving the CPU's weights in the file's layout (repack off)"),
    ];
    notes.extend(applying(&lacking).map(|what| format!("KoboldCpp has no setting for {what}")));
    // The words are quoted for a POSIX shell.
    match shlex::try_join(words.iter().map(String::as_str)) {
        Ok(line) => Ok(format!("{}{line}\n", comment("#", plan, &notes))),
        Err(_) => Err("cannot be given an argument that contains a NUL".to_owned()),
    }
}

/// The flags that select the backend and the GPUs.
fn gpus(plan: &Plan, notes: &mut Vec<String>) -> Result<Vec<String>, String> {
    let mut families = plan.gpus().map(|gpu| Family::from_backend(&gpu.backend));
    let Some(family) = families.next() else { return Ok(vec!["--usecpu".to_owned()]) };
    if families.any(|other| other != family) {
        return cannot("GPUs of several backends");
    }
    let number = |device: &str| device.trim_start_matches(|c: char| !c.is_ascii_digit()).parse().ok();
    let ids = devices(plan).and_then(|devices| devices.into_iter().map(number).collect::<Option<Vec<u32>>>());
    let ids = ids.unwrap_or_default();
    if ids.is_empty() {
        let which = "the plan's GPUs are not in this machine: if the other machine has further GPUs, choose with --usecuda or --usevulkan";
        notes.push(which.to_owned());
    }
    let words: Vec<String> = ids.iter().map(u32::to_string).collect();
    match family {
        Family::Cuda => {
            let mut said = vec!["--usecuda".to_owned()];
            match ids[..] {
                [] => {}
                [id] if id < CUDA_IDS => said.extend(words),
                _ => notes.push(format!(
                    "--usecuda selects one of the first four GPUs, or all GPUs in their order: to use only the plan's GPUs, set CUDA_VISIBLE_DEVICES={}",
                    words.join(",")
                )),
            }
            Ok(said)
        }
        Family::Vulkan => Ok(["--usevulkan".to_owned()].into_iter().chain(words).collect()),
        // A build for macOS uses Metal without any flag.
        Family::Metal => Ok(Vec::new()),
        _ => cannot("GPUs of this backend"),
    }
}
