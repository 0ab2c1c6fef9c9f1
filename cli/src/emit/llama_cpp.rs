//! `llama-server`: the flags of llama.cpp's common/arg.cpp, as of the version that this crate builds.

use autoplace::memory::FlashAttention;
use autoplace::plan::Plan;

use super::command::Command;
use super::{EmitError, Tool, devices, kv_type, mapped, model_path, override_tensor, tensor_split};

const TOOL: Tool = Tool::LlamaCpp;

pub(super) fn emit(plan: &Plan) -> Result<String, EmitError> {
    let context = &plan.context;
    let mut command = Command::new(TOOL, "llama-server");
    command.flag("-m", model_path(plan, TOOL)?);
    // Its own fit is not to change what is given here.
    command.flag("-fit", "off");
    command.flag("-ngl", plan.n_gpu_layers);
    match devices(plan) {
        Some(devices) if devices.is_empty() => command.flag("--device", "none"),
        Some(devices) if devices.iter().any(|device| device.contains(',')) => {
            return Err(EmitError::Inexpressible {
                tool: TOOL,
                what: "devices with a comma in their names".to_owned(),
            });
        }
        Some(devices) => command.flag("--device", devices.join(",")),
        None => command.note(
            "the plan's GPUs are not here: where there are others too, name them in this order with --device (llama-server --list-devices)",
        ),
    }
    if let Some(proportions) = tensor_split(plan, ",") {
        command.flag("-ts", proportions);
    }
    if let Some(overrides) = override_tensor(plan, TOOL)? {
        command.flag("-ot", overrides);
    }
    command.flag("-c", context.n_ctx);
    command.flag("-b", context.n_batch);
    command.flag("-ub", context.n_ubatch);
    // Given, so that it is not chosen by the server, which would share one cache between its four slots.
    command.flag("-np", context.n_seq_max);
    if context.n_seq_max > 1 {
        command.switch(if context.kv_unified { "--kv-unified" } else { "--no-kv-unified" });
    }
    command.flag("-ctk", kv_type(context.type_k));
    command.flag("-ctv", kv_type(context.type_v));
    command.flag("-fa", flash_attention(context.flash_attn));
    if let Some(pooling) = context.embeddings {
        command.switch("--embeddings");
        if let Some(pooling) = pooling.name() {
            command.flag("--pooling", pooling);
        }
    }
    if context.mtp {
        command.flag("--spec-type", "draft-mtp");
        let each = context.n_outputs_max / context.n_seq_max.max(1);
        command.flag("--spec-draft-n-max", each.saturating_sub(1).max(1));
        command.note(
            "llama-server sizes the context that predicts further tokens by itself, and may take more for it than the plan does",
        );
    }
    for (differs, flag) in [
        (!context.offload_kqv, "--no-kv-offload"),
        (!context.op_offload, "--no-op-offload"),
        (context.swa_full, "--swa-full"),
        (!context.repack, "--no-repack"),
    ] {
        if differs {
            command.switch(flag);
        }
    }
    if !mapped(plan) {
        command.flag("--load-mode", "none");
    }
    if context.n_outputs_max != 0 {
        command.note(
            "llama-server makes room for the logits of one token per sequence, as the plan does; llama-completion and llama-server from before mid-2026 do so for a whole batch, which takes more",
        );
    }
    command.note(
        "beside the plan llama-server keeps up to 8 GiB of past prompts in host memory: --cache-ram 0 turns that off",
    );
    command.finish(plan)
}

const fn flash_attention(flash_attn: FlashAttention) -> &'static str {
    match flash_attn {
        FlashAttention::Auto => "auto",
        FlashAttention::On => "on",
        FlashAttention::Off => "off",
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use crate::emit::{Tool, emit};
    use crate::test_plan::{host_plan, plan, two_gpus};
    use autoplace::memory::{FlashAttention, KvType, Place, Pooling, TensorOverride};
    use autoplace::plan::Plan;

    /// The command, in words.
    fn words(plan: &Plan) -> Vec<String> {
        let text = emit(plan, Tool::LlamaCpp).unwrap();
        let command = text.lines().last().unwrap();
        shlex::split(command).unwrap()
    }

    #[track_caller]
    fn has(words: &[String], part: &[&str]) {
        assert!(words.windows(part.len()).any(|window| window == part), "no {part:?} in {words:?}");
    }

    #[test]
    fn embeddings_and_a_stated_pooling_are_said() {
        let mut plan = plan();
        plan.context.embeddings = Some(Pooling::Mean);
        has(&words(&plan), &["--embeddings", "--pooling", "mean"]);
        plan.context.embeddings = Some(Pooling::Model);
        let words = words(&plan);
        has(&words, &["--embeddings"]);
        assert!(!words.iter().any(|word| word == "--pooling"));
        for tool in [Tool::Ollama, Tool::LmStudio, Tool::KoboldCpp, Tool::LlamaCpp2] {
            assert!(emit(&plan, tool).is_err(), "{tool}");
        }
    }

    #[test]
    fn further_tokens_are_predicted_as_many_as_there_are_outputs_for() {
        let mut plan = plan();
        plan.context.mtp = true;
        (plan.context.n_seq_max, plan.context.n_outputs_max) = (2, 8);
        let words = words(&plan);
        has(&words, &["--spec-type", "draft-mtp"]);
        has(&words, &["--spec-draft-n-max", "3"]);
        assert!(emit(&plan, Tool::Ollama).is_err());
    }

    #[test]
    fn one_gpu_is_named_and_needs_no_proportions() {
        let words = words(&plan());
        assert_eq!(words[0], "llama-server");
        for part in [
            &["-m", "/models/llama 8b.gguf"][..],
            &["-fit", "off"],
            &["-ngl", "20"],
            &["--device", "CUDA0"],
            &["-c", "8192"],
            &["-b", "2048"],
            &["-ub", "512"],
            &["-np", "1"],
            &["-ctk", "f16"],
            &["-ctv", "f16"],
            &["-fa", "auto"],
        ] {
            has(&words, part);
        }
        for absent in ["-ts", "-ot", "--no-kv-offload", "--no-repack", "--load-mode", "--kv-unified", "--swa-full"] {
            assert!(!words.contains(&absent.to_owned()), "{absent}");
        }
    }

    #[test]
    fn two_gpus_are_named_in_the_plans_order_with_their_proportions() {
        let words = words(&two_gpus());
        has(&words, &["--device", "CUDA1,CUDA0"]);
        has(&words, &["-ts", "12,8"]);
    }

    #[test]
    fn a_plan_for_the_host_uses_no_device() {
        let words = words(&host_plan());
        has(&words, &["-ngl", "0"]);
        has(&words, &["--device", "none"]);
    }

    #[test]
    fn a_gpu_that_is_not_there_is_not_named_and_a_comment_says_so() {
        let mut plan = plan();
        plan.placements[0].device = None;
        assert!(!words(&plan).contains(&"--device".to_owned()));
        assert!(emit(&plan, Tool::LlamaCpp).unwrap().contains("# the plan's GPUs are not here"));
    }

    #[test]
    fn what_differs_from_the_defaults_has_a_flag_each() {
        let mut plan = plan();
        let context = &mut plan.context;
        (context.n_seq_max, context.n_outputs_max) = (4, 4);
        (context.type_k, context.type_v) = (KvType::Q8_0, KvType::IQ4_NL);
        context.flash_attn = FlashAttention::On;
        (context.offload_kqv, context.op_offload) = (false, false);
        (context.kv_unified, context.swa_full) = (true, true);
        (context.mmap, context.repack) = (false, false);
        let words = words(&plan);
        for part in [
            &["-np", "4", "--kv-unified"][..],
            &["-ctk", "q8_0"],
            &["-ctv", "iq4_nl"],
            &["-fa", "on"],
            &["--no-kv-offload"],
            &["--no-op-offload"],
            &["--no-repack"],
            &["--swa-full"],
            &["--load-mode", "none"],
        ] {
            has(&words, part);
        }
    }

    #[test]
    fn overrides_name_buffer_types() {
        let mut plan = plan();
        plan.overrides = vec![
            TensorOverride::new(r"blk\.(1|2)\.ffn_.*_exps", Place::Host),
            TensorOverride::new("^output", Place::Gpu(0)),
        ];
        has(&words(&plan), &["-ot", r"blk\.(1|2)\.ffn_.*_exps=CPU,^output=CUDA0"]);
        plan.placements[0].device = None;
        assert!(emit(&plan, Tool::LlamaCpp).is_err());
    }

    #[test]
    fn metal_reads_the_file_as_the_load_does() {
        let mut plan = plan();
        plan.placements[0].backend = "MTL".to_owned();
        has(&words(&plan), &["--load-mode", "none"]);
    }

    #[test]
    fn a_shell_reads_any_path_back() {
        for path in ["/a b/it's.gguf", "$(rm -rf ~).gguf", "a\"b`c\\d!.gguf", "two\nlines", "-x", ""] {
            let mut plan = plan();
            plan.model.path = Some(PathBuf::from(path));
            let text = emit(&plan, Tool::LlamaCpp).unwrap();
            let command = text.split_inclusive('\n').skip_while(|line| line.starts_with('#'));
            let words = shlex::split(&command.collect::<String>()).unwrap();
            assert_eq!(words[2], path);
        }
    }
}
