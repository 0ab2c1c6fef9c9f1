//! `llama-server`: the flags of llama.cpp's common/arg.cpp, as of the version that this crate builds.

use autoplace::memory::FlashAttention;
use autoplace::plan::Plan;

use super::{applying, cannot, comment, devices, kv_type, mapped, override_tensor, tensor_split};

/// The words of a command line.
struct Command(Vec<String>);

impl Command {
    fn switch(&mut self, flag: &str) {
        self.0.push(flag.to_owned());
    }

    fn flag(&mut self, flag: &str, value: impl ToString) {
        self.0.extend([flag.to_owned(), value.to_string()]);
    }

    /// The flag where there is a value for it.
    fn optional(&mut self, flag: &str, value: Option<String>) {
        if let Some(value) = value {
            self.flag(flag, value);
        }
    }
}

pub(super) fn emit(plan: &Plan, path: &str) -> Result<String, String> {
    let context = &plan.context;
    let mut command = Command(vec!["llama-server".to_owned()]);
    command.flag("-m", path);
    // Its own fit is not to change what is given here.
    command.flag("-fit", "off");
    command.flag("-ngl", plan.n_gpu_layers);
    let devices = devices(plan);
    if let Some(devices) = &devices {
        if devices.iter().any(|device| device.contains(',')) {
            return cannot("devices with a comma in their names");
        }
        command.flag("--device", if devices.is_empty() { "none".to_owned() } else { devices.join(",") });
    }
    command.optional("-ts", tensor_split(plan));
    command.optional("-ot", override_tensor(plan)?);
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
        command.optional("--pooling", pooling.name().map(str::to_owned));
    }
    if context.mtp {
        command.flag("--spec-type", "draft-mtp");
        let each = context.n_outputs_max / context.n_seq_max.max(1);
        command.flag("--spec-draft-n-max", each.saturating_sub(1).max(1));
    }
    let switches = [
        (!context.offload_kqv, "--no-kv-offload"),
        (!context.op_offload, "--no-op-offload"),
        (context.swa_full, "--swa-full"),
        (!context.repack, "--no-repack"),
    ];
    applying(&switches).for_each(|flag| command.switch(flag));
    if !mapped(plan) {
        command.flag("--load-mode", "none");
    }
    let notes = [
        (
            devices.is_none(),
            "the plan's GPUs are not here: where there are others too, name them in this order with --device (llama-server --list-devices)",
        ),
        (
            context.mtp,
            "llama-server sizes the context that predicts further tokens by itself, and may take more for it than the plan does",
        ),
        (
            context.n_outputs_max != 0,
            "llama-server makes room for the logits of one token per sequence, as the plan does; llama-completion and llama-server from before mid-2026 do so for a whole batch, which takes more",
        ),
        (
            true,
            "beside the plan llama-server keeps up to 8 GiB of past prompts in host memory: --cache-ram 0 turns that off",
        ),
    ];
    let notes: Vec<String> = applying(&notes).map(str::to_owned).collect();
    // Quoted for a POSIX shell.
    match shlex::try_join(command.0.iter().map(String::as_str)) {
        Ok(line) => Ok(format!("{}{line}\n", comment(plan, &notes))),
        Err(_) => cannot("a word with a NUL"),
    }
}
