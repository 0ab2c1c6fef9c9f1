//! `KoboldCpp`: the flags of its koboldcpp.py.

use autoplace::memory::backend::Family;
use autoplace::memory::{FlashAttention, KvType};
use autoplace::plan::Plan;

use super::{Command, applying, cannot, devices, mapped, n_ubatch, override_tensor};

/// What `--contextsize` takes.
const CONTEXT: std::ops::RangeInclusive<u32> = 256..=262_144;

/// What `--batchsize` takes.
const BATCHES: [u32; 9] = [16, 32, 64, 128, 256, 512, 1024, 2048, 4096];

/// The GPUs that `--usecuda` takes one of.
const CUDA_IDS: u32 = 4;

pub(super) fn emit(plan: &Plan, path: &str) -> Result<String, String> {
    let context = &plan.context;
    let mut command = Command::new("koboldcpp");
    command.flag("--model", path);
    gpus(plan, &mut command)?;
    command.flag("--gpulayers", plan.n_gpu_layers);
    if !plan.tensor_split.is_empty() {
        command.switch("--tensor_split");
        command.words.extend(plan.tensor_split.iter().map(f32::to_string));
    }
    command.flags([("--overridetensors", override_tensor(plan)?)]);
    if !CONTEXT.contains(&context.n_ctx) {
        return cannot(format_args!("a context of {} tokens: it takes 256 to 262144", context.n_ctx));
    }
    command.flag("--contextsize", context.n_ctx);
    let asked = n_ubatch(plan);
    let Some(batch) = BATCHES.into_iter().rev().find(|&size| size <= asked) else {
        return cannot(format_args!("a batch of {asked} tokens: 16 are its fewest"));
    };
    command.flag("--batchsize", batch);
    if batch != asked {
        command.note(format!("KoboldCpp takes batches of powers of two: {batch} and not {asked} tokens"));
    }
    match (context.type_k, context.type_v) {
        (KvType::F16, KvType::F16) => {}
        (KvType::Q8_0, KvType::Q8_0) => command.flag("--quantkv", 1),
        (KvType::Q4_0, KvType::Q4_0) => command.flag("--quantkv", 2),
        (keys, values) => {
            return cannot(format_args!("keys of {keys} and values of {values}: it takes f16, q8_0 or q4_0 for both"));
        }
    }
    if context.flash_attn == FlashAttention::Auto {
        command.note("KoboldCpp has no `auto` for flash attention: leave it out where a device cannot");
    }
    command.switches(&[
        (context.flash_attn != FlashAttention::Off, "--flashattention"),
        (!context.offload_kqv, "--lowvram"),
        (plan.model.sliding_window && !context.swa_full, "--useswa"),
        (mapped(plan), "--usemmap"),
    ]);
    let untold = [
        (context.n_seq_max > 1, "several sequences: all of the context is one's"),
        (
            context.n_outputs_max != 0,
            "to make room for the logits of few tokens only: it takes more for those of a whole batch",
        ),
        (!context.op_offload, "to keep large batches off the GPU (op_offload)"),
        (!context.repack, "not to rearrange weights for the CPU (repack)"),
    ];
    command.notes.extend(applying(&untold).map(|what| format!("KoboldCpp cannot be told {what}")));
    command.finish(plan)
}

/// Which backend, and which of its GPUs.
fn gpus(plan: &Plan, command: &mut Command) -> Result<(), String> {
    let mut families = plan.gpus().map(|gpu| Family::of(&gpu.backend));
    let Some(family) = families.next() else {
        command.switch("--usecpu");
        return Ok(());
    };
    if families.any(|other| other != family) {
        return cannot("to use GPUs of several backends");
    }
    let number = |device: &str| device.trim_start_matches(|c: char| !c.is_ascii_digit()).parse().ok();
    let ids = devices(plan).and_then(|devices| devices.into_iter().map(number).collect::<Option<Vec<u32>>>());
    let ids = ids.unwrap_or_default();
    if ids.is_empty() {
        command
            .note("the plan's GPUs are not here: where there are others too, say which with --usecuda or --usevulkan");
    }
    let words: Vec<String> = ids.iter().map(u32::to_string).collect();
    match family {
        Family::Cuda => {
            command.switch("--usecuda");
            match ids[..] {
                [] => {}
                [id] if id < CUDA_IDS => command.words.extend(words),
                _ => command.note(format!(
                    "--usecuda takes one of four GPUs, or all in their order: where those are not the plan's, set CUDA_VISIBLE_DEVICES={}",
                    words.join(",")
                )),
            }
        }
        Family::Vulkan => {
            command.switch("--usevulkan");
            command.words.extend(words);
        }
        // Its builds for macOS use Metal without being told.
        Family::Metal => {}
        _ => return cannot("to use GPUs of this backend"),
    }
    Ok(())
}
