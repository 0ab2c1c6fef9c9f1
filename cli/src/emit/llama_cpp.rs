//! `llama-server`: the flags of llama.cpp's common/arg.cpp, as of the version that this crate builds.

use autoplace::memory::FlashAttention;
use autoplace::plan::Plan;

use super::{Command, cannot, devices, kv_type, mapped, override_tensor, tensor_split};

pub(super) fn emit(plan: &Plan, path: &str) -> Result<String, String> {
    let context = &plan.context;
    let mut command = Command::new("llama-server");
    let devices = match devices(plan) {
        Some(devices) if devices.is_empty() => Some("none".to_owned()),
        Some(devices) if devices.iter().any(|device| device.contains(',')) => {
            return cannot("devices with a comma in their names");
        }
        Some(devices) => Some(devices.join(",")),
        None => {
            command.note(
                "the plan's GPUs are not here: where there are others too, name them in this order with --device (llama-server --list-devices)",
            );
            None
        }
    };
    command.flag("-m", path);
    // Its own fit is not to change what is given here.
    command.flag("-fit", "off");
    command.flag("-ngl", plan.n_gpu_layers);
    command.flags([("--device", devices), ("-ts", tensor_split(plan)), ("-ot", override_tensor(plan)?)]);
    command.flag("-c", context.n_ctx);
    command.flag("-b", context.n_batch);
    command.flag("-ub", context.n_ubatch);
    // Given, so that it is not chosen by the server, which would share one cache between its four slots.
    command.flag("-np", context.n_seq_max);
    if context.n_seq_max > 1 {
        command.switch(if context.kv_unified { "--kv-unified" } else { "--no-kv-unified" });
    }
    let flash_attn = match context.flash_attn {
        FlashAttention::Auto => "auto",
        FlashAttention::On => "on",
        FlashAttention::Off => "off",
    };
    command.flag("-ctk", kv_type(context.type_k));
    command.flag("-ctv", kv_type(context.type_v));
    command.flag("-fa", flash_attn);
    if let Some(pooling) = context.embeddings {
        command.switch("--embeddings");
        command.flags([("--pooling", pooling.name().map(str::to_owned))]);
    }
    if context.mtp {
        command.flag("--spec-type", "draft-mtp");
        let each = context.n_outputs_max / context.n_seq_max.max(1);
        command.flag("--spec-draft-n-max", each.saturating_sub(1).max(1));
        command.note(
            "llama-server sizes the context that predicts further tokens by itself, and may take more for it than the plan does",
        );
    }
    command.switches(&[
        (!context.offload_kqv, "--no-kv-offload"),
        (!context.op_offload, "--no-op-offload"),
        (context.swa_full, "--swa-full"),
        (!context.repack, "--no-repack"),
    ]);
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
