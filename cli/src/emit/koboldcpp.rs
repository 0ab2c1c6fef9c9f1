//! `KoboldCpp`: the flags of its koboldcpp.py.

use autoplace::memory::backend::Family;
use autoplace::memory::{FlashAttention, KvType};
use autoplace::plan::Plan;

use super::command::Command;
use super::{EmitError, Tool, devices, mapped, model_path, n_ubatch, override_tensor};

const TOOL: Tool = Tool::KoboldCpp;

/// What `--contextsize` takes.
const CONTEXT: std::ops::RangeInclusive<u32> = 256..=262_144;

/// What `--batchsize` takes.
const BATCHES: [u32; 9] = [16, 32, 64, 128, 256, 512, 1024, 2048, 4096];

/// The GPUs that `--usecuda` takes one of.
const CUDA_IDS: u32 = 4;

pub(super) fn emit(plan: &Plan) -> Result<String, EmitError> {
    let context = &plan.context;
    let cannot = |what: String| EmitError::Inexpressible { tool: TOOL, what };
    let mut command = Command::new(TOOL, "koboldcpp");
    command.flag("--model", model_path(plan, TOOL)?);
    gpus(plan, &mut command)?;
    command.flag("--gpulayers", plan.n_gpu_layers);
    if !plan.tensor_split.is_empty() {
        command.switch("--tensor_split");
        for proportion in &plan.tensor_split {
            command.switch(&proportion.to_string());
        }
    }
    if let Some(overrides) = override_tensor(plan, TOOL)? {
        command.flag("--overridetensors", overrides);
    }
    if !CONTEXT.contains(&context.n_ctx) {
        return Err(cannot(format!("a context of {} tokens: it takes 256 to 262144", context.n_ctx)));
    }
    command.flag("--contextsize", context.n_ctx);
    let batch = BATCHES.into_iter().rev().find(|&size| size <= n_ubatch(plan));
    let batch = batch.ok_or_else(|| cannot(format!("a batch of {} tokens: 16 are its fewest", n_ubatch(plan))))?;
    command.flag("--batchsize", batch);
    if batch != n_ubatch(plan) {
        command.note(format!("KoboldCpp takes batches of powers of two: {batch} and not {} tokens", n_ubatch(plan)));
    }
    match (context.type_k, context.type_v) {
        (KvType::F16, KvType::F16) => {}
        (KvType::Q8_0, KvType::Q8_0) => command.flag("--quantkv", 1),
        (KvType::Q4_0, KvType::Q4_0) => command.flag("--quantkv", 2),
        (keys, values) => {
            return Err(cannot(format!("keys of {keys} and values of {values}: it takes f16, q8_0 or q4_0 for both")));
        }
    }
    match context.flash_attn {
        FlashAttention::On => command.switch("--flashattention"),
        FlashAttention::Auto => {
            command.switch("--flashattention");
            command.note("KoboldCpp has no `auto` for flash attention: leave it out where a device cannot");
        }
        FlashAttention::Off => {}
    }
    for (differs, flag) in [
        (!context.offload_kqv, "--lowvram"),
        (plan.model.sliding_window && !context.swa_full, "--useswa"),
        (mapped(plan), "--usemmap"),
    ] {
        if differs {
            command.switch(flag);
        }
    }
    for (differs, what) in [
        (context.n_seq_max > 1, "several sequences: all of the context is one's"),
        (
            context.n_outputs_max != 0,
            "to make room for the logits of few tokens only: it takes more for those of a whole batch",
        ),
        (!context.op_offload, "to keep large batches off the GPU (op_offload)"),
        (!context.repack, "not to rearrange weights for the CPU (repack)"),
    ] {
        if differs {
            command.note(format!("KoboldCpp cannot be told {what}"));
        }
    }
    command.finish(plan)
}

/// Which backend, and which of its GPUs.
fn gpus(plan: &Plan, command: &mut Command) -> Result<(), EmitError> {
    let cannot = |what: &str| EmitError::Inexpressible { tool: TOOL, what: what.to_owned() };
    let mut families = plan.gpus().map(|gpu| Family::of(&gpu.backend));
    let Some(family) = families.next() else {
        command.switch("--usecpu");
        return Ok(());
    };
    if families.any(|other| other != family) {
        return Err(cannot("to use GPUs of several backends"));
    }
    let ids: Option<Vec<u32>> = devices(plan)
        .unwrap_or_default()
        .iter()
        .map(|device| device.trim_start_matches(|c: char| !c.is_ascii_digit()).parse().ok())
        .collect();
    let ids = ids.unwrap_or_default();
    if ids.is_empty() {
        command
            .note("the plan's GPUs are not here: where there are others too, say which with --usecuda or --usevulkan");
    }
    match family {
        Family::Cuda => {
            command.switch("--usecuda");
            match ids[..] {
                [] => {}
                [id] if id < CUDA_IDS => command.switch(&id.to_string()),
                _ => {
                    let ids: Vec<String> = ids.iter().map(u32::to_string).collect();
                    command.note(format!(
                        "--usecuda takes one of four GPUs, or all in their order: where those are not the plan's, set CUDA_VISIBLE_DEVICES={}",
                        ids.join(",")
                    ));
                }
            }
        }
        Family::Vulkan => {
            command.switch("--usevulkan");
            for id in &ids {
                command.switch(&id.to_string());
            }
        }
        // Its builds for macOS use Metal without being told.
        Family::Metal => {}
        _ => return Err(cannot("to use GPUs of this backend")),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::emit::{Tool, emit};
    use crate::test_plan::{host_plan, plan, two_gpus};
    use autoplace::memory::{FlashAttention, KvType, Place, TensorOverride};
    use autoplace::plan::Plan;

    /// The command, in words.
    fn words(plan: &Plan) -> Vec<String> {
        let text = emit(plan, Tool::KoboldCpp).unwrap();
        shlex::split(text.lines().last().unwrap()).unwrap()
    }

    #[track_caller]
    fn has(words: &[String], part: &[&str]) {
        let found = words.windows(part.len()).any(|window| window == part);
        assert!(found, "no {part:?} in {words:?}");
    }

    #[track_caller]
    fn refused(plan: &Plan, word: &str) {
        let error = emit(plan, Tool::KoboldCpp).unwrap_err().to_string();
        assert!(error.contains(word), "{error}");
    }

    #[test]
    fn one_gpu_is_chosen_by_its_number() {
        let mut plan = plan();
        let all = words(&plan);
        for part in [
            &["--model", "/models/llama 8b.gguf", "--usecuda", "0"][..],
            &["--gpulayers", "20"],
            &["--contextsize", "8192"],
            &["--batchsize", "512"],
            &["--flashattention"],
            &["--usemmap"],
        ] {
            has(&all, part);
        }
        for absent in ["--tensor_split", "--quantkv", "--lowvram", "--useswa"] {
            assert!(!all.contains(&absent.to_owned()), "{absent}");
        }
        let gpu = &mut plan.placements[0];
        (gpu.backend, gpu.device) = ("Vulkan".to_owned(), Some("Vulkan2".to_owned()));
        has(&words(&plan), &["--usevulkan", "2"]);
    }

    #[test]
    fn several_gpus_have_proportions_a_word_each() {
        let mut plan = two_gpus();
        has(&words(&plan), &["--tensor_split", "12", "8"]);
        let text = emit(&plan, Tool::KoboldCpp).unwrap();
        assert!(text.contains("CUDA_VISIBLE_DEVICES=1,0\n"), "{text}");
        plan.placements[1].backend = "Vulkan".to_owned();
        refused(&plan, "several backends");
    }

    #[test]
    fn a_plan_for_the_host_uses_no_gpu() {
        has(&words(&host_plan()), &["--usecpu", "--gpulayers", "0"]);
    }

    #[test]
    fn what_differs_from_the_defaults_is_said_or_refused() {
        let mut plan = plan();
        plan.overrides = vec![TensorOverride::new("exps", Place::Host)];
        plan.model.sliding_window = true;
        let context = &mut plan.context;
        (context.type_k, context.type_v) = (KvType::Q8_0, KvType::Q8_0);
        context.flash_attn = FlashAttention::Off;
        (context.offload_kqv, context.swa_full, context.mmap) = (false, false, false);
        context.n_ubatch = 700;
        let all = words(&plan);
        for part in [
            &["--overridetensors", "exps=CPU"][..],
            &["--quantkv", "1"],
            &["--lowvram"],
            &["--useswa"],
            &["--batchsize", "512"],
        ] {
            has(&all, part);
        }
        for absent in ["--flashattention", "--usemmap"] {
            assert!(!all.contains(&absent.to_owned()), "{absent}");
        }
        let text = emit(&plan, Tool::KoboldCpp).unwrap();
        assert!(text.contains("# KoboldCpp takes batches of powers of two: 512 and not 700"));
        plan.context.type_v = KvType::Q5_1;
        refused(&plan, "keys of Q8_0 and values of Q5_1");
        plan.context.n_ctx = 255;
        refused(&plan, "a context of 255 tokens");
    }
}
